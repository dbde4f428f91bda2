"""The agent's core over fakes: session, conversation and stall detector are real, model and sandbox are not."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from m3agent.agent.loop.compaction import Window
from m3agent.agent.loop.limits import RunLimits
from m3agent.agent.loop.loop import Loop
from m3agent.agent.loop.model_step import Model
from m3agent.agent.loop.tool_executor import Calls
from m3agent.agent.session.log_reader import Line
from m3agent.agent.session.messages import Conversation, Message
from m3agent.agent.session.session import CALLS, Session
from m3agent.agent.stall import StallDetector, Thresholds
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.serving.client.messages import Delta, ToolCall
from m3agent.serving.client.prices import Prices
from m3agent.tools.registry import ExternalTools, Toolset
from tests.fakes.client import Answer, Asked, ScriptedClient, call, calls, says
from tests.fakes.machine import Script, sandbox_over
from tests.fakes.suite import Run, Suite

BUGGY = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "test_calc.py": "def test_add():\n    assert add(2, 3) == 5\n",
}
ADD = "test_calc.py::test_add"
FIRST_MESSAGES: list[Message] = [
    {"role": "system", "content": "the rules"},
    {"role": "user", "content": "the repository and the issue"},
]
FIX = calls(call("fix", "file_edit", path="calc.py", old="a - b", new="a + b"))
FIXED = "edited calc.py from line 2"
"""What the tool answers to `FIX`."""
TEST = calls(call("test", "test_runner", test_file="."))
READ = calls(call("read", "file_read", path="calc.py"))
DONE = says("It adds now.")


def sums(files: Mapping[str, str], _: Sequence[str]) -> Run:
    """Run the test of `BUGGY`, which fails as long as the bug is there."""
    return Run({ADD: "passed" if "a + b" in files["calc.py"] else "failed"})


@dataclass
class Core:
    """The parts of one running session."""

    loop: Loop
    client: ScriptedClient
    lines: list[Line]
    deltas: list[Delta]

    @property
    def asked(self) -> list[Asked]:
        """The requests to the model."""
        return self.client.asked

    @property
    def calls(self) -> Calls:
        """The part that runs tool calls."""
        return self.loop.calls

    @property
    def model(self) -> Model:
        """The part that sends requests to the model."""
        return self.loop.model

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox in which calls run."""
        return self.loop.sandbox

    @property
    def messages(self) -> Conversation:
        """The conversation so far."""
        return self.loop.messages

    def log(self, kind: str) -> list[Line]:
        """Return the events of one type."""
        return [line for line in self.lines if line["type"] == kind]

    def kinds(self) -> list[str]:
        """Return the types of all events in order."""
        return [line["type"] for line in self.lines]

    def roles(self) -> list[str]:
        """Return the roles of all messages after the first two."""
        return [message["role"] for message in self.messages[2:]]

    def last(self) -> Any:
        """Return the content of the last message."""
        return self.messages[-1]["content"]


async def scans(it: Core, *made: ToolCall) -> int:
    """Return how often the work tree was scanned during these calls."""
    count = 0
    checkpoint = it.sandbox.checkpoint

    async def counted() -> str:
        nonlocal count
        count += 1
        return await checkpoint()

    with mock.patch.object(it.sandbox, "checkpoint", counted):
        for one in made:
            await it.calls.run(one, 1)
    return count


@contextlib.asynccontextmanager
async def core(
    folder: Path,
    *answers: Answer,
    files: Mapping[str, str] = BUGGY,
    script: Script | None = None,
    limits: RunLimits | None = None,
    thresholds: Thresholds | None = None,
    window: int | None = None,
    messages: Iterable[Message] = FIRST_MESSAGES,
    prices: Prices | None = None,
    others: ExternalTools | None = None,
) -> AsyncIterator[Core]:
    """Start a session over `files` whose model gives these answers; `script` runs the commands in the sandbox."""
    lines: list[Line] = []
    deltas: list[Delta] = []
    client, limits = ScriptedClient(answers), limits or RunLimits(100, 60)
    stall = StallDetector(thresholds)
    async with contextlib.AsyncExitStack() as stack:
        # no test here cuts the power, and a busy disk takes long to flush
        stack.enter_context(mock.patch("os.fsync"))
        session = stack.enter_context(contextlib.closing(Session.create(folder, [lines.append], "session")))
        told = stack.enter_context(contextlib.closing(Conversation.begin(session.folder, messages)))
        sandbox = await stack.enter_async_context(sandbox_over(folder, files, script or Suite(sums)))
        tools = Toolset(sandbox, session.folder / CALLS, others)
        model = Model(
            *(client, session, limits, told, stall, tools.schemas), prices=prices, on_delta=deltas.append
        )
        carry_out = Calls(sandbox, tools, session)
        loop = Loop(model, carry_out, sandbox, session, limits, told, stall, Window(window))
        yield Core(loop, client, lines, deltas)

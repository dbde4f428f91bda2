"""One contestant of the client benchmark, in a separate process and, if necessary, its own virtual environment.

    python benchmarks/client_child.py KIND URL PREFIX_BYTES FOLDER

For each line of its standard input, it takes one turn of its conversation and prints a line of JSON with the cost:
`cpu` and `wall` in milliseconds, `peak` in bytes (the peak resident memory of this process so far); or `error`.
Processes that it starts for a call (a sandbox, a shell) are not counted. FOLDER is for its files.

- socket: sends and receives the same bytes as m3agent's client, and does nothing with them
- client: m3agent's client alone, from the messages until the answer is one of them
- turn: m3agent's loop: request, event log, and the call run in a bubblewrap sandbox
- mini-query: mini-swe-agent's `query()`, from the messages until the answer is one of them
- mini-turn: what its `run()` does for a turn: `step()`, which runs the call, and `save()`
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

# makes the other modules importable when this runs as a file
sys.path.append(str(Path(__file__).resolve().parent.parent))

from benchmarks.client_server import FILE, LINES, MODEL, SHOWN

SYSTEM = "You fix an issue in a software repository, with tools."
LINE = "    value = {0:04d}  # what is in line {0:04d}\n"


class Clock:
    """Sums the time spent inside it: seconds of this process's CPU (all threads, kernel included) and of wall time."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0

    def __enter__(self) -> None:
        self._started = time.process_time(), time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.cpu += time.process_time() - self._started[0]
        self.wall += time.perf_counter() - self._started[1]


class Contestant(Protocol):
    """A conversation that begins with its prefix."""

    async def turn(self, clock: Clock) -> None:
        """Take one more turn. Only what runs inside the clock counts."""
        ...

    async def close(self) -> None:
        """Stop everything that was started."""
        ...


def prefix(size: int) -> str:
    """Return `size` bytes of Python code."""
    lines = (
        f'def function_{number}(self, name: str) -> str:\n    return f"{{name}}: {number}"\n\n'
        for number in range(size)
    )
    text: list[str] = []
    total = 0
    for line in lines:
        if total >= size:
            break
        text.append(line)
        total += len(line)
    return "".join(text)[:size]


def module() -> str:
    """Return the file that calls read; fifty lines of it are about 2 kB."""
    return "".join(LINE.format(number) for number in range(LINES))


def first_messages(size: int) -> list[dict[str, Any]]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prefix(size)}]


def result(call_id: str) -> dict[str, Any]:
    """Return the result of a call, for contestants that do not run it."""
    return {"role": "tool", "tool_call_id": call_id, "content": "".join(LINE.format(n) for n in range(SHOWN))}


# -- m3agent -------------------------------------------------------------------------------------------------------


def endpoint(url: str) -> Any:
    from m3agent.serving.client.endpoint import Endpoint

    return Endpoint(
        url=url,
        model=MODEL,
        flavour="vllm",
        version=None,
        max_model_len=1 << 20,
        reasoning_field="reasoning",
        local=True,
    )


class OurClient:
    """m3agent's client: it sends the messages and adds the answer. Adding the results of calls is not measured."""

    def __init__(self, url: str, size: int, folder: Path) -> None:
        from m3agent.serving.client.client import Client
        from m3agent.tools.registry import own_schemas

        self.client = Client(endpoint(url), api_key=None)
        self.tools = own_schemas()
        self.messages = first_messages(size)

    async def turn(self, clock: Clock) -> None:
        from m3agent.serving.client.messages import Turn

        with clock:
            items = [item async for item in self.client.complete(self.messages, self.tools)]
            answer = items[-1]
            assert isinstance(answer, Turn), answer
            self.messages.append(answer.message.to_request("reasoning"))
        self.messages.append(result(answer.message.calls[0].id))

    async def close(self) -> None:
        await self.client.close()


class OurTurn:
    """m3agent's loop with everything that a session has, except a screen."""

    def __init__(self, url: str, size: int, folder: Path) -> None:
        from m3agent.agent.loop.compaction import Window
        from m3agent.agent.loop.limits import RunLimits
        from m3agent.agent.loop.loop import Loop
        from m3agent.agent.loop.model_step import Model
        from m3agent.agent.loop.tool_executor import Calls
        from m3agent.agent.session.messages import Conversation
        from m3agent.agent.session.session import Session
        from m3agent.agent.stall import StallDetector, Thresholds
        from m3agent.sandbox.backends.factory import SandboxSpec, new_sandbox
        from m3agent.sandbox.store.git import TreeStore
        from m3agent.sandbox.store.workspace import Workspace
        from m3agent.serving.client.client import Client
        from m3agent.tools.registry import Toolset

        tree = folder / "tree"
        tree.mkdir()
        (tree / FILE).write_text(module())
        workspace = Workspace.from_folder(TreeStore(folder / "trees.git"), tree, [FILE])
        self.sandbox = new_sandbox("bwrap", SandboxSpec("bwrap"), workspace, lambda _: None)
        self.client = Client(endpoint(url), api_key=None)
        session = Session.create(folder / "state", [])
        limits = RunLimits(turns=1 << 30, minutes=1 << 20)
        messages = Conversation.begin(session.folder, first_messages(size))
        # this model reads one file forever, so the thresholds switch off the rules on that; the detector still works
        stall = StallDetector(Thresholds(in_a_row=0, in_window=0, rounds=0, nothing_new=0, rereads=0))
        tools = Toolset(self.sandbox, session.folder / "calls")
        model = Model(self.client, session, limits, messages, stall, tools.schemas)
        calls = Calls(self.sandbox, tools, session)
        window = Window(1 << 40)
        self.loop = Loop(model, calls, self.sandbox, session, limits, messages, stall, window)
        self.started = False

    async def turn(self, clock: Clock) -> None:
        if not self.started:
            await self.sandbox.__aenter__()
            self.started = True
        with clock:  # as in Loop.run
            assert not self.loop.window.is_nearly_full(self.loop.messages)
            answer = await self.loop.model.ask()
            self.loop.window.record_usage(answer.usage, len(self.loop.messages))
            ended = await self.loop._answered(answer)
        assert ended is None, ended
        content = self.loop.messages[-1]["content"]
        assert "value = " in content, content

    async def close(self) -> None:
        await self.client.close()
        await self.sandbox.close()


class Socket:
    """The lower bound for any client: send the request's bytes through a socket, and receive the answer's bytes."""

    def __init__(self, url: str, size: int, folder: Path) -> None:
        from m3agent.serving.client.request_body import RequestBody
        from m3agent.tools.registry import own_schemas

        address = urlsplit(url)
        assert address.hostname and address.port
        self.socket = socket.create_connection((address.hostname, address.port), timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.body = RequestBody()
        self.parameters = {"model": MODEL, "stream": True, "tools": own_schemas()}
        self.messages = first_messages(size)

    async def turn(self, clock: Clock) -> None:
        request = self.body.encode(self.messages, self.parameters)
        head = b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(request)
        said = bytearray()
        with clock:
            self.socket.sendall(head)
            self.socket.sendall(request)
            while not said.endswith(b"\r\n0\r\n\r\n"):
                more = self.socket.recv(1 << 16)
                assert more, "the server hung up"
                said += more
        assert b" 200 OK" in said, said
        # as long as a client's message, but made without parsing the answer
        self.messages.append({"role": "assistant", "content": "", "reasoning": "token " * (len(said) // 200)})
        self.messages.append(result("call_00000000"))

    async def close(self) -> None:
        self.socket.close()


# -- mini-swe-agent ------------------------------------------------------------------------------------------------


class Mini:
    """mini-swe-agent with the model, environment and trajectory file that its command line uses."""

    def __init__(self, url: str, size: int, folder: Path) -> None:
        os.environ |= {
            "MSWEA_SILENT_STARTUP": "1",
            "MSWEA_GLOBAL_CONFIG_DIR": str(folder),
            "MSWEA_COST_TRACKING": "ignore_errors",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it requests prices from a server
            "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",  # report a failure instead of retrying for minutes
            "NO_PROXY": "127.0.0.1",
        }
        from minisweagent.agents.default import DefaultAgent
        from minisweagent.environments.local import LocalEnvironment
        from minisweagent.models.litellm_model import LitellmModel

        (folder / FILE).write_text(module())
        self.trajectory = folder / "trajectory.json"
        arguments = {"api_base": url, "api_key": "none", "drop_params": True}
        model = LitellmModel(model_name=f"openai/{MODEL}", model_kwargs=arguments)
        self.agent: Any = DefaultAgent(
            model,
            LocalEnvironment(cwd=str(folder)),
            system_template=SYSTEM,
            instance_template="{{task}}",
            output_path=self.trajectory,
        )
        # as in DefaultAgent.run
        self.agent.extra_template_vars = {"task": prefix(size)}
        templates = {"system": self.agent.config.system_template, "user": self.agent.config.instance_template}
        for role, template in templates.items():
            content = self.agent._render_template(template)
            self.agent.add_messages(model.format_message(role=role, content=content))

    async def close(self) -> None:
        self.trajectory.unlink(missing_ok=True)

    def check(self) -> None:
        content = self.agent.messages[-1]["content"]
        assert "value = " in content, content


class MiniQuery(Mini):
    """Measures mini-swe-agent's request alone."""

    async def turn(self, clock: Clock) -> None:
        with clock:
            message = self.agent.query()
        self.agent.execute_actions(message)
        self.check()


class MiniTurn(Mini):
    """Measures a whole turn as in mini-swe-agent's `run`."""

    async def turn(self, clock: Clock) -> None:
        with clock:
            self.agent.step()
            self.agent.save(self.agent.config.output_path)
        self.check()


KINDS: dict[str, Callable[[str, int, Path], Contestant]] = {
    "socket": Socket,
    "client": OurClient,
    "turn": OurTurn,
    "mini-query": MiniQuery,
    "mini-turn": MiniTurn,
}


def peak() -> int:
    """Return the peak resident memory so far, in bytes. getrusage may report that of the parent process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM")


def main() -> None:
    kind, url, size, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # peers print to standard output
    contestant = None
    with asyncio.Runner() as runner:
        for _ in sys.stdin:
            clock = Clock()
            try:
                contestant = contestant or KINDS[kind](url, size, folder)
                runner.run(contestant.turn(clock))
            except Exception as error:  # noqa: BLE001 - the table shows every error
                answers.write(json.dumps({"error": f"{type(error).__name__}: {error}"[:300]}) + "\n")
                break
            took = {"cpu": 1000 * clock.cpu, "wall": 1000 * clock.wall, "peak": peak()}
            answers.write(json.dumps(took) + "\n")
        if contestant is not None:
            runner.run(contestant.close())


if __name__ == "__main__":
    main()

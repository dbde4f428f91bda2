"""Test calls: what is logged of each, and what is known of the work tree after it. All in memory: see tests/fakes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from m3agent.agent.loop.tool_executor import OUT_OF_TIME
from m3agent.sandbox.errors import SandboxDied
from m3agent.serving.client.messages import ToolCall
from m3agent.tools.base import ToolResult
from tests.agent.core import ADD, FIXED, core, scans
from tests.fakes.client import call
from tests.fakes.machine import Command, Done
from tests.fakes.suite import Run, Suite

READ = call("read", "file_read", path="calc.py")
FIX = call("fix", "file_edit", path="calc.py", old="a - b", new="a + b")
TEST = call("test", "test_runner", test_file=".")


class Others:
    """Tools of an MCP server."""

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = [{"type": "function", "function": {"name": "mcp__look"}}]

    async def call(self, name: str, arguments: dict[str, Any], log: Path) -> ToolResult:
        return ToolResult(f"{name} {sorted(arguments)} {log.name}")


async def python(command: Command) -> Done | None:
    """Run a program in memory: one that begins with `write` writes a file, and each prints its own text."""
    program = command.stdin.decode()
    if program.startswith("write"):
        command.files.write("new.txt", b"new\n")
    return Done(stdout=program.encode())


async def test_a_call_ends_with_the_session_s_time(tmp_path: Path) -> None:
    async def hangs(_: Command) -> Done | None:
        await asyncio.sleep(3600)
        return None

    async with core(tmp_path, script=hangs) as it:
        it.calls.deadline = time.monotonic() + 0.05
        result = await it.calls.run(call("run", "code_exec", code="1", language="python"), 1)
        assert (result.content, result.is_error) == (OUT_OF_TIME, True)
        assert it.lines[-1]["status"] == "done"


async def test_a_call_is_logged_before_and_after(tmp_path: Path) -> None:
    async with core(tmp_path) as it:
        base = it.sandbox.tree
        result = await it.calls.run(FIX, 3)
        assert it.kinds() == ["call.started", "call.finished", "file.changed"]
        started, finished, changed = it.lines
        wanted = {"turn": 3, "call": 1, "id": "fix", "name": "file_edit"}
        assert wanted.items() <= started.items()
        assert (started["arguments"], started["tree"]) == (FIX.arguments, base)
        assert wanted.items() <= finished.items()
        assert (finished["status"], finished["content"]) == ("done", FIXED)
        assert (finished["digest"], finished["is_error"]) == (result.digest, False)
        assert finished["tree"] == it.sandbox.tree != base
        assert (changed["turn"], changed["call"]) == (3, 1)
        assert (changed["changes"], changed["tree"]) == ([("M", "calc.py")], it.sandbox.tree)


async def test_the_start_is_logged_before_the_side_effect(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    async def look(_: Command) -> Done:
        seen.append(it.kinds())
        return Done()

    async with core(tmp_path, script=look) as it:
        await it.calls.run(call("x", "code_exec", code="pass"), 1)
        assert seen == [["call.started"]]


async def test_calls_are_numbered_on_from_the_last(tmp_path: Path) -> None:
    async with core(tmp_path) as it:
        it.calls.number = 6
        for made in (READ, READ):
            await it.calls.run(made, 1)
        assert [line["call"] for line in it.log("call.started")] == [7, 8]
        assert [line["call"] for line in it.log("call.finished")] == [7, 8]
        assert it.calls.number == 8


async def test_seconds_are_those_of_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 102.5])
    async with core(tmp_path) as it:
        with monkeypatch.context() as patched:
            # patch the name in this module only, because the event loop reads the clock as well
            patched.setattr(
                "m3agent.agent.loop.tool_executor.time", SimpleNamespace(monotonic=lambda: next(clock))
            )
            await it.calls.run(READ, 1)
        assert it.log("call.finished")[0]["seconds"] == 2.5


async def test_a_call_that_changes_nothing(tmp_path: Path) -> None:
    async with core(tmp_path, script=python) as it:
        await it.calls.run(call("x", "code_exec", code="print()"), 1)
        assert it.kinds() == ["call.started", "call.finished"]
        assert it.log("call.finished")[0]["tree"] == it.sandbox.workspace.base


@pytest.mark.parametrize(
    ("made", "looks"),
    [
        (READ, 0),
        (call("o", "mcp__look", at="it"), 0),
        (FIX, 1),
        (call("x", "code_exec", code="print()"), 1),
        (call("u", "no_such_tool"), 1),
    ],
)
async def test_the_work_tree_is_looked_through_after_what_may_change_it(
    tmp_path: Path, made: ToolCall, looks: int
) -> None:
    async with core(tmp_path, script=python, others=Others()) as it:
        assert await scans(it, made) == looks


async def test_a_failure_that_reads_like_a_refusal_is_none(tmp_path: Path) -> None:
    class Failing(Others):
        async def call(self, name: str, arguments: dict[str, Any], log: Path) -> ToolResult:
            return ToolResult("error: it broke", is_error=True)

    async with core(tmp_path, others=Failing()) as it:
        await it.calls.run(call("1", "mcp__look"), 1)
        await it.calls.run(call("2", "nothing"), 1)
        assert [line["status"] for line in it.lines if line["type"] == "call.finished"] == ["done", "refused"]


async def test_tools_of_others(tmp_path: Path) -> None:
    async with core(tmp_path, others=Others()) as it:
        result = await it.calls.run(call("o", "mcp__look", at="it"), 1)
        assert result.content == "mcp__look ['at'] 0001.log"
        assert it.log("call.finished")[0]["tree"] == it.sandbox.workspace.base


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (call("u", "no_such_tool"), "there is no tool 'no_such_tool'"),
        (ToolCall("b", "file_read", None, "{", "it ends early"), "it ends early"),
        (call("m", "file_read", path="missing.py"), "missing.py"),
        (call("k", "file_write", path="k.py", content="K = '<REDACTED:github-token>'"), "<REDACTED:github-token>"),
        (call("t", "test_runner", test_file="--pdb"), "not options"),
    ],
)  # fmt: skip
async def test_refused_call(tmp_path: Path, made: ToolCall, said: str) -> None:
    async with core(tmp_path) as it:
        result = await it.calls.run(made, 1)
        [finished] = it.log("call.finished")
        assert (finished["status"], finished["is_error"]) == ("refused", True)
        assert result.content.startswith("error: ")
        assert said in result.content
        assert "k.py" not in it.sandbox.workspace.entries(it.sandbox.tree)


async def test_failing_program_counts_as_run(tmp_path: Path) -> None:
    async def fails(_: Command) -> Done:
        return Done(exit=2, stderr=b"error: no\n")

    async with core(tmp_path, script=fails) as it:
        result = await it.calls.run(call("x", "code_exec", code="exit 2", language="bash"), 1)
        [finished] = it.log("call.finished")
        assert (finished["status"], finished["is_error"], finished["exit_code"]) == ("done", True, 2)
        assert result.exit_code == 2


async def test_a_result_that_only_looks_like_a_refusal(tmp_path: Path) -> None:
    class Quoting(Others):
        async def call(self, name: str, arguments: dict[str, Any], log: Path) -> ToolResult:
            return ToolResult("error: is the first word of this text")

    async with core(tmp_path, others=Quoting()) as it:
        await it.calls.run(call("o", "mcp__look"), 1)
        assert it.log("call.finished")[0]["status"] == "done"


async def test_interrupted_call_is_logged_and_interruption_propagates(tmp_path: Path) -> None:
    half_done = asyncio.Event()

    async def hang(command: Command) -> Done:
        command.files.write("half.txt", b"half\n")
        half_done.set()
        return await asyncio.Future()

    async with core(tmp_path, script=hang) as it:
        base = it.sandbox.tree
        running = asyncio.ensure_future(it.calls.run(call("x", "code_exec", code="1"), 2))
        await half_done.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert it.kinds() == ["call.started", "call.finished"]
        [finished] = it.log("call.finished")
        assert (finished["turn"], finished["call"], finished["id"]) == (2, 1, "x")
        assert (finished["status"], finished["content"], finished["is_error"]) == (
            *("interrupted", "interrupted"),
            True,
        )
        assert finished["tree"] == base, "what a call did half is not kept"


async def test_a_sandbox_that_fails_is_no_result(tmp_path: Path) -> None:
    async with core(tmp_path) as it:
        await it.sandbox.machine.destroy()
        with pytest.raises(SandboxDied):
            await it.calls.run(FIX, 1)
        assert it.kinds() == ["call.started"]


async def test_a_test_run_is_known_with_the_tree_that_it_saw(tmp_path: Path) -> None:
    async with core(tmp_path) as it:
        await it.calls.run(TEST, 1)
        assert it.calls.tests.tree == it.sandbox.workspace.base
        await it.calls.run(FIX, 1)
        assert it.calls.tests.tree == it.sandbox.workspace.base != it.sandbox.tree
        await it.calls.run(TEST, 2)
        assert it.calls.tests.tree == it.sandbox.tree
        assert it.calls.tests.last is not None
        assert (it.calls.tests.last["passed"], it.calls.tests.last["failed"]) == ([ADD], [])
        red, green = it.log("test.finished")
        assert (red["where"], red["call"], red["failed"], red["complete"]) == ("session", 1, [ADD], True)
        assert red["tree"] == it.sandbox.workspace.base
        assert (green["call"], green["passed"], green["tree"]) == (3, [ADD], it.sandbox.tree)


@pytest.mark.parametrize(
    ("outcomes", "counts"),
    [
        ({}, False),
        ({ADD: "skipped"}, False),
        ({ADD: "failed"}, True),
        ({ADD: "error"}, True),
        ({ADD: "passed"}, True),
    ],
)
async def test_a_run_without_a_result_does_not_count_as_tested(
    tmp_path: Path, outcomes: Mapping[str, str], counts: bool
) -> None:
    async with core(tmp_path, script=Suite(lambda *_: Run(outcomes))) as it:
        await it.calls.run(TEST, 1)
        assert it.calls.tests.last is not None
        assert it.calls.tests.tree == (it.sandbox.tree if counts else None)


@pytest.mark.parametrize(
    ("made", "tested"),
    [
        (call("x", "code_exec", code="write = 1\nimport pytest\npytest.main()"), True),
        (call("x", "code_exec", code="write\nmake test", language="bash"), True),
        (call("x", "code_exec", code="write test"), False),
        (call("x", "code_exec", code="write\nmake test", language="bash", timeout=-1), False),
        (call("x", "file_write", path="test.py", content="test"), False),
        (call("o", "mcp__look", code="test"), False),
        (ToolCall("x", "code_exec", None, "{", "it ends early"), False),
    ],
    ids=[
        "by hand",
        "by a command",
        "another program",
        "refused",
        "another tool",
        "a tool of others",
        "no arguments",
    ],
)
async def test_tests_that_the_model_runs_by_hand(tmp_path: Path, made: ToolCall, tested: bool) -> None:
    async with core(tmp_path, script=python, others=Others()) as it:
        await it.calls.run(made, 1)
        assert it.calls.tests.tree == (it.sandbox.tree if tested else None)
        assert it.calls.tests.last is None
        assert it.log("test.finished") == []


async def test_the_whole_output_is_kept_by_the_number_of_the_call(tmp_path: Path) -> None:
    async with core(tmp_path, script=python) as it:
        it.calls.number = 11
        await it.calls.run(call("x", "code_exec", code="said"), 1)
        assert (it.loop.session.folder / "calls" / "0012.log").read_bytes() == b"said"

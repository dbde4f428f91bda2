"""Test that a new tool needs only a module and an entry in the registry. All in memory: see tests/fakes.

The loop, the stall detector, editors and reports treat the tool by its traits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from m3agent.agent.acp.updates import Update, Updates
from m3agent.agent.report.reader import report_of
from m3agent.agent.session import events
from m3agent.agent.session.log_reader import Line, SessionLog
from m3agent.agent.stall import ObservedCall, StallDetector, Thresholds
from m3agent.agent.ui.status_row import StatusRow
from m3agent.tools import registry
from m3agent.tools.base import Arguments, CallContext, Tool, ToolResult
from m3agent.tools.registry import own_schemas, traits_of
from tests.agent.core import DONE, FIX, core, scans
from tests.fakes.client import call, calls


class OutlineArguments(Arguments):
    module: str
    depth: int = 1


class AppendArguments(Arguments):
    target: str
    lines: str


class TreeArguments(Arguments):
    folder: str = "."


class ShellArguments(Arguments):
    command: str
    folder: str = "."


async def outline(context: CallContext, arguments: OutlineArguments) -> ToolResult:
    return ToolResult(f"{len(await context.sandbox.read(arguments.module))} bytes, and an Error: in them")


async def append(context: CallContext, arguments: AppendArguments) -> ToolResult:
    await context.sandbox.write(arguments.target, arguments.lines.encode())
    return ToolResult("appended")


async def tree(_: CallContext, arguments: TreeArguments) -> ToolResult:
    return ToolResult(arguments.folder)


async def shell(_: CallContext, arguments: ShellArguments) -> ToolResult:
    return ToolResult(f"ran {arguments.command}", exit_code=0)


NEW = (
    Tool("tree", "List a folder.", TreeArguments, tree, kind="read", path_argument="folder"),
    Tool("outline", "Outline a module.", OutlineArguments, outline, kind="read", path_argument="module"),
    Tool(
        "append",
        "Append to a file.",
        AppendArguments,
        append,
        kind="edit",
        path_argument="target",
        content_arguments=("lines",),
    ),
    Tool(
        "shell",
        "Run a command.",
        ShellArguments,
        shell,
        kind="execute",
        path_argument="folder",
        title_argument="command",
    ),
)
OUTLINE: dict[str, Any] = {"module": "calc.py"}
APPEND: dict[str, Any] = {"target": "src/new.py", "lines": "x = 1\n"}
SHELL: dict[str, Any] = {"command": "make test\nmake lint", "folder": "src"}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "TOOLS", (*registry.TOOLS, *NEW))


def started(name: str, arguments: dict[str, Any]) -> Line:
    return {
        "v": 1,
        "type": "call.started",
        "turn": 1,
        "call": 1,
        "id": "c",
        "name": name,
        "arguments": arguments,
        "tree": "t",
    }


def seen(name: str, arguments: dict[str, Any], content: str) -> ObservedCall:
    return ObservedCall(name, arguments, content, "", is_error=False, exit_code=None, tree="t")


async def test_new_tool_is_offered_and_run(tmp_path: Path) -> None:
    assert [schema["function"]["name"] for schema in own_schemas()][-3:] == ["outline", "append", "shell"]
    async with core(tmp_path) as it:
        assert it.model.tools == own_schemas()
        assert "bytes" in (await it.calls.run(call("1", "outline", **OUTLINE), 1)).content
        refused = await it.calls.run(call("2", "outline", file="calc.py"), 1)
        assert "module: field required" in refused.content
        refused = await it.calls.run(call("3", "tree", path="src"), 1)
        assert "Its arguments: folder: string = '.'" in refused.content


async def test_the_work_tree_is_looked_through_unless_the_tool_only_reads(tmp_path: Path) -> None:
    async with core(tmp_path) as it:
        assert await scans(it, call("1", "outline", **OUTLINE)) == 0
        assert await scans(it, call("2", "append", **APPEND), call("3", "shell", **SHELL)) == 2
        [changed] = it.log("file.changed")
        assert (changed["call"], changed["changes"]) == (2, [("A", "src/new.py")])


@pytest.mark.parametrize(("command", "tested"), [("make test", True), ("make lint", False)])
async def test_tests_that_it_runs_count(tmp_path: Path, command: str, tested: bool) -> None:
    async with core(tmp_path) as it:
        await it.calls.run(call("1", "append", target="a.py", lines="test"), 1)
        assert it.calls.tests.tree is None
        await it.calls.run(call("2", "shell", command=command, folder="tests"), 1)
        assert it.calls.tests.tree == (it.sandbox.tree if tested else None)


async def test_it_never_writes_a_marker_over_a_secret(tmp_path: Path) -> None:
    async with core(tmp_path) as it:
        content = {"target": "a.py", "lines": "KEY = '<REDACTED:github-token>'"}
        assert "stands for a hidden secret" in (await it.calls.run(call("1", "append", **content), 1)).content
        name = {"target": "<REDACTED:github-token>", "lines": "x"}
        assert (await it.calls.run(call("2", "append", **name), 1)).content == "appended"


def test_the_stall_detector_knows_what_it_does() -> None:
    def rule(name: str, arguments: dict[str, Any]) -> str | None:
        """Return the stall rule that applies when changing calls show the same lines."""
        detector = StallDetector(Thresholds(opening=1, rereads=3, nothing_new=0, same_error=4))
        for number in range(6):
            detector.answered(reasoning="", text="next", calls=1, finish="tool_calls")
            verdict = detector.see(
                seen(name, {**arguments, "depth": number % 5}, "1\tTypeError: in line 1\n2\tb")
            )
            if verdict is not None:
                return verdict.rule
        return None

    assert rule("outline", OUTLINE) == "re-reading"
    assert rule("append", APPEND) is None, "what a file holds does not say that a call failed"
    assert rule("shell", SHELL) == "same-error"
    assert rule("mcp__other__outline", OUTLINE) == "same-error"


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "title", "place"),
    [
        ("outline", OUTLINE, "read", "outline calc.py", "calc.py"),
        ("append", APPEND, "edit", "append src/new.py", "src/new.py"),
        ("shell", SHELL, "execute", "shell make test", "src"),
        ("mcp__other__look", {"path": "a.py", "at": 1}, "other", "mcp__other__look a.py", "a.py"),
        ("mcp__other__run", {"code": "\nls\nls"}, "other", "mcp__other__run ls", None),
        ("no_such_tool", {"at": "x"}, "other", "no_such_tool", None),
        ("outline", {"module": 3}, "read", "outline", None),
    ],
)
def test_people_see_what_a_call_is_about(
    tmp_path: Path, name: str, arguments: dict[str, Any], kind: str, title: str, place: str | None
) -> None:
    line = started(name, arguments)
    told: list[Update] = []
    Updates(tmp_path, tmp_path / "session", told.append).see(line)
    assert (told[-1].kind, told[-1].title) == (kind, title)
    places = [Path(each.path) for each in told[-1].locations or ()]
    assert places == ([tmp_path / place] if place else [])

    row = StatusRow(clock=lambda: 0.0)
    row.see(line)
    assert row.lines(100, 0.0)[0].plain.endswith(title)

    report = report_of(SessionLog(tmp_path / "log", (line,), ()), None)
    [made] = report.turns[0].calls
    assert made.title == title


async def test_a_whole_session_with_it(tmp_path: Path) -> None:
    script = (calls(call("1", "outline", **OUTLINE)), FIX, calls(call("2", "shell", **SHELL)), DONE)
    async with core(tmp_path, *script) as it:
        outcome = await it.loop.run()
        assert outcome.kind == "done"
        assert it.log(events.Gate.type)[-1]["missing"] == "", "the tests ran after the last change"


def test_a_name_from_an_old_log() -> None:
    foreign = traits_of("renamed_since")
    assert (foreign.kind, foreign.content_arguments, foreign.may_change_tree) == ("other", (), True)
    assert foreign.title(None) == ""

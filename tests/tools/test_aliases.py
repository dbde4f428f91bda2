"""Calls by the names of other agents: first how they are read, then what they do in a real sandbox."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.agent.context.output import writes_marker
from m3agent.sandbox.errors import DiskFull
from m3agent.tools import other_tools
from m3agent.tools.aliases import ARGUMENTS, NAMES, meaning
from m3agent.tools.registry import TOOLS, understood
from tests.tools.bench import Bench

pytestmark = pytest.mark.asyncio(loop_scope="module")

KNOWN = {tool.name: tool for tool in (*TOOLS, *other_tools.TOOLS)}


def read(name: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    result = meaning(name, arguments)
    return result.tool, result.arguments


@given(st.sampled_from(TOOLS), st.data())
async def test_a_right_call_is_never_read_in_another_way(tool: Any, data: st.DataObject) -> None:
    names = sorted(tool.arguments.model_fields)
    chosen = data.draw(st.lists(st.sampled_from(names), unique=True))
    arguments = {name: data.draw(st.text(max_size=5) | st.integers(1, 600)) for name in chosen}
    assert meaning(tool.name, arguments) == meaning(tool.name, dict(arguments))
    assert read(tool.name, **arguments) == (tool.name, arguments)
    assert meaning(tool.name, arguments).note == ""


async def test_the_tables_name_tools_and_arguments_that_exist() -> None:
    assert {tool for tool, _ in NAMES.values()} - {"editor"} <= set(KNOWN)
    for tool, names in ARGUMENTS.items():
        assert set(names) - {"cwd", "replace_all"} <= set(KNOWN[tool].arguments.model_fields), tool
        others = " ".join(names.values()).split()
        assert len(others) == len(set(others)), tool
        assert not set(others) & set(KNOWN[tool].arguments.model_fields), tool


@pytest.mark.parametrize(
    ("name", "arguments", "tool", "wanted"),
    [
        ("bash", {"command": "ls"}, "code_exec", {"language": "bash", "code": "ls"}),
        ("Bash", {"command": "ls", "description": "List", "timeout": 120_000, "run_in_background": False},
         "code_exec", {"language": "bash", "code": "ls", "timeout": 120}),
        ("shell", {"command": ["bash", "-lc", "a | b"], "workdir": "src"},
         "code_exec", {"language": "bash", "code": "cd -- src || exit\na | b"}),
        ("shell", {"cmd": ["ls", "a b"]}, "code_exec", {"language": "bash", "code": "ls 'a b'"}),
        ("code_exec", {"command": "ls"}, "code_exec", {"language": "bash", "code": "ls"}),
        ("python", {"code": "1"}, "code_exec", {"language": "python", "code": "1"}),
        ("Read", {"file_path": "a", "offset": 5, "limit": 2}, "file_read", {"path": "a", "start": 5, "end": 6}),
        ("read_file", {"path": "a", "offset": 0}, "file_read", {"path": "a", "start": 1}),
        ("Write", {"file_path": "a", "content": "x"}, "file_write", {"path": "a", "content": "x"}),
        ("Edit", {"file_path": "a", "old_string": "x", "new_string": "y", "replace_all": False},
         "file_edit", {"path": "a", "old": "x", "new": "y"}),
        ("Edit", {"file_path": "a", "old_string": "x", "new_string": "y", "replace_all": True},
         "file_edits", {"path": "a", "edits": [{"old": "x", "new": "y", "replace_all": True}]}),
        ("MultiEdit", {"file_path": "a", "edits": '[{"old_string": "x", "new_string": "y"}]'},
         "file_edits", {"path": "a", "edits": [{"old": "x", "new": "y", "replace_all": False}]}),
        ("str_replace_editor", {"command": "view", "path": "a", "view_range": [2, -1]},
         "file_read", {"path": "a", "start": 2, "end": None}),
        ("str_replace_editor", {"command": "create", "path": "a", "file_text": "x"},
         "file_write", {"path": "a", "content": "x"}),
        ("str_replace_based_edit_tool", {"command": "insert", "path": "a", "insert_line": 0, "insert_text": "x"},
         "file_insert", {"path": "a", "line": 0, "text": "x"}),
        ("str_replace_editor", {"command": "insert", "path": "a", "insert_line": 0, "new_str": "x"},
         "file_insert", {"path": "a", "line": 0, "text": "x"}),
        ("bash", {"command": "apply_patch <<'EOF'\n*** Begin Patch\nEOF\n"}, "apply_patch", {"patch": "*** Begin Patch"}),
        ("LS", {}, "file_read", {"path": "."}),
        ("file_read", {"<path>": "a"}, "file_read", {"path": "a"}),
        ("file_read", {'parameter name="path"': "a"}, "file_read", {"path": "a"}),
        ("functions.file_read", {"filename": "a"}, "file_read", {"path": "a"}),
    ],
)  # fmt: skip
async def test_what_has_one_meaning(
    name: str, arguments: dict[str, Any], tool: str, wanted: dict[str, Any]
) -> None:
    before = repr(arguments)
    result = meaning(name, arguments)
    assert (result.tool, result.arguments) == (tool, wanted)
    assert tool in result.note
    assert repr(arguments) == before, "what the model sent must not change"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("browser", {"url": "x"}),
        ("str_replace_editor", {"command": "undo_edit", "path": "a"}),
        ("file_read", {"path": "a", "file_path": "b"}),
        ("file_edit", {"path": "a", "old": "x", "old_str": "z", "new": "y"}),
    ],
)
async def test_what_has_several_meanings_stays(name: str, arguments: dict[str, Any]) -> None:
    assert read(name, **arguments) == (name, arguments)


@pytest.mark.parametrize("start", ["5", None, [1], {}])
async def test_a_limit_behind_a_start_that_is_no_number_is_left_to_the_check(start: object) -> None:
    assert read("read_file", path="a", start_line=start, limit=10) == (
        "file_read",
        {"path": "a", "start": start},
    )


async def test_the_rest_of_the_program_sees_the_tool_that_runs() -> None:
    traits, arguments = understood("Bash", {"command": "pytest -q"})
    assert (traits.kind, traits.title(arguments)) == ("execute", "pytest -q")
    traits, arguments = understood("Read", {"file_path": "a.py"})
    assert (traits.kind, traits.path(arguments)) == ("read", "a.py")
    for name, given_arguments in (
        ("Write", {"file_path": "a", "content": "<REDACTED:token>"}),
        ("MultiEdit", {"file_path": "a", "edits": [{"old_string": "x", "new_string": "<REDACTED:token>"}]}),
        ("apply_patch", {"input": "+<REDACTED:token>"}),
    ):
        assert writes_marker(name, given_arguments) is not None


async def test_calls_by_other_names_run(bench: Bench) -> None:
    await bench.put({"src/a.py": "x = 1\r\ny = 2\r\n", "src/b.txt": "x = 3\n"})
    viewed = await bench.call("Read", file_path="/testbed/src/a.py", limit=1)
    assert viewed.content.splitlines()[0] == "1\tx = 1"
    assert viewed.content.splitlines()[-1] == "note: this was read as file_read(path, end)"
    assert "hello" in (await bench.call("bash", command="echo hello")).content
    several = [{"old_string": "x = 1", "new_string": "x = 5"}, {"old_string": "y = 2", "new_string": "y = 6"}]
    assert not (await bench.call("MultiEdit", file_path="src/a.py", edits=several)).is_error
    assert await bench.sandbox.read("src/a.py") == b"x = 5\r\ny = 6\r\n"
    refused = await bench.call(
        "MultiEdit", file_path="src/a.py", edits=[{"old_string": "x", "new_string": "z"}, several[1]]
    )
    assert refused.is_error
    assert await bench.sandbox.read("src/a.py") == b"x = 5\r\ny = 6\r\n"
    every = {"file_path": "src/b.txt", "old_string": "x", "new_string": "z", "replace_all": True}
    await bench.put({"src/b.txt": "x = 3\nx = 4\n"})
    assert not (await bench.call("Edit", **every)).is_error
    assert await bench.sandbox.read("src/b.txt") == b"z = 3\nz = 4\n"
    await bench.call("str_replace_editor", command="insert", path="src/a.py", insert_line=1, new_str="z = 7")
    assert await bench.sandbox.read("src/a.py") == b"x = 5\r\nz = 7\r\ny = 6\r\n"


async def test_files_are_searched(bench: Bench) -> None:
    await bench.put({"src/a.py": "x = 1\n", "src/b.txt": "x = 3\nX\n", ".git2/c": "x\n", "d.bin": b"x\0"})
    assert (
        "src/a.py:1:x = 1\nsrc/b.txt:1:x = 3"
        in (await bench.call("Grep", pattern=r"x = \d", path="/repo/src")).content
    )
    only = (
        await bench.call("grep", pattern="^x$", include="*.txt", **{"-i": True, "output_mode": "content"})
    ).content
    assert "src/b.txt:2:X" in only
    assert "src/a.py" not in only
    assert "src/a.py" in (await bench.call("glob", pattern="**/*.py")).content
    assert "(nothing)" in (await bench.call("grep", pattern="none")).content


async def test_a_patch_is_applied_whole_or_not_at_all(bench: Bench) -> None:
    await bench.put({"a.txt": "a\r\nb\r\n", "b.txt": "old\n"})
    patch = "*** Begin Patch\n*** Update File: a.txt\n-a\n+c\n*** Delete File: b.txt\n*** Add File: n/c.txt\n+new\n*** End Patch"
    assert not (await bench.call("apply_patch", input=patch)).is_error
    assert await bench.sandbox.read("a.txt") == b"c\r\nb\r\n"
    assert await bench.sandbox.read("n/c.txt") == b"new\n"
    assert (await bench.sandbox.exec(["test", "-e", "b.txt"])).exit == 1
    again = await bench.call(
        "apply_patch", input="*** Update File: n/c.txt\n-new\n+x\n*** Update File: a.txt\n-gone\n+y"
    )
    assert again.is_error
    assert await bench.sandbox.read("n/c.txt") == b"new\n"
    moved = await bench.call("apply_patch", input="*** Update File: n/c.txt\n*** Move to: m.txt\n-new\n+x")
    assert not moved.is_error
    assert await bench.sandbox.read("m.txt") == b"x\n"
    assert (await bench.sandbox.exec(["test", "-e", "n/c.txt"])).exit == 1


@pytest.mark.parametrize(
    "patch",
    [
        "*** Update File: a.txt\n-a\n+c\n*** Update File: x/../a.txt\n-b\n+d",
        "*** Update File: a.txt\n-a\n+c\n*** Update File: x/.././/a.txt\n-b\n+d",
        "*** Add File: n.txt\n+n\n*** Add File: x/../n.txt\n+m",
        "*** Update File: a.txt\n*** Move to: n.txt\n-a\n+c\n*** Update File: b.txt\n*** Move to: n.txt\n-a\n+c",
        "*** Update File: a.txt\n-a\n+c\n*** Update File: a.txt\n*** Move to: n.txt\n-b\n+d",
        "*** Delete File: a.txt\n*** Update File: b.txt\n*** Move to: a.txt\n-a\n+c",
    ],
)
async def test_a_patch_that_changes_a_file_twice_changes_nothing(bench: Bench, patch: str) -> None:
    await bench.put({"a.txt": "a\nb\n", "b.txt": "a\nb\n", "x/y.txt": ""})
    result = await bench.call("apply_patch", input=patch)
    assert result.is_refused
    assert await bench.sandbox.read("a.txt") == await bench.sandbox.read("b.txt") == b"a\nb\n"
    assert (await bench.sandbox.exec(["test", "-e", "n.txt"])).exit == 1


@pytest.mark.parametrize("full", ["b.txt", "c.txt"])
async def test_a_patch_that_stops_half_way_names_what_it_changed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    await bench.put(dict.fromkeys(("b.txt", "c.txt", "d.txt"), "old\n"))
    write = bench.sandbox.write

    async def write_until_full(path: str, content: bytes) -> None:
        if path == full:
            raise DiskFull("no space")
        await write(path, content)

    monkeypatch.setattr(bench.sandbox, "write", write_until_full)
    patch = "\n".join(f"*** Update File: {name}\n-old\n+new" for name in ("b.txt", "c.txt", "d.txt"))
    result = await bench.call("apply_patch", input=patch)
    assert result.is_error
    changed = ["b.txt"] if full == "c.txt" else []
    assert [name for name in ("b.txt", "c.txt", "d.txt") if f"patched {name}" in result.content] == changed
    for name in ("b.txt", "c.txt", "d.txt"):
        assert await bench.sandbox.read(name) == (b"new\n" if name in changed else b"old\n")
    assert result.is_refused == (not changed)
    assert ("not changed: c.txt, d.txt" in result.content) == bool(changed)


async def test_a_file_stays_if_it_cannot_be_written_where_a_patch_moves_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.put({"b.txt": "old\n"})

    async def no_space(path: str, content: bytes) -> None:
        raise DiskFull("no space")

    monkeypatch.setattr(bench.sandbox, "write", no_space)
    patch = "*** Update File: b.txt\n*** Move to: moved.txt\n-old\n+new"
    assert (await bench.call("apply_patch", input=patch)).is_refused
    assert await bench.sandbox.read("b.txt") == b"old\n"

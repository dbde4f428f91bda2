"""Test contexts with a frozen base: changes are appended, or start a new base."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m3agent.agent.context.checkout import Checkout
from m3agent.agent.context.frozen import REBASE
from m3agent.agent.context.pack import pack
from m3agent.agent.context.packer import PackOptions
from m3agent.agent.context.types import Context
from m3agent.agent.repo.repository import open_repository
from tests.agent.packed_files import pack_files
from tests.agent.repositories import NewRepo, run_git

LINES = [f"line {number} of the file\n" for number in range(400)]
HUNK = re.compile(rb"@@ -(\d+),(\d+) \+(\d+),(\d+) @@")


def text_of(lines: list[str]) -> bytes:
    return "".join(lines).encode()


def frozen(files: dict[str, bytes], cache: Path, budget: int | None = None) -> Context:
    return pack_files(files.items(), PackOptions(cache=str(cache), frozen=True, budget=budget))


def base() -> dict[str, bytes]:
    return {f"{name}.py": text_of([f"{name} {line}" for line in LINES]) for name in "abcdefgh"}


def restored(context: Context) -> dict[str, bytes]:
    """Return the files as a reader gets them who follows the instructions in the text."""
    files: dict[str, list[bytes]] = {}
    chunks = re.findall(
        rb'<(file|changes) path="([^"]*)">\n(.*?)</\1>\n|<superseding>\nThese files are gone:\n(.*?)</superseding>\n',
        context.data,
        re.DOTALL,
    )
    for kind, name, body, gone in chunks:
        for path in gone.decode().splitlines():
            del files[path]
        if kind == b"file":
            files[name.decode()] = body.splitlines(keepends=True)
        elif kind == b"changes":
            files[name.decode()] = patched(files[name.decode()], body.splitlines(keepends=True))
    return {name: b"".join(lines) for name, lines in files.items()}


def patched(old: list[bytes], diff: list[bytes]) -> list[bytes]:
    new: list[bytes] = []
    position = 0
    for line in diff:
        if found := HUNK.match(line):
            start = int(found[1]) - 1
            new += old[position:start]
            assert len(new) == int(found[3]) - 1
            position = start
        elif line.startswith(b"+"):
            new.append(line[1:])
        else:
            assert old[position] == line[1:]
            position += 1
            if line.startswith(b" "):
                new.append(line[1:])
    return new + old[position:]


def test_a_small_change_is_appended(tmp_path: Path) -> None:
    files = base()
    first = frozen(files, tmp_path)
    assert first.rebased
    assert frozen(files, tmp_path).data == first.data
    files["c.py"] = text_of([f"c {line}" for line in [*LINES[:200], "new\n", *LINES[201:]]])
    del files["h.py"]
    files["new.py"] = b"x = 1"
    second = frozen(files, tmp_path)
    assert not second.rebased
    assert second.data.startswith(first.data)
    assert second.data[len(first.data) :].count(b"\n") < 25
    assert restored(second) == {**files, "new.py": b"x = 1\n"}
    assert {file.path: file.part for file in second.files if file.part != "whole"} == {"c.py": "changes"}
    assert {file.path for file in second.files} == set(files)
    del files["new.py"]
    files["c.py"] = first_text = base()["c.py"]
    files["h.py"] = base()["h.py"]
    assert files["c.py"] == first_text and frozen(files, tmp_path).data == first.data


def test_much_change_starts_a_new_base(tmp_path: Path) -> None:
    files = base()
    frozen(files, tmp_path)
    files["a.py"] = files["a.py"].replace(b"line", b"LINE")
    again = frozen(files, tmp_path)
    assert again.rebased
    assert again.data == pack_files(files.items(), PackOptions()).data
    assert frozen(files, tmp_path).data == again.data


@settings(max_examples=60)
@given(st.data())
def test_any_change_can_be_followed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    cache = tmp_path_factory.mktemp("cache")
    files = base()
    first = frozen(files, cache)
    for name in data.draw(st.lists(st.sampled_from(sorted(files)), unique=True, max_size=3)):
        lines = files[name].decode().splitlines(keepends=True)
        for _ in range(data.draw(st.integers(1, 4))):
            start = data.draw(st.integers(0, len(lines)))
            end = data.draw(st.integers(start, min(len(lines), start + 5)))
            lines[start:end] = data.draw(
                st.lists(st.sampled_from(["x\n", "\n", "-- y\n", "+ z\n"]), max_size=3)
            )
        files[name] = text_of(lines)
    context = frozen(files, cache)
    assert restored(context) == files
    assert context.rebased or context.data.startswith(first.data)
    appended = len(context.data) - len(first.data)
    assert context.rebased or appended * REBASE <= len(first.data) * 1.1


def test_a_budget_that_the_changes_exceed_starts_a_new_base(tmp_path: Path) -> None:
    files = base()
    whole = frozen(files, tmp_path)
    files["c.py"] = files["c.py"].replace(b"c line 7 ", b"c LINE 7 ")
    room = whole.tokens + 5
    again = frozen(files, tmp_path, room)
    assert again.rebased and again.tokens <= room


@pytest.mark.parametrize("damage", [b"", b"x" * 100, None])
def test_damaged_base_is_rebuilt(damage: bytes | None, tmp_path: Path) -> None:
    files = base()
    first = frozen(files, tmp_path)
    (state,) = tmp_path.glob("*.base")
    state.write_bytes(state.read_bytes()[:-1] if damage is None else damage)
    again = frozen(files, tmp_path)
    assert again.rebased and again.data == first.data


def test_without_a_folder_there_is_nothing_to_freeze(tmp_path: Path) -> None:
    files = base()
    plain = pack_files(files.items(), PackOptions())
    assert pack_files(files.items(), PackOptions(frozen=True)).data == plain.data
    (tmp_path / "file").write_text("")
    assert frozen(files, tmp_path / "file" / "cache").data == plain.data


def test_a_moving_branch_keeps_its_prefix(new_repo: NewRepo, tmp_path: Path) -> None:
    root = new_repo(files=base())
    options = PackOptions(cache=str(tmp_path / "cache"), frozen=True)
    first = pack(Checkout.of(open_repository(root)), options)
    for number in range(3):
        path = root / f"{'ceg'[number]}.py"
        path.write_bytes(path.read_bytes().replace(b"line 9 ", b"LINE 9 "))
        run_git(root, "commit", "--quiet", "--all", "--message=change")
        later = pack(Checkout.of(open_repository(root)), options)
        assert later.data.startswith(first.data)

"""Test the tree of folders in a context over its budget."""

from __future__ import annotations

from m3agent.agent.context.overflow import folder_lines
from m3agent.agent.context.packer import PackOptions
from tests.agent.packed_files import pack_files


def test_folders_are_nested_and_counted() -> None:
    assert folder_lines([b"a.py", b"src/b.py", b"src/c/d.py", b"src/c/e.py"], 10)[1:] == [
        b"./ 1",
        b"  src/ 1",
        b"    c/ 2",
    ]


def test_where_there_are_too_many_the_deeper_ones_count_for_the_folder_above() -> None:
    names = [b"src/%d/x.py" % number for number in range(50)]
    assert folder_lines(names, 10)[1:] == [b"./ 0", b"  src/ 50"]


def test_nothing_is_said_about_too_many_folders_or_a_flat_repository() -> None:
    assert not folder_lines([b"%d/x.py" % number for number in range(50)], 10)
    assert not folder_lines([b"a.py", b"b.py"], 10)
    assert not folder_lines([], 10)


def test_a_context_over_its_budget_has_them_and_a_whole_repository_has_not() -> None:
    files = [(f"src/part_{n}/code.py", b"x = 1\n" * 200) for n in range(20)]
    assert "src/ 0" in pack_files(files, PackOptions(budget=6_000, issue="x")).text
    assert "Folders" not in pack_files(files, PackOptions(issue="x")).text

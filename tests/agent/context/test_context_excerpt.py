"""Test that a file that matters for the issue is not left out of a context for its size."""

from __future__ import annotations

import re
import subprocess
from itertools import takewhile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m3agent.agent.context import excerpt
from m3agent.agent.context.checkout import Checkout
from m3agent.agent.context.pack import pack
from m3agent.agent.context.packer import PackOptions
from m3agent.agent.context.rules import MAX_FILE_BYTES
from m3agent.agent.context.selection import outline, select
from m3agent.agent.context.tokenizer.counter import oracle_count
from m3agent.agent.context.tokenizer.source import find_tokenizer
from m3agent.agent.context.types import Context
from m3agent.agent.repo.repository import open_repository
from tests.agent.packed_files import pack_files
from tests.agent.repositories import NewRepo
from tests.agent.small_tokenizer import write_tokenizer

ISSUE = """interleave_evenly([]) raises IndexError

    File "more_itertools/more.py", line 1, in interleave_evenly

It should give an empty iterator, like `interleave()`.
"""


def function(name: str, lines: int = 30) -> str:
    body = "".join(f"    step_{line} = consume(iterable, {line})\n" for line in range(lines))
    return f"def {name}(iterable):\n{body}    return step_0\n\n\n"


def case(name: str, lines: int = 30) -> str:
    body = "".join(f"        self.assertEqual(mi.first([{line}]), {line})\n" for line in range(lines))
    return f"class {name}Tests(TestCase):\n    def test_basic(self):\n{body}\n\n"


NAMES = [f"{verb}_{noun}" for verb in ("take", "drop", "group", "count", "spread") for noun in "abcdefghij"]
NAMES[20] = "interleave_evenly"
LIBRARY = {
    "LICENSE": "Permission is hereby granted, free of charge, to any person.\n" * 20,
    "docs/versions.rst": "* Fixed a bug in interleave_longest.\n" * 100,
    "more_itertools/__init__.py": "from .more import *\nfrom .recipes import *\n",
    "more_itertools/more.py": "import itertools\n\n\n" + "".join(function(name) for name in NAMES),
    "more_itertools/recipes.py": function("take") + function("tabulate"),
    "tests/test_more.py": "from unittest import TestCase\n\nimport more_itertools as mi\n\n\n"
    + "".join(case(name.title().replace("_", "")) for name in NAMES),
    "tests/test_recipes.py": "import more_itertools as mi\n\n\n" + case("Take") + case("Tabulate"),
    "setup.cfg": "[flake8]\nignore = E203\n",
}
"""A tree like more-itertools: nearly everything is in one module and one test file."""


def encoded(tree: dict[str, str]) -> list[tuple[str, bytes]]:
    return [(path, text.encode()) for path, text in tree.items()]


def packed(tree: dict[str, str], budget: int | None, issue: str = ISSUE) -> Context:
    return pack_files(encoded(tree), PackOptions(budget=budget, issue=issue))


def parts(context: Context, path: str) -> set[str]:
    """Return the kinds of blocks that show a file."""
    return set(re.findall(rf'^<(\w+) path="{re.escape(path)}"', context.text, re.MULTILINE))


def passages(context: Context, path: str) -> str:
    match = re.search(rf'<passages path="{re.escape(path)}">\n(.*?)\n</passages>', context.text, re.DOTALL)
    assert match
    return match[1]


@pytest.mark.parametrize("budget", [3_000, 5_000, 10_000, 20_000])
@pytest.mark.parametrize("with_parser", [True, False])
def test_of_a_large_module_and_its_tests_what_the_issue_names_is_shown(
    budget: int, with_parser: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if with_parser:
        pytest.importorskip("tree_sitter_language_pack")
    else:
        monkeypatch.setattr(outline, "_grammars", lambda: None)
    context = packed(LIBRARY, budget)
    assert context.tokens <= budget
    for path, name in (
        ("more_itertools/more.py", "def interleave_evenly(iterable):"),
        ("tests/test_more.py", "class InterleaveEvenlyTests(TestCase):"),
    ):
        assert parts(context, path) == {"passages"}
        assert name in passages(context, path)
        assert path not in dict(context.dropped)
        assert [file.part for file in context.files if file.path == path] == ["passages"]
    assert packed(LIBRARY, budget).data == context.data


def test_every_line_of_a_passage_is_the_line_of_the_file() -> None:
    context = packed(LIBRARY, 10_000)
    lines = LIBRARY["tests/test_more.py"].split("\n")
    shown = re.split(r"^… lines (\d+)-(\d+)\n", passages(context, "tests/test_more.py"), flags=re.MULTILINE)
    assert len(shown) > 3
    for first, last, text in zip(shown[1::3], shown[2::3], shown[3::3], strict=True):
        assert text.removesuffix("\n") == "\n".join(lines[int(first) - 1 : int(last)])


def test_passages_come_after_what_all_issues_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "_FOR_ISSUE", 5_000)
    one, other = (
        packed(LIBRARY, 20_000),
        packed(LIBRARY, 20_000, "take() of more_itertools/recipes.py is slow"),
    )
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one.text, other.text, strict=False))
    shared = "".join(character for character, _ in same)
    assert '<file path="' in shared


def test_a_file_that_is_shown_whole_has_no_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tree_sitter_language_pack")
    monkeypatch.setattr(select, "_FOR_ISSUE", 5_000)
    for budget in (10_000, 20_000, 30_000):
        context = packed(LIBRARY, budget)
        for file in context.files:
            assert "signatures" not in parts(context, file.path) or file.part != "whole"


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    budget=st.integers(0, 6_000), functions=st.integers(1, 300), others=st.integers(0, 5), deep=st.booleans()
)
def test_a_named_file_is_there_and_the_budget_is_kept(
    budget: int, functions: int, others: int, deep: bool
) -> None:
    path = "src/deep/er/engine.py" if deep else "engine.py"
    tree = {f"other_{number}.py": function(f"help_{number}") for number in range(others)}
    tree |= {path: "".join(function(f"start_{number}", 3) for number in range(functions))}
    issue = f"start_0() is wrong in {path}"
    context = packed(tree, budget, issue)
    assert context.tokens <= budget
    assert packed(tree, budget, issue).data == context.data
    if budget >= 2_000:
        assert parts(context, path)
        assert "start_0" in context.text


def test_many_named_files_share_the_room() -> None:
    tree = {
        f"part{number}.py": "".join(function(f"f{number}_{n}") for n in range(60)) for number in range(12)
    }
    issue = "These are wrong: " + ", ".join(tree)
    context = packed(tree, 30_000, issue)
    assert context.tokens <= 30_000
    assert all(parts(context, path) for path in tree)


@pytest.mark.integration
def test_counts_are_exact_with_a_tokenizer(tmp_path: Path) -> None:
    tokenizer = find_tokenizer(str(write_tokenizer(tmp_path / "tokenizer.json")), env={}, cache=str(tmp_path))
    assert tokenizer is not None
    context = pack_files(encoded(LIBRARY), PackOptions(budget=20_000, issue=ISSUE, tokenizer=tokenizer))
    assert "<passages" in context.text
    assert context.exact
    assert context.tokens == oracle_count(tokenizer, context.text) <= 20_000


def test_without_an_issue_nothing_is_an_excerpt() -> None:
    assert "<passages" not in packed(LIBRARY, 10_000, " \n").text


HUGE = "".join(f"row_{number},alpha,{number * 7}\n" for number in range(70_000))
assert len(HUGE) > MAX_FILE_BYTES


class TestFilesThatAreTooLargeToBePacked:
    @pytest.mark.parametrize("budget", [None, 4_000, 100_000])
    @pytest.mark.parametrize("bare", [False, True])
    def test_are_excerpts_if_the_issue_names_them(
        self, new_repo: NewRepo, tmp_path: Path, bare: bool, budget: int | None
    ) -> None:
        root = new_repo(
            files={"data/rates.csv": HUGE.encode(), "data/more.csv": HUGE.encode(), "a.py": b"x = 1\n"}
        )
        if bare:
            subprocess.run(["git", "clone", "-q", "--bare", root, tmp_path / "bare"], check=True)
            root = tmp_path / "bare"
        issue = "row_60123 in data/rates.csv is wrong"
        context = pack(Checkout.of(open_repository(root)), PackOptions(issue=issue, budget=budget))
        assert parts(context, "data/rates.csv") == {"passages"}
        assert passages(context, "data/rates.csv").startswith("… lines 60120-60128\nrow_60119,")
        assert dict(context.dropped) == {"data/more.csv": "larger than 1 MiB"}
        assert budget is None or context.tokens <= budget
        plain = pack(Checkout.of(open_repository(root)), PackOptions(budget=budget))
        assert context.text.startswith('<file path="a.py">\nx = 1\n</file>\n')
        assert plain.text.startswith('<file path="a.py">\nx = 1\n</file>\n')
        assert "data/rates.csv" in dict(plain.dropped)

    def test_are_appended_to_a_frozen_prefix_and_are_no_part_of_it(self, tmp_path: Path) -> None:
        files = {"engine.py": HUGE, "a.py": "x = 1\n" * 500}
        plain = pack_files(encoded(files), PackOptions(cache=str(tmp_path), frozen=True))
        assert "<passages" not in plain.text
        for _ in range(2):
            named = pack_files(
                encoded(files), PackOptions(cache=str(tmp_path), frozen=True, issue="engine.py: row_9")
            )
            assert named.text.startswith(plain.text.partition("<not_shown>")[0])
            assert parts(named, "engine.py") == {"passages"}
        again = pack_files(encoded(files), PackOptions(cache=str(tmp_path), frozen=True))
        assert again.data == plain.data

    def test_stay_out_for_any_other_reason(self) -> None:
        for data in (b"\0" + HUGE.encode(), b"x" * 2_000_000, b"# @generated\n" + HUGE.encode()):
            context = pack_files([("big.csv", data)], PackOptions(issue="big.csv is wrong"))
            assert not parts(context, "big.csv")
            assert dict(context.dropped)

    def test_show_no_secret(self) -> None:
        key = "AKIA" + "Q3EGRKSLZPWXVNDT"
        text = f"{HUGE}def broken_key():\n    use('{key}')\n"
        context = pack_files([("engine.py", text.encode())], PackOptions(issue="broken_key() of engine.py"))
        assert "def broken_key" in context.text
        assert key not in context.text
        assert context.redacted == ("engine.py",)

    def test_of_any_size_are_read_from_their_beginning(
        self, new_repo: NewRepo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(excerpt, "READ_BYTES", 2 * MAX_FILE_BYTES)
        root = new_repo(files={"a.py": b"x = 1\n"})
        with (root / "dump.csv").open("w") as file:
            file.write(HUGE)
            file.truncate(40_000_000)  # the rest is zeros
        with (root / "long.csv").open("w") as file:
            for _ in range(3):
                file.write(HUGE)
        issue = "dump.csv and long.csv: row_5 is wrong"
        context = pack(Checkout.of(open_repository(root)), PackOptions(issue=issue))
        assert passages(context, "long.csv").startswith("… lines 2-10\nrow_1,")
        assert not parts(context, "dump.csv")

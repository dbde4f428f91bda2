"""The kept results of the verdicts' accuracy: what is appended, what the table counts, and that the pages show it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks import verdict_accuracy
from benchmarks.verdict_accuracy import (
    LEFT_OUT,
    PAGES,
    Row,
    append,
    measured,
    misjudged,
    rates,
    rows_of,
    table,
)

from m3agent.agent.verify.accuracy import read
from scripts.docs.settings_page import renewed

MakeRepo = Callable[..., Path]
RIGHT = Row("a/b", "Go", "c" * 40, "code", "verified", "fixed", "1.5", "abc")
MISSED = replace(RIGHT, kind="whole", verdict="failed", rule="lost", reason='1 test, "x", is red')
WRONG = replace(RIGHT, kind="mutant", verdict="failed", rule="lost")
ROWS = [
    RIGHT,
    MISSED,
    WRONG,
    Row("a/b", "Go", "d" * 40, LEFT_OUT),
    replace(RIGHT, repository="e/f", language="Python"),
]


def test_lines_are_appended_and_read(tmp_path: Path) -> None:
    path = tmp_path / "results" / "verdicts.csv"
    append(ROWS[:2], path)
    append(ROWS[2:], path)
    assert rows_of(path) == ROWS


def test_the_table_counts_by_kind_language_and_label() -> None:
    lines = table(ROWS).splitlines()
    assert lines[0].startswith(
        "2 fixes of 2 repositories, 1 of them not Python. Of 2 verified patches, 2 are right: 34"
    )
    counts = {line.split(" | ")[0].lstrip("| "): line.split(" | ")[1:5] for line in lines[4:]}
    assert counts == {
        "whole": ["1", "0", "0", "1"],
        "code": ["2", "2", "0", "0"],
        "mutant": ["1", "0", "0", "1"],
        "Go: right": ["2", "1", "0", "1"],
        "Go: wrong": ["1", "0", "0", "1"],
        "Python: right": ["1", "1", "0", "0"],
        "all: right": ["3", "2", "0", "1"],
        "all: wrong": ["1", "0", "0", "1"],
    }
    assert [*misjudged(ROWS)] == [f"a/b {'c' * 12} whole: failed (lost): {MISSED.reason}"]
    assert re.findall(r"\d+ of \d+", rates(ROWS)) == ["2 of 2", "0 of 1", "0 of 0", "0 of 1"]


@pytest.mark.integration
def test_what_is_known_is_not_measured_again(make_repo: MakeRepo, own_state: Path) -> None:
    clone = make_repo({"calc.go": "package calc\n"}, "a+b")
    assert measured(clone, ROWS, 1, 60) == []
    (kept,) = (read(path) for path in own_state.rglob("verdicts/*.json"))
    assert (len(kept.trials), kept.silent) == (3, ("d" * 40,))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_pages_show_what_is_known(page: Path) -> None:
    text = page.read_text()
    assert renewed(text, PAGES[page](rows_of()), verdict_accuracy.PART) == text, (
        "stale: write it again with `make docs-pages`"
    )

"""Localisation: the faulty line ranks high."""

from __future__ import annotations

from typing import Any

import pytest

from m3agent.serving.embedded.localise import issue_words, localise, ochiai
from m3agent.serving.embedded.source import SourceFile


def test_ochiai() -> None:
    assert ochiai(2, 0, 2) == 1.0
    assert ochiai(0, 5, 2) == 0.0
    assert ochiai(1, 3, 1) == 0.5


TEXT = """\
LIMIT = 9


def first(x):
    return x + LIMIT


def second(x):
    y = x - 1
    return y
"""


def spectrum(**changes: Any) -> dict[str, Any]:
    return {
        "traced": [1, 2],
        "lines": {"m.py": [[5, 1, 2, []], [9, 1, 0, []], [10, 1, 0, []]]},
        "imported": {"m.py": [1, 4, 8]},
        "failed": [["t.py::t", "failed", 0.0, "ValueError: x", [["t.py", 3, "t"], ["m.py", 10, "second"]]]],
        **changes,
    }


def scores(issue: str = "", **changes: Any) -> dict[int, float]:
    return localise(spectrum(**changes), {"m.py": SourceFile("m.py", TEXT)}, issue).get("m.py", {})


def test_lines_of_failing_tests_lead_and_the_deepest_frame_first() -> None:
    found = scores()
    assert max(found, key=lambda line: found[line]) == 10
    assert found[10] == 1.0
    assert found[9] > found[5]


def test_the_issue_names_a_function() -> None:
    plain, named = scores(), scores("`first()` is wrong")
    assert named[5] / named[9] > plain[5] / plain[9]


def test_the_issue_quotes_a_line() -> None:
    line = TEXT.splitlines()[4].strip()
    plain, quoted = scores(), scores(f"the check `{line}` is wrong")
    assert quoted[5] / quoted[9] > plain[5] / plain[9]
    assert scores("`x`: it isn't what it's for") == plain


def test_definitions_count_as_far_as_suspected_code_uses_them() -> None:
    assert 0 < scores()[1] < scores()[5]


def test_without_coverage_tracebacks_are_left() -> None:
    found = scores(traced=[0, 0], lines={})
    assert max(found, key=lambda line: found[line]) == 10


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("call `do_it` now", "do_it"),
        ("call run()", "run"),
        ("the ShelfFull error", "ShelfFull"),
        ("see max_size", "max_size"),
    ],
)
def test_words(text: str, word: str) -> None:
    assert word in issue_words(text)

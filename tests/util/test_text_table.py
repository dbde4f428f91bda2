"""Test tables for terminals of any width."""

from __future__ import annotations

import pytest

from m3agent.util.table import fitting, fitting_wrapped

ROWS = [("ID", "SIZE", "ISSUE"), ("20260131", "12 kB", "a long title")]


@pytest.mark.parametrize(
    ("width", "said"),
    [
        (0, ["ID        SIZE   ISSUE", "20260131  12 kB  a long title"]),
        (29, ["ID        SIZE   ISSUE", "20260131  12 kB  a long title"]),
        (28, ["ID        ISSUE", "20260131  a long title"]),
        (15, ["ID        ISSUE", "20260131  a lo…"]),
    ],
)
def test_columns_are_left_out_and_then_lines_cut(width: int, said: list[str]) -> None:
    text, left_out = fitting(ROWS, width, ["SIZE"])
    assert text.splitlines() == said
    assert left_out == ([] if "SIZE" in said[0] else ["SIZE"])


@pytest.mark.parametrize(
    ("width", "said"),
    [
        (0, ["ID        SIZE   ISSUE", "20260131  12 kB  a long title of an issue"]),
        (40, ["ID        SIZE   ISSUE", "20260131  12 kB  a long title of an", "                 issue"]),
        (32, ["ID        ISSUE", "20260131  a long title of an", "          issue"]),
    ],
)
def test_the_last_column_wraps_when_the_others_leave_room(width: int, said: list[str]) -> None:
    rows = [ROWS[0], ("20260131", "12 kB", "a long title of an issue")]
    assert fitting_wrapped(rows, width, ["SIZE"])[0].splitlines() == said

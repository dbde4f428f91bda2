"""Test how lines are laid out for terminals of any width."""

from __future__ import annotations

import pytest
from rich.text import Text

from m3agent.agent.ui.layout import note, path_then

PATH = "/state/sessions/20260131-120000-abcdef/patch.diff"


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (None, [f"patch  {PATH} (a.py, b.py)"]),
        (80, [f"patch  {PATH} (a.py, b.py)"]),
        (60, [f"patch  {PATH}", "       (a.py, b.py)"]),
        (40, [f"patch  {PATH}", "       (a.py, b.py)"]),
    ],
)
def test_a_path_stays_whole(width: int | None, lines: list[str]) -> None:
    block = path_then(Text("patch  "), PATH, "(a.py, b.py)")
    assert [line.plain for line in block(width)] == lines


@pytest.mark.parametrize(
    ("width", "lines"), [(None, [f"m3agent: the log is {PATH}"]), (40, ["m3agent: the log is", f"  {PATH}"])]
)
def test_a_note_wraps_at_words(width: int | None, lines: list[str]) -> None:
    assert [line.plain for line in note(f"m3agent: the log is {PATH}")(width)] == lines

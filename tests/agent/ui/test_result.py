"""Results on standard output: in colours on a terminal, plain elsewhere, and never able to control the terminal."""

from __future__ import annotations

import io
import re

import pytest
from rich.text import Text

from m3agent.agent.ui.result import labelled, print_result, sign_of, table, tables

SEQUENCE = re.compile(r"\x1b\[([0-9;]*)m")


class Terminal(io.TextIOWrapper):
    """A standard output that is a terminal."""

    def isatty(self) -> bool:
        return True


def printed(text: Text, monkeypatch: pytest.MonkeyPatch, encoding: str = "utf-8", **env: str) -> str:
    for name in ("NO_COLOR", "FORCE_COLOR", "LC_ALL", "LC_CTYPE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", "LANG": "C.UTF-8", **env}.items():
        monkeypatch.setenv(name, value)
    raw = io.BytesIO()
    stream = Terminal(raw, encoding=encoding)
    monkeypatch.setattr("sys.stdout", stream)
    print_result(text)
    stream.flush()
    return raw.getvalue().decode()


TEXT = "✓ verified     1 test\npatch          1 file\n               a.py\n"


def test_a_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = printed(labelled(TEXT, 13), monkeypatch)
    assert SEQUENCE.sub("", shown) == TEXT
    assert shown.startswith("\x1b[1;32m✓ verified")
    assert "\x1b[1;36mpatch " in shown


def test_no_color_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = printed(labelled(TEXT, 13), monkeypatch, NO_COLOR="1")
    assert {*SEQUENCE.findall(shown)} <= {"1", "0"}, "bold is no colour"
    assert "\x1b" not in printed(labelled(TEXT, 13), monkeypatch, TERM="dumb")


def test_a_pipe_gets_plain_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("m3agent.agent.ui.result.shows_unicode", lambda _: True)
    print_result(labelled(TEXT, 13))
    assert capsys.readouterr().out == TEXT


def test_a_terminal_without_unicode_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SEQUENCE.sub("", printed(Text("✗ –…\n"), monkeypatch, "latin-1")) == "x -.\n"  # noqa: RUF001


def test_nothing_controls_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = printed(Text("a\x1b[2Jb\u202ec\n", "green"), monkeypatch)
    assert SEQUENCE.sub("", shown) == "a [2Jb c\n"


def test_heads_and_names_are_told_apart() -> None:
    text = "one run\n\nresolved  1 of 2\n  Wilson  0 to 1\n\nREPOSITORY  RATE\no/n         50%\n"
    made = tables(text)
    assert made.plain == text
    styled = {made.plain[span.start : span.end]: span.style for span in made.spans}
    assert styled["one run"] == styled["REPOSITORY  RATE\n"] == "bold"
    assert styled["resolved"] == styled["o/n"] == "bold cyan"
    assert table("a  b\n", has_head=False).plain == "a  b\n"


@pytest.mark.parametrize(("status", "sign"), [("verified", "✓"), ("failed", "✗"), ("unverified", "!")])
def test_signs_are_those_of_a_fix(status: str, sign: str) -> None:
    assert sign_of(status) == sign

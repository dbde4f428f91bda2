"""Test the line that a person types below the rows, on a real terminal device."""

from __future__ import annotations

import asyncio
import os
import termios
from collections.abc import Callable, Iterator

import pytest

from m3agent.agent.ui import typed_line
from m3agent.agent.ui.typed_line import HINT, TypedLine


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that presses keys of a terminal that is this process's keyboard."""
    leader, follower = os.openpty()
    monkeypatch.setattr(typed_line, "KEYBOARD", follower)
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp())
    yield lambda keys: (os.write(leader, keys), None)[1]
    os.close(follower)
    os.close(leader)


async def typed(keyboard: Callable[[bytes], None], keys: bytes) -> list[str]:
    lines, ended = list[str](), asyncio.Event()
    line = TypedLine(lambda text: ended.set() if text == "end" else lines.append(text))
    assert line.start()
    keyboard(keys + b"\x15end\r")
    await ended.wait()
    line.stop()
    return lines


@pytest.mark.parametrize(
    ("keys", "lines"),
    [
        (b"keep the name\r", ["keep the name"]),
        (b"one\ntwo\r", ["one", "two"]),
        (b"\r  \r\x03", []),
        (b"nome\x7f\x7f\x7fame\r", ["name"]),
        (b"a wrong word\x17right\r", ["a wrongright"]),
        (b"all wrong\x15right\r", ["right"]),
        (b"\x1b[Ax\x1b[1;5C\x1bOPy\x1b[200~z\x1b[201~\r", ["xyz"]),
        ("é漢".encode() + b"\r", ["é漢"]),
        (b"\x07\x00bell\r", ["bell"]),
    ],
)
async def test_keys_become_lines(keyboard: Callable[[bytes], None], keys: bytes, lines: list[str]) -> None:
    assert await typed(keyboard, keys) == lines


async def test_the_terminal_gets_its_mode_back(keyboard: Callable[[bytes], None]) -> None:
    before = termios.tcgetattr(typed_line.KEYBOARD)
    line = TypedLine(lambda _: None)
    assert line.start()
    during = termios.tcgetattr(typed_line.KEYBOARD)[3]
    assert not during & (termios.ECHO | termios.ICANON)
    assert during & termios.ISIG, "Ctrl-C is a signal as before"
    line.end()
    assert termios.tcgetattr(typed_line.KEYBOARD) == before
    assert not line.start(), "it has ended for good"


async def test_an_answer_may_be_empty_and_ctrl_c_refuses(keyboard: Callable[[bytes], None]) -> None:
    line = TypedLine(lambda _: None)
    assert line.start()
    for keys, answer in ((b"\r", ""), (b"shorter\r", "shorter"), (b"x\x03", None)):
        asked = asyncio.ensure_future(line.answer())
        await asyncio.sleep(0)
        assert line.is_awaited
        keyboard(keys)
        assert await asked == answer
        assert not line.is_awaited
    assert termios.tcgetattr(typed_line.KEYBOARD)[3] & termios.ISIG
    line.stop()


async def test_the_lines_after_an_answer_are_messages(keyboard: Callable[[bytes], None]) -> None:
    lines = list[str]()
    line = TypedLine(lines.append)
    assert line.start()
    asked = asyncio.ensure_future(line.answer())
    await asyncio.sleep(0)
    keyboard(b"one\ntwo\n")
    assert (await asked, lines) == ("one", ["two"])
    line.stop()


@pytest.mark.timeout(10)
async def test_nobody_is_asked_in_the_background(
    keyboard: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl-Z and `bg` no key arrives; after `fg` one does."""
    line = TypedLine(lambda _: None)
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: -1)
    assert not line.start()
    assert await line.answer() is None
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp())
    keyboard(b"shorter\r")
    assert await line.answer() == "shorter"
    line.stop()


async def test_a_keyboard_that_cannot_be_watched_keeps_its_mode(
    keyboard: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = termios.tcgetattr(typed_line.KEYBOARD)

    def fails() -> None:
        raise RuntimeError

    monkeypatch.setattr(asyncio, "get_running_loop", fails)
    assert not TypedLine(lambda _: None).start()
    assert termios.tcgetattr(typed_line.KEYBOARD) == before


def test_the_row_shows_the_end_of_a_long_line() -> None:
    line = TypedLine(lambda _: None)
    assert line.row(80).plain == f"> {HINT}"
    for key in "0123456789" * 3 + "漢":
        line._press(key)
    shown = line.row(14).plain
    assert shown.endswith("6789漢▏")
    assert len(shown) < 14


async def test_what_is_no_keyboard_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr(typed_line, "KEYBOARD", reading)
    assert not TypedLine(lambda _: None).start()
    os.close(reading)
    os.close(writing)

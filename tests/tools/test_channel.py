"""The channel of a report: nothing that the code under test does changes, repeats or loses a line."""

from __future__ import annotations

import codecs
import encodings
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.tools.in_sandbox.channel import channel
from m3agent.tools.report_reader import read_report
from tests.tools.report_lines import KEY, report_of

LINE = ("forged", "a")


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return tmp_path / "report"


def forged(report: Path) -> list[str]:
    """Return the signs in a report, one for each line."""
    return [*read_report(report.read_bytes(), KEY).signs.forged]


@given(st.lists(st.lists(st.text(max_size=20), min_size=1, max_size=4), max_size=5))
def test_the_lines_are_those_of_the_format(
    tmp_path_factory: pytest.TempPathFactory, lines: list[list[str]]
) -> None:
    path = tmp_path_factory.mktemp("channel") / "report"
    tell = channel(str(path), KEY)
    for line in lines:
        tell(*line)
    assert path.read_bytes() == report_of(lines)


def test_a_codec_of_the_tests_sees_no_line(report: Path) -> None:
    tell = channel(str(report), KEY)
    looked_up: list[str] = []

    def search(name: str) -> None:
        looked_up.append(name)

    codecs.unregister(encodings.search_function)  # which also empties the interpreter's cache of codecs
    codecs.register(search)
    try:
        tell(*LINE)
    finally:
        codecs.unregister(search)
        codecs.register(encodings.search_function)
    assert "unicode_escape" not in looked_up
    assert forged(report) == ["a"]


def test_a_hook_may_tell_while_a_line_is_written(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bytes] = []

    def write(out: int, data: bytes) -> int:
        if not told:
            told.append(data)
            tell("forged", "from the hook")  # as if the call were an event of the interpreter
        return real(out, data)

    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        tell = channel(str(report), KEY)
    tell("forged", "first")
    tell("forged", "last")
    assert forged(report) == ["first", "from the hook", "last"]


def test_threads_lose_no_line(report: Path) -> None:
    tell = channel(str(report), KEY)
    names = [f"{thread}-{number}" for thread in range(4) for number in range(5)]
    threads = [
        threading.Thread(target=lambda own: [tell("forged", name) for name in own], args=(names[at::4],))
        for at in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tell("end", "0", "")
    assert sorted(forged(report)) == sorted(names)


class Alarm(BaseException):
    pass


@pytest.mark.parametrize("written", [0, 10])
def test_a_line_that_an_alarm_cuts_short_is_written_again(
    report: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    rings = iter([True])

    def write(out: int, data: bytes) -> int:
        if next(rings, False):
            real(out, data[:written])
            raise Alarm
        return real(out, data)

    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        tell = channel(str(report), KEY)
    with pytest.raises(Alarm):
        tell("forged", "first")
    tell("forged", "second")
    assert forged(report) == ["first", "second"]

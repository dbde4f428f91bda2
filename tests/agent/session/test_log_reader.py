"""Test reading a log: complete, truncated, damaged, of another version, or with fields of another type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.agent.session import events
from m3agent.agent.session.log_reader import LOG, number, read_ends, read_log, text, whole
from m3agent.agent.session.session import Session
from m3agent.util.errors import UsageError
from m3agent.util.json_value import items, mapping, strings

ODD = "line\nend \u2028 \x00 \x1b[31m \ud83d ü \U0001f600"


def retry(attempt: int) -> events.Retry:
    return events.Retry(attempt=attempt, wait=0.5, reason=ODD)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    session = Session.create(tmp_path, [])
    for attempt in range(1, 5):
        session.write(retry(attempt))
    session.close()
    return session.folder / LOG


def test_what_was_written_is_read(log: Path) -> None:
    found = read_log(log)
    assert [line["attempt"] for line in found.events] == [1, 2, 3, 4]
    assert {line["reason"] for line in found.events} == {ODD}
    assert found.notes == ()


def test_a_log_cut_off_anywhere_gives_its_whole_lines(log: Path) -> None:
    raw = log.read_bytes()
    for size in range(len(raw) + 1):
        log.write_bytes(raw[:size])
        found = read_log(log)
        assert len(found.events) == raw[:size].count(b"\n")
        assert bool(found.notes) == (not raw[:size].endswith(b"\n") and size > 0)
    log.write_bytes(raw[:-3])
    torn = len(raw[:-3].split(b"\n")[-1])
    (note,) = read_log(log).notes
    assert note.startswith(
        f"the log's last line is cut off after {torn:,} bytes and is ignored: the session was killed"
    )


DAMAGED = "this is not an event (a JSON object): the log is damaged there"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"v":1,"type":', DAMAGED),
        (b"", DAMAGED),
        (b"[1]", DAMAGED),
        (b"\xff\xfe{\x00}\x00", DAMAGED),
        # UTF-16 without a byte order mark, which json would accept
        (b'\x00{\x00"\x00v\x00"\x00:\x001\x00}', DAMAGED),
        (b"[" * 100_000, DAMAGED),
        (b'{"v":' + b"1" * 5000 + b"}", DAMAGED),
        (b'{"v":2,"type":"retry"}', "the event is of version 2, and this m3agent reads version 1"),
        (b'{"v":"1","type":"retry"}', "the event is of version 1, and"),
        (b'{"v":true,"type":"retry"}', "the event is of version True, and"),
        (b'{"type":"retry"}', "the event is without a version, and"),
    ],
    ids=["half", "empty", "list", "no UTF-8", "UTF-16", "deep", "long", "newer", "text", "boolean", "none"],
)
def test_a_bad_line_in_the_middle_is_named(log: Path, line: bytes, why: str) -> None:
    lines = log.read_bytes().split(b"\n")
    log.write_bytes(b"\n".join([*lines[:2], line, *lines[2:]]))
    with pytest.raises(UsageError) as caught:
        read_log(log)
    assert str(caught.value).startswith(f"{log}, line 3: {why}")
    assert len(str(caught.value)) < len(str(log)) + 250


def test_missing_log_is_reported_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"x\.jsonl: the log cannot be read \(no such file or directory\)"):
        read_log(tmp_path / "x.jsonl")
    with pytest.raises(UsageError, match=r"cannot be read \(is a directory\)"):
        read_log(tmp_path)


def test_the_ends_are_the_first_and_last_event_of_the_log(log: Path) -> None:
    events_ = read_log(log).events
    assert read_ends(log) == (events_[0], events_[-1])


def test_incomplete_first_or_last_line_gives_no_ends(log: Path) -> None:
    raw = log.read_bytes()
    first = raw.index(b"\n") + 1
    for content in (b"", raw[:10], raw[:first], raw[:-1], raw + b"{", raw + b"x\n", b"x\n" + raw):
        log.write_bytes(content)
        assert read_ends(log) is None, content


def test_a_last_line_longer_than_what_is_looked_at_is_no_end(log: Path) -> None:
    with log.open("ab") as file:
        file.write(json.dumps({"v": 1, "type": "session.finished", "reason": "x" * 100_000}).encode() + b"\n")
    assert read_ends(log) is None
    assert read_log(log).events[-1]["type"] == "session.finished"


def test_fields_are_there_and_of_their_kind_or_unknown() -> None:
    line: dict[str, Any] = {
        "a": {"b": {"c": "deep"}}, "n": 3, "f": 1.5, "yes": True, "minus": -1, "nan": float("nan"), "huge": 10**400,
        "list": ["x", 1, None, "y"], "null": None,
    }  # fmt: skip
    assert (text(line, "a", "b", "c"), text(line, "a", "x", "c"), text(line, "n", "b")) == ("deep", "", "")
    assert [number(line, name) for name in ("n", "f", "yes", "minus", "nan", "huge", "null", "none")] == [
        3, 1.5, *[None] * 6,
    ]  # fmt: skip
    assert (whole(line, "n"), whole(line, "f")) == (3, None)
    assert strings(line, "list") == ["x", "y"]
    assert (items(line, "list"), items(line, "a")) == (["x", 1, None, "y"], [])
    assert (mapping(line, "a"), mapping(line, "n")) == ({"b": {"c": "deep"}}, {})


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(raw)
    read_ends(path)
    try:
        assert len(read_log(path).events) == raw.count(b"\n")
    except UsageError as error:
        assert str(error).startswith(f"{path}, line ")

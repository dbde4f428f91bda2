"""Parsing server-sent events, however the stream is split into pieces."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.serving.client.stream.events import EventReader


def read(*pieces: bytes) -> list[bytes]:
    reader = EventReader()
    return [event for piece in pieces for event in reader.feed(piece)] + reader.close()


@pytest.mark.parametrize(
    ("sent", "events"),
    [
        (b"data: one\n\ndata: two\n\n", [b"one", b"two"]),
        (b"data:one\r\n\r\ndata:  two\r\r", [b"one", b" two"]),
        (b": comment\n\nevent: x\nid: 7\nretry: 5\ndata: {}\n\n", [b"{}"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"event: ping\n\ndata: \n\ndata\n\ndata:\n\n", []),
        (b"data: last", [b"last"]),
        (b"data: last\r", [b"last"]),
        (b"database: no\n\nDATA: no\n\n", []),
        ("data: a\u2028b\u0085c\x0b\x1cd\n\n".encode(), ["a\u2028b\u0085c\x0b\x1cd".encode()]),
        (b"", []),
    ],
)
def test_what_is_an_event(sent: bytes, events: list[bytes]) -> None:
    assert read(sent) == events
    assert read(*(sent[at : at + 1] for at in range(len(sent)))) == events


LINES = st.sampled_from(
    [b"data: ", b"data:", b": c", b"event: e", b"", b"x", "é\u2028".encode(), b"{}", b"\x00"]
)
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n", b"\n\n", b""])


@given(st.lists(st.tuples(LINES, ENDS), max_size=12), st.lists(st.integers(0, 60), max_size=8))
def test_pieces_do_not_matter(lines: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    sent = b"".join(line + end for line, end in lines)
    edges = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    assert read(*(sent[start:end] for start, end in itertools.pairwise(edges))) == read(sent)


@given(st.lists(st.text(max_size=20), max_size=6), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_json_comes_out_as_it_went_in(texts: list[str], end: bytes) -> None:
    sent = b"".join(
        b"data: " + json.dumps(text, ensure_ascii=False).encode(errors="replace") + end * 2 for text in texts
    )
    found = [json.loads(event.decode()) for event in read(sent)]
    assert found == [
        json.loads(json.dumps(text, ensure_ascii=False).encode(errors="replace")) for text in texts
    ]

"""Calls that a server parsed badly, and whose meaning is certain."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.serving.client.stream.accumulator import Accumulator
from m3agent.serving.wire.mended import mended_object

TEXTS = st.text(max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=4)


@given(OBJECTS)
def test_an_object_in_each_form_is_the_same_object(value: dict[str, Any]) -> None:
    written = json.dumps(value)
    for form in (written, json.dumps(written), json.dumps(json.dumps(written)), f"```json\n{written}\n```"):
        assert mended_object(form) == value
    literal = repr(value)
    assert mended_object(literal) in (value, json.loads(written))
    assert mended_object(json.dumps(literal)) == value


@given(OBJECTS.filter(bool))
def test_a_comma_before_a_bracket_is_left_out(value: dict[str, Any]) -> None:
    assert mended_object(json.dumps(value)[:-1] + " ,\n}") == value


@given(OBJECTS, st.data())
def test_text_that_is_cut_is_never_completed(value: dict[str, Any], data: st.DataObject) -> None:
    for written in (json.dumps(value), repr(value), json.dumps(json.dumps(value))):
        end = data.draw(st.integers(0, len(written) - 1))
        assert mended_object(written[:end]) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": True, "b": "True, None,]"}', {"a": True, "b": "True, None,]"}),
        ('{"a": "x\ny",}', {"a": "x\ny"}),
        ("{'a': 'x', 'b': [1, None, False]}", {"a": "x", "b": [1, None, False]}),
        ("{'a': b'x'}", None),
        ("{'a': {1, 2}}", None),
        ("{1: 2}", None),
        ("{'a': f()}", None),
        ("{'a': '\\d'}", None),  # in Python a backslash and a d, in JSON no string at all
        ("{'a': 1e999}", None),
        ('{"a": NaN}', None),
        ("[1]", None),
        ('"a"', None),
        ("", None),
        ("[" * 100_000, None),
        ("{'a':" * 100_000 + "}", None),
    ],
)
def test_what_has_one_meaning(text: str, value: object) -> None:
    assert mended_object(text) == value


def calls_of(*pieces: dict[str, Any]) -> list[tuple[str, dict[str, Any] | None]]:
    stream = Accumulator([], 1)
    for piece in pieces:
        stream.add({"choices": [{"delta": {"tool_calls": [piece]}}]})
    stream.add({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    stream.close()
    return [(call.name, call.arguments) for call in stream.finish(False)[0].calls]


def piece(
    index: int | None, arguments: str, name: str | None = None, ident: str | None = None
) -> dict[str, Any]:
    return {"index": index, "id": ident, "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("ident", [None, "call_other"])
def test_pieces_without_a_name_under_new_indices_belong_to_the_call_before(ident: str | None) -> None:
    found = calls_of(
        piece(0, "", "read", "a"),
        piece(1, '{"path": ', None, ident),
        piece(2, '"x"}', None, ident),
        piece(3, "", "write", "b"),
        piece(4, '{"path": "y"}'),
    )
    assert found == [("read", {"path": "x"}), ("write", {"path": "y"})]


def test_a_piece_without_a_name_behind_a_whole_call_is_no_part_of_it() -> None:
    assert calls_of(piece(0, '{"path": "x"}', "read", "a"), piece(1, '{"path": "y"}')) == [
        ("read", {"path": "x"}),
        ("unnamed", None),
    ]


@given(OBJECTS, st.integers(1, 5), st.sampled_from([json.dumps, repr]))
def test_mended_arguments_are_the_same_however_they_are_cut(
    value: dict[str, Any], size: int, form: Any
) -> None:
    written = json.dumps(form(value))
    cut = [written[at : at + size] for at in range(0, len(written), size)]
    assert calls_of(piece(0, "", "read", "a"), *(piece(0, part) for part in cut)) == [("read", value)]

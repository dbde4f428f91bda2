"""Parts of JSON are taken whatever type they have."""

from __future__ import annotations

import pytest

from m3agent.util.json_value import items, json_object, mapping, mappings, strings


@pytest.mark.parametrize("value", [None, 1, "text", [], {}])
def test_what_is_missing_or_something_else_is_empty(value: object) -> None:
    assert mapping(value, "a", "b") == mapping({"a": value}, "a", "b") == {}
    assert mappings(value) == []
    assert items({"a": value}) == items({"a": {}}, "a", "b") == []
    assert strings(value) == []


def test_parts_of_the_right_type_are_returned() -> None:
    assert mapping({"a": {"b": {"c": 1}}}, "a", "b") == {"c": 1}
    assert items([1, {}]) == [1, {}]
    assert mappings([1, {"a": 2}, None]) == [{"a": 2}]
    assert items({"a": {"b": [1]}}, "a", "b") == [1]
    assert strings({"a": ["b", 1]}, "a") == ["b"]


@pytest.mark.parametrize("text", ["", "{", "[1]", b"\xff", "[" * 100_000])
def test_a_text_without_an_object_gives_an_empty_one(text: str | bytes) -> None:
    assert json_object(text) == {}
    assert json_object('{"a": 1}') == {"a": 1}

"""Calls that a server parsed badly, and whose meaning is certain."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.serving.client.stream.accumulator import Accumulator
from m3agent.serving.wire import Call, json_calls
from m3agent.serving.wire.coerce import mended_object

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


TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("read", "write")]
CALL = {"name": "read", "arguments": {"path": "a.py"}}
SECOND = {"name": "write", "arguments": {"path": "b", "content": "</tool_call>\n```\n[/TOOL_CALL]\\"}}
FORMS = {
    "tags": lambda calls: "".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>\n" for call in calls),
    "one tag": lambda calls: f"<tool_calls>{json.dumps(calls)}</tool_calls>",
    "brackets": lambda calls: "".join(f"[TOOL_CALL]{json.dumps(call)}[/TOOL_CALL]" for call in calls),
    "Mistral": lambda calls: f"[TOOL_CALLS]{json.dumps(calls)}",
    "list": lambda calls: f"```json\n{json.dumps(calls, indent=1)}\n```",
    "lines": lambda calls: "```\n" + "\n".join(map(json.dumps, calls)) + "\n```\n",
    "OpenAI": lambda calls: (
        "~~~json\n" + json.dumps([{"type": "function", "function": call} for call in calls]) + "\n~~~"
    ),
}
PROSE = st.lists(
    st.sampled_from(
        ["I look.", "", "> quoted", "    code", "`x`", "```python\nx = 1\n```", "a <tool_call> b"]
    ),
    max_size=4,
).map("\n".join)


def heard(text: str, size: int = 0, finish: str = "stop") -> tuple[str, list[tuple[str, Any]]]:
    stream = Accumulator(TOOLS, 1)
    for at in range(0, len(text), size or len(text) or 1):
        stream.add({"choices": [{"delta": {"content": text[at : at + (size or len(text))]}}]})
    stream.add({"choices": [{"delta": {}, "finish_reason": finish}]})
    stream.close()
    message = stream.finish(False)[0]
    return message.text, [(call.name, call.arguments) for call in message.calls]


@given(
    PROSE,
    st.sampled_from(sorted(FORMS)),
    st.sampled_from([[CALL], [CALL, SECOND], [SECOND, CALL]]),
    st.integers(1, 9),
)
def test_calls_as_json_are_made_however_the_stream_is_cut(
    prose: str, form: str, calls: list[dict[str, Any]], size: int
) -> None:
    text = f"{prose}\n{FORMS[form](calls)}"
    wanted = [(call["name"], call["arguments"]) for call in calls]
    for piece_size in (0, size):
        said, made = heard(text, piece_size)
        assert made == wanted
        assert said == prose.rstrip()


@given(
    PROSE, st.sampled_from(sorted(FORMS)), st.sampled_from(["```", "````markdown", "~~~"]), st.integers(1, 9)
)
def test_a_quoted_call_is_never_made(prose: str, form: str, fence: str, size: int) -> None:
    written = FORMS[form]([CALL])
    quoted = "\n".join(f"> {line}" for line in written.split("\n"))
    indented = "\n".join(f"    {line}" for line in written.split("\n"))
    closing = "`" * 4 if fence.startswith("````") else fence
    outer = "~~~~text\n" if form == "OpenAI" else f"{fence}\n"
    end = "~~~~" if form == "OpenAI" else closing
    for text in (
        f"{prose}\n{written}\nThat is how a call looks.",
        f"{prose}\n{quoted}",
        f"{prose}\n{indented}",
        f"{prose} as in `{written}`",
        f"{prose}\nA call is {written}",
    ):
        assert heard(text, size)[1] == []
    if "```" not in written or fence != "```":
        assert heard(f"{prose}\n{outer}# file\n{written}\n{end}", size)[1] == []


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "delete", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "read"}</tool_call>',
        '<tool_call>{"name": "read", "arguments": []}</tool_call>',
        '<tool_call>{"name": "read", "arguments": {}, "scripts": {}}</tool_call>',
        '<tool_call>{"name": "read", "arguments": {}',
        '<tool_call>{"name": "read", "arguments": {}}',
        '```json\n{"name": "read", "arguments": {}}',
        '```json\n[{"name": "read", "arguments": {}}, {"name": "x", "arguments": {}}]\n```',
        '```json\n{"name": "read", "version": "1.0", "arguments": {}}\n```',
        '```json\n{"a": 1}\n```',
        "```json\n[]\n```",
        '```yaml\n{"name": "read", "arguments": {}}\n```',
        "[TOOL_CALLS]",
        "<tool_call></tool_call>",
        '<tool_call>{"name": ["read"], "arguments": {}}</tool_call>',
        '<tool_call>{"name": {"read": 1}, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "read", "arguments": {"path": NaN}}</tool_call>',
    ],
)
def test_what_is_no_whole_call_of_an_offered_tool_is_text(text: str) -> None:
    assert heard(text)[1] == []


def test_a_cut_answer_has_no_call_as_json() -> None:
    text = FORMS["tags"]([CALL])
    assert heard(text, finish="length")[1] == []
    assert heard(text, finish="stop")[1] == [("read", {"path": "a.py"})]


def test_each_of_many_calls_before_other_text_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0
    read_calls = json_calls._calls

    def counted(text: str, at: int, offered: Collection[str]) -> tuple[list[Call], int]:
        nonlocal count
        count += 1
        return read_calls(text, at, offered)

    monkeypatch.setattr(json_calls, "_calls", counted)
    text = '<tool_call>{"name": "read", "arguments": {}}</tool_call>\n' * 20 + "and so on"
    assert json_calls.calls_at_end(text, {"read"}) == (text, [])
    assert count == 20

"""M3's wire format, read from correct output and from malformed output."""

from typing import Any

import pytest

from m3agent.serving.wire import (
    Call,
    CallFinished,
    CallPartial,
    Parsed,
    ReasoningDelta,
    StreamParser,
    TextDelta,
    TextWasReasoning,
    parse,
    write,
)
from tests.serving.markup import NS, block, element, invoke


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


STRING, INTEGER = {"type": "string"}, {"type": "integer"}
TOOLS = [
    tool("file_write", path=STRING, content=STRING),
    tool("grep", **{"pattern": STRING, "-A": INTEGER, "-n": {"type": "boolean"}}),
    tool("file_read", path=STRING, start=INTEGER, end={"anyOf": [INTEGER, {"type": "null"}]}),
    tool(
        "order",
        items={"type": "array", "items": tool("", sku=STRING, qty=INTEGER)["function"]["parameters"]},
        ship={"type": "object", "properties": {"city": STRING, "zip": INTEGER}},
    ),
]


def arguments_of(value: str, schema: Any) -> Any:
    tools = [tool("f", x=schema)]
    [call] = parse(block(invoke("f", element("x", value))), tools).calls
    return call.arguments["x"]


def test_text_alone_stays_byte_for_byte() -> None:
    for text in ("", "   ", "\n\na < b && c > d </p> ]<]mini ]<]minimax[>", "x" * 100_000):
        assert parse(text, TOOLS) == Parsed("", text, [], None)


def test_raw_is_the_markup_of_the_call() -> None:
    markup = invoke("file_read", element("path", "a"))
    [call] = parse("hello" + block(markup), TOOLS).calls
    assert call.raw == markup.strip()


@pytest.mark.parametrize(
    ("text", "mode", "reasoning", "visible"),
    [
        ("r</mm:think>t", "enabled", "r", "t"),
        ("<mm:think>r</mm:think>t", "enabled", "r", "t"),
        ("</mm:think>t", "disabled", "", "t"),
        ("r", "enabled", "r", ""),
        ("<mm:think>r</mm:think>the tag </mm:think> ends it", "adaptive", "r", "the tag </mm:think> ends it"),
        ("<mm:think>a <mm:think> b</mm:think>t", "adaptive", "a <mm:think> b", "t"),
    ],
)
def test_think_tags(text: str, mode: Any, reasoning: str, visible: str) -> None:
    assert parse(text, TOOLS, mode) == Parsed(reasoning, visible, [], None)


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        ("9007199254740993", INTEGER, 9007199254740993),
        ("1" + "0" * 60, {"type": "number"}, 10**60),
        ("018956", INTEGER, 18956),
        ("1400.0", INTEGER, 1400),
        ("\n12\n", INTEGER, 12),
        ("twenty", INTEGER, "twenty"),
        ("1.5", INTEGER, "1.5"),
        ("9" * 5000, INTEGER, "9" * 5000),
        ("5.0", {"type": "number"}, 5.0),
        ("1e999", {"type": "number"}, "1e999"),
        ("NaN", {"type": "number"}, "NaN"),
        ("true", {"type": "boolean"}, True),
        ("False", {"type": "boolean"}, False),
        ("1", {"type": "boolean"}, "1"),
        ("null", {"anyOf": [INTEGER, {"type": "null"}]}, None),
        ("", {"anyOf": [INTEGER, {"type": "null"}]}, None),
        ("null", {"type": ["null", "string"]}, None),
        ("", {"type": ["null", "string"]}, ""),
        ("null", STRING, "null"),
        ("12", STRING, "12"),
        ("2", {"enum": [1, 2, 3]}, 2),
        ("2", {"enum": ["1", "2"]}, "2"),
        ("4", {"type": "integer", "enum": [1, 2, 3]}, "4"),
        ("[1, 2]", {"type": "array", "items": INTEGER}, [1, 2]),
        ("", {"type": "array"}, []),
        ("", {"type": "object"}, {}),
        ('{"mode": "fast"', {"type": "object"}, '{"mode": "fast"'),
        ("[" * 100_000, {"type": "array"}, "[" * 100_000),
        ("5", {"$ref": "#/properties/x"}, "5"),  # a schema that refers to itself
        ("5", {}, "5"),
        ("a &lt; b &amp;&amp; c", STRING, "a &lt; b &amp;&amp; c"),
    ],
)
def test_values_are_typed_by_the_schema(value: str, schema: Any, expected: Any) -> None:
    found = arguments_of(value, schema)
    assert found == expected
    assert type(found) is type(expected)


def test_a_schema_by_reference() -> None:
    parameters = {"$defs": {"N": INTEGER}, "properties": {"n": {"$ref": "#/$defs/N"}}}
    tools = [{"name": "f", "parameters": parameters}]
    assert parse(invoke("f", element("n", "7")), tools).calls == [Call("f", {"n": 7})]


def test_values_of_an_unknown_tool_are_strings_lists_and_objects() -> None:
    values = element("n", "5") + element("l", element("item", "1")) + element("o", element("k", "v"))
    [call] = parse(block(invoke("other", values)), TOOLS).calls
    assert call == Call("other", {"n": "5", "l": ["1"], "o": {"k": "v"}})


def test_a_repeated_parameter_makes_a_list() -> None:
    tools = [tool("f", n={"type": "array", "items": INTEGER})]
    [call] = parse(invoke("f", element("n", "1"), element("n", "2")), tools).calls
    assert call.arguments == {"n": [1, 2]}


def test_deep_nesting_ends_as_text() -> None:
    depth = 5000
    [call] = parse(invoke("f", f"{NS}<a>" * depth + f"{NS}</a>" * depth), []).calls
    assert call.name == "f"


def test_hyphenated_names() -> None:
    markup = invoke("grep", element("pattern", "x"), element("-A", "3"), element("-n", "true"))
    assert parse(block(markup), TOOLS).calls == [Call("grep", {"pattern": "x", "-A": 3, "-n": True})]


@pytest.mark.parametrize("start", [NS, ""])
def test_the_first_parameter_without_its_opening_tag(start: str) -> None:
    markup = block(
        invoke("file_write", f"{start}offer.txt{NS}</path>", element("content", "Hello")),
        invoke("file_read", element("path", "b")),
    )
    assert parse(markup, TOOLS).calls == [
        Call("file_write", {"path": "offer.txt", "content": "Hello"}),
        Call("file_read", {"path": "b"}),
    ]


def test_a_value_that_looks_like_a_tag_without_its_opening_tag() -> None:
    markup = invoke("file_write", f"{NS}<html>hi{NS}</content>", element("path", "i.html"))
    assert parse(markup, TOOLS).calls == [Call("file_write", {"content": "<html>hi", "path": "i.html"})]


def test_a_string_keeps_markup_that_is_not_its_own_closing_tag() -> None:
    content = f"see {NS}<div>{NS}</div> there"
    assert parse(invoke("file_write", element("content", content)), TOOLS).calls == [
        Call("file_write", {"content": content})
    ]


@pytest.mark.parametrize("ending", ["", "\n", f"{NS}</tool_c", " \n"])
def test_the_block_is_not_closed(ending: str) -> None:
    text = f"{NS}<tool_call>\n" + invoke("file_read", element("path", "a")) + ending
    assert parse(text, TOOLS) == Parsed("", "", [Call("file_read", {"path": "a"})], None)


def test_a_call_before_the_reasoning_ends() -> None:
    text = "<mm:think>let me see" + block(invoke("file_read", element("path", "a"))) + "</mm:think>Done."
    assert parse(text, TOOLS) == Parsed("let me see", "Done.", [Call("file_read", {"path": "a"})], None)


@pytest.mark.parametrize(
    "markup",
    [
        '<minimax:tool_call>\n<invoke name="file_write">\n{}</invoke>\n</minimax:tool_call>',
        '<invoke name="file_write">{}</invoke>',
        NS + "<tool_call>" + NS + '<invoke name="file_write">{}' + NS + "</invoke>",
    ],
)
def test_calls_in_the_form_of_m2(markup: str) -> None:
    parameters = (
        '<parameter name="path">a.xml</parameter>\n'
        '<parameter name="content"><parameter>\n</parameter>\n</root></parameter>\n'
    )
    call = Call("file_write", {"path": "a.xml", "content": "<parameter>\n</parameter>\n</root>"})
    assert parse("ok " + markup.format(parameters), TOOLS) == Parsed("", "ok ", [call], None)


def test_prose_about_calls_is_prose() -> None:
    text = 'Use <invoke name="other"><parameter name="x">1</parameter></invoke> for that.'
    assert parse(text, TOOLS) == Parsed("", text, [], None)
    thought = '<invoke name="file_read"> would do'
    assert parse(f"<mm:think>{thought}</mm:think>ok", TOOLS) == Parsed(thought, "ok", [], None)


@pytest.mark.parametrize(
    "rest",
    [
        "",
        element("path", "a"),
        element("path", "a") + NS,
        element("path", "a") + f"{NS}<content>half",
        element("path", "a") + f"{NS}</invoke",
        element("path", "a") + f"{NS}</tool_call>",
    ],
)
def test_a_call_that_is_not_closed_is_partial(rest: str) -> None:
    parsed = parse(f'go{NS}<tool_call>{NS}<invoke name="file_write">{rest}', TOOLS)
    assert parsed.text == "go"
    assert parsed.calls == []
    assert parsed.partial == Call("file_write", {"path": "a"} if rest else {})


def test_a_call_left_open_by_the_next_one_is_partial_and_the_next_one_is_read() -> None:
    open_call = f'{NS}<invoke name="file_read">{element("path", "a")}'
    parsed = parse(f"{NS}<tool_call>{open_call}{invoke('file_read', element('path', 'b'))}", TOOLS)
    assert parsed.calls == [Call("file_read", {"path": "b"})]
    assert parsed.partial == Call("file_read", {"path": "a"})


def test_events_of_a_stream() -> None:
    parser = StreamParser(TOOLS)
    assert parser.feed("thought</mm:thi") == [TextDelta("thought")]
    assert parser.feed("nk>answer") == [TextWasReasoning(), TextDelta("answer")]
    assert parser.feed("<mm:think>more") == [ReasoningDelta("more")]
    read = Call("file_read", {"path": "a"})
    assert parser.feed(block(invoke("file_read", element("path", "a"))) + NS) == [CallFinished(read)]
    assert parser.feed('<invoke name="file_read">') == []
    assert parser.close() == [CallPartial(Call("file_read", {}))]


def test_written_text_has_m3s_form() -> None:
    written = write("why", "ok", [Call("file_write", {"path": "a.py", "content": "x < 1 && y\n"})])
    assert written == "<mm:think>why</mm:think>ok" + block(
        invoke("file_write", element("path", "a.py"), element("content", "x < 1 && y\n"))
    )

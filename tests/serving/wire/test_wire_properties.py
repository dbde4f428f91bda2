"""Properties of the wire format that hold for any text, any chunking, any arguments."""

import itertools
import random
import string
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from m3agent.serving.wire import (
    Call,
    Parsed,
    ReasoningDelta,
    StreamParser,
    TextDelta,
    WireEvent,
    collect,
    parse,
    write,
)
from tests.conftest import later

NS = "]<]minimax[>["
MODES: Any = st.sampled_from(["adaptive", "enabled", "disabled"])
FRAGMENTS = [
    NS,
    NS[:-1],
    "]<]minimax[",
    "\\",
    "]<]minimax[\\>[",
    "<mm:think>",
    "</mm:think>",
    "<mm:think\\>",
    NS + "<tool_call>",
    NS + "</tool_call>",
    NS + '<invoke name="f">',
    NS + "</invoke>",
    NS + " <Invoke name='f' >",
    NS + 'invoke name="f">',
    NS + "<invoke name=f/>",
    NS + "/INVOKE>",
    NS + "<content>",
    NS + "</content>",
    NS + "<item>",
    NS + "</item>",
    '<invoke name="f">',
    "</invoke>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<tool_call>",
    "</tool_call>",
    "<tool_call\\>",
    "<function_calls>",
    "<think>",
    "</think>",
    '{"name": "f", "arguments": {"content": "x"}}',
    '<parameter name="content">',
    "</parameter>",
    "</content>",
    "&amp;",
    "&#93;",
    "<",
    ">",
    "\n",
    " ",
    "null",
    "12",
    "true",
    "x",
    "é🙂",
    "\ud800",
    "\0\r\n",
    "invoke",
    "/",
    "[e~[",
    "[e~",
    "]~!b[",
    "]~b]",
    "]~b]ai\n",
    "]~b",
    "user",
]
NASTY = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=4)), max_size=12).map("".join)

NAMES = st.one_of(
    st.text(string.ascii_lowercase + "-_.", min_size=1, max_size=6),
    st.sampled_from(["invoke", "tool_call", "parameter", "item", "a b", "<x>", "", 'q"q', NS, "-A", "ünï"]),
)


@st.composite
def typed(draw: st.DrawFn, depth: int = 2) -> tuple[dict[str, Any], Any]:
    """Draw a schema and a value that matches it."""
    kinds = ["string", "integer", "number", "boolean", "maybe", "text or null", "listed"]
    kind = draw(st.sampled_from(kinds + (["array", "object", "map", "object or null"] if depth else [])))
    match kind:
        case "string":
            return {"type": "string"}, draw(NASTY)
        case "integer":
            return {"type": "integer"}, draw(st.integers())
        case "number":
            numbers = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False))
            return {"type": "number"}, draw(numbers)
        case "boolean":
            return {"type": "boolean"}, draw(st.booleans())
        case "maybe":
            schema = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
            return schema, draw(st.one_of(st.none(), st.integers()))
        case "text or null":
            text = NASTY.filter(lambda value: value.strip() != "null")
            return {"type": ["string", "null"]}, draw(st.one_of(st.none(), text))
        case "listed":
            words = draw(st.lists(NASTY, min_size=1, max_size=3))
            return {"enum": words}, draw(st.sampled_from(words))
        case "object or null":
            schema, value = draw(arguments(depth - 1))
            return {"anyOf": [schema, {"type": "null"}]}, draw(st.sampled_from([value, None]))
        case "array":
            schema, example = draw(typed(depth=depth - 1))
            return {"type": "array", "items": schema}, [example] * draw(st.integers(0, 3))
        case "map":
            schema, example = draw(typed(depth=depth - 1))
            keys = draw(st.lists(NAMES, max_size=3, unique=True))
            return {"type": "object", "additionalProperties": schema}, dict.fromkeys(keys, example)
        case _:
            schema, value = draw(arguments(depth - 1))
            return schema, value


@st.composite
def arguments(draw: st.DrawFn, depth: int = 2) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw the schema of an object and an object that matches it."""
    fields = draw(st.dictionaries(NAMES, typed(depth), max_size=4))
    schema = {"type": "object", "properties": {name: schema for name, (schema, _) in fields.items()}}
    return schema, {name: value for name, (_, value) in fields.items()}


def chunks(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges)]


def feed(pieces: list[str], mode: Any) -> list[WireEvent]:
    """Return the events of an output that arrives in these pieces."""
    parser = StreamParser(TOOLS, mode)
    events = [event for piece in pieces for event in parser.feed(piece)]
    return [*events, *parser.close()]


def merged(events: list[WireEvent]) -> list[WireEvent]:
    """Return the events, with consecutive text deltas merged."""
    result: list[WireEvent] = []
    for event in events:
        last = result[-1] if result else None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta):
            result[-1] = TextDelta(last.text + event.text)
        elif isinstance(event, ReasoningDelta) and isinstance(last, ReasoningDelta):
            result[-1] = ReasoningDelta(last.text + event.text)
        else:
            result.append(event)
    return result


@given(NASTY, NASTY, st.lists(arguments(), max_size=3), MODES)
@settings(max_examples=75)
def test_written_text_is_parsed_back(
    reasoning: str, text: str, made: list[tuple[dict[str, Any], dict[str, Any]]], mode: Any
) -> None:
    tools = [{"name": f"tool-{n}", "parameters": schema} for n, (schema, _) in enumerate(made)]
    calls = [Call(f"tool-{n}", values) for n, (_, values) in enumerate(made)]
    parsed = parse(write(reasoning, text, calls), tools, mode)
    assert parsed == Parsed(reasoning, text, calls, None)
    for before, after in zip(calls, parsed.calls, strict=True):
        assert repr(after.arguments) == repr(before.arguments)  # 1, 1.0 and True are equal but not the same


TOOLS = [
    {
        "name": "f",
        "parameters": {
            "properties": {
                "content": {"type": "string"},
                "n": {"type": "array", "items": {"type": "integer"}},
            }
        },
    }
]


@given(NASTY, st.lists(st.integers(0, 500), max_size=30), MODES)
@settings(max_examples=200)
def test_chunking_does_not_matter_and_nothing_raises(text: str, cuts: list[int], mode: Any) -> None:
    assert merged(feed(chunks(text, cuts), mode)) == merged(feed([text], mode))


CONTROLS = st.lists(
    st.sampled_from(
        ["[e~[", "[e~", "[", "]~b]", "]~b", "]", "]~!b[", "ai", "user", "us", "er", "\n", "x", "\\", NS]
    ),
    max_size=12,
).map("".join)


@given(CONTROLS, st.lists(st.integers(0, 100), max_size=30), MODES)
@settings(max_examples=300)
def test_control_tokens_in_any_chunking(text: str, cuts: list[int], mode: Any) -> None:
    assert collect(feed(chunks(text, cuts), mode)) == parse(text, TOOLS, mode)
    assert parse(write(text, text, []), TOOLS, mode) == Parsed(text, text, [], None)


@given(st.text(max_size=40), st.sampled_from(["[e~[", "]~!b[", "]~b]user", "]~b]ai"]), st.text(max_size=40))
@settings(max_examples=100)
def test_a_control_token_is_dropped_and_nothing_else(before: str, token: str, after: str) -> None:
    assume(not any(mark in before + after for mark in ("minimax", "mm:think", "<invoke", "<think>", "~")))
    assume(not before.endswith(("]", "[")))
    assume(not (after[:1].isalnum() or after.startswith("_")))
    assert parse(before + token + after, TOOLS).text == before + after


@given(NASTY, st.integers(0, 500), MODES)
@settings(max_examples=200)
def test_a_prefix_yields_no_call_that_the_whole_does_not(text: str, cut: int, mode: Any) -> None:
    early = parse(text[:cut], TOOLS, mode).calls
    assert parse(text, TOOLS, mode).calls[: len(early)] == early


@given(st.text())
@settings(max_examples=100)
def test_ordinary_text_is_not_touched(text: str) -> None:
    assume(not any(marker in text for marker in ("minimax", "mm:think", "<invoke", "<think>")))
    assert parse(text, TOOLS).text == text


@given(NASTY, NASTY, st.lists(NASTY, min_size=1, max_size=3), st.data())
@settings(max_examples=150)
def test_a_cut_never_makes_a_call(
    reasoning: str, text: str, contents: list[str], data: st.DataObject
) -> None:
    calls = [Call("f", {"content": content}) for content in contents]
    written = write(reasoning, text, calls)
    cut = written[: data.draw(st.integers(0, len(written)))]
    parsed = parse(cut, TOOLS)
    closed = cut.count(NS + "</invoke>")
    assert parsed.calls == calls[:closed]
    begun = cut.count(NS + "<invoke")
    assert (parsed.partial is not None) == (begun > closed)


WELL_FORMED = write(
    "why </mm:think> so",
    "text " + NS,
    [Call("f", {"content": f"a{NS}<x>&amp;</content>\n" * 3, "n": [1, 2]}), Call("f", {"content": ""})],
)
FAULTY = [
    f'<mm:think>a{NS}<tool_call>\n{NS}<invoke name="f">{NS}x{NS}</content>{NS}</invoke></mm:think>b',
    (
        f'{NS}<tool_call>\n{NS}<invoke name="f">{NS}<n>{NS}<item>1</item>{NS}<content>y</content>\n</invoke>\n'
        f'{NS}<invoke name="f">{NS}<content>z{NS}</invoke>{NS}</tool_call> end'
    ),
    '<tool_call>\n<invoke name="f"><parameter name="content">see </invoke> </parameter></invoke></tool_call>',
    f'go{NS}<tool_call>{{"name": "f", "arguments": {{"n": [3]}}}}{NS}</tool_call>{WELL_FORMED}',
]


@pytest.mark.parametrize("rounds", [1_000, later(15_000)])
def test_many_random_chunkings_and_truncations(rounds: int) -> None:
    rng = random.Random(6)
    for number in range(rounds):
        kind = number % 4
        if kind == 0:
            text = WELL_FORMED
        elif kind == 1:
            text = rng.choice(FAULTY)
        else:
            text = "".join(rng.choices(FRAGMENTS, k=rng.randrange(16)))
        if kind == 2:  # a fault in the middle of well-formed output
            at = rng.randrange(len(WELL_FORMED))
            text = WELL_FORMED[:at] + text[:20] + WELL_FORMED[at + rng.randrange(20) :]
        mode: Any = rng.choice(("adaptive", "enabled", "disabled"))
        cut = text[: rng.randrange(len(text) + 1)]
        pieces = []
        position = 0
        while position < len(cut):
            size = rng.choice((1, 1, 2, 3, 7, 20, 80))
            pieces.append(cut[position : position + size])
            position += size
        events = feed(pieces, mode)
        assert merged(events) == merged(feed([cut], mode))
        found = collect(events)
        assert parse(text, TOOLS, mode).calls[: len(found.calls)] == found.calls
        if kind == 0:
            assert len(found.calls) == cut.count(NS + "</invoke>")

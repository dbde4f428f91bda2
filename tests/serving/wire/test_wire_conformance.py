"""The shapes that parsers of M3's output must handle, and deviations that M3 was seen to write.

The shapes are those that conformance suites for tool-calling parsers share: one call, several, none, malformed,
cut, empty, typed, with prose around, blank, unknown, with its own markup inside. Every case is read whole, in
single characters and in chunks that split its tags, with the same result.
"""

import json
from typing import Any

import pytest

from m3agent.serving.wire import Call, Parsed, StreamParser, collect, parse
from tests.serving.markup import NS, block, element, invoke

STRING, INTEGER, FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"name": name, "parameters": {"type": "object", "properties": properties}}


TOOLS = [
    tool("look", place=STRING),
    tool("clock"),
    tool("save", path=STRING, body=STRING, mode={"enum": ["new", "a&b"]}, lines=INTEGER, force=FLAG),
    tool(
        "trip",
        stops={"type": "array", "items": STRING},
        rooms={"type": "object", "properties": {"beds": INTEGER, "view": STRING}},
        days={
            "type": "array",
            "items": {"type": "object", "properties": {"name": STRING, "plans": {"type": "array"}}},
        },
        extra={"type": "object"},
        note={"type": ["string", "null"]},
    ),
]


def looks(*places: str) -> list[Call]:
    return [Call("look", {"place": place}) for place in places]


def read(text: str) -> Parsed:
    """Parse `text` whole and in pieces, and return the result, which must be the same."""
    whole = parse(text, TOOLS)
    for size in (1, 7, 29):
        parser = StreamParser(TOOLS)
        events = [event for at in range(0, len(text), size) for event in parser.feed(text[at : at + size])]
        assert collect([*events, *parser.close()]) == whole
    return whole


OSLO, ROME = invoke("look", element("place", "Oslo")), invoke("look", element("place", "Rome"))
OPEN = f'{NS}<invoke name="look">'

SHAPES = {
    # 1, 2, 10: one call and several
    "a call on lines of its own": (
        block(f"{OPEN}\n{element('place', 'Oslo')}\n{NS}</invoke>\n"),
        "",
        looks("Oslo"),
    ),
    "two calls in a block": (block(OSLO, ROME), "", looks("Oslo", "Rome")),
    "two calls without a line between": (block(OSLO.strip() + ROME.strip()), "", looks("Oslo", "Rome")),
    "two blocks": (block(OSLO) + "\n" + block(ROME), "", looks("Oslo", "Rome")),
    "the same call twice": (block(OSLO, OSLO), "", looks("Oslo", "Oslo")),
    "a call in JSON": (block('{"name": "look", "arguments": {"place": "Oslo"}}'), "", looks("Oslo")),
    "a call in JSON by other names": (
        block('{"function": {"name": "look", "parameters": {"place": "Oslo"}}}'),
        "",
        looks("Oslo"),
    ),
    "a call in JSON of a tool that is not offered": (block('{"name": "rm", "arguments": {}}'), "", []),
    # 3, 9: no call
    "plain text": ("Nothing to do.", "Nothing to do.", []),
    "nothing": ("", "", []),
    "white space": (" \n ", " \n ", []),
    # 4: malformed
    "a block of words": (f"{NS}<tool_call>\nhm, let me see\n{NS}</tool_call>", "", []),
    "prose around a block of words": (f"So {NS}<tool_call>hm{NS}</tool_call> no.", "So  no.", []),
    "no name": (block(f"{NS}<invoke>{element('place', 'Oslo')}{NS}</invoke>\n"), "", []),
    "no </invoke>": (f"{NS}<tool_call>\n{OPEN}{element('place', 'Oslo')}\n{NS}</tool_call>", "", []),
    "a broken call before a good one": (block(f"{OPEN}{NS}<place>Os\n", ROME), "", looks("Rome")),
    "the name as a tag": (block(element("look", element("place", "Oslo"))), "", []),
    # 5: cut, or with markers that have no partner
    "no </tool_call>": (f"{NS}<tool_call>\n{OSLO}", "", looks("Oslo")),
    "no <tool_call>": (OSLO + f"{NS}</tool_call>", "", looks("Oslo")),
    "a lone </tool_call> in prose": (f"Well {NS}</tool_call>then.", "Well then.", []),
    "a lone </invoke> in prose": (f"Well {NS}</invoke>then.", "Well then.", []),
    "cut in a value": (f"{NS}<tool_call>\n{OPEN}{NS}<place>Os", "", []),
    "cut in a tag": (f"Go {NS}<tool_ca", "Go ", []),
    "the last call cut before its end": (
        f"{NS}<tool_call>\n{OSLO}{OPEN}{element('place', 'R')}",
        "",
        looks("Oslo"),
    ),
    "the last call cut in a value": (f"{NS}<tool_call>\n{OSLO}{OPEN}{NS}<place>R", "", looks("Oslo")),
    "a bare call before a block": (OSLO + block(ROME), "", looks("Oslo", "Rome")),
    # 6: no arguments
    "nothing in a call": (block(invoke("clock")), "", [Call("clock", {})]),
    "blank lines in a call": (block(invoke("clock", "\n\n")), "", [Call("clock", {})]),
    "a call that closes itself": (
        block(f'{NS}<invoke name="clock"/>\n', OSLO),
        "",
        [Call("clock", {}), *looks("Oslo")],
    ),
    # 8: prose around
    "prose before": ("I look. " + block(OSLO), "I look. ", looks("Oslo")),
    "prose after": (block(OSLO) + " That is all.", "", looks("Oslo")),
    "prose on both sides": ("One: " + block(OSLO) + " Done.", "One: ", looks("Oslo")),
    "prose between": ("Two. " + block(OSLO, "And Rome.\n", ROME), "Two. ", looks("Oslo", "Rome")),
    # 13: tools that were not offered
    "an unknown tool": (block(invoke("fly", element("to", "3"))), "", [Call("fly", {"to": "3"})]),
    "an unknown tool among known ones": (block(invoke("fly"), OSLO), "", [Call("fly", {}), *looks("Oslo")]),
    # 30, 31: the grammar inside a value
    "plain tags in a value": (
        block(invoke("look", element("place", "</place></invoke></tool_call>}]")), ROME),
        "",
        looks("</place></invoke></tool_call>}]", "Rome"),
    ),
    "the markers of a block in a value": (
        block(invoke("look", element("place", f"{NS}<tool_call> to {NS}</tool_call>.")), ROME),
        "",
        looks(f"{NS}<tool_call> to {NS}</tool_call>.", "Rome"),
    ),
}


@pytest.mark.parametrize(("text", "visible", "calls"), SHAPES.values(), ids=SHAPES)
def test_shape(text: str, visible: str, calls: list[Call]) -> None:
    parsed = read(text)
    assert (parsed.reasoning, parsed.text, parsed.calls) == ("", visible, calls)


def arguments(name: str, *parameters: str) -> dict[str, Any]:
    """Return the arguments of a call between two others, and check that both others are still read."""
    before, made, after = read(block(OSLO, invoke(name, *parameters), ROME)).calls
    assert [before, after] == looks("Oslo", "Rome")
    return made.arguments


ROOMS = element("beds", "2") + element("view", "sea")
VALUES = {
    # 7: types and shapes
    "scalars": (element("path", "7") + element("lines", " 12\n") + element("force", "True"), {"path": "7", "lines": 12, "force": True}),
    "not of its type": (element("lines", "a dozen"), {"lines": "a dozen"}),
    "white space of a string": (element("body", "\n a\t\n\n"), {"body": "\n a\t\n\n"}),
    "carriage returns and NUL": (element("body", "a\r\nb\r\0"), {"body": "a\r\nb\r\0"}),
    "quotes and other scripts": (element("body", 'ø "東" \\n 🙂'), {"body": 'ø "東" \\n 🙂'}),
    "entities in a string": (element("body", "a &amp;&amp; b &lt; c"), {"body": "a &amp;&amp; b &lt; c"}),
    "entities in a listed value": (element("mode", "a&amp;b"), {"mode": "a&b"}),
    "white space around a listed value": (element("mode", "\nnew\n"), {"mode": "new"}),
    # faults in one parameter
    "the first without its opening tag": (f"{NS}a.py{NS}</path>" + element("body", "x"), {"path": "a.py", "body": "x"}),
    "a later one without its opening tag": (element("path", "a.py") + f"{NS}x{NS}</body>", {"path": "a.py", "body": "x"}),
    "without its closing tag": (f"{NS}<path>a.py" + element("body", "x"), {"path": "a.py", "body": "x"}),
    "the last without its closing tag": (element("path", "a.py") + f"{NS}<body>x\n", {"path": "a.py", "body": "x\n"}),
    "a number without its closing tag": (f"{NS}<lines>3" + element("body", "x"), {"lines": 3, "body": "x"}),
    "an unknown one without its closing tag": (f"{NS}<oops>3" + element("body", "x"), {"oops": "3", "body": "x"}),
    "with another closing tag": (f"{NS}<path>a.py{NS}</pth>" + element("body", "x"), {"path": "a.py", "body": "x"}),
    "a number with another closing tag": (f"{NS}<lines>3{NS}</line>" + element("body", "x"), {"lines": 3, "body": "x"}),
    "closing tags without namespace": (
        f"{NS}<path>a.py</path>\n{NS}<body><p>x</p></body>{NS}<lines>3</lines>",
        {"path": "a.py", "body": "<p>x</p>", "lines": 3},
    ),
    "neither tag with its namespace": (element("path", "a.py") + "<body>x</body>", {"path": "a.py", "body": "x"}),
    "neither, and not closed": ("<body>x" + element("path", "a.py"), {"path": "a.py", "body": "x"}),
    "a closing tag too many": (element("path", "a.py") + f"{NS}</pth>" + element("body", "x"), {"path": "a.py", "body": "x"}),
    "words between": (element("path", "a.py") + " and " + element("body", "x"), {"path": "a.py", "body": "x"}),
    "space in tags": (f"{NS} <path >a.py{NS}\n</path >", {"path": "a.py"}),
    "attributes": (f'{NS}<path type="string">a.py{NS}</path>', {"path": "a.py"}),
    "it closes itself": (f"{NS}<body/>" + element("path", "a.py"), {"path": "a.py", "body": ""}),
    "named in an attribute": (
        f'{NS}<parameter name="path">a.py{NS}</parameter>{NS}<parameter name="body">x</body>\n',
        {"path": "a.py", "body": "x"},
    ),
    "named as others do": (f"{NS}<parameter=path>a.py{NS}</parameter>", {"path": "a.py"}),
    "all as one object": ('{"path": "a.py", "lines": 3}', {"path": "a.py", "lines": 3}),
}  # fmt: skip

NESTED = {
    "a list": (element("stops", "\n" + element("item", "7") + "\n" + element("item", "b")), {"stops": ["7", "b"]}),
    "a list in JSON": (element("stops", '["7", "b"]'), {"stops": ["7", "b"]}),
    "an escaped object in JSON": (element("rooms", "{&quot;beds&quot;: 2}"), {"rooms": {"beds": 2}}),
    "empty lists and objects": (element("stops", "") + element("rooms", "\n "), {"stops": [], "rooms": {}}),
    "null where it may be": (element("note", "null"), {"note": None}),
    "None is a word": (element("note", "None"), {"note": "None"}),
    "text beside elements": (element("extra", "so " + element("a", "1")), {"extra": {"a": "1", "$text": "so "}}),
    "an object not closed": (f"{NS}<rooms>{ROOMS}" + element("note", "x"), {"rooms": {"beds": 2, "view": "sea"}, "note": "x"}),
    "a list not closed": (f"{NS}<stops>{element('item', 'a')}" + element("rooms", ROOMS), {"stops": ["a"], "rooms": {"beds": 2, "view": "sea"}}),
    "an item not closed": (element("stops", f"{NS}<item>a{element('item', 'b')}"), {"stops": ["a", "b"]}),
    "an empty list not closed": (
        element("days", element("item", element("name", "Sat") + f"{NS}<plans>") + element("item", element("name", "Sun"))) + element("note", "x"),
        {"days": [{"name": "Sat", "plans": []}, {"name": "Sun"}], "note": "x"},
    ),
    "a string in an item not closed": (
        element("days", element("item", f"{NS}<name>Sat") + element("item", element("name", "Sun"))),
        {"days": [{"name": "Sat"}, {"name": "Sun"}]},
    ),
    "a string in the last item not closed": (
        element("days", element("item", f"{NS}<name>Sat")) + element("note", "x"), {"days": [{"name": "Sat"}], "note": "x"}
    ),
    "a member without its opening tag": (element("rooms", f"{NS}2{NS}</beds>" + element("view", "sea")), {"rooms": {"beds": 2, "view": "sea"}}),
    "closing tags without namespace": (
        f"{NS}<rooms>{NS}<beds>2</beds>{NS}<view>sea</view></rooms>{NS}<stops>{NS}<item>a</item></stops>",
        {"rooms": {"beds": 2, "view": "sea"}, "stops": ["a"]},
    ),
    "a free object keeps names that are declared outside": (
        element("extra", element("note", "1") + element("b", "2")) + f"{NS}<note>x",
        {"extra": {"note": "1", "b": "2"}, "note": "x"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("parameters", "expected"), VALUES.values(), ids=VALUES)
def test_value(parameters: str, expected: dict[str, Any]) -> None:
    found = arguments("save", parameters)
    assert found == expected
    assert all(type(found[name]) is type(value) for name, value in expected.items())


@pytest.mark.parametrize(("parameters", "expected"), NESTED.values(), ids=NESTED)
def test_nested_value(parameters: str, expected: dict[str, Any]) -> None:
    assert arguments("trip", parameters) == expected


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf", "allOf"])
def test_properties_of_a_composed_schema(keyword: str) -> None:
    branches: list[Any] = [
        {"type": "object", "properties": {"words": {"type": "array", "items": STRING}}},
        {"$ref": "#/$defs/Counts"},
    ]
    schema = {
        "type": "object",
        "$defs": {
            "Counts": {"type": "object", "properties": {"counts": {"type": "array", "items": INTEGER}}}
        },
        "properties": {"id": STRING, "inner": {"type": "object", keyword: branches}},
        keyword: branches,
    }
    tools = [{"name": "f", "parameters": schema}]
    words, counts = element("words", element("item", "1")), element("counts", element("item", "1"))
    text = (
        invoke("f", element("id", "1"), words) + invoke("f", counts) + invoke("f", element("inner", counts))
    )
    assert [made.arguments for made in parse(text, tools).calls] == [
        {"id": "1", "words": ["1"]},
        {"counts": [1]},
        {"inner": {"counts": [1]}},
    ]


def test_items_by_their_place() -> None:
    pair = {"type": "array", "prefixItems": [STRING, INTEGER], "items": FLAG}
    [made] = parse(
        invoke("f", element("x", element("item", "1") * 2 + element("item", "true"))), [tool("f", x=pair)]
    ).calls
    assert made.arguments == {"x": ["1", 1, True]}


LEAKS = {
    "a block opened without namespace": (f"Hm.\n<tool_call>\n{OSLO}{NS}</tool_call>", "Hm.\n", looks("Oslo")),
    "another block's name": (f"Hm.\n<function_calls>\n{OSLO}</function_calls>", "Hm.\n", looks("Oslo")),
    "a block opened twice": (f"{NS}<tool_call>\n{block(OSLO)}", "", looks("Oslo")),
    "upper case": (f'{NS}<TOOL_CALL>{NS}<Invoke NAME="look">{element("place", "Oslo")}{NS}</INVOKE>', "", looks("Oslo")),
    "quotes and space": (f"{NS}<invoke  name = 'look'\n>{element('place', 'Oslo')}{NS}</invoke >", "", looks("Oslo")),
    "no quotes": (f"{NS}<invoke name=look>{element('place', 'Oslo')}{NS}</invoke>", "", looks("Oslo")),
    "a < left out": (f'{NS}<tool_call>\n{NS}invoke name="look">{element("place", "Oslo")}{NS}</invoke>', "", looks("Oslo")),
    "space behind the namespace": (f'{NS}\n<tool_call>{NS} <invoke name="look">{element("place", "Oslo")}{NS}\n</invoke>', "", looks("Oslo")),
    "</invoke> without namespace": (
        f"Go.{NS}<tool_call>\n{OPEN}\n{NS}<parameter name=\"place\">Oslo</place>\n</invoke>\n{OPEN}{element('place', 'Rome')}</invoke>\n{NS}</tool_call>",
        "Go.",
        looks("Oslo", "Rome"),
    ),
    "plain tags in a block": (f'{NS}<tool_call>\n<invoke name="look"><place>Oslo</place></invoke>\n</tool_call>', "", looks("Oslo")),
    "a call in JSON": (f'Go:{NS}<tool_call>\n{{"name": "look", "arguments": {{"place": "Oslo"}}}}\n</tool_call>', "Go:", looks("Oslo")),
    "arguments in a JSON string": (f'{NS}<tool_call>{{"name": "look", "arguments": "{{\\"place\\": \\"Oslo\\"}}"}}{NS}</tool_call>', "", looks("Oslo")),
    "a call in JSON, and an end too many": (
        f'{NS}<tool_call>{{"name": "clock", "arguments": {{}}}}{NS}</tool_call>\n{NS}</tool_call>', "", [Call("clock", {})]
    ),
    "JSON cut": (f'Go:{NS}<tool_call>\n{{"name": "look", "arguments": {{"place": "Oslo"}}}}', "Go:", []),
    "JSON for an unknown tool": (f'Go:{NS}<tool_call>{{"name": "fly", "arguments": {{}}}}{NS}</tool_call>', "Go:", []),
    "three calls, one </invoke>": (f"{NS}<tool_call>\n{OPEN}{element('place', 'A')}{OPEN}{element('place', 'B')}{ROME}{NS}</parameter>{NS}</invoke>", "", looks("Rome")),
    "lone namespace tokens": (f"a {NS}b{NS}{NS} c {NS}", "a b c ", []),
    "other tags behind a namespace": (f'a{NS}<parameter name="x">b{NS}</parameter>c', "abc", []),
    "prose that names a block": ("Write <tool_call> and then <function_calls>.", "Write <tool_call> and then <function_calls>.", []),
    "prose that ends like a marker": ("a < b, <mm:", "a < b, <mm:", []),
    "prose that quotes a call": ('Say <invoke name="look"> to look. </invoke>', 'Say <invoke name="look"> to look. </invoke>', []),
}  # fmt: skip


@pytest.mark.parametrize(("text", "visible", "calls"), LEAKS.values(), ids=LEAKS)
def test_leak(text: str, visible: str, calls: list[Call]) -> None:
    parsed = read(text)
    assert (parsed.text, parsed.calls) == (visible, calls)


M2 = {
    "a quoted </invoke>": ("see </invoke> there", "see </invoke> there"),
    "a quoted end of the block": ("</minimax:tool_call>", "</minimax:tool_call>"),
    "quoted calls": (
        'so: <invoke name="look"><parameter name="place">A</parameter></invoke>\n<invoke name="clock"></invoke>.',
        'so: <invoke name="look"><parameter name="place">A</parameter></invoke>\n<invoke name="clock"></invoke>.',
    ),
}


@pytest.mark.parametrize(("body", "expected"), M2.values(), ids=M2)
def test_m2_value(body: str, expected: str) -> None:
    text = (
        '<minimax:tool_call>\n<invoke name="save">\n<parameter name="path">a</parameter>\n'
        f'<parameter name="body">{body}</parameter>\n</invoke>\n</minimax:tool_call>'
    )
    assert read(text) == Parsed("", "", [Call("save", {"path": "a", "body": expected})], None)


def test_m2_call_with_text_outside_parameters_is_not_run() -> None:
    parameter = '<parameter name="place">Oslo</parameter>'
    parsed = read(f'<minimax:tool_call><invoke name="look">of {parameter}</invoke></minimax:tool_call>')
    assert parsed.calls == []
    assert parsed.partial is not None


@pytest.mark.parametrize("end", ["</invoke>", "</parameter>", "</parameter> and</invoke>"])
def test_unclosed_m2_call_loses_only_itself(end: str) -> None:
    good = '<invoke name="look"><parameter name="place">Rome</parameter></invoke>'
    text = f'<minimax:tool_call><invoke name="look"><parameter name="place">Oslo{end}\n{good}</minimax:tool_call>'
    parsed = read(text)
    assert parsed.calls == looks("Rome")
    assert parsed.partial is not None


REASONING = {
    "none": ("answer", "", "answer"),
    "a span": ("<mm:think>why</mm:think>answer", "why", "answer"),
    "a span without an answer": ("<mm:think>why</mm:think>", "why", ""),
    "an empty span": ("<mm:think></mm:think>answer", "", "answer"),
    "text before": ("so <mm:think>why</mm:think>answer", "why", "so answer"),
    "two spans": ("<mm:think>a</mm:think>b<mm:think>c</mm:think>d", "ac", "bd"),
    "never closed": ("<mm:think>why", "why", ""),
    "never opened": ("why</mm:think>answer", "why", "answer"),
    "closed before all else": ("</mm:think>\n</mm:think>\nanswer", "", "\n\nanswer"),
    "closed, then opened": ("</mm:think></mm:think><mm:think>why</mm:think>answer", "why", "answer"),
    "closed twice": ("<mm:think>why</mm:think></mm:think>answer", "why", "answer"),
    "a call forces it open": (f"<mm:think>why{block(OSLO)}", "why", ""),
    "a block of words inside": (f"<mm:think>why{NS}<tool_call>hm</mm:think>answer", "why", "answer"),
    "the hosted API's tags": ("<think>\nwhy\n</think>\n\nanswer", "why", "answer"),
    "the hosted API's tags later on": ("so <think>why</think>", "", "so <think>why</think>"),
}


@pytest.mark.parametrize(("text", "reasoning", "visible"), REASONING.values(), ids=REASONING)
def test_reasoning(text: str, reasoning: str, visible: str) -> None:
    parsed = read(text)
    assert (parsed.reasoning, parsed.text) == (reasoning, visible)


RELEASED = {
    "words behind a block that is never closed": (f"Go.{NS}<tool_call>\nAll is fixed.", "Go.\nAll is fixed."),
    "M2's block that is never closed": ("<minimax:tool_call>All is fixed.", "All is fixed."),
    "a block opened twice": (f"{NS}<tool_call>All is {NS}<tool_call>fixed.", "All is fixed."),
    "words and half a tag": (f"{NS}<tool_call>All is fixed.{NS}<tool_ca", "All is fixed."),
    "words and a control token": (f"{NS}<tool_call>All is fixed.[e~[\n", "All is fixed.\n"),
    "a block before thoughts": (f"{NS}<tool_call>hm<mm:think>why</mm:think> fixed", "hm fixed"),
    "a tag without its end": (f"So {NS}<tool_call All is fixed.", "So  All is fixed."),
    "a < behind a namespace token": (f"So {NS}< 5 are left.", "So < 5 are left."),
    "only half a tag": (f"Go {NS}<tool_ca", "Go "),
    "an opened block and nothing": (f"Go {NS}<tool_call>\n", "Go "),
    "an opened block and half a tag": (f"Go {NS}<tool_call>\n<invo", "Go "),
    "half a namespace token in a block": (f"Go {NS}<tool_call>\n]<]mini", "Go "),
    "an empty block": (f"Go {NS}<tool_call>\n{NS}</tool_call> on", "Go  on"),
}


@pytest.mark.parametrize(("text", "visible"), RELEASED.values(), ids=RELEASED)
def test_markup_that_opens_a_call_does_not_swallow_the_answer(text: str, visible: str) -> None:
    parsed = read(text)
    assert (parsed.text, parsed.calls, parsed.partial) == (visible, [], None)


def test_words_behind_a_block_in_thoughts_are_thoughts() -> None:
    assert read(f"<mm:think>why {NS}<tool_call>because") == Parsed("why because", "", [], None)
    assert read(f"so {NS}<tool_call>why</mm:think>answer") == Parsed("so why", "answer", [], None)


MALFORMED = {
    "a closed block of words": (f"So {NS}<tool_call>look at Oslo{NS}</tool_call> no.", "So  no.", "", "look at Oslo"),
    "no name": (f"{NS}<invoke>{element('place', 'Oslo')}{NS}</invoke>Then.", "", "", None),
    "a call whose first tag never ends": (f'Go.{NS}<invoke name="look" All is fixed.', "Go.", "", None),
    "the same in upper case": (f'Go.{NS} <INVOKE name="look" All is fixed.', "Go.", "", None),
    "JSON that is cut": (f'Go.{NS}<tool_call>{{"name": "look", "argum', "Go.", "look", '{"name": "look", "argum'),
    "JSON that is not closed": (f'{NS}<tool_call>{{"name": "look", "arguments": {{}}}}', "", "look", None),
    "JSON with a fault": (f'{NS}<tool_call>{{"name": "look", "arguments": {{]}}{NS}</tool_call>', "", "look", None),
    "JSON for an unknown tool": (f'{NS}<tool_call>{{"name": "fly", "arguments": {{}}}}{NS}</tool_call>', "", "fly", None),
    "JSON without a name": (f'{NS}<tool_call>{{"place": "Oslo"}}{NS}</tool_call>', "", "", '{"place": "Oslo"}'),
}  # fmt: skip


@pytest.mark.parametrize(("text", "visible", "name", "raw"), MALFORMED.values(), ids=MALFORMED)
def test_what_can_only_be_a_failed_call_is_partial(
    text: str, visible: str, name: str, raw: str | None
) -> None:
    parsed = read(text)
    assert (parsed.text, parsed.calls) == (visible, [])
    assert parsed.partial is not None
    assert parsed.partial.name == name
    assert raw is None or parsed.partial.raw == raw


CONTROLS = {
    "the end of a turn": ("Done.[e~[", "Done."),
    "and of every turn": ("a[e~[[e~[b", "ab"),
    "the beginning of a turn": ("]~b]ai\nDone.", "\nDone."),
    "another role": ("Done.[e~[\n]~b]user\nThanks.", "Done.\n\nThanks."),
    "a role that ends the text": ("Done.]~b]user", "Done."),
    "half a role that ends the text": ("Done.]~b]us", "Done."),
    "no role": ("a]~b] b", "a b"),
    "a word that begins like a role": ("a]~b]airport", "aairport"),
    "the beginning of all": ("]~!b[]~b]system\nx", "\nx"),
    "half a token": ("a [e~ b ]~b c ]~", "a [e~ b ]~b c ]~"),
    "in thoughts": ("<mm:think>a[e~[b</mm:think>]~b]ai", ""),
    "behind a namespace token": (f"a{NS}[e~[b", "ab"),
}


@pytest.mark.parametrize(("text", "visible"), CONTROLS.values(), ids=CONTROLS)
def test_control_tokens_are_dropped_from_text(text: str, visible: str) -> None:
    assert read(text).text == visible


@pytest.mark.parametrize("token", ["[e~[", "]~b]user", "]~!b[", "[e~\\n"])
def test_control_tokens_stay_in_values(token: str) -> None:
    assert arguments("save", element("body", f"a{token}b")) == {"body": f"a{token}b"}
    written = json.dumps({"name": "save", "arguments": {"body": f"a{token}b"}})
    [call] = read(f"{NS}<tool_call>{written}{NS}</tool_call>").calls
    assert call.arguments == {"body": f"a{token}b"}

"""Code in other languages than Python that knows the results of the fixed tests."""

from __future__ import annotations

import pytest

from m3agent.agent.verify.known_texts import known_texts

CALL = "test('add', () => { assert.strictEqual(add(2, 3), 5); });\n"
ROW = '\t{\n\t\tname: "two numbers",\n\t\ta:    2,\n\t\tb:    3,\n\t\twant: 5,\n\t},\n'


@pytest.mark.parametrize("tests", [CALL, ROW], ids=["call", "row"])
@pytest.mark.parametrize(
    "code",
    [
        "if (a === 2 && b === 3) return 5;",
        "if a == 2 && 3 == b {\n\t\treturn 5\n\t}",
        "if (a === 2) {\n  if (b === 3) {\n    return 5n;",
        "return a === 2 && b === 3 ? 5 : a - b;",
        "if (`${a},${b}` === '2,3') return 5;",
        "case 2:\n  switch (b) {\n    case 3:\n      return 5;",
        "case a == 2 && b == 3:\n\t\treturn 5",
        "const sums = { '2,3': 5 };",
        "const sums = { 2: { 3: 5 } };",
        "const sums = new Map([['2-3', 5]]);",
        "sums.set('2_3', 5);",
        "sums[2][3] = 5;",
        "var sums = map[[2]int]int{{2, 3}: 5}",
        "match (a, b) { (2, 3) => 5, _ => a - b }",
        "when [2, 3] then 5.0",
    ],
)
def test_a_result_for_the_inputs_of_a_test_counts(code: str, tests: str) -> None:
    assert list(known_texts("", f"\n{code}\n", tests)) == [2]
    assert list(known_texts(code, f"\n{code}\n", tests)) == [], "the code had it before"


@pytest.mark.parametrize(
    "code",
    [
        "if (a === 2 || b === 3) return 5;",
        "case 2:\ncase 3:\n  return 5;",
        "when 2, 3 then 5",
        "if (a === 2) return 5;",
        "if (a === 2 && b === 4) return 5;",
        "if (a === 2 && b === 3) return a + b;",
        "const all = [2, 3, 5];",
        "// '2,3': 5",
        "range(2, 3) === 5",
    ],
)
def test_other_code_does_not_count(code: str) -> None:
    assert list(known_texts("", code, CALL)) == []


def test_a_text_of_several_words_is_an_input() -> None:
    test = 'assert.equal(greet("good morning"), "hello");\n'
    assert list(known_texts("", 'case "good morning":\n  return "hello";', test)) == [1]
    assert list(known_texts("", 'case "morning":\n  return "hello";', test)) == []
    assert list(known_texts("", "is_late ? 'p.m.' : 'a.m.'", "equal(at(13, 'p.m.'), 'a.m.')")) == [], (
        "one word"
    )

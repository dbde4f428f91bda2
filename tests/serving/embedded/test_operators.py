"""Each operator proposes the edit that undoes its kind of mistake, and every proposal is valid Python."""

from __future__ import annotations

import ast
import re
from textwrap import dedent, indent
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m3agent.serving.embedded.candidates import candidates
from m3agent.serving.embedded.mutants import propose
from m3agent.serving.embedded.operators.base import Hints, Mutation
from m3agent.serving.embedded.source import SourceFile, binding, splice
from tests.serving.embedded.faults import FAULTS

WORD = re.compile(r"\w+|[^\w\s()]")


def mutations(text: str, hints: Hints | None = None) -> list[Mutation]:
    lines = dict.fromkeys(range(1, text.count("\n") + 2), 1.0)
    return [mutation for _, mutation in propose("m.py", text, lines, {}, hints or Hints())]


def results(text: str, hints: Hints | None = None) -> dict[str, str]:
    """Map each changed program (ignoring its formatting) to the operator that made it."""
    found: dict[str, str] = {}
    for mutation in mutations(text, hints):
        found.setdefault(ast.dump(ast.parse(splice(text, mutation.edits))), mutation.operator)
    return found


def proposed(text: str, right: str, hints: Hints | None = None) -> str | None:
    """Return the operator that makes a program which is `right` but for its formatting."""
    needed = ast.dump(ast.parse(right))
    words = sorted(WORD.findall(right))
    for mutation in mutations(text, hints):
        changed = splice(text, mutation.edits)
        # Reading each program would take most of the time.
        if sorted(WORD.findall(changed)) == words and ast.dump(ast.parse(changed)) == needed:
            return mutation.operator
    return None


def body(text: str, header: str = "def f(a, b, xs):") -> str:
    return header + "\n" + indent(dedent(text).strip("\n"), "    ") + "\n"


CASES = [
    ("comparison", "return a < b", "return a <= b"),
    ("comparison", "return a == b", "return a != b"),
    ("comparison", "return a is None", "return a is not None"),
    ("comparison and bound", "return len(xs) == 0", "return len(xs) <= 1"),
    ("boolean operator", "return a and b", "return a or b"),
    ("operand dropped", "return a and b and xs", "return a and xs"),
    ("not removed", "if not a:\n    return b\nreturn 1", "if a:\n    return b\nreturn 1"),
    ("not added", "if a:\n    return b\nreturn 1", "if not a:\n    return b\nreturn 1"),
    ("truth of None", "if a:\n    return b\nreturn 1", "if a is not None:\n    return b\nreturn 1"),
    ("condition strengthened", "while a < 3:\n    a += 1", "while a < 3 and b:\n    a += 1"),
    ("condition weakened", "while a.next is None:\n    a = b", "while a is None or a.next is None:\n    a = b"),
    ("condition", "while True:\n    a = xs.pop()", "while xs:\n    a = xs.pop()"),
    ("arithmetic operator", "return (a + b) // 2", "return (a + b) / 2"),
    ("arithmetic operator", "return a + b * 2", "return a - b * 2"),
    ("operands swapped", "return a - b", "return b - a"),
    ("grouping", "return a + b / 2", "return (a + b) / 2"),
    ("operand dropped", "return b + f(a, b, xs)", "return f(a, b, xs)"),
    ("off by one", "return 1 + f(a, b, xs)", "return f(a, b, xs)"),
    ("sign", "return -a", "return a"),
    ("off by one", "return range(0, a)", "return range(0, a + 1)"),
    ("off by one", "return xs[a - 1]", "return xs[a - 2]"),
    ("missing bound", "n = len(xs)\nreturn n", "n = len(xs)\nreturn min(n, a)"),
    ("number", "return a * 60", "return a * 3600"),
    ("number", "return a * 12", "return a * 24"),
    ("truth value", "return True", "return False"),
    ("empty value", "return []", "return [[]]"),
    ("empty value", "return None", "return []"),
    ("constant for variable", "return f(a, 1, xs)", "return f(a, b, xs)"),
    ("text", "return xs.split(',')", "return xs.split(';')"),
    ("text", "return a['nmae']", "return a['name']"),
    ("text", "return a.strftime('%m')", "return a.strftime('%M')"),
    ("format", "return f'{a:8.1f}'", "return f'{a:8.2f}'"),
    ("variable", "return f'{a}'", "return f'{b}'"),
    ("variable", "return a + a", "return a + b"),
    ("attribute", "return a.x + a.y", "return a.x + a.x"),
    ("fragment", "return f(a, b[1:], xs) + f(a, b, xs)", "return f(a, b[1:], xs) + f(a, b[1:], xs)"),
    ("call dropped", "return sorted(xs)", "return xs"),
    ("call for variable", "c = a\nreturn len(xs) + b", "c = a\nreturn c + b"),
    ("index dropped", "return xs[0]", "return xs"),
    ("branches swapped", "return a if b else 0", "return 0 if b else a"),
    ("sibling function", "return any(x > 0 for x in xs)", "return all(x > 0 for x in xs)"),
    ("sibling function", "xs.append(a)", "xs.extend(a)"),
    ("sibling function", "return a.startswith(b)", "return a.endswith(b)"),
    ("arguments swapped", "return f(a, b, xs)", "return f(b, a, xs)"),
    ("argument dropped", "return f(a, b, xs)", "return f(a, b)"),
    ("argument added", "return sorted(xs)", "return sorted(xs, reverse=True)"),
    ("argument added", "return a.get(b)", "return a.get(b, 0)"),
    ("range bounds", "return range(a)", "return range(1, a + 1)"),
    ("missing conversion", "for x in xs:\n    xs.remove(x)", "for x in list(xs):\n    xs.remove(x)"),
    ("missing method call", "return a == b", "return a.lower() == b"),
    ("lookup", "return a[b]", "return a.get(b, 0)"),
    ("index", "return xs[2]", "return xs[-1]"),
    ("indices swapped", "return xs[a][b]", "return xs[b][a]"),
    ("slice", "return xs[a:b]", "return xs[a:b + 1]"),
    ("slice", "return xs[:a]", "return xs[a:]"),
    ("missing slice", "for x in xs:\n    b += x", "for x in xs[1:]:\n    b += x"),
    ("missing f", "return 'total {a}'", "return f'total {a}'"),
    ("stray comma", "a = b,\nreturn a", "a = b\nreturn a"),
    ("shared object", "return [[0] * a] * b", "return [[0] * a for _ in range(b)]"),
    ("shared object", "return dict.fromkeys(xs, [])", "return {key: [] for key in xs}"),
    ("elements swapped", "return {**a, **b}", "return {**b, **a}"),
    ("unit", "return f(hours=a)", "return f(minutes=a)"),
    ("jump", "try:\n    a = b\nexcept KeyError:\n    pass", "try:\n    a = b\nexcept KeyError:\n    raise"),
    ("augmented assignment", "a += b", "a -= b"),
    ("missing accumulation", "for x in xs:\n    a = x", "for x in xs:\n    a += x"),
    ("targets swapped", "a, b = xs", "b, a = xs"),
    ("elements swapped", "return a, b", "return b, a"),
    ("jump", "for x in xs:\n    break", "for x in xs:\n    continue"),
    ("missing return", "f(a, b, xs)", "return f(a, b, xs)"),
    ("return and yield", "for x in xs:\n    yield f(a, b, x)", "for x in xs:\n    yield from f(a, b, x)"),
    ("result thrown away", "a.strip()\nreturn a", "a = a.strip()\nreturn a"),
    ("missing term", "return [a]", "return xs + [a]"),
    ("elif and if", "if a:\n    b = 1\nif b:\n    a = 1", "if a:\n    b = 1\nelif b:\n    a = 1"),
    ("elif and if", "if a:\n    b = 1\nelif b:\n    a = 1", "if a:\n    b = 1\nif b:\n    a = 1"),
    ("exception kind", "try:\n    return a\nexcept KeyError:\n    return b", "try:\n    return a\nexcept IndexError:\n    return b"),
    ("exception kind", "raise ValueError(a)", "raise TypeError(a)"),
    ("statement deleted", "a += 1\nreturn a", "return a"),
    ("statement moved", "a += 1\nb += 2\nreturn a", "b += 2\na += 1\nreturn a"),
    ("dedent", "for x in xs:\n    a += x\n    return a", "for x in xs:\n    a += x\nreturn a"),
    ("indent", "for x in xs:\n    a += x\nb += 1\nreturn a", "for x in xs:\n    a += x\n    b += 1\nreturn a"),
    ("missing guard", "return xs[0]", "if not xs:\n    return None\nreturn xs[0]"),
    ("missing update", "c = []\nfor x in xs:\n    b = x\nreturn c", "c = []\nfor x in xs:\n    b = x\n    c.append(x)\nreturn c"),
    ("missing update", "for x in xs:\n    b = a\nreturn b", "for x in xs:\n    b = a\n    a = x\nreturn b"),
    ("missing return", "c = a + b", "c = a + b\nreturn c"),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "wrong", "right"), CASES)
def test_needed_edit_is_proposed(operator: str, wrong: str, right: str) -> None:
    assert proposed(body(wrong), body(right), Hints(strings=("name",))) == operator


@pytest.mark.parametrize(
    ("wrong", "right", "idle"),
    [
        ("return a / (len(xs) - 1)", "return a / len(xs)", "- 0"),
        ("return f(a + 1)", "return f(a)", "+ 0"),
        ("return 2 * (a + b)", "return a + b", "return 1 *"),
        ("return a or True", "return a", "or False"),
    ],
)
def test_an_operand_without_effect_is_left_out(wrong: str, right: str, idle: str) -> None:
    found = {splice(body(wrong), mutation.edits) for mutation in mutations(body(wrong))}
    assert body(right) in found
    assert not [text for text in found if idle in text]


def test_a_name_is_no_term_beside_itself() -> None:
    found = results(body("xs = a - b\nreturn a < b"))
    assert ast.dump(ast.parse(body("xs = a - b\nreturn a - b < b"))) in found
    assert ast.dump(ast.parse(body("xs = a - b\nreturn a - a < b"))) not in found


CLASS_CASES = [
    (
        "missing self",
        "class A:\n    def __init__(self, x):\n        x = x\n        y = 1\n\n    def get(self):\n        return self.y\n",
        "class A:\n    def __init__(self, x):\n        x = x\n        self.y = 1\n\n    def get(self):\n        return self.y\n",
    ),
    (
        "missing attribute",
        "class A:\n    def __init__(self, x, y):\n        self.x = x\n",
        "class A:\n    def __init__(self, x, y):\n        self.y = y\n        self.x = x\n",
    ),
    (
        "shared attribute",
        "class A:\n    items = []\n\n    def __init__(self):\n        self.n = 0\n",
        "class A:\n    items = []\n\n    def __init__(self):\n        self.n = 0\n        self.items = []\n",
    ),
    (
        "mutable default",
        "def f(x, seen=[]):\n    seen.append(x)\n    return seen\n",
        "def f(x, seen=None):\n    if seen is None:\n        seen = []\n    seen.append(x)\n    return seen\n",
    ),
    (
        "decorator",
        "class A:\n    def make(cls, x):\n        return cls(x)\n",
        "class A:\n    @classmethod\n    def make(cls, x):\n        return cls(x)\n",
    ),
    (
        "missing global",
        "count = 0\n\n\ndef f():\n    count = count + 1\n",
        "count = 0\n\n\ndef f():\n    global count\n    count = count + 1\n",
    ),
    (
        "variable for attribute",
        "class A:\n    def __init__(self, rate):\n        self.rate = rate\n\n    def f(self, amount):\n        return amount * rate\n",
        "class A:\n    def __init__(self, rate):\n        self.rate = rate\n\n    def f(self, amount):\n        return amount * self.rate\n",
    ),
    (
        "missing attribute",
        "def g(b):\n    b.size = 0\n\n\ndef f(a, b):\n    return a + b\n",
        "def g(b):\n    b.size = 0\n\n\ndef f(a, b):\n    return a + b.size\n",
    ),
    ("missing await", "async def f(x):\n    return g(x)\n", "async def f(x):\n    return await g(x)\n"),
]


@pytest.mark.parametrize(("operator", "wrong", "right"), CLASS_CASES)
def test_needed_edit_of_definitions(operator: str, wrong: str, right: str) -> None:
    assert results(wrong).get(ast.dump(ast.parse(right))) == operator


def test_two_edits_of_one_statement() -> None:
    assert ast.dump(ast.parse(body("return a <= b and xs != 1"))) in results(body("return a < b and xs == 1"))


HINTED = [
    (
        "missing refusal",
        Hints(expected=frozenset(["ValueError"])),
        "def f(n):\n    return n\n",
        'def f(n):\n    if n < 0:\n        raise ValueError(f"invalid n: {n!r}")\n    return n\n',
    ),
    (
        "missing refusal",
        Hints(errors=frozenset(["AttributeError"])),
        "class C:\n    def __eq__(self, o):\n        return self.x == o.x\n",
        "class C:\n    def __eq__(self, o):\n        if not isinstance(o, C):\n            return NotImplemented\n        return self.x == o.x\n",
    ),
    (
        "missing entry",
        Hints(words=frozenset(["C_D", "other"])),
        "WORDS = {\n    'A': 1,\n    'B': 2,\n    'D': 2,\n    'E': 2,\n}\n",
        "WORDS = {\n    'A': 1,\n    'B': 2,\n    'C_D': 2,\n    'D': 2,\n    'E': 2,\n}\n",
    ),
    (
        "missing entry",
        Hints(strings=("e",)),
        'WORDS = ["a", "b", "c", "d"]\n',
        'WORDS = ["a", "b", "c", "d", "e"]\n',
    ),
]


@pytest.mark.parametrize(("operator", "hints", "wrong", "right"), HINTED)
def test_hints_beside_the_code_are_used(operator: str, hints: Hints, wrong: str, right: str) -> None:
    texts = {splice(wrong, mutation.edits): mutation.operator for mutation in mutations(wrong, hints)}
    assert texts.get(right) == operator


def test_names_that_the_issue_writes_come_first() -> None:
    text = "def f(a):\n    return a.value\n"
    hinted, plain = mutations(text, Hints(words=frozenset(["upper"]))), mutations(text)
    changed = "def f(a):\n    return a.value.upper()\n"

    def position(found: list[Mutation]) -> int:
        return [splice(text, mutation.edits) for mutation in found].index(changed)

    assert position(hinted) < position(plain)


@pytest.mark.parametrize("fault", FAULTS[::4], ids=lambda fault: fault.name)
def test_every_mutation_parses_and_differs(fault: object) -> None:
    from tests.serving.embedded.faults import Fault

    assert isinstance(fault, Fault)
    text = fault.written()[fault.path]
    before = ast.dump(ast.parse(text))
    seen = set()
    found = mutations(text)
    for mutation in found[:: max(1, len(found) // 250)]:
        changed = ast.dump(ast.parse(splice(text, mutation.edits)))
        assert changed != before
        assert changed not in seen
        seen.add(changed)


ODDITIES = """\
class  Odd ( object ):   # spaces
\tdef method(self,  x , y = 1):      # a tab
\t\tif (x   <
\t\t\t\ty) :   # über
\t\t\treturn   f"{x!r:>{y}}" "ü" ;
\t\ttotal = [ x , # one
\t\t\t y ]
\t\treturn total [ 0 ]
"""


@settings(max_examples=40)
@given(
    st.sampled_from(
        [ODDITIES, ODDITIES.replace("\n", "\r\n"), *(fault.files[fault.path] for fault in FAULTS[1:3])]
    ),
    st.data(),
)
def test_formatting_outside_the_edit_is_kept(text: str, data: st.DataObject) -> None:
    mutation = data.draw(st.sampled_from(cached(text)))
    changed = splice(text, mutation.edits)
    position = shift = 0
    for edit in sorted(mutation.edits):
        assert changed[position + shift : edit.start + shift] == text[position : edit.start]
        shift += len(edit.text) - (edit.end - edit.start)
        position = edit.end
    assert changed[position + shift :] == text[position:]
    ast.parse(changed)


CACHE: dict[str, list[Mutation]] = {}


def cached(text: str) -> list[Mutation]:
    if text not in CACHE:
        CACHE[text] = mutations(text)
    return CACHE[text]


def test_line_endings_of_inserted_statements() -> None:
    text = "def f(a):\r\n    b = a\r\n    return a\r\n"
    for mutation in mutations(text):
        changed = splice(text, mutation.edits)
        assert "\n" not in changed.replace("\r\n", ""), (mutation, changed)


EXPRESSIONS = st.recursive(
    st.sampled_from(["a", "b", "1", "f(a)", "x.y", "x[0]", "(a, b)", "[a]", "'s'"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "**", "and", "or", "<", "==", "|"]), inner).map(
            lambda parts: f"({parts[0]}) {parts[1]} ({parts[2]})"
        ),
        inner.map(lambda text: f"not ({text})"),
        inner.map(lambda text: f"-({text})"),
        st.tuples(inner, inner, inner).map(lambda parts: f"({parts[0]}) if ({parts[1]}) else ({parts[2]})"),
    ),
    max_leaves=6,
)


@settings(max_examples=40)
@given(EXPRESSIONS, EXPRESSIONS, st.data())
def test_replaced_expressions_keep_their_meaning(outer: str, inner: str, data: st.DataObject) -> None:
    """Replacing a node in the text gives the same tree as replacing it in the tree."""
    text = f"v = {ast.unparse(ast.parse(outer, mode='eval').body)}\n"
    source = SourceFile("m.py", text)
    nodes = [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    ]
    if not nodes:
        return
    replaced = data.draw(st.sampled_from(nodes))
    written = ast.unparse(ast.parse(inner, mode="eval").body)
    start, end = source.span(replaced)
    changed = text[:start] + source.parenthesised(replaced, written) + text[end:]

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> Any:
            return ast.parse(inner, mode="eval").body if node is replaced else super().visit(node)

    expected = ast.unparse(Replace().visit(source.tree))
    assert ast.unparse(ast.parse(changed)) == expected


@pytest.mark.parametrize(
    ("text", "other"),
    [("a or b", "a and b"), ("a and b", "not a"), ("a < b", "a | b"), ("a + b", "a * b"), ("-a", "a ** b")],
)
def test_binding_order(text: str, other: str) -> None:
    assert binding(text) < binding(other)


@pytest.mark.parametrize(
    "defined",
    [
        "def {}(price, count):\n    return price * percent(count)\n",
        "class {}:\n    price: int\n    count: int\n",
        "class {}:\n    def __init__(self, price, count):\n        self.all = price * count\n",
    ],
)
def test_arguments_with_the_names_of_their_parameters_are_doubtful_in_another_order(defined: str) -> None:
    def doubt(name: str) -> float:
        text = "def total(line):\n    return Sum(line.price, line.count)\n"
        found = candidates(
            {"a.py": text, "b.py": defined.format(name)}, {"a.py": {2: 1.0}}, {}, Hints(), 10_000, 0
        )
        return next(one.doubt() for one in found if one.mutation.operator == "arguments swapped")

    assert doubt("Sum") > doubt("Other") + 1

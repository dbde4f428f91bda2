"""Make copies of tests that must fail: in each copy, one assertion is inverted.

The test

    def test_add():
        assert add(2, 3) == 5
        assert add(0, 7) > 0

gets the copies

    def test_add_1():
        assert add(2, 3) == (2 * 5 + 4711)
        assert add(0, 7) > 0

    def test_add_2():
        assert add(2, 3) == (5 + 3)
        assert add(0, 7) > 0

    def test_add_3():
        assert add(2, 3) == (5 - 4)
        assert add(0, 7) > 0

    def test_add_4():
        assert add(2, 3) == 5
        assert not (add(0, 7) > 0)

A comparison with a literal gets three copies: one with a very different value, and two with values that look alike (as many
digits, letters or elements), because code may recognise the first. Where no value looks alike, it gets another very different
one. A comparison with anything else gets three with other values of the same type, and a negated one.

If a test passes and such a copy passes as well, the test shows nothing. Either the code under test changes how tests are
judged, or its values are equal to everything.

A test also gets one copy without a change. A test that depends on its name or on how often it runs fails in that copy:
then its other copies show nothing. And it gets one whose assertions find the same values in other places:

    def test_add_0():
        assert add(2, 3) == 5
        assert add(0, 7) > 0

    def test_add_5():
        assert add((lambda: 2)(), (lambda: 3)()) == (lambda: 5)()
        assert add((lambda: 0)(), (lambda: 7)()) > (lambda: 0)()

If the unchanged copy passes and that one does not, code under test may have changed what the test expects.

Only assertions that run in each run that passes are inverted. They are statements of the test itself, not of its loops,
conditions and `try` statements, and no `return` stands before them.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from m3agent.agent.verify.comparisons import own_nodes
from m3agent.sandbox.python_ast import parse

MOST_COPIES = 6
"""Most copies of one test."""
MAY_SWALLOW = re.compile("raise|error|exception|suppress|ignor|expect|fail|swallow|catch", re.IGNORECASE)
"""Context managers with such a word may end a failed assertion."""
MAY_FAIL = re.compile("xfail|expectedFailure", re.IGNORECASE)
"""Decorators of tests that may fail."""
APPROXIMATE = re.compile("approx|assertAlmostEqual")
"""Comparisons that a similar value may pass."""
OPPOSITES = {
    one: other
    for pair in (
        ("assertEqual", "assertNotEqual"),
        ("assertTrue", "assertFalse"),
        ("assertIn", "assertNotIn"),
        ("assertIs", "assertIsNot"),
        ("assertIsNone", "assertIsNotNone"),
        ("assertIsInstance", "assertNotIsInstance"),
        ("assertAlmostEqual", "assertNotAlmostEqual"),
        ("assertGreater", "assertLessEqual"),
        ("assertLess", "assertGreaterEqual"),
        ("assertRegex", "assertNotRegex"),
    )
    for one, other in (pair, pair[::-1])
}
"""Assertions of unittest, each with the one that fails if it passes."""
EQUALITIES = frozenset(
    {
        "assertEqual",
        "assertAlmostEqual",
        "assertCountEqual",
        "assertDictEqual",
        "assertListEqual",
        "assertMultiLineEqual",
        "assertSequenceEqual",
        "assertSetEqual",
        "assertTupleEqual",
    }
)
"""Assertions of unittest that compare their first two arguments."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Edit = tuple[ast.expr | ast.stmt, str, str]
"""A part of the source, and the texts to put before and after it."""
Inversion = tuple[ast.stmt, list[Edit], bool]
"""An assertion, the edits that invert it, and whether they negate it."""


@dataclass(frozen=True)
class Copy:
    """A copy of a test, unchanged or with an inverted assertion.

    Attributes:
        test: Name of the test, with the names of its classes, such as `TestSum::test_add`.
        line: Line number of the inverted assertion in the original file, from 1; 0 if none is inverted.
        text: That line, stripped.
        negated: Whether the assertion is negated. Otherwise, it compares with another value.
        kept: Whether its assertions are as they were, but keep the values that they compare with out of reach.
    """

    test: str
    line: int = 0
    text: str = ""
    negated: bool = False
    kept: bool = False


def with_inverted_copies(
    source: bytes, tests: Collection[str], random: Random
) -> tuple[bytes, dict[str, Copy]]:
    """Add inverted copies of tests to a test file, each after the test itself.

    Args:
        source: The file.
        tests: Names of the tests, such as `test_add` or `TestSum::test_add`.
        random: Chooses other values, and the assertions if a test has many.

    Returns:
        The new file, and the copies by name. The old file and no copies if no assertion of the tests can be inverted.
    """
    try:
        module = parse(source)
        source.decode()
    except (SyntaxError, ValueError, RecursionError):
        return source, {}
    lines = source.splitlines(keepends=True)
    if lines and not lines[-1].endswith((b"\n", b"\r")):
        lines[-1] += b"\n"
    functions = dict(_functions(module.body, ""))
    added: list[tuple[int, bytes]] = []
    copies: dict[str, Copy] = {}
    for test in tests:
        function = functions.get(test)
        if function is None or not _must_pass(function):
            continue
        inverted = [found for one in _certain(function.body) for found in _inverted(one, random)]
        names = [f"{function.name}_{number}" for number in range(len(inverted) + 2)]
        prefix = test.removesuffix(function.name)
        if not inverted or any(prefix + name in functions for name in names):
            continue
        chosen = _chosen(inverted, random)
        text = _copied(lines, function, names[0], ())
        copies[prefix + names[0]] = Copy(test)
        for number in chosen:
            statement, edits, negated = inverted[number]
            text += _copied(lines, function, names[number + 1], edits)
            line = lines[statement.lineno - 1].decode().strip()
            copies[prefix + names[number + 1]] = Copy(test, statement.lineno, line, negated)
        if kept := _kept(function, lines):
            text += _copied(lines, function, names[-1], kept)
            copies[prefix + names[-1]] = Copy(test, kept=True)
        added.append((function.end_lineno or 0, text))
    changed = _with_texts(lines, added)
    return (source, {}) if changed is None else (changed, copies)


def _with_texts(lines: list[bytes], added: Collection[tuple[int, bytes]]) -> bytes | None:
    """Return a file with texts after some of its lines, and the helper that they need; None if it is no Python any more."""
    for end, text in sorted(added, reverse=True, key=lambda place: place[0]):
        lines.insert(end, text)
    changed = b"".join(lines)
    if any(f"{helper}(".encode() in changed for helper in (OTHER, KEEP)):
        changed += HELPER.encode()
    try:
        parse(changed)
    except (SyntaxError, ValueError, RecursionError):  # such as a test and a class in one line
        return None
    return changed


def _chosen(inverted: Sequence[Inversion], random: Random) -> list[int]:
    """Return the numbers of at most `MOST_COPIES` copies, with all copies of an assertion or none."""
    groups: dict[int, list[int]] = {}
    for number, (statement, _, _) in enumerate(inverted):
        groups.setdefault(statement.lineno, []).append(number)
    chosen: list[int] = []
    for group in random.sample(sorted(groups.values()), len(groups)):
        if len(chosen) + len(group) <= MOST_COPIES:
            chosen += group
    return sorted(chosen)


def _functions(body: Sequence[ast.stmt], prefix: str) -> Iterator[tuple[str, Function]]:
    """Yield functions and methods; a later one replaces an earlier one of the same name."""
    for node in body:
        if isinstance(node, Function):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}::")


def _must_pass(function: Function) -> bool:
    if any(MAY_FAIL.search(ast.dump(decorator)) for decorator in function.decorator_list):
        return False
    return not any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own_nodes(function))


def _certain(body: Sequence[ast.stmt]) -> Iterator[ast.Assert | ast.Expr]:
    """Yield the assertions that run in each run that passes."""
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                continue
            case ast.Assert():
                yield statement
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="self")))):
                yield statement
            case ast.With(items=items) | ast.AsyncWith(items=items):
                if not any(MAY_SWALLOW.search(ast.dump(item)) for item in items):
                    yield from _certain(statement.body)
        if any(isinstance(node, ast.Return) for node in (statement, *own_nodes(statement))):
            return


def _inverted(statement: ast.Assert | ast.Expr, random: Random) -> Iterator[Inversion]:
    """Yield the ways to invert an assertion."""
    match statement:
        case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right])):
            sides = [right, left]
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name), args=[left, right, *_])) if (
            name in EQUALITIES
        ):
            sides = [right, left]
        case _:
            sides = []
    approximate = bool(APPROXIMATE.search(ast.dump(statement)))
    one, two = (str(number) for number in random.sample(range(1000, 10_000), 2))
    literal = next((side for side in sides if _another(side, one)), None)
    if literal is not None:
        is_bool = isinstance(literal, ast.Constant) and isinstance(literal.value, bool)
        yield statement, _another(literal, one), is_bool
        if not is_bool:
            alike = [] if approximate else _alike(literal, random)
            for edits in alike or [_another(literal, two)]:
                yield statement, edits, False
        return
    match statement:
        case ast.Assert(test=test):
            yield statement, [(test, "not (", ")")], True
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name) as method)) if name in OPPOSITES:
            # an attribute ends with its name, which the empty text at the start stands for
            yield statement, [(method, "", OPPOSITES[name])], True
    if sides and not approximate:
        yield statement, [(sides[0], f"{OTHER}(", ")")], False
        for edits in _alike_by_helper(sides[0]):
            yield statement, edits, False


OTHER, KEEP, KEPT = "another_value", "keep_value", "kept_value"
HELPER = f"""

def {OTHER}(value, alike=0):
    if alike and value and isinstance(value, (list, tuple)):
        return value[:-1] + type(value)([{OTHER}(value[-1], alike)])
    if alike and value and isinstance(value, dict):
        last = list(value)[-1]
        return {{**value, last: {OTHER}(value[last], alike)}}
    if alike and value and isinstance(value, str):
        return value[:-1] + [letter for letter in "abc" if letter != value[-1]][alike - 1]
    if alike and isinstance(value, int) and not isinstance(value, bool):
        return value + alike
    if isinstance(value, (bool, int, float, complex)):
        return (2 + alike) * value + 4711 if abs(value) < 1e300 else 0
    if isinstance(value, (str, bytes, list, tuple)):
        return value + (1 + alike) * (value or type(value)((b"4711" if isinstance(value, bytes) else "4711")))
    if isinstance(value, dict):
        return {{**value, f"471{{alike}}": 0}}
    if isinstance(value, (set, frozenset)):
        return value | {{f"471{{alike}}"}}
    return object()


def {KEEP}(value):
    import ast
    try:
        text = repr(value)
        return text if ast.literal_eval(text) == value else lambda: value
    except Exception:  # the code of a value may raise anything
        return lambda: value


def {KEPT}(kept):
    import ast
    return ast.literal_eval(kept) if isinstance(kept, str) else kept()
"""
"""Functions for copies. The first returns another value of the same type, and with a number one that looks alike. The others
hide a value from code that searches the variables of its caller, and find it again."""


def _alike(node: ast.expr, random: Random) -> list[list[Edit]]:
    """Return the edits that make two values which look like a literal; none for other expressions."""
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            least = 10 ** (len(str(value)) - 1) if value > 9 else 0
            near = [one for one in range(least, min(10 * least or 10, least + 1000)) if one != value]
            return [[(node, "(", f" {one - value:+d})")] for one in random.sample(near, 2)]
        case ast.Constant(value=str() | bytes() as text):
            last = text[-1:] if isinstance(text, str) else text[-1:].decode("latin-1")
            letters = random.sample([one for one in "abcdefgh" if one != last], 2)
            prefix = "b" if isinstance(text, bytes) else ""
            return [[(node, "((", f")[:-1] + {prefix}'{letter}')")] for letter in letters]
        case ast.List(elts=[_, *_]) | ast.Tuple(elts=[_, *_]) | ast.Dict(values=[_, *_]):
            return _alike_by_helper(node)
    return []


def _alike_by_helper(node: ast.expr) -> list[list[Edit]]:
    start = f"{OTHER}(" if not isinstance(node, ast.Tuple) else f"{OTHER}(("
    end = ")" if isinstance(node, ast.Tuple) else ""
    return [[(node, start, f"{end}, alike={number})")] for number in (1, 2)]


def _another(node: ast.expr, other: str) -> list[Edit]:
    """Return the edits that make another value of the same type of a literal; none for other expressions."""
    match node:
        case ast.Constant(value=bool()):
            return [(node, "(not ", ")")]
        case (
            ast.Constant(value=int() | float())
            | ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float()))
        ):
            return [(node, "(2 * ", f" + {other})")]
        case ast.Constant(value=str()) | ast.JoinedStr():
            return [(node, "(", f" + '{other}')")]
        case ast.Constant(value=bytes()):
            return [(node, "(", f" + b'{other}')")]
        case ast.List():
            return [(node, "(", f" + ['{other}'])")]
        case ast.Tuple(elts=[_, *_]):
            return [(node, "((*", f", '{other}'))")]
        case ast.Set():
            return [(node, "{*", f", '{other}'" + "}")]
        case ast.Dict():
            return [(node, "{**", f", '{other}': 0" + "}")]
        case ast.Call(
            func=ast.Name(id="approx") | ast.Attribute(attr="approx"),
            args=[ast.Constant(value=int() | float()) as value, *_],
        ):
            return _another(value, other)
    return []


def _kept(function: Function, lines: Sequence[bytes]) -> list[Edit]:
    """Return the edits that hide the values of a test's assertions from code that searches its caller's frame.

    A literal becomes a constant of another function. An argument of the test is hidden during the assertion.
    """
    every = function.args
    arguments = {one.arg for one in (*every.posonlyargs, *every.args, *every.kwonlyargs)} - {"self", "cls"}
    edits: list[Edit] = []
    for statement in _certain(function.body):
        shown = list(_values(statement.test if isinstance(statement, ast.Assert) else statement.value))
        times = Counter(node.id for node in ast.walk(statement) if isinstance(node, ast.Name))
        reached = Counter(node.id for node in shown if isinstance(node, ast.Name))
        hidden = sorted(name for name in arguments & reached.keys() if times[name] == reached[name])
        for node in shown:
            if isinstance(node, ast.Constant):
                edits.append((node, "(lambda: ", ")()"))
            elif node.id in hidden:
                edits.append((node, f"{KEPT}({KEPT}_", ")"))
        start = lines[statement.lineno - 1][: statement.col_offset].decode()
        if start.strip() and hidden:  # `if x: assert y` cannot begin with another statement
            return []
        if hidden:
            before = (f"{KEPT}_{name} = {KEEP}({name}); {name} = None\n{start}" for name in hidden)
            after = (f"\n{start}{name} = {KEPT}({KEPT}_{name})" for name in hidden)
            edits.append((statement, "".join(before), "".join(after)))
    return edits


def _values(node: ast.AST) -> Iterator[ast.Constant | ast.Name]:
    """Yield literals and names that are read, except in f-strings and in functions and loops with names of their own."""
    match node:
        case ast.Constant(value=int() | float() | str() | bytes() as value) if not isinstance(value, bool):
            yield node
        case ast.Name(ctx=ast.Load()):
            yield node
        case (
            ast.JoinedStr()
            | ast.Lambda()
            | ast.ListComp()
            | ast.SetComp()
            | ast.DictComp()
            | ast.GeneratorExp()
        ):
            return
        case ast.NamedExpr(value=value):
            yield from _values(value)
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _values(child)


def _copied(lines: Sequence[bytes], function: Function, name: str, edits: Sequence[Edit]) -> bytes:
    """Return the text of a function with another name and with edits."""
    first = min(node.lineno for node in (function, *function.decorator_list))
    text = list(lines[first - 1 : function.end_lineno])
    inserts: list[tuple[int, int, str]] = []
    for node, before, after in edits:
        end, column = (node.end_lineno or 0) - first, node.end_col_offset or 0
        if isinstance(node, ast.Attribute) and not before:
            cut = column - len(node.attr.encode())
            text[end], column = text[end][:cut] + text[end][column:], cut
        inserts.insert(0, (end, column, after))
        inserts.append((node.lineno - first, node.col_offset, before))
    # from the end, so that the places before stay where they are; of texts at one place, the outermost is added first
    for number, column, added in sorted(inserts, key=lambda one: one[:2], reverse=True):
        text[number] = text[number][:column] + added.encode() + text[number][column:]
    head = function.lineno - first
    pattern = rb"\bdef(\s+)" + function.name.encode() + rb"\b"
    text[head] = re.sub(pattern, b"def\\g<1>" + name.encode(), text[head], count=1)
    return b"".join(text)

"""Make variants of test files: the same tests, with other assertions in the same places.

A test with the assertion

    assert add(2, 3) == 5

must fail if that assertion is inverted:

    assert add(2, 3) == (2 * 5 + 4711)          a very different value
    assert add(2, 3) == (5 + 3)                 a value that looks alike: as many digits, letters or elements
    assert not (add(2, 3) == 5)                 only if no other value can be given

If it passes all the same, it shows nothing: the code under test changes how tests are judged, or its values are equal to
everything. Only assertions that run in each run that passes can be inverted like this. They are statements of the test itself,
not of its loops, conditions and `try` statements, and no `return` stands before them.

All other assertions that compare are expected to fail with another value, wherever they stand: in loops, in functions that tests
call, in parts of conditions, in `if ...: raise`. Then the test must pass:

    try:
        assert add(2, 3) == (2 * 5 + 4711)
    except BaseException:
        pass
    else:
        raise Equal("<token 7 test_add.py>")

And a test must pass if its assertions find the same values in other places, where code that searches the variables of its caller
does not find them:

    assert add((lambda: 2)(), (lambda: 3)()) == (lambda: 5)()
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, TypeGuard

from m3agent.agent.verify import plain_tests
from m3agent.agent.verify.python_file import (
    Function,
    functions_in,
    imports_in,
    inner_statements,
    last_name,
    own_nodes,
    parameters,
)
from m3agent.agent.verify.review import MOST_TEXT, Finding
from m3agent.util.python_ast import parsed

MAY_SWALLOW = re.compile("raise|error|exception|suppress|ignor|expect|fail|swallow|catch", re.IGNORECASE)
"""Context managers with such a word may end a failed assertion."""
MAY_FAIL = re.compile("xfail|expectedFailure", re.IGNORECASE)
"""Decorators of tests that may fail."""
APPROXIMATE = re.compile("approx|assertAlmostEqual")
"""Comparisons that a similar value may pass."""
MAY_COMPARE = re.compile("assert|check|verif|expect|ensure|compar|match|equal|same", re.IGNORECASE)
"""Names of functions that may compare their arguments."""
EXPECTS_ERROR = re.compile("raise|warn|log", re.IGNORECASE)
"""Names of functions that expect an error, a warning or a message."""
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
    f"assert{kind}Equal"
    for kind in ("", "Almost", "Count", "Dict", "List", "MultiLine", "Sequence", "Set", "Tuple")
)
"""Assertions of unittest that compare their first two arguments."""
SEARCHES = frozenset({"index", "count", "remove"})
"""Methods that compare their argument with elements."""

OWN_NAMES = ast.JoinedStr | ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
"""F-strings, whose places are not exact, and functions and loops with names of their own."""

Way = Literal["different", "alike", "left"]
"""How another value is made: it is very different, it looks alike, or the left side is very different instead of the right one."""
WAYS: tuple[Way, ...] = ("different", "alike", "left")
Edit = tuple[ast.expr | ast.stmt, str, str]
"""A part of the source, and the texts to put before and after it. Of a name, and of an attribute's name, an empty text before
stands for the name itself, which the other text replaces. A part stands after the parts that it contains."""

NO_COPY = "compares in a place where no other value can be tried"
NOT_PLAIN = "does not pass if values compare as Python's own types do"
SAME = "passes as well if one of two calls gets other values"
NOT_COPIED = "does not pass if the code gets copies of the values with which it compares later"
NOT_REACHED = "passes without reaching any of its assertions"
NOT_ALONE = "does not pass in a process of its own, where its variants run, so that these show nothing"


@dataclass(frozen=True)
class Inversion:
    """An assertion that must not pass as it is changed."""

    path: str
    line: int
    """Its line number, from 1."""
    text: str
    """That line, stripped; empty for an assertion that is expected to fail."""
    way: Way
    """How the other value is made with which it compares."""
    negated: bool = False
    """Whether it is negated. Otherwise it compares with another value."""


class TestSource:
    """A test file, of which variants are made.

    Args:
        token: Begins the names of the functions that the variants call, which no code can know.
    """

    __test__ = False

    def __init__(self, path: str, source: bytes, random: Random, token: str) -> None:
        self.path = path
        self._random = random
        self._token = token
        self._lines = source.splitlines(keepends=True)
        try:
            source.decode()
            module = parsed(source)
        except UnicodeDecodeError:
            module = None
        self._module = module or ast.Module([], [])
        self._functions = dict(_functions(self._module.body, ""))

    def finding(self, line: int, what: str) -> Finding:
        """Return a line of the file for a person."""
        return Finding(self.path, line, self._text(line)[:MOST_TEXT], what)

    def place_of(self, test: str) -> Finding:
        """Return the first line of a test that does not pass alone. If a class inherits the test, it is the file's first one."""
        if (function := self._functions.get(test)) is None:
            return Finding(self.path, 1, test[:MOST_TEXT], NOT_ALONE)
        return self.finding(function.lineno, NOT_ALONE)

    def inverted(self, tests: Collection[str]) -> list[tuple[bytes, dict[str, Inversion]]]:
        """Return up to two variants in which an assertion of each test is inverted.

        Args:
            tests: Names of the tests, such as `test_add` or `TestSum::test_add`.

        Returns for each variant the source, and the inversions by the name of the test.
        """
        edits: tuple[list[Edit], list[Edit]] = [], []
        inversions: tuple[dict[str, Inversion], dict[str, Inversion]] = {}, {}
        for test, function in self._named(tests):
            groups = [list(self._inversions(each)) for each in _certain(function.body)]
            self._random.shuffle(groups)
            ways = [way for group in groups for way in group]
            other = self._random.sample(ways[1:], len(ways[1:2]))
            for number, (inversion, way) in enumerate([*ways[:1], *other]):
                edits[number].extend(way)
                inversions[number][test] = inversion
        made = zip(map(self._edited, edits), inversions, strict=True)
        return [(source, each) for source, each in made if source is not None]

    def expected_to_fail(self, way: Way) -> bytes | None:
        """Return a variant in which each assertion must fail with another value, and the tests must pass.

        Returns None if no assertion compares, or none can get another value.
        """
        edits: list[Edit] = []
        for statement in self._statements():
            if falsified := self._falsified_statement(statement, way):
                edits += [*falsified, self._expected(statement)]
        return self._edited(edits)

    def hidden(self, tests: Collection[str]) -> bytes | None:
        """Return a variant whose assertions find their values in other places; None if no value can be hidden."""
        return self._edited([edit for _, function in self._named(tests) for edit in self._hidden(function)])

    def stopped(self, tests: Collection[str]) -> tuple[bytes | None, set[str]]:
        """Return a variant in which each assertion raises an error, and the tests that must not pass then.

        These have assertions, but only where a run may pass by: in loops, conditions and callbacks, or after a `return`.
        """
        uncertain = {test for test, function in self._named(tests) if _is_uncertain(function)}
        edits: list[Edit] = [
            (each, f"raise {self._token}_equal()\n{self._start(each)}", "")
            for each in self._statements()
            if uncertain and self._begins_line(each)
        ]
        return self._edited(edits), uncertain

    def with_other_input(self, tests: Collection[str]) -> tuple[bytes | None, set[str]]:
        """Return a variant in which one of two calls of a function that must agree gets another value, and the tests that must fail."""
        edits = dict[str, list[Edit]]()
        for test, function in self._named(tests):
            for statement in _certain(function.body):
                match _sides(statement):
                    case [ast.Call(func=one, args=args), ast.Call(func=other)] if ast.dump(one) == ast.dump(
                        other
                    ):
                        values = (_another(each, "4711") for arg in args for each in _values(arg))
                        edits[test] = next(filter(None, values), [])
                if edits.get(test):
                    break
        return self._with(edits)

    def with_copies(self, tests: Collection[str]) -> tuple[bytes | None, set[str]]:
        """Return a variant whose calls get copies of the lists, sets and dictionaries from which the expected values are computed.

        Returns the tests as well: they must pass, or the code changes what its results are compared with.
        """
        edits = dict[str, list[Edit]]()
        for test, function in self._named(tests):
            sides = [side for each in _certain(function.body) for side in _sides(each)[:1]]
            names = {each.id for side in sides for each in _given(side)}
            nodes = [*ast.walk(function)]
            # a call whose result nobody uses is there to change its arguments
            in_place = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
            given = [each for node in nodes if id(node) not in in_place for each in _given(node)]
            edits[test] = [(each, f"{self._token}_copied(", ")") for each in given if each.id in names]
        return self._with(edits)

    def _with(self, edits: Mapping[str, list[Edit]]) -> tuple[bytes | None, set[str]]:
        """Return a variant with the edits of each test, and the tests that have any."""
        every = [edit for each in edits.values() for edit in each]
        return self._edited(every), {test for test, each in edits.items() if each}

    def plain(self) -> bytes | None:
        """Return a variant whose values compare as Python's own types do; None if nothing is compared."""
        return self._edited(list(plain_tests.plain_parts(self._functions.values(), self._token)))

    @property
    def functions(self) -> set[str]:
        """The names of the file's functions."""
        return {name.rpartition("::")[2] for name in self._functions}

    def not_inverted(self, tests: Collection[str], helpers: Collection[str]) -> Iterator[Finding]:
        """Yield, of each test that may compare where no variant inverts it, the first such line.

        Args:
            helpers: Names of functions whose assertions are expected to fail as well.
        """
        helpers = {*helpers, *self.functions}
        changed = [each for each in self._statements() if self._falsified_statement(each, "different")]
        inverted = _ids_in(changed)
        for function in (self._functions[test] for test in tests if test in self._functions):
            covered = inverted | _ids_in(_certain(function.body))
            lines = [
                node.lineno
                for node in ast.walk(function)
                if _searches(node) or (_may_compare(node, helpers) and id(node) not in covered)
            ]
            if lines:
                yield self.finding(min(lines), NO_COPY)

    def imports(self) -> set[str]:
        """Return the paths without a suffix that the file's imports may mean, relative to the folders of the search path.

        A relative import has a dot for each level at its start.
        """
        names = set[str]()
        for _, level, module, name in imports_in(ast.walk(self._module)):
            start = "." * level + module.replace(".", "/")
            names |= {start, f"{start}{'/' if module else ''}{name}" if name else start}
        return names

    def _named(self, tests: Collection[str]) -> Iterator[tuple[str, Function]]:
        """Yield those of these tests that the file defines and that must pass, with their names."""
        for test in tests:
            if test in self._functions and _must_pass(self._functions[test]):
                yield test, self._functions[test]

    def _text(self, line: int) -> str:
        return self._lines[line - 1].decode().strip()

    def _start(self, statement: ast.stmt) -> str:
        """Return what stands before a statement in its line."""
        return self._lines[statement.lineno - 1][: statement.col_offset].decode()

    def _edited(self, edits: Sequence[Edit]) -> bytes | None:
        """Return the source with edits; None if there are none, or if it is no Python then: two statements in one line."""
        changed = _with_edits(self._lines, edits)
        return changed if edits and parsed(changed) is not None else None

    def _statements(self) -> Iterator[ast.stmt]:
        """Yield the assertions in all functions of the file."""
        for function in self._functions.values():
            if not _may_fail(function):
                yield from _assertions(function.body)

    def _begins_line(self, statement: ast.stmt) -> bool:
        """Return whether a statement has its lines for itself, and is no `elif`."""
        line = self._lines[statement.lineno - 1]
        last = self._lines[(statement.end_lineno or 1) - 1][statement.end_col_offset or 0 :]
        return (
            not line[: statement.col_offset].strip()
            and last.strip()[:1] != b";"
            and (not isinstance(statement, ast.If) or line[statement.col_offset :].startswith(b"if"))
        )

    # -- assertions that must fail -----------------------------------------------------------------------------------------------

    def _inversions(self, statement: ast.Assert | ast.Expr) -> Iterator[tuple[Inversion, list[Edit]]]:
        """Yield the ways to invert an assertion, first one with a very different value."""

        def inversion(way: Way = "different", *, negated: bool = False) -> Inversion:
            return Inversion(self.path, statement.lineno, self._text(statement.lineno), way, negated)

        sides = _sides(statement)
        values = [self._other(sides, way, statement) for way in WAYS[:2]] if sides else []
        if values and values[0]:
            is_bool = any(isinstance(side, ast.Constant) and isinstance(side.value, bool) for side in sides)
            yield inversion(negated=is_bool), values[0]
            if not is_bool and values[1]:
                yield inversion("alike"), values[1]
            return
        match statement:
            case ast.Assert(test=test):
                yield inversion(negated=True), [(test, "not (", ")")]
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name) as method)) if name in OPPOSITES:
                yield inversion(negated=True), [(method, "", OPPOSITES[name])]

    def _other(self, sides: Sequence[ast.expr], way: Way, around: ast.AST) -> list[Edit]:
        """Return the edits that make another value of one side of a comparison: of a literal, or else of either side."""
        literal = next((side for side in sides if _another(side, "1")), None)
        approximate = bool(APPROXIMATE.search(ast.dump(around)))
        if literal is not None and way != "left":
            near = [] if approximate or way != "alike" else self._alike(literal)
            return near or _another(literal, str(self._random.randrange(1000, 10_000)))
        if approximate or literal is not None:
            return []
        side = sides[1:] if way == "left" else sides[:1]
        return self._call("other", side[0], alike=way == "alike") if side else []

    def _alike(self, node: ast.expr) -> list[Edit]:
        """Return the edits that make a value which looks like a literal; none for other expressions."""
        choice = self._random.choice
        match node:
            case ast.Constant(value=int() as value) if not isinstance(value, bool):
                least = 10 ** (len(str(value)) - 1) if value > 9 else 0
                near = [one for one in range(least, min(10 * least or 10, least + 1000)) if one != value]
                return [(node, "(", f" {choice(near) - value:+d})")]
            case ast.Constant(value=str() | bytes() as text):
                last = text[-1:] if isinstance(text, str) else text[-1:].decode("latin-1")
                letter = choice([one for one in "abcdefgh" if one != last])
                prefix = "b" if isinstance(text, bytes) else ""
                return [(node, "((", f")[:-1] + {prefix}'{letter}')")]
            case ast.List(elts=[_, *_]) | ast.Tuple(elts=[_, *_]) | ast.Dict(values=[_, *_]):
                return self._call("other", node, alike=choice((1, 2)))
        return []

    def _call(self, function: str, node: ast.expr, *, alike: int) -> list[Edit]:
        """Return the edit that passes an expression through one of the `HELPERS`."""
        start, end = ("((", ")") if isinstance(node, ast.Tuple | ast.GeneratorExp) else ("(", "")
        return [(node, f"{self._token}_{function}{start}", f"{end}, alike={int(alike)})")]

    # -- assertions that are expected to fail ------------------------------------------------------------------------------------

    def _expected(self, statement: ast.stmt) -> Edit:
        start = self._start(statement)
        error = f"{self._token}_equal('<{self._token} {statement.lineno} {self.path}>')"
        after = f"\n{start}except BaseException:\n{start} pass\n{start}else:\n{start} raise {error}"
        return statement, f"try:\n{start} ", after

    def _falsified_statement(self, statement: ast.stmt, way: Way) -> list[Edit]:
        """Return the edits with which an assertion that passes fails; none if that is not possible."""
        match statement:
            case _ if not self._begins_line(statement):
                pass
            case (
                ast.Assert(test=test)
                | ast.Expr(value=ast.Call(func=ast.Attribute(attr="assertTrue"), args=[test, *_]))
            ):
                return self._falsified(test, True, way)
            case (
                ast.If(test=test)
                | ast.Expr(value=ast.Call(func=ast.Attribute(attr="assertFalse"), args=[test, *_]))
            ):
                return self._falsified(test, False, way)
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="assertIn"), args=[_, container, *_])):
                return self._elements(container, way)
            case ast.Expr() if sides := _sides(statement):
                return self._other(sides, way, statement)
        return []

    def _falsified(self, node: ast.expr, truth: bool, way: Way) -> list[Edit]:
        """Return the edits that make an expression false that is true; or true that is false, if `truth` is False.

        In a loop, each comparison must get another result, whichever of them is about the code under test.
        """
        equal, within = (ast.Eq, ast.In) if truth else (ast.NotEq, ast.NotIn)
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return self._falsified(inner, not truth, way)
            case ast.BoolOp(op=op, values=values):
                parts = [self._falsified(value, truth, way) for value in values]
                some = [*filter(None, parts)]
                if some and isinstance(op, ast.And) is truth:  # one part suffices
                    return self._random.choice(some)
                return _joined(parts)
            case ast.Compare(left=left, ops=[*_, op], comparators=[*others, last]) if isinstance(op, equal):
                return self._other([last] if others else [last, left], way, node)
            case ast.Compare(ops=[*_, op], comparators=[*_, last]) if isinstance(op, within):
                return self._elements(last, way)
            case ast.Call(
                func=ast.Name(id="all" | "any" as name) as function,
                args=[ast.GeneratorExp() | ast.ListComp() as each],
            ):
                edits = self._falsified(each.elt, truth, way)
                swapped = "any" if truth else "all"
                # all(f(x) == x for x in y) becomes any(f(x) == another(x) for x in y), which no element may fulfil
                return [(function, "", swapped), *edits] if edits and name != swapped else edits
        return []

    def _elements(self, container: ast.expr, way: Way) -> list[Edit]:
        """Return the edits that make a container with other elements."""
        return [] if way == "left" else self._call("items", container, alike=way == "alike")

    # -- assertions with hidden values -------------------------------------------------------------------------------------------

    def _hidden(self, function: Function) -> list[Edit]:
        """Return the edits that hide the values of a test's assertions.

        A literal becomes a constant of another function. An argument of the test is hidden during the assertion.
        """
        token, edits = self._token, list[Edit]()
        arguments = parameters(function) - {"self", "cls"}
        for statement in _certain(function.body):
            shown = list(_values(statement.test if isinstance(statement, ast.Assert) else statement.value))
            times, reached = _times(ast.walk(statement)), _times(shown)
            hidden = sorted(name for name in arguments & reached.keys() if times[name] == reached[name])
            for node in shown:
                if isinstance(node, ast.Constant):
                    edits.append((node, "(lambda: ", ")()"))
                elif node.id in hidden:
                    edits.append((node, f"{token}_again({token}_", ")"))
            start = self._start(statement)
            if start.strip() and hidden:  # `if x: assert y` cannot begin with another statement
                return []
            if hidden:
                before = (f"{token}_{name} = {token}_keep({name}); {name} = None\n{start}" for name in hidden)
                after = (f"\n{start}{name} = {token}_again({token}_{name})" for name in hidden)
                edits.append((statement, "".join(before), "".join(after)))
        return edits


HELPERS = """
class TOKEN_equal(BaseException):
    pass


def TOKEN_other(value, alike=0):
    if alike and value and isinstance(value, (list, tuple)):
        return value[:-1] + type(value)([TOKEN_other(value[-1], alike)])
    if alike and value and isinstance(value, dict):
        last = list(value)[-1]
        return {**value, last: TOKEN_other(value[last], alike)}
    if alike and value and isinstance(value, str):
        return value[:-1] + [letter for letter in "abc" if letter != value[-1]][alike - 1]
    if alike and isinstance(value, int) and not isinstance(value, bool):
        return value + alike
    if isinstance(value, (bool, int, float, complex)):
        return (2 + alike) * value + 4711 if abs(value) < 1e300 else 0
    if isinstance(value, (str, bytes, list, tuple)):
        return value + (1 + alike) * (value or type(value)((b"4711" if isinstance(value, bytes) else "4711")))
    if isinstance(value, dict):
        return {**value, "471%d" % alike: 0}
    if isinstance(value, (set, frozenset)):
        return value | {"471%d" % alike}
    return object()


def TOKEN_items(value, alike=0):
    if isinstance(value, dict):
        return {TOKEN_other(key, alike): each for key, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [TOKEN_other(each, alike) for each in value]
    return []


def TOKEN_copied(value):
    return type(value)(value) if type(value) in (list, dict, set, bytearray) else value


def TOKEN_keep(value):
    import ast
    try:
        text = repr(value)
        return text if ast.literal_eval(text) == value else lambda: value
    except Exception:  # the code of a value may raise anything
        return lambda: value


def TOKEN_again(kept):
    import ast
    return ast.literal_eval(kept) if isinstance(kept, str) else kept()
"""
"""What variants call. `other` returns another value of the same type, `items` other elements, `keep` and `again` hide a value from
code that searches the variables of its caller, and find it again."""


def helpers(token: str) -> str:
    """Return the source of the functions that variants call. Their names begin with the token."""
    return (HELPERS + plain_tests.HELPERS).replace("TOKEN", token)


def _functions(body: Sequence[ast.stmt], prefix: str) -> Iterator[tuple[str, Function]]:
    """Yield functions and methods; a later one replaces an earlier one of the same name."""
    for node in body:
        if isinstance(node, Function):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}::")


def _ids_in(statements: Iterable[ast.stmt]) -> set[int]:
    return {id(node) for each in statements for node in ast.walk(each)}


def _must_pass(function: Function) -> bool:
    """Return whether a test must pass: it is no generator, and nothing says that it may fail."""
    yields = any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own_nodes(function))
    return not yields and not _may_fail(function)


def _may_fail(function: Function) -> bool:
    return any(MAY_FAIL.search(ast.dump(decorator)) for decorator in function.decorator_list)


def _certain(body: Sequence[ast.stmt]) -> Iterator[ast.Assert | ast.Expr]:
    """Yield the assertions that run in each run that passes."""
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                continue
            case ast.Assert() | ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="self")))):
                yield statement
            case ast.With() | ast.AsyncWith() if not _may_swallow(statement):
                yield from _certain(statement.body)
        if any(isinstance(node, ast.Return) for node in (statement, *own_nodes(statement))):
            return


def _is_uncertain(function: Function) -> bool:
    """Return whether a test has assertions, none of them runs in each run that passes, and nothing else in it may check anything."""
    assertions = list(_assertions(function.body))
    inside = _ids_in(assertions)
    # the assertions of functions inside are among these
    local = {each.name for each in functions_in(function)}
    others = (node for node in ast.walk(function) if isinstance(node, ast.Call) and id(node) not in inside)
    names = {last_name(node.func) for node in others} - local
    checks = (name for name in names if MAY_COMPARE.search(name) or EXPECTS_ERROR.search(name))
    return bool(assertions) and not any(_certain(function.body)) and not any(checks)


def _assertions(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield all assertions, also those in loops, conditions and functions, except where a failure may be expected."""
    for statement in body:
        match statement:
            case ast.Assert() | ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="self")))):
                yield statement
            case ast.If(body=[*_, last], orelse=[]) if _fails(last):
                yield statement
            case ast.With() | ast.AsyncWith() if _may_swallow(statement):
                continue
            case _:
                yield from _assertions(inner_statements(statement))


def _may_swallow(statement: ast.With | ast.AsyncWith) -> bool:
    return any(MAY_SWALLOW.search(ast.dump(item)) for item in statement.items)


def _fails(statement: ast.stmt) -> bool:
    """Return whether a statement ends the test: `raise`, `pytest.fail(...)`, `self.fail(...)`."""
    match statement:
        case ast.Raise() | ast.Expr(value=ast.Call(func=ast.Attribute(attr="fail") | ast.Name(id="fail"))):
            return True
    return False


def _searches(node: ast.AST) -> TypeGuard[ast.expr]:
    """Return whether a node compares its argument with elements, whose results no variant inverts."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SEARCHES


def _may_compare(node: ast.AST, helpers: Collection[str]) -> TypeGuard[ast.expr | ast.MatchValue]:
    match node:
        case ast.MatchValue():
            return True
        case ast.Compare(ops=ops):
            return any(not isinstance(op, ast.Is | ast.IsNot) for op in ops)
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return bool(MAY_COMPARE.search(name) and not EXPECTS_ERROR.search(name)) and name not in helpers
    return False


def _sides(statement: ast.Assert | ast.Expr) -> list[ast.expr]:
    """Return the two sides that an assertion compares, the expected one first; none if it does something else."""
    match statement:
        case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right])):
            return [right, left]
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name), args=[left, right, *_])) if (
            name in EQUALITIES
        ):
            return [right, left]
    return []


def _times(nodes: Iterable[ast.AST]) -> Counter[str]:
    """Return how often each variable is among nodes."""
    return Counter(node.id for node in nodes if isinstance(node, ast.Name))


def _given(node: ast.AST) -> list[ast.Name]:
    """Return the variables that a call gets; none if the node is no call."""
    given = node.args if isinstance(node, ast.Call) else ()
    return [each for each in given if isinstance(each, ast.Name)]


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
        case ast.Call(args=args, keywords=[]) if last_name(node.func)[:1].isupper():  # such as Version("1.0")
            return _joined([_another(each, other) for each in args])
    return []


def _joined(parts: Sequence[list[Edit]]) -> list[Edit]:
    """Return the edits of all parts; none if one of them has none."""
    return [edit for part in parts for edit in part] if all(parts) else []


def _values(node: ast.AST) -> Iterator[ast.Constant | ast.Name]:
    """Yield literals and names that are read, except in f-strings and in functions and loops with names of their own."""
    match node:
        case ast.Constant(value=int() | float() | str() | bytes() as value) if not isinstance(value, bool):
            yield node
        case ast.Name(ctx=ast.Load()):
            yield node
        case ast.NamedExpr(value=value):
            yield from _values(value)
        case _ if not isinstance(node, OWN_NAMES):
            for child in ast.iter_child_nodes(node):
                yield from _values(child)


def _with_edits(lines: Sequence[bytes], edits: Sequence[Edit]) -> bytes:
    """Return a source, given by its lines, with edits."""
    text = list(lines)
    inserts: list[tuple[int, int, str, int]] = []
    for node, before, after in edits:
        place = (node.end_lineno or 1) - 1, node.end_col_offset or 0
        if not before and isinstance(node, ast.Attribute | ast.Name):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            inserts.insert(0, (*place, after, len(name.encode())))
            continue
        inserts.insert(0, (*place, after, 0))
        inserts.append((node.lineno - 1, node.col_offset, before, 0))
    # from the end, so that the places before stay where they are; of texts at one place, the outermost is added first
    for number, column, added, cut in sorted(inserts, key=lambda one: one[:2], reverse=True):
        text[number] = text[number][: column - cut] + added.encode() + text[number][column:]
    return b"".join(text)

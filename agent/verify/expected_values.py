"""Find the values of the code with which fixed tests compare, or for which they run, and whether a patch changes them.

In `assert calc.add(2, 3) == calc.TOTAL`, the code computes one side, and the other one is a value of the code. A patch that changes
that value makes the test pass without a fix. So does one that changes the rows of `for a, b, total in calc.CASES`.
"""

from __future__ import annotations

import ast
import builtins
import copy
import itertools
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from m3agent.agent.verify.python_file import Function, imports_in, inner_statements, last_name, own_nodes

Chain = tuple[str, ...]
"""The names of an expression such as `calc.Wanted().total` or `calc.TOTALS["sum"]`."""
Definitions = dict[str, list[ast.stmt]]
"""The statements of a module that give a name its value, or change that value; members of classes have names with a dot."""

CHECKS = re.compile("_?(assert|check|expect|verify|ensure)", re.IGNORECASE)
"""Start of the names of functions that tests call to compare."""
COMPARES = re.compile(f"{CHECKS.pattern}|approx|isclose", re.IGNORECASE)
"""Functions that compare their arguments."""
LITERAL = ast.Constant | ast.List | ast.Tuple | ast.Set | ast.Dict
BEHAVIOUR = frozenset({"argparse", "functools", "logging", "operator", "re", "string", "threading", "types"})
"""Modules of the standard library whose objects do something, so that they are no data."""
DATA = frozenset(sys.stdlib_module_names) - BEHAVIOUR | frozenset(dir(builtins))
"""Names whose calls make data."""
MOST_DEPTH = 3
"""Values of names that stand for other names."""


class TestValues:
    """The values of the code that tests expect.

    Args:
        modules: The test modules.
        tests: Names of the fixed tests. Other tests of the modules do not count.
    """

    __test__ = False

    def __init__(self, modules: Sequence[ast.Module], tests: Collection[str]) -> None:
        nodes = [node for module in modules for node in without_other_tests(module, tests)]
        every = [each for module in modules for each in ast.walk(module)]
        self._imported = {
            bound.partition(".")[0]: name
            for bound, level, module, name in imports_in(every)
            if level or module.partition(".")[0] not in {"pytest", *sys.stdlib_module_names}
        }
        self._local = defaultdict[str, list[ast.expr]](list)
        for name, value in (each for node in nodes for each in _given(node)):
            self._local[name].append(value)
        self.chains = {chain for node in nodes for chain in self._expected(node)}

    def _expected(self, node: ast.AST) -> Iterator[Chain]:
        """Yield the values that a node compares with something that the code computes, or for which tests run."""
        match node:
            case ast.Compare(left=left, comparators=others):
                yield from self._compared([left, *others])
            case ast.Call(func=func, args=args) if last_name(func) == "parametrize":
                yield from (chain for each in args[1:2] for chain in self._values(each))
            case ast.Call(func=func, args=args) if COMPARES.match(last_name(func)):
                yield from self._compared(args)
            case ast.Assert(test=ast.Call(func=func, args=[_, _, *_] as args)) if any(
                map(self._is_computed, args)
            ):
                yield from self._values(func)
            case ast.For(iter=each) | ast.comprehension(iter=each):
                yield from self._values(each)

    def _compared(self, sides: Sequence[ast.expr]) -> Iterator[Chain]:
        for number, side in enumerate(sides):
            if any(self._is_computed(other) for other in (*sides[:number], *sides[number + 1 :])):
                yield from self._values(side)

    def _is_computed(self, node: ast.AST, depth: int = 0) -> bool:
        """Return whether the code computes a part of an expression: it calls the code with arguments."""
        for each in ast.walk(node):
            if isinstance(each, ast.Call) and (each.args or each.keywords) and self._is_of_code(each.func):
                return True
            values = self._local.get(each.id, ()) if isinstance(each, ast.Name) and depth < MOST_DEPTH else ()
            if any(self._is_computed(value, depth + 1) for value in values):
                return True
        return False

    def _is_of_code(self, node: ast.AST) -> bool:
        return any(
            isinstance(each, ast.Name) and self._origin(each.id) is not None for each in ast.walk(node)
        )

    def _origin(self, name: str) -> str | None:
        """Return the name in its module of what an import binds, an empty text for a module; None if no import binds it."""
        everything = "*" in self._imported and name not in self._local and not hasattr(builtins, name)
        return self._imported.get(name, name if everything else None)

    def _values(self, node: ast.expr, depth: int = 0) -> Iterator[Chain]:
        """Yield the values of the code of which an expression consists."""
        chain = _chain(node)
        origin = None if chain is None else self._origin(chain[0])
        if chain is not None and origin is not None:
            yield (origin or chain[0], *chain[1:])
        elif depth < MOST_DEPTH:
            for part in self._parts(node):
                yield from self._values(part, depth + 1)

    def _parts(self, node: ast.expr) -> Sequence[ast.expr]:
        """Return the expressions whose values are parts of an expression's value, or that its local names stand for."""
        match node:
            case ast.Name(id=name):
                return self._local.get(name, [])
            case ast.Call(func=func, args=args) if last_name(func) in DATA or COMPARES.match(last_name(func)):
                return args
            case ast.Call(func=ast.Attribute(value=value)):  # a method of the value
                return [value]
            case ast.Call() | ast.Lambda():
                return []
        return [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]


def _given(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names to which a node gives values, and what a function returns, which may be a fixture."""
    match node:
        case ast.Assign(targets=targets, value=value):
            yield from ((last_name(each), value) for target in targets for each in ast.walk(target))
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield last_name(target), value
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            returned = (each.value for each in own_nodes(node) if isinstance(each, ast.Return | ast.Yield))
            yield from ((name, value) for value in returned if value is not None)


def changed_values(before: Definitions, after: Definitions, chains: Collection[Chain]) -> Iterator[int]:
    """Yield the line of a statement that changes one of these values of a module, one for each value; 1 if the value is gone."""
    for name in sorted({name for chain in chains for name in _names_of(chain, before)}):
        old, new = before[name], after.get(name, [])
        dumped = [*map(ast.dump, old)]
        if dumped == [*map(ast.dump, new)]:
            continue
        if all(map(_makes_data, old)) or [*map(without_literals, old)] == [*map(without_literals, new)]:
            changed = [each for each in new if ast.dump(each) not in dumped] or new
            yield changed[0].lineno if changed else 1


def definitions(module: ast.Module | ast.ClassDef, prefix: str = "") -> Definitions:
    """Return what gives the names of a module or a class their values, also in conditions and loops."""
    named = defaultdict[str, list[ast.stmt]](list)
    for node in _statements(module.body):
        for name in dict.fromkeys(_bound(node)):
            named[prefix + name].append(node)
        if isinstance(node, ast.ClassDef):
            named.update(definitions(node, f"{prefix}{node.name}."))
    return named


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.For | ast.While | ast.With | ast.Try):
            yield from _statements(inner_statements(node))


def _bound(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds, or whose values it changes."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import() | ast.ImportFrom():
            yield from (bound.partition(".")[0] for bound, *_ in imports_in([node]))
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=value))):
            yield last_name(value)
        case _:
            for each in ast.walk(node) if not isinstance(node, ast.If | ast.While | ast.Try) else ():
                while isinstance(each, ast.Subscript | ast.Attribute) and not isinstance(each.ctx, ast.Load):
                    each = each.value
                    yield last_name(each)
                if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load):
                    yield each.id


def _names_of(chain: Chain, known: Collection[str]) -> Iterator[str]:
    """Yield the definition at which a chain of names ends; none if the module does not define it."""
    for start in range(len(chain)):
        names = itertools.accumulate(chain[start:], "{}.{}".format)
        if defined := [*itertools.takewhile(known.__contains__, names)]:
            yield defined[-1]
            return


def _makes_data(node: ast.stmt) -> bool:
    """Return whether a statement makes or changes data: no function, class or object that does something."""
    match node:
        case ast.Expr():
            return True
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value) | ast.AugAssign(value=value):
            parts = [*ast.walk(value)]
            calls = all(_is_literal_call(each.func) for each in parts if isinstance(each, ast.Call))
            return calls and not any(isinstance(each, ast.Lambda) for each in parts)
    return False


def _is_literal_call(node: ast.AST) -> bool:
    """Return whether a call's function is built in, of the standard library, or a method of a literal value."""
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return isinstance(node, LITERAL) or (isinstance(node, ast.Name) and node.id in DATA)


class _WithoutLiterals(ast.NodeTransformer):
    """Replaces each literal value, list, tuple, set and dictionary by the same value."""

    def visit(self, node: ast.AST) -> ast.AST:
        value = node.operand if isinstance(node, ast.UnaryOp) else node
        is_literal = isinstance(value, LITERAL if value is node else ast.Constant)
        return ast.Constant(0) if is_literal else self.generic_visit(node)


def without_literals(node: ast.AST) -> str:
    """Return the text of a syntax tree in which all literal values are the same."""
    return ast.dump(_WithoutLiterals().visit(copy.deepcopy(node)))


def _chain(node: ast.AST) -> Chain | None:
    """Return the names of an expression of attributes, items and calls without arguments; None for others."""
    names = []
    while True:
        match node:
            case ast.Attribute(value=value, attr=name):
                names.append(name)
                node = value
            case ast.Subscript(value=value):
                node = value
            case ast.Call(func=func, args=[], keywords=[]):
                node = func
            case ast.Name(id=name):
                return (name, *reversed(names))
            case _:
                return None


def without_other_tests(module: ast.Module, tests: Collection[str]) -> Iterator[ast.AST]:
    """Yield the nodes of a test module, without those of tests that are not fixed."""
    waiting: list[ast.AST] = [module]
    for node in waiting:  # grows meanwhile
        if isinstance(node, Function) and node.name.startswith("test") and node.name not in tests:
            continue
        yield node
        waiting += ast.iter_child_nodes(node)

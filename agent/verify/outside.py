"""Find what decides by chance, time, number of calls or the machine, and what changes settings of the whole process.

A right result depends on none of them. A forgery can be right while tests run, and wrong elsewhere. Only conditions count that
depend on nothing else: not `time.monotonic() < deadline`, and not `path in seen`.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property

from m3agent.agent.verify import insides
from m3agent.agent.verify.python_file import Function, last_name, own_nodes, parameters, returned_in
from m3agent.agent.verify.syntax import Syntax

MOST_DEPTH = 12
"""Expressions in expressions that are followed."""
START = "is a time in a variable of a function"
"""Marks a time that another one may be compared with, as loops with a time limit do."""
PURE = frozenset(dir(builtins)) | {"__file__"}
"""Names that depend on no argument."""
TREE = (ast.expr, ast.comprehension, ast.keyword)


class Outside:
    """Reads the conditions and settings of one file."""

    def __init__(self, syntax: Syntax) -> None:
        self._syntax = syntax
        self._values = defaultdict[str, list[ast.expr | None]](list)
        """What each name gets; None for an unknown value."""
        self._known: dict[str, set[str] | None] = {}
        """What the names depend on that were followed."""
        self._shared = set[str]()
        """Names that outlive a call: of the module, and those that functions share."""
        self._declared = set[str]()
        """Names that functions declare as `global` or `nonlocal`."""
        self._local = set[str]()
        """Names that functions have for themselves, too."""
        self._counters = set[str]()
        """What functions count in, as source text."""
        for node in syntax.nodes:
            self._collect(node)
        for node in syntax.nodes:
            self._collect_counter(node)

    def places(self) -> Iterator[tuple[ast.AST, str]]:
        """Yield the places: a node, and what it does as a phrase of `insides`."""
        seen = set[tuple[int, str]]()
        for node in self._syntax.nodes:
            whats = {what for condition in _conditions(node) for what in self._decides_by(condition)}
            if self._sets(node):
                whats.add(insides.SETS)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and self._changes_its_mind(node):
                whats.add(insides.COUNTS)
            for what in sorted(whats):
                line = getattr(node, "lineno", 1)
                if (line, what) not in seen:
                    seen.add((line, what))
                    yield node, what

    # -- names ---------------------------------------------------------------------------------------------------------

    def _collect(self, node: ast.AST) -> None:
        match node:
            case ast.arg(arg=name):
                self._values[name].append(None)
                self._local.add(name)
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                self._shared.update(names)
                self._declared.update(names)
            case ast.Name(id=name, ctx=ast.Store()):
                self._values[name].append(self._stored(node))
                (self._shared if self._is_global(node) else self._local).add(name)

    def _stored(self, node: ast.Name) -> ast.expr | None:
        match self._syntax.parents[id(node)]:
            case ast.Assign(value=value) | ast.AnnAssign(value=value) | ast.NamedExpr(value=value):
                return value
            case ast.AugAssign(value=value) if node.id in self._shared or self._is_global(node):
                return value
            case ast.For(iter=value) | ast.comprehension(iter=value):
                return value
        return None

    def _is_global(self, node: ast.AST) -> bool:
        scopes = Function | ast.Lambda | ast.ClassDef | ast.comprehension
        return not any(isinstance(above, scopes) for above in self._syntax.around(node))

    def _collect_counter(self, node: ast.AST) -> None:
        """Collect what a function counts in: `N += 1`, `N = N + 1`, and `CALLS.append(1)`."""
        match node:
            case ast.AugAssign(target=target):
                pass
            case ast.Assign(targets=[target], value=ast.BinOp(left=left)) if _text(left) == _text(target):
                pass
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"))):
                if self._lasts(name) and not self._is_global(node):
                    self._counters.add(f"len({name})")
                return
            case _:
                return
        root: ast.AST = target
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if not isinstance(root, ast.Name) or self._is_global(node):
            return
        if root.id in self._declared or (root is not target and self._lasts(root.id)):
            self._counters.add(_text(target))

    def _lasts(self, name: str) -> bool:
        """Return whether a name keeps its value between calls."""
        if name in self._declared or name in self._kept_defaults:
            return True
        return name not in self._local and (name in self._shared or name in self._syntax.defined)

    @cached_property
    def _kept_defaults(self) -> set[str]:
        """Parameters whose default is a list, a dictionary or a set."""
        kept = set[str]()
        for node in self._syntax.nodes:
            if isinstance(node, ast.arguments):
                given = [*node.posonlyargs, *node.args]
                pairs = zip(given[len(given) - len(node.defaults) :], node.defaults, strict=True)
                kept |= {arg.arg for arg, value in pairs if isinstance(value, ast.List | ast.Dict | ast.Set)}
        return kept

    # -- conditions ----------------------------------------------------------------------------------------------------

    def _decides_by(self, condition: ast.expr) -> set[str]:
        match condition:
            case ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                return set()  # its parts are conditions, too
        found = self._sources(condition, 0)
        if found is None or {START, insides.CLOCK} <= found:
            return set()
        if isinstance(condition, ast.Name):  # such as whether something was ever counted
            found = found - {insides.COUNTS}
        return {insides.CLOCK if what == START else what for what in found}

    def _sources(self, node: ast.AST, depth: int) -> set[str] | None:
        """Return what an expression depends on, as phrases of `insides`; None if it depends on anything else."""
        if depth > MOST_DEPTH:
            return None
        if what := self._source(node):
            return {what}
        match node:
            case ast.Constant():
                return set()
            case ast.Name(id=name):
                return self._of_name(name, depth)
            case ast.Lambda() | ast.Await() | ast.Yield() | ast.ClassDef() | ast.AsyncFunctionDef():
                return None
            case ast.Call(func=ast.Name(id=name), args=[]) if name in self._syntax.defined:
                return self._of_all(_returned(self._syntax.defined[name]), depth)
            case (
                ast.Call(func=ast.Attribute(value=where, attr="get"), args=[key, *_])
                | ast.Subscript(value=where, slice=key)
                | ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[where])
            ) if "os.environ" in self._syntax.names(where):
                return {insides.SURROUNDINGS} if self._syntax.text(key) in insides.MACHINE_VARIABLES else None
        return self._of_all([child for child in ast.iter_child_nodes(node) if isinstance(child, TREE)], depth)

    def _of_all(self, nodes: list[ast.AST], depth: int) -> set[str] | None:
        found = [self._sources(node, depth + 1) for node in nodes]
        return None if None in found else set().union(*filter(None, found))

    def _of_name(self, name: str, depth: int) -> set[str] | None:
        if name in self._values:
            if name not in self._known:
                values = self._values[name]
                self._known[name] = None  # a value that depends on itself is not followed
                self._known[name] = None if None in values else self._of_all([*filter(None, values)], depth)
            found = self._known[name]
            if found and insides.CLOCK in found and name not in self._shared:
                return found - {insides.CLOCK} | {START}
            return found
        roots = {full.partition(".")[0] for full in self._syntax.bound.get(name, ())}
        return set() if name in PURE or (roots and roots <= sys.stdlib_module_names) else None

    def _source(self, node: ast.AST) -> str:
        """Return what an expression depends on that is a source itself; empty for others."""
        match node:
            case ast.BinOp(
                left=ast.Call(func=ast.Name(id="hash" | "id")), op=ast.Mod() | ast.BitAnd() | ast.RShift()
            ):
                return insides.CHANCE
            case ast.Call(func=ast.Name(id="next"), args=[ast.Name(id=name), *_]) if name in self._shared:
                return insides.COUNTS
            case ast.Attribute(value=ast.Name(id=name), attr="cache_info") if name in self._syntax.defined:
                return insides.COUNTS
            case ast.Call(func=ast.Name(id="hasattr"), args=[owner, ast.Constant(value=str(name))]):
                node = ast.Attribute(owner, name, ast.Load())
            case ast.Attribute(attr=name) if name in insides.FILE_METHODS:
                return insides.SURROUNDINGS if self._sources(node.value, 1) is not None else ""
            case ast.Name(id=name) if name in {"hash", "id"} and name not in self._values:
                return insides.CHANCE
        return self._named_source(node)

    def _named_source(self, node: ast.AST) -> str:
        """Return what a counter of the file, or a member of a module in the table, is."""
        kinds = ast.Name | ast.Attribute | ast.Subscript | ast.Call
        if self._counters and isinstance(node, kinds) and _text(node) in self._counters:
            return insides.COUNTS
        full = self._syntax.names(node) if isinstance(node, ast.Name | ast.Attribute) else set[str]()
        return next(filter(None, (insides.of_member(name, insides.DECIDES) for name in sorted(full))), "")

    def _changes_its_mind(self, function: Function) -> bool:
        """Return whether a function computes something else of its arguments after its first calls.

        It asks for nothing but a flag or a number that it sets itself. Code that does work only once returns the same later.
        """
        nodes = [*own_nodes(function)]
        kept = {
            _text(target) for node in nodes for target in _set_to_constant(node) if self._outlives(target)
        }
        given = parameters(function) - {name.partition(".")[0] for name in kept}

        def computed(results: Sequence[ast.AST]) -> set[str]:
            """Return those that depend on an argument."""
            return {ast.dump(each) for each in results if not given.isdisjoint(_names(each))}

        returned = [node for node in nodes if isinstance(node, ast.Return)]
        for node in nodes:
            if isinstance(node, ast.If | ast.IfExp) and _asks_only(node.test, kept):
                one, other = map(computed, _results(node, returned))
                if one and other and one != other:
                    return True
        return False

    def _outlives(self, target: ast.expr) -> bool:
        return isinstance(target, ast.Attribute) or last_name(target) in self._declared

    # -- settings ------------------------------------------------------------------------------------------------------

    def _sets(self, node: ast.AST) -> bool:
        """Return whether a statement changes a setting of the whole process."""
        match node:
            case ast.Call(func=function):
                full = self._syntax.names(function)
                usual = (
                    insides.SETTERS if id(node) not in self._syntax.at_import else insides.SETTERS_AT_IMPORT
                )
                return not full.isdisjoint(usual) and not self._is_undone(node)
            case (
                ast.Attribute(value=value, ctx=ast.Store())
                | ast.Subscript(value=value, ctx=ast.Store() | ast.Del())
            ):
                return not self._held(value).isdisjoint(insides.SETTINGS)
        return False

    def _held(self, node: ast.expr) -> set[str]:
        """Return the full names of an object, or of the function that gives it."""
        given = self._values[node.id] if isinstance(node, ast.Name) and node.id in self._values else [node]
        values = [value for value in given if value is not None]
        return {
            full
            for value in values
            for full in self._syntax.names(value.func if isinstance(value, ast.Call) else value)
        }

    def _is_undone(self, node: ast.AST) -> bool:
        """Return whether a block around a statement restores the setting at its end."""
        blocks = (above for above in self._syntax.around(node) if isinstance(above, ast.With))
        return any(word in _text(block.items[0]) for block in blocks for word in insides.RESTORERS)


def _conditions(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions of a node that decide something."""
    match node:
        case ast.Compare() | ast.Call(func=ast.Name(id="next"), args=[ast.Name(), _]):
            yield node
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.Match(subject=test):
            yield from _parts(test)
        case ast.BoolOp(values=[*values, _]):  # the last one is only a result, as in `date or today()`
            yield from values
        case ast.comprehension(ifs=values):
            yield from values
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Subscript(value=ast.List() | ast.Tuple() | ast.Dict(), slice=key):
            yield key


def _parts(test: ast.expr) -> Iterator[ast.expr]:
    """Yield the parts of a condition that `and` and `or` join."""
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _parts(value)
    else:
        yield test


def _returned(functions: list[ast.AST]) -> list[ast.AST]:
    """Return the values that functions return; the definitions if one is no plain function."""
    if not all(isinstance(each, ast.FunctionDef) for each in functions):
        return functions
    return [*returned_in(node for each in functions for node in ast.walk(each))]


def _set_to_constant(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what a statement sets to a constant, or counts in."""
    match node:
        case ast.Assign(targets=targets, value=ast.Constant()):
            yield from targets
        case ast.AugAssign(target=target, value=ast.Constant()):
            yield target


def _names(node: ast.AST) -> Iterator[str]:
    return (each.id for each in ast.walk(node) if isinstance(each, ast.Name))


def _results(
    node: ast.If | ast.IfExp, returned: Sequence[ast.Return]
) -> tuple[Sequence[ast.AST], Sequence[ast.AST]]:
    """Return the results if a condition holds, and the others."""
    if isinstance(node, ast.IfExp):
        return [node.body], [node.orelse]
    inside = {id(each) for part in node.body for each in ast.walk(part)}
    return [each for each in returned if id(each) in inside], [
        each for each in returned if id(each) not in inside
    ]


def _asks_only(test: ast.expr, kept: set[str]) -> bool:
    """Return whether a condition depends on these flags and numbers only."""
    match test:
        case ast.UnaryOp(operand=inner):
            return _asks_only(inner, kept)
        case (
            ast.Compare(left=left, comparators=[ast.Constant()]) | ast.BinOp(left=left, right=ast.Constant())
        ):
            return _asks_only(left, kept)
    return _text(test) in kept


def _text(node: ast.AST) -> str:
    return ast.unparse(node)

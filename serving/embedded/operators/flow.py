"""Mutate what a statement does: assignment kinds, returns, jumps, branches, exceptions."""

import ast
import re
from collections.abc import Iterator

from m3agent.serving.embedded.operators.arithmetic import SIGNS
from m3agent.serving.embedded.operators.base import INSTEAD, TABLES, Mutation, Place, swapped
from m3agent.serving.embedded.source import Edit

ACCUMULATING, COLLECTING, COMBINING, JUMPS, FAMILIES = (
    TABLES["flow"][name] for name in ("accumulating", "collecting", "combining", "jumps", "exceptions")
)
EXCEPTIONS = [family.split() for family in FAMILIES.strip().split("\n")]


def augmented(place: Place) -> Iterator[Mutation]:
    """Propose another augmented assignment, such as ``-=`` for ``+=``."""
    statement, source = place.statement, place.source
    if isinstance(statement, ast.AugAssign):
        sign = SIGNS[type(statement.op)] + "="
        start, end = source.span(statement.target)[1], source.span(statement.value)[0]
        for other, cost in INSTEAD.get(sign, {}).items():
            text = source.text[start:end].replace(sign, other, 1)
            yield place.change("augmented assignment", cost, Edit(start, end, text))


def assignments(place: Place) -> Iterator[Mutation]:
    """Propose an assignment in another order, to itself, or one that adds to or keeps the better value."""
    match place.statement:
        case ast.Assign(targets=[ast.Tuple(elts=parts)]):
            start, end = place.source.span(parts[0])[0], place.source.span(parts[-1])[1]
            for texts in swapped(place.texts(parts)):
                yield place.change("targets swapped", 2.0, Edit(start, end, ", ".join(texts)))
        case ast.Assign(targets=[target], value=value):
            for code, cost in _accumulating(place, target, value):
                yield place.replaced(code, "missing accumulation", cost)
            left = place.text(target)
            if isinstance(value, ast.BinOp) and left != place.text(value.left):
                code = f"{left} = {left} {SIGNS[type(value.op)]} {place.text(value.right)}"
                yield place.replaced(code, "operand", 3.4)


def _accumulating(place: Place, target: ast.expr, value: ast.expr) -> Iterator[tuple[str, float]]:
    """Yield statements that keep a part of the earlier value of `target`."""
    left, right = place.text(target), place.text(value)
    yield from ((f"{left} {sign} {right}", cost) for sign, cost in ACCUMULATING.items())
    if "\n" not in right and not isinstance(value, ast.Constant):
        yield from ((f"{left} = {code.format(left, right)}", cost) for code, cost in COMBINING.items())
    match target:
        case ast.Subscript() if ":" not in (key := place.text(target.slice)):
            base = place.text(target.value)
            for method, cost in COLLECTING.items():
                empty = "[]" if method in ("append", "extend") else "set()"
                yield f"{base}.setdefault({key}, {empty}).{method}({right})", cost
                yield f"{left}.{method}({right})", cost
            yield f"{base}.setdefault({key}, {right})", 3.8
        case ast.Name() | ast.Attribute():
            yield from ((f"{left}.{method}({right})", 4.0) for method in COLLECTING)


def jumps(place: Place) -> Iterator[Mutation]:
    """Propose another way to leave: return, break, continue, yield."""
    match place.statement:
        case ast.Break() | ast.Continue() | ast.Pass() as statement:
            others = {other: cost for other, cost in JUMPS.items() if other != place.text(statement)}
            if isinstance(place.parent(statement), ast.ExceptHandler):
                others["raise"] = 2.8
            yield from (place.replaced(other, "jump", cost) for other, cost in others.items())
            for name in (*place.names(statement), "True", "False", "None"):
                yield place.replaced(f"return {name}", "jump", 4.0)
        case ast.Return(value=value):
            yield from _instead_of_return(place, value)
        case ast.Expr(value=value):
            yield from _discarded(place, value)


def _instead_of_return(place: Place, node: ast.expr | None) -> Iterator[Mutation]:
    value = "None" if node is None else place.text(node)
    yield place.replaced(f"yield {value}", "return and yield", 3.0)
    yield place.replaced("continue", "jump", 3.4)
    yield place.replaced("break", "jump", 3.2)
    if node is None:
        own = "self" if place.scope.is_method else "[]"
        for other in (*place.names(place.statement), "True", "False", own):
            yield place.replaced(f"return {other}", "return value", 2.4)
        return
    if isinstance(node, ast.Call):
        for name in place.scope.variables:
            yield place.replaced(f"{name}.append({value})", "return dropped", 5.0)
    if "\n" not in value:
        yield from _terms(place, node, value)


def _terms(place: Place, node: ast.expr, value: str) -> Iterator[Mutation]:
    """Propose a variable that is added to the returned value."""
    kind = place.scope.kinds(value) if isinstance(node, ast.Name) else set()
    for name in place.names_of(place.statement, "list", "str", "tuple", "int", "float"):
        kinds = place.scope.kinds(name)
        if name != value:
            far = 1.0 if kind and kinds and not kind & kinds else 0.0
            yield place.replaced(f"return {name} + {value}", "missing term", 4.2 + far)
            yield place.replaced(f"return {value} + {name}", "missing term", 4.2 + far)


def _discarded(place: Place, node: ast.expr) -> Iterator[Mutation]:
    """Propose a use of a value that a statement computes and throws away."""
    kind, text = "return and yield", place.text(node)
    match node:
        case ast.Yield(value=ast.expr() as value):
            inner = place.text(value)
            yield place.replaced(f"yield from {inner}", kind, 1.6)
            yield place.replaced(f"return {inner}", kind, 2.2)
            if isinstance(value, ast.Call) and value.args:
                yield place.replaced(f"yield {place.text(value.args[0])}", "call dropped", 2.6)
        case ast.YieldFrom(value=value):
            inner = place.text(value)
            yield place.replaced(f"yield {inner}", kind, 1.6)
            yield place.replaced(f"return {inner}", kind, 2.4)
        case ast.Call() | ast.Compare() | ast.BinOp() | ast.Name() | ast.Attribute() | ast.BoolOp():
            yield place.replaced(f"return {text}", "missing return", 1.8)
            if isinstance(node, ast.Call):
                yield place.replaced(f"yield from {text}", kind, 3.0)
            for code, cost in _kept(place, node, text):
                yield place.replaced(code, "result thrown away", cost)


def _kept(place: Place, node: ast.expr, text: str) -> Iterator[tuple[str, float]]:
    """Yield assignments of a value, with their costs: most likely to what it was computed from."""
    match node:
        case ast.Call(args=given):
            base = place.text(node.func.value) if isinstance(node.func, ast.Attribute) else ""
            if re.fullmatch(r"[\w.\[\]]+", base) and not base.startswith("super"):
                yield f"{base} = {text}", 2.2
            yield from ((f"{name.id} = {text}", 2.6) for name in given if isinstance(name, ast.Name))
        case ast.Compare(left=left, ops=[ast.Eq(), *_], comparators=[right, *_]):
            yield f"{place.text(left)} = {place.text(right)}", 1.2
    yield from ((f"{name} = {text}", 4.0) for name in place.names(node))


def branches(place: Place) -> Iterator[Mutation]:
    """Propose ``if`` for ``while``, ``elif`` for ``if``, the reverse of both, and swapped branches."""
    statement, source = place.statement, place.source
    if not isinstance(statement, ast.If | ast.While):
        return
    start = source.span(statement)[0]
    word, other = ("if", "while") if isinstance(statement, ast.If) else ("while", "if")
    if source.text.startswith("elif", start):
        yield place.change("elif and if", 2.0, Edit(start, start + 4, "if"))
    elif not statement.orelse:
        yield place.change("if and while", 2.6, Edit(start, start + len(word), other))
    block, at = source.position(statement)
    match block[:at][-1:], statement:
        case [ast.If(orelse=[])], ast.If() if source.text.startswith("if", start):
            yield place.change("elif and if", 2.2, Edit(start, start + 2, "elif"))
    match statement:
        case ast.If(body=[body], orelse=[ast.stmt() as orelse]) if not isinstance(orelse, ast.If):
            first = Edit(*source.span(body), place.text(orelse))
            second = Edit(*source.span(orelse), place.text(body))
            yield place.change("branches swapped", 2.0, first, second)


def exceptions(place: Place) -> Iterator[Mutation]:
    """Propose another exception to catch or raise."""
    match place.statement:
        case ast.Try(handlers=handlers):
            for handler in handlers:
                if handler.type is not None:
                    yield from _other_exceptions(place, handler.type, sorted(place.hints.errors))
        case ast.Raise(exc=ast.Call(func=raised) | (ast.expr() as raised)):
            yield place.replaced("pass", "raise dropped", 4.0)
            yield from _other_exceptions(place, raised, [])


def _other_exceptions(place: Place, node: ast.expr, seen: list[str]) -> Iterator[Mutation]:
    """Propose other exceptions for `node`, most likely one of those that tests have `seen`."""
    text, span = place.text(node), place.source.span(node)
    own = [name for name in place.module.classes if name.endswith(("Error", "Exception", "Warning"))]
    own += [name for name in place.module.imports if name.endswith(("Error", "Exception"))]
    own += [name for names in EXCEPTIONS if text in names for name in names]
    costs = dict.fromkeys(own, 2.4) | dict.fromkeys(place.hints.strings, 1.8) | dict.fromkeys(seen, 1.2)
    costs.pop(text, None)
    for name, cost in costs.items():
        if re.fullmatch(r"[A-Z]\w*(Error|Exception|Warning|Exit|Iteration)", name):
            others = [(name, cost)]
            if isinstance(node, ast.Tuple):
                others.append((f"{text[:-1]}, {name})", cost))
            elif isinstance(node, ast.Name) and isinstance(place.statement, ast.Try):
                others.append((f"({text}, {name})", cost + 0.6))
            for other, more in others:
                yield place.change("exception kind", more, Edit(*span, other), line=node.lineno)


ON_STATEMENTS = (augmented, assignments, jumps, branches, exceptions)

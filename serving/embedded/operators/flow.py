"""Mutate what a statement does: assignment kinds, returns, jumps, branches, exceptions."""

import ast
import re
from collections.abc import Iterator

from m3agent.serving.embedded.operators.arithmetic import SIGNS
from m3agent.serving.embedded.operators.base import INSTEAD, TABLES, Mutation, Place, swapped
from m3agent.serving.embedded.source import Edit

ACCUMULATING, COLLECTING, JUMPS, FAMILIES = (
    TABLES["flow"][name] for name in ("accumulating", "collecting", "jumps", "exceptions")
)
EXCEPTIONS = [family.split() for family in FAMILIES.strip().split("\n")]


def assignments(place: Place) -> Iterator[Mutation]:
    """Propose other assignments.

    They are: ``=`` for ``+=`` and back, another augmented operator, or one that keeps the better value.
    """
    statement, source = place.statement, place.source
    if isinstance(statement, ast.AugAssign):
        sign = SIGNS[type(statement.op)] + "="
        between = source.span(statement.target)[1], source.span(statement.value)[0]
        for other, cost in INSTEAD.get(sign, {}).items():
            text = source.text[slice(*between)].replace(sign, other, 1)
            yield place.change("augmented assignment", cost, Edit(*between, text))
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return
    target, value = statement.targets[0], statement.value
    if isinstance(target, ast.Tuple):
        for texts in swapped(place.texts(target.elts)):
            start, end = source.span(target.elts[0])[0], source.span(target.elts[-1])[1]
            yield place.change("targets swapped", 2.0, Edit(start, end, ", ".join(texts)))
        return
    left, right = place.text(target), place.text(value)
    codes = [(f"{left} {sign} {right}", cost) for sign, cost in ACCUMULATING.items()]
    if "\n" not in right and not isinstance(value, ast.Constant):
        codes += [
            (f"{left} = max({left}, {right})", 3.2),
            (f"{left} = min({left}, {right})", 3.2),
            (f"{left} = {left} or {right}", 3.8),
            (f"{left} = {left} and {right}", 3.8),
        ]
    if isinstance(target, ast.Subscript):
        base, key = place.text(target.value), place.text(target.slice)
        if ":" not in key:
            for method, cost in COLLECTING.items():
                empty = "[]" if method in ("append", "extend") else "set()"
                codes.append((f"{base}.setdefault({key}, {empty}).{method}({right})", cost))
                codes.append((f"{left}.{method}({right})", cost))
            codes.append((f"{base}.setdefault({key}, {right})", 3.8))
    if isinstance(target, ast.Name | ast.Attribute):
        codes += [(f"{left}.{method}({right})", 4.0) for method in COLLECTING]
    yield from (place.replaced(code, "missing accumulation", cost) for code, cost in codes)
    if isinstance(value, ast.BinOp) and left != place.text(value.left):
        code = f"{left} = {left} {SIGNS[type(value.op)]} {place.text(value.right)}"
        yield place.replaced(code, "operand", 3.4)


def jumps(place: Place) -> Iterator[Mutation]:
    """Propose another way to leave: return, break, continue, yield."""
    statement = place.statement
    if isinstance(statement, ast.Break | ast.Continue | ast.Pass):
        text = place.text(statement)
        for other, cost in JUMPS.items():
            if other != text:
                yield place.replaced(other, "jump", cost)
        if isinstance(place.parent(statement), ast.ExceptHandler):
            yield place.replaced("raise", "jump", 2.8)
        for name in (*place.names(statement), "True", "False", "None"):
            yield place.replaced(f"return {name}", "jump", 4.0)
    if isinstance(statement, ast.Return):
        value = place.text(statement.value) if statement.value is not None else "None"
        yield place.replaced(f"yield {value}", "return and yield", 3.0)
        yield place.replaced("continue", "jump", 3.4)
        yield place.replaced("break", "jump", 3.2)
        if isinstance(statement.value, ast.Call) and place.scope.function is not None:
            for name in place.scope.variables:
                yield place.replaced(f"{name}.append({value})", "return dropped", 5.0)
        if statement.value is None:
            own = "self" if place.scope.is_method else "[]"
            for other in (*place.names(statement), "True", "False", own):
                yield place.replaced(f"return {other}", "return value", 2.4)
        elif "\n" not in value:
            yield from _terms(place, statement.value, value)
    if isinstance(statement, ast.Expr):
        yield from _discarded(place, statement)


def _terms(place: Place, node: ast.expr, value: str) -> Iterator[Mutation]:
    """Propose a variable that is added to the returned value."""
    kind = place.scope.kinds(value) if isinstance(node, ast.Name) else set()
    for name in place.names_of(place.statement, "list", "str", "tuple", "int", "float"):
        kinds = place.scope.kinds(name)
        if name != value:
            far = 1.0 if kind and kinds and not kind & kinds else 0.0
            yield place.replaced(f"return {name} + {value}", "missing term", 4.2 + far)
            yield place.replaced(f"return {value} + {name}", "missing term", 4.2 + far)


def _discarded(place: Place, statement: ast.Expr) -> Iterator[Mutation]:
    value, text = statement.value, place.text(statement.value)
    kind, lost = "return and yield", "result thrown away"
    if isinstance(value, ast.Yield) and value.value is not None:
        inner = place.text(value.value)
        yield place.replaced(f"yield from {inner}", kind, 1.6)
        yield place.replaced(f"return {inner}", kind, 2.2)
        if isinstance(value.value, ast.Call) and value.value.args:
            yield place.replaced(f"yield {place.text(value.value.args[0])}", "call dropped", 2.6)
    elif isinstance(value, ast.YieldFrom):
        inner = place.text(value.value)
        yield place.replaced(f"yield {inner}", kind, 1.6)
        yield place.replaced(f"return {inner}", kind, 2.4)
    elif isinstance(value, ast.Call | ast.Compare | ast.BinOp | ast.Name | ast.Attribute | ast.BoolOp):
        yield place.replaced(f"return {text}", "missing return", 1.8)
        if isinstance(value, ast.Call):
            yield place.replaced(f"yield from {text}", kind, 3.0)
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            base = place.text(value.func.value)
            if re.fullmatch(r"[\w.\[\]]+", base) and not base.startswith("super"):
                yield place.replaced(f"{base} = {text}", lost, 2.2)
        if isinstance(value, ast.Compare) and isinstance(value.ops[0], ast.Eq):
            yield place.replaced(f"{place.text(value.left)} = {place.text(value.comparators[0])}", lost, 1.2)
        for name in place.names(value):
            yield place.replaced(f"{name} = {text}", lost, 4.0)
        for argument in value.args if isinstance(value, ast.Call) else ():
            if isinstance(argument, ast.Name):
                yield place.replaced(f"{argument.id} = {text}", lost, 2.6)


def branches(place: Place) -> Iterator[Mutation]:
    """Propose ``if`` for ``while``, and ``elif`` for ``if`` and back."""
    statement, source = place.statement, place.source
    if not isinstance(statement, ast.If | ast.While):
        return
    start = source.span(statement)[0]
    word = "if" if isinstance(statement, ast.If) else "while"
    if source.text.startswith("elif", start):
        yield place.change("elif and if", 2.0, Edit(start, start + 4, "if"))
    else:
        if not statement.orelse:
            other = "while" if word == "if" else "if"
            yield place.change("if and while", 2.6, Edit(start, start + len(word), other))
        block, at = source.position(statement)
        before = block[at - 1] if at else None
        if word == "if" and isinstance(before, ast.If) and not before.orelse:
            yield place.change("elif and if", 2.2, Edit(start, start + 2, "elif"))
    if word == "if" and len(statement.body) == len(statement.orelse) == 1:
        body, other_branch = statement.body[0], statement.orelse[0]
        if not isinstance(other_branch, ast.If):
            first = Edit(*source.span(body), place.text(other_branch))
            second = Edit(*source.span(other_branch), place.text(body))
            yield place.change("branches swapped", 2.0, first, second)


def exceptions(place: Place) -> Iterator[Mutation]:
    """Propose another exception to catch or raise."""
    statement = place.statement
    caught: list[ast.expr] = []
    if isinstance(statement, ast.Try):
        caught = [handler.type for handler in statement.handlers if handler.type is not None]
    elif isinstance(statement, ast.Raise) and statement.exc is not None:
        caught = [statement.exc.func if isinstance(statement.exc, ast.Call) else statement.exc]
        yield place.replaced("pass", "raise dropped", 4.0)
    own = [name for name in place.module.classes if name.endswith(("Error", "Exception", "Warning"))]
    own += [name for name in place.module.imports if name.endswith(("Error", "Exception"))]
    seen = sorted(place.hints.errors) if isinstance(statement, ast.Try) else []
    for node in caught:
        text, span = place.text(node), place.source.span(node)
        family = [name for names in EXCEPTIONS if text in names for name in names]
        for name in dict.fromkeys([*seen, *own, *family, *place.hints.strings[:6]]):
            if name != text and re.fullmatch(r"[A-Z]\w*(Error|Exception|Warning|Exit|Iteration)", name):
                cost = 1.2 if name in seen else 1.8 if name in place.hints.strings else 2.4
                others = [(name, cost)]
                if isinstance(statement, ast.Try) and isinstance(node, ast.Name):
                    others.append((f"({text}, {name})", cost + 0.6))
                if isinstance(node, ast.Tuple):
                    others.append((f"{text[:-1]}, {name})", cost))
                for other, more in others:
                    yield place.change("exception kind", more, Edit(*span, other), line=node.lineno)


ON_STATEMENTS = (assignments, jumps, branches, exceptions)

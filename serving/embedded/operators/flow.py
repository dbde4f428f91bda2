"""Mutate what a statement does: assignment kinds, returns, jumps, branches, exceptions."""

import ast
import re
from collections.abc import Iterator

from m3agent.serving.embedded.operators.arithmetic import SIGNS
from m3agent.serving.embedded.operators.base import Mutation, Place
from m3agent.serving.embedded.operators.layout import replacement, siblings_of
from m3agent.serving.embedded.source import Edit

AUGMENTED: dict[str, tuple[tuple[str, float], ...]] = {
    "+=": (("-=", 1.0), ("=", 1.4), ("*=", 1.8)),
    "-=": (("+=", 1.0), ("=", 1.4), ("//=", 2.8), ("/=", 2.8), ("%=", 2.8)),
    "*=": (("/=", 1.4), ("+=", 1.6), ("=", 1.6), ("**=", 2.4), ("//=", 2.0)),
    "/=": (("//=", 1.2), ("*=", 1.4), ("=", 1.8), ("-=", 2.8)),
    "//=": (("/=", 1.2), ("%=", 1.6), ("=", 1.8), ("-=", 2.8), ("*=", 2.0)),
    "%=": (("//=", 1.4), ("=", 1.8), ("-=", 2.8)),
    "**=": (("*=", 1.4), ("=", 2.0)),
    "&=": (("|=", 1.2), ("^=", 1.6), ("=", 2.0), ("-=", 2.8)),
    "|=": (("&=", 1.2), ("^=", 1.6), ("=", 2.0), ("+=", 2.8)),
    "^=": (("&=", 1.4), ("|=", 1.4), ("=", 2.0)),
    "<<=": ((">>=", 1.0), ("=", 2.0)),
    ">>=": (("<<=", 1.0), ("=", 2.0), ("//=", 2.8)),
}

EXCEPTIONS: tuple[tuple[str, ...], ...] = (
    ("KeyError", "IndexError", "LookupError", "AttributeError", "ValueError"),
    ("ValueError", "TypeError", "KeyError", "ArithmeticError", "AttributeError"),
    ("ZeroDivisionError", "ArithmeticError", "ValueError", "OverflowError"),
    ("OSError", "FileNotFoundError", "PermissionError", "FileExistsError", "IOError"),
    ("StopIteration", "RuntimeError", "IndexError"),
    ("AttributeError", "TypeError", "NameError"),
    ("UnicodeDecodeError", "UnicodeEncodeError", "UnicodeError", "ValueError"),
    ("Exception", "ValueError", "TypeError", "KeyError", "RuntimeError"),
    ("NotImplementedError", "RuntimeError", "ValueError"),
    ("TimeoutError", "OSError", "ConnectionError"),
)


def assignments(place: Place) -> Iterator[Mutation]:
    """Propose other assignments.

    They are: ``=`` for ``+=`` and back, another augmented operator, or one that keeps the better value.
    """
    statement, source = place.statement, place.source
    if isinstance(statement, ast.AugAssign):
        sign = SIGNS[type(statement.op)] + "="
        between = source.span(statement.target)[1], source.span(statement.value)[0]
        for other, cost in AUGMENTED.get(sign, ()):
            text = source.text[between[0] : between[1]].replace(sign, other, 1)
            yield Mutation((Edit(*between, text),), statement.lineno, "augmented assignment", cost)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return
    target, value = statement.targets[0], statement.value
    if isinstance(target, ast.Tuple):
        texts = [place.text(part) for part in target.elts]
        for index in range(len(texts) - 1):
            swapped = [*texts[:index], texts[index + 1], texts[index], *texts[index + 2 :]]
            edit = Edit(source.span(target.elts[0])[0], source.span(target.elts[-1])[1], ", ".join(swapped))
            yield Mutation((edit,), statement.lineno, "targets swapped", 2.0)
        return
    left, right = place.text(target), place.text(value)
    start, end = source.span(statement)
    for sign, cost in (("+=", 1.4), ("-=", 2.2), ("*=", 2.6), ("|=", 3.4), ("&=", 3.6), ("//=", 3.8)):
        yield Mutation(
            (Edit(start, end, f"{left} {sign} {right}"),), statement.lineno, "missing accumulation", cost
        )
    if "\n" not in right and not isinstance(value, ast.Constant):
        for code, cost in (
            (f"{left} = max({left}, {right})", 3.2),
            (f"{left} = min({left}, {right})", 3.2),
            (f"{left} = {left} or {right}", 3.8),
            (f"{left} = {left} and {right}", 3.8),
        ):
            yield replacement(place, code, cost, "missing accumulation")
    if isinstance(target, ast.Subscript):
        base, key = place.text(target.value), place.text(target.slice)
        if ":" not in key:
            for method, cost in (("append", 3.6), ("extend", 4.0), ("add", 3.8), ("update", 4.2)):
                code = f"{base}.setdefault({key}, {'[]' if method in ('append', 'extend') else 'set()'}).{method}({right})"
                yield replacement(place, code, cost, "missing accumulation")
                yield replacement(place, f"{left}.{method}({right})", cost, "missing accumulation")
            yield replacement(place, f"{base}.setdefault({key}, {right})", 3.8, "missing accumulation")
    if isinstance(target, ast.Name | ast.Attribute):
        for method in ("append", "extend", "add", "update"):
            yield replacement(place, f"{left}.{method}({right})", 4.0, "missing accumulation")
    if isinstance(value, ast.BinOp) and left != place.text(value.left):
        yield replacement(
            place, f"{left} = {left} {SIGNS[type(value.op)]} {place.text(value.right)}", 3.4, "operand"
        )


def jumps(place: Place) -> Iterator[Mutation]:
    """Propose another way to leave: return, break, continue, yield."""
    statement = place.statement
    if isinstance(statement, ast.Break | ast.Continue | ast.Pass):
        text = place.text(statement)
        for other, cost in (("continue", 1.4), ("break", 1.4), ("pass", 2.8), ("return", 3.2)):
            if other != text:
                yield replacement(place, other, cost, "jump")
        if isinstance(place.source.parents.get(statement), ast.ExceptHandler):
            yield replacement(place, "raise", 2.8, "jump")
        for name in place.names(statement):
            yield replacement(place, f"return {name}", 4.0, "jump")
        for value in ("True", "False", "None"):
            yield replacement(place, f"return {value}", 4.0, "jump")
    if isinstance(statement, ast.Return):
        value = place.text(statement.value) if statement.value is not None else "None"
        yield replacement(place, f"yield {value}", 3.0, "return and yield")
        yield replacement(place, "continue", 3.4, "jump")
        yield replacement(place, "break", 3.2, "jump")
        for name in place.scope.variables if place.scope.function is not None else ():
            if isinstance(statement.value, ast.Call):
                yield replacement(place, f"{name}.append({value})", 5.0, "return dropped")
        if statement.value is None:
            for other in (
                *place.names(statement),
                "True",
                "False",
                "self" if place.scope.is_method else "[]",
            ):
                yield replacement(place, f"return {other}", 2.4, "return value")
        else:
            kind = place.scope.kinds(value) if isinstance(statement.value, ast.Name) else set()
            for name in place.names(statement):
                other_kinds = place.scope.kinds(name)
                if name == value or (
                    other_kinds and not other_kinds & {"list", "str", "tuple", "int", "float"}
                ):
                    continue
                far = 1.0 if kind and other_kinds and not kind & other_kinds else 0.0
                if "\n" not in value:
                    yield replacement(place, f"return {name} + {value}", 4.2 + far, "missing term")
                    yield replacement(place, f"return {value} + {name}", 4.2 + far, "missing term")
    if isinstance(statement, ast.Expr):
        yield from _discarded(place, statement)


def _discarded(place: Place, statement: ast.Expr) -> Iterator[Mutation]:
    value, text = statement.value, place.text(statement.value)
    if isinstance(value, ast.Yield) and value.value is not None:
        inner = place.text(value.value)
        yield replacement(place, f"yield from {inner}", 1.6, "return and yield")
        yield replacement(place, f"return {inner}", 2.2, "return and yield")
        if isinstance(value.value, ast.Call) and value.value.args:
            yield replacement(place, f"yield {place.text(value.value.args[0])}", 2.6, "call dropped")
    elif isinstance(value, ast.YieldFrom):
        inner = place.text(value.value)
        yield replacement(place, f"yield {inner}", 1.6, "return and yield")
        yield replacement(place, f"return {inner}", 2.4, "return and yield")
    elif isinstance(value, ast.Call | ast.Compare | ast.BinOp | ast.Name | ast.Attribute | ast.BoolOp):
        yield replacement(place, f"return {text}", 1.8, "missing return")
        if isinstance(value, ast.Call):
            yield replacement(place, f"yield from {text}", 3.0, "return and yield")
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            base = place.text(value.func.value)
            if re.fullmatch(r"[\w.\[\]]+", base) and not base.startswith("super"):
                yield replacement(place, f"{base} = {text}", 2.2, "result thrown away")
        if isinstance(value, ast.Compare) and isinstance(value.ops[0], ast.Eq):
            left = place.text(value.left)
            yield replacement(
                place, f"{left} = {place.text(value.comparators[0])}", 1.2, "result thrown away"
            )
        for name in place.names(value):
            yield replacement(place, f"{name} = {text}", 4.0, "result thrown away")
        for argument in value.args if isinstance(value, ast.Call) else ():
            if isinstance(argument, ast.Name):
                yield replacement(place, f"{argument.id} = {text}", 2.6, "result thrown away")


def branches(place: Place) -> Iterator[Mutation]:
    """Propose ``if`` for ``while``, and ``elif`` for ``if`` and back."""
    statement, source = place.statement, place.source
    if not isinstance(statement, ast.If | ast.While):
        return
    start = source.span(statement)[0]
    word = (
        "elif"
        if source.text.startswith("elif", start)
        else "if"
        if isinstance(statement, ast.If)
        else "while"
    )
    if word == "elif":
        yield Mutation((Edit(start, start + 4, "if"),), statement.lineno, "elif and if", 2.0)
    else:
        other = "while" if word == "if" else "if"
        if not statement.orelse:
            yield Mutation((Edit(start, start + len(word), other),), statement.lineno, "if and while", 2.6)
    if word == "if":
        block = siblings_of(source, statement)
        index = next((at for at, one in enumerate(block) if one is statement), 0)
        before = block[index - 1] if index else None
        if isinstance(before, ast.If) and not before.orelse:
            yield Mutation((Edit(start, start + 2, "elif"),), statement.lineno, "elif and if", 2.2)
    if (
        isinstance(statement, ast.If)
        and statement.orelse
        and len(statement.body) == len(statement.orelse) == 1
    ):
        body, other_branch = statement.body[0], statement.orelse[0]
        if not isinstance(other_branch, ast.If):
            first, second = source.span(body), source.span(other_branch)
            edits = (Edit(*first, place.text(other_branch)), Edit(*second, place.text(body)))
            yield Mutation(edits, statement.lineno, "branches swapped", 2.0)


def exceptions(place: Place) -> Iterator[Mutation]:
    """Propose another exception to catch or raise."""
    statement, source = place.statement, place.source
    caught: list[ast.expr] = []
    if isinstance(statement, ast.Try):
        caught = [handler.type for handler in statement.handlers if handler.type is not None]
    elif isinstance(statement, ast.Raise) and statement.exc is not None:
        raised = statement.exc.func if isinstance(statement.exc, ast.Call) else statement.exc
        caught = [raised]
        yield replacement(place, "pass", 4.0, "raise dropped")
    own = [name for name in place.module.classes if name.endswith(("Error", "Exception", "Warning"))]
    own += [name for name in place.module.imports if name.endswith(("Error", "Exception"))]
    for node in caught:
        text, span = place.text(node), source.span(node)
        cost = 1.8
        family = [name for names in EXCEPTIONS if text in names for name in names]
        seen = sorted(place.hints.errors) if isinstance(statement, ast.Try) else []
        for name in dict.fromkeys([*seen, *own, *family, *place.hints.strings[:6]]):
            if name != text and re.fullmatch(r"[A-Z]\w*(Error|Exception|Warning|Exit|Iteration)", name):
                near = -0.6 if name in seen else 0.0 if name in place.hints.strings else 0.6
                yield Mutation((Edit(*span, name),), node.lineno, "exception kind", cost + near)
                if isinstance(statement, ast.Try) and isinstance(node, ast.Name):
                    yield Mutation(
                        (Edit(*span, f"({text}, {name})"),), node.lineno, "exception kind", cost + near + 0.6
                    )
                if isinstance(node, ast.Tuple):
                    yield Mutation(
                        (Edit(*span, f"{text[:-1]}, {name})"),), node.lineno, "exception kind", cost + near
                    )

"""Insert missing statements: guards, returns, updates, attributes, resets."""

import ast
from collections.abc import Iterator

from m3agent.serving.embedded.operators.base import Mutation, Place
from m3agent.serving.embedded.operators.layout import insertion, siblings_of
from m3agent.serving.embedded.source import FUNCTIONS, Edit, names_in, parameters

VALUES = ("None", "0", "[]", "False", "True", "''", "{}", "-1", "1", "0.0", "()", "set()")
MUTABLE = {"list": "append", "set": "add", "deque": "append"}


def _first(place: Place) -> bool:
    """Tell whether the place is the first statement of its function after the docstring."""
    function = place.scope.function
    if function is None:
        return False
    body = [
        item
        for item in function.body
        if not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))
    ]
    return bool(body) and body[0] is place.statement


def _offer(place: Place, code: str, cost: float, operator: str, *, last: bool) -> Iterator[Mutation]:
    """Insert `code` before the statement and, if the statement ends its block, also after it."""
    found = [insertion(place, code, cost, operator)]
    leaves = isinstance(place.statement, ast.Return | ast.Raise | ast.Break | ast.Continue)
    if last and not leaves:
        found.append(insertion(place, code, cost, operator, after=True))
    yield from (mutation for mutation in found if mutation is not None)


COMPARED = frozenset(("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"))
"""Methods that Python calls with any object, and that return NotImplemented for unknown types."""


def refusals(place: Place) -> Iterator[Mutation]:
    """Propose checks at the start of a function.

    They raise an exception that a test expects, or reject an argument of a foreign type.
    """
    scope = place.scope
    if scope.function is None or not _first(place):
        return
    for name in scope.parameters:
        kinds = scope.kinds(name)
        tests = [f"not {name}", f"{name} is None"]
        if not kinds or kinds & {"int", "float"}:
            tests[:0] = [f"{name} < 0", f"{name} <= 0", f"{name} < 1", f"{name} == 0"]
        for number, test in enumerate(dict.fromkeys(tests)):
            for error in sorted(place.hints.expected):
                code = f'if {test}:\n\traise {error}(f"invalid {name}: {{{name}!r}}")'
                yield from _offer(place, code, 2.6 + 0.1 * number, "missing refusal", last=False)
    if scope.is_method and scope.owner is not None and place.hints.errors & {"AttributeError", "TypeError"}:
        compared = scope.function.name in COMPARED
        for name in scope.parameters:
            for answer in ("NotImplemented", "False"):
                code = f"if not isinstance({name}, {scope.owner.name}):\n\treturn {answer}"
                cost = (1.4 if compared else 4.0) + 0.1 * (answer == "False")
                yield from _offer(place, code, cost, "missing refusal", last=False)


def guards(place: Place) -> Iterator[Mutation]:
    """Propose an early return for None or empty values, at the function's start or before the statement."""
    function = place.scope.function
    if function is None or function is place.statement:
        return
    first = _first(place)
    read = names_in(place.statement)
    known = [name for name in place.names(place.statement) if first or name in read]
    failing = place.hints.errors & {
        "TypeError",
        "AttributeError",
        "IndexError",
        "ZeroDivisionError",
        "ValueError",
        "KeyError",
    }
    base = 3.8 if failing else 4.6
    returned = {
        place.text(node.value)
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and node.value is not None
    }
    generator = any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function))
    values = ["return"] if generator else [f"return {value}" for value in VALUES]
    if not generator:
        values += [f"return {text}" for text in sorted(returned) if len(text) < 24 and text not in VALUES]
        values += [f"return {name}" for name in known]
    for name in known:
        kinds = place.scope.kinds(name)
        tests = [f"not {name}"]
        if kinds & {"int", "float"}:
            tests = [f"{name} == 0", f"{name} < 0", f"{name} <= 1", f"{name} <= 0", f"{name} < 2"]
        else:
            tests.append(f"{name} is None")
        for test in tests:
            for number, value in enumerate(values):
                ordinary = 0.0 if value.split(" ", 1)[-1] in returned else 0.04 * number
                cost = base + ordinary + (0 if first else 0.5)
                yield from _offer(place, f"if {test}:\n\t{value}", cost, "missing guard", last=False)
    if not first and _in_loop(place):
        for name in known:
            for test in (f"not {name}", f"{name} is None", name):
                yield from _offer(place, f"if {test}:\n\tcontinue", base + 0.6, "missing guard", last=False)


def _in_loop(place: Place) -> bool:
    for above in place.source.ancestors(place.statement):
        if isinstance(above, ast.For | ast.While | ast.AsyncFor):
            return True
        if isinstance(above, FUNCTIONS):
            return False
    return False


def updates(place: Place) -> Iterator[Mutation]:
    """Propose a missing assignment, count, append or add."""
    if place.scope.function is None or place.scope.function is place.statement:
        return
    source = place.source
    block = siblings_of(source, place.statement)
    last = block[-1] is place.statement
    names = place.names(place.statement)
    scope = place.scope
    looped = 0.0 if _in_loop(place) else 0.6
    near = names_in(place.statement) | {name for other in block for name in names_in(other)}
    for name in names:
        kinds = scope.kinds(name)
        far = (0.0 if name in near else 0.5) - (1.2 if name in scope.idle else 0.0)
        if "int" in kinds:
            for code in (f"{name} += 1", f"{name} -= 1"):
                yield from _offer(place, code, 4.2 + looped + far, "missing update", last=last)
        for kind in kinds & MUTABLE.keys():
            for value in names:
                if value != name:
                    away = (0.0 if value in near else 0.5) - (1.2 if name in scope.idle else 0.0)
                    code = f"{name}.{MUTABLE[kind]}({value})"
                    yield from _offer(place, code, 4.4 + looped + away, "missing update", last=last)
            if kind in ("list", "deque"):
                yield from _offer(place, f"{name}.pop()", 5.2, "missing update", last=last)
        if "dict" in kinds:
            for key in names:
                for value in (*names, "1", "True"):
                    if name not in (key, value) and key != value:
                        yield from _offer(place, f"{name}[{key}] = {value}", 5.6, "missing update", last=last)
    for name in scope.self_attributes if scope.is_method else ():
        if f"self.{name}" in scope.idle:
            for code in (f"self.{name} += 1", f"self.{name} -= 1"):
                yield from _offer(place, code, 3.4, "missing update", last=last)
            for value in names:
                for method in ("append", "add"):
                    yield from _offer(
                        place, f"self.{name}.{method}({value})", 3.8, "missing update", last=last
                    )
    stored = [name for name in names if scope.first_line.get(name, 0) > 0 or name in scope.parameters]
    for name in stored:
        for other in names:
            if name == other:
                continue
            alike = scope.alike(name, other)
            if alike is False:
                continue
            cost = 4.6 + looped + (0 if alike or {name, other} <= near else 0.6)
            cost -= 0.6 if other in scope.unread or name in near else 0
            yield from _offer(place, f"{name} = {other}", cost, "missing update", last=last)
    yield from _copies(place, last)


def _copies(place: Place, last: bool) -> Iterator[Mutation]:
    """Propose short simple statements of the same function (then class) that this block may lack."""
    visible = {*place.names(place.statement), "self"}
    seen = {place.text(other) for other in siblings_of(place.source, place.statement)}
    for scope, cost in ((place.scope.function, 4.4), (place.scope.owner, 5.6)):
        for node in ast.walk(scope) if scope is not None else ():
            if not isinstance(
                node, ast.Assign | ast.AugAssign | ast.Expr | ast.Return | ast.Continue | ast.Break
            ):
                continue
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                continue
            text = place.text(node)
            if (
                text in seen
                or "\n" in text
                or len(text) > 70
                or not names_in(node) <= visible | {"len", "max", "min", "int"}
            ):
                continue
            seen.add(text)
            yield from _offer(place, text, cost, "missing statement", last=last)


def returns(place: Place) -> Iterator[Mutation]:
    """Propose a missing return at the end of a block or function."""
    function = place.scope.function
    block = siblings_of(place.source, place.statement)
    if function is None or function is place.statement or block[-1] is not place.statement:
        return
    if isinstance(place.statement, ast.Return | ast.Raise | ast.Continue | ast.Break):
        return
    top = any(place.statement is item for item in function.body)
    values = [
        *place.names(place.statement),
        *(["self"] if place.scope.is_method else []),
        "True",
        "False",
        "None",
        "0",
        "[]",
    ]
    values += [f"self.{name}" for name in place.scope.self_attributes] if place.scope.is_method else []
    for value in values:
        cost = (2.4 if top else 4.0) - (0.6 if value in place.scope.unread else 0)
        mutation = insertion(place, f"return {value}", cost, "missing return", after=True)
        if mutation is not None:
            yield mutation
    if _in_loop(place):
        for code in ("break", "continue"):
            mutation = insertion(place, code, 3.8, "missing jump", after=True)
            if mutation is not None:
                yield mutation


def attributes(place: Place) -> Iterator[Mutation]:
    """Propose statements that methods often lack.

    They are: store a parameter, call the base class, ``global`` and ``nonlocal``, set an initial value.
    """
    function, scope = place.scope.function, place.scope
    if function is None or not _first(place):
        return
    if scope.is_method and function.name == "__init__":
        for name in scope.parameters:
            cost = 2.0 if name in scope.unread else 4.6
            yield from _offer(place, f"self.{name} = {name}", cost, "missing attribute", last=True)
        if scope.owner is not None and scope.owner.bases:
            given = ", ".join(name for name in scope.parameters if name in scope.unread)
            yield from _offer(place, f"super().__init__({given})", 2.8, "missing base call", last=False)
            yield from _offer(place, "super().__init__()", 3.0, "missing base call", last=False)
    unbound = 1.6 if "UnboundLocalError" in place.hints.errors else 5.0
    for name in scope.first_line:
        if name in place.module.variables:
            yield from _offer(place, f"global {name}", unbound, "missing global", last=False)
        if place.source.function(function) is not None:
            yield from _offer(place, f"nonlocal {name}", unbound, "missing nonlocal", last=False)
        for value in ("None", "0", "[]", "''", "{}", "False"):
            if name not in scope.parameters:
                yield from _offer(
                    place, f"{name} = {value}", unbound + 0.8, "missing initial value", last=False
                )
    if scope.is_method:
        for name in scope.self_attributes:
            for value in ("None", "0", "[]", "{}", "False", "set()"):
                cost = 3.0 if "AttributeError" in place.hints.errors and function.name == "__init__" else 5.2
                yield from _offer(place, f"self.{name} = {value}", cost, "missing initial value", last=True)
            for step in ("+= 1", "-= 1"):
                yield from _offer(place, f"self.{name} {step}", 5.2, "missing update", last=True)


def definitions(place: Place) -> Iterator[Mutation]:
    """Propose corrections of mutable defaults, shared class attributes and decorators."""
    statement, source = place.statement, place.source
    if isinstance(statement, FUNCTIONS):
        yield from _defaults(place, statement)
        for decorator in statement.decorator_list:
            start = source.line_start(decorator.lineno)
            end = source.line_start((decorator.end_lineno or decorator.lineno) + 1)
            yield Mutation((Edit(start, end, ""),), statement.lineno, "decorator", 2.8)
        if isinstance(source.parents.get(statement), ast.ClassDef):
            known = parameters(statement)
            start, indent = source.line_start(statement.lineno), source.indent(statement.lineno)
            names = {ast.unparse(decorator) for decorator in statement.decorator_list}
            for decorator_name, right in (
                ("staticmethod", not known or known[0] not in ("self", "cls")),
                ("classmethod", bool(known) and known[0] == "cls"),
                ("property", known == ["self"]),
            ):
                if right and decorator_name not in names:
                    text = f"{indent}@{decorator_name}{source.newline}"
                    cost = 3.4 if decorator_name == "property" else 2.0
                    yield Mutation((Edit(start, start, text),), statement.lineno, "decorator", cost)
    if isinstance(source.parents.get(statement), ast.ClassDef) and isinstance(
        statement, ast.Assign | ast.AnnAssign
    ):
        yield from _shared(place, statement)


def _defaults(place: Place, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Mutation]:
    positional = [*function.args.posonlyargs, *function.args.args]
    pairs = list(
        zip(positional[len(positional) - len(function.args.defaults) :], function.args.defaults, strict=True)
    )
    pairs += [
        (arg, value)
        for arg, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        if value
    ]
    body = [
        item
        for item in function.body
        if not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))
    ]
    if not body:
        return
    source = place.source
    for argument, value in pairs:
        text = place.text(value)
        if isinstance(value, ast.List | ast.Dict | ast.Set | ast.Call):
            start, indent = source.line_start(body[0].lineno), source.indent(body[0].lineno)
            if body[0].lineno == function.lineno:
                continue
            end = source.newline
            guard = (
                f"{indent}if {argument.arg} is None:{end}{indent}{source.unit}{argument.arg} = {text}{end}"
            )
            edits = (Edit(*source.span(value), "None"), Edit(start, start, guard))
            yield Mutation(edits, function.lineno, "mutable default", 1.4)


def _shared(place: Place, statement: ast.Assign | ast.AnnAssign) -> Iterator[Mutation]:
    source = place.source
    owner = source.parents[statement]
    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
    value = statement.value
    if not isinstance(owner, ast.ClassDef) or not isinstance(target, ast.Name) or value is None:
        return
    if not isinstance(value, ast.List | ast.Dict | ast.Set | ast.Call | ast.Constant):
        return
    for method in owner.body:
        if (
            isinstance(method, FUNCTIONS)
            and method.name == "__init__"
            and method.body[-1].lineno > method.lineno
        ):
            last = method.body[-1]
            at = source.line_start((last.end_lineno or last.lineno) + 1)
            text = f"{source.indent(last.lineno)}self.{target.id} = {place.text(value)}{source.newline}"
            if at == len(source.text) and not source.text.endswith("\n"):
                text = source.newline + text
            cost = 3.8 if isinstance(value, ast.Constant) else 1.8
            yield Mutation((Edit(at, at, text),), statement.lineno, "shared attribute", cost)

"""Insert missing statements: guards, returns, updates, attributes, resets."""

import ast
import itertools
from collections.abc import Iterator

from m3agent.serving.embedded.operators.base import LEAVING, TABLES, Mutation, Place, is_text
from m3agent.serving.embedded.source import FUNCTIONS, Edit, Function, last_line, names_in, parameters

TABLE = TABLES["missing"]
VALUES, MUTABLE = TABLE["values"], TABLE["mutable"]
EMPTY_TESTS = ("not {}", "{} is None")
NUMBER_TESTS = ("{} == 0", "{} < 0", "{} <= 1", "{} <= 0", "{} < 2")
SIMPLE = (ast.Assign, ast.AugAssign, ast.Expr, ast.Return, ast.Continue, ast.Break)


def _body(function: Function) -> list[ast.stmt]:
    """Return the statements of a function, without its docstring."""
    return [item for item in function.body if not is_text(item)]


def _first(place: Place) -> bool:
    """Tell whether the place is the first statement of its function after the docstring."""
    function = place.scope.function
    return function is not None and _body(function)[:1] == [place.statement]


def _around(place: Place, code: str, operator: str, cost: float, last: bool = True) -> Iterator[Mutation]:
    """Insert `code` before the statement and, if it is the last one, also after it."""
    yield from place.inserted(code, operator, cost)
    if last and not isinstance(place.statement, LEAVING):
        yield from place.inserted(code, operator, cost, after=True)


def refusals(place: Place) -> Iterator[Mutation]:
    """Propose checks at the start of a function.

    They raise an exception that a test expects, or reject an argument of a foreign type.
    """
    scope = place.scope
    if scope.function is None or not _first(place):
        return
    kind = "missing refusal"
    for name in scope.parameters:
        kinds = scope.kinds(name)
        tests = [f"not {name}", f"{name} is None"]
        if not kinds or kinds & {"int", "float"}:
            tests[:0] = [f"{name} < 0", f"{name} <= 0", f"{name} < 1", f"{name} == 0"]
        for number, test in enumerate(tests):
            for error in sorted(place.hints.expected):
                code = f'if {test}:\n\traise {error}(f"invalid {name}: {{{name}!r}}")'
                yield from place.inserted(code, kind, 2.6 + 0.1 * number)
    if scope.is_method and scope.owner is not None and place.hints.errors & {"AttributeError", "TypeError"}:
        cost = 1.4 if scope.function.name in TABLE["compared"] else 4.0
        for name in scope.parameters:
            test = f"if not isinstance({name}, {scope.owner.name})"
            yield from place.inserted(f"{test}:\n\treturn NotImplemented", kind, cost)
            yield from place.inserted(f"{test}:\n\treturn False", kind, cost + 0.1)


def guards(place: Place) -> Iterator[Mutation]:
    """Propose an early return for None or empty values, at the function's start or before the statement."""
    function = place.scope.function
    if function is None or function is place.statement:
        return
    first, read = _first(place), names_in(place.statement)
    known = [name for name in place.names(place.statement) if first or name in read]
    base = 3.8 if place.hints.errors.intersection(TABLE["suspect"]) else 4.6
    later = 0.0 if first else 0.5
    leaves = _leaves(place, function, known)
    for name in known:
        tests = NUMBER_TESTS if place.scope.kinds(name) & {"int", "float"} else EMPTY_TESTS
        for test, (leave, more) in itertools.product(tests, leaves):
            code = f"if {test.format(name)}:\n\t{leave}"
            yield from place.inserted(code, "missing guard", base + more + later)
    if not first and _in_loop(place):
        for name, test in itertools.product(known, (*EMPTY_TESTS, "{}")):
            code = f"if {test.format(name)}:\n\tcontinue"
            yield from place.inserted(code, "missing guard", base + 0.6)


def _leaves(place: Place, function: Function, known: list[str]) -> list[tuple[str, float]]:
    """Return the statements that may end a function early, each with what it costs more."""
    nodes = list(ast.walk(function))
    returned = {place.text(node.value) for node in nodes if isinstance(node, ast.Return) and node.value}
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in nodes):
        return [("return", 0.0)]
    short = (text for text in sorted(returned) if len(text) < 24 and text not in VALUES)
    values = enumerate((*VALUES, *short, *known))
    return [(f"return {value}", 0.0 if value in returned else 0.04 * number) for number, value in values]


def _in_loop(place: Place) -> bool:
    ends = (ast.For, ast.While, ast.AsyncFor, *FUNCTIONS)
    around = (above for above in place.source.ancestors(place.statement) if isinstance(above, ends))
    return not isinstance(next(around, place.scope.function), (*FUNCTIONS, type(None)))


def updates(place: Place) -> Iterator[Mutation]:
    """Propose a missing assignment, count, append or add."""
    scope = place.scope
    if scope.function is None or scope.function is place.statement:
        return
    block, index = place.source.position(place.statement)
    last = index + 1 == len(block)
    for code, cost in _updates(place):
        yield from _around(place, code, "missing update", cost, last)
    for code, cost in _copies(place):
        yield from _around(place, code, "missing statement", cost, last)


def _updates(place: Place) -> Iterator[tuple[str, float]]:
    """Yield changes of a variable or an attribute, with their costs."""
    near = names_in(place.statement).union(*map(names_in, place.source.position(place.statement)[0]))
    yield from _counts(place, near)
    yield from _attribute_updates(place)
    yield from _assignments(place, near)


def _counts(place: Place, near: set[str]) -> Iterator[tuple[str, float]]:
    """Yield what counts or collects in a variable; what is not `near` costs more."""
    scope, names, looped = place.scope, place.names(place.statement), _outside_of_loop(place)
    for name in names:
        kinds = scope.kinds(name)
        idle = looped - 1.2 * (name in scope.idle)
        others = [other for other in names if other != name]
        if "int" in kinds:
            cost = 4.2 + idle + 0.5 * (name not in near)
            yield f"{name} += 1", cost
            yield f"{name} -= 1", cost
        for kind in kinds & MUTABLE.keys():
            for value in others:
                yield f"{name}.{MUTABLE[kind]}({value})", 4.4 + idle + 0.5 * (value not in near)
        if kinds & {"list", "deque"}:
            yield f"{name}.pop()", 5.2
        if "dict" in kinds:
            pairs = itertools.product(others, (*others, "1", "True"))
            yield from ((f"{name}[{key}] = {value}", 5.6) for key, value in pairs if key != value)


def _attribute_updates(place: Place) -> Iterator[tuple[str, float]]:
    """Yield what counts or collects in an attribute that never changes."""
    idle = [f"self.{name}" for name in place.scope.own_attributes if f"self.{name}" in place.scope.idle]
    for attribute in idle:
        yield f"{attribute} += 1", 3.4
        yield f"{attribute} -= 1", 3.4
        for value in place.names(place.statement):
            yield f"{attribute}.append({value})", 3.8
            yield f"{attribute}.add({value})", 3.8


def _assignments(place: Place, near: set[str]) -> Iterator[tuple[str, float]]:
    """Yield assignments of a variable to another one."""
    scope, names, looped = place.scope, place.names(place.statement), _outside_of_loop(place)
    stored = (name for name in names if scope.first_line.get(name, 0) > 0 or name in scope.parameters)
    for name, other in itertools.product(stored, names):
        alike = scope.alike(name, other)
        if name != other and alike is not False:
            far = 0.0 if alike or {name, other} <= near else 0.6
            wanted = other in scope.unread or name in near
            yield f"{name} = {other}", 4.6 + looped + far - 0.6 * wanted


def _outside_of_loop(place: Place) -> float:
    """Return what an update costs more if it does not happen in a loop."""
    return 0.0 if _in_loop(place) else 0.6


def _copies(place: Place) -> Iterator[tuple[str, float]]:
    """Propose short simple statements of the same function (then class) that this block may lack."""
    visible = {*place.names(place.statement), "self", "len", "max", "min", "int"}
    seen = set(place.texts(place.source.position(place.statement)[0]))
    for scope, cost in ((place.scope.function, 4.4), (place.scope.owner, 5.6)):
        for node in ast.walk(scope) if scope is not None else ():
            if isinstance(node, SIMPLE) and not is_text(node):
                text = place.text(node)
                if text not in seen and "\n" not in text and len(text) <= 70 and names_in(node) <= visible:
                    seen.add(text)
                    yield text, cost


def returns(place: Place) -> Iterator[Mutation]:
    """Propose a missing return at the end of a block or function."""
    function, scope = place.scope.function, place.scope
    block, index = place.source.position(place.statement)
    if function is None or function is place.statement or index + 1 < len(block):
        return
    if isinstance(place.statement, LEAVING):
        return
    base = 2.4 if any(place.statement is item for item in function.body) else 4.0
    own = ["self"] if scope.is_method else []
    attributes = [f"self.{name}" for name in scope.own_attributes]
    for value in (*place.names(place.statement), *own, "True", "False", "None", "0", "[]", *attributes):
        cost = base - place.unread(value, 0.6)
        yield from place.inserted(f"return {value}", "missing return", cost, after=True)
    for code in ("break", "continue") if _in_loop(place) else ():
        yield from place.inserted(code, "missing jump", 3.8, after=True)


def attributes(place: Place) -> Iterator[Mutation]:
    """Propose what methods often lack at their start: to store a parameter, and to set or count an attribute."""
    function, scope = place.scope.function, place.scope
    if function is None or not _first(place):
        return
    creates = function.name == "__init__"
    if scope.is_method and creates:
        yield from _stored_parameters(place)
    cost = 3.0 if creates and "AttributeError" in place.hints.errors else 5.2
    for name in scope.own_attributes:
        for value in TABLE["attributes"]:
            yield from _around(place, f"self.{name} = {value}", "missing initial value", cost)
        for step in ("+= 1", "-= 1"):
            yield from _around(place, f"self.{name} {step}", "missing update", 5.2)


def _stored_parameters(place: Place) -> Iterator[Mutation]:
    """Propose what ``__init__`` often lacks: to store a parameter, and to call the base class."""
    scope = place.scope
    unread = [name for name in scope.parameters if name in scope.unread]
    for name in scope.parameters:
        cost = 2.0 if name in unread else 4.6
        yield from _around(place, f"self.{name} = {name}", "missing attribute", cost)
    if scope.owner is not None and scope.owner.bases:
        yield from place.inserted(f"super().__init__({', '.join(unread)})", "missing base call", 2.8)
        yield from place.inserted("super().__init__()", "missing base call", 3.0)


def bindings(place: Place) -> Iterator[Mutation]:
    """Propose ``global``, ``nonlocal`` and an initial value at the start of a function."""
    function, scope = place.scope.function, place.scope
    if function is None or not _first(place):
        return
    unbound = 1.6 if "UnboundLocalError" in place.hints.errors else 5.0
    is_inner = place.source.function(function) is not None
    for name in scope.first_line:
        if name in place.module.variables:
            yield from place.inserted(f"global {name}", "missing global", unbound)
        if is_inner:
            yield from place.inserted(f"nonlocal {name}", "missing nonlocal", unbound)
        for value in TABLE["starts"] if name not in scope.parameters else ():
            yield from place.inserted(f"{name} = {value}", "missing initial value", unbound + 0.8)


def definitions(place: Place) -> Iterator[Mutation]:
    """Propose corrections of mutable defaults, shared class attributes and decorators."""
    statement, source = place.statement, place.source
    in_class = isinstance(place.parent(statement), ast.ClassDef)
    if isinstance(statement, FUNCTIONS):
        yield from _defaults(place, statement)
        for decorator in statement.decorator_list:
            start = source.line_start(decorator.lineno)
            end = source.line_start((decorator.end_lineno or decorator.lineno) + 1)
            yield place.change("decorator", 2.8, Edit(start, end, ""))
        known = parameters(statement)
        start, indent = source.line_start(statement.lineno), source.indent(statement.lineno)
        names = {ast.unparse(decorator) for decorator in statement.decorator_list}
        for name, right, cost in (
            ("staticmethod", not known or known[0] not in ("self", "cls"), 2.0),
            ("classmethod", bool(known) and known[0] == "cls", 2.0),
            ("property", known == ["self"], 3.4),
        ):
            if in_class and right and name not in names:
                yield place.change("decorator", cost, Edit(start, start, f"{indent}@{name}{source.newline}"))
    if in_class and isinstance(statement, ast.Assign | ast.AnnAssign):
        yield from _shared(place, statement)


def _defaults(place: Place, function: Function) -> Iterator[Mutation]:
    given, source = function.args, place.source
    last = reversed([*given.posonlyargs, *given.args])
    pairs = [*list(zip(last, reversed(given.defaults), strict=False))[::-1]]
    pairs += [(arg, value) for arg, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value]
    body = _body(function)
    if not body or body[0].lineno == function.lineno:
        return
    start, indent, end = source.line_start(body[0].lineno), source.indent(body[0].lineno), source.newline
    for argument, value in pairs:
        if isinstance(value, ast.List | ast.Dict | ast.Set | ast.Call):
            guard = f"{indent}if {argument.arg} is None:{end}"
            guard += f"{indent}{source.unit}{argument.arg} = {place.text(value)}{end}"
            edits = Edit(*source.span(value), "None"), Edit(start, start, guard)
            yield place.change("mutable default", 1.4, *edits)


def _shared(place: Place, statement: ast.Assign | ast.AnnAssign) -> Iterator[Mutation]:
    source, owner, value = place.source, place.parent(statement), statement.value
    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
    if not isinstance(owner, ast.ClassDef) or not isinstance(target, ast.Name):
        return
    if not isinstance(value, ast.List | ast.Dict | ast.Set | ast.Call | ast.Constant):
        return
    cost = 3.8 if isinstance(value, ast.Constant) else 1.8
    for method in owner.body:
        if isinstance(method, FUNCTIONS) and method.name == "__init__":
            last = method.body[-1]
            at = source.line_start(last_line(last) + 1)
            text = f"{source.indent(last.lineno)}self.{target.id} = {place.text(value)}{source.newline}"
            if at == len(source.text) and not source.text.endswith("\n"):
                text = source.newline + text
            if last.lineno > method.lineno:
                yield place.change("shared attribute", cost, Edit(at, at, text))


ON_STATEMENTS = (guards, refusals, updates, returns, attributes, bindings, definitions)

"""Follow the names of a Python file through its syntax tree, and compute expressions that consist of constants.

Code can hide a name from readers: `"g" + "c"`, `"".join(map(chr, [103, 99]))`, `b64decode("Z2M=").decode()`.
"""

from __future__ import annotations

import ast
import base64
import binascii
import codecs
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from m3agent.agent.verify import insides
from m3agent.agent.verify.python_file import Definition, Function, imports_in

MOST = 4096
"""Length of the longest value that is computed. With it, no method below can take much memory."""
MOST_DEPTH = 40
MOST_STEPS = 1_000_000
"""Steps for all expressions of a file, about a second."""

OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.BitXor: operator.xor,
}
DECODERS: Mapping[str, Callable[..., Any]] = {
    "fromhex": bytes.fromhex,
    **{name: getattr(binascii, name) for name in ("unhexlify", "a2b_hex", "a2b_base64")},
    **{
        f"{name}decode": getattr(base64, f"{name}decode")
        for name in ("b16", "b32", "b64", "b85", "a85", "standard_b64", "urlsafe_b64")
    },
}
"""Functions that turn an unreadable text into a readable one."""
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **DECODERS,
    "chr": chr,
    "ord": ord,
    "bytes": bytes,
    "bytearray": bytes,
    "str": str,
    "list": list,
    "tuple": list,
    "reversed": lambda value: value[::-1],
}
METHODS = frozenset(
    {"join", "decode", "encode", "replace", "lower", "upper", "swapcase", "strip"}
    | {"removeprefix", "removesuffix"}
)
CODECS = frozenset(
    {"utf-8", "utf8", "ascii", "latin-1", "latin1", "rot13", "rot_13", "hex", "base64", "utf-16"}
)


class NotConstant(Exception):
    """The expression does not consist of constants, or its value is too long."""


class Folder:
    """Computes values of the expressions of one file.

    Attributes:
        names: Values of the file's variables.
        steps: The steps that are left. At 0, nothing more is computed.
    """

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.steps = MOST_STEPS

    def value(self, node: ast.expr) -> Any:
        """Return the value of an expression; None if it does not consist of constants."""
        try:
            return self._value(node, self.names, 0)
        except Exception:  # noqa: BLE001 - besides NotConstant: wrong arguments, with which the code itself would fail
            return None

    def _value(self, node: ast.AST, names: Mapping[str, Any], depth: int) -> Any:
        self.steps -= 1
        if depth > MOST_DEPTH or self.steps <= 0:
            raise NotConstant

        def inner(part: ast.AST) -> Any:
            return self._value(part, names, depth + 1)

        match node:
            case ast.Constant(value=str() | bytes() | int() as value):
                return _short(value)
            case ast.Name(id=name) if name in names:
                return names[name]
            case ast.JoinedStr(values=parts):
                return _short("".join(str(inner(part)) for part in parts))
            case ast.FormattedValue(value=value, format_spec=None, conversion=-1):
                return inner(value)
            case ast.List(elts=parts) | ast.Tuple(elts=parts) if len(parts) <= MOST:
                return [inner(part) for part in parts]
            case ast.GeneratorExp(generators=[each]) | ast.ListComp(generators=[each]):
                if not isinstance(each.target, ast.Name) or each.ifs:
                    raise NotConstant
                given, name = inner(each.iter), each.target.id
                return [self._value(node.elt, {**names, name: one}, depth + 1) for one in given]
        return self._operated(node, inner)

    def _operated(self, node: ast.AST, inner: Callable[[ast.AST], Any]) -> Any:
        """Return the value of an operation; `inner` returns the values of its parts."""
        match node:
            case ast.BinOp(op=kind) if type(kind) in OPERATORS:
                return _short(OPERATORS[type(kind)](inner(node.left), inner(node.right)))
            case ast.BinOp(op=ast.Mod()):
                return _formatted(inner(node.left), inner(node.right))
            case ast.Subscript(slice=ast.Slice() as part):
                bounds = [None if one is None else inner(one) for one in (part.lower, part.upper, part.step)]
                return inner(node.value)[slice(*bounds)]
            case ast.Subscript():
                return inner(node.value)[inner(node.slice)]
            case ast.UnaryOp(op=ast.USub()):
                return -inner(node.operand)
            case ast.Call(keywords=[]):
                return _short(self._called(node, inner))
        raise NotConstant

    def _called(self, node: ast.Call, inner: Callable[[ast.AST], Any]) -> Any:
        match node.func, node.args:
            case ast.Name(id="map"), [ast.Name(id=name), values] if name in FUNCTIONS:
                return [FUNCTIONS[name](one) for one in inner(values)]
            case ast.Attribute(attr="decode" | "encode", value=ast.Name()), [text, codec]:
                return codecs.decode(inner(text), _codec(inner(codec)))
        given = [inner(part) for part in node.args]
        match node.func:
            case ast.Attribute(attr=name) if name in METHODS:
                value = inner(node.func.value)
                if not isinstance(value, str | bytes):
                    raise NotConstant
                if name in {"decode", "encode"} and given:
                    _codec(given[0])
                return getattr(value, name)(*given)
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in FUNCTIONS and given:
                if isinstance(given[0], int) and name not in {"chr", "str"}:
                    raise NotConstant  # such as bytes(10**9)
                return FUNCTIONS[name](*given)
        raise NotConstant


def _codec(name: Any) -> str:
    if name not in CODECS:
        raise NotConstant
    return str(name)


def _formatted(text: Any, given: Any) -> Any:
    if isinstance(text, int):
        return text % given
    if not isinstance(text, str) or any(sign.isdigit() or sign == "*" for sign in text):
        raise NotConstant  # a width such as "%999999999d"
    return _short(text % (tuple(given) if isinstance(given, list) else given))


def _short(value: Any) -> Any:
    if isinstance(value, str | bytes | list) and len(value) > MOST:
        raise NotConstant
    return value


MOST_MEANINGS = 16
"""Full names that one name may have. `x = x.a` in a row would otherwise double them each time."""


class Syntax:
    """The syntax tree of one file.

    Attributes:
        nodes: All nodes, outer ones first.
        parents: Each node's parent, by the node's `id`.
        defined: The functions and classes of the file, by their names.
        values: What each name gets where it is stored; None for an unknown value.
        bound: The full names that each name of the file may stand for, such as `sys.modules`.
        folder: Computes expressions that consist of constants.
    """

    def __init__(self, module: ast.Module) -> None:
        self.nodes: list[ast.AST] = [module]
        self.parents: dict[int, ast.AST] = {}
        for node in self.nodes:  # grows meanwhile
            for child in ast.iter_child_nodes(node):
                if not isinstance(child, ast.expr_context | ast.operator | ast.cmpop):  # shared by all nodes
                    self.parents[id(child)] = node
                    self.nodes.append(child)
        self.defined = defaultdict[str, list[ast.AST]](list)
        for node in self.nodes:
            if isinstance(node, Definition):
                self.defined[node.name].append(node)
        self.values = defaultdict[str, list[ast.expr | None]](list)
        self.bound: dict[str, set[str]] = {}
        self.folder = Folder()
        self._bind()

    @cached_property
    def at_import(self) -> set[int]:
        """The `id` of each node that runs while the file is imported."""
        return set(map(id, self._run_at_import()))

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, inner ones first."""
        while (above := self.parents.get(id(node))) is not None:
            yield above
            node = above

    def _bind(self) -> None:
        """Collect what the file's names stand for. Scopes are ignored: a name stands for all its values."""
        self._bind_imports()
        for node in self.nodes:
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                self.values[node.id] += self._values_of(node)
        for _ in range(2):  # an alias of an alias
            for name, values in self.values.items():
                for value in filter(None, values):
                    self._bind_name(name, *self.names(value))
        for name, values in self.values.items():
            if len(values) == 1 and values[0] is not None and name not in self.bound:
                value = self.folder.value(values[0])
                if value is not None:
                    self.folder.names[name] = value

    def _bind_imports(self) -> None:
        for bound, level, module, name in imports_in(self.nodes):
            if name:
                self._bind_name(bound, member("." if level else module, name))
            elif bound == module:
                self._bind_name(module.partition(".")[0], module.partition(".")[0])
            else:
                self._bind_name(bound, module)

    def _values_of(self, node: ast.Name) -> list[ast.expr | None]:
        """Return what a name gets where it is stored; None for an unknown value."""
        match self.parents[id(node)]:
            case ast.Assign(value=value) | ast.AnnAssign(value=value) | ast.NamedExpr(value=value):
                return [value]
            case (
                ast.For(iter=ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts))
                | ast.comprehension(iter=ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts))
            ):
                return [*parts]
            case ast.Tuple(elts=names) | ast.List(elts=names) as targets:
                match self.parents[id(targets)]:
                    case ast.Assign(value=ast.Tuple(elts=parts) | ast.List(elts=parts)) if len(parts) == len(
                        names
                    ):
                        return [parts[names.index(node)]]
        return [None]

    def _bind_name(self, name: str, *full: str) -> None:
        if full and len(self.bound.setdefault(name, set())) < MOST_MEANINGS:
            self.bound[name].update(full)

    def text(self, node: ast.expr) -> str | None:
        """Return the text that an expression of constants makes; None if it makes none."""
        value = self.folder.value(node)
        return value if isinstance(value, str) else None

    def names(self, node: ast.AST, depth: int = 0) -> set[str]:
        """Return the full names that an expression may stand for, such as `sys.modules`."""
        if depth > 50:
            return set()
        match node:
            case ast.Name(id=name):
                return self.bound.get(name, {name} & insides.ALWAYS)
            case ast.Attribute(value=value, attr=name):
                return self._members(value, name, depth) | {name} & insides.ALWAYS
            case ast.Call(func=ast.Name(id="getattr"), args=[value, name, *_]):
                return self._members(value, self.text(name), depth)
            case ast.Call(args=[name, *_]) if self.imports(node):
                return {self.text(name) or ""} - {""}
            case (
                ast.Call(func=ast.Attribute(value=value, attr="get" | "pop"), args=[name, *_])
                | ast.Subscript(value=value, slice=name)
            ) if "sys.modules" in self.names(value, depth + 1):
                return {self.text(name) or ""} - {""}
            case ast.NamedExpr(value=value):
                return self.names(value, depth + 1)
            case ast.IfExp(body=one, orelse=other):
                return self.names(one, depth + 1) | self.names(other, depth + 1)
            case ast.BoolOp(values=values):
                return set().union(*(self.names(value, depth + 1) for value in values))
        return set()

    def _members(self, value: ast.expr, name: str | None, depth: int) -> set[str]:
        return set() if name is None else {member(base, name) for base in self.names(value, depth + 1)}

    def imports(self, node: ast.Call) -> bool:
        """Return whether a call imports the module that its first argument names."""
        if isinstance(node.func, ast.Name) and node.func.id == "__import__":
            return True
        return not self.names(node.func).isdisjoint({"importlib.import_module", "builtins.__import__"})

    def _run_at_import(self) -> Iterator[ast.AST]:
        """Yield the nodes that run at import, also those in functions of the file that are called then."""
        waiting: list[ast.AST] = [self.nodes[0]]
        seen = set[int]()
        while waiting:
            node = waiting.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            yield node
            if isinstance(node, ast.If) and _never_imported(node.test):
                waiting += node.orelse
            elif isinstance(node, Function):
                waiting += [*node.decorator_list, node.args]
                waiting += [part for each in node.decorator_list for part in self._called(each)]
            elif isinstance(node, ast.Lambda):
                waiting.append(node.args)
            else:
                waiting += ast.iter_child_nodes(node)
                if isinstance(node, ast.Call):
                    waiting += self._called(node.func)

    def _called(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the statements that a call of a function or class of the file runs."""
        if isinstance(node, ast.Call):
            node = node.func
        for each in self.defined[node.id] if isinstance(node, ast.Name) else ():
            methods = each.body if isinstance(each, ast.ClassDef) else [each]
            for method in methods:
                if isinstance(method, Function):
                    yield from method.body


def _never_imported(test: ast.expr) -> bool:
    """Return whether a condition is `__name__ == "__main__"` or `TYPE_CHECKING`."""
    match test:
        case ast.Compare(
            left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant(value="__main__")]
        ):
            return True
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return True
    return False


def member(base: str, name: str) -> str:
    """Return the full name of a module's member. Another module's reference to an opener is the opener itself."""
    plain = name.lstrip("_")
    if plain == base:  # such as signal.signal
        return f"{base}.{name}"
    if plain in insides.ALWAYS or (
        plain in insides.OPENERS and base.partition(".")[0] in insides.REPLACEABLE
    ):
        return plain
    return f"{base}.{name}"

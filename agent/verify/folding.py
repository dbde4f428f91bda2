"""Compute the value of an expression that consists of constants, without running it.

Code can hide a name from readers: `"g" + "c"`, `"".join(map(chr, [103, 99]))`, `b64decode("Z2M=").decode()`.
"""

from __future__ import annotations

import ast
import base64
import binascii
import codecs
import operator
from collections.abc import Callable, Mapping
from typing import Any

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

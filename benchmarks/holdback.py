"""Hold back a part of the tests, to see whether a patch does more than satisfy the tests that it was shown."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TypeVar

Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = TypeVar("Node", bound=ast.AST)
Files = dict[str, bytes | None]
"""New contents of test files by path; None removes the file."""

RAISES = frozenset({"raises", "assertRaises", "assertRaisesRegex", "assertRaisesRegexp", "warns"})


def functions_of(idents: Iterable[str]) -> list[str]:
    """Return the test functions of test ids, sorted and without duplicates: `path::Class::name` without parameters."""
    return sorted({ident.partition("[")[0] for ident in idents})


def without_functions(contents: Mapping[str, bytes], given: Sequence[str], held: Sequence[str]) -> Files:
    """Return test files in which the functions `held` do nothing.

    If a function cannot be found, its whole file is removed, unless it contains one of `given`.
    """
    files: Files = {}
    for path, names in groupby(sorted(held), key=_path):
        nodes = [(name, find(contents[path], name)) for name in names]
        found = [node for _, node in nodes if node is not None]
        if len(found) == len(nodes) or path in {_path(name) for name in given}:
            spans = [_span(contents[path], node) for node in found]
            files[path] = replaced(contents[path], [(start, end, b"pass") for start, end in spans])
        else:
            files[path] = None
    return files


def without_checks(new: bytes, old: bytes, name: str) -> tuple[bytes, str] | None:
    """Return the test file `new` without the last half of the checks that function `name` has there but not in `old`.

    Checks are the entries of a `parametrize` list, else the assertions in the function itself. Returns the file and a
    description of what was held back, or None if there are fewer than two such checks.
    """
    function, before = find(new, name), find(old, name)
    if function is None:
        return None
    for values, known in zip(*_paired(_parameters(function), _parameters(before)), strict=True):
        added = _added(values, known)
        if len(added) > 1:
            held = added[len(added) - len(added) // 2 :]
            kept = [value for value in values if value not in held]
            start, end = _span(new, values[0])[0], _span(new, values[-1])[1]
            text = b", ".join(new[slice(*_span(new, value))] for value in kept)
            words = f"{len(held)} of {len(added)} parameters"
            return replaced(new, [(start, end, text)]), words
    checks = _added(_assertions(function), _assertions(before))
    if len(checks) < 2:
        return None
    last = checks[len(checks) - len(checks) // 2 :]
    edits = [(*_span(new, statement), b"pass") for statement in last]
    return replaced(new, edits), f"{len(last)} of {len(checks)} assertions"


def find(content: bytes, name: str) -> Function | None:
    """Return the last definition of `path::Class::name` in a test file, or None."""
    try:
        body: Sequence[ast.stmt] = ast.parse(content).body
    except (SyntaxError, ValueError):
        return None
    *classes, function = name.split("::")[1:]
    for part in classes:
        inner = [node.body for node in body if isinstance(node, ast.ClassDef) and node.name == part]
        if not inner:
            return None
        body = inner[-1]
    found = [node for node in body if isinstance(node, Function) and node.name == function]
    return found[-1] if found else None


def replaced(content: bytes, edits: Iterable[tuple[int, int, bytes]]) -> bytes:
    """Return the content with these spans (byte offsets, not overlapping) replaced."""
    for start, end, text in sorted(edits, reverse=True):
        content = content[:start] + text + content[end:]
    return content


def _path(name: str) -> str:
    return name.partition("::")[0]


def _span(content: bytes, node: ast.stmt | ast.expr) -> tuple[int, int]:
    """Return the byte offsets of a node's start, including its decorators, and of its end."""
    starts = [0]
    for line in content.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    start, end = starts[node.lineno - 1] + node.col_offset, starts[(node.end_lineno or node.lineno) - 1]
    if isinstance(node, Function) and node.decorator_list:
        first = node.decorator_list[0]
        start = content.rindex(b"@", 0, starts[first.lineno - 1] + first.col_offset)
    return start, end + (node.end_col_offset or 0)


def _parameters(function: Function | None) -> list[list[ast.expr]]:
    """Return the values of each `parametrize` decorator that lists them literally."""
    found = []
    for decorator in function.decorator_list if function else ():
        match decorator:
            case ast.Call(
                func=ast.Attribute(attr="parametrize"),
                args=[_, ast.List(elts=values) | ast.Tuple(elts=values), *_],
            ):
                found.append(values)
            case _:
                pass
    return found


def _paired(
    new: list[list[ast.expr]], old: list[list[ast.expr]]
) -> tuple[list[list[ast.expr]], list[list[ast.expr]]]:
    """Return `new`, and `old` with the same length: missing entries are empty lists."""
    return new, [*old, *([] for _ in new)][: len(new)]


def _assertions(function: Function | None) -> list[ast.stmt]:
    """Return the statements of a function's own body that check something."""
    return [statement for statement in (function.body if function else ()) if _checks(statement)]


def _checks(statement: ast.stmt) -> bool:
    match statement:
        case ast.Assert():
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name))):
            return name.startswith("assert") or name in RAISES
        case ast.With(items=[ast.withitem(context_expr=ast.Call(func=called)), *_]):
            return (getattr(called, "attr", None) or getattr(called, "id", None)) in RAISES
        case _:
            return False


def _added(new: Sequence[Node], old: Sequence[ast.AST]) -> list[Node]:
    """Return the nodes of `new` that are not in `old`, compared by their syntax."""
    known = [ast.dump(node) for node in old]
    added = []
    for node in new:
        text = ast.dump(node)
        if text in known:
            known.remove(text)
        else:
            added.append(node)
    return added

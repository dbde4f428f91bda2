"""Find what a patch adds to or changes in an existing test file."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence

from m3agent.sandbox.python_ast import parse

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def changed_tests(old: bytes, new: bytes) -> set[str] | None:
    """Return the top-level functions and classes that are new or changed in a test file.

    Returns:
        Their names. None if the change may affect other tests of the file: other statements changed, a fixture changed,
        something that other code of the file uses changed, or the file cannot be parsed.
    """
    try:
        before, after = parse(old), parse(new)
    except (SyntaxError, ValueError, RecursionError):
        return None
    if _others(before) != _others(after) or not _only_adds_imports(before, after):
        return None
    known = {node.name: ast.dump(node) for node in _definitions(before)}
    defined = list(_definitions(after))
    changed = {node.name for node in defined if known.get(node.name) != ast.dump(node)}
    if len({node.name for node in defined}) < len(defined):
        return None  # the last of several definitions counts, which is more than names can say
    for node in after.body:
        own = node.name if isinstance(node, Definition) else ""
        if _is_fixture(node) and own in changed:
            return None
        if not changed.isdisjoint(_names_used(node) - {own}):
            return None
    return changed


def only_adds(old: bytes, new: bytes) -> bool:
    """Return whether a change of a file only adds functions, classes and other statements, also inside of classes."""
    try:
        return _has_all(parse(old).body, parse(new).body)
    except (SyntaxError, ValueError, RecursionError):
        return False


def only_adds_lines(old: bytes, new: bytes) -> bool:
    """Return whether a change of a file in another language than Python only adds lines."""
    lines = iter(new.split(b"\n"))
    return all(line in lines for line in old.split(b"\n"))


def _has_all(old: Sequence[ast.stmt], new: Sequence[ast.stmt]) -> bool:
    left = Counter(ast.dump(node) for node in new)
    classes = {node.name: node for node in new if isinstance(node, ast.ClassDef)}
    for node in old:
        text = ast.dump(node)
        same = classes.get(node.name) if isinstance(node, ast.ClassDef) else None
        if left[text]:
            left[text] -= 1
        elif same is None or not isinstance(node, ast.ClassDef) or not _has_all(node.body, same.body):
            return False
    return True


def _definitions(module: ast.Module) -> Iterator[Definition]:
    return (node for node in module.body if isinstance(node, Definition))


def _others(module: ast.Module) -> list[str]:
    """Return the statements that are neither definitions nor imports."""
    kinds = (*Definition.__args__, ast.Import, ast.ImportFrom)
    return [ast.dump(node) for node in module.body if not isinstance(node, kinds)]


def _imports(module: ast.Module) -> dict[str, str]:
    """Map each name that an import at the top level binds to what it binds."""
    found = {}
    for node in module.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                origin = f"{node.level}.{node.module}" if isinstance(node, ast.ImportFrom) else ""
                found[alias.asname or alias.name] = f"{origin} {alias.name}"
    return found


def _only_adds_imports(before: ast.Module, after: ast.Module) -> bool:
    """Return whether imports are at most added, without a name that the file used or defined before."""
    old, new = _imports(before), _imports(after)
    added = new.keys() - old.keys()
    taken = {name for node in before.body for name in _names_used(node)}
    taken |= {node.name for node in _definitions(before)}
    return all(new.get(name) == origin for name, origin in old.items()) and added.isdisjoint({*taken, "*"})


def _is_fixture(node: ast.stmt) -> bool:
    decorators = getattr(node, "decorator_list", ())
    return any("fixture" in ast.dump(decorator) for decorator in decorators)


def _names_used(node: ast.AST) -> set[str]:
    """Return the names, the arguments (pytest's fixtures among them) and the texts in a statement."""
    found = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            found.add(inner.id)
        elif isinstance(inner, ast.arg):
            found.add(inner.arg)
        elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            found.add(inner.value)
    return found

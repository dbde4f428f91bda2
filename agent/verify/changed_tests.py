"""Compare versions of a test file: which tests are new or changed, and does a change only add something?"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence

from m3agent.agent.verify.python_file import Definition, definitions_in, imports_in, is_fixture
from m3agent.util.python_ast import parsed


def changed_tests(old: bytes, new: bytes) -> set[str] | None:
    """Return the top-level functions and classes that are new or changed in a test file.

    Returns their names. None if the change may affect other tests of the file: other statements changed, a
    fixture changed, something that other code of the file uses changed, or the file cannot be parsed.
    """
    before, after = parsed(old), parsed(new)
    if before is None or after is None:
        return None
    if _others(before) != _others(after) or not _only_adds_imports(before, after):
        return None
    known = {node.name: ast.dump(node) for node in definitions_in(before)}
    now = {node.name: ast.dump(node) for node in definitions_in(after)}
    changed = {name for name, text in now.items() if known.get(name) != text}
    if len(now) < len(definitions_in(after)):
        return None  # the last of several definitions counts, which is more than names can say
    for node in after.body:
        own = node.name if isinstance(node, Definition) else ""
        if (own in changed and is_fixture(node)) or not changed.isdisjoint(_names_used(node) - {own}):
            return None
    return changed


def only_adds(old: bytes, new: bytes) -> bool:
    """Return whether a change of a file only adds functions, classes and other statements, also inside of classes."""
    before, after = parsed(old), parsed(new)
    return before is not None and after is not None and _has_all(before.body, after.body)


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


def _others(module: ast.Module) -> list[str]:
    """Return the statements that are neither definitions nor imports."""
    kinds = Definition | ast.Import | ast.ImportFrom
    return [ast.dump(node) for node in module.body if not isinstance(node, kinds)]


def _only_adds_imports(before: ast.Module, after: ast.Module) -> bool:
    """Return whether imports are at most added, without a name that the file used or defined before."""
    old, new = ({bound: origin for bound, *origin in imports_in(module.body)} for module in (before, after))
    taken = {name for node in before.body for name in _names_used(node)} | {"*"}
    taken |= {node.name for node in definitions_in(before)}
    return old.items() <= new.items() and taken.isdisjoint(new.keys() - old.keys())


def _names_used(node: ast.AST) -> set[str]:
    """Return the names, the arguments (pytest's fixtures among them) and the texts in a statement."""
    found = set()
    for inner in ast.walk(node):
        match inner:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Constant(value=str() as name):
                found.add(name)
    return found

"""Follow the names of a Python file through its syntax tree: what they stand for, and what runs at import."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from m3agent.agent.verify import insides
from m3agent.agent.verify.folding import Folder
from m3agent.agent.verify.python_file import Definition, Function, imports_in

MOST_MEANINGS = 16
"""Full names that one name may have. `x = x.a` in a row would otherwise double them each time."""


class Syntax:
    """The syntax tree of one file.

    Attributes:
        nodes: All nodes, outer ones first.
        parents: Each node's parent, by the node's `id`.
        defined: The functions and classes of the file, by their names.
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
        self.bound: dict[str, set[str]] = {}
        self.folder = Folder()
        self._bind()

    @cached_property
    def at_import(self) -> set[int]:
        """The `id` of each node that runs while the file is imported."""
        return set(map(id, self._run_at_import()))

    def _bind(self) -> None:
        """Collect what the file's names stand for. Scopes are ignored: a name stands for all its values."""
        for bound, level, module, name in imports_in(self.nodes):
            if name:
                self._bind_name(bound, member("." if level else module, name))
            elif bound == module:
                self._bind_name(module.partition(".")[0], module.partition(".")[0])
            else:
                self._bind_name(bound, module)
        stored: dict[str, list[ast.expr | None]] = {}
        for node in self.nodes:
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                stored.setdefault(node.id, []).extend(self._values_of(node))
        for _ in range(2):  # an alias of an alias
            for name, values in stored.items():
                for value in values:
                    self._bind_name(name, *(() if value is None else self.names(value)))
        for name, values in stored.items():
            if len(values) == 1 and values[0] is not None and name not in self.bound:
                value = self.folder.value(values[0])
                if value is not None:
                    self.folder.names[name] = value

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
            ):
                return (
                    {self.text(name) or ""} - {""} if "sys.modules" in self.names(value, depth + 1) else set()
                )
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

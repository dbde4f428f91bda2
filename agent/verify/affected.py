"""Find the code of the base tree through which a patch can influence tests.

While the base tree's tests run, a recorder notes which functions each test executes. A test that executes no affected
function has the same outcome on the patched tree.

Code outside of functions runs when its module is imported, whichever test runs. A change of it affects all tests,
unless unchanged code cannot notice the change.
"""

from __future__ import annotations

import ast
import copy
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from m3agent.agent.verify.patched_files import Contents
from m3agent.agent.verify.python_file import Definition, Function, imports_in
from m3agent.util.python_ast import parse

PROSE_FOLDERS = frozenset({"doc", "docs", "newsfragments", "changelog", "changelog.d", "changes", "news"})
PROSE_NAMES = frozenset(
    {"changelog", "changes", "history", "news", "authors", "contributors", "readme", "contributing"}
)
PROSE_SUFFIXES = frozenset({".md", ".rst", ".txt"})
FILES_OF_GIT = frozenset({".mailmap", ".gitignore", ".git-blame-ignore-revs"})
"""Only git reads these, and there is no git history where tests run."""
PLAIN_DECORATORS = frozenset(
    {"staticmethod", "classmethod", "property", "cached_property", "setter", "getter", "deleter"}
    | {"cache", "lru_cache", "contextmanager", "asynccontextmanager", "wraps", "overload", "override"}
)
"""Decorators that register their function nowhere and do not read its signature."""


@dataclass(frozen=True)
class Affected:
    """The code of the base tree through which a patch can influence tests."""

    everything: str
    """Why the patch can influence every test, as a short clause for people such as "pyproject.toml is not Python code". All
    else is then empty. Empty if the patch is attributed to functions."""
    spans: Mapping[str, Sequence[tuple[int, int]]]
    """By path, the first and last lines (1-based, inclusive, decorators included) of the changed functions in the base tree.
    A test that executes code that begins in a span is affected."""
    modules: frozenset[str]
    """Paths of which every function counts."""
    names: frozenset[str]
    """Names of functions and methods that the patch adds or removes. A test that executes a function of such a name, in any
    file, is affected: one may override the other."""

    def has(self, path: str, line: int, name: str) -> bool:
        """Return whether a function with this path, first line and name (plain or qualified) is affected."""
        if self.everything or path in self.modules or name.rpartition(".")[2] in self.names:
            return True
        return any(first <= line <= last for first, last in self.spans.get(path, ()))


def affected_code(changes: Contents, collected: Collection[str] = ()) -> Affected:
    """Find the code that a test has to execute on the base tree so that a patch can influence it.

    Args:
        collected: Paths of files in which the base tree's runner found tests. Their prose and docstrings are tests.
    """
    found: dict[str, _Comparison] = {}
    try:
        for path, (old, new) in changes.items():
            if old != new and (path in collected or not _is_prose(path)):
                found[path] = _Comparison(path, old, new, reads_texts=path in collected)
    except _Everything as reason:
        return Affected(str(reason), {}, frozenset(), frozenset())
    return Affected(
        everything="",
        spans={path: tuple(sorted(one.spans)) for path, one in found.items() if one.spans},
        modules=frozenset(path for path, one in found.items() if one.whole),
        names=frozenset(name for one in found.values() for name in one.names),
    )


def _is_prose(path: str) -> bool:
    pure = PurePosixPath(path.lower())
    if pure.suffix not in PROSE_SUFFIXES:
        return pure.name in PROSE_NAMES or pure.name in FILES_OF_GIT
    return pure.stem in PROSE_NAMES or not PROSE_FOLDERS.isdisjoint(pure.parts[:-1])


class _Everything(Exception):
    """A change that is not attributed to functions; the text says why."""


class _Comparison:
    """What the change of one file affects: lines in the old file, names, and whether the whole file counts."""

    def __init__(self, path: str, old: bytes | None, new: bytes | None, *, reads_texts: bool) -> None:
        self.spans: set[tuple[int, int]] = set()
        self.names: set[str] = set()
        self.whole = False
        self._path = path
        if not path.endswith(".py"):
            raise _Everything(f"{path} is not Python code")
        if PurePosixPath(path).name in ("setup.py", "conftest.py"):
            raise _Everything(f"{path} is run by the tools that build or test the project")
        if old is None or new is None:
            raise _Everything(f"{path} is {'new' if old is None else 'deleted'}")
        try:
            (before, taken), (after, _) = _parse(old), _parse(new)
            self._reads_texts = reads_texts or "__doc__" in taken
            self._compare_modules(before, after, taken)
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # a parser's limits raise the last two
            raise _Everything(f"{path} cannot be parsed") from None

    def _compare_modules(self, old: ast.Module, new: ast.Module, taken: set[str]) -> None:
        functions, present = _functions_of(old), {each.name for each in _functions_of(new)}
        for each in functions:
            if each.name not in present:
                raise self._outside(each)  # other modules may import it
        for node in self._compare_blocks(old.body, new.body):
            name = _bound_name(node)
            # The other definitions of a function that has several are affected as well.
            again = isinstance(node, Function) and any(each.name == name for each in functions)
            if not name or _is_special(name) or (name in taken and not again):
                raise self._outside(node)
            if isinstance(node, Function):
                self.names.add(name)
                self.whole |= not _has_plain_decorators(node)
            elif isinstance(node, ast.ClassDef):  # a base class or a decorator may register it
                self.whole |= bool(node.decorator_list or node.bases or node.keywords)

    def _compare_classes(self, old: ast.ClassDef, new: ast.ClassDef) -> None:
        if _without_bodies(old, [old]) != _without_bodies(new, [new]):
            raise self._outside(old)
        for node in self._compare_blocks(old.body, new.body):
            # Python itself calls special methods, and decorators such as abstractmethod change the class. A test can
            # notice both without executing a function of this file.
            if not isinstance(node, Function) or _is_special(node.name) or not _has_plain_decorators(node):
                raise self._outside(node)
            self.names.add(node.name)
            self.whole = True

    def _compare_blocks(self, old: Sequence[ast.stmt], new: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Compare the statements of a module or a class, and return the added ones."""
        before, after = self._by_key(old), self._by_key(new)
        kept, kept_now = filter(after.__contains__, before), filter(before.__contains__, after)
        for key, moved in zip(kept, kept_now, strict=True):
            if key != moved:
                raise self._outside(after[moved])
        for key, node in before.items():
            other = after.get(key)
            if isinstance(node, Function) and isinstance(other, Function):
                self._compare_functions(node, other)
            elif isinstance(node, Function):
                self.spans.add(_span(node))
                self.names.add(node.name)
                self.whole = True
            elif other is None:
                raise self._outside(node)
            elif isinstance(node, ast.ClassDef) and isinstance(other, ast.ClassDef):
                self._compare_classes(node, other)
        return [node for key, node in after.items() if key not in before]

    def _by_key(self, block: Sequence[ast.stmt]) -> dict[tuple[str, str, int, int], ast.stmt]:
        """Return the statements that do something, in order, each by a key that finds it on the other side.

        The key is the kind, the name or the text, the position among equal ones, and their number.
        """
        nodes = [(_identity(node), node) for node in _single_imports(block) if not self._is_idle(node)]
        totals, seen = Counter(identity for identity, _ in nodes), Counter[tuple[str, str]]()
        found = {}
        for identity, node in nodes:
            seen[identity] += 1
            found[*identity, seen[identity], totals[identity]] = node
        return found

    def _is_idle(self, node: ast.stmt) -> bool:
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        return isinstance(node, ast.Pass) or (text and not self._reads_texts)

    def _compare_functions(self, old: Function, new: Function) -> None:
        if [*map(ast.dump, old.decorator_list)] != [*map(ast.dump, new.decorator_list)]:
            raise self._outside(old)
        if not _has_plain_decorators(old) and _without_bodies(old, [old]) != _without_bodies(new, [new]):
            self.whole = True  # a decorator such as singledispatch's reads the signature
        self._compare_bodies(old, new)

    def _compare_bodies(self, old: Function, new: Function) -> None:
        """Add the innermost functions that contain the differences."""
        inner, new_inner = list(_functions_in(old)), list(_functions_in(new))
        if _without_bodies(old, inner) != _without_bodies(new, new_inner):
            self.spans.add(_span(old))
            return
        for one, other in zip(inner, new_inner, strict=True):
            self._compare_bodies(one, other)

    def _outside(self, node: ast.stmt) -> _Everything:
        return _Everything(f"{self._path} changes outside of functions (line {node.lineno})")


def _parse(source: bytes) -> tuple[ast.Module, set[str]]:
    """Return the syntax tree, and the names that the file binds at module level or uses anywhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as invalid escapes in other people's code
        module = parse(source)
        # The parser accepts code that cannot be compiled, such as `await` in a plain function.
        code = compile(source, "<file>", "exec", dont_inherit=True)
    # What the module level binds is among the names of its code. A docstring alone binds `__doc__`.
    names = {name for name in code.co_names if name != "__doc__"}
    for node in ast.walk(module):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Global):
            names.update(node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)  # such as an argument of getattr
    return module, names


def _identity(node: ast.stmt) -> tuple[str, str]:
    if isinstance(node, Function):
        return "function", node.name
    return ("class", node.name) if isinstance(node, ast.ClassDef) else ("other", ast.dump(node))


def _single_imports(block: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements, with an import of several names as several imports."""
    for node in block:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                one = copy.copy(node)
                one.names = [alias]
                yield one
        else:
            yield node


def _bound_name(node: ast.stmt) -> str:
    """Return the name that a statement binds; empty if it binds another number of names or may do more."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.Import() | ast.ImportFrom():
            ((bound, _, module, name),) = imports_in([node])
            return "" if module == "__future__" or name == "*" else bound.partition(".")[0]
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return "" if any(isinstance(inner, ast.NamedExpr) for inner in ast.walk(node)) else name
    return ""


def _functions_of(module: ast.Module) -> list[Function]:
    return [node for node in module.body if isinstance(node, Function)]


def _functions_in(node: ast.AST) -> Iterator[Function]:
    """Yield the functions in a function, without those in them."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield child
        else:
            yield from _functions_in(child)


def _without_bodies(node: ast.AST, definitions: Sequence[Definition]) -> str:
    """Return a text that stands for the code of a node without the bodies of these definitions."""
    bodies = [one.body for one in definitions]
    for one in definitions:
        one.body = []
    text = ast.dump(node)
    for one, body in zip(definitions, bodies, strict=True):
        one.body = body
    return text


def _has_plain_decorators(node: Function) -> bool:
    called = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
    return all(ast.unparse(one).rpartition(".")[2] in PLAIN_DECORATORS for one in called)


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _span(node: Function) -> tuple[int, int]:
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    return first, node.end_lineno or node.lineno

"""Read in one source file where it reaches for the insides of the interpreter or of the test runner.

The syntax tree is read, never run. Names are followed through imports, assignments and `getattr`, and texts through
expressions that consist of constants. A reader cannot follow everything that Python can do: it makes forging harder and
more visible, not impossible.
"""

from __future__ import annotations

import ast
import re
import tokenize
import unicodedata
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from m3agent.agent.verify import insides
from m3agent.agent.verify.comparisons import always_the_same, ignores_question
from m3agent.agent.verify.outside import Outside
from m3agent.agent.verify.python_file import Definition, Function, imports_in, last_name, lines_of, nodes_in
from m3agent.agent.verify.syntax import DECODERS, Syntax, member
from m3agent.util.python_ast import parse, parsed

MOST_SOURCE = 4 << 20
"""Largest source file that is read, in bytes. Parsing takes about a second and 300 MiB of memory per MiB."""
ASSIGNERS = frozenset({"setattr", "delattr"})
CLASS_NAMES = frozenset({"__class__", "__bases__"})
PLACES = frozenset({"__name__", "__file__"})
"""Global names of a module that say which module it is."""
HOOK = "pytest_"
"""Begin of the names of hooks, and of the variable that names plugins."""
PRINTS = re.compile(r"\b(?:open|glob|rglob|read_text|read_bytes|walk|scandir|listdir|iterdir)\(")
"""What a program calls that finds or reads files."""
MOST_NAME = 40
"""Characters of a text that tell it from others."""


@dataclass(frozen=True)
class Reach:
    """A place that reaches for the insides, or decides in another language how tests compare."""

    line: int
    """Line number, from 1."""
    name: str
    """The name that it uses, such as `sys._getframe`."""
    what: str
    """What it does, as a phrase of `insides`."""


def reaches(path: str, source: bytes, *, in_tests: bool) -> list[Reach]:
    """Return the places of a Python file that reach for the insides.

    Args:
        in_tests: Whether the file belongs to the tests. Then only `insides.IN_TESTS` counts.
    """
    places: list[Reach] = []
    if not _shows_what_is_read(source):
        places.append(Reach(1, "encoding", insides.UNREADABLE))
    try:
        if len(source) > MOST_SOURCE:
            raise MemoryError
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as invalid escapes in other people's code
            places += _Reader(path, parse(source), in_tests=in_tests).found
    except (RecursionError, MemoryError):  # too large, or nested too deeply
        places.append(Reach(1, "size", insides.UNREADABLE))
    except (SyntaxError, ValueError):  # another version of Python, or null bytes
        places += _words(source)
    return [place for place in places if not _is_usual(place.what, path, in_tests=in_tests)]


def _is_usual(what: str, path: str, *, in_tests: bool) -> bool:
    """Return whether a file of this name honestly does something."""
    if in_tests:
        return what not in insides.IN_TESTS
    if path == "setup.py" and what == insides.RUNS_TEXT:
        return True
    pure = PurePosixPath(path)
    if what == insides.SETS and pure.name in {*insides.BUILD_FILES, "conf.py"}:  # the latter is Sphinx's
        return True
    names_runner = pure.name in insides.BUILD_FILES or any("test" in part for part in pure.parts)
    return names_runner and what in {insides.RUNNER, insides.FINDS_TESTS}


def _shows_what_is_read(source: bytes) -> bool:
    """Return whether the file's encoding shows a person what the interpreter reads."""
    lines = iter(source[:2048].splitlines(keepends=True))
    try:
        encoding, _ = tokenize.detect_encoding(lambda: next(lines, b""))
    except SyntaxError:  # unknown, so the interpreter refuses the file; or our cut is inside of a character
        return True
    return encoding in insides.CODECS


def shows(source: bytes, line: int, names: Collection[str]) -> bool:
    """Return whether a line of a file has one of these names, or an attribute of this name. `reaches` judges it then."""
    return any(
        isinstance(node, ast.Attribute | ast.Name)
        and node.lineno <= line <= (node.end_lineno or 0)
        and last_name(node) in names
        for node in nodes_in(parsed(source))
    )


def _words(source: bytes) -> Iterator[Reach]:
    """Yield the names of insides in a file that cannot be parsed, such as code for another version of Python."""
    for number, line in enumerate(lines_of(source), 1):
        plain = unicodedata.normalize("NFKC", line).replace("\0", "")
        for match in insides.PLAIN.finditer(plain):
            yield Reach(number, match[0], insides.what_of(match[0]))


def _searches(text: str) -> bool:
    """Return whether a word of a command starts a program that prints files, or a program in it does so itself."""
    words = re.findall(r"(?:^|[|;&(`]\s*)([\w./-]+)(?!\w)", text)
    return any(PurePosixPath(word).name in insides.SEARCHERS for word in words) or bool(PRINTS.search(text))


class _Reader(Syntax):
    """Reads one syntax tree; the results are in `found`."""

    def __init__(self, path: str, module: ast.Module, *, in_tests: bool) -> None:
        self.found: list[Reach] = []
        self._in_tests = in_tests
        self._lists_names = in_tests or PurePosixPath(path).name in insides.BUILD_FILES
        first, _, rest = path.partition("/")
        self._own = rest.partition("/")[0] if rest and first in {"src", "lib"} else first
        super().__init__(module)
        self._taken = self.bound.keys() | {node.name for node in module.body if isinstance(node, Definition)}
        for node in self.nodes:
            self._read(node)
        if not in_tests:
            for node, what in Outside(self).places():
                self._add(node, what, what)
        if self.folder.steps <= 0:
            self.found.append(Reach(1, "constants", insides.UNREADABLE))
        self.found.sort(key=lambda one: one.line)

    def _add(self, node: ast.AST, name: str, what: str) -> None:
        self.found.append(Reach(getattr(node, "lineno", 1), name, what))

    def _read(self, node: ast.AST) -> None:
        match node:
            case ast.Import() | ast.ImportFrom():
                for _, level, module, name in imports_in([node]):
                    full = member(module, name) if name else module
                    self._imported(node, f".{module}.{name}" if level else full)
            case ast.Attribute():
                self._attribute(node)
            case ast.Name(ctx=ast.Load()):
                self._name(node)
            case ast.Call():
                self._call(node)
            case ast.Constant(value=str() as text):
                self._text(node, text)
            case _:
                self._definition(node)
        if isinstance(node, ast.BinOp | ast.Call | ast.Subscript | ast.JoinedStr):
            hidden = self.text(node)
            if hidden is not None and (hidden in insides.NAMED_HIDDEN or insides.WORDS.search(hidden)):
                self._add(node, repr(hidden[:MOST_NAME]), insides.HIDDEN)

    def _definition(self, node: ast.AST) -> None:
        """Read what gives names: of functions, of variables, of a class's members, and of attributes in a pattern."""
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                self._defined(node, name, node)
                if name.startswith(HOOK):
                    self._add(node, name, insides.HOOKS)
            case ast.Assign(targets=[ast.Name(id=name) | ast.Attribute(attr=name) as target], value=value):
                self._defined(node, name, value)
                if name.startswith(HOOK) and isinstance(target, ast.Name):
                    self._add(node, f"{name} = {ast.unparse(value)}", insides.HOOKS)
            case ast.alias(asname=str() as name) if name.startswith(HOOK):
                self._add(node, name, insides.HOOKS)
            case ast.Dict(keys=keys, values=values):  # the third argument of `type`
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        self._defined(value, key.value, value)
            case ast.MatchClass(kwd_attrs=attributes):
                for attribute in attributes:
                    if attribute in insides.ATTRIBUTES:
                        self._add(node, attribute, insides.ATTRIBUTES[attribute])

    def _defined(self, node: ast.AST, name: str, value: ast.AST) -> None:
        """Read what gets a name that Python itself uses."""
        functions = self.defined[value.id] if isinstance(value, ast.Name) else [value]
        if any(isinstance(each, Function | ast.Lambda) and always_the_same(name, each) for each in functions):
            self._add(node, name, insides.EQUAL)
        if name == "__class__":
            self._add(node, name, insides.CLASS)
        if ignores_question(value, self.parents[id(node)]):
            self._add(node, name, insides.SAME)

    def _imported(self, node: ast.AST, full: str) -> None:
        root, _, last = full.partition(".")
        what = insides.of_member(full, insides.MODULES | insides.MEMBERS)
        if self._is_own(full) or full.startswith("_pytest.outcomes."):
            return
        if what:
            self._add(node, full, what)
        elif root in insides.PRIVATE_MODULES:
            self._add(node, full, insides.FUNCTIONS)
        elif last.endswith("*") and root in insides.OPENERS:
            self._add(node, full, insides.PASSES_ON)
        elif last.partition(".")[2] in insides.ATTRIBUTES or last in insides.ATTRIBUTES:
            self._add(node, full, insides.ATTRIBUTES[last.rpartition(".")[2]])
        elif any(part == "tests" or part.startswith("test_") for part in full.split(".")):
            self._add(node, full, insides.IN_RUNNER)

    def _attribute(self, node: ast.Attribute) -> None:
        parent = self.parents[id(node)]
        if node.attr == "__traceback__" and self._hands_on(node):
            self._add(node, node.attr, insides.FRAMES)
        part = parent.attr if isinstance(parent, ast.Attribute) else ""
        # the facts about a function's code, such as the number of its arguments
        is_fact = node.attr == "__code__" and part.startswith("co_")
        if node.attr in insides.ATTRIBUTES and not is_fact and not self._names_caller(node):
            self._add(node, node.attr, insides.ATTRIBUTES[node.attr])
        if node.attr == "pluginmanager" and part not in insides.PLUGINS_ASKED:
            self._add(node, node.attr, insides.HOOKS)
        if not isinstance(node.ctx, ast.Load):
            if node.attr in CLASS_NAMES:
                self._add(node, node.attr, insides.CLASS)
            self._replaced(node, self.names(node.value), node.attr)
        for full in self.names(node):
            self._member(node, full, parent)

    def _member(self, node: ast.Attribute, full: str, parent: ast.AST) -> None:
        """Read an attribute by one of its full names."""
        what = "" if self._is_own(full) else insides.of_member(full, insides.MEMBERS)
        what = what or insides.BY_FULL_NAME.get(full, "")
        is_dict = node.attr == "__dict__" and not isinstance(parent, ast.Compare)
        if what:
            self._add(node, full, what)
        elif is_dict and full.removesuffix(".__dict__") in insides.OPENERS:
            self._add(node, full, insides.PASSES_ON)
        else:
            self._used(node, full, parent)

    def _name(self, node: ast.Name) -> None:
        if node.id in insides.RUNS_CODE and node.id not in self._taken:
            self._add(node, node.id, insides.RUNS_CODE[node.id])
        for full in self.bound.get(node.id, ()):
            if full.startswith("builtins.") and full in insides.BY_FULL_NAME:
                self._add(node, full, insides.RUNS_TEXT)
            else:
                self._used(node, full, self.parents[id(node)])

    def _used(self, node: ast.expr, full: str, parent: ast.AST) -> None:
        """Read a use of `sys.modules`, of `import_module`, or of a module that leads to the insides."""
        is_called = isinstance(parent, ast.Call) and parent.func is node
        if full == "sys.modules":
            self._modules(node, parent)
        elif full == "importlib.import_module" and not is_called:
            self._add(node, full, insides.BY_NAME)
        elif full in insides.OPENERS and not self._names_member(node, parent):
            self._add(node, full, insides.PASSES_ON)

    def _names_member(self, node: ast.expr, parent: ast.AST) -> bool:
        """Return whether a module is used for one of its members only."""
        match parent:
            case ast.Attribute():
                return True
            case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[first, name, *_]):
                return first is node and self.text(name) is not None
        return False

    def _is_own(self, full: str) -> bool:
        """Return whether a name belongs to a test runner whose own code the file is."""
        root = full.partition(".")[0]
        return root == self._own and root in insides.TEST_RUNNERS

    def _names_caller(self, node: ast.Attribute) -> bool:
        """Return whether a frame is read only for the name or the place of the code that calls."""
        above = self.parents[id(node)]
        beyond = self.parents.get(id(above))
        frame = isinstance(node.value, ast.Call) and node.value.func
        match node.attr, above, beyond:
            case "_getframe", ast.Call(), ast.Attribute() as part:
                return self._names_caller(part)
            case ("f_globals", ast.Subscript(ctx=ast.Load(), slice=ast.Constant(value=key)), _) | (
                "f_globals",
                ast.Attribute(attr="get"),
                ast.Call(args=[ast.Constant(value=key), *_]),
            ):
                return key in PLACES
            case _ if not isinstance(frame, ast.Attribute) or frame.attr != "_getframe":
                return False
            case "f_lineno", _, _:
                return True
            case "f_code", ast.Attribute(attr=fact), _:
                return fact.startswith("co_")
        return False

    def _hands_on(self, node: ast.expr) -> bool:
        """Return whether a traceback becomes the argument of a function that may read its frames."""
        match self.parents[id(node)]:
            case ast.Attribute(attr="tb_next") as parent:
                return self._hands_on(parent)
            case ast.Call(
                func=ast.Attribute(attr="with_traceback" | "__exit__" | "__aexit__" | "throw" | "athrow")
            ):
                return False
            case ast.Call(func=func, args=args) if node in args:
                return not any(full.startswith("traceback.") for full in self.names(func))
        return False

    def _modules(self, node: ast.expr, parent: ast.AST) -> None:
        """Read a use of `sys.modules`."""
        match parent:
            case ast.Subscript(ctx=ast.Load(), slice=key):
                self._module_read(node, key)
            case ast.Attribute(attr="get"):
                call = self.parents[id(parent)]
                if isinstance(call, ast.Call) and call.args:
                    self._module_read(node, call.args[0])
            case ast.Compare(comparators=[other]) if other is node:
                pass  # `name in sys.modules`; a test's name is found by `_text`
            case ast.Attribute(attr="__contains__"):
                pass
            case _:
                self._add(node, "sys.modules", insides.IMPORTS)

    def _module_read(self, node: ast.expr, key: ast.expr) -> None:
        if (text := self.text(key)) is not None:
            if text == "__main__" or re.search(r"(?:^|[._])tests?(?:$|[._])", text):
                self._add(node, f"sys.modules[{text!r}]", insides.IN_RUNNER)
        elif not (isinstance(key, ast.Name) and key.id == "__name__") and not (
            isinstance(key, ast.Attribute) and key.attr in {"__module__", "__name__"}
        ):
            self._add(node, "sys.modules[...]", insides.BY_NAME)

    def _replaced(self, node: ast.AST, bases: set[str], name: str) -> None:
        for base in bases:
            root = base.partition(".")[0]
            inner = base.lstrip(".").split(".")[not base.startswith(".") :]
            if self._in_tests:
                counts = id(node) in self.at_import and bool(base) and root != self._own
            else:
                counts = (root and root != self._own) or not insides.REPLACEABLE.isdisjoint(inner)
            if counts and f"{base}.{name}" not in insides.MAY_BE_SET:
                self._add(node, f"{base}.{name}", insides.REPLACES)

    def _call(self, node: ast.Call) -> None:
        full, called, given = self.names(node.func), last_name(node.func), node.args
        is_method = isinstance(node.func, ast.Attribute)
        if self.imports(node) and given:
            if (text := self.text(given[0])) is None:
                self._add(node, "import_module", insides.BY_NAME)
            else:
                self._imported(node, text)
        if "pytest.hookimpl" in full and any(each.arg in {"specname", None} for each in node.keywords):
            self._add(node, ast.unparse(node), insides.HOOKS)
        if not full.isdisjoint(insides.MAKERS):
            self._add(node, min(full), insides.FUNCTIONS)
        if called in ASSIGNERS and not is_method and len(given) > 1:
            self._assigned(node, given[0], self.text(given[1]), given[2:])
        is_at_import = id(node) in self.at_import
        if not full.isdisjoint(insides.STARTERS):
            self._started(node, min(full), is_at_import=is_at_import)
        if is_at_import and (self._opens_to_write(node) or (is_method and called in insides.WRITERS)):
            self._add(node, called, insides.WRITES)
        if given:
            self._decoded(node, called, given[0])

    def _started(self, node: ast.Call, name: str, *, is_at_import: bool) -> None:
        """Read a call that starts a thread or a process."""
        if any(map(_searches, self._texts_given(node))):
            self._add(node, name, insides.SEARCHES)
        if is_at_import:
            self._add(node, name, insides.AT_IMPORT)

    def _assigned(
        self, node: ast.Call, owner: ast.expr, name: str | None, values: Sequence[ast.expr]
    ) -> None:
        """Read a call of `setattr` or `delattr`."""
        self._replaced(node, self.names(owner), "*" if name is None else name)
        if name in CLASS_NAMES:
            self._add(node, str(name), insides.CLASS)
        if name is not None and values:
            self._defined(node, name, values[0])

    def _decoded(self, node: ast.Call, called: str, first: ast.expr) -> None:
        """Read a call that may decode a text or code."""
        if called in DECODERS:
            value = self.folder.value(node)
            text = value.decode("latin-1") if isinstance(value, bytes) else value
            if isinstance(text, str) and len(text) > 1 and text.isascii() and text.isprintable():
                self._add(node, called, insides.HIDDEN)
        loaders = {"decompress"} if self._in_tests else {"decompress", "loads"}
        if called in loaders and isinstance(self.folder.value(first), bytes):
            self._add(node, called, insides.HIDDEN)

    def _texts_given(self, node: ast.Call) -> Iterator[str]:
        """Yield the texts in the arguments of a call, also those of variables."""
        waiting = list(ast.iter_child_nodes(node))
        known = set[str]()
        for each in waiting:  # grows meanwhile
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                yield each.value
            elif isinstance(each, ast.Name) and each.id not in known:
                known.add(each.id)
                waiting += filter(None, self.values.get(each.id, ()))
            waiting += ast.iter_child_nodes(each)

    def _opens_to_write(self, node: ast.Call) -> bool:
        if isinstance(node.func, ast.Attribute) or last_name(node.func) != "open":
            return False
        modes = [*node.args[1:2], *(each.value for each in node.keywords if each.arg == "mode")]
        return any(set(self.text(mode) or "") & set("wax+") for mode in modes)

    def _text(self, node: ast.Constant, text: str) -> None:
        parent = self.parents.get(id(node))
        match parent:
            case ast.Expr():  # a docstring
                return
            case ast.Call(func=ast.Name(id="hasattr")):
                return
            case ast.Compare(ops=[ast.Eq() | ast.NotEq()]):
                pass
            case ast.List() | ast.Tuple() | ast.Set() | ast.Dict() if self._lists_names:
                pass  # such as names to expect, or packages to install
            case _:
                match = insides.WORDS.search(text)
                is_listed = (
                    isinstance(parent, ast.List | ast.Tuple | ast.Set) and text in insides.PRIVATE_MODULES
                )
                if text in insides.NAMED and text not in insides.TEST_RUNNERS and not is_listed:
                    self._add(node, repr(text), insides.what_of(text))
                elif match:
                    self._add(node, repr(text[:MOST_NAME]), insides.what_of(match[1] or match[2]))
        if isinstance(parent, ast.Call | ast.Compare | ast.Subscript) and insides.TESTS_RUN.fullmatch(text):
            self._add(node, repr(text), insides.FINDS_TESTS)
        if insides.PROCESS_FILES.match(text):
            self._add(node, repr(text[:MOST_NAME]), insides.DESCRIPTORS)

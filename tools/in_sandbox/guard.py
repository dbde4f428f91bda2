"""Look for code under test that forges results in its own process.

- Canaries, tests that must fail, run among the real tests. They look like these: same file, name, class and kind.
  Code that forges passing tests also makes canaries pass.
- The functions of pytest, pluggy and unittest, and those behind pytest's hooks, are recorded before any of the code is
  imported. They are compared after the tests were imported, and at the end.
- The function of each collected test is compared before and after the test.
- The functions, classes and methods of all modules that were loaded before are compared by identity at the same times, and
  so are the plain functions of the libraries that are loaded later.
- Test modules, conftest.py files and other modules of the tests are recorded once they were imported, plain data by value.
  Each test compares its module and those that are no test modules before and after it runs. Nor may they get names that their
  source does not bind, such as `len`.
- A new module must not take the place of another one, such as one of an installed package.
- Helper modules in the folders of the tests must come from their files, and have the functions that these define.
- Code of the work tree that opens a test file, or a file in a folder of tests, whose path no test gave it, is noted, too.
- Code of the work tree that reads frames, also by way of the standard library, searches all objects or makes functions is
  noted. The interpreter itself reports it, so it does not matter how the code names what it reads. Python before 3.8 reports nothing (PEP 578), nor does PyPy;
  3.8 and 3.9 do not report all of it.

The report gets these lines: `forged`, what was found; `hook`, a function of the work tree that pytest calls: its
path, the name of the hook, and its own name; `reached`, a path, a line and what the code there reads; `blind`, what this guard cannot see; `canaries`, how many ran, and how many of
them failed. Some repositories have such findings without any patch. So the reader must leave those out that a run without
the patch has, too.
"""

from __future__ import annotations

import ast
import builtins
import dis
import marshal
import os
import random
import re
import sys
import types
from collections.abc import Iterator
from importlib.machinery import PathFinder
from operator import is_
from typing import Any

GLOBAL = re.compile(r"^[^#\n]*\bglobal\b([^#;\n]*)", re.MULTILINE)
CALLABLE = (types.FunctionType, types.BuiltinFunctionType, type)
METHODS = (types.FunctionType, property, staticmethod, classmethod)
WRITABLE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: classes whose attributes can be set
WATCHED = ("_pytest", "pytest", "pluggy", "unittest")
"""Packages whose functions determine the results."""
MOST_CANARIES = 20
MOST_FOUND = 20
MOST_REACHED = 500
REACHED = frozenset(
    (
        "tb_frame gi_frame cr_frame ag_frame sys._getframe sys._current_frames sys._current_exceptions "
        "gc.get_objects gc.get_referrers gc.get_referents sys.settrace sys.setprofile sys.addaudithook "
        "function.__new__ code.__new__ =__code__ =__defaults__ =__kwdefaults__ =__class__ open"
    ).split()
)
"""Audit events of the interpreter, attributes whose reading is one, and after `=` those whose setting is one."""
MOST_DATA = 1 << 14
"""Most bytes of a module's data that are compared by value."""
CHANGING = frozenset(
    "add append clear discard extend insert pop popitem remove reverse setdefault sort update".split()
)
"""Methods that change a list, a dictionary or a set."""
MAKING = frozenset("dict list set sorted load loads".split())
"""Functions whose result belongs to the caller."""
OF_TESTS = frozenset(("test", "tests"))
"""Names of folders with modules of tests. A folder `testing` often belongs to the code."""
DISPLAYS = (ast.Dict, ast.List, ast.Set, ast.Tuple, ast.DictComp, ast.ListComp, ast.SetComp)
ASSIGN = (ast.Assign, getattr(ast, "AnnAssign", ast.Assign))  # Python 3.5 has no AnnAssign
HAND_OUT = frozenset(("currentframe", "<lambda>", "stack"))  # `logging.currentframe` is a lambda
"""Functions of the standard library that return frames to their caller."""
INSTALLED = ("site-packages", "dist-packages")
SOURCE_READERS = frozenset(("get_code", "path_stats", "updatecache", "lazycache"))
"""Functions of the import system and of `linecache` that open source files, to import them or to show an error."""
SHOWS_SOURCE = re.compile(r"/(?:_pytest|pluggy|coverage)/")
"""Part of the file names of code that opens source files for itself."""
REPLACED = "replaced while the tests ran: "
PASSED = "a test that cannot pass passed"
NO_HOOKS = (
    "has no audit hooks, so code that reads frames, searches all objects, makes functions or replaces modules"
)
FEW_EVENTS = "does not report all that code does, so code that reads frames of tracebacks or generators, or searches all objects,"
BLIND = "%s %d.%d %s can go unnoticed"
"""What the report says if the interpreter reports too little: its name and version, and what code it does not report.

Python 3.10 added the events `gc.get_objects`, `gc.get_referrers` and `gc.get_referents`, and `object.__getattr__` for the frames
of tracebacks and generators; found by trying each event of `REACHED` on 3.8 to 3.14.
"""
NAMES = {"cpython": "Python", "pypy": "PyPy for Python"}


def insides(value: Any) -> tuple[Any, ...]:
    """Return what determines what a callable does: its code, and the callables in its closure and defaults."""
    if not isinstance(value, types.FunctionType):
        if isinstance(value, property):
            value = value.fget
        elif isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        value = getattr(value, "__func__", value)
        if not isinstance(value, types.FunctionType):
            return ()
    closure, defaults = value.__closure__, value.__defaults__
    if not closure and not defaults:
        return (value.__code__,)
    parts: list[Any] = [value.__code__]
    for cell in closure or ():
        try:
            content = cell.cell_contents
        except ValueError:  # the cell is empty
            continue
        parts.append(content if callable(content) else None)
    parts += [default if callable(default) else None for default in defaults or ()]
    return tuple(parts)


def same(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    return len(first) == len(second) and all(one is other for one, other in zip(first, second))


def is_watched(name: str) -> bool:
    return name.partition(".")[0] in WATCHED


class Members:
    """The functions, classes and methods of all modules that are loaded now.

    Of packages that are not watched, private ones and those that programs replace are left out.

    Attributes:
        places: Modules and classes: the name, the class or None, and the members. A member is a name, its value, and
            its insides if the package is watched.
    """

    def __init__(self) -> None:
        self.places: list[tuple[str, Any, list[tuple[str, Any, tuple[Any, ...]]]]] = []
        for name, module in list(sys.modules.items()):
            if not isinstance(module, types.ModuleType) or name in ("sys", "warnings", "__main__"):
                continue
            watched = is_watched(name)
            own: list[tuple[str, Any, tuple[Any, ...]]] = []
            for attribute, value in list(vars(module).items()):
                if not isinstance(value, CALLABLE) or (attribute[:1] == "_" and not watched):
                    continue
                own.append((attribute, value, insides(value) if watched else ()))
                if isinstance(value, type) and value.__flags__ & WRITABLE and value.__module__ == name:
                    methods = [
                        (inner, method, insides(method) if watched else ())
                        for inner, method in list(vars(value).items())
                        if isinstance(method, METHODS)
                    ]
                    self.places.append((name + "." + attribute, value, methods))
            self.places.append((name, None, own))

    def replaced(self) -> list[str]:
        names: list[str] = []
        for name, owner, known in self.places:
            place = sys.modules.get(name) if owner is None else owner
            if place is None and not is_watched(name):
                continue
            now = vars(place) if isinstance(place, (types.ModuleType, type)) else {}
            for attribute, value, within in known:
                if now.get(attribute) is not value or (within and not same(insides(value), within)):
                    names.append(name + "." + attribute)
        return sorted(names)


def text_of(file: str) -> str:
    try:
        with open(file, encoding="utf-8", errors="replace") as source:
            return source.read()
    except OSError:
        return ""


def packed(value: Any) -> bytes | None:
    """Return plain data as bytes; None for other values, values that cannot be changed, and long ones."""
    if type(value) not in (dict, list, set, tuple) or len(value) > MOST_DATA:
        return None
    try:
        data = marshal.dumps(value, 0)  # later versions also write how often an object is used
    except ValueError:  # something that is no plain data
        return None
    return data if len(data) <= MOST_DATA else None


def parsed(text: str) -> list[ast.AST]:
    """Return all nodes of a source; none if it cannot be read."""
    try:
        return list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return []


def binds(text: str, name: str) -> bool:
    for node in parsed(text):
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load):
            return True
        if getattr(node, "name", None) == name and not isinstance(node, ast.alias):
            return True
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                if alias.name == "*" or (alias.asname or alias.name.partition(".")[0]) == name:
                    return True
    return False


def is_constant(text: str, name: str) -> bool:
    """Return whether a source makes a value, and does not seem to change it or to hand it to code that may.

    Args:
        text: The source.
        name: Name of a variable, or of an attribute of a class.
    """

    nodes = parsed(text)
    made = [node for node in nodes if isinstance(node, ASSIGN) and name in map(name_of, targets_of(node))]
    for node in made:
        value = getattr(node, "value", None)
        if not isinstance(value, DISPLAYS) and name_of(getattr(value, "func", None)) not in MAKING:
            return False
    return bool(made) and not any(name in changeable(node) for node in nodes if node not in made)


def name_of(node: Any) -> str:
    return str(getattr(node, "id", getattr(node, "attr", "")))


def targets_of(node: Any) -> list[Any]:
    return list(getattr(node, "targets", [getattr(node, "target", None)]))


def changeable(node: Any) -> list[str]:
    """Return the names whose values a piece of code changes, or hands to code that may change them."""
    if isinstance(node, (*ASSIGN, ast.Return, ast.Yield)):  # another name of the same value
        return [name_of(node.value)]
    if isinstance(node, ast.AugAssign):
        return [name_of(node.target)]
    if isinstance(node, ast.Call):
        called = name_of(node.func)
        reads = called in MAKING or called.startswith("assert") or hasattr(builtins, called)
        return [] if reads else list(map(name_of, node.args + [word.value for word in node.keywords]))
    inner, names = node, []
    if not isinstance(getattr(node, "ctx", None), ast.Load) or name_of(node) in CHANGING:
        while isinstance(inner, (ast.Subscript, ast.Attribute)):
            inner = inner.value
            names.append(name_of(inner))
    return names


class OfTests:
    """A module of the tests, as it was once it had been imported.

    Attributes:
        values: Its global values, without those that its own functions may set.
        methods: The methods of its classes: the class, the method's name, and the method.
        data: Its plain data: the module or one of its classes, the name, and the value as bytes.
        codes: What determines what its functions and methods do.
        own: Names that its own functions may set.
    """

    def __init__(self, module: types.ModuleType, file: str) -> None:
        self.module = module
        self.text = text_of(file)
        self.own = {name for names in GLOBAL.findall(self.text) for name in re.findall(r"\w+", names)}
        self.values: dict[str, Any] = {}
        self.data: list[tuple[Any, str, bytes]] = []
        self.room = MOST_DATA
        self.methods: list[tuple[type, str, Any]] = []
        self.names = set(vars(module))
        self.foreign = sorted(
            name
            for name, value in vars(module).items()
            if hasattr(builtins, name) and name[:2] != "__" and not binds(self.text, name)
        )
        for name, value in list(vars(module).items()):
            if name in self.own or name[:2] == "__":
                continue
            self.values[name] = value
            self.record(module, name, value)
            if isinstance(value, type) and value.__module__ == module.__name__:
                for inner, member in list(vars(value).items()):
                    if isinstance(member, METHODS):
                        self.methods.append((value, inner, member))
                    elif inner[:2] != "__":
                        self.record(value, inner, member)
        self.codes = [
            (label, value, insides(value))
            for label, value in [
                *self.values.items(),
                *((owner.__name__ + "." + name, value) for owner, name, value in self.methods),
            ]
            if isinstance(value, METHODS) and getattr(value, "__module__", module.__name__) == module.__name__
        ]

    def record(self, owner: Any, name: str, value: Any) -> None:
        """Record a value of the module or of one of its classes, if it is plain data and there is room."""
        data = packed(value)
        if data is not None and len(data) <= self.room:
            self.room -= len(data)
            self.data.append((owner, name, data))

    def recoded(self) -> list[str]:
        """Return the names of functions and methods that have other code now."""
        return [label for label, value, within in self.codes if not same(insides(value), within)]

    def changed(self) -> list[str]:
        now = vars(self.module)
        names = self.foreign[:]
        # without a loop in Python, because this happens twice for each test
        if not all(map(is_, map(now.get, self.values), self.values.values())):
            names += [name for name, value in self.values.items() if now.get(name) is not value]
        if len(now) != len(self.names) or not self.names.issuperset(now):
            names += [name for name in now.keys() - self.names if self.is_foreign(name, now[name])]
        for owner, name, data in self.data:
            value = vars(owner).get(name)
            if packed(value) != data and name not in names and is_constant(self.text, name):
                names.append(name)
        for owner, name, method in self.methods:
            if vars(owner).get(name) is not method:
                names.append(owner.__name__ + "." + name)
        return names

    def is_foreign(self, name: str, value: Any) -> bool:
        """Return whether nothing in the module can have made a new name."""
        is_part = isinstance(value, types.ModuleType) and value.__name__ == self.module.__name__ + "." + name
        own = name in self.own or "globals()" in self.text or "__name__]" in self.text
        return not (name[:2] == "__" or is_part or own or binds(self.text, name))


def spec_of(name: str, places: Any = None) -> Any:
    """Return where the import system finds a module, whose name may have dots, in places instead of `sys.path`."""
    spec = None
    for part in range(name.count(".") + 1):
        spec = PathFinder.find_spec(".".join(name.split(".")[: part + 1]), places)
        if spec is None:
            return None
        places = spec.submodule_search_locations or []
    return spec


def plain_functions(code: types.CodeType) -> set[int]:
    """Return the ids of the functions' code that a module defines once, without a decorator.

    Args:
        code: The module's code.
    """
    steps = [step for step in dis.get_instructions(code) if step.opname != "SET_FUNCTION_ATTRIBUTE"]
    places: dict[str, list[int]] = {}
    for number, step in enumerate(steps):
        if step.opname in ("STORE_NAME", "STORE_GLOBAL", "DELETE_NAME"):
            places.setdefault(step.argval, []).append(number)
    plain: set[int] = set()
    for name, (first, *others) in places.items():
        if not others and steps[first - 1].opname == "MAKE_FUNCTION":
            before = [step.argval for step in steps[max(0, first - 3) : first - 1]]
            plain.update(id(one) for one in before if getattr(one, "co_name", None) == name)
    return plain


def sets_global(code: types.CodeType, name: str) -> bool:
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            steps = dis.get_instructions(inner) if name in inner.co_names else ()
            if any(step.opname == "STORE_GLOBAL" and step.argval == name for step in steps):
                return True
            if sets_global(inner, name):
                return True
    return False


def false_test(name: str, like: Any) -> Any:
    """Return a function that looks like a test of a file and cannot pass.

    Args:
        name: Its name.
        like: A function of the same file.
    """
    numbers = [random.SystemRandom().randrange(2, 1000) for _ in range(4)]
    lines = ["value = %d" % numbers[0], "assert value == %d" % numbers[0], "other = %d" % numbers[1]]
    lines.insert(1 + numbers[2] % 3, "assert value == %d" % (numbers[0] + numbers[3]))
    self_ = "self" if "." in getattr(like, "__qualname__", "") else ""
    tree = ast.parse("def %s(%s):\n    " % (name, self_) + "\n    ".join(lines))
    code = like.__code__
    ast.increment_lineno(tree, code.co_firstlineno - 1)
    made: dict[str, Any] = {}
    exec(compile(tree, code.co_filename, "exec", dont_inherit=True), made)
    function = types.FunctionType(made[name].__code__, like.__globals__, name)
    function.__qualname__ = like.__qualname__.rpartition(".")[0] + "." + name if self_ else name
    function.__module__ = like.__module__
    return function


def plain_name(item: Any) -> str:
    return str(getattr(item, "originalname", None) or item.name.partition("[")[0])


def canary_of(item: Any) -> Any:
    """Return a test that cannot pass, beside `item`: a function of the same name, or a method of the same class.

    Returns:
        None if this pytest cannot create such a test.
    """
    import pytest

    try:
        name, like = plain_name(item), item.function
        like = getattr(like, "__func__", like)
        while not isinstance(like, types.FunctionType):
            like = like.__wrapped__
        if not hasattr(item, "_testcase"):
            function = false_test(name, like)
            bound = function if item.cls is None else types.MethodType(function, item.cls)
            made = pytest.Function.from_parent(item.parent, name=item.name, callobj=bound)
            vars(made)["_getobj"] = lambda: bound  # older pytest calls this again during setup
            made.fixturenames[:] = []
            return made
        while hasattr(item.cls, name):
            name += random.SystemRandom().choice(["_again", "_2", "_twice", "_more"])
        setattr(item.cls, name, false_test(name, like))
        return type(item).from_parent(item.parent, name=name)
    except Exception:  # noqa: BLE001 - this pytest lacks something; the other guards remain
        return None


def names_test(name: str) -> bool:
    """Return whether a file has the name of a test file."""
    return name.startswith("test_") or name.endswith("_test.py")


def is_of_tests(path: str) -> bool:
    """Return whether a path in the work tree is that of a test file, or of a file in a folder of tests."""
    *folders, name = path.split(os.sep)
    is_module = name.endswith(".py") and (names_test(name) or name.endswith("conftest.py"))
    return is_module or not OF_TESTS.isdisjoint(folders)


def given_to(frame: Any) -> list[Any]:
    """Return the arguments of a call."""
    code = frame.f_code
    starred = bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)  # `*args` and `**kwargs`
    number = code.co_argcount + code.co_kwonlyargcount + starred
    return [frame.f_locals.get(name) for name in code.co_varnames[:number]]


def gives(value: Any, path: str, depth: int = 0) -> bool:
    """Return whether an argument says which file to open: it is the path or a folder of it, or it has that inside."""
    if isinstance(value, (str, bytes)) or hasattr(type(value), "__fspath__"):
        text = os.fsdecode(value).rstrip(os.sep)
        # most texts are no path, and the system is asked about the rest only: an object may have thousands inside
        if os.path.basename(text) not in (os.curdir, os.pardir, *path.split(os.sep)[1:]):
            return False
        full = os.path.realpath(text)
        return path == full or path.startswith(full + os.sep)
    if depth > 2 or isinstance(value, (types.ModuleType, type)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    if not isinstance(value, (dict, list, tuple, set)):
        inner = getattr(value, "__dict__", {}).values()
    return any(gives(each, path, depth + 1) for each in list(inner)[:MOST_FOUND])


class Watcher:
    """Notes what code of the work tree does, as the interpreter reports it. Nothing can remove it.

    The hook runs while modules are half loaded. So it uses only what was imported before it was set, and imports nothing.

    Args:
        tell: Writes a line of the report.

    Attributes:
        root: Real path of the work tree, with a separator at the end.
        sees: Whether this interpreter reports anything.
        loaded: Code of each module that was imported from a file of the work tree, by name and real path.
        libraries: Code of each other module that was imported from a file, by name.
    """

    def __init__(self, tell: Any) -> None:
        self.root = root = os.path.realpath(os.getcwd()) + os.sep
        self.sees = hasattr(sys, "addaudithook")
        self.loaded: dict[tuple[str, str], types.CodeType] = {}
        self.libraries: dict[str, types.CodeType] = {}
        paths: dict[str, str] = {}
        told: set[tuple[str, int, str]] = set()
        busy: list[bool] = []
        frame_of, real, own = sys._getframe, os.path.realpath, globals()

        def inside(code: types.CodeType) -> str:
            name = code.co_filename
            if name[:1] == "<":  # no file, such as the interpreter's own import system
                return ""
            if name not in paths:
                full = real(name)
                paths[name] = full[len(root) :] if full.startswith(root) else ""
            return paths[name]

        def reader(frame: Any) -> Any:
            """Return the frame that gets a frame: the nearest one of the work tree, if a library hands it out."""
            first, code = frame, frame.f_code
            if code.co_name not in HAND_OUT and "_getframe" in code.co_names:
                return first  # what it does with the frame is its own affair
            while frame is not None and not inside(frame.f_code):
                name = frame.f_code.co_filename
                if frame.f_code.co_name == "findCaller" or any(folder in name for folder in INSTALLED):
                    return first  # logging itself, or an installed library, reads the frame
                frame = frame.f_back
            return first if frame is None else frame

        def openers(frame: Any, path: Any, flags: int) -> list[Any]:
            """Return the frames of code that opens a file of the tests; none if a test gave the path or the folder."""
            if not isinstance(path, (str, bytes)) or flags & (os.O_WRONLY | os.O_CREAT):
                return []
            path = os.path.abspath(os.fsdecode(path))
            if (
                not path.startswith(root)
                or not is_of_tests(path[len(root) :])
                or real(os.curdir) + os.sep != root
            ):
                return []
            frames: list[Any] = []
            while frame is not None:
                code, name = frame.f_code, inside(frame.f_code)
                if name and is_of_tests(name):
                    break
                if name:
                    frames.append(frame)
                elif not frames and (code.co_name in SOURCE_READERS or SHOWS_SOURCE.search(code.co_filename)):
                    return []
                frame = frame.f_back
            return [] if frames and any(gives(value, path) for value in given_to(frames[-1])) else frames

        def note(frame: Any, what: str) -> None:
            place = (inside(frame.f_code), frame.f_lineno, what)
            if place[0] and place not in told and len(told) < MOST_REACHED:
                told.add(place)
                tell("reached", place[0], str(place[1]), what)

        def hook(event: str, given: tuple[Any, ...]) -> None:
            what = event
            if event == "object.__getattr__":
                what = given[1]
            elif event == "object.__setattr__":
                what = "=%s" % given[1]
            if busy or (what not in REACHED and event != "exec"):
                return
            busy.append(True)  # the calls below are events as well
            try:
                if event == "exec":
                    code = given[0]
                    if not isinstance(code, types.CodeType) or code.co_name != "<module>":
                        return
                    path = inside(code)
                    module = module_of(frame_of(1)) if path or code.co_filename[:8] != "<string>" else ""
                    if module and path:
                        self.loaded[module, root + path] = code
                    elif module:
                        self.libraries[module] = code
                    return
                frame = frame_of(1)
                if frame.f_globals is own:  # the guard itself, while it makes canaries
                    return
                if what == "sys._getframe":
                    frame = reader(frame)
                if what != "open":
                    note(frame, what)
                    return
                try:
                    for each in openers(frame, given[0], given[2]):
                        note(each, what)
                except Exception:  # noqa: BLE001 - such as a removed folder, or an argument's own `__fspath__`
                    pass
            finally:
                busy.clear()

        if self.sees:
            sys.addaudithook(hook)
        if not self.sees or sys.version_info < (3, 10):
            name, unseen = sys.implementation.name, FEW_EVENTS if self.sees else NO_HOOKS
            tell("blind", BLIND % (NAMES.get(name, name), *sys.version_info[:2], unseen))


def module_of(frame: Any) -> str:
    """Return the name of the module that the import system executes; empty if other code executes something."""
    for _ in range(3):
        module = frame.f_locals.get("module") if frame is not None else None
        if isinstance(module, types.ModuleType):
            return module.__name__
        frame = frame and frame.f_back
    return ""


class Guard:
    """Pytest plugin that looks for tampering.

    Args:
        tell: Writes a line of the report.
        watcher: Notes what code does since before any code of the work tree ran.
        wanted: Ids of tests that get a canary in any case.
        added: Paths of files that the patch adds to the work tree.
    """

    def __init__(self, tell: Any, watcher: Watcher, wanted: list[str], added: list[str]) -> None:
        import pytest

        pytest.hookimpl(tryfirst=True)(Guard.pytest_load_initial_conftests)
        pytest.hookimpl(tryfirst=True)(Guard.pytest_collection_finish)
        pytest.hookimpl(trylast=True)(Guard.pytest_collection_modifyitems)
        pytest.hookimpl(hookwrapper=True, tryfirst=True)(Guard.pytest_make_collect_report)
        self.function = pytest.Function
        self.of_module = pytest.Module
        self.tell = tell
        self.wanted = frozenset(wanted)
        self.added = frozenset(os.path.realpath(path) for path in added)
        self.root = watcher.root
        self.watcher = watcher
        self.builtins: dict[str, Any] = {}
        self.globals: dict[str, OfTests] = {}
        self.helpers: list[OfTests] = []
        self.listed = 0
        self.members: Members | None = None
        self.hooks: dict[int, tuple[Any, Any, tuple[Any, ...]]] = {}
        self.canaries: dict[int, Any] = {}
        self.failed = 0
        self.ran = 0
        self.tests: dict[int, tuple[Any, Any]] = {}
        self.found: set[str] = set()
        self.plain: dict[int, set[int]] = {}

    def forged(self, what: str) -> None:
        if what not in self.found and len(self.found) < MOST_FOUND:
            self.found.add(what)
            self.tell("forged", what)

    def pytest_load_initial_conftests(self, early_config: Any) -> None:
        # plugins are loaded, and pytest's own ones have done their replacements; no code of the work tree
        # is loaded yet
        self.members = Members()
        self.builtins = {
            name: value
            for name, value in vars(builtins).items()
            if name[:1] != "_" and isinstance(value, CALLABLE)
        }
        self.hooks = {
            id(hook): (hook, hook.function, insides(hook.function)) for _, hook in self.all(early_config)
        }

    @staticmethod
    def all(config: Any) -> list[tuple[str, Any]]:
        """Return the implementations of all hooks, each with the name of its hook."""
        return [
            (name, hook)
            for name, caller in vars(config.pluginmanager.hook).items()
            if hasattr(caller, "get_hookimpls")
            for hook in caller.get_hookimpls()
        ]

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        random_numbers = random.SystemRandom()
        tests = [item for item in items if isinstance(item, self.function)]
        random_numbers.shuffle(tests)
        tests.sort(key=lambda item: item.nodeid not in self.wanted)
        classes: set[Any] = set()
        for item in tests:
            if len(self.canaries) >= MOST_CANARIES:
                break
            if hasattr(item, "_testcase"):
                if item.cls in classes:
                    continue  # its set-up may be slow
                classes.add(item.cls)
            made = canary_of(item)
            if made is not None:
                self.canaries[id(made)] = made
                place = items.index(item)
                items.insert(
                    place + random_numbers.randrange(2), made
                )  # before or after: no pattern to detect
        self.tests = {id(item): (item, self.test_of(item)) for item in items}
        self.listed = 0  # modules may have been removed
        self.record_modules([getattr(item, "module", None) for item in items])

    def pytest_make_collect_report(self, collector: Any) -> Iterator[None]:
        done: Any = yield
        # of a module that failed, the attribute `obj` would import it once more, and hide the error
        imported = isinstance(collector, self.of_module) and done.excinfo is None and done.get_result().passed
        self.record_modules([collector.obj if imported else None])

    def record_modules(self, of_items: list[Any]) -> None:
        """Record the new modules of the tests: those of items, each conftest.py, and others in folders of tests."""
        new = list(sys.modules.values())[self.listed :]
        self.listed = len(sys.modules)
        tests = {id(module) for module in of_items}
        for module in of_items + new:
            file = getattr(module, "__file__", None)
            if not isinstance(module, types.ModuleType) or not isinstance(file, str) or file in self.globals:
                continue
            if id(module) in tests:
                self.globals[file] = OfTests(module, file)
            elif file.startswith(self.root) and file.endswith(".py"):
                *folders, name = file[len(self.root) :].split(os.sep)
                if name == "conftest.py" or not (names_test(name) or OF_TESTS.isdisjoint(folders)):
                    self.globals[file] = OfTests(module, file)
                    self.helpers.append(self.globals[file])

    def is_canary(self, item: Any) -> bool:
        return id(item) in self.canaries

    def canary_ended(self, outcome: str) -> None:
        self.ran += 1
        self.failed += outcome in ("failed", "error")
        if outcome == "passed":
            self.forged(PASSED)

    @staticmethod
    def test_of(item: Any) -> Any:
        within = insides(getattr(item, "function", None))
        return within[0] if within else None

    def check_values(self, module: Any, known: dict[str, Any]) -> None:
        # without a loop in Python, because this happens twice for each test
        if known and not all(map(is_, map(vars(module).get, known), known.values())):
            for name, value in known.items():
                if vars(module).get(name) is not value:
                    self.forged(REPLACED + module.__name__ + "." + name)

    def check_item(self, item: Any) -> None:
        self.check_values(builtins, self.builtins)
        own = self.globals.get(str(getattr(getattr(item, "module", None), "__file__", "")))
        for recorded in self.helpers if own is None else [*self.helpers, own]:
            for name in recorded.changed():
                self.forged(REPLACED + recorded.module.__name__ + "." + name)
        known = self.tests.get(id(item))
        if known is None:
            self.forged("a test appeared after the tests were collected: " + item.nodeid)
        elif {"runtest", "setup", "teardown"} & vars(item).keys():
            self.forged("the run of a test was replaced: " + item.nodeid)
        elif known[1] is not None:
            function = getattr(item.function, "__func__", item.function)
            for _ in range(MOST_FOUND):  # plugins wrap tests
                if insides(function)[:1] == (known[1],):
                    return
                function = getattr(function, "__wrapped__", None)
            self.forged("a test was replaced: " + item.nodeid)

    def check(self, config: Any) -> None:
        for name in self.members.replaced() if self.members is not None else ():
            self.forged(REPLACED + name)
        for name, hook in self.all(config):
            known = self.hooks.get(id(hook))
            within = insides(hook.function)
            if known is not None:
                if hook.function is not known[1] or not same(within, known[2]):
                    self.forged("a hook of pytest was replaced: " + hook.plugin_name)
                continue
            path = os.path.realpath(within[0].co_filename) if within else ""
            if not os.path.isfile(path):
                self.forged("code without a file has hooks of pytest")
            elif path.startswith(self.root):
                place = getattr(hook.function, "__qualname__", within[0].co_name)
                self.tell("hook", path[len(self.root) :], name, str(place))

    def check_modules(self) -> None:
        """Look for new files that are imported in the place of other modules."""
        if not self.added:
            return
        files = {(name, getattr(module, "__file__", None)) for name, module in sys.modules.items()}
        loaded = {(name, os.path.realpath(file)) for name, file in files if isinstance(file, str)}
        for name, file in sorted(loaded | self.watcher.loaded.keys()):
            if file not in self.added:
                continue
            folder = os.path.dirname(file)
            up = name.count(".") + (os.path.basename(file) == "__init__.py")
            for _ in range(up):
                folder = os.path.dirname(folder)
            others = [place for place in sys.path if os.path.realpath(place) != folder]
            other = spec_of(name, others)
            if other is not None and other.origin not in (None, file):
                self.forged("%s takes the place of another module" % file[len(self.root) :])

    def check_helpers(self) -> None:
        """Look for modules of the tests that are not what their files say, and for replaced functions of libraries."""
        for recorded in self.globals.values():
            for name in recorded.recoded():
                self.forged(REPLACED + recorded.module.__name__ + "." + name)
        folders = {os.path.dirname(os.path.realpath(file)) + os.sep for file in self.globals} - {self.root}
        beside = tuple(sorted(folders))
        for name, module in list(sys.modules.items()):
            if isinstance(module, types.ModuleType):
                self.check_place(name, getattr(module, "__file__", None), beside)
        for (name, path), code in list(self.watcher.loaded.items()):
            owner = sys.modules.get(name)
            file = str(getattr(owner, "__file__", ""))
            if owner is None or not path.startswith(beside) or os.path.realpath(file) != path:
                continue
            self.check_functions(name, owner, code)
        for name, code in list(self.watcher.libraries.items()):
            owner = sys.modules.get(name)
            if isinstance(owner, types.ModuleType):
                self.check_functions(name, owner, code)

    def check_place(self, name: str, file: Any, beside: tuple[str, ...]) -> None:
        """Look for a module of a folder with tests that does not come from its file."""
        is_own = isinstance(file, str) and file.startswith(beside)
        if not is_own and file is not None:
            return
        spec = None if name in sys.builtin_module_names else spec_of(name)
        path = os.path.realpath(str(spec and spec.origin))
        known = is_own and ((name, path) in self.watcher.loaded or not self.watcher.sees)
        if path.startswith(beside) and path.endswith(".py") and not known:
            self.forged("a module took the place of " + path[len(self.root) :])

    def check_functions(self, name: str, owner: Any, code: types.CodeType) -> None:
        """Compare the plain functions of a module, and the methods of its classes, with the module's code."""
        codes = [inner.co_name for inner in code.co_consts if isinstance(inner, types.CodeType)]
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                value = vars(owner).get(inner.co_name)
                # most are the same; to compare them by value takes longer
                if type(value) is types.FunctionType and value.__code__ is inner:
                    continue
                if isinstance(value, type):
                    own = value.__module__ == name and codes.count(inner.co_name) == 1
                    if own and value.__flags__ & WRITABLE and value.__qualname__ == inner.co_name:
                        self.check_functions(name + "." + inner.co_name, value, inner)
                    continue
                if value is None or isinstance(value, property) or insides(value)[:1] == (inner,):
                    continue
                if inner.co_name == "__new__":  # enumerations replace it
                    continue
                # a library may have the same functions in C
                in_c = isinstance(value, types.BuiltinFunctionType) and value.__name__ == inner.co_name
                if not in_c and self.is_plain(code, inner):
                    self.forged(REPLACED + name + "." + inner.co_name)

    def is_plain(self, code: types.CodeType, function: types.CodeType) -> bool:
        """Return whether a module defines a function once, without a decorator, and never sets its name otherwise."""
        if id(code) not in self.plain:
            self.plain[id(code)] = plain_functions(code)
        return id(function) in self.plain[id(code)] and not sets_global(code, function.co_name)

    def pytest_collection_finish(self, session: Any) -> None:
        self.check(session.config)
        self.check_helpers()

    def pytest_sessionfinish(self, session: Any) -> None:
        self.check(session.config)
        self.check_helpers()
        self.check_modules()
        self.tell("canaries", str(self.ran), str(self.failed))

"""Look for code under test that forges results in its own process.

- Canaries, tests that must fail, run among the real tests. They look like these: same file, name, class and kind.
  Code that forges passing tests also makes canaries pass.
- The functions of pytest, pluggy and unittest, and those behind pytest's hooks, are recorded before any of the code is
  imported. They are compared after the tests were imported, and at the end.
- The function of each collected test is compared before and after the test.
- The functions, classes and methods of all modules that were loaded before are compared by identity at the same times. At
  each test, the built-in ones are compared, and the global values of the test's module and of each conftest.py.
- A new module must not take the place of another one, such as one of an installed package.
- Helper modules in the folders of the tests must come from their files, and have the functions that these define.
- Code of the work tree that reads frames, searches all objects or makes functions is noted. The interpreter itself reports
  it, so it does not matter how the code names what it reads. Python before 3.8 reports nothing (PEP 578), nor does PyPy;
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
import os
import random
import re
import sys
import types
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
        "function.__new__ code.__new__ =__code__ =__defaults__ =__kwdefaults__ =__class__"
    ).split()
)
"""Audit events of the interpreter, attributes whose reading is one, and after `=` those whose setting is one."""
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
    found: list[Any] = [value.__code__]
    for cell in closure or ():
        try:
            content = cell.cell_contents
        except ValueError:  # the cell is empty
            continue
        found.append(content if callable(content) else None)
    found += [default if callable(default) else None for default in defaults or ()]
    return tuple(found)


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
        """Return the names of the members that are missing or differ now."""
        found: list[str] = []
        for name, owner, known in self.places:
            place = sys.modules.get(name) if owner is None else owner
            if place is None and not is_watched(name):
                continue
            now = vars(place) if isinstance(place, (types.ModuleType, type)) else {}
            for attribute, value, within in known:
                if now.get(attribute) is not value or (within and not same(insides(value), within)):
                    found.append(name + "." + attribute)
        return sorted(found)


def globals_of(module: types.ModuleType, file: str) -> dict[str, Any]:
    """Return the global values of a test module, without those that its own functions may set."""
    try:
        with open(file, encoding="utf-8", errors="replace") as source:
            own = {name for names in GLOBAL.findall(source.read()) for name in re.findall(r"\w+", names)}
    except OSError:
        return {}
    return {name: value for name, value in vars(module).items() if name not in own and name[:2] != "__"}


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
    found: set[int] = set()
    for name, (first, *others) in places.items():
        if not others and steps[first - 1].opname == "MAKE_FUNCTION":
            before = [step.argval for step in steps[max(0, first - 3) : first - 1]]
            found.update(id(one) for one in before if getattr(one, "co_name", None) == name)
    return found


def sets_global(code: types.CodeType, name: str) -> bool:
    """Return whether a function in a module sets a global name."""
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


class Watcher:
    """Notes what code of the work tree does, as the interpreter reports it. Nothing can remove it.

    The hook runs while modules are half loaded. So it uses only what was imported before it was set, and imports nothing.

    Args:
        tell: Writes a line of the report.
        root: Real path of the work tree, with a separator at the end.

    Attributes:
        sees: Whether this interpreter reports anything.
        loaded: Code of each module that was imported from a file of the work tree, by name and real path.
    """

    def __init__(self, tell: Any, root: str) -> None:
        self.sees = hasattr(sys, "addaudithook")
        self.loaded: dict[tuple[str, str], types.CodeType] = {}
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
                    path = inside(given[0]) if isinstance(given[0], types.CodeType) else ""
                    module = module_of(frame_of(1)) if path else ""
                    if module:
                        self.loaded[module, root + path] = given[0]
                    return
                frame = frame_of(1)
                if frame.f_globals is own:  # the guard itself, while it makes canaries
                    return
                place = (inside(frame.f_code), frame.f_lineno, what)
                if place[0] and place not in told and len(told) < MOST_REACHED:
                    told.add(place)
                    tell("reached", place[0], str(place[1]), what)
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
        wanted: Ids of tests that get a canary in any case.
        added: Paths of files that the patch adds to the work tree.
    """

    def __init__(self, tell: Any, wanted: list[str], added: list[str]) -> None:
        import pytest

        pytest.hookimpl(tryfirst=True)(Guard.pytest_load_initial_conftests)
        pytest.hookimpl(tryfirst=True)(Guard.pytest_collection_finish)
        pytest.hookimpl(trylast=True)(Guard.pytest_collection_modifyitems)
        self.function = pytest.Function
        self.tell = tell
        self.wanted = frozenset(wanted)
        self.added = frozenset(os.path.realpath(path) for path in added)
        self.root = os.path.realpath(os.getcwd()) + os.sep
        self.watcher = Watcher(tell, self.root)
        self.builtins: dict[str, Any] = {}
        self.globals: dict[str, tuple[Any, dict[str, Any]]] = {}
        self.conftests: list[str] = []
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
        of_items = {id(getattr(item, "module", None)) for item in items}
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if isinstance(module, types.ModuleType) and isinstance(file, str):
                is_conftest = os.path.basename(file) == "conftest.py" and file.startswith(self.root)
                if is_conftest or id(module) in of_items:
                    self.globals[file] = (module, globals_of(module, file))
                    self.conftests += [file] if is_conftest else []

    def is_canary(self, item: Any) -> bool:
        return id(item) in self.canaries

    def canary_ended(self, outcome: str) -> None:
        self.ran += 1
        self.failed += outcome in ("failed", "error")
        if outcome == "passed":
            self.forged(PASSED)

    @staticmethod
    def test_of(item: Any) -> Any:
        """Return the code of a test; None if it has none."""
        within = insides(getattr(item, "function", None))
        return within[0] if within else None

    def check_values(self, module: Any, known: dict[str, Any]) -> None:
        """Compare global values of a module with those from before."""
        # without a loop in Python, because this happens twice for each test
        if known and not all(map(is_, map(vars(module).get, known), known.values())):
            for name, value in known.items():
                if vars(module).get(name) is not value:
                    self.forged(REPLACED + module.__name__ + "." + name)

    def check_item(self, item: Any) -> None:
        self.check_values(builtins, self.builtins)
        for file in [*self.conftests, str(getattr(getattr(item, "module", None), "__file__", ""))]:
            module, values = self.globals.get(file, (None, {}))
            self.check_values(module, values)
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
        """Compare functions and hooks with those from before."""
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
        outer = {(name, file) for name, file in files if "." not in name and isinstance(file, str)}
        loaded = {(name, os.path.realpath(file)) for name, file in outer} | self.watcher.loaded.keys()
        for name, file in sorted(loaded):
            if "." in name or file not in self.added:
                continue
            folder = os.path.dirname(file)
            folder = os.path.dirname(folder) if os.path.basename(file) == "__init__.py" else folder
            others = [place for place in sys.path if os.path.realpath(place) != folder]
            other = PathFinder.find_spec(name, others)
            if other is not None and other.origin is not None:
                self.forged("%s takes the place of another module" % file[len(self.root) :])

    def check_helpers(self) -> None:
        """Look for modules in the folders of the tests that are not what their files say."""
        folders = {os.path.dirname(os.path.realpath(file)) + os.sep for file in self.globals} - {self.root}
        beside = tuple(sorted(folders))
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            is_own = isinstance(file, str) and file.startswith(beside)
            if not isinstance(module, types.ModuleType) or "." in name or not (is_own or file is None):
                continue
            spec = None if name in sys.builtin_module_names else PathFinder.find_spec(name)
            path = os.path.realpath(str(spec and spec.origin))
            known = is_own and ((name, path) in self.watcher.loaded or not self.watcher.sees)
            if path.startswith(beside) and path.endswith(".py") and not known:
                self.forged("a module took the place of " + path[len(self.root) :])
        for (name, path), code in list(self.watcher.loaded.items()):
            owner = sys.modules.get(name)
            file = str(getattr(owner, "__file__", ""))
            if owner is None or not path.startswith(beside) or os.path.realpath(file) != path:
                continue
            for function in code.co_consts:
                if isinstance(function, types.CodeType):
                    value = vars(owner).get(function.co_name)
                    differs = value is not None and getattr(value, "__code__", None) is not function
                    if differs and self.is_plain(code, function):
                        self.forged(REPLACED + name + "." + function.co_name)

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

"""Run tests again with other assertions, each variant of the test files in a process of its own.

pytest collects the tests once. For each variant the process forks. In the child, the functions of the test modules get the code
that the variant's source gives them, and the tests run. So a test keeps its name, its file and what was imported before it, and
code under test finds nothing by which it could tell the variant from the test itself.

The request's key "variants" is a list of objects with these keys:

- "report": path of the variant's report, a new file. It has the lines `start`, `result` and `end` (`runner.py`).
- "key": key of that report's authentication codes, in hexadecimal.
- "files": sources of test files, by path. They define the same functions as the files of the work tree.
- "helpers": source of functions that they call.
"""

from __future__ import annotations

import ast
import contextlib
import os
import sys
from collections.abc import Collection, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from m3agent.tools.in_sandbox.channel import channel

OPTIMIZED = 1
"""The flag of functions' code (`inspect.CO_OPTIMIZED`), which the code of a class does not have."""
REWRITTEN = "@pytest_ar"
"""Name that modules have whose assertions pytest has rewritten."""


def run_variants(session: Any, variants: Any, report: Any) -> None:
    """Run the collected tests with each variant.

    Args:
        session: pytest's session, after the collection.
        variants: As in the request.
        report: The runner's `Report`; each child process tells it to the variant's own report.
    """
    modules = modules_by_path({os.path.realpath(path) for variant in variants for path in variant["files"]})
    for variant in variants:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            continue
        try:
            report.tell = channel(variant["report"], bytes.fromhex(variant.pop("key")))
            for path, source in variant["files"].items():
                for names in modules.get(os.path.realpath(path), ()):
                    change_module(names, source, variant["helpers"])
            run_tests(session)
            report.end(0)
        finally:
            os._exit(0)


def run_tests(session: Any) -> None:
    items = session.items
    for item, following in zip(items, [*items[1:], None]):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldstop:
            return


def modules_by_path(paths: Collection[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the names of the modules that were loaded from files, by the real path of the file."""
    modules: dict[str, list[dict[str, Any]]] = {}
    for module in list(sys.modules.values()):
        if type(module) is not ModuleType:  # it could run code of its own here
            continue
        names = vars(module)
        file = names.get("__file__")
        path = os.path.realpath(file) if isinstance(file, str) else ""
        if path in paths:
            modules.setdefault(path, []).append(names)
    return modules


def change_module(names: dict[str, Any], source: str, helpers: str) -> None:
    """Give the functions of a module the code of another source.

    Args:
        names: The names of the module.
        source, helpers: As in the request.
    """
    file = names["__file__"]
    exec(compile(helpers, file, "exec", dont_inherit=True), names)
    codes: dict[str, list[CodeType]] = {}
    for name, code in codes_of(compiled(source, file, REWRITTEN in names), ""):
        codes.setdefault(name, []).append(code)
    for function in functions_of(names, file):
        same = codes.get(function.__qualname__, [])
        # of several functions of one name, it is not known which one the module has
        if len(same) == 1 and len(same[0].co_freevars) == len(function.__code__.co_freevars):
            function.__code__ = same[0]


def compiled(source: str, file: str, rewritten: bool) -> CodeType:
    """Return the code of a module, with its assertions rewritten as pytest does it."""
    tree = ast.parse(source)
    if rewritten:
        from _pytest.assertion.rewrite import rewrite_asserts

        try:
            rewrite_asserts(tree, source.encode(), file)
        except TypeError:  # pytest before 5.1
            tree = ast.parse(source)
            rewrite_asserts(tree, file)  # type: ignore[arg-type]
    return compile(tree, file, "exec", dont_inherit=True)


def codes_of(code: CodeType, prefix: str) -> Iterator[tuple[str, CodeType]]:
    """Yield the code of functions and methods with their qualified names, without functions in functions."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and not constant.co_name.startswith("<"):
            name = prefix + constant.co_name
            if constant.co_flags & OPTIMIZED:
                yield name, constant
            else:
                yield from codes_of(constant, name + ".")


def functions_of(names: Any, file: str) -> list[Any]:
    """Return the functions that a module of this file defines: also those in its classes, and those that decorators wrap."""
    functions: list[Any] = []
    waiting = list(names.values())
    seen = set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, (staticmethod, classmethod)):
            waiting.append(value.__func__)
        elif isinstance(value, type) and value.__module__ == names.get("__name__"):
            waiting.extend(value.__dict__.values())
        elif isinstance(value, FunctionType):
            if value.__code__.co_filename == file:
                functions.append(value)
            waiting.append(value.__dict__.get("__wrapped__"))
            for cell in value.__closure__ or ():
                with contextlib.suppress(ValueError):  # an empty cell
                    waiting.append(cell.cell_contents)
    return functions

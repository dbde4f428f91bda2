"""C and C++ with CMake: `ctest` lists the tests, GoogleTest and Catch2 inside of them are read per test.

The build folder is outside the work tree. Programs of an earlier build are removed before each build, because ctest runs
an old program if the new one could not be built.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from m3agent.tools.runners.base import (
    Command,
    Job,
    Preparation,
    Suite,
    Tree,
    ident_of,
    is_within,
    topmost,
    words_of,
)
from m3agent.tools.runners.path_rules import RULES
from m3agent.tools.runners.programs import Program, ProgramRunner, file_of, ninja, seconds_of
from m3agent.tools.runners.steps import files_in, first_errors, text_of
from m3agent.util.json_value import items

_OPTION = re.compile(
    r"^[ \t]*option\s*\(\s*(\w{1,80})[^)]{0,500}?\b(\w{1,80})\s*\)", re.IGNORECASE | re.MULTILINE
)
_PASSED = re.compile(r"-D\s*(\w{1,80})(?::BOOL)?=(\"?)([\w.]*)\2(?=[\s\"'\\]|$)")
_ANY_VALUE = re.compile(r"-D\s*(\w{1,80})(?::\w+)?=")
_FETCHED = re.compile(r"FetchContent_Declare\s*\(\s*(\w{1,80})", re.IGNORECASE)
_SPECIAL_BUILD = re.compile(
    "SANITI|VALGRIND|ASAN|UBSAN|TSAN|MSAN|COVERAGE|GCOV|FUZZ|BENCH|TIDY|CPPCHECK|IWYU|DISABLE|WITHOUT|SKIP|NO_|DOC",
    re.IGNORECASE,
)
"""Options of builds that are not the ordinary one."""
_EXTRA = r"^  (POST_BUILD|PRE_LINK|COMMAND) = [^:]"
"""Commands of a build.ninja that neither compile nor link: they can replace a program of tests. CMake writes `:` for none."""
_OF_TESTS = re.compile(r"(?:^|_)(?:UNIT_?)?TESTS?(?:ING)?(?:$|_)")
_TRUE, _FALSE = words_of("ON TRUE YES 1"), words_of("OFF FALSE NO 0")
ORDINARY = words_of(
    "WORKING_DIRECTORY ENVIRONMENT TIMEOUT LABELS DISABLED SKIP_RETURN_CODE COST PROCESSORS "
    "PROCESSOR_AFFINITY RUN_SERIAL RESOURCE_LOCK MEASUREMENT ATTACHED_FILES ATTACHED_FILES_ON_FAIL DEF_SOURCE_LINE VS_DEBUGGER_WORKING_DIRECTORY"
)
"""Properties of tests that need no ctest: a test with another one is run by ctest."""
_ADD_TEST = re.compile(
    r"^add_test\((?:\[(?P<fill>=*)\[(?P<bracket>.*?)\](?P=fill)\]|\"?(?P<plain>[^\s\"]+)\"?)\s+"
    r"(?P<command>(?:[ \t]*\"(?:[^\"\\\n]|\\.)*\")+)\)",
    re.MULTILINE,
)
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
MOST_CODE = 1 << 19
"""Most characters of a CMake file that are read."""
PACKAGES = {
    ("gtest", "googletest"): ("libgtest-dev", "libgmock-dev"),
    ("catch2",): ("catch2",),
    ("doctest",): ("doctest-dev",),
    ("cmocka",): ("libcmocka-dev",),
    ("pkgconfig", "pkg_check_modules"): ("pkg-config",),
}
"""Debian packages that a build needs if its text, in lower case, has one of these words."""
GTEST_SOURCE = "/usr/src/googletest"
"""Where Debian has GoogleTest's source."""


class CtestRunner(ProgramRunner):
    """CMake's ctest."""

    name = "ctest"
    manifest = registering = "CMakeLists.txt"
    registers = re.compile(
        r"^[ \t]*(?:enable_testing|add_test|gtest_discover_tests|gtest_add_tests|catch_discover_tests|"
        r"doctest_discover_tests|include\s*\(\s*CTest\b)",
        re.IGNORECASE | re.MULTILINE,
    )
    no_tests = "ctest lists no tests"

    def roots(self, tree: Tree, others: Collection[str]) -> Iterable[str]:
        """Return the topmost folders with a CMake project."""
        return topmost(map(posixpath.dirname, tree.named(self.manifest)))

    def code(self, text: str) -> str:
        """Return a CMake file without comments."""
        return _code(text)

    def options(self, tree: Tree, files: Sequence[str]) -> Mapping[str, str]:
        """Return the options to build with."""
        return _options(tree, files)

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Return the toolchain, and the test frameworks that the build names."""
        text = "\n".join(_code(tree.text(path)) for path in _cmake_files(suite, tree)).lower()
        packages = ["cmake", "ninja-build", "g++"]
        for names, more in PACKAGES.items():
            packages += more if any(name in text for name in names) else ()
        notice = "the build downloads sources (FetchContent): only packages of the system can replace them"
        return Preparation(
            system_packages=tuple(packages), notices=(notice,) if "fetchcontent_declare" in text else ()
        )

    def build(self, job: Job) -> Command:
        """Return the command that configures and builds everything, and lists the tests and their sources."""
        command = super().build(job)
        query = {f"{job.work}/build/.cmake/api/v1/query/codemodel-v2": b""}
        return replace(command, files={**command.files, **query})

    def steps(self, job: Job, folder: str) -> list[Mapping[str, Any]]:
        """Return the steps that build everything in a folder."""
        suite, tree = job.suite, job.tree
        fetched = {
            name.upper() for path in _cmake_files(suite, tree) for name in _FETCHED.findall(tree.text(path))
        }
        configure = [
            *("cmake", "-S", suite.folder, "-B", folder, "-G", "Ninja"),
            "-DFETCHCONTENT_FULLY_DISCONNECTED=ON",
            "-DFETCHCONTENT_TRY_FIND_PACKAGE_MODE=ALWAYS",
            *(
                f"-DFETCHCONTENT_SOURCE_DIR_{name}={GTEST_SOURCE}"
                for name in ("GOOGLETEST", "GTEST")
                if name in fetched
            ),
            *(f"-D{name}={value}" for name, value in sorted(suite.options.items())),
        ]
        listing = f"{job.work}/tests.json"
        show = 'ctest --test-dir "$1" --show-only=json-v1 > "$2"'
        debug = {"CFLAGS": "-g1", "CXXFLAGS": "-g1"}  # so that the source file of a call can be found
        return [
            {"name": "configure", "argv": configure, "must": True, "env": debug},
            {"name": "clean", "clean": folder},
            {"name": "build", "argv": ["ninja", "-C", folder, "-k", "0"]},
            {"name": "list", "argv": ["sh", "-c", show, "sh", folder, listing], "report": listing},
            {"name": "extra", "argv": ["grep", "-E", _EXTRA, f"{folder}/build.ninja"]},
            {"name": "targets", "collect": [f"{folder}/.cmake/api/v1/reply/target-*.json"]},
            {"name": "registered", "collect": [f"{folder}/**/CTestTestfile.cmake"]},
        ]

    def programs(self, job: Job, done: Mapping[str, Mapping[str, Any]], folder: str) -> Iterator[Program]:
        """Yield the tests that ctest lists."""
        targets = _targets(files_in(done, "targets"), folder)
        commands = _commands(files_in(done, "registered"))
        extra = text_of(done.get("extra", {})).replace(folder, "")
        own_commands = {"COMMANDS_OF_THE_BUILD": "".join(sorted(extra.splitlines(keepends=True)))}
        build = text_of(done.get("build", {}))
        try:
            listed = json.loads(text_of(done["list"], "report"))
            graph = listed.get("backtraceGraph", {})
            for test in listed["tests"]:
                argv = tuple(map(str, test.get("command") or commands.get(test["name"], ())))
                program = _program(job, test, argv, graph, targets, folder)
                text = "" if program.built else _build_error(build, program.title)
                yield replace(program, facts={**program.facts, **own_commands}, text=text)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            return


def _code(text: str) -> str:
    """Return a CMake file without comments, in time that does not grow with the square of its length."""
    parts = []
    absent: set[str] = set()
    at, text = 0, text[:MOST_CODE]
    while (start := text.find("#", at)) >= 0:
        parts.append(text[at:start])
        bracket = re.compile(r"#\[(=*)\[").match(text, start)
        end = -1
        if bracket and bracket[1] not in absent:
            close = f"]{bracket[1]}]"
            end = text.find(close, bracket.end())
            at = end + len(close)
            if end < 0:
                absent.add(bracket[1])
        if end < 0:
            at = text.find("\n", start)
            if at < 0:
                return "".join(parts)
    return "".join([*parts, text[at:]])


def _cmake_files(suite: Suite, tree: Tree) -> list[str]:
    ends = ("/CMakeLists.txt", ".cmake")
    return sorted(path for path in tree.paths if is_within(path, suite.root) and f"/{path}".endswith(ends))


def _options(tree: Tree, cmake_files: Sequence[str]) -> dict[str, str]:
    """Return the options to build with: those that turn tests on, and those that all builds of the CI agree on.

    A CI often builds variants, for example with a sanitizer. Only a value that never varies is part of the ordinary build.
    """
    listed = (option for path in cmake_files for option in _OPTION.findall(_code(tree.text(path))))
    declared = {name: default.upper() for name, default in listed if not _SPECIAL_BUILD.search(name)}
    values = _values_in_ci(tree)
    on = {name for name, default in declared.items() if default in _FALSE and _OF_TESTS.search(name)}
    on |= {name for name in declared.keys() & values.keys() if values[name] <= _TRUE}
    off = {name for name in declared.keys() & values.keys() if values[name] <= _FALSE} - on
    return {**dict.fromkeys(sorted(on), "ON"), **dict.fromkeys(sorted(off), "OFF")}


def _values_in_ci(tree: Tree) -> Mapping[str, set[str]]:
    """Return the values that the CI gives to each option; `?` for a value that is computed."""
    values = defaultdict[str, set[str]](set)
    for path in filter(RULES["ci"].is_surrounding, tree.paths):
        text = tree.text(path)
        plain = {match.start(): match[3].upper() for match in _PASSED.finditer(text)}
        for match in _ANY_VALUE.finditer(text):
            values[match[1]].add(plain.get(match.start(), "?"))
    return values


def _build_error(build: str, title: str) -> str:
    """Return the errors of the target that `NAME_NOT_BUILT` stands for."""
    part = f"CMakeFiles/{title.removesuffix('_NOT_BUILT')}.dir/"
    blocks = [block for block in re.split(r"^FAILED: ", build, flags=re.MULTILINE)[1:] if part in block]
    return first_errors(blocks[0]) if blocks else "its program could not be built"


def _commands(files: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the command of each test, from the files that CMake writes for ctest.

    ctest's own list leaves the command out if the program does not exist.
    """
    commands: dict[str, tuple[str, ...]] = {}
    for text in files.values():
        for match in _ADD_TEST.finditer(text):
            words = tuple(re.sub(r"\\(.)", r"\1", word) for word in _QUOTED.findall(match["command"]))
            commands.setdefault(match["bracket"] or match["plain"], words)
    return commands


def _targets(replies: Mapping[str, Any], folder: str) -> dict[str, dict[str, Any]]:
    """Return the target of each program, from the replies of CMake's file API: absolute path to target."""
    targets = {}
    for text in replies.values():
        try:
            target = json.loads(text)
            for artifact in target.get("artifacts", ()) if target["type"] == "EXECUTABLE" else ():
                targets[posixpath.join(folder, artifact["path"])] = target
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    return targets


def _program(
    job: Job,
    test: Mapping[str, Any],
    argv: tuple[str, ...],
    graph: Mapping[str, Any],
    targets: Mapping[str, Mapping[str, Any]],
    folder: str,
) -> Program:
    title = str(test["name"])
    properties = {str(p["name"]): p.get("value") for p in test.get("properties", ())}
    program = argv[0] if argv else ""
    target = targets.get(program) or _not_built(targets, title)
    sources, flags = _target_facts(target, job)
    file = file_of(sources, (str(target.get("name", "")), title)) or _registered_in(job, test, graph)
    special = set(properties) - ORDINARY
    if any(word.startswith("--gtest_filter=") for word in argv):
        special.discard("SKIP_REGULAR_EXPRESSION")  # GoogleTest's own report says so
    pattern = re.sub(r"([^A-Za-z0-9_])", r"\\\1", title)
    via = (
        *("ctest", "--test-dir", folder, "-R", f"^{pattern}$", "--output-junit", "{report}"),
        *("--no-tests=error", "--output-on-failure"),
    )
    return Program(
        ident_of(file, [title]),
        built=bool(argv) and not title.endswith("_NOT_BUILT"),
        program=program,
        file=file,
        title=title,
        argv=argv,
        cwd=str(properties.get("WORKING_DIRECTORY") or folder),
        env=_variables(properties.get("ENVIRONMENT")),
        seconds=seconds_of(properties.get("TIMEOUT")),
        skip=(code,) if isinstance(code := properties.get("SKIP_RETURN_CODE"), int) else (),
        disabled=properties.get("DISABLED") is True,
        sources=sources,
        via=via if special else (),
        make=ninja(program, folder),
        facts={**flags, **{name: json.dumps(value) for name, value in properties.items()}},
    )


def _not_built(targets: Mapping[str, Mapping[str, Any]], title: str) -> Mapping[str, Any]:
    """Return the target of a test that stands for a program that was not built: `NAME_NOT_BUILT`."""
    name = title.removesuffix("_NOT_BUILT")
    return next((target for target in targets.values() if target.get("name") == name), {})


def _variables(values: Any) -> dict[str, str]:
    pairs = [str(value).partition("=") for value in items(values)]
    return {name: value for name, sign, value in pairs if sign and name}


def _target_facts(target: Mapping[str, Any], job: Job) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the sources of a target as paths of the repository, and its compiler and linker flags."""
    folder = job.suite.work_tree
    paths = [posixpath.join(folder, str(source.get("path", ""))) for source in target.get("sources", ())]
    inner = (job.suite.in_tree(posixpath.normpath(path)) for path in paths)
    groups = target.get("compileGroups", ())
    parts = (("defines", "define"), ("compileCommandFragments", "fragment"))
    flags = [str(part[key]) for name, key in parts for group in groups for part in group.get(name, ())]
    links = [str(part["fragment"]) for part in target.get("link", {}).get("commandFragments", ())]
    sources = tuple(path for path in inner if path in job.tree.paths)
    return sources, {"compiler flags": " ".join(flags), "linker flags": " ".join(links)}


def _registered_in(job: Job, test: Mapping[str, Any], graph: Mapping[str, Any]) -> str:
    """Return the CMake file that registers a test."""
    try:
        node = graph["nodes"][test["backtrace"]]
        while True:
            path = job.suite.in_tree(str(graph["files"][node["file"]]))
            if path in job.tree.paths:
                return path
            node = graph["nodes"][node["parent"]]
    except (KeyError, IndexError, TypeError):
        return job.suite.path("CMakeLists.txt")

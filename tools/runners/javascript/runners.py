"""The runners of JavaScript and TypeScript.

`reporters/` holds the programs that run inside the sandbox: `run.cjs` starts the installed runner of the repository with a
reporter of m3agent's. The head of each of them says what code under test can still do unnoticed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar

from m3agent.tools.runners.base import (
    Command,
    Limits,
    Output,
    Preparation,
    Reading,
    Runner,
    Suite,
    Tree,
    Unit,
)
from m3agent.tools.runners.javascript import paths
from m3agent.tools.runners.javascript.detect import find_suites
from m3agent.tools.runners.javascript.manifest import restored_manifest
from m3agent.tools.runners.javascript.packages import preparation
from m3agent.tools.runners.javascript.set_up import set_up_files
from m3agent.tools.runners.records import read_records

Dropped = Mapping[str, bool]
"""Options that a suite's own arguments lose, and whether a value follows."""
_MISSING = re.compile(rb"^m3agent: (the package [\w@/.-]+ is not installed in node_modules)$", re.MULTILINE)
_OUTPUT: Dropped = {
    "--watch": False,
    "--watchAll": False,
    "-w": False,
    "--bail": False,
    "-b": False,
    "--reporter": True,
    "-R": True,
    "--reporters": True,
    "--coverage": False,
    "--verbose": False,
    "--silent": False,
    "--passWithNoTests": False,
    "-u": False,
    "--update": False,
}


class JavaScriptRunner(Runner):
    """What the runners of the ecosystem share.

    Attributes:
        dropped: Options of the suite's script that would change the report.
        time_limit: The option of a test's time limit in milliseconds; empty if there is another way.
        needs_names: Whether only files with the name of a test are tests.
    """

    language = "JavaScript or TypeScript"
    dropped: ClassVar[Dropped] = _OUTPUT
    time_limit: ClassVar[str] = ""
    needs_names: ClassVar[bool] = False

    def detect(self, tree: Tree) -> list[Suite]:
        """Return the suites whose scripts, dependencies or configuration name this runner."""
        return find_suites(tree, self.name)

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Return how the suite's package manager installs the packages."""
        return preparation(suite, tree)

    def is_test(self, path: str) -> bool:
        """Return whether a file belongs to the tests, by its path."""
        return paths.is_test(path)

    def helpers(self, tree: Tree) -> Collection[str]:
        """Return the files that a configuration names as set-up."""
        return set_up_files(tree)

    def surroundings(self, path: str, base: Collection[str] = ()) -> bool:
        """Return whether a file decides how tests run."""
        return paths.surroundings(path)

    def restored(self, path: str, base: bytes | None, patched: bytes | None) -> bytes | None:
        """Return the content of a file that decides how tests run; of a package.json, only the settings of tests."""
        if path.rpartition("/")[2] != "package.json" or base is None or patched is None:
            return base
        try:
            return restored_manifest(base.decode(), patched.decode()).encode()
        except UnicodeDecodeError:
            return patched  # a broken manifest shows in the run

    def select(self, suite: Suite, tree: Tree, wanted: Sequence[str]) -> tuple[str, ...]:
        """Return the test files that contain the wanted tests, relative to the suite's root.

        Nobody knows which tests use another file, such as a helper or data. So the whole suite runs for it.
        """
        start = f"{suite.root}/" if suite.root else ""
        targets: list[str] = []
        for ident in wanted:
            path = ident.partition("::")[0].rstrip("/")
            if path in ("", ".") or start.startswith(f"{path}/"):
                return ()
            if not path.startswith(start):
                continue  # another suite's
            if self.is_target(path):
                found = [path] if path in tree.paths else []
            else:
                inside = [name for name in tree.paths if name.startswith(f"{path}/")]
                found = sorted(filter(self.is_target, inside))
                if not found:
                    return ()
            targets += found
        return tuple(dict.fromkeys(map(suite.within, targets)))

    def is_target(self, path: str) -> bool:
        """Return whether the runner can run a file by itself."""
        return paths.is_named_test(path) if self.needs_names else paths.is_test_file(path)

    def commands(
        self,
        suite: Suite,
        tree: Tree,
        targets: Sequence[str],
        units: Sequence[Unit],
        limits: Limits,
        work: str,
    ) -> list[Command]:
        """Return the one command that runs the targets."""
        report, key_file = f"{work}/report", f"{work}/reporters/key"
        settings = {
            "runner": self.name,
            "report": report,
            "key": key_file,
            "seconds": limits.per_test,
            **self.settings(suite, tree, targets),
        }
        node = _list(suite, "node") if self.name != "node-test" else ()
        return [
            Command(
                (
                    "node",
                    *node,
                    f"{work}/reporters/run.cjs",
                    json.dumps(settings),
                    *self.arguments(suite, targets, limits),
                ),
                cwd=suite.root or ".",
                env=_table(suite, "env"),
                files={f"{work}/reporters/{name}": content for name, content in _programs().items()},
                report=report,
                key_file=key_file,
            )
        ]

    def settings(self, suite: Suite, tree: Tree, targets: Sequence[str]) -> dict[str, object]:
        """Return further settings of the program that starts the runner."""
        return {}

    def arguments(self, suite: Suite, targets: Sequence[str], limits: Limits) -> list[str]:
        """Return the runner's arguments."""
        own = kept(_list(suite, "args"), self.dropped)
        if targets:
            own = options_of(own)
        return [*self.limit(limits), *own, *targets]

    def limit(self, limits: Limits) -> list[str]:
        """Return the arguments for the time limit of a test."""
        return [f"{self.time_limit}={int(limits.per_test * 1000)}"] if self.time_limit else []

    def read(self, suite: Suite, tree: Tree, units: Sequence[Unit], outputs: Sequence[Output]) -> Reading:
        """Read the records."""
        reading = read_records(suite, outputs)
        for output in outputs:
            missing = _MISSING.search(output.stderr)
            if missing and not reading.results:
                reading.problem = missing[1].decode()
        return reading


class Jest(JavaScriptRunner):
    """jest. The option for the time limit of a test is that of asynchronous tests."""

    needs_names = True

    name = "jest"
    time_limit = "--testTimeout"
    dropped: ClassVar[Dropped] = {
        **_OUTPUT,
        "-i": False,
        "--runInBand": False,
        "-w": True,
        "--maxWorkers": True,
        "--detectOpenHandles": False,
        "--ci": False,
        "--json": False,
        "--outputFile": True,
        "--updateSnapshot": False,
        "--collectCoverage": False,
        "--testRunner": True,
        "--testTimeout": True,
        "--workerIdleMemoryLimit": True,
    }

    def arguments(self, suite: Suite, targets: Sequence[str], limits: Limits) -> list[str]:
        """Return the arguments; files are given by path, because jest takes other words as patterns."""
        given = super().arguments(suite, (), limits)
        if not targets:
            return given
        return [*options_of(given), "--runTestsByPath", *targets]


class Vitest(JavaScriptRunner):
    """vitest."""

    needs_names = True

    name = "vitest"
    time_limit = "--testTimeout"
    dropped: ClassVar[Dropped] = {
        **_OUTPUT,
        "run": False,
        "watch": False,
        "dev": False,
        "--run": False,
        "--ui": False,
        "--testTimeout": True,
        "--outputFile": True,
    }


class Mocha(JavaScriptRunner):
    """mocha. A specification in `.mocharc` always runs as well, because mocha adds files to it."""

    name = "mocha"
    time_limit = "--timeout"
    dropped: ClassVar[Dropped] = {
        **_OUTPUT,
        "-O": True,
        "--reporter-option": True,
        "--reporter-options": True,
        "-p": False,
        "--parallel": False,
        "-j": True,
        "--jobs": True,
        "-t": True,
        "--timeout": True,
        "-c": False,
        "--color": False,
        "--colors": False,
    }


class Ava(JavaScriptRunner):
    """ava. Its time limit is the time without any new result."""

    name = "ava"
    dropped: ClassVar[Dropped] = {
        **_OUTPUT,
        "--tap": False,
        "-t": False,
        "--fail-fast": False,
        "--timeout": True,
        "-T": True,
        "-v": False,
        "--update-snapshots": False,
        "--no-worker-threads": False,
    }

    def limit(self, limits: Limits) -> list[str]:
        """Return the argument for the time without any new result."""
        return [f"--timeout={int(limits.per_test * 1000)}ms"]


class NodeTest(JavaScriptRunner):
    """`node --test`. The files are those that node itself would run, or those of the script."""

    name = "node-test"

    def settings(self, suite: Suite, tree: Tree, targets: Sequence[str]) -> dict[str, object]:
        """Return the files, and node's options for each of them."""
        return {"files": list(targets) or self._files(suite, tree), "nodeOptions": list(_list(suite, "node"))}

    def arguments(self, suite: Suite, targets: Sequence[str], limits: Limits) -> list[str]:
        """Return nothing: each file has a process of its own."""
        return []

    def _files(self, suite: Suite, tree: Tree) -> list[str]:
        start = f"{suite.root}/" if suite.root else ""
        inner = sorted(
            path.removeprefix(start)
            for path in tree.paths
            if path.startswith(start) and "node_modules/" not in path
        )
        patterns = _list(suite, "args")
        if not patterns:
            return [path for path in inner if _NODE_DEFAULT.search(path)]
        found: list[str] = []
        for pattern in patterns:
            name = pattern.removeprefix("./").rstrip("/")
            if any(path.startswith(f"{name}/") for path in inner):
                found += [path for path in inner if path.startswith(f"{name}/") and paths.is_code(path)]
            else:
                matches = glob_pattern(name)
                found += [path for path in inner if matches.fullmatch(path)]
        return list(dict.fromkeys(found))


_NODE_DEFAULT = re.compile(r"(^|/)(test/.*|test-[^/]*|test|[^/]*[._-]test)\.[cm]?[jt]s$")
"""The files that `node --test` runs without arguments."""


def glob_pattern(pattern: str) -> re.Pattern[str]:
    """Return a regular expression for a pattern of a shell: `*`, `?`, `**`, `[a-z]`, `{a,b}`."""
    pieces = {
        "**/": "(?:.*/)?",
        "**": ".*",
        "*": "[^/]*",
        "?": "[^/]",
        "{": "(?:",
        "}": ")",
        ",": "|",
    }
    parts = re.findall(r"\*\*/|\[[^]]+\]|\*\*|[*?{},]|[^*?{},[]+|\[", pattern)
    depth = 0
    text = ""
    for part in parts:
        depth += {"{": 1, "}": -1}.get(part, 0)
        if part == "," and depth == 0:
            text += ","
        elif part.startswith("[") and len(part) > 1:
            text += "[" + part[1:-1].replace("\\", "\\\\").replace("[", "\\[") + "]"
        else:
            text += pieces.get(part, re.escape(part))
    try:
        return re.compile(text)
    except re.error:
        return re.compile(re.escape(pattern))


def kept(words: Sequence[str], dropped: Dropped) -> list[str]:
    """Return the arguments of a script without some options and their values."""
    found: list[str] = []
    skip = False
    for word in words:
        name, equals, _ = word.partition("=")
        if skip and not word.startswith("-"):
            skip = False
        elif name in dropped or re.match(r"--coverage\.", name):
            skip = dropped.get(name, False) and not equals
        else:
            skip = False
            found.append(word)
    return found


def options_of(words: Sequence[str]) -> list[str]:
    """Return the options of an argument list with their values, without files and patterns."""
    found: list[str] = []
    option = ""  # the word before, if it may have a value
    for word in words:
        is_value = option in _WITH_FILE or (bool(option) and not _FILE_LIKE.search(word))
        if word.startswith("-") or is_value:
            found.append(word)
        option = word if word.startswith("-") and "=" not in word else ""
    return found


_FILE_LIKE = re.compile(r"[*{]|\.[cm]?[jt]sx?$|^(test|tests|spec)/?$")
_WITH_FILE = frozenset(
    {"-r", "--require", "--import", "--loader", "--config", "-c", "--file", "--setupFiles", "--package"}
)
"""Options whose value is a file."""


def _list(suite: Suite, name: str) -> tuple[str, ...]:
    return tuple(json.loads(suite.options.get(name, "[]")))


def _table(suite: Suite, name: str) -> dict[str, str]:
    return dict(json.loads(suite.options.get(name, "{}")))


@cache
def _programs() -> Mapping[str, bytes]:
    folder = Path(__file__).parent / "reporters"
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".cjs", ".mjs")}


JAVASCRIPT: Mapping[str, Runner] = {
    runner.name: runner for runner in (Jest(), Vitest(), Mocha(), NodeTest(), Ava())
}
"""The runners of the ecosystem by name."""

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

from m3agent.tools.runners.base import (
    Command,
    Job,
    Limits,
    Output,
    Preparation,
    Reading,
    Runner,
    Suite,
    Tree,
    Unit,
    is_within,
    place_of,
)
from m3agent.tools.runners.javascript.detect import ROWS, find_suites
from m3agent.tools.runners.javascript.packages import preparation, restored_manifest, set_up_files
from m3agent.tools.runners.path_rules import JS, RULES, is_code
from m3agent.tools.runners.records import read_records

_MISSING = re.compile(rb"^m3agent: (the package [\w@/.-]+ is not installed in node_modules)$", re.MULTILINE)


_EVERY = "--watch --watchAll -w --bail -b --coverage --verbose --silent --passWithNoTests -u --update"
_REPORTERS = "--reporter -R --reporters"
"""Options that would change the report of any runner; of reporters, a value follows."""


class JavaScriptRunner(Runner):
    """What the runners of the ecosystem share; `runners.toml` says what differs."""

    language = "JavaScript or TypeScript"

    def __init__(self, name: str) -> None:
        self.name = name
        self._row = ROWS.get(name, {})
        self._dropped = dict.fromkeys(f"{_EVERY} {self._row.get('dropped', '')}".split(), False)
        self._dropped |= dict.fromkeys(
            f"{_REPORTERS} {self._row.get('dropped_with_value', '')}".split(), True
        )

    def detect(self, tree: Tree) -> list[Suite]:
        """Return the suites whose scripts, dependencies or configuration name this runner."""
        return find_suites(tree, self.name)

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Return how the suite's package manager installs the packages."""
        return preparation(suite, tree)

    def helpers(self, tree: Tree) -> Collection[str]:
        """Return the files that a configuration names as set-up."""
        return set_up_files(tree)

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
        targets: list[str] = []
        for path in map(place_of, wanted):
            if path == "." or is_within(suite.root, path):
                return ()
            if not is_within(path, suite.root):
                continue  # another suite's
            if self.is_target(path):
                files = [path] if path in tree.paths else []
            else:
                inside = (name for name in tree.paths if name.startswith(f"{path}/"))
                files = sorted(filter(self.is_target, inside))
                if not files:
                    return ()
            targets += files
        return tuple(dict.fromkeys(map(suite.within, targets)))

    def is_target(self, path: str) -> bool:
        """Return whether the runner can run a file by itself."""
        named = "/__tests__/" in f"/{path}" or RULES["js-names"].is_test(path)
        return is_code(path) and (named if self._row.get("needs_names") else JS.is_test(path))

    def commands(self, job: Job, units: Sequence[Unit]) -> list[Command]:
        """Return the one command that runs the targets."""
        suite, folder = job.suite, f"{job.work}/reporters"
        report, key_file = f"{job.work}/report", f"{folder}/key"
        settings = {
            "runner": self.name,
            "report": report,
            "key": key_file,
            "seconds": job.limits.per_test,
            **self.settings(suite, job.tree, job.targets),
        }
        node = _list(suite, "node") if self.name != "node-test" else ()
        arguments = self.arguments(suite, job.targets, job.limits)
        return [
            Command(
                ("node", *node, f"{folder}/run.cjs", json.dumps(settings), *arguments),
                cwd=suite.root,
                env=json.loads(suite.options.get("env", "{}")),
                files={f"{folder}/{name}": content for name, content in _programs().items()},
                report=report,
                key_file=key_file,
            )
        ]

    def settings(self, suite: Suite, tree: Tree, targets: Sequence[str]) -> dict[str, object]:
        """Return further settings of the program that starts the runner."""
        return {}

    def arguments(self, suite: Suite, targets: Sequence[str], limits: Limits) -> list[str]:
        """Return the runner's arguments."""
        own = kept(_list(suite, "args"), self._dropped)
        limit = self._row["time_limit"].format(int(limits.per_test * 1000))
        chosen = [*options_of(own), *self._row.get("before_files", ()), *targets] if targets else own
        return [limit, *chosen]

    def read(self, job: Job, units: Sequence[Unit], outputs: Sequence[Output]) -> Reading:
        """Read the records."""
        reading = read_records(job.suite, outputs)
        for output in outputs:
            missing = _MISSING.search(output.stderr)
            if missing and not reading.results:
                reading.problem = missing[1].decode()
        return reading


class NodeTest(JavaScriptRunner):
    """`node --test`. The files are those that node itself would run, or those of the script."""

    def settings(self, suite: Suite, tree: Tree, targets: Sequence[str]) -> dict[str, object]:
        """Return the files, and node's options for each of them."""
        return {"files": list(targets) or self._files(suite, tree), "nodeOptions": list(_list(suite, "node"))}

    def arguments(self, suite: Suite, targets: Sequence[str], limits: Limits) -> list[str]:
        """Return nothing: each file has a process of its own."""
        return []

    def _files(self, suite: Suite, tree: Tree) -> list[str]:
        paths = map(suite.within, tree.below(suite.root, ""))
        inner = [path for path in paths if "node_modules/" not in path]
        patterns = [pattern.removeprefix("./").rstrip("/") for pattern in _list(suite, "args")]
        files = list[str]()
        for pattern in patterns:
            below = [path for path in inner if path.startswith(f"{pattern}/")]
            files += filter(is_code, below) if below else filter(glob_pattern(pattern).fullmatch, inner)
        return list(dict.fromkeys(files)) if patterns else list(filter(_NODE_DEFAULT.search, inner))


_NODE_DEFAULT = re.compile(r"(^|/)(test/.*|test-[^/]*|test|[^/]*[._-]test)\.[cm]?[jt]s$")
"""The files that `node --test` runs without arguments."""


def glob_pattern(pattern: str) -> re.Pattern[str]:
    """Return a regular expression for a pattern of a shell: `*`, `?`, `**`, `[a-z]`, `{a,b}`."""
    pieces = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")", ",": "|"}
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


def kept(words: Sequence[str], dropped: Mapping[str, bool]) -> list[str]:
    """Return the arguments of a script without some options, and their values where one follows."""
    words_left: list[str] = []
    skip = False
    for word in words:
        name, equals, _ = word.partition("=")
        if skip and not word.startswith("-"):
            skip = False
        elif name in dropped or re.match(r"--coverage\.", name):
            skip = dropped.get(name, False) and not equals
        else:
            skip = False
            words_left.append(word)
    return words_left


def options_of(words: Sequence[str]) -> list[str]:
    """Return the options of an argument list with their values, without files and patterns."""
    options: list[str] = []
    option = ""  # the word before, if it may have a value
    for word in words:
        is_value = option in _WITH_FILE or (bool(option) and not _FILE_LIKE.search(word))
        if word.startswith("-") or is_value:
            options.append(word)
        option = word if word.startswith("-") and "=" not in word else ""
    return options


_FILE_LIKE = re.compile(r"[*{]|\.[cm]?[jt]sx?$|^(test|tests|spec)/?$")
_WITH_FILE = frozenset(
    {"-r", "--require", "--import", "--loader", "--config", "-c", "--file", "--setupFiles", "--package"}
)
"""Options whose value is a file."""


def _list(suite: Suite, name: str) -> tuple[str, ...]:
    return tuple(json.loads(suite.options.get(name, "[]")))


@cache
def _programs() -> Mapping[str, bytes]:
    folder = Path(__file__).parent / "reporters"
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".cjs", ".mjs")}


JAVASCRIPT: Mapping[str, Runner] = {
    **{name: JavaScriptRunner(name) for name in ("jest", "vitest", "mocha")},
    "node-test": NodeTest("node-test"),
    "ava": JavaScriptRunner("ava"),
}
"""The runners of the ecosystem by name."""

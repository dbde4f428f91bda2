"""Read what a row says about its tests: parse its command, and find its suites if they are not Python's."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from m3agent.evals.data.instance import PYTHON_RUNNERS, Answer
from m3agent.tools.runners.base import Suite, Tree
from m3agent.tools.runners.command import CommandRunner
from m3agent.tools.runners.python import PYTEST, is_test_module
from m3agent.tools.runners.suites import RUNNERS, described, file_of, find_suites

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
VALUED = frozenset({"-p", "-W", "-k", "-m", "-o", "-c", "-n", "-r", "--durations", "--rootdir", "--maxfail"})
"""Options of pytest whose value may be a separate word."""
LEFT_OUT = (
    *("-r", "-v", "-q", "-s", "-x", "-n", "-c", "--durations", "--tb", "--no-header", "--color", "--rootdir"),
    *("--maxfail", "--verbose", "--junit", "--pdb", "--exitfirst", "--dist", "--lf", "--ff", "--sw", "--co"),
)
"""Prefixes of options that are dropped: they affect only the output, or which tests or results appear."""


@dataclass(frozen=True)
class RowCommand:
    """A parsed test command."""

    env: dict[str, str] = field(default_factory=dict)
    """Variables that are set in front of the command."""
    python: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """Options of pytest that decide how tests run."""
    targets: tuple[str, ...] = ()
    """Words that may be paths."""
    program: str = ""
    """A script or module other than pytest; empty for pytest."""
    words: tuple[str, ...] = ()


def parse_command(text: str) -> RowCommand:
    """Parse a shell line; parts that cannot be understood are left out."""
    try:
        words = shlex.split(text)
    except ValueError:
        return RowCommand()
    env: dict[str, str] = {}
    while words and (match := ASSIGNMENT.fullmatch(words[0])):
        env[match[1]] = match[2]
        words.pop(0)
    python: list[str] = []
    if words and PurePosixPath(words[0]).name.startswith("python"):
        words.pop(0)
        while words and words[0].startswith("-") and words[0] != "-m":
            option = words.pop(0)
            python.append(option)
            if option in {"-X", "-W"} and words:
                python.append(words.pop(0))
        if words[:1] == ["-m"]:
            words.pop(0)
    is_pytest = bool(words) and PurePosixPath(words[0]).name in {"pytest", "py.test"}
    other = ("", ()) if is_pytest or not words else (words[0], tuple(words[1:]))
    return RowCommand(env, tuple(python), *_split(words[1:], is_pytest=is_pytest), *other)


def _split(words: Sequence[str], *, is_pytest: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    options: list[str] = []
    targets: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("-"):
            targets.append(word)
        elif is_pytest:
            value = [left.pop(0)] if word in VALUED and left else []
            options += [] if word.startswith(LEFT_OUT) else [word, *value]
    return tuple(options), tuple(targets)


@dataclass(frozen=True)
class RowSuites:
    """The suites of a row."""

    graded: tuple[Suite, ...] = ()
    """The suites that hold the row's tests; empty if its tests are Python's."""
    every: tuple[Suite, ...] = ()
    """All suites of the code, which decide how ids start."""


def suites_of_row(answer: Answer, tree: Tree) -> RowSuites:
    """Return the suites that grade a row.

    They are those of the runner that the row names. Else they are the suites to which the files of its tests belong, or all
    suites if the row names no such file.

    Args:
        tree: The base with the row's own tests. A patch has no part in it, so it can neither add nor remove a suite.

    Raises:
        ValueError: No runner of m3agent's can run the row's tests, or it is not clear which one; the message says why.
    """
    if answer.runner in PYTHON_RUNNERS:
        return RowSuites()
    every = find_suites(tree)
    there = f"found: {described(every)}" if every else "no tests were found"
    if answer.runner:
        named = tuple(suite for suite in every if suite.runner == answer.runner)
        if not named:
            raise ValueError(f"its code has no tests for {answer.runner} ({there})")
        return RowSuites(named, every)
    graded = _of_the_rows_files(answer, tree, every)
    runners = {suite.runner for suite in graded}
    if not runners:
        raise ValueError(f"no test runner that can be graded fits its code ({there})")
    if runners == {PYTEST}:
        return RowSuites()
    if PYTEST in runners:
        raise ValueError(
            f"it does not say in which language its tests are ({there}): name the runner in environment.test_runner"
        )
    return RowSuites(graded, every)


def _of_the_rows_files(answer: Answer, tree: Tree, every: Sequence[Suite]) -> tuple[Suite, ...]:
    """Return the suites to which the files of a row's tests belong, else all that can be graded."""
    able = tuple(suite for suite in every if suite.runner != CommandRunner.name)
    paths = [*_named_files(answer, tree)]
    return tuple(suite for suite in able if any(_owns(suite, path) for path in paths)) or able


def targets_of_row(answer: Answer, tree: Tree) -> list[str]:
    """Return the files and folders whose tests run.

    They are the files in the row's test ids if each id names one, else the paths in its command, else everything.
    """
    files = {file_of(name) for name in answer.tests}
    if files and files <= tree.paths:
        return sorted(files)
    folders = {str(parent) for path in tree.paths for parent in PurePosixPath(path).parents}
    words = parse_command(answer.test_command).words
    # a word without a slash, such as `test`, is more often a part of the command than a folder
    named = {_plain(word) for word in words if _plain(word) in tree.paths or "/" in word} - {"."}
    return sorted(named & (tree.paths | folders)) or ["."]


def _plain(word: str) -> str:
    """Return a path in a command without what Go and others write around it: `./tools/...` is `tools`."""
    return word.removeprefix("./").removesuffix("...").rstrip("/")


def _named_files(answer: Answer, tree: Tree) -> Iterator[str]:
    """Yield the files in the row's test ids, and those that its test patch changes."""
    for name in answer.tests:
        if file_of(name) in tree.paths:
            yield file_of(name)
    for line in answer.test_patch.splitlines():
        if line.startswith("+++ b/"):
            yield line.removeprefix("+++ b/")


def _owns(suite: Suite, path: str) -> bool:
    inside = not suite.root or path.startswith(f"{suite.root}/")
    is_test = is_test_module if suite.runner == PYTEST else RUNNERS[suite.runner].is_test
    return inside and is_test(path)

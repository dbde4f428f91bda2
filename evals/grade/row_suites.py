"""Find the test suites that grade a row whose tests are in another language than Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from m3agent.evals.data.instance import PYTHON_RUNNERS, Answer
from m3agent.evals.grade.command import parse_command
from m3agent.tools.runners.base import Suite, Tree
from m3agent.tools.runners.command import CommandRunner
from m3agent.tools.runners.python import PYTEST, is_test_module
from m3agent.tools.runners.suites import RUNNERS, described, file_of, find_suites


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
    found = f"found: {described(every)}" if every else "no tests were found"
    if answer.runner:
        graded = tuple(suite for suite in every if suite.runner == answer.runner)
        if not graded:
            raise ValueError(f"its code has no tests for {answer.runner} ({found})")
        return RowSuites(graded, every)
    able = [suite for suite in every if suite.runner != CommandRunner.name]
    if not able:
        raise ValueError(f"no test runner that can be graded fits its code ({found})")
    paths = [*_named_files(answer, tree)]
    graded = tuple(suite for suite in able if any(_owns(suite, path) for path in paths)) or tuple(able)
    if all(suite.runner == PYTEST for suite in graded):
        return RowSuites()
    if any(suite.runner == PYTEST for suite in graded):
        raise ValueError(
            f"it does not say in which language its tests are ({found}): name the runner in environment.test_runner"
        )
    return RowSuites(graded, every)


def targets_of_row(answer: Answer, tree: Tree) -> list[str]:
    """Return the files and folders whose tests run.

    They are the files in the row's test ids if each id names one, else the paths in its command, else everything.
    """
    files = {file_of(name) for name in (*answer.fail_to_pass, *answer.pass_to_pass)}
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
    for name in (*answer.fail_to_pass, *answer.pass_to_pass):
        if file_of(name) in tree.paths:
            yield file_of(name)
    for line in answer.test_patch.splitlines():
        if line.startswith("+++ b/"):
            yield line.removeprefix("+++ b/")


def _owns(suite: Suite, path: str) -> bool:
    inside = not suite.root or path.startswith(f"{suite.root}/")
    is_test = is_test_module if suite.runner == PYTEST else RUNNERS[suite.runner].is_test
    return inside and is_test(path)

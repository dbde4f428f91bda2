"""Which tests a call of `test_runner` names: paths, node ids, titles, an expression as for pytest's `-k`; and which a wrong one may mean."""

from __future__ import annotations

import ast
import difflib
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from m3agent.tools.test_report import TestReport
from m3agent.util.python_ast import parse

MOST = 5
"""Most names that one answer suggests."""
ALIKE = 0.6  # least similarity of two names, from 0 to 1


def folders_of(files: Iterable[str]) -> set[str]:
    """Return the folders of files, with `.` for the work tree itself."""
    return {str(folder) for file in files for folder in PurePosixPath(file).parents}


def near_paths(path: str, files: Collection[str]) -> list[str]:
    """Return test files, and folders with such files, whose names are like a path; best first."""
    tests = [file for file in files if file.endswith(".py") and "test" in file.lower()]
    candidates = tests if path.endswith(".py") else [*(folders_of(tests) - {"."}), *tests]
    wanted = PurePosixPath(path).name
    return best_names(wanted, path, {file: PurePosixPath(file).name for file in candidates if file != path})


def path_of_dotted(name: str, files: Collection[str]) -> str:
    """Return the node id that a dotted name means, as `tests.test_a.TestA.test_b`; any other text as it is."""
    words = name.split(".")
    if name in files or not all(map(str.isidentifier, words)):
        return name
    for end in range(len(words), 0, -1):
        path = f"{'/'.join(words[:end])}.py"
        if path in files:
            return "::".join((path, *words[end:]))
    return name


def near_names(wanted: str, names: Collection[str]) -> list[str]:
    """Return the names of tests that are like a wanted one; best first.

    Args:
        wanted: The part of a node id after the file, such as `TestA::test_one[1]`.
        names: What the file has, without parameters (see `names_of_tests`).
    """
    wanted = wanted.partition("[")[0]
    return best_names(wanted.rpartition("::")[2], wanted, {name: name.rpartition("::")[2] for name in names})


def names_of_tests(source: str) -> list[str]:
    """Return the classes with tests and the tests that a file defines, as node ids without the file.

    The file is parsed, not imported. So tests that are inherited or made by code are missing.
    """
    try:
        tree = parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    return list(_names(tree.body, ""))


def _names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            inner = list(_names(node.body, f"{prefix}{node.name}::"))
            if inner:
                yield prefix + node.name
                yield from inner
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "test" in node.name.lower():
            yield prefix + node.name


def best_names(last: str, whole: str, candidates: dict[str, str]) -> list[str]:
    """Return the candidates most like a name: `last` is its last part; candidates map a name to its last part."""
    scored = []
    for name, ending in candidates.items():
        alike = _alike(whole, name)
        # Equal last parts come first, however different the rest is.
        score = 2.0 if last == ending else max(alike, _alike(last, ending))
        if score >= ALIKE:
            scored.append((-score, -alike, name))
    return [name for *_, name in sorted(scored)[:MOST]]


def _alike(one: str, other: str) -> float:
    """Return how similar two names are, from 0 to 1; case does not count."""
    matcher = difflib.SequenceMatcher(None, one.lower(), other.lower(), autojunk=False)
    return matcher.ratio() if matcher.quick_ratio() >= ALIKE else 0.0


_COMMAND = re.compile(
    r"(?:python3? -m |npx |yarn |pnpm (?:exec )?)?(?:pytest|py\.test|vitest(?: run)?|jest)(?= |$) ?"
)
_OPTION = re.compile(r"(?:-[kt]|--testNamePattern)(?:[ =]|$)")
_SHOWN = re.compile(r"-[vqsxl]+$|-r\w+$|--(?:verbose|quiet|no-header|color|tb)(?:=\S*)?$")
"""Options of pytest that change only what is shown."""
_FILE = re.compile(r"[^\s:]+\.py(?:::\S|$)")
"""A word that names a file of Python, or a test in it, whether or not there is such a file."""
_PARAMETERS = re.compile(r"\[.*\]$", re.DOTALL)


class BadTargets(ValueError):
    """The text has an option that the tool does not take; the text is the option."""


@dataclass(frozen=True)
class Targets:
    """The tests that a call names."""

    paths: tuple[str, ...]
    """Files, folders and node ids, as they were written."""
    keyword: str = ""
    """An expression that the names of the tests must match; empty for all."""

    def __post_init__(self) -> None:
        for path in self.paths:
            if path.startswith("-"):
                raise BadTargets(path)

    def selected(self, report: TestReport) -> TestReport:
        """Return the report without the tests whose names do not match the expression."""
        return report.only(lambda ident: matches(ident, self.keyword)) if self.keyword else report


EVERYTHING = Targets((".",))


def targets_in(text: str, files: Collection[str]) -> Targets:
    """Read the argument of a call. A blank separates paths only if a path of the work tree follows: ids have blanks, too.

    Raises:
        BadTargets: There is another option than `-k`.
    """
    places = folders_of(files).union(files)

    def is_path(word: str) -> bool:
        return posixpath.normpath(word.partition("::")[0]) in places

    if text and is_path(text) and "::" not in text:
        return Targets((text,))
    paths, keyword, in_keyword = list[str](), list[str](), False
    for word in filter(None, re.split(r"[\s,]+(?=\S)", _COMMAND.sub("", text, count=1))):
        if _OPTION.match(word):
            in_keyword = True
            keyword.append(word.partition("=")[2])
        elif _SHOWN.match(word):
            in_keyword = False
        elif in_keyword and not is_path(word):
            keyword.append(word)
        elif paths and "::" in paths[-1] and not (_FILE.match(word) or is_path(word)):
            paths[-1] += f" {word}"
        else:
            in_keyword = False
            paths.append(word)
    return Targets(tuple(paths) or (".",), " ".join(filter(None, keyword)).strip("'\" "))


def has_title(ident: str, title: str) -> bool:
    """Return whether the test with this id is the one that a title names, which may lack what is around the test."""
    name = _PARAMETERS.sub("", ident.partition("::")[2])
    wanted = _PARAMETERS.sub("", title)
    return name == wanted or (name.endswith(wanted) and name[: -len(wanted)].endswith(("::", " ")))


def matches(ident: str, keyword: str) -> bool:
    """Return whether an id matches an expression of words with `and`, `or` and `not`, as for pytest's `-k`."""
    lower = ident.lower()

    def holds(term: str) -> bool:
        negative = term.startswith("not ")
        return (term.removeprefix("not ").strip("() ") in lower) != negative

    return any(all(map(holds, part.split(" and "))) for part in keyword.lower().split(" or "))

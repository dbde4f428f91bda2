"""Which tests a call of `test_runner` names: paths, node ids, titles, and an expression as for pytest's `-k`."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import PurePosixPath

from m3agent.tools.test_report import TestReport

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
    folders = {str(folder) for file in files for folder in PurePosixPath(file).parents}

    def is_path(word: str) -> bool:
        path = posixpath.normpath(word.partition("::")[0])
        return path in files or path in folders

    if text and is_path(text) and "::" not in text:
        return Targets((text,))
    paths, keyword, in_keyword = list[str](), list[str](), False
    for word in re.split(r"[\s,]+(?=\S)", _COMMAND.sub("", text, count=1)):
        if not word:
            continue
        if _OPTION.match(word):
            in_keyword = True
            keyword.append(word.partition("=")[2])
        elif _SHOWN.match(word):
            in_keyword = False
        elif is_path(word) or (_FILE.match(word) and not in_keyword):
            in_keyword = False
            paths.append(word)
        elif in_keyword:
            keyword.append(word)
        elif paths and "::" in paths[-1]:
            paths[-1] += f" {word}"
        else:
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

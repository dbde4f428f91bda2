"""Find code in languages other than Python that decides how a test compares: a person must read it.

Inverted copies (`inverted_runs`) show for Python whether a comparison depends on the values. Other languages have no copies, so each
change of such code counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

from m3agent.agent.verify.reaches import Reach

COMPARES = "changes how values compare"
MACRO = "redefines what a test fails with"
RUNNER = "replaces a function of the test runner"
MOST_LINES = 200
"""Lines of a definition that are read."""


class Deciding(NamedTuple):
    """A kind of code that decides comparisons."""

    suffixes: str
    """Of files that may have it, without dots."""
    begins: str
    """Matches its beginning, on one line or several."""
    what: str
    """What it does, as a phrase."""


_JS = "js cjs mjs jsx ts cts mts tsx vue svelte"
_GLOBALS = r"(?:expect|assert|test|it|describe|suite|before|after|beforeEach|afterEach|beforeAll|afterAll)"
_C_PLUS_PLUS = "cc cpp cxx h hh hpp hxx inl ipp"
TABLE = (
    Deciding(
        "rs",
        r"\bimpl\b[^{;]{0,300}\b(?:PartialEq|PartialOrd|Eq|Ord|Termination)\b[^{;]{0,300}\bfor\b",
        COMPARES,
    ),
    Deciding("rs", r"\bmacro_rules\s*!\s*(?:(?:debug_)?assert\w*|panic|unreachable|matches|\$)", MACRO),
    Deciding("rs", r"\buse\b[^;]{0,300}\bas\s+(?:(?:debug_)?assert\w*|panic)\b", MACRO),
    Deciding("go", r"^func\s*\([^)]{0,300}\)\s*(?:Equal|Is|As)\s*\(", COMPARES),
    Deciding(_C_PLUS_PLUS, r"\boperator\s*(?:==|!=|<=>)", COMPARES),
    Deciding(
        "java kt groovy scala",
        r"\b(?:boolean|fun|def)\s+equals\s*\(",
        COMPARES,
    ),
    Deciding("cs vb fs", r"\bbool\s+Equals\s*\(|\boperator\s*[=!]=|\bFunction\s+Equals\b", COMPARES),
    Deciding(
        "rb",
        r"(?:\bdef\s+(?:self\.)?|\b(?:define_method|alias_method|alias)\b[\s(:'\"]*)(?:==|===|!=|=~|<=>|eql\?|equal\?)",
        COMPARES,
    ),
    Deciding("swift", r"\bfunc\s*(?:==|!=|~=)", COMPARES),
    Deciding(_JS, r"\b(?:asymmetricMatch|hasInstance)\b|jest\.asymmetricMatcher", COMPARES),
    Deciding(_JS, r"\bexpect\.extend\s*\(|\baddEqualityTesters\b", RUNNER),
    Deciding(_JS, rf"\b(?:globalThis|global|window|self)(?:\.|\[['\"]){_GLOBALS}\b['\"\]]*\s*=(?!=)", RUNNER),
    Deciding(_JS, r"\bassert(?:\.strict)?(?:\.|\[)[\w'\"]+\]?\s*=(?!=)", RUNNER),
)
"""What decides comparisons, by language."""


def definitions_in(path: str, content: bytes) -> Iterator[Reach]:
    """Yield the first line of each definition that decides comparisons, with the text of the whole definition as its name."""
    suffix = PurePosixPath(path).suffix.lower().removeprefix(".")
    rows = [row for row in TABLE if suffix in row.suffixes.split()]
    text = content.decode(errors="replace") if rows else ""
    lines = text.split("\n")
    found = {
        (text.count("\n", 0, match.start()), row.what)
        for row in rows
        for match in re.finditer(row.begins, text, re.MULTILINE)
    }
    for number, what in sorted(found):
        yield Reach(number + 1, "\n".join(_block(lines[number : number + MOST_LINES])).rstrip(), what)


def _block(lines: list[str]) -> Iterator[str]:
    """Yield the first line, stripped, and the lines that it begins: until its brackets are closed, and those that are indented more."""
    depth, indent = 0, len(lines[0]) - len(lines[0].lstrip())
    for number, line in enumerate(lines):
        text = line.strip()
        is_inside = depth > 0 or not text or len(line) - len(line.lstrip()) > indent
        if number and not is_inside and not text.startswith(("{", "}", ")", "]", "end", "where", "for ")):
            return
        yield text
        depth += sum(line.count(bracket) for bracket in "{([") - sum(line.count(bracket) for bracket in "})]")

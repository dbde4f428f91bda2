"""Find code in languages other than Python that decides how a test compares: a person must read it.

Inverted copies (`inverted_runs`) show for Python whether a comparison depends on the values. Other languages have no copies, so each
change of such code counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

COMPARES = "changes how values compare"
MACRO = "redefines what a test fails with"
RUNNER = "replaces a function of the test runner"
MOST_LINES = 200
"""Lines of a definition that are read."""


@dataclass(frozen=True)
class Deciding:
    """A kind of code that decides comparisons."""

    suffixes: frozenset[str]
    begins: re.Pattern[str]
    """Matches its beginning, on one line or several."""
    what: str
    """What it does, as a phrase."""


def _row(suffixes: str, begins: str, what: str) -> Deciding:
    return Deciding(
        frozenset(f".{suffix}" for suffix in suffixes.split()), re.compile(begins, re.MULTILINE), what
    )


_JS = "js cjs mjs jsx ts cts mts tsx vue svelte"
_GLOBALS = r"(?:expect|assert|test|it|describe|suite|before|after|beforeEach|afterEach|beforeAll|afterAll)"
_C_PLUS_PLUS = "cc cpp cxx h hh hpp hxx inl ipp"
TABLE = (
    _row(
        "rs",
        r"\bimpl\b[^{;]{0,300}\b(?:PartialEq|PartialOrd|Eq|Ord|Termination)\b[^{;]{0,300}\bfor\b",
        COMPARES,
    ),
    _row("rs", r"\bmacro_rules\s*!\s*(?:(?:debug_)?assert\w*|panic|unreachable|matches|\$)", MACRO),
    _row("rs", r"\buse\b[^;]{0,300}\bas\s+(?:(?:debug_)?assert\w*|panic)\b", MACRO),
    _row("go", r"^func\s*\([^)]{0,300}\)\s*(?:Equal|Is|As)\s*\(", COMPARES),
    _row(_C_PLUS_PLUS, r"\boperator\s*(?:==|!=|<=>)", COMPARES),
    _row(
        "java kt groovy scala",
        r"\b(?:boolean|fun|def)\s+equals\s*\(",
        COMPARES,
    ),
    _row("cs vb fs", r"\bbool\s+Equals\s*\(|\boperator\s*[=!]=|\bFunction\s+Equals\b", COMPARES),
    _row(
        "rb",
        r"(?:\bdef\s+(?:self\.)?|\b(?:define_method|alias_method|alias)\b[\s(:'\"]*)(?:==|===|!=|=~|<=>|eql\?|equal\?)",
        COMPARES,
    ),
    _row("swift", r"\bfunc\s*(?:==|!=|~=)", COMPARES),
    _row(_JS, r"\b(?:asymmetricMatch|hasInstance)\b|jest\.asymmetricMatcher", COMPARES),
    _row(_JS, r"\bexpect\.extend\s*\(|\baddEqualityTesters\b", RUNNER),
    _row(_JS, rf"\b(?:globalThis|global|window|self)(?:\.|\[['\"]){_GLOBALS}\b['\"\]]*\s*=(?!=)", RUNNER),
    _row(_JS, r"\bassert(?:\.strict)?(?:\.|\[)[\w'\"]+\]?\s*=(?!=)", RUNNER),
)
"""What decides comparisons, by language."""

Place = tuple[int, str, str]
"""Number and text of a line, and what it does."""


def deciding_lines(changes: Mapping[str, tuple[bytes | None, bytes | None]]) -> list[tuple[str, Place]]:
    """Return the first lines of the definitions that are in no old version of the changed files, with their paths.

    Args:
        changes: By path, the old and the new content; None where the file is missing.
    """
    known = Counter(
        text for path, (old, _) in changes.items() for _, text, _ in _definitions(path, old or b"")
    )
    found = list[tuple[str, Place]]()
    for path, (_, new) in sorted(changes.items()):
        for number, text, what in _definitions(path, new or b""):
            if known[text]:
                known[text] -= 1
            else:
                found.append((path, (number, text.partition("\n")[0], what)))
    return found


def _definitions(path: str, content: bytes) -> Iterator[Place]:
    """Yield the number of each first line of a definition, with the text of the whole definition."""
    rows = [row for row in TABLE if PurePosixPath(path).suffix.lower() in row.suffixes]
    if not rows:
        return
    text = content.decode(errors="replace")
    lines = text.split("\n")
    found = {
        (text.count("\n", 0, match.start()), row.what) for row in rows for match in row.begins.finditer(text)
    }
    for number, what in sorted(found):
        yield number + 1, "\n".join(_block(lines[number : number + MOST_LINES])).rstrip(), what


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

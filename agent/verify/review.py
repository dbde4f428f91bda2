"""Find what a patch adds that a person must read before its verdict can be believed.

The code under test runs in the process that tests it. Python cannot keep it away from the insides of the interpreter and
of the test runner, where it can make a red test look green. So added code that reaches for them (`insides` has the names)
is shown to a person, and the patch is not verified by itself.

Inverted copies (`inverted_runs`) show for Python whether a comparison depends on the values. Other languages have no copies, so
each change of code counts that decides how a test compares (`TABLE`).

Only what is new counts. What the file had before, and what the patch moved here from another file, does not.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple

from m3agent.agent.verify import insides
from m3agent.agent.verify.patched_files import Contents
from m3agent.agent.verify.python_file import lines_of
from m3agent.agent.verify.reaches import Reach, reaches, shows
from m3agent.tools.runners.python import is_test_file
from m3agent.tools.runners.registrations import macro_changes, registration_changes
from m3agent.tools.runners.suites import file_of
from m3agent.tools.test_report import Reached

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
    Deciding("java kt groovy scala", r"\b(?:boolean|fun|def)\s+equals\s*\(", COMPARES),
    Deciding("cs vb fs", r"\bbool\s+Equals\s*\(|\boperator\s*[=!]=|\bFunction\s+Equals\b", COMPARES),
    Deciding(
        "rb",
        r"(?:\bdef\s+(?:self\.)?|\b(?:define_method|alias_method|alias)\b[\s(:'\"]*)(?:==|===|!=|=~|<=>|eql\?|equal\?)",
        COMPARES,
    ),
    Deciding("swift", r"\bfunc\s*(?:==|!=|~=)", COMPARES),
    Deciding(
        _JS,
        r"\b(?:asymmetricMatch|hasInstance|toPrimitive)\b|\bvalueOf\s*(?:\(\s*\)\s*\{|[:=])|jest\.asymmetricMatcher",
        COMPARES,
    ),
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


MADE_BY = {"function.__new__": ("FunctionType", "LambdaType"), "code.__new__": ("CodeType", "replace")}
"""Names that source uses for what the interpreter reports under another name."""
MOST_TEXT = 200
"""Characters of a line that are shown."""


@dataclass(frozen=True)
class Finding:
    """A line that a person must read."""

    path: str
    line: int
    """Line number in the new file, from 1."""
    text: str
    """The line, stripped, at most 200 characters. It is as the patch has it: neutralise it before printing."""
    what: str
    """What the line does, as a phrase such as "reads the interpreter's frames"."""


def finding_at(path: str, content: bytes, line: int, what: str) -> Finding:
    """Return a finding for a line of a file."""
    return Finding(path, line, _line(lines_of(content), line)[:MOST_TEXT], what)


def findings_at(places: Iterable[Reached], content_of: Callable[[str], bytes]) -> tuple[Finding, ...]:
    """Return findings for places that the interpreter reported, and that a reader of the file does not see."""
    found = []
    for place in places:
        name = place.name.rpartition(".")[2].lstrip("=")
        content = content_of(place.path)
        if not shows(content, place.line, MADE_BY.get(place.name, (name,))):
            what = insides.CLASS if name == "__class__" else insides.ATTRIBUTES.get(name, insides.FUNCTIONS)
            found.append(finding_at(place.path, content, place.line, f"{what}, by a hidden name"))
    return tuple(found)


def changed_registrations(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Finding, ...]:
    """Return the changes of what a C or C++ project's build says about its tests (`TestReport.registrations`).

    They can hide failing tests. Each is at the first line of its file.
    """
    return tuple(
        Finding(file_of(name), 1, name, f"is built or run in another way ({changes})")
        for name, changes in registration_changes(before, after).items()
    )


def changed_macros(changes: Contents) -> tuple[Finding, ...]:
    """Return the lines of changed C and C++ files that redefine the macros of assertions."""
    old = {path: (before or b"").decode(errors="replace") for path, (before, _) in changes.items()}
    new = {path: (after or b"").decode(errors="replace") for path, (_, after) in changes.items()}
    return tuple(Finding(path, line, text, what) for path, line, text, what in macro_changes(old, new))


def findings_of(changes: Contents) -> tuple[Finding, ...]:
    """Return the lines of several files that a person must read, in the order of the paths."""
    present = {path: _reaches(path, after) for path, (_, after) in changes.items()}
    if not any(present.values()):
        return ()
    added, removed = dict[str, list[Reach]](), Counter[tuple[str, str]]()
    for path, (before, after) in changes.items():
        old, new = _reaches(path, before), present[path]
        was, now = lines_of(before or b""), lines_of(after or b"")
        added[path] = _new(new, old, was, now)
        removed += Counter(_named(was, old)) - Counter(_named(now, new))  # from any file
    found = []
    for path, places in sorted(added.items()):
        lines = lines_of(changes[path][1] or b"")
        seen = set()
        for place, key in zip(places, _named(lines, places), strict=True):
            if removed[key] > 0:  # moved here from another file
                removed[key] -= 1
            elif (place.line, place.what) not in seen:
                seen.add((place.line, place.what))
                found.append(Finding(path, place.line, key[1][:MOST_TEXT], place.what))
    return tuple(found)


def _reaches(path: str, content: bytes | None) -> Sequence[Reach]:
    if content is None:
        return []
    pure = PurePosixPath(path)
    if pure.suffix in insides.NATIVE_SUFFIXES or content.startswith(insides.NATIVE_STARTS):
        return [Reach(1, hashlib.sha256(content).hexdigest(), insides.NATIVE)]
    # whatever the first line says: in JavaScript, too, `#!` starts a comment
    definitions = list(definitions_in(path, content))
    if pure.suffix not in {".py", ".pyw"} and not _is_script(content):
        return definitions
    return [*reaches(path, content, in_tests=is_test_file(path)), *definitions]


def _is_script(content: bytes) -> bool:
    first = content[:100].partition(b"\n")[0]
    return first.startswith(b"#!") and b"python" in first


def _new(
    now: Sequence[Reach], before: Sequence[Reach], old: Sequence[str], new: Sequence[str]
) -> list[Reach]:
    """Return the places that are more than the old file has, those on new lines first."""
    usual = insides.HABITS & {insides.HABIT_OF.get(one.what, one.what) for one in before}
    left = Counter((one.name, one.what) for one in before)
    known = {line.strip() for line in old}
    found = []
    for one in sorted(now, key=lambda one: _line(new, one.line, one.what) not in known):
        key = one.name, one.what
        if left[key]:
            left[key] -= 1
        elif one.what not in usual:
            found.append(one)
    return sorted(found, key=lambda one: one.line)


def _named(lines: Sequence[str], places: Sequence[Reach]) -> list[tuple[str, str]]:
    """Return the names of places, each with its line."""
    return [(one.name, _line(lines, one.line, one.what)) for one in places]


def _line(lines: Sequence[str], number: int, what: str = "") -> str:
    return "" if what == insides.NATIVE or number > len(lines) else lines[number - 1].strip()

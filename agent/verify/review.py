"""Find what a patch adds that a person must read before its verdict can be believed.

The code under test runs in the process that tests it. Python cannot keep it away from the insides of the interpreter and
of the test runner, where it can make a red test look green. So added code that reaches for them (`insides` has the names)
is shown to a person, and the patch is not verified by itself.

Inverted copies (`inverted_runs`) show for Python whether a comparison depends on the values. Other languages have no copies, so
each change of code counts that decides how a test compares (`deciding_code.toml`).

Only what is new counts. What the file had before, and what the patch moved here from another file, does not.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from m3agent.agent.verify import insides
from m3agent.agent.verify.patched_files import Contents
from m3agent.agent.verify.python_file import lines_of
from m3agent.agent.verify.reaches import Reach, reaches, shows
from m3agent.tools.runners.python import is_test_file
from m3agent.tools.runners.registrations import macro_changes, registration_changes
from m3agent.tools.runners.suites import file_of
from m3agent.tools.test_report import Reached

_TABLE = tomllib.loads(Path(__file__).with_name("deciding_code.toml").read_text("utf-8"))
COMPARES, MACRO, RUNNER = (_TABLE["phrases"][name] for name in ("compares", "macro", "runner"))
ONLY_IN_CODE = frozenset(_TABLE["phrases"][name] for name in _TABLE["only_in_code"])
"""What tests do honestly."""
MOST_LINES = 200
"""Lines of a definition that are read."""
TABLE = tuple(
    (language["files"].split(), re.compile(pattern, re.MULTILINE), phrase)
    for language in _TABLE["languages"]
    for what, phrase in _TABLE["phrases"].items()
    for pattern in language.get(what, ())
)
"""What decides comparisons: the suffixes of files, what matches its beginning, and what it does."""
LOADS = _TABLE["phrases"]["loads"]
USUAL_CONDITIONS = frozenset(_TABLE["usual_conditions"].split())
COMMENT = re.compile(r"/\*[\s\S]{0,300}?\*/|//.*")
"""A comment that may stand between two words. A text can look like one, so the text with it is read as well."""


def definitions_in(path: str, content: bytes) -> Iterator[Reach]:
    """Yield the first line of each definition that decides comparisons, with the text of the whole definition as its name."""
    suffix = PurePosixPath(path).suffix.lower().removeprefix(".")
    rows = [(begins, what) for suffixes, begins, what in TABLE if suffix in suffixes]
    text = content.decode(errors="replace") if rows else ""
    lines = text.split("\n")
    versions = {text, COMMENT.sub(lambda comment: "\n" * comment[0].count("\n") + " ", text)}
    starts = {
        (each.count("\n", 0, match.start()), what)
        for each in versions
        for begins, what in rows
        for match in begins.finditer(each)
    }
    for number, what in sorted(starts):
        yield Reach(number + 1, "\n".join(block_in(lines[number : number + MOST_LINES])).rstrip(), what)


def conditions_in(content: bytes) -> Iterator[Reach]:
    """Yield the conditions of a package.json under which some programs get other modules, such as a test runner. Each has its line."""
    try:
        waiting = [json.loads(content).get("exports")]
    except (ValueError, AttributeError, RecursionError):
        return
    lines = content.decode(errors="replace").split("\n")
    while waiting:
        each = waiting.pop()
        for key, target in each.items() if isinstance(each, dict) else ():
            waiting.append(target)
            if not key.startswith(".") and key.partition("@")[0] not in USUAL_CONDITIONS:
                at = (number for number, line in enumerate(lines, 1) if json.dumps(key) in line)
                yield Reach(next(at, 1), f"{key}: {target}", LOADS)


def block_in(lines: list[str]) -> Iterator[str]:
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
OPENS = "open"
"""What the interpreter reports of code that opens a file of the tests."""
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
    return Finding(path, line, line_of(lines_of(content), line)[:MOST_TEXT], what)


def findings_at(places: Iterable[Reached], content_of: Callable[[str], bytes]) -> tuple[Finding, ...]:
    """Return findings for places that the interpreter reported, and that a reader of the file does not see."""
    found = []
    for place in places:
        name = place.name.rpartition(".")[2].lstrip("=")
        content = content_of(place.path)
        if name == OPENS:
            found.append(finding_at(place.path, content, place.line, insides.READS_TESTS))
        elif not shows(content, place.line, MADE_BY.get(place.name, (name,))):
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


def findings_of(changes: Contents, is_test: Callable[[str], bool] = is_test_file) -> tuple[Finding, ...]:
    """Return the lines of several files that a person must read, in the order of the paths.

    Args:
        is_test: Whether a file belongs to the tests, by its path.
    """
    present = {path: _reaches(path, after, is_test) for path, (_, after) in changes.items()}
    if not any(present.values()):
        return ()
    added, removed = dict[str, list[Reach]](), Counter[tuple[str, str]]()
    for path, (before, after) in changes.items():
        old, new = _reaches(path, before, is_test), present[path]
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


def _reaches(path: str, content: bytes | None, is_test: Callable[[str], bool]) -> Sequence[Reach]:
    if content is None:
        return []
    pure = PurePosixPath(path)
    if pure.suffix in insides.NATIVE_SUFFIXES or content.startswith(insides.NATIVE_STARTS):
        return [Reach(1, hashlib.sha256(content).hexdigest(), insides.NATIVE)]
    # whatever the first line says: in JavaScript, too, `#!` starts a comment
    definitions = [
        each for each in definitions_in(path, content) if each.what not in ONLY_IN_CODE or not is_test(path)
    ]
    if pure.name == "package.json":
        definitions += conditions_in(content)
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
    for one in sorted(now, key=lambda one: line_of(new, one.line, one.what) not in known):
        key = one.name, one.what
        if left[key]:
            left[key] -= 1
        elif one.what not in usual:
            found.append(one)
    return sorted(found, key=lambda one: one.line)


def _named(lines: Sequence[str], places: Sequence[Reach]) -> list[tuple[str, str]]:
    """Return the names of places, each with its line."""
    return [(one.name, line_of(lines, one.line, one.what)) for one in places]


def line_of(lines: Sequence[str], number: int, what: str = "") -> str:
    """Return a line without the blanks around it; empty if there is no such line."""
    return "" if what == insides.NATIVE or number > len(lines) else lines[number - 1].strip()

"""What a patch changes in how a C or C++ project builds and registers its tests.

A fix may have to change a build file, so verification does not undo such changes. It compares instead what the build
systems of both trees say about the tests:

    signs = registration_changes(units_before, units_after)

The units are those that a runner's `units` returned for the tree without the patch's product changes and for the tree with
them. `macro_changes` does the same for lines that redefine the macros with which tests fail.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from m3agent.tools.runners.base import Unit
from m3agent.tools.runners.c_files import is_test
from m3agent.tools.runners.programs import Program

HARMLESS = frozenset(
    {"TIMEOUT", "LABELS", "COST", "PROCESSORS", "PROCESSOR_AFFINITY", "RUN_SERIAL", "RESOURCE_LOCK"}
)
"""Properties that change neither what a test runs nor how its result is read."""
_MACRO = (
    r"(?:NDEBUG|assert|ASSERT(?:_\w+)?|EXPECT(?:_\w+)?|CHECK(?:_\w+)?|REQUIRE(?:_\w+)?|FAIL(?:_CHECK)?|SUCCEED|"
    r"TEST(?:_F|_P|_CASE|_ASSERT\w*|_FAIL\w*)?|TYPED_TEST(?:_P)?|GTEST_(?:TEST|SKIP|ASSERT|FATAL|NONFATAL|PREDICATE)\w*|"
    r"CATCH_\w+|UNITY_\w+|\w+_assert)"
)
_FLAG = re.compile(
    rf"(?:^|\s)((?:-[DU])?{_MACRO}(?:\([^)\s]*\))?(?:=\S*)?(?=\s|$)|-include\s*\S+|-imacros\s*\S+|-fplugin\S*|-wrapper\s*\S+|"
    r"-B\s*\S+|-specs=\S+)"
)
_LINK = re.compile(
    r"(-Wl,\S*(?:wrap|defsym|dynamic-linker|entry|-z,initfirst)\S*|-nostdlib\S*|-static\S*|-specs=\S+|-e\s+\S+)"
)
_REDEFINES = re.compile(rf"^\s*#\s*(?:define|undef)\s+({_MACRO})\b")
_SOURCE = re.compile(r"\.(?:c|cc|cpp|cxx|c\+\+|h|hh|hpp|hxx|h\+\+|inl|ipp|inc|in)$", re.IGNORECASE)


def registration_changes(before: Sequence[Unit], after: Sequence[Unit]) -> list[str]:
    """Return the changes that can hide a failing test, as sentences; tests that are only added are not among them."""
    new = {unit.name: unit for unit in after if isinstance(unit, Program)}
    signs = []
    for old in before:
        if not isinstance(old, Program):
            continue
        current = new.get(old.name)
        signs += [
            f"{old.name}: {what}"
            for what in (_changes(old, current) if current else ["it is not registered any more"])
        ]
    return signs


def _changes(old: Program, new: Program) -> list[str]:
    found = []
    if _stable(old.argv) != _stable(new.argv):
        found.append("its command changed")
    if old.env != new.env:
        found.append("its variables changed")
    if old.cwd != new.cwd:
        found.append("its working directory changed")
    if new.disabled and not old.disabled:
        found.append("it is disabled")
    if set(new.skip) - set(old.skip):
        found.append("more exit statuses mean that it is skipped")
    if new.expected_to_fail != old.expected_to_fail:
        found.append("whether it must fail changed")
    properties = {
        name for name in old.facts.keys() | new.facts.keys() if name.isupper() or "_" in name
    } - HARMLESS
    properties -= {"DISABLED", "SKIP_RETURN_CODE", "ENVIRONMENT", "WORKING_DIRECTORY"}
    found += [f"its property {n} changed" for n in sorted(properties) if old.facts.get(n) != new.facts.get(n)]
    gone = [source for source in old.sources if is_test(source) and source not in new.sources]
    found += [f"{source} is not compiled into it any more" for source in gone]
    for kind, pattern in (("compiler flags", _FLAG), ("linker flags", _LINK)):
        more = set(pattern.findall(new.facts.get(kind, ""))) - set(pattern.findall(old.facts.get(kind, "")))
        found += [f"its {kind} contain {flag.strip()}" for flag in sorted(more)]
    return found


def _stable(argv: Sequence[str]) -> tuple[str, ...]:
    return tuple(re.sub(r"0x[0-9a-f]+", "*", word) for word in argv)


def macro_changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the lines by which changed product files define or remove the macros that let tests fail, as sentences.

    Args:
        before, after: Texts of the changed files of the two trees, by path.
    """
    signs = []
    for path, text in sorted(after.items()):
        if not _SOURCE.search(path) or is_test(path):
            continue
        old = {line.strip() for line in before.get(path, "").splitlines()}
        for line in text.splitlines():
            match = _REDEFINES.match(line)
            if match and line.strip() not in old:
                signs.append(f"{path} redefines the macro {match[1]}")
    return signs

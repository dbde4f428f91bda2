"""What a patch changes in how a C or C++ project builds and registers its tests.

A fix may have to change a build file, so verification does not undo such changes. It compares instead what the build
systems of both trees say about the tests:

    changes = registration_changes(before.registrations, after.registrations)

`macro_changes` does the same for lines that redefine the macros with which tests fail, and for commands of makefiles.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from m3agent.tools.runners.path_rules import C

HARMLESS = frozenset(
    {"TIMEOUT", "LABELS", "COST", "PROCESSORS", "PROCESSOR_AFFINITY", "RUN_SERIAL", "RESOURCE_LOCK"}
    | {"DISABLED", "SKIP_RETURN_CODE", "ENVIRONMENT", "WORKING_DIRECTORY"}
)
"""Properties that change neither what a test runs nor how its result is read, and those that are compared by themselves."""
GONE = "it is not registered any more"
CHANGED = {
    "argv": "its command changed",
    "env": "its variables changed",
    "cwd": "its working directory changed",
    "expected to fail": "whether it must fail changed",
}
"""What a difference in each part of a registration is called."""
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
FLAGS = {"compiler flags": _FLAG, "linker flags": _LINK}
_PROSE = re.compile(r"\.(?:md|rst|adoc|html|texi)$")
_MAKEFILE = re.compile(r"(?:^|/)(?:GNUm|M|m)akefile(?:\.am|\.in)?$|\.mk$|\.am$")
_MAKES = re.compile(
    r"^\t\s*\S|^\s*(?:AM_)?\w*(?:LOG_COMPILER|LOG_DRIVER|LOG_FLAGS|TESTS_ENVIRONMENT)\s*[:+?]?="
)
"""A command of a makefile, or a variable that decides how automake runs tests."""
_REDEFINES = re.compile(rf"^\s*#\s*(?:define|undef)\s+({_MACRO})\b")


def registration_changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Return the changes that can hide a failing test, as a clause for each changed program.

    Args:
        before, after: `TestReport.registrations` of the tree without the patch and with it. Programs that are only added
            do not count.
    """
    changed = {}
    for name, text in sorted(before.items()):
        changes = _changes(json.loads(text), json.loads(after[name])) if name in after else [GONE]
        if changes:
            changed[name] = ", ".join(changes)
    return changed


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    changes = [text for key, text in CHANGED.items() if old[key] != new[key]]
    if new["disabled"] and not old["disabled"]:
        changes.append("it is disabled")
    if set(new["skip"]) - set(old["skip"]):
        changes.append("more exit statuses mean that it is skipped")
    facts, new_facts = old["facts"], new["facts"]
    names = sorted((facts.keys() | new_facts.keys()) - HARMLESS)
    properties = (name for name in names if name.isupper() or "_" in name)
    changes += [
        f"its property {name} changed" for name in properties if facts.get(name) != new_facts.get(name)
    ]
    gone = [source for source in old["sources"] if C.is_test(source) and source not in new["sources"]]
    changes += [f"{source} is not compiled into it any more" for source in gone]
    for kind, pattern in FLAGS.items():
        more = {*pattern.findall(new_facts.get(kind, ""))}.difference(pattern.findall(facts.get(kind, "")))
        changes += [f"its {kind} contain {flag.strip()}" for flag in sorted(more)]
    return changes


def macro_changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[tuple[str, int, str, str]]:
    """Return the lines by which changed files define or remove the macros that let tests fail, or change commands of makefiles.

    Args:
        before, after: Texts of the changed files of the two trees, by path.

    Returns:
        Path, number and text of each line, and what it does.
    """
    lines = []
    for path, text in sorted(after.items()):
        old = {line.strip() for line in before.get(path, "").splitlines()}
        new = ((number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip() not in old)
        for number, line in new:
            if _MAKEFILE.search(path):
                what = "changes how the build makes or runs tests" if _MAKES.match(line) else ""
            elif _PROSE.search(path) or C.is_test(path):  # any other file can be included, whatever its name
                break
            else:
                what = f"redefines the macro {match[1]}" if (match := _REDEFINES.match(line)) else ""
            if what:
                lines.append((path, number, line.strip()[:200], what))
    return lines

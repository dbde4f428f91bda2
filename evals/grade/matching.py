"""Which of a run's outcomes belong to a test that a row names.

Rows name tests as official parsers read them from logs: node ids, ids cut at the first blank, ids whose parameter is only
the end of a path, bare function names, and junk that was never a test.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

PARAMETER = re.compile(r"(.*?)\[(.*)\]", re.DOTALL)
JUNK = re.compile(r"\[?\d*%?\]?")
"""What parsers take for a test in a line of progress: `[`, `[100%]`."""


def is_junk(name: str) -> bool:
    """Whether a name in a row is none of a test."""
    return JUNK.fullmatch(name.strip()) is not None


class Outcomes:
    """Outcomes by node id, asked for by the names that rows have."""

    def __init__(self, outcomes: Mapping[str, str]) -> None:
        self._outcomes = outcomes
        self._names: dict[str, list[str]] = {}
        for ident in outcomes:
            for name in _names(ident):
                self._names.setdefault(name, []).append(ident)

    def passed(self, name: str) -> bool:
        """Whether every test that the name means passed, and there is one."""
        found = self.idents(name)
        return bool(found) and all(self._outcomes[ident] in {"passed", "xfailed"} for ident in found)

    def idents(self, name: str) -> list[str]:
        """The node ids that a name means."""
        if name in self._outcomes:
            return [name]
        if name in self._names:
            return self._names[name]
        if name.count("[") > name.count("]"):  # cut off inside its parameter
            return [ident for ident in self._outcomes if ident.startswith(name)]
        return []


def failed_ids(names: Iterable[str], outcomes: Outcomes) -> tuple[int, list[str]]:
    """How many of the names passed, and those that did not; names that are none are not counted."""
    wanted = [name for name in names if not is_junk(name)]
    failed = [name for name in wanted if not outcomes.passed(name)]
    return len(wanted) - len(failed), failed


def _names(ident: str) -> set[str]:
    """Other names under which a node id may stand in a row."""
    names = {ident.split()[0] if ident.split() else ident}
    path, _, function = ident.rpartition("::")
    if match := PARAMETER.fullmatch(ident):
        main, option = match.groups()
        if option.startswith("/") and not option.startswith("//") and "*" not in option:
            names.add(f"{main}[/{option.split('/')[-1]}]")
    if path:
        names.add(function)
        names.add(function.partition("[")[0])
        # unittest's way: `test_x (package.module.Class)`
        file, *classes = path.split("::")
        dotted = ".".join([file.removesuffix(".py").replace("/", "."), *classes])
        names.add(f"{function} ({dotted})")
    return names - {ident}

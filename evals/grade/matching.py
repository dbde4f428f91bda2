"""Find the outcomes of a run that belong to a test name in a row.

The names in rows come from official log parsers. They can be node ids, ids cut at the first blank, ids whose
parameter is only the end of a path, bare function names, and junk that is not a test.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

PARAMETER = re.compile(r"(.*?)\[(.*)\]", re.DOTALL)
JUNK = re.compile(r"\[?\d*%?\]?")
"""Parts of progress lines that official parsers mistake for tests, such as `[` and `[100%]`."""


def is_junk(name: str) -> bool:
    """Return whether a name in a row is not a test."""
    return JUNK.fullmatch(name.strip()) is not None


class Outcomes:
    """Outcomes by node id, with lookup by the names that rows use."""

    def __init__(self, outcomes: Mapping[str, str]) -> None:
        self._outcomes = outcomes
        self._names: dict[str, list[str]] = {}
        for ident in outcomes:
            for name in _names(ident):
                self._names.setdefault(name, []).append(ident)

    def passed(self, name: str) -> bool:
        """Return whether the name matches at least one test and all matching tests passed."""
        found = self.idents(name)
        return bool(found) and all(self._outcomes[ident] in {"passed", "xfailed"} for ident in found)

    def idents(self, name: str) -> list[str]:
        """Return the node ids that a name matches."""
        if name in self._outcomes:
            return [name]
        if name in self._names:
            return self._names[name]
        if name.count("[") > name.count("]"):  # cut off inside its parameter
            return [ident for ident in self._outcomes if ident.startswith(name)]
        return []


def failed_ids(names: Iterable[str], outcomes: Outcomes) -> tuple[int, list[str]]:
    """Return the number of names that passed, and the names that did not. Junk is not counted."""
    wanted = [name for name in names if not is_junk(name)]
    failed = [name for name in wanted if not outcomes.passed(name)]
    return len(wanted) - len(failed), failed


def _names(ident: str) -> set[str]:
    """Return the other names under which a row may list a node id."""
    names = {ident.split()[0] if ident.split() else ident}
    path, _, function = ident.rpartition("::")
    if match := PARAMETER.fullmatch(ident):
        main, option = match.groups()
        if option.startswith("/") and not option.startswith("//") and "*" not in option:
            names.add(f"{main}[/{option.split('/')[-1]}]")
    if path:
        names.add(function)
        names.add(function.partition("[")[0])
        # unittest's form: `test_x (package.module.Class)`
        file, *classes = path.split("::")
        dotted = ".".join([file.removesuffix(".py").replace("/", "."), *classes])
        names.add(f"{function} ({dotted})")
    return names - {ident}

"""Which tests a run has."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

_BORDER = re.compile("::|/")


@dataclass(frozen=True)
class Selection:
    """The tests of one run; by default all tests."""

    targets: Sequence[str] = (".",)
    only: Collection[str] = ()
    """Ids of tests, functions, classes, files or folders; of the targets' tests, only these run. Empty for
    all.
    """
    ignore: Collection[str] = ()
    skip: Collection[str] = ()
    """Ids of tests, functions, classes or files that do not run."""
    seconds: float | None = None
    """Time after which no further test starts; None for no such time."""

    def has(self, ident: str) -> bool:
        """Return whether a result with this id belongs to the run. The targets are not looked at."""
        names = {ident, ident.partition("[")[0], "."}
        names.update(ident[: border.start()] for border in _BORDER.finditer(ident))
        return (
            names.isdisjoint(self.skip)
            and names.isdisjoint(self.ignore)
            and (not self.only or not names.isdisjoint(self.only))
        )


EVERYTHING = Selection()

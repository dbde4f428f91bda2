"""Signs that the code under test tampered with a test run, as the guard in the sandbox reports them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Reached:
    """A place in the work tree whose code read something inside of the interpreter."""

    path: str
    line: int
    """From 1."""
    name: str
    """What it read, such as `tb_frame` or `gc.get_objects`."""


@dataclass(frozen=True)
class Hook:
    """A function of the work tree that pytest calls as a hook."""

    path: str
    name: str
    """Name of the hook, such as `pytest_runtest_makereport`."""
    place: str
    """Name of the function with its classes, such as `Plugin.pytest_runtest_makereport`."""


@dataclass(frozen=True)
class Signs:
    """What the guard of one test run reported (`m3agent.tools.in_sandbox.guard`)."""

    forged: tuple[str, ...] = ()
    hooks: tuple[Hook, ...] = ()
    """Functions of the work tree that pytest calls as hooks."""
    canaries: tuple[int, int] | None = None
    """Number of canaries, tests that must fail, and number of those that failed. None if the run had no guard
    or did not come to its end.
    """
    reached: tuple[Reached, ...] = ()
    """Places whose code read something inside of the interpreter."""
    blind: str = ""
    """What the guard could not see in this interpreter; empty if it saw everything."""

    def and_those_of(self, other: Signs) -> Signs:
        """Return the signs of two runs."""
        canaries = self.canaries or other.canaries
        if self.canaries and other.canaries:
            canaries = (self.canaries[0] + other.canaries[0], self.canaries[1] + other.canaries[1])
        return Signs(
            self.forged + other.forged,
            self.hooks + other.hooks,
            canaries,
            self.reached + other.reached,
            self.blind or other.blind,
        )

    def beyond(self, usual: Signs, changed: Collection[str]) -> list[str]:
        """Return the signs of tampering, each as a phrase.

        Args:
            usual: The signs of a run without the patch. Some repositories' own tests have some.
            changed: Paths that the patch changes.
        """
        found = [what for what in self.forged if what not in usual.forged]
        known = usual.hooks_by_name()
        found += [
            f"pytest called a further function of {path} as the hook {name}"
            for (path, name), number in sorted(self.hooks_by_name().items())
            if path in changed and number > known[path, name]
        ]
        if usual.canaries and usual.canaries[1] and self.canaries and not self.canaries[1]:
            found.append("no test that must fail did fail")
        return found

    def hooks_by_name(self) -> Counter[tuple[str, str]]:
        """Return how many functions of a file pytest calls as a hook, by the path and the name of the hook."""
        return Counter((hook.path, hook.name) for hook in {*self.hooks})

    def reached_beyond(self, usual: Signs, changed: Collection[str]) -> list[Reached]:
        """Return the places in changed files that read something which the file read at fewer places without the patch."""
        known, now = (
            Counter((place.path, place.name) for place in {*signs.reached}) for signs in (usual, self)
        )
        return [
            place
            for place in dict.fromkeys(self.reached)
            if place.path in changed and now[place.path, place.name] > known[place.path, place.name]
        ]


NO_SIGNS = Signs()
ORDINARY = Signs(canaries=(1, 1))
"""The signs of a run with nothing unusual: canaries failed."""

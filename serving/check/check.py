"""Result of one check."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """Result of one check.

    Attributes:
        name: Name of the check.
        ok: True if it passed, False if it failed; None if it is not needed or cannot be decided.
        detail: What was found.
        fix: What to do; empty if nothing.
        timed: True if the result is a measured time. Other work on the machine can spoil it, and the server's
            answers are correct anyway.
    """

    name: str
    ok: bool | None
    detail: str
    fix: str = ""
    timed: bool = False

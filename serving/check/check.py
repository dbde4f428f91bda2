"""Result of one check."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """Result of one check."""

    name: str
    ok: bool | None
    """True if it passed, False if it failed; None if it is not needed or cannot be decided."""
    detail: str
    fix: str = ""
    """What to do; empty if nothing."""
    timed: bool = False
    """True if the result is a measured time. Other work on the machine can spoil it, and the server's answers
    are correct anyway.
    """

"""One thing that was looked at, and what mends it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One thing looked at: `ok` is None where it is not needed or cannot be told; `fix` says what to do, empty when
    nothing is."""

    name: str
    ok: bool | None
    detail: str
    fix: str = ""

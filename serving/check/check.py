"""One thing that was looked at, and what mends it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One thing looked at: `ok` is None where it is not needed or cannot be told; `fix` says what to do, empty when
    nothing is. `timed`: a clock said so, which other work on the machine can spoil, and answers are right all the same."""

    name: str
    ok: bool | None
    detail: str
    fix: str = ""
    timed: bool = False

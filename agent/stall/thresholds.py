"""Define all limits of the stall detector. `docs/stall.md` has the same table, with the reasons."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thresholds:
    """When each rule applies, and how fast the detector escalates from a note to the end of the run.

    Limits count calls unless they say otherwise. The limit 0 turns a rule off. `QUIET` is the other documented operating
    point.
    """

    first_turn: int = 3
    """No verdict on calls and answers before this turn."""
    first_turn_chant: int = 1
    """No verdict on the stream before this turn. One answer is enough to find a repetitive stream, and such an answer
    costs tokens up to the length limit."""
    tells: int = 2
    """Most notes of a run; after that, a new loop starts with a forced move."""
    fold_digits: bool = True
    """Errors that differ only in numbers are the same error (line numbers of a shell, addresses, ports)."""
    window: int = 12
    """Last calls that a rule considers if it allows other calls in between."""

    in_a_row: int = 3
    """Times in a row of the same call with the same result."""
    in_window: int = 4
    """Times of the same call with the same result within the window, with other calls in between."""
    rounds: int = 3
    """Rounds of a cycle with the same calls and the same results."""
    longest_cycle: int = 4
    """Most calls in one round of a cycle."""
    same_error: int = 4
    """Turns within the window with a failed call of the same class of error, whatever its arguments."""
    nothing_new: int = 8
    """Calls in a row without a new result and without a new state of the work tree."""
    rereads: int = 6
    """Reads that show only lines that were read before, with no change in between."""
    returns: int = 3
    """Changes of the work tree back to an earlier state, with no new state in between."""
    unmoved: int = 4
    """Rounds of edits and a test run after which the same tests fail as before."""
    opening: int = 15
    """Calls at the beginning of a run for which `nothing_new` and `rereads` do not apply, as long as all of them read."""

    empty: int = 3
    """Answers in a row without a call and without text."""
    cut_off: int = 2
    """Answers in a row that end at the length limit."""

    chant_needle: int = 60
    """Characters at the end of the stream that are searched for in the stream before them (the needle)."""
    chant_repeats: int = 10
    """Least occurrences of the needle."""
    chant_variants: int = 3
    """Most different texts between two occurrences."""
    chant_shortest: int = 2000
    """Least characters from the first to the last occurrence."""
    chant_window: int = 12_000
    """Characters at the end of the stream that are searched. Inside a block of code, this limit, `chant_repeats` and
    `chant_shortest` are four times as high."""
    chant_step: int = 1024
    """Characters of the stream between two searches."""

    patience: int = 1
    """Turns in which a loop continues before the next step against it."""
    soft_patience: int = 3
    """The same for loops in which the model still tries something: the same error, failures or results that stay after
    edits, nothing new, reading again."""


QUIET = Thresholds(
    fold_digits=False, in_a_row=6, in_window=6, rounds=4, same_error=6, nothing_new=12, rereads=9, unmoved=6
)
"""Thresholds that avoid a note in case of doubt. Errors are equal only if their numbers are equal, and most limits are
one and a half times as high."""

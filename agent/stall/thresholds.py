"""Every number of the stall detector. `docs/stall.md` has the same table, with the reasons."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thresholds:
    """When the detector speaks, and how fast it goes on from a word to the end.

    Counts are of calls unless they say otherwise. A rule with the limit 0 is off. `QUIET` is the other documented
    operating point.
    """

    first_turn: int = 3
    """No verdict on calls and answers before this turn."""
    first_turn_chant: int = 1
    """No verdict on the stream before this turn: a chant needs no second turn to be one, and costs up to the limit."""
    tells: int = 2
    """Loops of a run that are met by a word; the next ones start with a forced move."""
    fold_digits: bool = True
    """Two errors that differ in numbers alone are the same error (line numbers of a shell, addresses, ports)."""
    window: int = 12
    """Calls that the rules below which allow others in between look back on."""

    in_a_row: int = 3
    """The same call with the same result, nothing in between."""
    in_window: int = 4
    """The same call with the same result, others in between allowed."""
    rounds: int = 3
    """Rounds of a cycle of calls and results."""
    longest_cycle: int = 4
    """Calls in a round."""
    same_error: int = 4
    """Failed calls of one class of error within the window, whatever their arguments."""
    nothing_new: int = 8
    """Calls in a row without a result, or a state of the work tree, that had not been seen."""
    rereads: int = 6
    """Reads without a line that had not been read, with no change in between."""
    returns: int = 3
    """Changes of the work tree back to a state it had before, with no new state in between."""
    unmoved: int = 4
    """Edits followed by a test run after which the same tests fail as before."""
    opening: int = 15
    """Calls of the run's opening in which reading is never too much (the two rules on reading)."""

    empty: int = 3
    """Answers in a row without a call and without text."""
    cut_off: int = 2
    """Answers in a row that end at the length limit."""

    chant_needle: int = 60
    """Characters at the end of the stream that are looked for in what came before them."""
    chant_repeats: int = 10
    """Times that they must be there."""
    chant_variants: int = 3
    """Different texts that may stand between two of them."""
    chant_shortest: int = 2000
    """Characters from the first to the last of them."""
    chant_window: int = 12_000
    """Characters looked back on; four times as many repeats are asked for inside a block of code."""
    chant_step: int = 1024
    """Characters of the stream between two looks."""

    patience: int = 1
    """Turns in which the loop goes on before the next step."""
    soft_patience: int = 3
    """The same where something is tried: one error, failures or results that outlive edits, nothing new, reading again."""


QUIET = Thresholds(
    fold_digits=False, in_a_row=6, in_window=6, rounds=4, same_error=6, nothing_new=12, rereads=9, unmoved=6
)
"""For those who want no word where there is any doubt: errors are equal only with their numbers, limits half as high again."""

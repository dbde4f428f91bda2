"""Detect a run that makes no progress. The detector has no side effects: it takes what happened and returns a verdict.

It depends on neither model nor sandbox. So recorded runs of other agents can be replayed through it (`benchmarks/stall`).
A loop is identified by its calls and results. A changed result is never part of a loop, and clears the count of its
call. The detector escalates against each loop in three steps: a note to the model, a forced move, the end of the run. A
loop that stops and comes back continues at the step that it had reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from m3agent.agent.stall.history import Action, CallHistory, ObservedCall, PastCall, StallVerdict
from m3agent.agent.stall.thresholds import Thresholds

FENCE = "```"
CODE = 4
"""Factor for the limits of repeats and characters inside a block of code, where tables and data repeat themselves."""


class RepetitionDetector:
    """Searches the end of a stream for repetition every `chant_step` characters, regardless of how its pieces are cut."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self.reset()

    def reset(self) -> None:
        """Start with a new stream."""
        self._pieces: list[str] = []
        self._waiting = 0
        self._tail = ""
        self._fences = 0

    def hear(self, text: str) -> int:
        """Take a piece of the stream.

        Returns how often the end of the stream occurs before it if the stream repeats itself; else 0.
        """
        step = self._thresholds.chant_step
        self._pieces.append(text)
        self._waiting += len(text)
        if self._waiting < step:
            return 0
        waiting = "".join(self._pieces)
        most = 0
        for start in range(0, len(waiting) - step + 1, step):
            # the first search that finds a repetition counts, even if the same piece contains more text
            most = most or self._look(waiting[start : start + step])
        rest = waiting[len(waiting) // step * step :]
        self._pieces, self._waiting = [rest], len(rest)
        return most

    def _look(self, block: str) -> int:
        limits = self._thresholds
        self._fences += (self._tail[-2:] + block).count(FENCE)
        self._tail = (self._tail + block)[-limits.chant_window * CODE :]
        factor = CODE if self._fences % 2 else 1
        text = self._tail[-limits.chant_window * factor :]
        needle = text[-limits.chant_needle :]
        if not needle.strip():
            return 0
        between = text.split(needle)[1:-1]
        found = len(between) + 1
        if found < limits.chant_repeats * factor or len(set(between)) > limits.chant_variants:
            return 0
        stretch = text.rfind(needle) - text.find(needle)
        return found if stretch >= limits.chant_shortest * factor else 0


ADVICE = {
    "tell": "Repeating this will not help: use the results above and do something different.",
    "force": "You were told this before, and it continues. The next call must be a different step: look at "
    "the state of the tests and the diff, name the assumption that may be wrong, and check it first.",
}
ACTIONS: tuple[Action, ...] = ("tell", "force", "stop")
"""What each level of a loop leads to."""


@dataclass(frozen=True)
class Hit:
    """A rule that has reached its limit."""

    rule: str
    count: int
    """Count of the rule, in its own unit."""
    members: tuple[str, ...]
    """Identities of the calls, results or states that make up the loop."""
    patience: int
    """Turns in which the loop may continue before the next step."""
    text: str


@dataclass
class DetectedLoop:
    """One loop of the run."""

    level: int = 0
    """Number of steps taken against it."""
    hits: int = 0
    """Turns in which it continued since the last step."""
    turn: int = 0
    """The last turn in which it was seen."""


class StallDetector:
    """The detector of one run.

    Call `hear` for each piece of the stream, `answered` after each answer of the model, and then `see` for each of the
    answer's calls.
    """

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._turn = 0
        self._told = 0
        self._history = CallHistory(self.thresholds)
        self._loops: dict[str, DetectedLoop] = {}
        self._chant = RepetitionDetector(self.thresholds)
        self._empty = 0
        self._cut_off = 0
        self._failing: frozenset[str] | None = None
        self._unmoved = 0
        self._edited = False

    def see(self, call: ObservedCall) -> StallVerdict | None:
        """Take one finished call; return a verdict if the run is in a loop."""
        step, replaced = self._history.add(call, self._turn)
        if replaced is not None:
            self._loops.pop(replaced, None)
        tested = self._tested(call, changed=step is not None and step.changed)
        if step is None or self._turn < self.thresholds.first_turn:
            return None
        return self._judge([*self._hits(step), *tested])

    def answered(self, *, reasoning: str, text: str, calls: int, finish: str) -> StallVerdict | None:
        """Take one answer; return a verdict if the run is in a loop.

        Args:
            finish: Why it ended: stop, tool_calls, length or content_filter.
        """
        self._turn += 1
        self._chant.reset()
        limits = self.thresholds
        cut_off = finish == "length"
        empty = not calls and not text.strip() and not cut_off
        self._cut_off = self._cut_off + 1 if cut_off else 0
        self._empty = self._empty + 1 if empty else 0
        if self._turn < limits.first_turn:
            return None
        hits: list[Hit] = []
        if 0 < limits.cut_off <= self._cut_off:
            what = f"the answer was cut off at the length limit {self._cut_off} times in a row"
            hits.append(Hit("cut-off", self._cut_off, ("cut-off",), limits.patience, what))
        if 0 < limits.empty <= self._empty:
            kind = "held only reasoning" if reasoning.strip() else "was empty"
            what = f"the answer {kind}, without a call or text, {self._empty} times in a row"
            hits.append(Hit("empty-answer", self._empty, ("empty-answer",), limits.patience, what))
        return self._judge(hits)

    def hear(self, text: str) -> StallVerdict | None:
        """Take a piece of the stream, reasoning or text. A verdict means that the generation has to be aborted."""
        found = self._chant.hear(text)
        if not found:
            return None
        self._chant.reset()
        # the streaming answer belongs to the turn after the last complete answer
        if self._turn + 1 < self.thresholds.first_turn_chant:
            return None
        what = f"the answer said the same over and over ({found} times) and was stopped"
        return self._judge([Hit("chant", found, ("chant",), 1, what)], each=True)

    # -- the rules ---------------------------------------------------------------------------------------------------

    def _hits(self, step: PastCall) -> Iterator[Hit]:
        limits, history = self.thresholds, self._history
        steps = list(history.steps)
        yield from self._same(step, steps)
        yield from self._cycle(steps)
        if step.changed and 0 < limits.returns <= history.returns:
            what = f"the work tree went back to an earlier state {history.returns} times, with nothing new between"
            yield Hit("returns", history.returns, (f"tree {step.tree}", "returns"), limits.patience, what)
        yield from self._same_error(step, steps)
        if history.opening:
            return
        if 0 < limits.nothing_new <= history.since_fresh:
            what = f"the last {history.since_fresh} calls showed nothing new"
            members = tuple(each.key for each in steps[-history.since_fresh :])
            yield Hit("nothing-new", history.since_fresh, members, limits.soft_patience, what)
        if step.read and not step.unread and 0 < limits.rereads <= history.rereads:
            what = f"{history.rereads} reads showed only unchanged lines that had been read before"
            members = tuple(each.key for each in steps if each.read and not each.unread)
            yield Hit("re-reading", history.rereads, members, limits.soft_patience, what)

    def _same(self, step: PastCall, steps: list[PastCall]) -> Iterator[Hit]:
        limits = self.thresholds
        since = step.number - limits.window
        count = sum(number > since for number in step.times)
        row = 0
        for before in reversed(steps):
            if before.key != step.key:
                break
            row += before.number in step.times
        if 0 < limits.in_a_row <= min(row, len(step.times)) or 0 < limits.in_window <= count:
            between = " in a row" if row == count else f" in the last {limits.window} calls"
            what = (
                f"{step.name} was called {count} times{between} with the same arguments and the same result"
            )
            # an error that stays after edits may be hard to fix: the first note comes as usual, the end later
            tried = step.failed and any(
                step.times[-2] < each.number < step.number and each.changed for each in steps
            )
            patience = limits.soft_patience if tried else limits.patience
            yield Hit("same-call-same-result", count, (step.key,), patience, what)

    def _cycle(self, steps: list[PastCall]) -> Iterator[Hit]:
        limits = self.thresholds
        if not limits.rounds:
            return
        for length in range(2, limits.longest_cycle + 1):
            last = steps[-length * limits.rounds :]
            if len(last) < length * limits.rounds:
                return
            marks = [(step.key, step.tree) for step in last]
            calls = {step.call for step in last[:length]}
            turns = {step.turn for step in last}
            # one call with alternating results shows that something changes: it is no loop
            if (
                len(calls) > 1
                and len({mark[0] for mark in marks[:length]}) == len(calls)
                and len(turns) >= limits.rounds
                and all(mark == marks[at % length] for at, mark in enumerate(marks))
            ):
                names = ", ".join(step.name for step in last[:length])
                what = (
                    f"the same {length} calls ({names}) gave the same results {limits.rounds} times in a row"
                )
                members = tuple(step.key for step in last[:length])
                yield Hit("cycle", limits.rounds, members, limits.patience, what)
                return

    def _same_error(self, step: PastCall, steps: list[PastCall]) -> Iterator[Hit]:
        limits = self.thresholds
        if not step.error:
            return
        like = [
            each for each in steps if each.error == step.error and each.number > step.number - limits.window
        ]
        turns = len({each.turn for each in like})
        if 0 < limits.same_error <= turns:
            first = step.error.split("\n", 1)[0][:200]
            what = f"{turns} of the last {limits.window} calls failed with the same error, whatever their arguments: {first}"
            members = (f"error {step.error}", *(each.key for each in like))
            yield Hit("same-error", turns, members, limits.soft_patience, what)

    def _tested(self, call: ObservedCall, *, changed: bool) -> Iterable[Hit]:
        """Count the rounds of edit and test after which the same tests fail as before."""
        limits = self.thresholds
        self._edited = self._edited or changed
        if call.failing is None:
            return ()
        if not call.failing or call.failing != self._failing:
            self._unmoved = 0
        elif self._edited:
            self._unmoved += 1
        edited, self._edited = self._edited, False
        self._failing = call.failing
        if not edited or not 0 < limits.unmoved <= self._unmoved:
            return ()
        what = f"after {self._unmoved} rounds of edits the same tests fail as before"
        key = f"failing {sorted(call.failing)}"
        return (Hit("unmoved-failures", self._unmoved, (key,), limits.soft_patience, what),)

    # -- what follows ------------------------------------------------------------------------------------------------

    def _judge(self, hits: Iterable[Hit], *, each: bool = False) -> StallVerdict | None:
        """Return the verdict on these hits, which several rules found in the same loop; the first rule names it.

        There is at most one verdict a turn for each loop, because the model makes all calls of a turn before it can
        read a note.

        Args:
            each: Return a verdict every time, also within one turn.
        """
        found = list(hits)
        if not found:
            return None
        first = found[0]
        members = [key for hit in found for key in hit.members]
        known = [self._loops[key] for key in members if key in self._loops]
        loop = max(known, key=lambda loop: loop.level, default=None) or DetectedLoop()
        for key in members:
            self._loops[key] = loop
        if loop.turn == self._turn and not each:
            return None
        loop.turn = self._turn
        loop.hits += 1
        if loop.level and loop.hits < first.patience:
            return None
        if not loop.level and self._told >= self.thresholds.tells:
            loop.level = 1
        action = ACTIONS[min(loop.level, 2)]
        self._told += action == "tell"
        loop.level += 1
        loop.hits = 0
        text = first.text if action == "stop" else f"{first.text}. {ADVICE[action]}"
        return StallVerdict(action, first.rule, first.count, text)

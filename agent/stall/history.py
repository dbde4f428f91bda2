"""Keep the history of calls that the rules of the stall detector use."""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass

from m3agent.agent.stall.normalise import OMITTED, call_key, error_class, hashed, normal, says_failed
from m3agent.agent.stall.observation import ObservedCall
from m3agent.agent.stall.thresholds import Thresholds
from m3agent.tools.registry import traits_of, understood


@dataclass(frozen=True)
class PastCall:
    """One call of the history."""

    number: int
    """Number of the call in the history, from 1."""
    turn: int
    """The turn that made the call."""
    name: str
    """Name of the tool."""
    call: str
    """Identity of the call."""
    result: str
    """Identity of the result."""
    error: str
    """Class of the error; empty if the call did not fail."""
    failed: bool
    """Whether the call failed."""
    tree: str
    """State of the work tree after the call; empty if unknown."""
    changed: bool
    """Whether the call changed the work tree."""
    fresh: bool
    """Whether the call showed a new result or led to a new state of the work tree."""
    read: bool
    """Whether the call reads files."""
    unread: int
    """Number of lines that had not been read before; 0 for calls that are no reads."""
    times: tuple[int, ...]
    """Numbers of the equal calls up to this one, since their result last changed."""

    @property
    def key(self) -> str:
        """Identity of call and result."""
        return f"{self.call} {self.result}"


def failed(seen: ObservedCall) -> bool:
    """Return whether a call failed, by its error flag, its exit status or its tests.

    The words of the output decide only if none of these is known, and never for reads and edits: the content of a file
    says nothing about the call that read it.
    """
    if seen.is_error or seen.exit_code or seen.failing:
        return True
    is_file_call = traits_of(seen.name).kind in ("read", "edit")
    known = seen.exit_code is not None or seen.failing is not None or is_file_call
    return not known and says_failed(seen.content)


class CallHistory:
    """Turns finished calls into steps and keeps as many steps as the rules need.

    Attributes:
        steps: The last steps, oldest first.
        tree: State of the work tree after the last call; empty if unknown.
        since_fresh: Calls since the last one that showed something new.
        rereads: Reads in a row that showed nothing new, without a change in between.
        returns: Changes back to an earlier state since the last new state.
        opening: Whether the run is still in its opening, where reading much is normal.
    """

    def __init__(self, thresholds: Thresholds) -> None:
        self._longest = max(thresholds.window, thresholds.longest_cycle * thresholds.rounds)
        self.steps: deque[PastCall] = deque(maxlen=self._longest)
        self.tree = ""
        self.since_fresh = 0
        self.rereads = 0
        self.returns = 0
        self.opening = True
        self._number = 0
        self._results: set[str] = set()
        self._trees: set[str] = set()
        self._lines: set[int] = set()
        self._last: dict[str, PastCall] = {}
        self._opening = thresholds.opening
        self._fold_digits = thresholds.fold_digits

    def add(self, seen: ObservedCall, turn: int) -> tuple[PastCall | None, str | None]:
        """Add a finished call.

        Args:
            seen: The call.
            turn: Number of the turn that made it.

        Returns:
            The step, and the key of the last equal call if the result has changed since then. The step is None if the
            same turn already made the call with the same result: the model makes all calls of a turn before it sees
            any result.
        """
        bad = failed(seen)
        kind = traits_of(seen.name).kind
        call = call_key(seen.name, seen.arguments)
        text = normal(seen.content, fold_digits=bad and self._fold_digits)
        # the digest decides only where the middle of the text was left out
        result = hashed(text + seen.digest if OMITTED.search(seen.content) else text)
        before = self._last.get(call)
        replaced = before.key if before is not None and before.result != result else None
        if before is not None and before.turn == turn and not replaced:
            if seen.tree:
                self.tree = seen.tree
                self._trees.add(seen.tree)
            return None, None
        self._number += 1
        edited = kind == "edit" and not bad
        changed = seen.tree != self.tree if seen.tree and self.tree else edited
        new_state = changed and (seen.tree not in self._trees if seen.tree else result not in self._results)
        unread = self._unread(seen) if kind == "read" and not bad else 0
        # repeating a call after a change of the work tree is a check, and a call that leads to a new state is progress
        check = seen.failing is not None or not (bad or kind == "edit")
        checked = before is not None and check and (new_state or self.changed_since(before.number))
        if before is None or replaced or checked or seen.running:
            times: tuple[int, ...] = (self._number,)
        else:
            times = (*before.times, self._number)[-self._longest :]
        error = error_class(text) if bad and seen.failing is None else ""
        # a short result such as "exit code: 0" is not new in itself, but it may be new for this command
        terse = "\n" not in text and not error
        fresh = new_state or unread > 0 or result not in self._results or (terse and before is None)
        step = PastCall(
            number=self._number,
            turn=turn,
            name=seen.name,
            call=call,
            result=result,
            error=error,
            failed=bad,
            tree=seen.tree,
            changed=changed,
            fresh=fresh,
            read=kind == "read",
            unread=unread,
            times=times,
        )
        self._count(step, seen)
        self._results.add(result)
        self._last[call] = step
        self.steps.append(step)
        return step, replaced

    def changed_since(self, number: int) -> bool:
        """Return whether a call after the call `number` changed the work tree."""
        return any(step.changed for step in self.steps if step.number > number)

    def _count(self, step: PastCall, seen: ObservedCall) -> None:
        if seen.tree:
            if step.changed:
                self.returns = self.returns + 1 if seen.tree in self._trees else 0
            self._trees.add(seen.tree)
            self.tree = seen.tree
        self.since_fresh = 0 if step.fresh or seen.running else self.since_fresh + 1
        if step.unread or step.changed:
            self.rereads = 0
        elif step.read and not step.failed:
            self.rereads += 1
        reading = step.read or (bool(seen.tree) and not step.changed and not step.failed)
        self.opening = self.opening and reading and self._number <= self._opening

    def _unread(self, seen: ObservedCall) -> int:
        """Count the lines of a file that had not been read, by path, line number and text: a changed line is new."""
        traits, arguments = understood(seen.name, seen.arguments)
        path = traits.path(arguments)
        new = 0
        for line in seen.content.split("\n"):
            # eight bytes per line keep memory small: a session reads some 100,000 lines
            key = int.from_bytes(
                hashlib.blake2b(f"{path}\0{line}".encode("utf-8", "replace"), digest_size=8).digest()
            )
            new += key not in self._lines
            self._lines.add(key)
        return new

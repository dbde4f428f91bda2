"""Keep the history of calls that the rules of the stall detector use, with results that differ only in noise made equal."""

from __future__ import annotations

import hashlib
import json
import re
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

from m3agent.agent.stall.thresholds import Thresholds
from m3agent.serving.client.messages import ToolCall
from m3agent.tools.base import ESCAPES, ToolResult
from m3agent.tools.registry import traits_of, understood


@dataclass(frozen=True)
class ObservedCall:
    """One finished call."""

    name: str
    arguments: dict[str, Any] | None
    """Arguments of the call; None if they were not a JSON object."""
    content: str
    """The result as the model reads it."""
    digest: str
    is_error: bool
    exit_code: int | None
    """Exit status of the command; None without one."""
    tree: str
    """State of the work tree after the call; empty if unknown."""
    failing: frozenset[str] | None = None
    """Ids that failed or errored in a test run; None for calls that ran no tests."""


def as_seen(call: ToolCall, result: ToolResult, content: str, tree: str) -> ObservedCall:
    """Return a finished call as input of the stall detector.

    Args:
        content: The result as the model reads it.
    """
    data = result.data
    return ObservedCall(
        name=call.name,
        arguments=call.arguments,
        content=content,
        digest=result.digest,
        is_error=result.is_error,
        exit_code=result.exit_code,
        tree=tree,
        failing=frozenset([*data["failed"], *data["errored"]]) if "passed" in data else None,
    )


Action = Literal["tell", "force", "stop"]


@dataclass(frozen=True)
class StallVerdict:
    """What to do about a loop."""

    action: Action
    """`tell` puts `text` into the next tool result. `force` demands a different move there; the caller adds the state
    of the tests and the diff. `stop` ends the run with `text` as its reason."""
    rule: str
    """Name of the rule that found the loop."""
    count: int
    """Count of the rule, in its own unit."""
    text: str
    """The note to the model, or the reason for the end."""


SPINNER = re.compile("[\u2800-\u28ff]")
TEMPORARY = re.compile(r"/(?:var/)?tmp/[^\s'\":,;)\]]+")
PROCESS = re.compile(r"(pid|PID|[Pp]rocess)([ =:#]+)\d+")
VOLATILE = re.compile(
    r"""\b(?:
    (?P<uuid>[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b)
    |(?P<hex>0x[0-9a-fA-F]+\b
      # a hash: letters and digits, so that neither words nor numbers are taken for one
      |(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{7,64}\b)
    |(?P<time>\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?
      |\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?\b(?!:)
      |(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),?[ ])?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[ ]+\d{1,2}(?=[ ]))
    |(?P<duration>\d+(?:\.\d+)?[ ]?(?:ns|[uµ]s|ms|s|secs?|seconds?|minutes?|mins?)\b)
    )""",
    re.VERBOSE,
)
COUNTED = r"passed|failed|failures?|errors?|warnings?|skipped|tests?|problems?|issues?|matches|files?|left|remaining"
NUMBER = re.compile(rf"(?<!\d)\d++(?![ ](?:{COUNTED})\b)", re.IGNORECASE)
"""Numbers, except those that count remaining work: fewer errors than before is progress."""
ERROR_LINE = re.compile(
    r"(?:\b\w*(?:Error|Exception)\b|\berror\b ?[:\[]|\bfatal\b|\bnot found\b|\bNo such file\b|\bcannot\b|"
    r"\bcommand not found\b|\bPermission denied\b|\bcould not\b|\bunable to\b|\brefused\b|\bE\d{3} )",
    re.IGNORECASE,
)
SAYS_LITTLE = re.compile(r"AssertionError|^Traceback|^E +assert")
"""Lines that do not identify an error: a failed assertion says that the code is still wrong, not which mistake it is."""
OMITTED = re.compile(r"^\[\.\.\. .* omitted \.\.\.\]$", re.MULTILINE)


def normal(text: str, *, fold_digits: bool) -> str:
    """Return the text without the parts that change from run to run.

    Args:
        fold_digits: Replace numbers as well. Use it for failures only: in the output of a success, a number that
            changes is progress.
    """
    text = ESCAPES.sub("", text).replace("\r\n", "\n")
    text = SPINNER.sub("", text)
    text = TEMPORARY.sub("<tmp>", text)
    text = VOLATILE.sub(lambda match: f"<{match.lastgroup}>", text)
    text = PROCESS.sub(r"\1\2<pid>", text)
    if fold_digits:
        text = NUMBER.sub("#", text)
    # after carriage returns, keep what a terminal shows in the end
    lines = (line.rstrip().rpartition("\r")[2].rstrip() for line in text.split("\n"))
    return "\n".join(lines).strip()


def says_failed(content: str) -> bool:
    """Return whether an output reads like a failure; used for commands with unknown exit status."""
    return ERROR_LINE.search(content) is not None


def error_class(text: str) -> str:
    """Return the class of error in a normalised failure: its first two distinct lines that name an error, or empty."""
    lines: list[str] = []
    for line in text.split("\n"):
        if ERROR_LINE.search(line) and not SAYS_LITTLE.search(line) and line.strip() not in lines:
            lines.append(line.strip())
            if len(lines) == 2:
                break
    return "\n".join(lines)


def call_key(name: str, arguments: dict[str, Any] | None) -> str:
    """Return the identity of a call: its tool and arguments, regardless of their order and surrounding whitespace."""
    folded = {
        key: value.strip() if isinstance(value, str) else value for key, value in (arguments or {}).items()
    }
    return hashed(json.dumps([name, arguments is None, folded], sort_keys=True))


def hashed(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class PastCall:
    """One call of the history."""

    number: int
    """Number of the call in the history, from 1."""
    turn: int
    """The turn that made the call."""
    name: str
    call: str
    """Identity of the call."""
    result: str
    """Identity of the result."""
    error: str
    """Class of the error; empty if the call did not fail."""
    failed: bool
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

        Returns the step, and the key of the last equal call if the result has changed since then. The step is
        None if the same turn already made the call with the same result: the model makes all calls of a turn
        before it sees any result.
        """
        bad = failed(seen)
        kind = traits_of(seen.name).kind
        done = "" if bad else kind
        call = call_key(seen.name, seen.arguments)
        text = normal(seen.content, fold_digits=bad and self._fold_digits)
        result = _result(seen, text)
        before = self._last.get(call)
        replaced = before.key if before is not None and before.result != result else None
        if before is not None and before.turn == turn and not replaced:
            self._enter(seen.tree)
            return None, None
        self._number += 1
        changed = self._changes(seen, edited=done == "edit")
        new_state = changed and self._is_new(seen.tree, result)
        unread = self._unread(seen) if done == "read" else 0
        error = _error(seen, text)
        earlier = self._repeated(before, seen, result, new_state=new_state)
        # a short result such as "exit code: 0" is not new in itself, but it may be new for this command
        terse = "\n" not in text and not error
        fresh = new_state or unread > 0 or self._is_new("", result) or (terse and before is None)
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
            times=(*earlier, self._number)[-self._longest :],
        )
        self._count(step)
        self._results.add(result)
        self._last[call] = step
        self.steps.append(step)
        return step, replaced

    def _is_new(self, tree: str, result: str) -> bool:
        return tree not in self._trees if tree else result not in self._results

    def _repeated(
        self, before: PastCall | None, seen: ObservedCall, result: str, *, new_state: bool
    ) -> tuple[int, ...]:
        """Return the numbers of the equal calls that a call repeats; none if it is the first, progress, or a check."""
        if before is None or before.result != result:
            return ()
        # repeating a call after a change of the work tree is a check, and a call that leads to a new state is progress
        is_edit = failed(seen) or traits_of(seen.name).kind == "edit"
        may_check = seen.failing is not None or not is_edit
        changed = new_state or any(step.changed for step in self.steps if step.number > before.number)
        return () if may_check and changed else before.times

    def _enter(self, tree: str) -> None:
        if tree:
            self.tree = tree
            self._trees.add(tree)

    def _changes(self, seen: ObservedCall, *, edited: bool) -> bool:
        return seen.tree != self.tree if seen.tree and self.tree else edited

    def _count(self, step: PastCall) -> None:
        if step.tree and step.changed:
            self.returns = self.returns + 1 if step.tree in self._trees else 0
        self._enter(step.tree)
        self.since_fresh = 0 if step.fresh else self.since_fresh + 1
        if step.unread or step.changed:
            self.rereads = 0
        elif step.read and not step.failed:
            self.rereads += 1
        reading = step.read or (bool(step.tree) and not step.changed and not step.failed)
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


def _result(seen: ObservedCall, text: str) -> str:
    """Return what two calls with the same result share. The digest decides only where the middle of the text was left out."""
    return hashed(text + seen.digest if OMITTED.search(seen.content) else text)


def _error(seen: ObservedCall, text: str) -> str:
    return error_class(text) if failed(seen) and seen.failing is None else ""

"""Define the data of a report: a session's facts, its turns with their calls, and its verification."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from m3agent.agent.report import words
from m3agent.agent.report.patch import FilePatch
from m3agent.agent.report.plot import TurnTokens
from m3agent.agent.session.catalog import NOT_FINISHED
from m3agent.agent.session.log_reader import Line, number, text, whole
from m3agent.agent.session.record import SessionRecord, is_embedded
from m3agent.sandbox.backends.kinds import is_isolated, shown_status
from m3agent.util.json_value import strings

_TONES = {"green": "good", "red": "bad", "varies": "plain"}
"""CSS class of a set of tests, by what they are after the patch."""


@dataclass(frozen=True)
class SuiteRun:
    """One test run."""

    where: str
    """Where it ran: `session`, `before` or `after`."""
    passed: int
    failed: tuple[str, ...]
    errored: tuple[str, ...]
    """Ids of the tests with an error."""
    skipped: int
    complete: bool
    """False if the run was cut short."""

    @property
    def red(self) -> bool:
        """Whether any test failed or had an error."""
        return bool(self.failed or self.errored)


@dataclass(frozen=True)
class Incident:
    """An event that deserves attention, such as a stall, a retry or a gate."""

    kind: str
    text: str
    bad: bool = True


@dataclass
class Request:
    """Equal network requests, counted together."""

    what: str
    """Method, host and port."""
    verdict: str
    reason: str
    times: int = 0
    sent: float = 0
    """Bytes sent in all of them."""
    received: float = 0
    """Bytes received in all of them."""


@dataclass
class CallView:
    """One tool call."""

    number: int | None
    name: str
    arguments: dict[str, Any] | None
    line: int
    """Line number of its arguments in the log."""
    title: str
    """What it does, in a few words."""
    outcome: str
    """Its outcome in a few words; empty if success is all there is to say."""
    status: str = ""
    content: str = ""
    is_error: bool = False
    exit_code: int | None = None
    seconds: float | None = None
    whole_output: str = ""
    """File with the complete output; empty if the output was not cut."""
    result_line: int | None = None
    """Line number of its result in the log; None without a result."""
    changes: list[tuple[str, str]] = field(default_factory=list)
    """Status letter and path of each changed file."""
    runs: list[SuiteRun] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)

    @property
    def bad(self) -> bool:
        """Whether the call failed."""
        return self.is_error or self.status != "done"


@dataclass
class TurnView:
    """One request to the model, its answer, and the answer's calls."""

    number: int
    label: str
    """Number of the turn, as shown; unique on the page."""
    started: str = ""
    after: float | None = None
    """Seconds from the session's start to the request; None if unknown."""
    line: int = 0
    """Line number of the answer in the log."""
    reasoning: str = ""
    text: str = ""
    finish: str = ""
    """Why the answer ended."""
    used: Line = field(default_factory=dict)
    """The turn's `turn.finished`."""
    calls: list[CallView] = field(default_factory=list)
    before: list[Incident] = field(default_factory=list)
    """Events before the answer."""
    incidents: list[Incident] = field(default_factory=list)
    """Other events that belong to no call."""
    requests: list[Request] = field(default_factory=list)
    """Network requests during the turn."""

    @property
    def anchor(self) -> str:
        """Id of the turn's element on the page: `turn-3`."""
        return f"turn-{self.label}"

    @property
    def marks(self) -> list[str]:
        """Kinds of the turn's bad incidents, each once, for its heading."""
        every = [*self.before, *(i for call in self.calls for i in call.incidents), *self.incidents]
        return sorted({incident.kind for incident in every if incident.bad})

    def value(self, name: str) -> float | None:
        """Return a number from `turn.finished`; None if unknown."""
        return number(self.used, name)

    @property
    def tokens(self) -> TurnTokens:
        """The turn's tokens, for the plot."""
        prompt, cached, completion = (
            whole(self.used, f"{name}_tokens") for name in ("prompt", "cached", "completion")
        )
        return TurnTokens(self.label, self.anchor, prompt, cached, completion, ", ".join(self.marks))


@dataclass
class SessionReport:
    """Everything that the page shows of one session; `record` is the session's record."""

    id: str
    record: SessionRecord = field(default_factory=SessionRecord)
    status: str = NOT_FINISHED
    reason: str = ""
    title: str = ""
    issue: str = ""
    source: str = ""
    repository: str = ""
    started: str = ""
    facts: list[tuple[str, str]] = field(default_factory=list)
    settings: list[tuple[str, str]] = field(default_factory=list)
    turns: list[TurnView] = field(default_factory=list)
    before: SuiteRun | None = None
    after: SuiteRun | None = None
    requests: list[Request] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    patch: list[FilePatch] = field(default_factory=list)

    @property
    def shown_status(self) -> str:
        """The status, with a warning if the tests ran without isolation."""
        return shown_status(self.status, self._backend)

    @property
    def has_language_model(self) -> bool:
        """Whether a language model answered. The embedded engine is no language model, so its numbers of tokens say nothing."""
        return not is_embedded(self.record.started, self.record.prepared)

    @property
    def fresh_places(self) -> str:
        """Where the verification ran the tests."""
        return words.fresh_places(isolated=is_isolated(self._backend))

    @property
    def _backend(self) -> str:
        return text(self.record.started, "sandbox", "backend")

    @property
    def verdict(self) -> Line:
        """The event of the verification; empty without one."""
        return self.record.verdict

    @property
    def evidence(self) -> list[tuple[str, str, list[str]]]:
        """The verification's sets of tests that are not empty, as tuples of CSS class, label and ids."""
        found = [
            (_TONES[after], words.change_of_tests(before, after), tests)
            for before, after, tests in words.deciding_tests(self.verdict)
        ]
        found.append(("plain", "added by the patch", strings(self.verdict, "new")))
        return [row for row in found if row[2]]

    @property
    def rests_on(self) -> list[str]:
        """What the verdict rests on, in parts."""
        after = self.after
        compared = after.passed + len(after.failed) + len(after.errored) + after.skipped if after else 0
        return words.evidence(self.verdict, compared, isolated=is_isolated(self._backend))

    def value(self, name: str) -> float | None:
        """Return a number of the session's usage; None if unknown, or about tokens without a language model."""
        if name not in ("turns", "seconds") and not self.has_language_model:
            return None
        return self.record.total(name)

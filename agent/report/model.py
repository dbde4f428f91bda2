"""What a report says of a session: turns with their calls, verification, facts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from m3agent.agent.report import text as show
from m3agent.agent.report.patch import FilePatch
from m3agent.agent.report.plot import TurnTokens
from m3agent.agent.session_log import Line, number, strings, whole
from m3agent.agent.session_record import SessionRecord
from m3agent.agent.sessions import NOT_FINISHED


@dataclass(frozen=True)
class SuiteRun:
    """One run of tests. Counts of those passed and skipped, ids of those red; complete: it was not cut short."""

    where: str
    passed: int
    failed: tuple[str, ...]
    errored: tuple[str, ...]
    skipped: int
    complete: bool

    @property
    def red(self) -> bool:
        """Whether anything failed."""
        return bool(self.failed or self.errored)


@dataclass(frozen=True)
class Incident:
    """Something to notice: a stall, a retry, a gate, an error. bad: not what one hopes for."""

    kind: str
    text: str
    bad: bool = True


@dataclass
class Request:
    """Equal requests to the network, counted. sent and received: bytes of all of them."""

    what: str
    verdict: str
    reason: str
    times: int = 0
    sent: float = 0
    received: float = 0


@dataclass
class Call:
    """One call of a tool. line: of its arguments in the log; result_line: of its result, None when it has none."""

    number: int | None
    name: str
    arguments: dict[str, Any] | None
    line: int
    argument: str
    status: str = ""
    content: str = ""
    is_error: bool = False
    exit_code: int | None = None
    seconds: float | None = None
    whole_output: str = ""
    result_line: int | None = None
    changes: list[tuple[str, str]] = field(default_factory=list)
    runs: list[SuiteRun] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        """The result's first line, or what kept it from having one."""
        if self.result_line is None:
            return "cut off: there is no result"
        return show.one_line(self.content.split("\n", 1)[0], 160)

    @property
    def bad(self) -> bool:
        """Whether it did not go as one hopes."""
        return self.is_error or self.status != "done"


@dataclass
class Turn:
    """One request to the model, its answer, and what came of it. line: of the answer in the log."""

    number: int
    label: str
    started: str = ""
    after: float | None = None
    line: int = 0
    reasoning: str = ""
    text: str = ""
    finish: str = ""
    used: Line = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    before: list[Incident] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        """Its place on the page, for links: `turn-3`."""
        return f"turn-{self.label}"

    @property
    def marks(self) -> list[str]:
        """Kinds of incidents, each once, for the turn's heading."""
        every = [*self.before, *(i for call in self.calls for i in call.incidents), *self.incidents]
        return sorted({incident.kind for incident in every if incident.bad})

    def value(self, name: str) -> float | None:
        """A number of what the turn used."""
        return number(self.used, name)

    @property
    def tokens(self) -> TurnTokens:
        """For the plot."""
        prompt, cached, completion = (
            whole(self.used, f"{name}_tokens") for name in ("prompt", "cached", "completion")
        )
        return TurnTokens(self.label, self.anchor, prompt, cached, completion, ", ".join(self.marks))


@dataclass
class SessionReport:
    """All that the page shows of one session. record: what it is made from."""

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
    turns: list[Turn] = field(default_factory=list)
    before: SuiteRun | None = None
    after: SuiteRun | None = None
    requests: list[Request] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    patch: list[FilePatch] = field(default_factory=list)
    patch_path: str = ""

    @property
    def verdict(self) -> Line:
        """The verification's event; empty without one."""
        return self.record.verdict

    @property
    def evidence(self) -> list[tuple[str, str, list[str]]]:
        """The verification's sets of tests, as (CSS class, what they are, ids), without the empty ones."""
        sets = (
            ("good", "fixed", "fixed"),
            ("bad", "broken", "broken"),
            ("bad", "still red", "still_red"),
            ("plain", "new", "new"),
            ("plain", "flaky", "flaky"),
        )
        return [(kind, label, ids) for kind, label, name in sets if (ids := strings(self.verdict, name))]

    def value(self, name: str) -> float | None:
        """A number of what the session used; None where it is not known."""
        return self.record.total(name)

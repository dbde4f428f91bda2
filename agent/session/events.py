"""Define the events of a session's log: one JSON object per line, one class per type.

The contract is docs/events.md. It says what each field means, so this module does not; a test compares the names. The
screen, `--json`, trajectories, reports and resume are views of these events. Readers ignore fields and types that they do not
know. Writers never change the meaning of an existing field or type.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Literal, Self

VERSION = 1


@dataclass(frozen=True)
class Event:
    """Base of all events; `type` is the type's name in the log.

    Events are plain data and never validated: file names and answers that are not valid Unicode must be logged as well.
    """

    type: ClassVar[str]

    @classmethod
    def of(cls, *sources: object, **others: Any) -> Self:
        """Return an event with `others` and with the further fields that a source has under the same names.

        Tuples become lists, and dataclasses objects, as in JSON. If several sources have a field, the first counts.
        """
        for name in (each.name for each in fields(cls) if each.name not in others):
            if having := [source for source in sources if hasattr(source, name)]:
                others[name] = _plain(getattr(having[0], name))
        return cls(**others)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


QUESTION = "question"
"""Source of an issue that is a question: the session only answers it."""


@dataclass(frozen=True)
class SessionStarted(Event):
    """The session begins; its first event."""

    type = "session.started"
    m3agent: str
    repository: dict[str, Any]
    issue: dict[str, Any]
    endpoint: dict[str, Any]
    sandbox: dict[str, Any]
    settings: dict[str, Any]
    tree: str
    attempt: dict[str, Any] | None = None


@dataclass(frozen=True)
class SessionResumed(Event):
    """A session that ended early continues in another process."""

    type = "session.resumed"
    m3agent: str
    messages: int
    tree: str
    interrupted: list[str]


@dataclass(frozen=True)
class SessionForked(Event):
    """The lines before this one belong to another session."""

    type = "session.forked"
    source: str
    turn: int


@dataclass(frozen=True)
class PullFollowed(Event):
    """The session continues because of what happened to its pull request."""

    type = "pull.followed"
    pull_request: str
    round: int
    head: str
    handled: list[str]


@dataclass(frozen=True)
class EnvironmentReady(Event):
    """The repository's environment was found or built; the session's sandboxes start from it."""

    type = "environment.ready"
    image: str
    seconds: float


@dataclass(frozen=True)
class TestsCollected(Event):
    """All tests were imported once in the repository's environment."""

    __test__: ClassVar[bool] = False
    type = "tests.collected"
    errors: dict[str, str]
    reason: str | None


@dataclass(frozen=True)
class Baseline(Event):
    """All tests ran on the base tree, in a fresh sandbox, while the model worked."""

    type = "baseline"
    tree: str
    cached: bool
    complete: bool
    seconds: float
    passed: list[str]
    failed: list[str]
    errored: list[str]
    skipped: list[str]


@dataclass(frozen=True)
class ToolsOffered(Event):
    """Every request of this session offers the model tools of MCP servers, which run outside the sandbox.

    Without such tools the log has no such line.
    """

    type = "tools.offered"
    tools: list[dict[str, Any]]


@dataclass(frozen=True)
class ContextPacked(Event):
    """The repository was packed into the text that the model sees."""

    type = "context.packed"
    files: int
    tokens: int
    exact: bool
    dropped: dict[str, int]
    redacted: list[str]
    digest: str
    seconds: float


@dataclass(frozen=True)
class EndpointProbed(Event):
    """The model server was probed. Fields are None if the probe could not find them out."""

    type = "endpoint.probed"
    url: str
    model: str
    flavour: str  # a `m3agent.serving.client.endpoint.Flavour`
    version: str | None
    max_model_len: int | None
    reasoning_field: str
    images: bool
    prefix_caching: bool | None
    cached_tokens: bool | None
    tokenizer_seconds: float | None
    seconds: float
    ranks: int = 1


@dataclass(frozen=True)
class TurnStarted(Event):
    """A request is about to be sent."""

    type = "turn.started"
    turn: int
    messages: int
    digest: str


@dataclass(frozen=True)
class Message(Event):
    """The assistant's complete answer; each of its calls has id, name and arguments."""

    type = "message"
    turn: int
    reasoning: str
    text: str
    calls: list[dict[str, Any]]


@dataclass(frozen=True)
class CallStarted(Event):
    """A tool call begins. The line is written and synced before the call has any effect."""

    type = "call.started"
    turn: int
    call: int
    id: str
    name: str
    arguments: dict[str, Any] | None
    tree: str


@dataclass(frozen=True)
class CallFinished(Event):
    """A tool call ended. The line is written and synced after the call."""

    type = "call.finished"
    turn: int
    call: int
    id: str
    name: str
    status: Literal["done", "refused", "interrupted"]
    content: str
    is_error: bool
    exit_code: int | None
    digest: str
    truncated: bool
    full_path: str | None
    data: dict[str, Any]
    seconds: float
    tree: str


@dataclass(frozen=True)
class FileChanged(Event):
    """A call changed the work tree; `changes` has a status letter (A, M or D) and a path for each file."""

    type = "file.changed"
    turn: int
    call: int
    changes: list[tuple[str, str]]
    tree: str


@dataclass(frozen=True)
class NetworkRequest(Event):
    """A request of a program in a sandbox to a host has ended."""

    type = "network.request"
    where: Literal["session", "verify"]
    method: str
    host: str
    port: int
    verdict: Literal["allowed", "refused", "failed"]
    reason: str
    sent: int
    received: int
    seconds: float


@dataclass(frozen=True)
class TestFinished(Event):
    """A test run ended, with the sets of test ids by outcome."""

    __test__: ClassVar[bool] = False
    type = "test.finished"
    where: Literal["session", "before", "after"]
    call: int | None
    passed: list[str]
    failed: list[str]
    errored: list[str]
    skipped: list[str]
    complete: bool
    tree: str


@dataclass(frozen=True)
class Stall(Event):
    """The run makes no progress."""

    type = "stall"
    turn: int
    rule: str
    count: int
    action: Literal["told", "forced", "stopped"]
    text: str


@dataclass(frozen=True)
class Gate(Event):
    """The model said that it is done."""

    type = "gate"
    turn: int
    missing: str
    asked: int
    cause: str = ""


@dataclass(frozen=True)
class ContextSummarised(Event):
    """The model's window was nearly full, and a summary replaced the tail of the conversation."""

    type = "context.summarised"
    turn: int
    messages: int
    kept: int
    own_words: bool
    text: str


@dataclass(frozen=True)
class Verify(Event):
    """The verdict of the verification in fresh sandboxes."""

    type = "verify"
    verdict: Literal["verified", "unverified", "failed"]
    reason: str
    fixed: list[str]
    broken: list[str]
    still_red: list[str]
    new: list[str]
    flaky: list[str]
    seconds: float
    added_red: list[str] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)
    round: int = 1
    by: Literal["gate", "end"] = "end"
    scope: dict[str, Any] | None = None  # a `m3agent.agent.verify.scope.Scope`
    left_out: list[str] = field(default_factory=list)
    own_only: bool = False
    tampering: list[str] = field(default_factory=list)
    review: list[dict[str, Any]] = field(default_factory=list)
    repeats: int = 0
    repeat_seconds: float = 0.0


@dataclass(frozen=True)
class Feedback(Event):
    """A verdict that is not `verified` was returned to the model."""

    type = "feedback"
    turn: int
    round: int
    kinds: list[str]
    text: str
    tests: list[str]
    tree: str


@dataclass(frozen=True)
class TurnFinished(Event):
    """An answer is complete, with its usage. Fields are None if unknown."""

    type = "turn.finished"
    turn: int
    finish: str
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    reasoning_tokens: int | None
    cached_share: float | None
    tokens_per_second: float | None
    first_token_seconds: float | None
    seconds: float
    price: float | None


@dataclass(frozen=True)
class Retry(Event):
    """A request failed and is sent again; its partial answer was discarded."""

    type = "retry"
    attempt: int
    wait: float
    reason: str


@dataclass(frozen=True)
class CacheLost(Event):
    """The server's cache no longer had most of the conversation, so the server read it again.

    The server was lost and another one answered, or the cache was full.
    """

    type = "cache.lost"
    turn: int
    expected: int
    cached: int
    read_again: int
    seconds: float | None
    reason: str


@dataclass(frozen=True)
class PriceStep(Event):
    """The conversation is about to have more tokens than a request of the usual price may have."""

    type = "price.step"
    turn: int
    tokens: int
    step: int
    times: float


@dataclass(frozen=True)
class TokensDiffer(Event):
    """The tokens of a prompt do not begin with those of the last prompt and its answer.

    A program that trains a model cannot use both turns as one sequence.
    """

    type = "tokens.differ"
    turn: int
    kept: int
    expected: int


@dataclass(frozen=True)
class Error(Event):
    """The reason for an early end of the session."""

    type = "error"
    kind: str
    text: str
    exit: int


@dataclass(frozen=True)
class AttemptChosen(Event):
    """The best of several attempts was chosen."""

    type = "attempt.chosen"
    chosen: int
    ranking: list[dict[str, Any]]


@dataclass(frozen=True)
class SessionFinished(Event):
    """The session ended; its last event. Usage fields cover the whole session and are None if unknown."""

    type = "session.finished"
    status: str  # a `m3agent.util.errors.Status`
    exit: int
    reason: str
    patch: str | None
    paths: list[str]
    notes: list[str]
    pull_request: str | None
    turns: int
    calls: int
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    reasoning_tokens: int | None
    cached_share: float | None
    tokens_per_second: float | None
    price: float | None
    seconds: float
    commit: str | None = None
    uncommitted: tuple[str, ...] = ()

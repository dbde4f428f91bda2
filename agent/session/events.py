"""Define the events of a session's log: one JSON object per line, one class per type.

The contract is docs/events.md. It says what each field means, so this module does not; a test compares the names. The
screen, `--json`, trajectories, reports and resume are views of these events. Readers ignore fields and types that they do not
know. Writers never change the meaning of an existing field or type.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Literal, Self, dataclass_transform

VERSION = 1


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class Event:
    """Base of all events, which become frozen dataclasses; `type` is the type's name in the log.

    Events are plain data and never validated: file names and answers that are not valid Unicode must be logged as well.
    """

    type: ClassVar[str]

    def __init_subclass__(cls, name: str) -> None:
        cls.type = name
        dataclass(frozen=True)(cls)

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


class SessionStarted(Event, name="session.started"):
    """The session begins; its first event."""

    m3agent: str
    repository: dict[str, Any]
    issue: dict[str, Any]
    endpoint: dict[str, Any]
    sandbox: dict[str, Any]
    settings: dict[str, Any]
    tree: str
    attempt: dict[str, Any] | None = None
    proposes: str = ""


class SessionResumed(Event, name="session.resumed"):
    """A session that ended early continues in another process."""

    m3agent: str
    messages: int
    tree: str
    interrupted: list[str]


class SessionForked(Event, name="session.forked"):
    """The lines before this one belong to another session."""

    source: str
    turn: int


class PullFollowed(Event, name="pull.followed"):
    """The session continues because of what happened to its pull request."""

    pull_request: str
    round: int
    head: str
    handled: list[str]


class PersonMessage(Event, name="person.message"):
    """A person said something while the model worked. The model gets it with its next request."""

    text: str


class Proposal(Event, name="proposal"):
    """The model proposed what the person wanted to see first; the session goes on once the person accepts it."""

    turn: int
    kind: Literal["plan", "spec"]
    text: str
    tests: dict[str, str]
    tree: str


class ProposalAnswered(Event, name="proposal.answered"):
    """The person accepted or corrected the last proposal. Among several attempts, nobody is asked."""

    turn: int
    accepted: bool
    text: str
    by: Literal["person", "m3agent"] = "person"


class EnvironmentReady(Event, name="environment.ready"):
    """The repository's environment was found or built; the session's sandboxes start from it."""

    image: str
    seconds: float


class TestsCollected(Event, name="tests.collected"):
    """All tests were imported once in the repository's environment."""

    __test__: ClassVar[bool] = False
    errors: dict[str, str]
    reason: str | None


class Baseline(Event, name="baseline"):
    """All tests ran on the base tree, in a fresh sandbox, while the model worked."""

    tree: str
    cached: bool
    complete: bool
    seconds: float
    passed: list[str]
    failed: list[str]
    errored: list[str]
    skipped: list[str]


class ToolsOffered(Event, name="tools.offered"):
    """Every request of this session offers the model tools of MCP servers, which run outside the sandbox.

    Without such tools the log has no such line.
    """

    tools: list[dict[str, Any]]


class ContextPacked(Event, name="context.packed"):
    """The repository was packed into the text that the model sees."""

    files: int
    tokens: int
    exact: bool
    dropped: dict[str, int]
    redacted: list[str]
    digest: str
    seconds: float


class EndpointProbed(Event, name="endpoint.probed"):
    """The model server was probed. Fields are None if the probe could not find them out."""

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


class TurnStarted(Event, name="turn.started"):
    """A request is about to be sent."""

    turn: int
    messages: int
    digest: str


class Message(Event, name="message"):
    """The assistant's complete answer; each of its calls has id, name and arguments."""

    turn: int
    reasoning: str
    text: str
    calls: list[dict[str, Any]]


class CallStarted(Event, name="call.started"):
    """A tool call begins. The line is written and synced before the call has any effect."""

    turn: int
    call: int
    id: str
    name: str
    arguments: dict[str, Any] | None
    tree: str


class CallFinished(Event, name="call.finished"):
    """A tool call ended. The line is written and synced after the call."""

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


class FileChanged(Event, name="file.changed"):
    """A call changed the work tree; `changes` has a status letter (A, M or D) and a path for each file."""

    turn: int
    call: int
    changes: list[tuple[str, str]]
    tree: str


class NetworkRequest(Event, name="network.request"):
    """A request of a program in a sandbox to a host has ended."""

    where: Literal["session", "verify"]
    method: str
    host: str
    port: int
    verdict: Literal["allowed", "refused", "failed"]
    reason: str
    sent: int
    received: int
    seconds: float


class TestFinished(Event, name="test.finished"):
    """A test run ended, with the sets of test ids by outcome."""

    __test__: ClassVar[bool] = False
    where: Literal["session", "before", "after"]
    call: int | None
    passed: list[str]
    failed: list[str]
    errored: list[str]
    skipped: list[str]
    complete: bool
    tree: str


class Stall(Event, name="stall"):
    """The run makes no progress."""

    turn: int
    rule: str
    count: int
    action: Literal["told", "forced", "stopped"]
    text: str


class Gate(Event, name="gate"):
    """The model said that it is done."""

    turn: int
    missing: str
    asked: int
    cause: str = ""


class ContextSummarised(Event, name="context.summarised"):
    """The model's window was nearly full, and a summary replaced the tail of the conversation."""

    turn: int
    messages: int
    kept: int
    own_words: bool
    text: str


class Verify(Event, name="verify"):
    """The verdict of the verification in fresh sandboxes."""

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
    checks: list[dict[str, Any]] = field(default_factory=list)
    """Each is a `m3agent.agent.checks.run.CheckResult`."""


class Feedback(Event, name="feedback"):
    """A verdict that is not `verified` was returned to the model."""

    turn: int
    round: int
    kinds: list[str]
    text: str
    tests: list[str]
    tree: str


class TurnFinished(Event, name="turn.finished"):
    """An answer is complete, with its usage. Fields are None if unknown."""

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


class Retry(Event, name="retry"):
    """A request failed and is sent again; its partial answer was discarded."""

    attempt: int
    wait: float
    reason: str


class CacheLost(Event, name="cache.lost"):
    """The server's cache no longer had most of the conversation, so the server read it again.

    The server was lost and another one answered, or the cache was full.
    """

    turn: int
    expected: int
    cached: int
    read_again: int
    seconds: float | None
    reason: str


class PriceStep(Event, name="price.step"):
    """The conversation is about to have more tokens than a request of the usual price may have."""

    turn: int
    tokens: int
    step: int
    times: float


class TokensDiffer(Event, name="tokens.differ"):
    """The tokens of a prompt do not begin with those of the last prompt and its answer.

    A program that trains a model cannot use both turns as one sequence.
    """

    turn: int
    kept: int
    expected: int


class Error(Event, name="error"):
    """The reason for an early end of the session."""

    kind: str
    text: str
    exit: int


class AttemptChosen(Event, name="attempt.chosen"):
    """The best of several attempts was chosen."""

    chosen: int
    ranking: list[dict[str, Any]]


class SessionFinished(Event, name="session.finished"):
    """The session ended; its last event. Usage fields cover the whole session and are None if unknown."""

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

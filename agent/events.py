"""The event log's vocabulary: one JSON object a line, each of a type of its own. The contract is docs/events.md.

Everything else (screen, `--json`, trajectories, reports, resume) is a view of these. Readers ignore fields and types
they do not know; writers never change the meaning of one that exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

VERSION = 1


@dataclass(frozen=True)
class Event:
    """Base of all events; `type` names the kind on the wire.

    Plain data, never validated: a file name or an answer that is no valid Unicode has to be logged as well.
    """

    type: ClassVar[str]


@dataclass(frozen=True)
class SessionStarted(Event):
    """First event. repository: root (None when bare), head, branch, bare, shallow, dirty (changed paths).
    issue: title, source, digest, text, images. endpoint: url, source (named, running or embedded), description. tree: git
    tree id the work starts from. attempt: number, of (how many side by side), hint, temperature, seed, group (the first
    one's session); None where there is only one."""

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
    """A session that ended before its time goes on, in another process. messages: how many the conversation has; tree: the
    state that the work tree was put back to; interrupted: ids of the calls that had begun and are not run again."""

    type = "session.resumed"
    m3agent: str
    messages: int
    tree: str
    interrupted: list[str]


@dataclass(frozen=True)
class SessionForked(Event):
    """The lines before this one are those of another session, up to the end of one of its turns. source: its id."""

    type = "session.forked"
    source: str
    turn: int


@dataclass(frozen=True)
class EnvironmentReady(Event):
    """The sandboxes of this session start from the repository's own environment. seconds: to find or build it."""

    type = "environment.ready"
    image: str
    seconds: float


@dataclass(frozen=True)
class ToolsOffered(Event):
    """What every request of this session offers the model besides our own tools. tools: the entries of a request's `tools`, in
    their order; MCP servers outside the sandbox carry their calls out. Without such tools there is no such line."""

    type = "tools.offered"
    tools: list[dict[str, Any]]


@dataclass(frozen=True)
class ContextPacked(Event):
    """The repository as the model sees it. tokens are exact only if `exact`; dropped maps a reason to a count; redacted
    names the files in which secrets were replaced."""

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
    """What the server said of itself, and what trying showed: prefix_caching, cached_tokens (whether usage counts them) and
    tokenizer_seconds (for a million tokens) are null where it could not be found out."""

    type = "endpoint.probed"
    url: str
    model: str
    flavour: str
    version: str | None
    max_model_len: int | None
    reasoning_field: str
    images: bool
    prefix_caching: bool | None
    cached_tokens: bool | None
    tokenizer_seconds: float | None
    seconds: float


@dataclass(frozen=True)
class TurnStarted(Event):
    """A request is about to be sent. messages: how many; digest: SHA-256 over them as JSON."""

    type = "turn.started"
    turn: int
    messages: int
    digest: str


@dataclass(frozen=True)
class Message(Event):
    """The assistant's answer, whole: reasoning, text, and its calls as id, name, arguments."""

    type = "message"
    turn: int
    reasoning: str
    text: str
    calls: list[dict[str, Any]]


@dataclass(frozen=True)
class CallStarted(Event):
    """Written and synced before the side effect. call: number in the session; tree: the work tree's state before."""

    type = "call.started"
    turn: int
    call: int
    id: str
    name: str
    arguments: dict[str, Any] | None
    tree: str


@dataclass(frozen=True)
class CallFinished(Event):
    """Written and synced after it. status: done, refused or interrupted. digest: of the whole output, before cutting.
    tree: the work tree's state after."""

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
    """A call changed the work tree. changes: [status letter (A, M, D), path]."""

    type = "file.changed"
    turn: int
    call: int
    changes: list[tuple[str, str]]
    tree: str


@dataclass(frozen=True)
class NetworkRequest(Event):
    """A program in a sandbox asked for a host, and that is over. where: the session's sandbox or a verification's.
    host and port are empty and 0 where the request made no sense; sent and received are bytes to and from the host."""

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
    """The sets of ids of a test run. where: `session`, or `before`/`after` of the verification."""

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
    """The run no longer gets anywhere. action: told (a word), forced (a different move asked for) or stopped."""

    type = "stall"
    turn: int
    rule: str
    count: int
    action: Literal["told", "forced", "stopped"]
    text: str


@dataclass(frozen=True)
class Gate(Event):
    """The model said it was done. missing: what it was told is missing; empty when it was let through."""

    type = "gate"
    turn: int
    missing: str
    asked: int


@dataclass(frozen=True)
class ContextSummarised(Event):
    """The window was nearly full: `text` took the place of all messages but the first two and the last `kept` of
    `messages`. own_words: whether the model wrote it; else it lists the calls."""

    type = "context.summarised"
    turn: int
    messages: int
    kept: int
    own_words: bool
    text: str


@dataclass(frozen=True)
class Verify(Event):
    """The verdict of the fresh sandboxes. fixed: red before, green after; broken: green before and not after, or red
    after and not before; still_red: red before and after; new: tests the patch adds; flaky: those whose outcome changed
    between runs on one tree, in none of the first three."""

    type = "verify"
    verdict: Literal["verified", "unverified", "failed"]
    reason: str
    fixed: list[str]
    broken: list[str]
    still_red: list[str]
    new: list[str]
    flaky: list[str]
    seconds: float


@dataclass(frozen=True)
class TurnFinished(Event):
    """What a turn cost. Token counts are null where the server did not say; cached_share is the part of the prompt (0 to
    1) that its cache had; tokens_per_second from the first token on; price in dollars, null when unknown."""

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
    """A request is sent again; what came of the last one was thrown away."""

    type = "retry"
    attempt: int
    wait: float
    reason: str


@dataclass(frozen=True)
class Error(Event):
    """What ended the session early, in one sentence. exit: the process's exit code."""

    type = "error"
    kind: str
    text: str
    exit: int


@dataclass(frozen=True)
class AttemptChosen(Event):
    """One of several attempts is handed over. chosen: its number; ranking: all of them, best first, each as number,
    session, verdict (none without a checked patch), regressions, agreement (patches of its kind), lines changed."""

    type = "attempt.chosen"
    chosen: int
    ranking: list[dict[str, Any]]


@dataclass(frozen=True)
class SessionFinished(Event):
    """Last event. reason: why it ended so, in one sentence; patch: path of the patch file, null when there is none;
    notes: what the user should know of it (files that run later, files left out); pull_request: address of the one opened,
    null without one."""

    type = "session.finished"
    status: str
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

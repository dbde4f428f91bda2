"""Define the events of a session's log: one JSON object per line, one class per type. The contract is docs/events.md.

The screen, `--json`, trajectories, reports and resume are views of these events. Readers ignore fields and types that
they do not know. Writers never change the meaning of an existing field or type.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

VERSION = 1


@dataclass(frozen=True)
class Event:
    """Base of all events; `type` is the type's name in the log.

    Events are plain data and never validated: file names and answers that are not valid Unicode must be logged as well.
    """

    type: ClassVar[str]


@dataclass(frozen=True)
class SessionStarted(Event):
    """The session begins; its first event.

    Attributes:
        m3agent: Version of m3agent.
        repository: root (None when bare), git_dir, head, branch, bare, shallow, dirty (number of changed files).
        issue: title, source, digest, text, images.
        endpoint: url, source (named, running or embedded), description.
        sandbox: backend, image, memory.
        settings: The settings in force, without keys.
        tree: Git tree id of the initial work tree.
        attempt: number, of (number of attempts), hint, temperature, seed, group (session id of the first attempt); None
            if there is only one attempt.
    """

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
    """A session that ended early continues in another process.

    Attributes:
        m3agent: Version of m3agent.
        messages: Number of messages in the conversation.
        tree: State to which the work tree was reset.
        interrupted: Ids of the calls that had begun and are not run again.
    """

    type = "session.resumed"
    m3agent: str
    messages: int
    tree: str
    interrupted: list[str]


@dataclass(frozen=True)
class SessionForked(Event):
    """The lines before this one belong to another session.

    Attributes:
        source: Id of the other session.
        turn: The last turn of the other session that was copied.
    """

    type = "session.forked"
    source: str
    turn: int


@dataclass(frozen=True)
class PullFollowed(Event):
    """The session continues because of what happened to its pull request.

    Attributes:
        pull_request: Address of the pull request.
        round: Number of this continuation, from 1.
        head: The pull request's last commit.
        handled: What the model is told: comments, reviews, checks and conflicts, by their keys.
    """

    type = "pull.followed"
    pull_request: str
    round: int
    head: str
    handled: list[str]


@dataclass(frozen=True)
class EnvironmentReady(Event):
    """The repository's environment was found or built; the session's sandboxes start from it.

    Attributes:
        image: The image of the environment.
        seconds: Time to find or build it.
    """

    type = "environment.ready"
    image: str
    seconds: float


@dataclass(frozen=True)
class TestsCollected(Event):
    """All tests were imported once in the repository's environment.

    Attributes:
        errors: The first error line of each file that cannot be imported, by path.
        reason: Why the result is incomplete; None if it is complete.
    """

    __test__: ClassVar[bool] = False
    type = "tests.collected"
    errors: dict[str, str]
    reason: str | None


@dataclass(frozen=True)
class Baseline(Event):
    """All tests ran on the base tree, in a fresh sandbox, while the model worked.

    Attributes:
        tree: Tree id of the base.
        cached: Whether an earlier session ran them.
        complete: Whether the run ended normally. If not, its time was over.
        seconds: Duration of the run.
        passed, failed, errored, skipped: Test ids.
    """

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

    Attributes:
        tools: The entries that follow m3agent's own tools in a request's `tools`, in order.
    """

    type = "tools.offered"
    tools: list[dict[str, Any]]


@dataclass(frozen=True)
class ContextPacked(Event):
    """The repository was packed into the text that the model sees.

    Attributes:
        files: Number of files in the text.
        tokens: Number of tokens; an estimate unless `exact`.
        exact: Whether `tokens` is exact.
        dropped: Number of files left out, by reason.
        redacted: Files in which secrets were replaced.
        digest: SHA-256 of the text.
        seconds: Time to pack.
    """

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
    """The model server was probed. Fields are None if the probe could not find them out.

    Attributes:
        url: Address of the server.
        model: Name of the model.
        flavour: Kind of the server (`m3agent.serving.client.endpoint.Flavour`).
        version: Version of the server.
        max_model_len: Context window in tokens.
        reasoning_field: Name of the field that carries the reasoning.
        images: Whether messages may contain images.
        prefix_caching: Whether the server found the beginning of a prompt in its cache.
        cached_tokens: Whether the usage contains the number of cached tokens.
        tokenizer_seconds: Time of the server's tokenizer for a million tokens.
        seconds: Time of the probe.
        ranks: Number of data-parallel ranks, each with its own cache; 1 if it is not known.
    """

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
    ranks: int = 1


@dataclass(frozen=True)
class TurnStarted(Event):
    """A request is about to be sent.

    Attributes:
        turn: Number of the turn, from 1.
        messages: Number of messages.
        digest: SHA-256 over the messages as JSON.
    """

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
    """A tool call begins. The line is written and synced before the call has any effect.

    Attributes:
        turn: Number of the turn.
        call: Number of the call in the session, from 1.
        id: Id that the model gave the call.
        name: Name of the tool.
        arguments: Its arguments; None if they were not a JSON object.
        tree: State of the work tree before the call.
    """

    type = "call.started"
    turn: int
    call: int
    id: str
    name: str
    arguments: dict[str, Any] | None
    tree: str


@dataclass(frozen=True)
class CallFinished(Event):
    """A tool call ended. The line is written and synced after the call.

    Attributes:
        turn: Number of the turn.
        call: Number of the call in the session, from 1.
        id: Id that the model gave the call.
        name: Name of the tool.
        status: done, refused (nothing was run) or interrupted.
        content: The tool's result as text.
        is_error: Whether the result is an error.
        exit_code: Exit status of the command; None without one.
        digest: SHA-256 of the whole output, before cutting.
        truncated: Whether the output was cut.
        full_path: File with the complete output.
        data: Structured result of the tool.
        seconds: Time of the call.
        tree: State of the work tree after the call.
    """

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
    """A request of a program in a sandbox to a host has ended.

    Attributes:
        where: Whether the sandbox belongs to the session or to the verification.
        method: Method of the request; CONNECT for https.
        host: Name of the host; empty if the request was malformed.
        port: Port of the host; 0 if the request was malformed.
        verdict: Whether the request was allowed, refused, or failed.
        reason: Reason for the verdict; empty after a normal end.
        sent: Bytes sent to the host.
        received: Bytes received from the host.
        seconds: Time from the request to its end.
    """

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
    """A test run ended, with the sets of test ids by outcome.

    Attributes:
        where: `session`; `before` or `after` for the verification's runs.
        call: Number of the call that ran the tests; None outside a call.
        passed, failed, errored, skipped: Test ids.
        complete: False if the run was cut short.
        tree: State of the work tree; empty for the verification, which composes its own trees.
    """

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
    """The run makes no progress.

    Attributes:
        turn: Number of the turn.
        rule: The rule that found it.
        count: Count of the rule, in its own unit.
        action: told (a note to the model), forced (the note demands a different move) or stopped.
        text: The note to the model, or the reason for the end.
    """

    type = "stall"
    turn: int
    rule: str
    count: int
    action: Literal["told", "forced", "stopped"]
    text: str


@dataclass(frozen=True)
class Gate(Event):
    """The model said that it is done.

    Attributes:
        turn: Number of the turn.
        missing: What the model was told is missing; empty if it may finish.
        asked: Number of earlier times that the model was told what is missing.
    """

    type = "gate"
    turn: int
    missing: str
    asked: int


@dataclass(frozen=True)
class ContextSummarised(Event):
    """The model's window was nearly full, and a summary replaced the tail of the conversation.

    Attributes:
        turn: Number of the last turn before the summary.
        messages: Number of messages before the summary.
        kept: Number of last messages that stay. The first two stay as well.
        own_words: Whether the model wrote the summary; otherwise it lists the calls.
        text: The summary.
    """

    type = "context.summarised"
    turn: int
    messages: int
    kept: int
    own_words: bool
    text: str


@dataclass(frozen=True)
class Verify(Event):
    """The verdict of the verification in fresh sandboxes.

    Attributes:
        verdict: Whether the patch is believed.
        reason: The reason for the verdict, in one sentence.
        fixed: Tests that are red before the patch and green after it.
        broken: Tests that are green before the patch and not after it, or red after it and not before.
        still_red: Tests that are red before and after the patch.
        new: Tests that the patch adds.
        flaky: Tests with different outcomes on the same tree; none of them is in fixed, broken or still_red.
        added_red: Red tests that the patch adds or changes.
        undone: Paths of the patch whose changes do not count.
        seconds: Wall time of the verification.
        round: Number of the verification in the session, from 1.
        by: Whether the completion gate asked for it, or the end of the session.
        scope: The tests that the verdict rests on if the suite is large: tests, selected, ran, others, everything and
            complete, as `m3agent.agent.verify.scope.Scope` defines them. None for other suites.
        left_out: Names of the repository's test suites that did not run, because the patch does not affect them.
        own_only: Whether only tests that the patch adds or changes show the fix.
        tampering: Signs that the code under test tampered with the test runs, or that the fixed tests show nothing.
        review: Lines of the patch that a person must read before its verdict can be believed: path, line, text, what.
        repeats: Number of further runs of the tests near the change.
        repeat_seconds: Duration of these runs, a part of `seconds`.
    """

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
    scope: dict[str, Any] | None = None
    left_out: list[str] = field(default_factory=list)
    own_only: bool = False
    tampering: list[str] = field(default_factory=list)
    review: list[dict[str, Any]] = field(default_factory=list)
    repeats: int = 0
    repeat_seconds: float = 0.0


@dataclass(frozen=True)
class Feedback(Event):
    """A verdict that is not `verified` was returned to the model.

    Attributes:
        turn: Number of the turn in which the model said that it was done.
        round: Number of the verification, as in `verify`.
        kinds: What the verdict found, the most important first: broken, added_red, still_red, cannot_import,
            weakened, needs_review, unstable, no_red_test, undone; or refused, for a change that may not be handed over.
        text: The message to the model.
        tests: Red tests that the verdict rests on.
        tree: State of the work tree that was verified.
    """

    type = "feedback"
    turn: int
    round: int
    kinds: list[str]
    text: str
    tests: list[str]
    tree: str


@dataclass(frozen=True)
class TurnFinished(Event):
    """An answer is complete, with its usage. Fields are None if unknown.

    Attributes:
        turn: Number of the turn.
        finish: Why the answer ended: stop, tool_calls, length or content_filter.
        prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens: Token counts of the server.
        cached_share: Share of the prompt (0 to 1) that the server's cache had.
        tokens_per_second: Generation speed from the first token on.
        first_token_seconds: Time to first token.
        seconds: Time of the whole request.
        price: Price in US dollars.
    """

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
    """A request failed and is sent again; its partial answer was discarded.

    Attributes:
        attempt: Number of the failed attempt.
        wait: Seconds until the next attempt.
        reason: Why the request failed, and what the next one does differently.
    """

    type = "retry"
    attempt: int
    wait: float
    reason: str


@dataclass(frozen=True)
class CacheLost(Event):
    """The server's cache no longer had most of the conversation, so the server read it again.

    The server was lost and another one answered, or the cache was full.

    Attributes:
        turn: Number of the turn.
        expected: Tokens of the last prompt, which the server had read.
        cached: Tokens of them that a cache still had.
        read_again: Tokens that had to be read again.
        seconds: Time to the first token; None if unknown.
        reason: Why a request of this turn failed before; empty if none failed.
    """

    type = "cache.lost"
    turn: int
    expected: int
    cached: int
    read_again: int
    seconds: float | None
    reason: str


@dataclass(frozen=True)
class TokensDiffer(Event):
    """The tokens of a prompt do not begin with those of the last prompt and its answer.

    A program that trains a model cannot use both turns as one sequence.

    Attributes:
        turn: Number of the turn.
        kept: Number of equal tokens at the beginning.
        expected: Number of tokens of the last prompt and its answer.
    """

    type = "tokens.differ"
    turn: int
    kept: int
    expected: int


@dataclass(frozen=True)
class Error(Event):
    """The reason for an early end of the session.

    Attributes:
        kind: Name of the error.
        text: The reason, in one sentence.
        exit: Exit code of the process.
    """

    type = "error"
    kind: str
    text: str
    exit: int


@dataclass(frozen=True)
class AttemptChosen(Event):
    """The best of several attempts was chosen.

    Attributes:
        chosen: Number of the chosen attempt.
        ranking: All attempts, best first. Each has number, session, verdict (none without a checked patch), regressions,
            agreement (number of patches with the same change), lines (changed lines).
    """

    type = "attempt.chosen"
    chosen: int
    ranking: list[dict[str, Any]]


@dataclass(frozen=True)
class SessionFinished(Event):
    """The session ended; its last event. Usage fields cover the whole session and are None if unknown.

    Attributes:
        status: How the session ended (`m3agent.agent.errors.Status`).
        exit: Exit code.
        reason: Why it ended so, in one sentence.
        patch: Path of the patch file; None without one.
        paths: Paths that the patch changes.
        notes: What the user should know about the patch, such as files that run later or files left out.
        pull_request: Address of the pull request that was opened or got a further commit; None without one.
        turns: Number of turns.
        calls: Number of tool calls.
        prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens: Token counts of the server.
        cached_share: Share of the prompts (0 to 1) that the server's cache had.
        tokens_per_second: Mean generation speed.
        price: Price in US dollars.
        seconds: Wall time of all processes that worked on the session.
        commit: Id of the last commit of that pull request; None without one.
        uncommitted: The changed paths with uncommitted changes in the user's work tree: `m3agent apply` refuses the patch.
    """

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
    commit: str | None = None
    uncommitted: tuple[str, ...] = ()

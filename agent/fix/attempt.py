"""Run one attempt at an issue, from its session's start to the verdict on its patch."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from m3agent.agent.certificate.statement import Environment
from m3agent.agent.exit_codes import Failure
from m3agent.agent.fix import session_events
from m3agent.agent.fix.compared_runs import fresh_runs
from m3agent.agent.fix.proposal import Proposal
from m3agent.agent.fix.request import FixRequest
from m3agent.agent.fix.run_context import RunContext
from m3agent.agent.loop import prompt
from m3agent.agent.loop.compaction import Window
from m3agent.agent.loop.completion_gate import pinned_tests, why_not_tested
from m3agent.agent.loop.limits import RunLimits, Variation
from m3agent.agent.loop.loop import Loop, Outcome
from m3agent.agent.loop.model_step import Model
from m3agent.agent.loop.resume import ResumePoint
from m3agent.agent.loop.tool_executor import Calls, PendingCall
from m3agent.agent.mcp.toolset import OtherTools
from m3agent.agent.repo.snapshot import TREES
from m3agent.agent.session import events
from m3agent.agent.session.messages import Conversation
from m3agent.agent.session.session import CALLS, Session
from m3agent.agent.session.token_log import TokenLog
from m3agent.agent.stall import StallDetector
from m3agent.agent.verify.baseline import BaselineRun
from m3agent.agent.verify.feedback import Feedback, feedback_on, refused_change, weakened_tests
from m3agent.agent.verify.tree_runs import TreeRuns
from m3agent.agent.verify.verify import Verification, verify
from m3agent.sandbox.backends.factory import Backend, SandboxSpec, new_sandbox
from m3agent.sandbox.backends.kinds import shown_status
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.errors import PathEscapes
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Patch, TreeId, Workspace
from m3agent.serving.client.client import Client, RetryNote
from m3agent.serving.client.messages import Delta
from m3agent.serving.client.parameters import SERVER_DEFAULTS, Affinity
from m3agent.tools.registry import Toolset
from m3agent.tools.run_tests import Bytecode
from m3agent.tools.runners.suites import files_of_tests
from m3agent.tools.test_report import TestReport
from m3agent.util.errors import UsageError

REFINE = "What shall the model refine? Enter ends the fix"
KnownBefore = Callable[[], Awaitable[TestReport | None]]
"""Returns what is known of the tests without the patch."""
NOTED_SECONDS = 2.0
"""Seconds of waiting for the base tree's tests after which people are told."""


@dataclass
class Attempt:
    """The input of an attempt and its progress so far, which also counts if the attempt ends early."""

    request: FixRequest
    session: Session
    limits: RunLimits
    variation: Variation
    say: Callable[[str], None]
    """Receives notes for people."""
    on_delta: Callable[[Delta], None]
    started: float = field(default_factory=time.monotonic)
    """Start of the attempt on the monotonic clock, in seconds."""
    group: str = ""
    """Id of the session whose prompt this session's begins with; empty if that is this session."""
    stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    """Closes the sandbox, the client and the conversation."""
    workspace: Workspace | None = None
    messages: Conversation | None = None
    pending: list[PendingCall] = field(default_factory=list)
    """Calls without a result from an earlier process of this session."""
    sandbox: Sandbox | None = None
    other_tools: OtherTools = field(default_factory=OtherTools)
    """MCP tools that the model may call."""
    loop: Loop | None = None
    proposal: Proposal | None = None
    outcome: Outcome | None = None
    patch: Patch | None = None
    evidence: Verification | None = None
    """The verification of `patch`."""
    environment: Environment | None = None
    """Where the tests run, if a certificate is wanted."""
    certified: Verification | None = None
    """The verification for the certificate, if it is another one than `evidence`."""
    dirty: int = 0
    """Number of files that differed from the commit at the start."""
    hears_verdicts: bool = True
    """Whether the model can do something about a verdict."""
    rounds: int = 0
    """How often a verdict went back to the model."""
    named_red: dict[str, str] = field(default_factory=dict)
    """Tests that verdicts named red when they went back to the model, each with the id of its tree."""
    pinned: frozenset[str] = frozenset()
    """Ids of tests that state what the issue changes, as the model says."""
    returned_tree: str | None = None
    """State of the work tree whose verdict went back to the model last."""
    server_key: str | None = field(default=None, repr=False)
    """The model server's key. It must not appear in anything that is published."""
    failure: Failure | None = None
    """The error that ended the attempt early; the model did not cause it."""
    overtaken_by: int | None = None
    """Number of another attempt that was verified before this one ended."""

    def go_on(self, point: ResumePoint) -> None:
        """Prepare to resume a session that ended early. Raises UsageError if a part of it is gone."""
        folder = self.session.folder
        if not (folder / TREES).is_dir():
            raise UsageError(f"the session in {folder} cannot be resumed: {TREES} is missing")
        store = TreeStore(folder / TREES)
        store.sweep()  # safe, because the lock on the log keeps other processes away
        self.workspace = Workspace(store, point.started["tree"])
        self.messages = self.stack.enter_context(contextlib.closing(Conversation.read(folder)))
        self.pending = point.pending(self.messages)
        self.group = point.group
        self.rounds, self.named_red = point.rounds, dict(point.named_red)
        self.returned_tree = point.returned.get("tree")
        self.pinned = point.pinned
        self.session.write(session_events.session_resumed(point, self.messages, self.pending))

    async def start_sandbox(self, spec: SandboxSpec, backend: Backend) -> None:
        """Start the attempt's sandbox. Raises SandboxError."""
        assert self.workspace is not None
        log = session_events.log_requests(self.session, "session")
        self.sandbox = new_sandbox(backend, spec, self.workspace, self.say, log)
        await self.stack.enter_async_context(self.sandbox)

    def fresh_runs(self, backend: Backend, spec: SandboxSpec, bytecode: Bytecode | None = None) -> TreeRuns:
        """Return what runs tests of the attempt's trees in fresh sandboxes."""
        assert self.workspace is not None
        log = session_events.log_requests(self.session, "verify")

        def fresh(of: Workspace) -> Sandbox:
            return new_sandbox(backend, spec, of, self.say, log)

        logs = self.session.folder / CALLS
        return fresh_runs(self.workspace, fresh, self.request.settings, logs, bytecode)

    async def work(
        self,
        run_context: RunContext,
        baseline: BaselineRun,
        cache_is_warm: asyncio.Event,
        verify: Callable[[], Awaitable[None]],
        runs: TreeRuns | None = None,
    ) -> None:
        """Run the loop to its end, and set `outcome` and `patch`. The patch may be empty.

        Args:
            cache_is_warm: Set by the first attempt once the server has read its prompt. The other attempts wait for
                it, so that the server finds their prompts in its cache.
            runs: Runs the tests of a proposal; without one, none is asked for.

        Raises SandboxError, ModelServerError, M3AgentError: The attempt ended early.
        """
        assert self.sandbox is not None
        self.server_key = run_context.key
        self.hears_verdicts = (
            run_context.endpoint.flavour != "embedded" and not self.request.settings.training
        )
        try:
            client = await self.stack.enter_async_context(
                Client(
                    run_context.endpoint,
                    api_key=run_context.key,
                    on_retry=self._note_retry,
                    recorded=self.request.settings.training,
                    affinity=Affinity(self.group or self.session.id, run_context.ranks),
                )
            )
            if self.messages is None:
                begun = Conversation.begin(self.session.folder, self._first_messages(run_context))
                self.messages = self.stack.enter_context(contextlib.closing(begun))
            if self.variation.number > 1:
                await cache_is_warm.wait()

            def on_delta(delta: Delta) -> None:
                cache_is_warm.set()
                self.on_delta(delta)

            loop = self._new_loop(client, self.sandbox, run_context, self.messages, on_delta, baseline)
            self.loop = loop
            loop.before_end = lambda said: self._review(said, loop, verify)
            self.proposal = proposal = Proposal(loop, self._ask, self.request, runs)
            if runs is not None:
                loop.before_end = lambda said: (
                    proposal.review(said) if loop.proposes else self._review(said, loop, verify)
                )
            if (point := self.request.resume) is not None:
                await self.sandbox.rollback(point.tree)
                loop.resume_from(point)
                proposal.resume_from(point)
                if point.returned and point.returned["turn"] == point.turn and loop.awaits_user:
                    loop.user_message = loop.user_message or point.returned["text"]  # logged, but not sent
            with self.request.inbox.heard_by(loop.hear):
                outcome = await loop.run(self.pending)
            self.outcome = proposal.waiting or outcome
            if self.request.answer == "only":
                await self.sandbox.rollback(self.sandbox.workspace.base)
            await self._take_patch()
        finally:
            cache_is_warm.set()
            await self.stack.aclose()

    def _note_retry(self, note: RetryNote) -> None:
        self.session.write(events.Retry.of(note, wait=note.wait_seconds))
        if self.loop is not None:
            self.loop.model.failure = note.reason

    async def _take_patch(self) -> Patch:
        """Set `patch` to the present change; forget the evidence if it belongs to another change."""
        assert self.sandbox is not None
        patch = await self.sandbox.patch()
        if self.patch is None or self.patch.tree != patch.tree:
            self.evidence = None
        self.patch = patch
        return patch

    async def _review(self, said: str, loop: Loop, verify: Callable[[], Awaitable[None]]) -> str:
        """Return the message that sends the model on; empty if the person has nothing to refine either."""
        told = await self._verdict_returned(said, loop, verify)
        may_ask = self.request.inbox.refines and self.request.ask is not None and self.variation.of == 1
        if not told and not loop.heard and may_ask and not loop.limits.reached():
            await verify()
            if answer := await self._ask(f"{self._verdict()}{REFINE}", loop):
                loop.hear(answer)
        return told

    def _verdict(self) -> str:
        """Return a sentence with the verdict on the present change; empty without one."""
        if self.evidence is None:
            return ""
        return f"The change is {shown_status(self.evidence.verdict, self.request.settings.sandbox or '')}. "

    async def _ask(self, question: str, loop: Loop) -> str | None:
        """Ask the person, if there is one; None if nobody answers. The time until the answer does not count."""
        if (ask := self.request.ask) is None:
            return None
        begun = time.monotonic()
        answer = await ask(question)
        self.limits.started += time.monotonic() - begun
        loop.calls.deadline = self.limits.deadline
        return answer

    async def _verdict_returned(self, said: str, loop: Loop, verify: Callable[[], Awaitable[None]]) -> str:
        """Verify the change that the model calls done.

        A change that may not be handed over goes back as well.

        Returns the message that returns the verdict to the model. Empty if the session ends: the change is
        verified, the same change was returned before, no round is left, a limit is reached, or `said` gives
        the reason why the change cannot be tested and no test runs here.
        """
        assert self.sandbox is not None
        most = self.request.settings.verify_rounds if self.hears_verdicts else 0
        try:
            patch = await self._take_patch()
        except PathEscapes as error:
            tree = self.sandbox.tree
            if self.rounds >= most or tree == self.returned_tree or loop.limits.reached():
                raise
            return self._return_verdict(refused_change(error, self.rounds + 1, most), tree, loop)
        pinned = pinned_tests(said) - self.pinned
        if pinned:
            self.pinned |= pinned
            self.evidence = None
        unchanged = patch.tree == self.returned_tree and not pinned
        if unchanged or self.rounds >= most or patch.empty or self.request.answer == "only":
            return ""
        await verify()
        if loop.limits.reached():
            return ""
        feedback = self._feedback(patch, said, self.sandbox.workspace, most)
        return "" if feedback is None else self._return_verdict(feedback, patch.tree, loop)

    def _feedback(self, patch: Patch, said: str, workspace: Workspace, most: int) -> Feedback | None:
        """Return what the model is told about the verdict; None if the change is verified, or cannot be tested better."""
        assert self.evidence is not None
        if self.is_verified or _is_untestable(self.evidence, said):
            return None
        rules = files_of_tests(workspace.store, workspace.base)
        only_tests = all(map(rules.is_test, patch.paths))
        return feedback_on(self.evidence, self.rounds + 1, most, only_tests=only_tests)

    def _return_verdict(self, feedback: Feedback, tree: TreeId, loop: Loop) -> str:
        """Note that a verdict on this tree goes back to the model; return the message."""
        self.rounds += 1
        self.returned_tree = tree
        self.named_red |= dict.fromkeys(feedback.tests, tree)
        self.session.write(events.Feedback.of(feedback, turn=loop.model.turn, round=self.rounds, tree=tree))
        return feedback.text

    @property
    def is_verified(self) -> bool:
        """Whether the tests say that the issue is fixed."""
        return self.evidence is not None and self.evidence.verdict == "verified"

    async def verify(self, runs: TreeRuns, baseline: BaselineRun, known: dict[str, Verification]) -> None:
        """Verify the patch, unless it is empty or has been verified. Raises SandboxError.

        Args:
            known: Cache of verifications, by tree id.
        """
        waits = self.outcome is not None and self.outcome.kind == "proposed"
        if self.patch is None or self.patch.empty or self.evidence is not None or waits:
            return
        assert self.workspace is not None
        workspace, patch = self.workspace, self.patch
        known_before: KnownBefore | None = baseline.partial
        # an accepted test is a test of the tree without the patch
        if self.loop is not None and self.loop.start_tree:
            workspace, known_before = Workspace(self.workspace.store, self.loop.start_tree), None
            patch = workspace.patch(self.patch.tree)
            if patch.empty:
                return
        key = " ".join([self.patch.tree, *sorted(self.pinned)])
        if key not in known:

            def note() -> None:
                if not baseline.done:
                    self.say("waiting for the result of the unchanged tree's tests")

            noted = asyncio.get_running_loop().call_later(NOTED_SECONDS, note)
            try:
                known[key] = await self._judged(workspace, patch, runs, known_before)
            finally:
                noted.cancel()
        evidence = known[key]
        weak = await asyncio.to_thread(
            weakened_tests, self.workspace, self.named_red, self.patch.tree, evidence
        )
        if weak and evidence.verdict == "verified":
            reason = f"tests that an earlier verdict named red are not as they were: {', '.join(weak)}"
            evidence = replace(evidence, verdict="unverified", reason=reason, weakened=tuple(weak))
        self.evidence = evidence
        by: Literal["gate", "end"] = "gate" if self.outcome is None else "end"
        session_events.log_verification(self.session, evidence, self.rounds + 1, by)

    async def verify_whole(self, runs: TreeRuns, baseline: BaselineRun) -> None:
        """Verify the whole patch for the certificate, if the verdict rests on an accepted test: a check can only repeat that.

        Raises SandboxError: A sandbox failed.
        """
        is_wanted = (
            self.request.certificate is not None and self.evidence is not None and self.accepted_test_files
        )
        if not is_wanted or self.patch is None or self.workspace is None:
            return
        self.certified = await self._judged(self.workspace, self.patch, runs, baseline.partial)

    async def _judged(
        self, workspace: Workspace, patch: Patch, runs: TreeRuns, known_before: KnownBefore | None
    ) -> Verification:
        settings = self.request.settings
        return await verify(
            workspace,
            patch,
            runs,
            settings.reruns,
            known_before,
            60 * settings.verify_minutes,
            self.request.issue.text,
            self.pinned,
        )

    @property
    def accepted_test_files(self) -> tuple[str, ...]:
        """The files of the test that the person accepted."""
        if self.workspace is None or self.loop is None or not self.loop.start_tree:
            return ()
        return tuple(self.workspace.patch(self.loop.start_tree).paths)

    def _first_messages(self, run_context: RunContext) -> list[dict[str, Any]]:
        issue, settings, endpoint = self.request.issue, self.request.settings, run_context.endpoint
        assert run_context.context is not None, "only a resumed session has none"
        assert self.sandbox is not None
        if issue.images and not endpoint.images and self.variation.number == 1:
            self.say(f"{endpoint.host} accepts no images: the issue's {len(issue.images)} are left out")
        return prompt.first_messages(
            run_context.context,
            issue,
            self.request.repository.head,
            run_context.dirty,
            images=endpoint.images,
            instructions=settings.instructions,
            hosts=settings.allow_net.hosts if settings.allow_net else (),
            network=not self.sandbox.machine.isolated,
            python=self.sandbox.python,
            not_importable=run_context.not_importable,
            suites=run_context.suites,
            submodules=run_context.submodules,
            checks=run_context.checks,
            hint=self.variation.hint,
            answer=self.request.answer,
            proposes=self.request.proposes,
        )

    def _new_loop(
        self,
        client: Client,
        sandbox: Sandbox,
        run_context: RunContext,
        messages: Conversation,
        on_delta: Callable[[Delta], None],
        baseline: BaselineRun,
    ) -> Loop:
        point = self.request.resume
        stall = point.stall if point is not None else StallDetector()
        training = self.request.settings.training
        tokens = (
            self.stack.enter_context(contextlib.closing(TokenLog(self.session.folder))) if training else None
        )
        tools = Toolset(sandbox, self.session.folder / CALLS, self.other_tools, baseline.result)
        model = Model(
            client,
            self.session,
            self.limits,
            messages,
            stall,
            tools.schemas,
            prices=run_context.prices,
            thinking=self.request.settings.thinking,
            sampling=SERVER_DEFAULTS if training else self.variation.sampling,
            on_delta=on_delta,
            tokens=tokens,
        )
        calls = Calls(sandbox, tools, self.session, deadline=self.limits.deadline)
        window = Window(run_context.endpoint.max_model_len)
        return Loop(
            model,
            calls,
            sandbox,
            self.session,
            self.limits,
            messages,
            stall,
            window,
            baseline=lambda: baseline.known,
            append_only=training,
            proposes=self.request.proposes,
            answer=self.request.answer,
        )


def _is_untestable(evidence: Verification, said: str) -> bool:
    """Return whether an unverified change cannot be tested better: its tests are pinned, or `said` says why none runs."""
    if evidence.verdict != "unverified":
        return False
    return evidence.rule == "pinned" or (bool(why_not_tested(said)) and not evidence.after.passed)

"""Run the loop: ask the model and run its calls, until it is done, stalled or at a limit.

The conversation only grows: each request repeats the messages of the last one and adds new ones. The one exception is a
summary when the context window is nearly full. Every call gets exactly one result. This module does not depend on a
particular model or sandbox.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from m3agent.agent.context.neutralise import harmless
from m3agent.agent.context.output import redact_text
from m3agent.agent.loop import completion_gate, prompt, turn_events
from m3agent.agent.loop.compaction import Window, calls_made
from m3agent.agent.loop.limits import RunLimits
from m3agent.agent.loop.model_step import Model, RepetitiveStream
from m3agent.agent.loop.resume import ResumePoint
from m3agent.agent.loop.tool_executor import Calls, PendingCall, broken_and_added
from m3agent.agent.session import events
from m3agent.agent.session.messages import FIRST, Conversation
from m3agent.agent.session.session import Session
from m3agent.agent.stall import StallDetector, StallVerdict, as_seen
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.serving.client.messages import Turn
from m3agent.serving.errors import ContextTooLong, DeadlineExceeded, ModelServerError
from m3agent.tools.test_report import TestReport
from m3agent.util.errors import M3AgentError

LAST_WORDS_TOKENS = 2000
LAST_WORDS_SECONDS = 120.0


@dataclass(frozen=True)
class Outcome:
    """Why the loop ended."""

    kind: Literal["done", "limit", "stalled", "proposed"]
    """`done` (the model said so, and the gate accepted it), `limit`, `stalled` or `proposed` (the person has to accept)."""
    reason: str
    """The reason, in one sentence."""
    text: str
    """The model's last answer."""


async def accept(_: str) -> str:
    """Accept every result without a message for the model."""
    return ""


@dataclass
class Loop:
    """The loop of one session."""

    model: Model
    calls: Calls
    sandbox: Sandbox
    session: Session
    limits: RunLimits
    messages: Conversation
    stall: StallDetector
    window: Window
    before_end: Callable[[str], Awaitable[str]] = accept
    """Called with the model's last answer when the gate accepts the result. It returns a message for the model, which
    then continues, or an empty text, which ends the loop."""
    baseline: Callable[[], TestReport | None] = lambda: None
    """Returns the complete result of the base tree's tests, or None as long as it is unknown."""
    asked: int = 0
    """How often in a row the gate has told the model what is missing, without a call in between that ran."""
    named_red_tree: str = ""
    """State of the work tree whose red tests the gate has named: once is enough, because the verdict follows."""
    heard: list[str] = field(default_factory=list)
    """What the person said and the model has not received yet."""
    user_message: str = ""
    """The user's message to the model in a resumed session."""
    accepted_answer: str | None = None
    """The answer that the gate accepted before an earlier process of this session ended; else None."""
    append_only: bool = False
    """Each request must begin with the last one and its answer, and be of the same form. So nothing is summarised, no
    last words are asked for, and a repetitive answer ends the session."""

    proposes: prompt.Proposes = ""
    """What the model proposes before it works. Until the person accepts it, the gate asks for nothing."""
    start_tree: str = ""
    """The tree from which the model's change counts; empty for the base tree."""
    answer: prompt.Answer = "no"
    """Whether an answer without a change is a result."""

    def hear(self, text: str) -> None:
        """Log what the person says. The model gets it with the next request."""
        self.heard.append(text)
        with contextlib.suppress(M3AgentError):  # if the log cannot be written, the next event fails as well
            self.session.write(events.PersonMessage(text=text))

    def _take_heard(self) -> None:
        """Tell the model what the person said."""
        if self.heard:
            self.asked = 0
            self._tell(*(prompt.SAID.format(harmless(text)) for text in self.heard))
            self.heard.clear()

    def resume_from(self, point: ResumePoint) -> None:
        """Take over the state from an earlier process of this session."""
        self.model.turn, self.user_message = point.turn, point.tell
        self.heard += point.unheard(self.messages)
        self.accepted_answer = point.accepted_answer
        self.calls.number, self.calls.tests = point.calls, point.tests

    @property
    def awaits_user(self) -> bool:
        """Whether the model's answer is the last message, so that a user message has to follow."""
        return bool(self.messages[-1]["role"] == "assistant")

    async def run(self, pending: Sequence[PendingCall] = ()) -> Outcome:
        """Run turns until there is an outcome.

        Args:
            pending: Calls without a result from an earlier process of this session. They run first.

        Raises SandboxError, ModelServerError, M3AgentError: The session ended early; the caller reports it.
        """
        if outcome := await self._go_on(pending):
            return outcome
        too_long = shortened = False
        while True:
            self._take_heard()
            if limit := self.limits.reached():
                return await self._at_limit(limit)
            try:
                if too_long or self.window.is_nearly_full(self.messages):
                    if self.append_only:
                        return Outcome("limit", "the context window is full", "")
                    await self._summarise()
                    self._take_heard()
                    too_long, shortened = False, True
                answer = await self.model.ask()
            except DeadlineExceeded:
                return await self._at_limit(f"{self.limits.minutes:g} minutes")
            except ContextTooLong as error:
                if shortened or not self.window.refused(error.limit, self.messages):
                    raise
                too_long = True
                continue
            except RepetitiveStream as chanting:
                note, stop = await self._heed(chanting.verdict)
                if stop is not None or self.append_only:
                    return Outcome("stalled", chanting.verdict.text, "")
                self._tell(note)
                continue
            shortened = False
            self.window.record_usage(answer.usage, len(self.messages))
            if outcome := await self._answered(answer):
                return outcome

    async def _go_on(self, pending: Sequence[PendingCall]) -> Outcome | None:
        """Do what an earlier process of the session left to do, and tell the model how the session continues."""
        if stop := await self._carry_out(pending):
            return Outcome("stalled", stop.text, "")
        if self.user_message:
            self._tell(self.user_message)
        elif self.heard:
            return None
        elif self.accepted_answer is not None:
            return await self._review(self.accepted_answer)
        elif self.awaits_user or prompt.asks_for_words(self.messages[-1]):
            self._tell(prompt.RESUMED)
        return None

    async def _answered(self, answer: Turn) -> Outcome | None:
        """Process an answer: run its calls, send the model a message, or return the outcome."""
        message = answer.message
        verdict = self.stall.answered(
            reasoning=message.reasoning, text=message.text, calls=len(message.calls), finish=answer.finish
        )
        note, stop = await self._heed(verdict)
        if message.calls:
            stop = await self._carry_out([PendingCall(call) for call in message.calls], note) or stop
        if stop is not None:
            return Outcome("stalled", stop.text, message.text)
        if message.calls:
            return None
        if answer.finish == "length":
            self._tell(prompt.CUT_OFF, note)
            return None
        if self.heard:
            return None
        tree = await self.sandbox.checkpoint()
        missing = self._missing(message.text, tree)
        if missing.is_accepted(self.asked):
            missing = completion_gate.Missing()
        self.session.write(
            events.Gate(turn=self.model.turn, missing=missing.text, asked=self.asked, cause=missing.cause)
        )
        if not missing.cause:
            return await self._review(message.text, note)
        self.asked += 1
        self.named_red_tree = tree if missing.cause == "red" else self.named_red_tree
        self._tell(missing.text, note)
        return None

    def _missing(self, said: str, tree: str) -> completion_gate.Missing:
        """Return what the completion gate tells the model."""
        if self.answer == "only" or (self.proposes and said.strip()):
            return completion_gate.Missing()
        tests, baseline = self.calls.tests, self.baseline()
        red = set() if tree == self.named_red_tree else tests.red_on(tree)
        broken, added = broken_and_added(red, baseline) if baseline is not None else ([], [])
        state = completion_gate.State(
            changed=tree != (self.start_tree or self.sandbox.workspace.base),
            may_answer=self.answer != "no",
            tested=tests.tree == tree,
            unclear=tests.why_unclear(tree),
            not_counted=tests.not_counted == tree,
            passing=len(baseline.passed) if baseline is not None else tests.passing,
            broken=broken,
            added=added,
        )
        return completion_gate.missing(said, state)

    async def _review(self, said: str, note: str = "") -> Outcome | None:
        """End the loop, unless the review has a message for the model. `said` is the model's last answer."""
        told = await self.before_end(said)
        if told:
            self._tell(told, note)
        elif not self.heard:
            return Outcome("done", "the model says it is done", said)
        return None

    async def _carry_out(self, calls: Sequence[PendingCall], note: str = "") -> StallVerdict | None:
        """Run a turn's calls in order; return the verdict that stops the loop, or None.

        Notes are put into a result. After a new user message, chat templates may drop earlier reasoning.
        """
        stop: StallVerdict | None = None
        notes = [note]
        for pending in calls:
            call, result = pending.call, pending.result
            known = result is not None
            if result is None:
                result = await self.calls.run(call, self.model.turn)
            elif pending.is_cut_off:
                number, tree = pending.started["call"], self.sandbox.tree
                self.session.write(
                    turn_events.call_finished(self.model.turn, number, call, result, "interrupted", 0.0, tree)
                )
            content = redact_text(result.content)
            if not known:
                self.asked = self.asked if result.is_refused else 0
                verdict = self.stall.see(as_seen(call, result, content, self.sandbox.tree))
                note, ends = await self._heed(verdict)
                notes.append(note)
                stop = ends or stop
            content += "".join(f"\n\n[note: {note}]" for note in filter(None, notes))
            self.messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
            notes = []
        return stop

    async def _heed(self, verdict: StallVerdict | None) -> tuple[str, StallVerdict | None]:
        """Log a verdict of the stall detector. Return the note for the model, and the verdict if it stops the loop."""
        if verdict is None:
            return "", None
        text = verdict.text
        if verdict.action == "force":
            text += f"\n\n{await self._where_it_stands()}"
        action = turn_events.ACTIONS[verdict.action]
        self.session.write(events.Stall.of(verdict, turn=self.model.turn, action=action, text=text))
        return ("", verdict) if verdict.action == "stop" else (text, None)

    async def _where_it_stands(self) -> str:
        diff = (await self.sandbox.patch()).text.decode(errors="replace")
        return prompt.where_it_stands(self.calls.tests.last, diff)

    async def _summarise(self) -> None:
        """Replace the conversation by the model's summary, except the first messages and the last steps.

        If the request does not fit into the context window, or the answer is empty or repetitive, a list of the calls
        replaces the summary.

        Raises ModelServerError: There was no answer for another reason.
        """
        before, kept = len(self.messages), self.window.kept_steps(self.messages)
        self._tell(prompt.SUMMARISE)
        own = ""
        with contextlib.suppress(ContextTooLong, RepetitiveStream):
            own = (await self.model.ask("none", self.window.summary_tokens)).message.text.strip()
        text = prompt.summary(
            own or calls_made(self.messages[FIRST : kept.start]), await self._where_it_stands()
        )
        self.session.write(
            events.ContextSummarised(
                turn=self.model.turn, messages=before, kept=len(kept), own_words=bool(own), text=text
            )
        )
        self.messages.summarise(text, kept)
        self.window.forget()
        self.model.forget_prompt()

    async def _at_limit(self, limit: str) -> Outcome:
        """Ask the model for a last summary, without calls, if the limits of tokens and cost leave room for one.

        The tools stay in the prompt, to keep its prefix equal.
        """
        reason = f"the limit of {limit} was reached"
        if self.append_only or self.limits.is_spent:
            return Outcome("limit", reason, "")
        self._tell(prompt.LIMIT_REACHED.format(limit=limit))
        try:
            answer = await self.model.ask("none", LAST_WORDS_TOKENS, time.monotonic() + LAST_WORDS_SECONDS)
        except (ModelServerError, RepetitiveStream):
            return Outcome("limit", reason, "")  # the summary is optional: the work counts
        return Outcome("limit", reason, answer.message.text)

    def _tell(self, *texts: str) -> None:
        self.messages.append({"role": "user", "content": "\n\n".join(filter(None, texts))})

"""What a model proposes before it works: a plan, or a red test that states the issue. A person accepts or corrects it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

from m3agent.agent.context.neutralise import harmless
from m3agent.agent.context.output import redact_text
from m3agent.agent.fix.request import FixRequest
from m3agent.agent.loop import prompt
from m3agent.agent.loop.loop import Loop, Outcome
from m3agent.agent.loop.resume import ResumePoint
from m3agent.agent.session import events
from m3agent.agent.verify.tree_runs import TreeRuns
from m3agent.tools.run_tests import Selection
from m3agent.tools.runners.suites import files_of_tests
from m3agent.tools.test_runner import first_error
from m3agent.util.counted import first_of

PROPOSALS: Mapping[str, str] = {"plan": "plan", "spec": "test"}
"""What a proposal is called."""
QUESTIONS: Mapping[str, str] = {
    "plan": "Enter accepts the plan, and the model goes on. A line says what to change. Ctrl-C leaves it for later",
    "spec": (
        "Enter accepts the test, and the model goes on. A line says what to change; until then the test stays in a new file. "
        "Ctrl-C leaves it for later"
    ),
}
"""What a person is asked about a proposal."""
MOST_RETURNED = 3
"""Most times in a row that a test which is not red goes back to the model."""


class Proposal:
    """The proposal of one session.

    Args:
        ask: Asks the person a question about a loop's work.
        runs: Runs tests in fresh sandboxes; None if nothing is to be proposed.
    """

    def __init__(
        self,
        loop: Loop,
        ask: Callable[[str, Loop], Awaitable[str | None]],
        request: FixRequest,
        runs: TreeRuns | None,
    ) -> None:
        self._loop = loop
        self._ask = ask
        self._runs = runs
        self._given: str | None = None
        """The answer that the person gave with the command that resumes the session."""
        self._has_person = request.ask is not None
        self._is_of_several = request.settings.attempts > 1
        self.test = ""
        """The base tree with the red test that the model wrote; empty without one."""
        self._returned = 0
        self.waiting: Outcome | None = None
        """The end of the session, if the person has to answer first."""

    def resume_from(self, point: ResumePoint) -> None:
        """Take over the state from an earlier process of this session."""
        if point.proposes == "":
            self._loop.proposes = ""
        self._loop.start_tree = point.spec_tree
        if point.answered and self._loop.awaits_user:  # logged, but not sent
            told = _told(point.started["proposes"], point.answered["text"])
            self._loop.user_message = prompt.TAKEN if self._is_of_several else told
        if point.waits and (point.tell or not self._has_person):
            self._given, self._loop.user_message = point.tell, ""

    async def review(self, text: str) -> str:
        """Return what the model is told about its proposal; empty if the person has to answer first.

        Raises SandboxError: A sandbox failed.
        """
        loop, kind = self._loop, self._loop.proposes
        assert kind != ""
        tree, red, problem = loop.sandbox.workspace.base, dict[str, str](), ""
        if kind == "plan":
            await loop.sandbox.rollback(tree)
        else:
            tree = await loop.sandbox.checkpoint()
            red, problem = await self._red_tests(tree)
        if problem and self._returned < MOST_RETURNED:
            self._returned += 1
            return problem
        if problem:
            self.waiting = Outcome(
                "stalled", f"the model wrote no test that states the issue: {problem}", text
            )
            return ""
        loop.session.write(events.Proposal(turn=loop.model.turn, kind=kind, text=text, tests=red, tree=tree))
        return await self._answered(kind, tree, text)

    async def _answered(self, kind: Literal["plan", "spec"], tree: str, text: str) -> str:
        loop, name = self._loop, PROPOSALS[kind]
        if self._is_of_several:
            loop.session.write(events.ProposalAnswered(loop.model.turn, accepted=True, text="", by="m3agent"))
            loop.proposes, self.test = "", tree
            return prompt.TAKEN
        answer, self._given = self._given, None
        if answer is None:
            answer = await self._ask(QUESTIONS[kind], loop)
        if answer is None:
            self.waiting = Outcome("proposed", f"the {name} waits until you accept it", text)
            return ""
        loop.session.write(events.ProposalAnswered(turn=loop.model.turn, accepted=not answer, text=answer))
        self._returned = 0
        if not answer:
            loop.proposes = ""
            loop.start_tree = tree if kind == "spec" else ""
        return _told(kind, answer)

    async def _red_tests(self, tree: str) -> tuple[dict[str, str], str]:
        """Run the tests that the model added, in a fresh sandbox.

        Returns the red ones, each with its error, and what is wrong with them; empty if nothing is.
        """
        workspace, runs = self._loop.sandbox.workspace, self._runs
        assert runs is not None
        paths = workspace.patch(tree).paths
        before, rules = workspace.entries(workspace.base), files_of_tests(workspace.store, workspace.base)
        if wrong := [path for path in paths if path in before or not rules.is_test(path)]:
            return {}, prompt.NOT_ONLY_TESTS.format(redact_text(first_of(wrong, 10)))
        if not paths:
            return {}, prompt.NOT_RED.format("nothing has changed")
        report = await runs.run(tree, "spec", Selection(targets=paths, only=paths), added=paths)
        red = {ident: "\n".join(first_error(report.errors.get(ident, ""))) for ident in sorted(report.red)}
        passed = f"{len(report.passed)} passed, none failed"
        return red, "" if red else prompt.NOT_RED.format(passed)


def _told(kind: Literal["plan", "spec"], answer: str) -> str:
    """Return what the model is told about the person's answer to its proposal."""
    return prompt.CORRECTED[kind].format(harmless(answer)) if answer else prompt.ACCEPTED[kind]

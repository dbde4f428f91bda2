"""Verify a patch: run the tests on the old and on the new tree, each in a fresh sandbox, and judge what they show.

A patch is verified if a test that was red on the old tree is green on the new tree, and if no rule speaks against it.
`m3agent.agent.verify.rules` has the rules, in order of precedence, and docs/fix.md their table. What they need to know is in
one `m3agent.agent.verify.evidence.Evidence`, which `m3agent.agent.verify.gathering` fills.

The check uses the tests of the old tree:

- It undoes the patch's changes to existing test files.
- It runs test files that the patch adds on both trees, in a process of their own: in one process with the old tests they
  could change what these show. A new conftest.py is left out: it could hide tests on both.
- It undoes changes to files that decide how tests run: pytest's configuration, Python's start-up files, and new modules
  that shadow modules of Python or pytest.

If no test is fixed or broken, the tests that the patch adds to or changes in existing files count. They must be red on the
old code and green on the new code. They must be green on the new code in any case.

If the repository has several test suites, only those run that the patch touches, and those that depend on them
(`m3agent.agent.verify.touched`). Results of the others count neither way.

A suite is large if it took longer on the base tree than verification may take. Then only the tests that execute the
change must run (`m3agent.agent.verify.scope`), and others run as long as there is time. A test without a result on the
new tree counts neither way if the time was over.

Tests that would decide the verdict run again. Flaky tests (`m3agent.agent.verify.flaky` has the rule) count neither way.
If the patch would be verified, there are further runs: inverted copies of the fixed tests must fail
(`m3agent.agent.verify.inverted_tests`), and tests near the change must stay green (`m3agent.agent.verify.stability`).
Nothing runs again that could not change the verdict.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from m3agent.agent.settings.settings import RERUNS
from m3agent.agent.verify.gathering import Work, gather
from m3agent.agent.verify.review import Finding
from m3agent.agent.verify.rules import Verdict, judge
from m3agent.agent.verify.scope import Scope
from m3agent.agent.verify.stability import Repeats
from m3agent.agent.verify.tree_runs import TEST_TIMEOUT, MadeRun, TreeRuns
from m3agent.sandbox.store.workspace import Patch, Workspace
from m3agent.tools.test_report import TestReport


@dataclass(frozen=True)
class Verification:
    """The verdict and its evidence.

    Attributes:
        verdict: Whether the patch is believed.
        reason: The reason for the verdict, in one sentence.
        fixed, broken, still_red, new_tests, flaky: Sorted test ids; `m3agent.agent.session.events.Verify` defines the sets.
        added_red: Sorted ids of red tests that the patch adds or changes.
        undone: Sorted paths of the patch whose changes do not count: existing test files, and files that decide how
            tests run.
        errors: Error text of each red test on the new code.
        scope: The tests that the verdict rests on, if the suite is large.
        left_out: Names of the suites that did not run, because the patch does not affect them.
        weakened: Tests that an earlier verdict of the session named red and that the patch weakened, each with how.
        own_only: Whether only tests that the patch adds or changes show the fix.
        tampering: Signs that the code under test tampered with the test runs, or that the fixed tests show nothing.
        review: Lines of the patch that a person must read before its verdict can be believed.
        rule: Name of the rule that decides.
        repeats: The additional runs of tests near the change, if the patch would be verified without them.
        runs: The test runs that the verdict rests on.
        before: The first test run on the old tree.
        after: The first test run on the new tree.
        old_tree: Git tree id of the old code with the patch's new test files.
        new_tree: Git tree id of the new code with the old tests.
        seconds: Wall time of the whole verification.
    """

    verdict: Verdict
    reason: str
    fixed: tuple[str, ...]
    broken: tuple[str, ...]
    still_red: tuple[str, ...]
    new_tests: tuple[str, ...]
    flaky: tuple[str, ...]
    before: TestReport
    after: TestReport
    old_tree: str
    new_tree: str
    seconds: float
    added_red: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
    weakened: tuple[str, ...] = ()
    scope: Scope | None = None
    left_out: tuple[str, ...] = ()
    own_only: bool = False
    tampering: tuple[str, ...] = ()
    review: tuple[Finding, ...] = ()
    rule: str = ""
    repeats: Repeats | None = None
    runs: tuple[MadeRun, ...] = ()


async def verify(
    workspace: Workspace,
    patch: Patch,
    runs: TreeRuns,
    reruns: int = RERUNS,
    baseline: Callable[[], Awaitable[TestReport | None]] | None = None,
    seconds: float = TEST_TIMEOUT,
    issue: str = "",
) -> Verification:
    """Run the tests on both trees and judge the patch. Each tree has its own sandbox, which the session never touched.

    Args:
        workspace: Where the patch was made.
        patch: The patch to verify.
        runs: Runs tests in fresh sandboxes.
        reruns: Most times that deciding tests run again; 0 turns the search for flaky tests off.
        baseline: Returns the result of the base tree's tests in the same kind of sandbox, complete or stopped because
            its time was over, or None. With it, only the test files that the patch adds or changes run on the old code.
        seconds: Time for the new tree's tests if those of the base tree took longer.
        issue: Text of the issue. A red test that it is about must turn green.

    Raises:
        SandboxError: A sandbox failed, so nothing is known about the patch.
    """
    started = time.monotonic()
    evidence = await gather(Work(workspace, patch, runs, reruns, baseline, seconds, issue))
    judgement = judge(evidence)
    return Verification(
        judgement.verdict,
        judgement.reason,
        fixed=tuple(sorted(evidence.fixed)),
        broken=tuple(sorted(evidence.broken)),
        still_red=tuple(sorted(evidence.changes.still_red)),
        new_tests=tuple(sorted(evidence.new_tests)),
        flaky=tuple(sorted(evidence.not_counted)),
        before=evidence.before,
        after=evidence.after,
        old_tree=evidence.old_tree,
        new_tree=evidence.new_tree,
        seconds=round(time.monotonic() - started, 3),
        added_red=tuple(sorted(evidence.added_red)),
        undone=evidence.undone,
        errors=evidence.errors,
        scope=evidence.scope,
        left_out=evidence.left_out,
        own_only=evidence.own_only,
        tampering=(*evidence.tampering, *evidence.worthless),
        review=(*evidence.findings, *evidence.similar),
        rule=judgement.rule,
        repeats=evidence.repeats,
        runs=evidence.runs,
    )

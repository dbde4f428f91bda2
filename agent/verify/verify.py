"""Verify a patch: run the tests on the old and on the new tree, each in a fresh sandbox, and judge what they show.

A patch is verified if a test that was red on the old tree is green on the new tree, and no rule speaks against it.
`rules` has the rules, in order of precedence; docs/fix.md shows them as a table. What they need to know is in one `evidence`,
which `gathering` fills. The check uses the tests of the old tree:

- It undoes the patch's changes to existing test files, unless they only add tests.
- It runs test files that the patch adds on both trees, in a process of their own: in one process with the old tests they
  could change what these show. A new conftest.py is left out: it could hide tests on both.
- It undoes changes to files that decide how tests run: pytest's configuration, Python's start-up files, and new modules
  that shadow modules of Python or pytest.

The tests that the patch adds to or changes in existing files must be green on the new code. If no other test shows a fix, they
count. If there are several test suites, only those run that the patch touches, and those that depend on them (`touched`). Of a
large suite, only the tests that execute the change must run (`scope`), and others as long as there is time.

Tests that would decide the verdict run again. Flaky tests (`flaky` has the rule) count neither way. If the patch would be
verified, inverted copies of the fixed tests must fail (`inverted_tests`), and tests near the change must stay green in further
runs (`pair`). Nothing runs again that could not change the verdict.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from m3agent.agent.checks.run import CheckResult
from m3agent.agent.settings.settings import RERUNS
from m3agent.agent.verify.gathering import Work, gather
from m3agent.agent.verify.pair import NO_REPEATS, Repeats
from m3agent.agent.verify.review import Finding
from m3agent.agent.verify.rules import Verdict, judge
from m3agent.agent.verify.scope import Scope
from m3agent.agent.verify.tree_runs import TEST_TIMEOUT, MadeRun, TreeRuns
from m3agent.sandbox.store.workspace import Patch, Workspace
from m3agent.tools.test_report import TestReport


@dataclass(frozen=True)
class Verification:
    """The verdict and its evidence. Ids and paths are sorted.

    The fields that have no sentence here are those of `Evidence`.
    """

    verdict: Verdict
    reason: str
    """The reason for the verdict, in one sentence."""
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
    """Wall time of the whole verification."""
    added_red: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
    pinned: tuple[str, ...] = ()
    """Existing tests that check the behaviour which the issue changes, as the model or `--pinned` named them."""
    weakened: tuple[str, ...] = ()
    """Tests that the patch deletes, skips or weakens, each with how: those of the base tree, and those that an earlier verdict of
    the session named red."""
    scope: Scope | None = None
    left_out: tuple[str, ...] = ()
    own_only: bool = False
    tampering: tuple[str, ...] = ()
    """Signs of tampering, and reasons why the fixed tests show nothing."""
    review: tuple[Finding, ...] = ()
    checks: tuple[CheckResult, ...] = ()
    rule: str = ""
    """Name of the rule that decides."""
    repeats: Repeats = NO_REPEATS
    runs: tuple[MadeRun, ...] = ()


async def verify(
    workspace: Workspace,
    patch: Patch,
    runs: TreeRuns,
    reruns: int = RERUNS,
    baseline: Callable[[], Awaitable[TestReport | None]] | None = None,
    seconds: float = TEST_TIMEOUT,
    issue: str = "",
    pinned: Collection[str] = (),
) -> Verification:
    """Run the tests on both trees and judge the patch. Each tree has its own sandbox, which the session never touched.

    Args:
        reruns: Most times that deciding tests run again; 0 turns the search for flaky tests off.
        baseline: Returns the result of the base tree's tests in the same kind of sandbox, complete or stopped because
            its time was over, or None. With it, only the test files that the patch adds or changes run on the old code.
        seconds: Time for the new tree's tests if those of the base tree took longer.
        issue: Text of the issue. A red test that it is about must turn green.
        pinned: Ids of tests that state what the issue changes, as somebody says. If the patch breaks them, it is unverified.

    Raises SandboxError: A sandbox failed, so nothing is known about the patch.
    """
    started = time.monotonic()
    evidence = await gather(Work(workspace, patch, runs, reruns, baseline, seconds, issue, frozenset(pinned)))
    judgement = judge(evidence)
    others: dict[str, Any] = {
        "verdict": judgement.verdict,
        "reason": judgement.reason,
        "rule": judgement.rule,
        "seconds": round(time.monotonic() - started, 3),
        "weakened": evidence.lessened,
        "tampering": (*evidence.tampering, *evidence.worthless),
    }
    names = {each.name for each in fields(Verification)} - others.keys()
    values: dict[str, Any] = {name: getattr(evidence, name) for name in names}
    sets = {name: value for name, value in values.items() if isinstance(value, set | frozenset)}
    values |= {name: tuple(sorted(value)) for name, value in sets.items()}
    return Verification(**values, **others)

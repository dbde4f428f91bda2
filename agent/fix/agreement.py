"""Choose among attempts by execution: the test that each one wrote first runs on the patch of every other one.

As in CodeT (Chen et al., 2022, arXiv:2207.10397), patches agree if they pass the same tests. A patch scores by how many patches agree
with it, times how many tests they pass.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from m3agent.agent.fix.ranking import VERDICTS
from m3agent.agent.verify.tree_runs import TreeRuns
from m3agent.sandbox.store.workspace import TreeId, Workspace
from m3agent.tools.run_tests import Selection

NAME = "attempt-{}-with-test-{}"


@dataclass(frozen=True)
class Rival:
    """An attempt with a patch and a test of its own."""

    number: int
    verdict: str
    workspace: Workspace
    tree: TreeId
    """Its patched tree."""
    test: TreeId
    """The base tree with its own red test."""
    runs: Callable[[], TreeRuns]
    """Returns what runs tests of its trees."""


async def passed_tests(rivals: Sequence[Rival], seconds: float) -> dict[int, frozenset[int]]:
    """Return, for each attempt with the best verdict, the numbers of those among them whose tests its patch passes.

    Empty if there are not two of them.

    Args:
        seconds: Time for all runs together.

    Raises:
        SandboxError: A sandbox failed.
        TimeoutError: The time is over.
    """
    place = min((VERDICTS.index(rival.verdict) for rival in rivals), default=0)
    best = [rival for rival in rivals if rival.verdict == VERDICTS[place]]
    passed: dict[int, frozenset[int]] = {}
    async with asyncio.timeout(seconds):
        for rival in best if len(best) > 1 else ():
            runs = rival.runs()
            passed[rival.number] = frozenset(
                [other.number for other in best if await _passes(rival, other, runs)]
            )
    return passed


def scores(passed: Mapping[int, frozenset[int]]) -> dict[int, int]:
    """Return the score of each attempt, from the tests that its patch passes."""
    agreeing = Counter(passed.values())
    return {number: agreeing[tests] * len(tests) for number, tests in passed.items()}


async def _passes(rival: Rival, other: Rival, runs: TreeRuns) -> bool:
    """Return whether a patch passes the test of another attempt."""
    entries, store = other.workspace.entries(other.test), other.workspace.store
    paths = other.workspace.patch(other.test).paths
    files = [(path, entries[path].mode, store.get_blob(entries[path].sha)) for path in paths]
    tree = rival.workspace.commit_changes(rival.tree, files, [])
    name = NAME.format(rival.number, other.number)
    report = await runs.run(tree, name, Selection(targets=paths, only=paths), added=paths)
    return bool(report.passed) and not report.red

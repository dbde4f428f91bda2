"""Measure the time from the model's "done" to the verdict, as a ratio to one run of the whole suite.

    python -m benchmarks.verdict CLONE:COMMIT [CLONE:COMMIT ...] [--rounds 3] [--json FILE]

Each CLONE is a local clone, bare or not. The patch is the commit; the base is its parent, and the issue is the commit's
message. A repository is left out if its base tree's tests do not run to their end. Every round runs in the same
minute, one after the other, in fresh sandboxes with the repository's environment:

    suite: one run of all tests on the commit.
    known: a verification with the baseline's result, without reruns.
    both: a verification without a baseline, without reruns: both trees run, as before 2026-11-23.
    reruns: what the reruns of tests in doubt take in addition to `known`.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.common import name_of, parser_of, say, write_json
from benchmarks.mining import open_history

from m3agent.agent.settings.settings import RERUNS
from m3agent.agent.verify.tree_runs import TreeRuns
from m3agent.agent.verify.verify import Verification, verify
from m3agent.sandbox.backends.factory import SandboxSpec, choose_backend, new_sandbox
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.backends.sandboxes_ahead import SandboxesAhead
from m3agent.sandbox.images.environment import find_environment
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.test_report import TestReport

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """One line of the table: medians of all rounds, in seconds.

    tests: tests with a result. baseline: the run of the base tree, which a fix makes while the model works.
    """

    repository: str
    commit: str
    tests: int
    verdict: str
    environment: float
    baseline: float
    suite: float
    known: float
    both: float
    reruns: float

    @property
    def ratio(self) -> float:
        """Time from "done" to the verdict without reruns, as a multiple of one run of the suite."""
        return self.known / self.suite


async def measure(store: TreeStore, name: str, commit: str, rounds: int, scratch: Path) -> Row | None:
    """Measure one patch; None if it is left out."""
    tree, base = (
        store.git("rev-parse", "--verify", f"{which}^{{tree}}").decode().strip()
        for which in (commit, f"{commit}~1")
    )
    workspace = Workspace(store, base)
    patch = workspace.patch(tree)
    started = time.monotonic()
    image = await find_environment(workspace, scratch / "state", say)
    environment = time.monotonic() - started
    spec = SandboxSpec("docker" if image else None, image)
    backend = await choose_backend(spec, say)

    def fresh(of: Workspace) -> Sandbox:
        return new_sandbox(backend, spec, of, say)

    def new_runs() -> TreeRuns:
        return TreeRuns(SandboxesAhead(store, fresh), scratch)  # without the results of earlier runs

    runs = new_runs()
    baseline = await runs.run(base, "baseline")
    if not baseline.complete:
        say(f"{name} is left out: the tests of its base tree do not run to their end")
        return None
    issue = store.git("log", "-1", "--format=%B", commit).decode(errors="replace")

    async def verified(reruns: int, *, with_baseline: bool) -> Verification:
        async def known() -> TestReport | None:
            return baseline

        return await verify(
            workspace, patch, new_runs(), reruns, known if with_baseline else None, issue=issue
        )

    taken: dict[str, list[float]] = {"suite": [], "known": [], "both": [], "reruns": []}
    verdict = ""
    for _ in range(rounds):
        _, seconds = await timed(lambda: runs.run(tree, "suite"))
        taken["suite"].append(seconds)
        _, first = await timed(lambda: verified(0, with_baseline=True))
        taken["known"].append(first)
        _, seconds = await timed(lambda: verified(0, with_baseline=False))
        taken["both"].append(seconds)
        found, seconds = await timed(lambda: verified(RERUNS, with_baseline=True))
        taken["reruns"].append(seconds - first)
        verdict = found.verdict
        if verdict != "verified":
            say(
                f"{name}: {verdict}: {found.reason}: {[*found.broken, *found.added_red, *found.still_red][:5]}"
            )
    middle = {what: round(statistics.median(values), 1) for what, values in taken.items()}
    return Row(
        name, commit[:12], baseline.ran, verdict, round(environment, 1), round(baseline.seconds, 1), **middle
    )


async def timed(run: Callable[[], Awaitable[T]]) -> tuple[T, float]:
    """Return the result of a call and its wall time in seconds."""
    started = time.monotonic()
    result = await run()
    return result, time.monotonic() - started


def table(rows: list[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| repository | tests | verdict | baseline | suite | known | known / suite | both | reruns |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row.repository} {row.commit} | {row.tests:,} | {row.verdict} | {row.baseline} | {row.suite} | "
            f"{row.known} | {row.ratio:.2f} | {row.both} | {row.reruns} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure the patches of the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("patches", nargs="+", metavar="CLONE:COMMIT")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rows: list[Row] = []
    for given in options.patches:
        clone, _, commit = given.rpartition(":")
        folder = Path(clone)
        with tempfile.TemporaryDirectory(prefix="m3agent-bench-") as name:
            store, _ = open_history(folder, Path(name) / "history.git")
            row = asyncio.run(measure(store, name_of(folder), commit, options.rounds, Path(name)))
        if row is not None:
            rows.append(row)
            say(table([row]).splitlines()[-1])
    print(table(rows))
    write_json(options.json, rows)


if __name__ == "__main__":
    main()

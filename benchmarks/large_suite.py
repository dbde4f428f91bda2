"""Measure the verification of patches to a repository whose tests take longer than verification may take.

    python -m benchmarks.large_suite CLONE BASE [COMMIT ...] [--verify-minutes 5] [--baseline-minutes 60]
                                     [--keep FILE] [--python 3.13]

CLONE is a local clone, bare or not. The tests of BASE run once, as a fix runs them while the model works; --keep keeps their
result in a file and reads it the next time. Each COMMIT is a patch to BASE: the difference between the two trees. One line
of the table is one patch: the verdict, the time from "done" to the verdict with all reruns, and what the verdict rests on.
--python chooses the Python of the environment's base image; recording is much slower before 3.12, and the default is 3.11.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import threading
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from benchmarks.common import parser_of, say
from benchmarks.mining import open_history
from pydantic import TypeAdapter

from m3agent.agent.fix.compared_runs import RECORD_AFTER
from m3agent.agent.settings.settings import RERUNS
from m3agent.agent.verify.tree_runs import TEST_TIMEOUT, TreeRuns
from m3agent.agent.verify.verify import verify
from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.backends.factory import SandboxSpec, choose_backend, new_sandbox
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.backends.sandboxes_ahead import SandboxesAhead
from m3agent.sandbox.images.debian import base_image
from m3agent.sandbox.images.environment import find_environment
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.execution_map import Recording
from m3agent.tools.test_report import TestReport

REPORT = TypeAdapter(TestReport)


async def measure(
    store: TreeStore, base: str, commits: list[str], options: argparse.Namespace, scratch: Path
) -> None:
    """Print one line for the base and one for each patch."""

    def tree_of(commit: str) -> str:
        return store.git("rev-parse", "--verify", f"{commit}^{{tree}}").decode().strip()

    workspace = Workspace(store, tree_of(base))
    state = scratch / "state"
    below = None if options.python is None else base_with(options.python, state)
    image = await find_environment(workspace, state, say, base=below)
    spec = SandboxSpec("docker" if image else None, image)
    backend = await choose_backend(spec, say)
    seconds = 60 * options.verify_minutes

    def fresh(of: Workspace) -> Sandbox:
        return new_sandbox(backend, spec, of, say)

    def runs() -> TreeRuns:
        return TreeRuns(SandboxesAhead(store, fresh), scratch, max(TEST_TIMEOUT, seconds))

    if options.keep is not None and options.keep.exists():
        known = REPORT.validate_json(options.keep.read_bytes())
    else:
        recording = Recording(RECORD_AFTER * seconds, seconds)
        known = await runs().run_recorded(workspace.base, 60 * options.baseline_minutes, recording)
        if options.keep is not None:
            options.keep.write_text(json.dumps(asdict(known)))
    recorded = 0 if known.executed is None else len(known.executed.executed)
    print(
        f"baseline: {known.ran:,} tests in {known.seconds:,.0f} s, {len(known.red)} of them red, {recorded:,} recorded"
        + ("" if known.complete else "; not all tests had time")
    )
    print("| patch | verdict | seconds | fixed | broken | scope |\n|---|---|---|---|---|---|")

    async def baseline() -> TestReport:
        return known

    for commit in commits:
        started = time.monotonic()
        patch = workspace.patch(tree_of(commit))
        message = store.git("log", "-1", "--format=%B", commit).decode()  # stands for the issue
        found = await verify(workspace, patch, runs(), RERUNS, baseline, seconds, message)
        took = time.monotonic() - started
        scope = "all tests" if found.scope is None else found.scope.sentence()
        print(
            f"| {commit[:12]} | {found.verdict} | {took:.0f} | {len(found.fixed)} | {len(found.broken)} | {scope} |",
            flush=True,
        )
        say(f"{commit[:12]}: {found.reason}: {[*found.broken, *found.still_red][:5]}")


def base_with(python: str, state: Path) -> str:
    """Return the name of a base image with a version of Python; building it takes minutes."""
    with closing(connect()) as api:
        return base_image(api, python, state=state, say=say, stop=threading.Event()).image.name


def main() -> None:
    """Measure the patches of the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("clone", type=Path)
    parser.add_argument("base")
    parser.add_argument("commits", nargs="*", metavar="COMMIT")
    parser.add_argument("--verify-minutes", type=float, default=5.0)
    parser.add_argument("--baseline-minutes", type=float, default=60.0)
    parser.add_argument("--keep", type=Path, metavar="FILE")
    parser.add_argument("--python", metavar="VERSION")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="m3agent-bench-") as name:
        store, _ = open_history(options.clone, Path(name) / "history.git")
        asyncio.run(measure(store, options.base, options.commits, options, Path(name)))


if __name__ == "__main__":
    main()

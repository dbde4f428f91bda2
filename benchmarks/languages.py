"""Verify upstream fixes of repositories in several languages, whole and without their code.

    python benchmarks/languages.py CLONE:BASE:FIX [CLONE:BASE:FIX ...] [--sandbox docker|bwrap]

CLONE is a local clone, bare or not. The patch is the difference between two of its commits. One line is one verification:
first of the whole patch, then of its tests alone, which must not be verified.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(
    str(Path(__file__).resolve().parent.parent)
)  # makes the other modules importable when this runs as a file

from benchmarks.common import say
from benchmarks.mining import open_history

from m3agent.agent.fix.sandbox_setup import with_environment
from m3agent.agent.settings.settings import Settings
from m3agent.agent.verify.tree_runs import TreeRuns
from m3agent.agent.verify.verify import verify
from m3agent.sandbox.backends.factory import Backend, SandboxSpec, choose_backend, new_sandbox
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.runners.suites import described, files_of_tests, suites_of


async def measure(
    store: TreeStore, name: str, base: str, fix: str, backend: Backend | None, scratch: Path
) -> None:
    """Print a line for the whole patch and one for its tests alone."""
    old, new = (
        store.git("rev-parse", "--verify", f"{commit}^{{tree}}").decode().strip() for commit in (base, fix)
    )
    workspace = Workspace(store, old)
    suites = suites_of(store, old)
    say(f"{name}: {described(suites)}")
    asked = SandboxSpec(backend)
    chosen = await choose_backend(asked, say)
    spec = await with_environment(asked, chosen, workspace, Settings(), scratch / "state", say)

    def fresh(of: Workspace) -> Sandbox:
        return new_sandbox(chosen, spec, of, say)

    runs = TreeRuns(store, fresh, scratch, suites=suites)
    files, entries = files_of_tests(store, old), workspace.entries(new)
    kept = [entry for path, entry in workspace.entries(old).items() if not files.is_test(path)]
    kept += [entry for path, entry in entries.items() if files.is_test(path)]
    for what, tree in (("whole", new), ("tests alone", store.write_tree(kept))):
        started = time.monotonic()
        found = await verify(workspace, workspace.patch(tree), runs)
        print(
            f"| {name} {fix[:12]} | {what} | {found.verdict} | {found.after.ran:,} | {len(found.fixed)} | "
            f"{time.monotonic() - started:.1f} | {found.reason} |",
            flush=True,
        )
        say(f"  fixed {found.fixed[:3]}, broken {found.broken[:3]}, still red {found.still_red[:3]}")


def main() -> None:
    """Measure the patches of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="+", metavar="CLONE:BASE:FIX")
    parser.add_argument("--sandbox", choices=["docker", "bwrap"])
    options = parser.parse_args()
    print("| patch | part | verdict | tests | fixed | seconds | reason |\n|---|---|---|---|---|---|---|")
    for case in options.cases:
        clone, base, fix = case.rsplit(":", 2)
        with tempfile.TemporaryDirectory(prefix="m3agent-bench-") as name:
            store, _ = open_history(Path(clone), Path(name) / "history.git")
            asyncio.run(measure(store, Path(clone).name, base, fix, options.sandbox, Path(name)))


if __name__ == "__main__":
    main()

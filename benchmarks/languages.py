"""Verify upstream fixes of repositories in several languages, whole and without a part.

    python -m benchmarks.languages CLONE:BASE:FIX [CLONE:BASE:FIX ...] [--sandbox docker|bwrap]

CLONE is a local clone, bare or not. The base is the commit BASE with the test files of FIX, and the patch is the rest of the
difference between the two. One line is one verification: first of the whole patch, then of the patch without each of its
files, or without any change if it has only one file. Without the file that fixes the issue, it must not be verified.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from benchmarks.common import name_of, parser_of, say
from benchmarks.mining import open_history

from m3agent.agent.fix.sandbox_setup import with_environment
from m3agent.agent.settings.settings import Settings
from m3agent.agent.verify.tree_runs import TreeRuns
from m3agent.agent.verify.verify import verify
from m3agent.sandbox.backends.factory import Backend, SandboxSpec, choose_backend, new_sandbox
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.backends.sandboxes_ahead import SandboxesAhead
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.runners.suites import described, files_of_tests, suites_of


async def measure(
    store: TreeStore, name: str, base: str, fix: str, backend: Backend | None, scratch: Path
) -> None:
    """Print a line for the whole patch and one for each part that is left out."""
    old, new = (
        {
            entry.path: entry
            for entry in store.list_tree(store.git("rev-parse", f"{commit}^{{tree}}").decode().strip())
        }
        for commit in (base, fix)
    )
    tree = store.write_tree(old.values())
    suites, files = suites_of(store, tree), files_of_tests(store, tree)
    start = {path: entry for path, entry in old.items() if not files.is_test(path)}
    start |= {path: entry for path, entry in new.items() if files.is_test(path)}
    workspace = Workspace(store, store.write_tree(start.values()))
    say(f"{name}: {described(suites)}")
    asked = SandboxSpec(backend)
    chosen = await choose_backend(asked, say)
    spec = await with_environment(asked, chosen, workspace, Settings(), scratch / "state", say)

    def fresh(of: Workspace) -> Sandbox:
        return new_sandbox(chosen, spec, of, say)

    runs = TreeRuns(SandboxesAhead(store, fresh), scratch, suites=suites)
    changed = sorted(path for path in {*start, *new} if start.get(path) != new.get(path))
    parts = {"whole": new, "no change": start} if len(changed) == 1 else {"whole": new}
    for path in changed if len(changed) > 1 else ():
        parts[f"without {path}"] = {each: entry for each, entry in new.items() if each != path}
        if path in start:
            parts[f"without {path}"][path] = start[path]
    for what, entries in parts.items():
        started = time.monotonic()
        found = await verify(workspace, workspace.patch(store.write_tree(entries.values())), runs)
        print(
            f"| {name} {fix[:12]} | {what} | {found.verdict} | {found.after.ran:,} | {len(found.fixed)} | "
            f"{time.monotonic() - started:.1f} | {found.reason} |",
            flush=True,
        )
        say(f"  fixed {found.fixed[:3]}, broken {found.broken[:3]}, still red {found.still_red[:3]}")


def main() -> None:
    """Measure the patches of the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("cases", nargs="+", metavar="CLONE:BASE:FIX")
    parser.add_argument("--sandbox", choices=["docker", "bwrap"])
    options = parser.parse_args()
    print("| patch | part | verdict | tests | fixed | seconds | reason |\n|---|---|---|---|---|---|---|")
    for case in options.cases:
        clone, base, fix = case.rsplit(":", 2)
        with tempfile.TemporaryDirectory(prefix="m3agent-bench-") as name:
            store, _ = open_history(Path(clone), Path(name) / "history.git")
            asyncio.run(measure(store, name_of(Path(clone)), base, fix, options.sandbox, Path(name)))


if __name__ == "__main__":
    main()

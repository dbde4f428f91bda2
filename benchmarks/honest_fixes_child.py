"""Verify one repair with the m3agent of the current folder, for `honest_fixes.py`.

Standard input is one line of JSON: "clone", "parent", "commit" and "path" of the repair, and "image" (or null). The base is
the parent with the commit's tests. The patch is the commit's change of the file "path".
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path.cwd()))  # the benchmarks of the same checkout as m3agent

from benchmarks.common import say
from benchmarks.mined import with_tests_of
from benchmarks.mining import open_history

from m3agent.agent.fix.compared_runs import fresh_runs
from m3agent.agent.settings.settings import Settings
from m3agent.agent.verify.verify import Verification, verify
from m3agent.sandbox.backends.factory import SandboxSpec, choose_backend, new_sandbox
from m3agent.sandbox.store.workspace import Workspace


async def verified(given: dict[str, Any], scratch: Path) -> Verification:
    """Return what verification says about the repair."""
    store, _ = open_history(Path(given["clone"]), scratch / "history.git")
    base = with_tests_of(store, given["parent"], given["commit"])
    workspace = Workspace(store, base)
    patch = workspace.patch(with_tests_of(store, given["parent"], given["commit"], given["path"]))
    spec = SandboxSpec("docker" if given["image"] else None, given["image"])
    backend = await choose_backend(spec, say)
    # Older versions have this function too.
    runs = fresh_runs(workspace, lambda of: new_sandbox(backend, spec, of, say), Settings(), scratch)
    return await verify(workspace, patch, runs)


def main() -> None:
    """Print the verdict, its reason, its seconds, and the tests and seconds of the first run as JSON."""
    with tempfile.TemporaryDirectory(prefix="m3agent-bench-") as name:
        found = asyncio.run(verified(json.loads(sys.stdin.readline()), Path(name)))
    print(
        json.dumps(
            {
                "verdict": found.verdict,
                "reason": found.reason,
                "seconds": found.seconds,
                "tests": found.before.ran,
                "suite": round(found.before.seconds, 2),
            }
        )
    )


if __name__ == "__main__":
    main()

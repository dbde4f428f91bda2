"""Fix every program of a QuixBugs-like folder with the embedded engine, and score the patches with the original tests.

    python -m benchmarks.quixbugs FOLDER [--only NAME ...] [--seconds 120] [--json FILE]

FOLDER holds `programs/<name>/` with `<name>.py`, its tests and `ISSUE.md`. Each program is copied into a new git
repository. A patch counts if `m3agent fix` prints it in time and the patched program passes the original tests. The
patch's changes of test files are ignored. `gold/` is never read.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import commit_all, git, run_fix, run_tests, write_json

from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.runners.python import is_test_file

DATA = (".json", ".txt", ".md")


def files_of(folder: Path) -> list[str]:
    return sorted(
        str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and ".git" not in p.parts
    )


def passes(program: Path, patch: bytes, scratch: Path) -> tuple[bool, str]:
    """Return whether the patched program passes its original tests, and the reason."""
    fresh = scratch / "fresh"
    shutil.copytree(program, fresh)
    git(fresh, "init", "-q")
    applied = git(fresh, "apply", "--whitespace=nowarn", "-", stdin=patch)
    if applied.returncode:
        return False, "the patch does not apply"
    for name in files_of(program):
        if is_test_file(name) or name.endswith(DATA):
            shutil.copy2(program / name, fresh / name)
    shutil.rmtree(fresh / ".git")
    workspace = Workspace.from_folder(TreeStore(scratch / "trees.git"), fresh, files_of(fresh))
    (report,) = run_tests(workspace, seconds=120)
    return bool(report.passed) and not report.red, f"{len(report.passed)} passed, {len(report.red)} red"


def attempt(program: Path, seconds: float) -> dict[str, Any]:
    """Fix one program, and score the patch."""
    with tempfile.TemporaryDirectory(prefix="m3agent-bench-") as name:
        scratch = Path(name)
        repo = scratch / "repo"
        shutil.copytree(program, repo)
        commit_all(repo, "program")
        fixed = run_fix(repo / "ISSUE.md", repo, seconds)
        resolved, why = passes(program, fixed.patch, scratch) if fixed.patch else (False, fixed.said)
        return {
            "name": program.name,
            "resolved": resolved,
            "exit": fixed.exit,
            "seconds": fixed.seconds,
            "why": why,
            "patch": fixed.patch.decode(errors="replace"),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    rows = []
    for program in sorted((options.folder / "programs").iterdir()):
        if options.only and program.name not in options.only:
            continue
        row = attempt(program, options.seconds)
        rows.append(row)
        verdict = "resolved" if row["resolved"] else "-"
        print(
            f"{row['name']:<28} {verdict:<9} {row['seconds']:6.1f} s  exit {row['exit']:<3}  {row['why'][:90]}",
            flush=True,
        )
    print(f"{sum(row['resolved'] for row in rows)} of {len(rows)} resolved")
    write_json(options.json, rows)


if __name__ == "__main__":
    main()

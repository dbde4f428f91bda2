"""Fix every program of a QuixBugs-like folder with the embedded engine and score the patches with pristine tests.

    python benchmarks/quixbugs.py FOLDER [--only NAME ...] [--seconds 120] [--json FILE]

FOLDER holds `programs/<name>/` with `<name>.py`, its tests and `ISSUE.md`; each is copied into a git repository of its
own. A patch counts if `m3agent fix` prints it within the time and the program it makes passes the tests as they were;
only files that are not tests are taken from it. `gold/` is never read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from m3agent.agent.verify import is_test_file
from m3agent.sandbox.git import TreeStore
from m3agent.sandbox.open import SandboxSpec, choose_backend, new_sandbox
from m3agent.sandbox.workspace import Workspace
from m3agent.tools.test_runner import run_in_sandbox

DATA = (".json", ".txt", ".md")


def git(folder: Path, *args: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    identity = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
    return subprocess.run(
        ["git", *identity, *args], cwd=folder, input=stdin, capture_output=True, check=False
    )


def files_of(folder: Path) -> list[str]:
    return sorted(
        str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and ".git" not in p.parts
    )


async def passes(program: Path, patch: bytes, scratch: Path) -> tuple[bool, str]:
    """Whether the patched program passes the tests it came with."""
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
    spec = SandboxSpec()
    async with new_sandbox(
        await choose_backend(spec, lambda _: None), spec, workspace, lambda _: None
    ) as sandbox:
        report = await run_in_sandbox(sandbox, ".", timeout=120)
    return bool(report.passed) and not report.red, f"{len(report.passed)} passed, {len(report.red)} red"


def attempt(program: Path, seconds: float) -> dict[str, Any]:
    """One program: fix it, then score the patch."""
    with tempfile.TemporaryDirectory(prefix="m3agent-bench-") as name:
        scratch = Path(name)
        repo = scratch / "repo"
        shutil.copytree(program, repo)
        git(repo, "init", "-q")
        git(repo, "add", "-A")
        git(repo, "commit", "-q", "-m", "program")
        command = [
            sys.executable,
            "-m",
            "m3agent.agent.cli",
            "fix",
            str(repo / "ISSUE.md"),
            "--repo",
            str(repo),
        ]
        started = time.monotonic()
        try:
            done = subprocess.run(
                [*command, "--engine", "embedded"], capture_output=True, check=False, timeout=seconds
            )
            patch, status, said = done.stdout, done.returncode, done.stderr.decode(errors="replace")
        except subprocess.TimeoutExpired as late:
            patch, status, said = b"", 124, (late.stderr or b"").decode(errors="replace")
        took = time.monotonic() - started
        resolved, why = False, said.strip().splitlines()[-1] if said.strip() else "nothing said"
        if patch:
            resolved, why = asyncio.run(passes(program, patch, scratch))
        return {
            "name": program.name,
            "resolved": resolved,
            "exit": status,
            "seconds": round(took, 1),
            "why": why,
            "patch": patch.decode(errors="replace"),
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
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

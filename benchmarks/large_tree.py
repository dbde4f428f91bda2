"""Measure what large repositories take: the prompt, the start of a sandbox, and the verification of a patch.

    python -m benchmarks.large_tree [FILES ...] [--folder DIR]

FILES are numbers of files; each makes a repository of small Python files, with a bug in one of them and a patch for it. A row
of the table is one command. Its CPU seconds and its memory are those of m3agent and of the git processes that it starts. The
programs in the sandbox are not among them; their CPU seconds have a column of their own where the kernel tells them. Load on the
machine changes the wall time, and hardly the CPU time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import commit_all, say

FILES_OF_A_FOLDER = 100
M3AGENT = (sys.executable, "-m", "m3agent")
SANDBOX_CPU = ("cat", "/sys/fs/cgroup/cpuacct/cpuacct.usage")
"""Prints the nanoseconds of CPU that the sandbox used until then, with the first version of control groups."""
COMMANDS = {
    "prompt": ("context", "--budget", "512k", "-o", os.devnull),
    "sandbox start": ("sandbox", "exec", "--sandbox", "docker", "--", *SANDBOX_CPU),
    "verify": ("verify", "--sandbox", "docker"),
}
BUGGY, MENDED = (f"def double(a):\n    return a * {factor}\n" for factor in (3, 2))
TEST = "from calc import double\n\n\ndef test_double():\n    assert double(2) == 4\n"


def make_repository(folder: Path, files: int) -> None:
    """Make a repository with one commit, and a fix in the work tree."""
    for number in range(files - 2):
        path = folder / f"package_{number // FILES_OF_A_FOLDER}" / f"module_{number}.py"
        if not number % FILES_OF_A_FOLDER:
            path.parent.mkdir(parents=True)
        path.write_text(f'"""Module {number}."""\n\n\ndef value() -> int:\n    return {number}\n')
    (folder / "calc.py").write_text(BUGGY)
    (folder / "test_calc.py").write_text(TEST)
    commit_all(folder, "base")
    (folder / "calc.py").write_text(MENDED)


def measure(files: int, repository: Path, state: Path) -> None:
    """Run each command once, and print a row of the table for each."""
    for name, command in COMMANDS.items():
        started = time.monotonic()
        with subprocess.Popen(
            [*M3AGENT, *command],
            cwd=repository,
            env={**os.environ, "M3AGENT_STATE": str(state)},
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            last = (process.stdout.read().strip().splitlines() or [""])[-1]
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - started
        inside = f"{int(last) / 1e9:.1f}" if last.isdecimal() else ""
        ended = "" if process.returncode == 0 else f" (exit code {process.returncode})"
        cpu, memory = used.ru_utime + used.ru_stime, used.ru_maxrss >> 10
        print(
            f"| {files:,} | {name}{ended} | {seconds:.0f} | {cpu:.1f} | {inside} | {memory:,} |", flush=True
        )


def main() -> None:
    """Measure repositories of the given sizes, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="*", type=int, default=[10_000, 100_000, 500_000])
    parser.add_argument("--folder", type=Path, help="where the repositories are made for the time of the run")
    args = parser.parse_args()
    print(
        "| files | command | seconds | CPU seconds | CPU seconds in the sandbox | MiB |\n|---|---|---|---|---|---|"
    )
    for files in args.files:
        with tempfile.TemporaryDirectory(
            dir=args.folder, ignore_cleanup_errors=True
        ) as scratch:  # git may still tidy up
            repository, state = Path(scratch, "repository"), Path(scratch, "state")
            repository.mkdir()
            state.mkdir()
            say(f"making a repository of {files:,} files")
            make_repository(repository, files)
            measure(files, repository, state)


if __name__ == "__main__":
    main()

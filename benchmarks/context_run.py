"""Run packers for the context benchmark, on separate clones and in an environment without the user's settings."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import git
from benchmarks.context_report import Sample
from benchmarks.peers import Absent

from m3agent.agent.context.selection.kinds import FileKind, kind_of

LIMIT = 600  # time limit of one run, in seconds
RACY = 1.1
"""Seconds to wait: git reads files that changed in the same second in which its index was written."""

CONVERTED = "context/tokenizers"
"""The folder of converted tokenizers below the state folder. They belong to the machine, not to a repository."""


@dataclass(frozen=True)
class Run:
    """How one command ended, and its output."""

    sample: Sample
    code: int
    said: str

    @property
    def last_line(self) -> str:
        lines = self.said.strip().splitlines()
        return lines[-1][:120] if lines else "it said nothing"


class Bench:
    """The clones, folders and environment of one run of the benchmark, all below `scratch`."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        home = scratch / "home"
        home.mkdir()
        # without the user's settings and caches
        self.env = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "NO_COLOR": "1"}
        self.state = scratch / "state"

    def clone(self, repo: Path, name: str) -> Path:
        """Clone the repository with its whole history, and refresh the index so that git need not read any file."""
        folder = self.scratch / name
        self._git(self.scratch, "clone", "--quiet", "--local", str(repo.resolve()), name)
        self._git(folder, "read-tree", "HEAD")
        time.sleep(RACY)
        self._git(folder, "update-index", "-q", "--refresh")
        return folder

    def _git(self, folder: Path, *args: str) -> None:
        done = git(folder, *args)
        if done.returncode:
            raise SystemExit(f"git {args[0]} failed: {done.stderr.decode(errors='replace').strip()}")

    def known_state(self) -> dict[str, str]:
        """Return variables for the state folder with the caches of earlier packs."""
        return {"M3AGENT_STATE": str(self.state)}

    def empty_state(self) -> dict[str, str]:
        """Return variables for an empty state folder."""
        folder = self.scratch / "empty"
        shutil.rmtree(folder, ignore_errors=True)
        return {"M3AGENT_STATE": str(folder)}

    def state_with_tokenizer(self) -> dict[str, str]:
        """Return variables for a state folder with only the converted tokenizer."""
        folder = self.scratch / "fresh"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.state / CONVERTED, folder / CONVERTED)
        return {"M3AGENT_STATE": str(folder)}

    def run(self, command: Sequence[str], env: Mapping[str, str]) -> Run:
        """Run and measure a command in the scratch folder. Raises Absent if it exceeds the time limit."""
        files = [self.scratch / "stdout", self.scratch / "stderr"]
        launcher = [sys.executable, "-I", "-S", str(Path(__file__).with_name("context_child.py"))]
        process = subprocess.Popen(
            [*launcher, *map(str, files), *command],
            cwd=self.scratch,
            env={**self.env, **env},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise Absent(f"not ended within {LIMIT} s") from None
        if process.returncode:
            raise Absent(f"{command[0]} cannot be started")
        took = json.loads(out)
        said = "".join(file.read_text(errors="replace") for file in files)
        return Run(Sample(took["wall"], took["cpu"], took["peak"]), took["exit"], said)


class Edits:
    """Changes one source file of medium size, each time to a new text."""

    def __init__(self, clone: Path) -> None:
        listed = git(clone, "ls-files", "-z").stdout.decode(errors="surrogateescape")
        sources = [clone / path for path in listed.split("\0") if path and kind_of(path) is FileKind.SOURCE]
        ranked = sorted(
            (file.stat().st_size, file) for file in sources if file.is_file() and not file.is_symlink()
        )
        if not ranked:
            raise SystemExit("there is no source file in it that could be edited")
        self._file = ranked[len(ranked) // 2][1]
        self._lines = self._file.read_bytes().splitlines(keepends=True)
        self.path = str(self._file.relative_to(clone))
        self.mark = b""

    def edit(self, number: int) -> None:
        self.mark = f"edited in round {number} at {time.time_ns()}".encode()
        middle = len(self._lines) // 2
        self._file.write_bytes(
            b"".join([*self._lines[:middle], b"# %b\n" % self.mark, *self._lines[middle:]])
        )

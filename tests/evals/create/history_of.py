"""Histories made with real git, for tests of mining."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from m3agent.evals.create.history import Commit, CommitHistory, open_history
from m3agent.evals.create.mine import Bounds, MinedCommit, examine

SOURCE = "def add(a, b):\n    return a - b\n"
FIXED = "def add(a, b):\n    return a + b\n"
TEST = "from calc import add\n\n\ndef test_zero():\n    assert add(0, 0) == 0\n"
MORE_TEST = TEST + "\n\ndef test_sum():\n    assert add(1, 2) == 3\n"
FIRST: dict[str, str | bytes | None] = {"calc.py": SOURCE, "tests/test_calc.py": TEST}
FIX: dict[str, str | bytes | None] = {"calc.py": FIXED, "tests/test_calc.py": MORE_TEST}


class Repo:
    """A repository with a work tree. Commits are one day apart, and the first is of 2024-01-01."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.days = 0
        folder.mkdir(parents=True)
        self.git("init", "-q")

    def git(self, *args: str, stdin: bytes | None = None) -> str:
        """Run git with the date of the next commit, and return its output."""
        date = f"2024-01-{self.days + 1:02} 12:00:00 +0000"
        env = {**os.environ, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        done = subprocess.run(
            ["git", *args], cwd=self.folder, check=True, capture_output=True, input=stdin, env=env
        )
        return done.stdout.decode(errors="replace").strip()

    def write(self, files: dict[str, str | bytes | None]) -> None:
        """Write files; None removes one."""
        for name, content in files.items():
            path = self.folder / name
            if content is None:
                path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def commit(self, files: dict[str, str | bytes | None], message: str | bytes = "Fix addition") -> str:
        """Commit these files, and return the commit's id."""
        self.write(files)
        self.git("add", "-A")
        said = message if isinstance(message, bytes) else message.encode()
        self.git("commit", "-q", "--allow-empty", "--cleanup=verbatim", "-F", "-", stdin=said)
        self.days += 1
        return self.git("rev-parse", "HEAD")

    def history(self, scratch: Path, name: str | None = "me/calc") -> CommitHistory:
        """Open the repository's history for mining."""
        scratch.mkdir(exist_ok=True)
        return open_history(self.folder, scratch, name)


def newest(history: CommitHistory) -> Commit:
    """Return the commit of HEAD."""
    return next(history.commits())


def looked_at(history: CommitHistory, bounds: Bounds | None = None) -> MinedCommit | str:
    """Return what mining finds in the commit of HEAD: a candidate, or the reason against it."""
    return examine(history, newest(history), bounds or Bounds())


def candidate(history: CommitHistory) -> MinedCommit:
    """Return the commit of HEAD as a candidate; fail if it is not one."""
    found = looked_at(history)
    assert isinstance(found, MinedCommit), found
    return found

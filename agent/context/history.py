"""Keep track of how often each file changes, and derive the order of files with the longest stable prefix.

A server reuses the prefix that two prompts share. If file i changes with hazard hᵢ and is sᵢ bytes long, the
expected length of the reused prefix is Σ sᵢ·Π(1-hⱼ) over the files before it. Ascending order of h/s
maximises it (Smith's rule for weighted completion times). The hazard is Sᵢ = Σ exp(t/τ) over the commits that
touched file i; t is the commit's absolute number on the first-parent line. The value of an untouched file
never changes, so new commits move only the files that they touch. Sizes are in bytes, not tokens, so that the
order is the same with any tokenizer.
"""

from __future__ import annotations

import struct
from math import exp, log, log1p

from m3agent.agent.context.cache import keep_file
from m3agent.agent.repo.git_spawn import GitProcess
from m3agent.agent.repo.host_git import HostGit
from m3agent.util.private_file import read_file

TAU = 100.0
"""Number of commits after which the weight of a change falls to 1/e.

Values between 30 and 300 make almost no difference (measured on five repositories).
"""

_MAGIC = b"m3hist1\n"
_HEAD = struct.Struct("<II")
_LOG = ("log", "-z", "--first-parent", "-m", "--name-only", "--no-renames", "--reverse", "--format=%x01%H %P")


class FileHistory:
    """Churn of every file that was ever touched, up to a commit.

    Attributes:
        head: Id of that commit.
        count: Its number on the first-parent line.
        churn: log S by path; paths are bytes as git prints them.
    """

    __slots__ = ("churn", "count", "head")

    def __init__(self, head: str = "", count: int = 0, churn: dict[bytes, float] | None = None) -> None:
        self.head = head
        self.count = count
        self.churn: dict[bytes, float] = churn or {}

    def advance(self, log: bytes) -> None:
        """Process the commits in git's output for `_LOG`, oldest first.

        The result is the same bit for bit, whether the commits are processed at once or in several runs.
        """
        for record in log.split(b"\x01")[1:]:
            head, _, names = record.partition(b"\0")
            self.head = head.split(b" ", 1)[0].decode()
            self.count += 1
            now = self.count / TAU
            for path in names.removeprefix(b"\n").split(b"\0"):
                if path:
                    old = self.churn.get(path)
                    # log(e^old + e^now); apart from rounding, now >= old
                    self.churn[path] = now if old is None else max(old, now) + log1p(exp(-abs(now - old)))

    def bytes(self) -> bytes:
        """Return the state in the format that `parse` reads."""
        paths = list(self.churn)
        head = self.head.encode()
        return b"".join(
            (
                _MAGIC,
                _HEAD.pack(self.count, len(paths)),
                head,
                b"\n",
                struct.pack(f"<{len(paths)}d", *self.churn.values()),
                b"\0".join(paths),
            )
        )


def parse(data: bytes) -> FileHistory | None:
    """Return the state that `FileHistory.bytes` wrote; None if it is damaged."""
    start = len(_MAGIC) + _HEAD.size
    if data[: len(_MAGIC)] != _MAGIC or len(data) < start:
        return None
    count, number = _HEAD.unpack_from(data, len(_MAGIC))
    end = data.find(b"\n", start)
    paths = data[end + 1 + 8 * number :].split(b"\0") if number else []
    if end < 0 or len(paths) != number:
        return None
    churn = dict(zip(paths, struct.unpack_from(f"<{number}d", data, end + 1), strict=True))
    return FileHistory(data[start:end].decode(errors="replace"), count, churn)


class HistoryReader:
    """Bring the history up to a commit in the background.

    It continues from the state in `folder`, or reads the complete history.
    """

    def __init__(self, repository: HostGit, head: str, folder: str | None) -> None:
        self._repository = repository
        self._head = head
        self._path = None if folder is None else f"{folder}/history"
        data = read_file(self._path) if self._path else None
        self._known = parse(data) if data else None
        self._git: GitProcess | None = None
        if self._known is None:
            self._git = GitProcess(repository, *_LOG, head, "--")
        elif self._known.head != head:
            self._git = GitProcess(repository, *_LOG, f"{self._known.head}..{head}", "--")

    def result(self) -> FileHistory:
        """Wait for git and return the history; empty if git failed."""
        history = self._known or FileHistory()
        if self._git is None:
            return history
        log = self._git.output()
        if self._known is not None and (log is None or not _continues(log, self._known.head)):
            # Another branch or a rewritten history: read everything again.
            history, log = FileHistory(), GitProcess(self._repository, *_LOG, self._head, "--").output()
        if log is None:
            return FileHistory()
        history.advance(log)
        if self._path is not None and history.head == self._head:
            keep_file(self._path, history.bytes())
        return history


def _continues(log: bytes, head: str) -> bool:
    """Return whether the first commit of the log has `head` as its first parent."""
    words = log[1 : log.find(b"\0")].split(b" ")
    return len(words) > 1 and words[1].decode() == head


def sort_key(churn: float | None, size: int, path: str) -> tuple[bool, float, str]:
    """Return the sort key of a file: ascending hazard per size.

    Files without history (new or being edited) come last. The value is rounded, so that differences in the
    last bit between machines do not change the order.
    """
    return churn is None, round((churn or 0.0) - log(size + 1), 6), path

"""How often each file changes, kept from commit to commit, and the order that makes a prompt's prefix last.

A server keeps the prefix that two prompts share. If file i changes with hazard hᵢ and is sᵢ bytes long, the expected
prefix kept is Σ sᵢ·Π(1-hⱼ) over the files before it, which is greatest in ascending order of h/s (Smith's rule for
weighted completion times). The hazard is Sᵢ = Σ exp(t/τ) over the commits that touched i, t being the commit's absolute
number on the first-parent line: a file that is not touched keeps its value, so new commits move only what they touch.
Sizes are in bytes, not tokens, so that the order is the same with any tokenizer.
"""

from __future__ import annotations

import os
import struct
from math import exp, log, log1p

from m3agent.agent.context.cache import read_file, write_file
from m3agent.agent.git_process import GitProcess

TAU = 100.0
"""Commits after which a change counts 1/e. Between 30 and 300 it makes next to no difference (measured on five
repositories)."""

_MAGIC = b"m3hist1\n"
_HEAD = struct.Struct("<II")
_LOG = ("log", "-z", "--first-parent", "-m", "--name-only", "--no-renames", "--reverse", "--format=%x01%H %P")


class History:
    """Churn of every file ever touched, up to a commit.

    `head` is that commit, `count` its number on the first-parent line, `churn` log S by path (as git writes it).
    """

    __slots__ = ("churn", "count", "head")

    def __init__(self, head: str = "", count: int = 0, churn: dict[bytes, float] | None = None) -> None:
        self.head = head
        self.count = count
        self.churn: dict[bytes, float] = {} if churn is None else churn

    def advance(self, log: bytes) -> None:
        """Take in the commits of git's answer to `_LOG`, oldest first. The same commits give the same numbers, bit for
        bit, whether taken in at once or over many runs."""
        for record in log.split(b"\x01")[1:]:
            head, _, names = record.partition(b"\0")
            self.head = head.split(b" ", 1)[0].decode()
            self.count += 1
            now = self.count / TAU
            for path in names.removeprefix(b"\n").split(b"\0"):
                if path:
                    old = self.churn.get(path)
                    # log(e^old + e^now), and now >= old but for rounding
                    self.churn[path] = now if old is None else max(old, now) + log1p(exp(-abs(now - old)))

    def bytes(self) -> bytes:
        """The state as `parse` reads it."""
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


def parse(data: bytes) -> History | None:
    """The state that `History.bytes` wrote, or None when it is damaged."""
    start = len(_MAGIC) + _HEAD.size
    if data[: len(_MAGIC)] != _MAGIC or len(data) < start:
        return None
    count, number = _HEAD.unpack_from(data, len(_MAGIC))
    end = data.find(b"\n", start)
    paths = data[end + 1 + 8 * number :].split(b"\0") if number else []
    if end < 0 or len(paths) != number:
        return None
    churn = dict(zip(paths, struct.unpack_from(f"<{number}d", data, end + 1), strict=True))
    return History(data[start:end].decode(errors="replace"), count, churn)


class HistoryReader:
    """Brings the history up to a commit: from the state kept in `folder`, or by reading all of it, while we go on."""

    def __init__(self, root: str, head: str, folder: str | None) -> None:
        self._root = root
        self._head = head
        self._path = None if folder is None else f"{folder}/history"
        data = read_file(self._path) if self._path else None
        self._known = parse(data) if data else None
        self._git: GitProcess | None = None
        if self._known is None:
            self._git = GitProcess(root, *_LOG, head, "--")
        elif self._known.head != head:
            self._git = GitProcess(root, *_LOG, f"{self._known.head}..{head}", "--")

    def result(self) -> History:
        """The history; empty when git cannot tell."""
        history = self._known or History()
        if self._git is None:
            return history
        log = self._git.output()
        if self._known is not None and (log is None or not _continues(log, self._known.head)):
            # Another branch, or history was rewritten: from the beginning.
            history, log = History(), GitProcess(self._root, *_LOG, self._head, "--").output()
        if log is None:
            return History()
        history.advance(log)
        if self._path is not None and history.head == self._head:
            try:
                os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
                write_file(self._path, history.bytes())
            except OSError:  # it will be read again
                pass
        return history


def _continues(log: bytes, head: str) -> bool:
    """Whether the first commit of the log has `head` as its first parent."""
    words = log[1 : log.find(b"\0")].split(b" ")
    return len(words) > 1 and words[1].decode() == head


def sort_key(churn: float | None, size: int, path: str) -> tuple[bool, float, str]:
    """Files in ascending order of hazard by size; those without history (new, or being edited) come last.

    Rounded, so that a last bit in which two machines' logarithms differ does not decide.
    """
    return churn is None, round((churn or 0.0) - log(size + 1), 6), path

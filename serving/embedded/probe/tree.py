"""Mode ``read``, and what the modes share: the work tree and its tests, private copies, processors, and reports to the policy."""

# Runs inside the sandbox: os.path starts faster than pathlib.
# ruff: noqa: PTH103, PTH108, PTH110, PTH116, PTH118, PTH120, PTH123

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
import tokenize
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

SKIPPED = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".venv", "venv", "node_modules", ".tox", ".nox"}
    | {".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".eggs"}
)
"""Folders that no test needs in a private copy."""

COPY_FILES = 20_000
COPY_BYTES = 300 * 1024 * 1024
"""Above this many files or bytes, there is no private copy."""
RESCAN_FILES = 400
"""Most files of a copy that is restored after each candidate."""
FILES = 40
"""Most files of which the lines that run during import are reported."""
WORKERS = 8
"""Most private copies in which candidates are tried in parallel."""


def report(result: dict[str, Any]) -> None:
    """Write `result` as the line that the policy reads."""
    sys.stdout.write("\nM3-REPAIR " + json.dumps(result, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def pack(result: dict[str, Any], room: int) -> str:
    """Compress `result` into at most `room` characters; drop the least suspected files if necessary."""
    while True:
        # Files in which only the import runs code matter too: they define what the others use.
        result["imported"] = dict(sorted(result["imported"].items(), key=lambda item: len(item[1]))[:FILES])
        result["kinds"] = {
            key: seen for key, seen in result["kinds"].items() if key.rsplit(":", 1)[0] in result["lines"]
        }
        text = base64.b64encode(zlib.compress(json.dumps(result, separators=(",", ":")).encode(), 9)).decode()
        if len(text) <= room or not result["lines"]:
            return text
        ranked = sorted(result["lines"], key=lambda rel: (-len(result["lines"][rel]), rel))
        result["lines"] = {rel: result["lines"][rel] for rel in ranked[: len(ranked) // 2]}
        result["imported"] = {rel: rows for rel, rows in result["imported"].items() if rel in result["lines"]}


def processors() -> int:
    """Return the number of processors that this sandbox may use."""
    count = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )  # PyPy lacks it
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        if quota != "max":
            count = min(count, -(-int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no control group limits it
    return max(1, min(WORKERS, count))


def is_test(rel: str) -> bool:
    """Tell whether `rel` is test code, which is never suspected and never changed."""
    parts = rel.split("/")
    name = parts[-1]
    return (
        name.startswith("test_")
        or name.endswith("_test.py")
        or name in ("conftest.py", "tests.py", "setup.py", "noxfile.py")
        or any(part in ("tests", "test") for part in parts[:-1])
    )


def listing(root: str) -> dict[str, tuple[int, int]]:
    """Map each file under `root` (except skipped folders) to its modification time and size in bytes."""
    found: dict[str, tuple[int, int]] = {}
    pending = [root]
    while pending:
        for entry in os.scandir(pending.pop()):
            if entry.name in SKIPPED:
                continue
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                stat = entry.stat(follow_symlinks=False)
                found[os.path.relpath(entry.path, root)] = (stat.st_mtime_ns, stat.st_size)
    return found


@contextlib.contextmanager
def scratch() -> Iterator[str]:
    """Give a temporary folder for private copies."""
    folder = tempfile.mkdtemp(prefix="m3-probe-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def suspected(
    runs: Iterable[tuple[bool, Mapping[str, Iterable[int]]]], watched: dict[tuple[str, int], list[int]]
) -> dict[str, list[list[Any]]]:
    """Return the lines that failing tests ran, by file.

    `runs` says of each test whether it failed, and which lines it ran; `watched` are the tests that notice first when a
    line breaks. Each line is given as its number, the failing and passing tests that ran it, and the tests that notice.
    """
    counts: dict[str, dict[int, list[int]]] = {}
    for failed, files in runs:
        for rel, lines in files.items():
            table = counts.setdefault(rel, {})
            for line in lines:
                table.setdefault(line, [0, 0])[0 if failed else 1] += 1
    found: dict[str, list[list[Any]]] = {}
    for rel, table in counts.items():
        for line, pair in sorted(table.items()):
            if pair[0]:
                found.setdefault(rel, []).append([line, *pair, watched.get((rel, line), [])])
    return found


def decoded(data: bytes) -> tuple[str, str]:
    """Return the text of a source file, without a byte order mark, and its encoding, as Python finds it.

    Raises:
        SyntaxError: Python refuses the file.
        UnicodeDecodeError: The file has another encoding.
    """
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    return data.decode(encoding), encoding


def spliced(source: str, edits: list[list[Any]]) -> str:
    """Apply ``[start, end, text]`` edits, in characters, to `source`."""
    for start, end, text in sorted(edits, reverse=True):
        source = source[:start] + text + source[end:]
    return source


def read(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the packed texts of ``files``, in order, up to ``room`` characters.

    ``start`` is the number of characters of the first file's packed text that are already known. The last
    file may be incomplete: `sizes` gives the number of characters of each file, so that the caller can
    request the rest.
    """
    packed: dict[str, str] = {}
    sizes: dict[str, int] = {}
    missing: list[str] = []
    room = asked["room"]
    start = asked["start"]
    for rel in asked["files"]:
        try:
            with open(os.path.join(asked["root"], rel), "rb") as file:
                data = decoded(file.read())[0].encode()
        except (OSError, SyntaxError, UnicodeDecodeError):
            missing.append(rel)
            continue
        text = base64.b64encode(zlib.compress(data, 9)).decode()
        sizes[rel] = len(text)
        packed[rel] = text[start : start + room]
        room -= len(packed[rel])
        start = 0
        if room <= 0:
            break
    return {"mode": "read", "files": packed, "sizes": sizes, "missing": missing}


class Tree:
    """The folder in which tests run: a private copy of `root`, or `root` itself if a copy does not work."""

    def __init__(self, root: str, copy_to: str | None) -> None:
        self.root = root
        self.place = copy_to or root
        self.private = copy_to is not None
        self._before: dict[str, tuple[int, int]] = {}
        if copy_to is not None:
            shutil.copytree(root, copy_to, symlinks=True, ignore=shutil.ignore_patterns(*SKIPPED))
            self._before = listing(copy_to)
        self.small = len(self._before) <= RESCAN_FILES

    def rel(self, path: str) -> str | None:
        """Return `path` relative to the folder, or None for a file outside it."""
        prefix = self.place + os.sep
        return path[len(prefix) :].replace(os.sep, "/") if path.startswith(prefix) else None

    def restore(self) -> None:
        """Undo all changes of tests or candidates to the files of a private copy."""
        if not self.private:
            return
        now = listing(self.place)
        for rel in now.keys() - self._before.keys():
            os.unlink(os.path.join(self.place, rel))
        for rel, stamp in self._before.items():
            if now.get(rel) != stamp:
                target = os.path.join(self.place, rel)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copy2(os.path.join(self.root, rel), target)
                stat = os.stat(target)
                self._before[rel] = (stat.st_mtime_ns, stat.st_size)

    def adopt_environment(self) -> None:
        """Make this process import from the folder: set the working directory, sys.path and PYTHONPATH."""
        os.chdir(self.place)
        given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        sys.path[:] = self._moved(sys.path)
        os.environ["PYTHONPATH"] = os.pathsep.join(self._moved(given))
        os.environ["PWD"] = self.place

    def _moved(self, paths: Iterable[str]) -> list[str]:
        """Return the folder, its `src`, and the existing ones of `paths`; those in `root` are replaced by those in the folder."""
        moved = [self.place, os.path.join(self.place, "src")]
        for path in paths:
            if not path or path == self.root or path.startswith(self.root + os.sep):
                path = self.place + path[len(self.root) :]
            if path not in moved:
                moved.append(path)
        return [path for path in moved if os.path.exists(path)]


def too_big_to_copy(root: str) -> bool:
    """Tell whether `root` has too many files or bytes for a private copy."""
    found = listing(root)
    return len(found) > COPY_FILES or sum(size for _, size in found.values()) > COPY_BYTES

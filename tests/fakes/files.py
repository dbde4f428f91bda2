"""A work tree in memory, with the rules for paths that the supervisor has for real ones."""

from __future__ import annotations

from dataclasses import dataclass

from m3agent.sandbox.backends.sandbox import ROOT
from m3agent.sandbox.protocol.supervisor import Refused, blob_id

REGULAR, EXECUTABLE, LINK = 0o100644, 0o100755, 0o120000
MOST_LINKS = 40


@dataclass(frozen=True)
class File:
    """A file, or a link and where it leads; mode is git's."""

    mode: int
    content: bytes


class MemoryFiles:
    """Files by path. A folder is there as long as a file is in it."""

    def __init__(self) -> None:
        self._files: dict[str, File] = {}
        self._seen: dict[str, tuple[int, str | None, int]] = {}

    def __contains__(self, path: str) -> bool:
        return path in self._files

    def text(self, path: str) -> str:
        """The content of a file as text."""
        return self.read(path).decode()

    def texts(self) -> dict[str, str]:
        """The text of every file, by path."""
        return {path: file.content.decode(errors="replace") for path, file in self._files.items()}

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link."""
        self._files[path] = File(LINK, target.encode())

    def target(self, path: str) -> bytes:
        """Where a link leads."""
        return self._files[path].content

    def chmod(self, path: str, mode: int) -> None:
        """Give a file another of git's modes."""
        self._files[path] = File(mode, self._files[path].content)

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it."""
        for each in [p for p in self._files if p == path or p.startswith(f"{path}/")]:
            del self._files[each]

    def is_folder(self, path: str) -> bool:
        """Whether a path is a folder's."""
        return path in {"", "."} or any(each.startswith(f"{path}/") for each in self._files)

    def read(self, path: str) -> bytes:
        """The content of a file; raises Refused."""
        real = self._resolve(path)
        if self.is_folder(real):
            raise Refused("EISDIR", f"{path} is a folder")
        if real not in self._files:
            raise Refused("ENOENT", "No such file or directory")
        return self._files[real].content

    def write(self, path: str, content: bytes, mode: int | None = None) -> None:
        """Write a file; it keeps its mode unless it is given one. Raises Refused."""
        real = self._resolve(path)
        if self.is_folder(real):
            raise Refused("special", f"{path} is not a regular file")
        old = self._files.get(real)
        self._files[real] = File(mode or (old.mode if old is not None else REGULAR), content)

    def lay(self, path: str, mode: int, sha: str, content: bytes) -> None:
        """Put a file in the place of whatever is there, and take it as known."""
        parts = path.split("/")
        for end in range(1, len(parts)):
            self._files.pop("/".join(parts[:end]), None)
        self.remove(path)
        self._files[path] = File(mode, content)
        self._seen[path] = (mode, sha, len(content))

    def delete(self, path: str) -> None:
        """Remove a file as one that is known to be gone."""
        self._files.pop(path, None)
        self._seen.pop(path, None)

    def scan(self, skip: set[str], most: int) -> tuple[list[tuple[str, int, str | None, int]], list[str]]:
        """What has changed and what is gone since the last scan. Files larger than `most` have no id."""
        now: dict[str, tuple[int, str | None, int]] = {}
        for path, file in self._files.items():
            if not skip & set(path.split("/")[:-1]):
                size = len(file.content)
                now[path] = (file.mode, blob_id(file.content) if size <= most else None, size)
        changed = [(path, *what) for path, what in now.items() if self._seen.get(path) != what]
        deleted = [path for path in self._seen if path not in now]
        self._seen = now
        return changed, deleted

    def _resolve(self, path: str) -> str:
        """The path that a path stands for, with its links followed; raises Refused where it leads out."""
        inner = path.removeprefix(f"{ROOT}/").rstrip("/")
        if inner.startswith("/"):
            raise Refused("escape", f"{path} is outside the work tree")
        if "\0" in path or inner.rpartition("/")[2] in {"", ".", ".."}:
            raise Refused("escape", f"not a file path: {path!r}")
        left, at, links = inner.split("/")[::-1], list[str](), 0
        while left:
            part = left.pop()
            if part in {"", "."}:
                continue
            if part == "..":
                if not at:
                    raise Refused("escape", f"{path} is outside the work tree")
                at.pop()
                continue
            at.append(part)
            file = self._files.get("/".join(at))
            if file is None:
                continue
            if file.mode == LINK:
                links += 1
                if links > MOST_LINKS:
                    raise Refused("ELOOP", "Too many levels of symbolic links")
                target = file.content.decode()
                if target.startswith("/") and not target.startswith(f"{ROOT}/"):
                    raise Refused("escape", f"{path} is outside the work tree")
                at = [] if target.startswith("/") else at[:-1]
                left += target.removeprefix(f"{ROOT}/").split("/")[::-1]
            elif left:
                raise Refused("ENOTDIR", f"{path}: a part of this path is a file, not a folder")
        return "/".join(at)

"""Store each file's terms and outline between runs, by a key of the content."""

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from m3agent.agent.context.selection.outline import OUTLINE_VERSION, available, outline
from m3agent.agent.context.selection.terms import TERMS_VERSION, Terms, analyse

FILE_NAME = "content.sqlite"

LIMIT_BYTES = 512 * 1024 * 1024
"""Enough for the terms of about 250,000 files; sympy's 2,000 files take 4 MB, or 9 MB with outlines."""

Progress = Callable[[int, int], None]
"""Callback with the number of finished files and the total number."""

_BATCH = 256
_MOST_AT_ONCE = 4096
"""Most entries of one transaction. It may have an eighth of those before it: the larger the file, the more pages each changes."""
_DAY_SECONDS = 86400
_DAYS_UNMARKED = 3
_BUSY_SECONDS = 5.0
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_UNWRITABLE = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL)
_SCHEMA = """
CREATE TABLE IF NOT EXISTS content
(kind TEXT NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL, day INTEGER NOT NULL, PRIMARY KEY (kind, key))
"""


@dataclass(frozen=True)
class Content:
    """A file's content."""

    path: str
    """Path relative to the repository."""
    key: bytes
    """16 bytes that are equal exactly for equal path and content."""
    text: Callable[[], str]
    """Reads the content."""


class TermStore:
    """Terms and outlines by content, in one SQLite file in a cache folder.

    Storage errors never raise. A damaged file is created again. If no file can be written, a temporary one is
    used. Several processes may use the file at the same time. When the file would exceed `limit` bytes, the
    entries that were unused for longest are deleted. An instance belongs to the thread that created it.

    Args:
        variant: Name of everything besides the key that the text depends on. Entries of other variants are
            not visible.
    """

    def __init__(self, folder: Path, limit: int = LIMIT_BYTES, *, variant: str = "") -> None:
        self._terms = f"terms {TERMS_VERSION} {variant}"
        self._outline = f"outline {OUTLINE_VERSION} {variant}"
        self._file = folder / FILE_NAME
        self._limit = limit
        self._today = int(time.time()) // _DAY_SECONDS
        self._new: list[tuple[str, bytes, bytes, int]] = []
        self._put_so_far = 0
        self._written = 0
        self._writable = True
        self._database = self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Write new entries and close the file."""
        self._flush()
        if self._written:
            self._shrink()
        self._database.close()

    def terms(
        self, contents: Sequence[Content], progress: Progress | None = None
    ) -> Iterator[tuple[int, Terms]]:
        """Yield each content's position and terms, in order.

        Unknown contents are read and analysed in small batches.
        """
        for start in range(0, len(contents), _BATCH):
            batch = contents[start : start + _BATCH]
            known = self._get(self._terms, [content.key for content in batch])
            for position, content in enumerate(batch, start):
                found = _unpacked(known.get(content.key))
                if found is None:
                    found = analyse(content.text())
                    self._put(self._terms, content.key, found.pack())
                yield position, found
            if progress:
                progress(min(start + _BATCH, len(contents)), len(contents))
        self._flush()

    def outline(self, content: Content) -> str | None:
        """Return the content's outline (see `outline.outline`), or None if it has no outline."""
        known = self._get(self._outline, [content.key]).get(content.key)
        if known is not None:
            with contextlib.suppress(UnicodeDecodeError):
                return known.decode() or None
        if not available():  # and store nothing: it would be wrong after an installation
            return None
        made = outline(content.path, content.text())
        self._put(self._outline, content.key, (made or "").encode("utf-8", "replace"))
        return made

    def _get(self, kind: str, keys: list[bytes]) -> dict[bytes, bytes]:
        marks = ",".join("?" * len(keys))
        query = f"SELECT key, value, day FROM content WHERE kind = ? AND key IN ({marks})"  # noqa: S608
        try:
            rows = self._database.execute(query, (kind, *keys)).fetchall()
        except sqlite3.Error as error:
            self._recover(error)
            return {}
        found: dict[bytes, bytes] = {}
        for key, value, day in rows:
            if isinstance(value, bytes) and isinstance(day, int):  # else damaged, unnoticed by SQLite
                found[key] = value
                if day < self._today - _DAYS_UNMARKED:
                    self._put(kind, key, value)
        return found

    def _put(self, kind: str, key: bytes, value: bytes) -> None:
        self._new.append((kind, key, value, self._today))
        self._put_so_far += 1
        if len(self._new) >= max(_BATCH, min(self._put_so_far // 8, _MOST_AT_ONCE)):
            self._flush()

    def _flush(self) -> None:
        new, self._new = sorted(self._new), []
        if not new or not self._writable:
            return
        try:
            with self._database:
                self._begin()
                self._database.executemany("INSERT OR REPLACE INTO content VALUES (?, ?, ?, ?)", new)
        except sqlite3.Error as error:
            self._recover(error)
            return
        self._written += sum(len(value) for _, _, value, _ in new)
        if self._written > self._limit // 8:
            self._shrink()

    def _shrink(self) -> None:
        self._written = 0
        try:
            self._delete_oldest()
        except sqlite3.Error as error:
            self._recover(error)

    def _delete_oldest(self) -> None:
        """Delete the entries that were unused for longest until a quarter of the limit is free.

        The file keeps its size.
        """
        used, free, size = (
            int(self._database.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_count", "freelist_count", "page_size")
        )
        excess = (used - free) * size - self._limit
        if excess <= 0:
            return
        excess += self._limit // 4
        gone: list[tuple[int]] = []
        for row, length in self._database.execute(
            "SELECT rowid, length(value) + 100 FROM content ORDER BY day, rowid"  # 100: overhead of a row
        ):
            gone.append((row,))
            excess -= length
            if excess <= 0:
                break
        with self._database:
            self._begin()
            self._database.executemany("DELETE FROM content WHERE rowid = ?", gone)

    def _begin(self) -> None:
        """Begin a transaction. Python begins none in a Turkish locale, where it does not recognise `INSERT` in capitals."""
        self._database.execute("BEGIN")

    def _recover(self, error: sqlite3.Error) -> None:
        """Handle a storage error.

        A damaged file is replaced. An unwritable file is only read from then on. In other cases a temporary
        file is used.
        """
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _UNWRITABLE:
            self._writable = False
            return
        self._database.close()
        if code in _DAMAGED:
            _remove(self._file)
        self._database = self._open() if code in _DAMAGED else _connect("")

    def _open(self) -> sqlite3.Connection:
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for _ in range(2):
            try:
                return _connect(str(self._file))
            except sqlite3.Error as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _DAMAGED:
                    break
                _remove(self._file)
        return _connect("")  # SQLite's own temporary file, deleted on close


def _connect(name: str) -> sqlite3.Connection:
    database = sqlite3.connect(name, timeout=_BUSY_SECONDS)
    try:
        # A cache may lose its last writes in a power failure; damage from it is detected.
        database.execute("PRAGMA synchronous = OFF")
        database.execute(_SCHEMA)
        database.commit()
    except sqlite3.Error:
        database.close()
        raise
    return database


def _remove(file: Path) -> None:
    for name in (file, file.with_name(f"{file.name}-journal")):
        with contextlib.suppress(OSError):
            name.unlink()


def _unpacked(data: bytes | None) -> Terms | None:
    if data is None:
        return None
    try:
        return Terms.unpack(data)
    except ValueError:
        return None

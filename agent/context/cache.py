"""Cache what earlier packs found out about files: one flat file per repository and way of counting.

The key of an entry is a hash of the file's bytes and its shown path, never a blob id or a modification time.
With attributes and filters one blob can have several contents, and modification times are unreliable. The bytes that were
read are the bytes that are counted, cached and sent, so a file that changes in the meantime causes no inconsistency.
"""

from __future__ import annotations

import os
import struct
import zlib
from hashlib import sha256

from m3agent.agent.context.chunk_format import REDACTED, STORED
from m3agent.util.private_file import read_file, write_file

KEY_BYTES = 16
_MAGIC = b"m3ctx1"
_ENTRY = struct.Struct(f"<{KEY_BYTES}sIBB2x")
_KEEP = 8
"""Number of saves that an unused entry survives, so that switching between a few branches costs nothing."""

Entry = tuple[int, int]
"""Number of tokens of the chunk (0 for a file that is left out), and its form (see `chunk_format`)."""


def key(path: bytes, data: bytes) -> bytes:
    """Return the key of an entry: a digest of the path and the bytes."""
    digest = sha256(path)
    digest.update(b"\0")
    digest.update(data)
    return digest.digest()[:KEY_BYTES]


class Cache:
    """Entries by key, and the texts of files whose text differs from their bytes.

    An unwritable folder or a damaged file only costs time. Files are replaced atomically, so several
    processes may share the folder; the entries of the last one remain.

    """

    def __init__(self, folder: str | None, variant: str) -> None:
        self._path = None if folder is None else f"{folder}/{sha256(variant.encode()).hexdigest()[:16]}.pack"
        self._texts = None if self._path is None else f"{self._path}.texts"
        self._ages: dict[bytes, int] = {}
        self.entries: dict[bytes, Entry] = {}
        self.exact = False
        """Whether the token counts are exact and additive."""
        self._stored: dict[bytes, bytes] = {}
        if self._path is not None:
            self._load(self._path)

    def _load(self, path: str) -> None:
        data = read_file(path)
        start = len(_MAGIC)
        if data is None or data[: len(_MAGIC)] != _MAGIC or (len(data) - start - 5) % _ENTRY.size:
            return
        body = data[start:-4]
        if zlib.crc32(body) != int.from_bytes(data[-4:], "little"):
            return
        self.exact = body[0] == 1
        for name, tokens, form, age in _ENTRY.iter_unpack(body[1:]):
            self.entries[name] = tokens, form
            self._ages[name] = age

    def text(self, name: bytes) -> bytes | None:
        """Return the stored text of an entry; None if it is missing or damaged."""
        if name in self._stored or self._texts is None:
            return self._stored.get(name)
        data = read_file(f"{self._texts}/{name.hex()}")
        if data is None or data[:4] != zlib.crc32(data[4:]).to_bytes(4, "little"):
            return None
        return data[4:]

    def add(self, name: bytes, entry: Entry, text: bytes | None = None) -> None:
        """Add an entry; `text` is required for the forms that are stored."""
        self.entries[name] = entry
        if text is not None:
            self._stored[name] = text

    def save(self, used: set[bytes]) -> None:
        """Write the entries that were used now or recently. If writing fails, the old state remains."""
        if self._path is None or self._texts is None:
            return
        kept: dict[bytes, int] = {}
        packed: list[bytes] = []
        for name, (tokens, form) in self.entries.items():
            age = 0 if name in used else self._ages.get(name, 0) + 1
            if age <= _KEEP:
                kept[name] = form
                packed.append(_ENTRY.pack(name, tokens, form, age))
        body = bytes((self.exact,)) + b"".join(packed)
        try:
            os.makedirs(self._texts, mode=0o700, exist_ok=True)
            for name, text in self._stored.items():
                write_file(f"{self._texts}/{name.hex()}", zlib.crc32(text).to_bytes(4, "little") + text)
            write_file(self._path, _MAGIC + body + zlib.crc32(body).to_bytes(4, "little"))
            wanted = {name.hex() for name, form in kept.items() if form in (STORED, REDACTED)}
            for entry in os.listdir(self._texts):
                if entry not in wanted:
                    os.unlink(f"{self._texts}/{entry}")
        except OSError:  # disk full or read-only, or another process removed the file: a cache may be lost
            return


def keep_file(path: str, data: bytes) -> None:
    """Write a file of a cache, and its folder. If that fails, a later run makes the content again."""
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        write_file(path, data)
    except OSError:
        return


def folder_of_all(state: str) -> str:
    """Return the folder for all data of packs, below the state folder."""
    return f"{state}/context"


def folder_of(state: str, git_dir: str) -> str:
    """Return the folder for the data of one repository, named by a hash of its git directory."""
    return f"{folder_of_all(state)}/{sha256(os.fsencode(git_dir)).hexdigest()[:16]}"

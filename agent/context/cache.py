"""What is known of files' contents from earlier packs: one flat file per repository and way of counting.

An entry belongs to the bytes that were read and the path they are shown under, never to a blob id or a time of
change: attributes and filters may give one blob many contents, and times lie.
"""

from __future__ import annotations

import os
import struct
import zlib
from hashlib import sha256

from m3agent.agent.context.forms import REDACTED, STORED

KEY_BYTES = 16
_MAGIC = b"m3ctx1"
_ENTRY = struct.Struct(f"<{KEY_BYTES}sIBB2x")
_KEEP = 8
"""Saves that an entry survives without being used: switching between a few branches costs nothing."""

Entry = tuple[int, int]
"""Tokens of the chunk (0 for a file left out), and the form (see `forms`)."""


def key(path: bytes, data: bytes) -> bytes:
    """What an entry is found by: a digest of the path and the bytes."""
    digest = sha256(path)
    digest.update(b"\0")
    digest.update(data)
    return digest.digest()[:KEY_BYTES]


class Cache:
    """Entries by key, and the texts of files whose text is not their bytes.

    A folder that cannot be written, or a file that is damaged, costs time only. Writers replace whole files, so
    several processes may share the folder: the last one's entries stay.
    """

    def __init__(self, folder: str | None, variant: str) -> None:
        self._path = None if folder is None else f"{folder}/{sha256(variant.encode()).hexdigest()[:16]}.pack"
        self._texts = None if self._path is None else f"{self._path}.texts"
        self._ages: dict[bytes, int] = {}
        self.entries: dict[bytes, Entry] = {}
        self.exact = False
        """Whether the tokens are exact and add up."""
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
        """The stored text of an entry, or None when it is lost."""
        if name in self._stored or self._texts is None:
            return self._stored.get(name)
        data = read_file(f"{self._texts}/{name.hex()}")
        if data is None or data[:4] != zlib.crc32(data[4:]).to_bytes(4, "little"):
            return None
        return data[4:]

    def add(self, name: bytes, entry: Entry, text: bytes | None = None) -> None:
        """Note what was found out; `text` for the forms that are stored."""
        self.entries[name] = entry
        if text is not None:
            self._stored[name] = text

    def save(self, used: set[bytes]) -> None:
        """Write everything `used` now or lately. On any failure the old state stays."""
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
        except OSError:  # full, read-only, or another process tidied the same file: a cache is no promise
            return


def read_file(path: str) -> bytes | None:
    """The bytes of a file of ours, or None when it cannot be read."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        size = os.fstat(file).st_size
        data = os.read(file, size + 1)
        return data if len(data) == size else None
    except OSError:
        return None
    finally:
        os.close(file)


def write_file(path: str, data: bytes) -> None:
    """Replace a file of ours as a whole, for its owner only. Raises OSError, leaving the old one."""
    temporary = f"{path}.{os.getpid()}.{os.urandom(4).hex()}~"
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
        finally:
            os.close(file)
        os.rename(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def folder_of_all(state: str) -> str:
    """The folder for everything that packs keep, below the folder for state."""
    return f"{state}/context"


def folder_of(state: str, git_dir: str) -> str:
    """The folder in it for what is known of one repository."""
    return f"{folder_of_all(state)}/{sha256(os.fsencode(git_dir)).hexdigest()[:16]}"

"""What a pack comes to."""

from __future__ import annotations

from hashlib import sha256


class PackedFile:
    """A file in the context: its path as shown, its tokens (delimiters included), its bytes on disk.

    `part` says what of it is there: `whole`, `signatures` (what it defines), or `changes` (since the base of a frozen
    prefix).
    """

    __slots__ = ("bytes", "part", "path", "tokens")

    def __init__(self, path: str, tokens: int, size: int, part: str = "whole") -> None:
        self.path = path
        self.tokens = tokens
        self.bytes = size
        self.part = part

    def __repr__(self) -> str:
        return f"PackedFile({self.path!r}, {self.tokens}, {self.bytes}, {self.part!r})"


class Context:
    """A packed repository.

    `pieces` are the text in UTF-8, to be joined. It is made of chunks that each start with `<` and end with a newline, so
    that token counts add. `dropped` pairs each file left out with the reason. `tokens` counts all of the text, and is an estimate from
    bytes unless `exact`. `redacted` names the files in which secrets were replaced by markers. `rebased` is False where
    a frozen prefix was kept.
    """

    __slots__ = ("dropped", "exact", "files", "pieces", "rebased", "redacted", "tokens")

    def __init__(
        self,
        pieces: list[bytes],
        files: tuple[PackedFile, ...],
        dropped: tuple[tuple[str, str], ...],
        tokens: int,
        *,
        exact: bool,
        redacted: tuple[str, ...] = (),
        rebased: bool = True,
    ) -> None:
        self.pieces = pieces
        self.files = files
        self.dropped = dropped
        self.tokens = tokens
        self.exact = exact
        self.redacted = redacted
        self.rebased = rebased

    @property
    def data(self) -> bytes:
        """The packed text in UTF-8."""
        return b"".join(self.pieces)

    @property
    def text(self) -> str:
        """The packed text."""
        return self.data.decode()

    @property
    def digest(self) -> str:
        """The SHA-256 of the text in hexadecimal."""
        return sha256(self.data).hexdigest()

    @property
    def size(self) -> str:
        """The number of tokens for people, with `≈` before an estimate."""
        return f"{self.tokens:,}" if self.exact else f"≈{self.tokens:,}"

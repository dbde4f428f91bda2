"""The result of packing."""

from __future__ import annotations

from hashlib import sha256

from m3agent.util.record import record


@record
class PackedFile:
    """A file in the context."""

    path: str
    """Its path as shown."""
    tokens: int
    """Its number of tokens, delimiters included."""
    bytes: int
    """Its size on disk."""
    part: str = "whole"
    """The part that is shown: `whole`, `signatures` (its definitions), `passages` (the lines that the issue is about, after its
    definitions) or `changes` (since the base of a frozen prefix).
    """


@record
class Context:
    """A packed repository.

    The text consists of chunks. Each starts with `<` and ends with a newline, so that token counts are
    additive.
    """

    pieces: list[bytes]
    """Parts of the text in UTF-8, to be joined."""
    files: tuple[PackedFile, ...]
    dropped: tuple[tuple[str, str], ...]
    """Pairs of an omitted file and the reason."""
    tokens: int
    """Number of tokens of the text; an estimate from its bytes unless `exact`."""
    exact: bool
    redacted: tuple[str, ...] = ()
    """Files in which markers replaced secrets."""
    rebased: bool = True
    """False if a frozen prefix was kept."""

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
        """SHA-256 of the text, in hexadecimal."""
        return sha256(self.data).hexdigest()

    @property
    def size(self) -> str:
        """The number of tokens for people; `≈` marks an estimate."""
        return f"{self.tokens:,}" if self.exact else f"≈{self.tokens:,}"

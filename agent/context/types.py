"""The result of packing."""

from __future__ import annotations

from hashlib import sha256


class PackedFile:
    """A file in the context.

    Attributes:
        path: Its path as shown.
        tokens: Its number of tokens, delimiters included.
        bytes: Its size on disk.
        part: The part that is shown: `whole`, `signatures` (its definitions), `passages` (the lines that the
            issue is about, after its definitions) or `changes` (since the base of a frozen prefix).
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

    The text consists of chunks. Each starts with `<` and ends with a newline, so that token counts are
    additive.

    Attributes:
        pieces: Parts of the text in UTF-8, to be joined.
        files: The files in the context.
        dropped: Pairs of an omitted file and the reason.
        tokens: Number of tokens of the text; an estimate from its bytes unless `exact`.
        exact: Whether `tokens` is exact.
        redacted: Files in which markers replaced secrets.
        rebased: False if a frozen prefix was kept.
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
        """SHA-256 of the text, in hexadecimal."""
        return sha256(self.data).hexdigest()

    @property
    def size(self) -> str:
        """The number of tokens for people; `≈` marks an estimate."""
        return f"{self.tokens:,}" if self.exact else f"≈{self.tokens:,}"

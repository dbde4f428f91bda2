"""Remove repetitions: a server may resend the whole text with every piece, or send it under several names."""

import io

# Number of different letters from which a repeated beginning is no coincidence. Texts rarely repeat words
# without a space between them, but they do repeat dashes, "haha" and blank lines.
_TELLING_LETTERS = 3
# If the first characters of two fields, this many, are equal, one field repeats the other, whatever follows.
_MIRROR = 40


class Snapshots:
    """One text that comes in pieces; each piece is either new text or the whole text so far.

    MiniMax documents whole texts for its own API, but users see new text. So each piece is classified by
    itself: a piece that begins with the whole earlier text restates it. If that may be coincidence ("a", then
    "and"), the piece is held back until the next one decides.

    Args:
        items: Whether the pieces belong to an entry of a list, which a server may resend unchanged. Without
            it, a piece that equals the only earlier piece is assumed to be new.
    """

    def __init__(self, *, items: bool = False) -> None:
        self._items = items
        self._parts: list[str] = []
        self._length = 0
        self._pieces = 0
        self._held: list[str] = []

    def add(self, piece: str) -> str:
        """Take the next piece; return the text that it adds."""
        if not piece:
            return ""
        if self._held:
            return self._settle(piece)
        if not self._length or not self._restates(piece):
            return self._append(piece)
        only_again = len(piece) == self._length and self._pieces == 1 and not self._items
        if only_again or _letters("".join(self._parts)) < _TELLING_LETTERS:
            self._held.append(piece)
            return ""
        return self._append(piece[self._length :])

    def close(self) -> str:
        """Return the text that was held back: no later piece showed that it is a repetition."""
        held, self._held = "".join(self._held), []
        return self._append(held)

    def _restates(self, piece: str) -> bool:
        if len(piece) < self._length:  # the usual case, and a cheap check
            return False
        return piece.startswith("".join(self._parts))

    def _settle(self, piece: str) -> str:
        last = self._held[-1]
        if not piece.startswith(last):
            return self.close() + self.add(piece)
        telling = _letters(last) + (len(last) > self._length)  # it grew before, which is also evidence
        if len(piece) > len(last) and telling >= _TELLING_LETTERS:
            self._held = []
            return self._append(piece[self._length :])
        self._held.append(piece)
        return ""

    def _append(self, text: str) -> str:
        self._parts.append(text)
        self._length += len(text)
        self._pieces += 1
        return text


class Mirrors:
    """One text that several fields may carry in parallel, each at its own pace."""

    def __init__(self) -> None:
        self._text = io.StringIO()
        self._length = 0
        self._read: dict[str, int] = {}  # characters of the text that each field has repeated
        self._apart: set[str] = set()  # fields with text of their own

    def add(self, field: str, piece: str) -> str:
        """Take the next piece of a field; return the text that no field has brought yet."""
        if field in self._apart:
            return self._append(piece)
        start = self._read.get(field, 0)
        if start == self._length:  # the leading field: the usual case
            self._read[field] = start + len(piece)
            return self._append(piece)
        known = self._between(start, start + len(piece))
        if piece.startswith(known):
            self._read[field] = start + len(piece)
            return self._append(piece[len(known) :])
        self._apart.add(field)
        mistaken = self._between(0, start) if start < _MIRROR else ""
        return self._append(mistaken + piece)

    def _between(self, start: int, end: int) -> str:
        if start >= self._length:
            return ""
        self._text.seek(start)
        return self._text.read(end - start)

    def _append(self, text: str) -> str:
        self._text.seek(0, io.SEEK_END)
        self._text.write(text)
        self._length += len(text)
        return text


def _letters(text: str) -> int:
    return len({character for character in text if character.isalpha()})

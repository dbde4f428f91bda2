"""Text that a server sends more than once: all of it so far with every piece, or under several names."""

import io

# Letters, each counted once, in a text that begins again: from so many on that is no chance. Words are not written
# twice without a space between them, but lines of dashes, "haha" and blank lines are.
_TELLING_LETTERS = 3
# A field whose first so many characters were those of another repeats it, whatever it says later.
_MIRROR = 40


class Snapshots:
    """One text that comes in pieces, of which each is either what is new or all there is so far.

    MiniMax documents the latter for its own API and users see the former, so each piece tells by itself: one
    that begins with the whole text before it restates it. Where that may be chance ("a", then "and") the piece is
    held back until the next one tells. `items` says that the pieces are those of a list's entry, which a server
    may send again as it is; a piece of plain text that equals the only one before is believed to be new.
    """

    def __init__(self, *, items: bool = False) -> None:
        self._items = items
        self._parts: list[str] = []
        self._length = 0
        self._pieces = 0
        self._held: list[str] = []

    def add(self, piece: str) -> str:
        """Take the next piece and return what it adds."""
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
        """What was held back: nothing followed that made it a repetition."""
        held, self._held = "".join(self._held), []
        return self._append(held)

    def _restates(self, piece: str) -> bool:
        if len(piece) < self._length:  # nearly always, and cheap
            return False
        return piece.startswith("".join(self._parts))

    def _settle(self, piece: str) -> str:
        last = self._held[-1]
        if not piece.startswith(last):
            return self.close() + self.add(piece)
        telling = _letters(last) + (len(last) > self._length)  # it grew before, which tells, too
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
    """One text that several fields may carry side by side, each at its own pace."""

    def __init__(self) -> None:
        self._text = io.StringIO()
        self._length = 0
        self._read: dict[str, int] = {}  # how far each field has repeated the text
        self._apart: set[str] = set()  # fields that say something of their own

    def add(self, field: str, piece: str) -> str:
        """Take the next piece of a field and return what no field has said yet."""
        if field in self._apart:
            return self._append(piece)
        start = self._read.get(field, 0)
        if start == self._length:  # the field that leads, nearly always
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

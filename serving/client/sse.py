"""Parse server-sent events from the bytes of a stream."""

import re

_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventReader:
    """Assemble the data of each event from pieces of any size; ignore names, ids and comments.

    Lines end only where the standard says, because text in JSON may contain other separators at which Python
    splits. An event without data is ignored. See
    https://html.spec.whatwg.org/multipage/server-sent-events.html.
    """

    def __init__(self) -> None:
        self._rest = b""  # the line that has not ended yet
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """Take the next bytes; return the data of the events that they complete."""
        text = self._rest + piece if self._rest else piece
        # A carriage return at the end may be half of a line end.
        whole, held = (text[:-1], b"\r") if text.endswith(b"\r") else (text, b"")
        *lines, rest = _LINE_END.split(whole) if b"\r" in whole else whole.split(b"\n")
        self._rest = rest + held
        return self._take(lines)

    @property
    def held(self) -> int:
        """Bytes of the event that is not complete yet."""
        return len(self._rest) + sum(map(len, self._data))

    def close(self) -> list[bytes]:
        """Return the last event if the stream ended without the empty line that should follow it."""
        line, self._rest = self._rest.removesuffix(b"\r"), b""
        return self._take([line, b""])

    def _take(self, lines: list[bytes]) -> list[bytes]:
        events: list[bytes] = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            elif not line and self._data:
                data = b"\n".join(self._data)
                self._data.clear()
                if data.strip():
                    events.append(data)
        return events

"""Server-sent events, from the bytes of a stream."""

import re

_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventReader:
    """Puts the data of each event together from pieces of any size; names, ids and comments say nothing to us.

    Lines end as the standard has it, and nowhere else: text in JSON may hold other separators that Python splits at.
    An event without data is none. See https://html.spec.whatwg.org/multipage/server-sent-events.html.
    """

    def __init__(self) -> None:
        self._rest = b""  # the line that has not ended yet
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """Take the next bytes and return the data of the events they completed."""
        text = self._rest + piece if self._rest else piece
        # A carriage return at the end may be half of a line end.
        whole, held = (text[:-1], b"\r") if text.endswith(b"\r") else (text, b"")
        *lines, rest = _LINE_END.split(whole) if b"\r" in whole else whole.split(b"\n")
        self._rest = rest + held
        return self._take(lines)

    def close(self) -> list[bytes]:
        """The last event, if the stream ended without the empty line that should follow it."""
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

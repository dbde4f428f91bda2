"""Handle `<think>` at the start of an answer: MiniMax's API writes reasoning there unless it is split off."""

from m3agent.serving.wire.arguments import NAMESPACE

_OPEN, _CLOSE = "<think>", "</think>"
_M3_OPEN, _M3_CLOSE = "<mm:think>", "</mm:think>"
_INVOKE, _END_INVOKE = NAMESPACE + "<invoke", NAMESPACE + "</invoke>"
# Each tag is on a line of its own, and a blank line follows.
_ENDINGS = ("\n" + _CLOSE, _CLOSE)
_MOST_NEWLINES_AFTER = 2


class LeadingThink:
    """Rewrite a leading `<think>` block with M3's own tags; later occurrences of the tag stay as they are."""

    def __init__(self) -> None:
        self._pending = ""
        self._state = self._start
        self._newlines = 0
        self._in_call = False
        self._last = ""  # end of the text already returned, which may hold the first half of a call's tag

    @property
    def over(self) -> bool:
        """Whether all further text is returned unchanged."""
        return self._state == self._as_it_is

    def feed(self, text: str) -> str:
        """Take the next piece; return the part that is decided."""
        return self._state(text) if text else ""

    def close(self) -> str:
        """Return the text that was held back."""
        held, self._pending = self._pending, ""
        return held

    def _start(self, text: str) -> str:
        text = self._pending + text
        opening = text.lstrip()
        if opening.startswith(_OPEN):
            rest = opening.removeprefix(_OPEN)
            self._pending = ""
            self._state = self._first_line
            return _M3_OPEN + self.feed(rest)
        if _OPEN.startswith(opening):
            self._pending = text
            return ""
        self._state = self._as_it_is
        self._pending = ""
        return text

    def _first_line(self, text: str) -> str:
        self._state = self._inside
        return self.feed(text.removeprefix("\n"))

    def _inside(self, text: str) -> str:
        text = self._pending + text
        self._pending = ""
        place = text.find(_CLOSE)
        while place >= 0 and self._ends_in_call(text[:place]):  # the tag is part of a call's value
            place = text.find(_CLOSE, place + 1)
        if place >= 0:
            self._state = self._after
            after = text[place + len(_CLOSE) :]
            return text[:place].removesuffix("\n") + _M3_CLOSE + self.feed(after)
        held = max(
            (size for ending in _ENDINGS for size in range(1, len(ending)) if text.endswith(ending[:size])),
            default=0,
        )
        self._pending = text[len(text) - held :]
        decided = text[: len(text) - held]
        self._in_call = self._ends_in_call(decided)
        self._last = (self._last + decided)[-len(_END_INVOKE) :]
        return decided

    def _ends_in_call(self, text: str) -> bool:
        seen = self._last + text
        opened, closed = seen.rfind(_INVOKE), seen.rfind(_END_INVOKE)
        return opened > closed if opened != closed else self._in_call

    def _after(self, text: str) -> str:
        rest = text
        while rest.startswith("\n") and self._newlines < _MOST_NEWLINES_AFTER:
            rest = rest[1:]
            self._newlines += 1
        if rest or self._newlines == _MOST_NEWLINES_AFTER:
            self._state = self._as_it_is
        return rest

    def _as_it_is(self, text: str) -> str:
        return text

"""Assemble tool calls from the pieces that a server parsed and streamed."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from m3agent.serving.wire.coerce import mended_object, strict_value
from m3agent.util.json_value import mapping


@dataclass
class ServerCall:
    """A call that grows piece by piece.

    Some servers send a piece that restarts the arguments: all of them so far, or `{}` until they come. The
    pieces of a nested object can look the same. So the reading that is valid JSON decides which of the two it
    was.
    """

    id: str = ""
    name: str = ""
    shown: bool = False
    """Whether the call's name was already sent to display."""
    _pieces: list[str] = field(default_factory=list)
    _begun: int = 0  # index of the last piece that restarted
    _length: int = 0  # characters since then

    def add(self, arguments: object) -> None:
        """Add a piece of the arguments; some servers send the object itself."""
        piece = "" if arguments is None else _text(arguments)
        if not piece:
            return
        if len(piece) >= self._length and self._begins_again(piece):
            self._begun, self._length = len(self._pieces), 0
        self._pieces.append(piece)
        self._length += len(piece)

    @property
    def text(self) -> str:
        """The arguments as text, as the server sent them."""
        for read in (_strict_object, mended_object):
            for text in self._readings():
                if read(text) is not None:
                    return text
        return self._latest()

    def arguments(self) -> tuple[dict[str, Any] | None, str | None]:
        """Return the arguments as an object, or None and the reason why they are not one."""
        value, problem = _object(self.text)
        mended = mended_object(self.text) if value is None else None
        return (value, problem) if mended is None else (mended, None)

    def restates(self, piece: str) -> bool:
        """Return whether a piece repeats the arguments so far."""
        return piece.startswith(self._latest())

    def is_whole(self) -> bool:
        """Return whether the arguments are complete, and more than the placeholder `{}`."""
        if not self._pieces or not self._pieces[-1].rstrip().endswith("}"):  # cheap check for most pieces
            return False
        return any(map(_strict_object, self._readings()))

    def _readings(self) -> Iterator[str]:
        if self._begun:
            yield "".join(self._pieces)
        yield self._latest()

    def _latest(self) -> str:
        return "".join(self._pieces[self._begun :])

    def _begins_again(self, piece: str) -> bool:
        known = self._latest().strip()
        if known == "{}":
            return piece.lstrip().startswith("{")
        return known.startswith("{") and self.restates(piece)


class CallPieces:
    """Assign each piece to its call; servers may number their calls badly or not at all."""

    def __init__(self) -> None:
        self._calls: list[ServerCall] = []
        self._numbered: dict[int | None, ServerCall] = {}

    def take(self, piece: Mapping[str, Any]) -> tuple[ServerCall, bool]:
        """Add a piece to its call; return the call, and whether this piece began it."""
        function = mapping(piece.get("function"))
        identity, name = _word(piece.get("id")), _word(function.get("name"))
        number = piece.get("index")
        index = number if isinstance(number, int) else None
        arguments = function.get("arguments")
        call = self._known(index, identity, name)
        begins = call is None or _is_another(call, identity, name, arguments)
        if call is None or begins:
            call = ServerCall(name=call.name if call is not None and not name else "")
            self._calls.append(call)
        if index is not None:
            self._numbered[index] = call
        call.id = call.id or identity
        call.name = call.name or name
        call.add(arguments)
        return call, begins

    def _known(self, index: int | None, identity: str, name: str) -> ServerCall | None:
        if index in self._numbered:
            return self._numbered[index]
        if name or not self._calls:
            return None if index is not None else self._with_id(identity)
        last = self._calls[-1]
        if index is None:
            return self._with_id(identity) if identity else last
        # some servers count the pieces of one call as calls
        return last if last.name and not last.is_whole() else None

    def _with_id(self, identity: str) -> ServerCall | None:
        return next((call for call in reversed(self._calls) if identity and call.id == identity), None)


def _is_another(call: ServerCall, identity: str, name: str, arguments: object) -> bool:
    """Return whether a piece with the number or id of a known call begins another call."""
    text = "" if arguments is None else _text(arguments)
    opens = text.lstrip().startswith("{")
    if name and call.name:
        if text and not opens:
            return False  # continues the arguments, whatever its name and id
        if name != call.name or (identity and call.id and identity != call.id):
            return True
    return opens and call.is_whole() and not call.restates(text)


def _object(text: str) -> tuple[dict[str, Any] | None, str | None]:
    try:
        value = strict_value(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        return None, f"the arguments are not valid JSON ({error})"
    if not isinstance(value, dict):
        return None, "the arguments are not a JSON object"
    return value, None


def _strict_object(text: str) -> dict[str, Any] | None:
    return _object(text)[0]


def _text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""

"""Events with a planted text in every field, made from the event types, so that a new field cannot be forgotten."""

from __future__ import annotations

from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from m3agent.agent.session import events
from m3agent.agent.session.events import Event
from m3agent.agent.session.log_reader import Line
from m3agent.agent.session.session import line_of

EVENT_TYPES = tuple(Event.__subclasses__())
SESSION = "20260101-000000-abcdef"
KNOWN: dict[tuple[str, str], tuple[str, ...]] = {
    ("session.started", "repository"): ("root", "git_dir", "head", "branch"),
    ("session.started", "issue"): ("title", "source", "digest", "text"),
    ("session.started", "endpoint"): ("url", "source", "description"),
    ("session.started", "sandbox"): ("backend", "image", "memory"),
    ("session.started", "settings"): ("model",),
    ("session.started", "attempt"): ("hint", "group"),
    ("message", "calls"): ("id", "name", "arguments"),
    ("call.started", "arguments"): ("path", "command", "program", "test_file"),
    ("attempt.chosen", "ranking"): ("session", "verdict"),
    ("verify", "review"): ("path", "line", "text", "what"),
}
"""Fields of free-form objects that readers know, by event type and field. Each is a text."""
NUMBERS: dict[tuple[str, str], dict[str, Any]] = {
    ("session.started", "repository"): {"bare": False, "shallow": False, "dirty": 1},
    ("session.started", "attempt"): {"number": 1, "of": 2, "temperature": 1.0, "seed": 1},
}
"""The other fields of these objects."""


def hostile_lines(planted: str, *, forged: bool = False) -> list[Line]:
    """Return one line of a log for each type of event, with `planted` in each text.

    Args:
        planted: The text.
        forged: Put it into fields with a fixed set of texts as well, as in a log that somebody else wrote.
    """
    return [line_of(_event(kind, planted, forged=forged), n, SESSION) for n, kind in enumerate(EVENT_TYPES)]


def _event(kind: type[Event], planted: str, *, forged: bool) -> Event:
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name not in ("type", "__test__")}
    return kind(**{name: _value(hint, (kind.type, name), planted, forged) for name, hint in hints.items()})


def _value(hint: Any, field: tuple[str, str], planted: str, forged: bool) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _value(inner[0], field, planted, forged)
    if origin is Literal:
        return planted if forged else inner[0]
    if origin in (list, tuple):
        items = [_value(item, field, planted, forged) for item in inner if item is not Ellipsis]
        return items if origin is list else tuple(items)
    if origin is dict and inner[1] is Any:
        texts = {
            **dict.fromkeys(KNOWN.get(field, ()), planted),
            planted: planted,
            "deep": [{planted: planted}],
        }
        return texts | NUMBERS.get(field, {})
    if origin is dict:
        return {planted: _value(inner[1], field, planted, forged)}
    return {str: planted, int: 7, float: 1.5, bool: True}[hint]


assert events.SessionStarted in EVENT_TYPES

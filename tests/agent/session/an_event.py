"""Make events of which only a few fields matter."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from m3agent.agent.session.events import Event

E = TypeVar("E", bound=Event)


def empty(hint: Any) -> Any:
    """Return the empty value of a type: None if it may be None, otherwise 0, "" or the like."""
    if type(None) in get_args(hint):
        return None
    if get_origin(hint) is Literal:
        return get_args(hint)[0]
    return (get_origin(hint) or hint)()


def an_event(kind: type[E], **values: Any) -> E:
    """Return an event with these values; each other field has its default, or is empty."""
    hints = get_type_hints(kind)
    needed = [
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    return kind(**{name: empty(hints[name]) for name in needed} | values)

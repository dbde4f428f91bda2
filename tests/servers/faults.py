"""Faults in transit, applied to the chunks of any dialect."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from tests.servers.dialects import Chunk
from tests.servers.misbehaving import Cut, Stream


def without_finish(chunks: list[Chunk]) -> list[Chunk]:
    """Remove the finish reason from every chunk."""
    return relabelled(chunks, None)


def relabelled(chunks: list[Chunk], reason: str | None) -> list[Chunk]:
    """Replace the finish reason."""
    changed = copy.deepcopy(chunks)
    for chunk in changed:
        for choice in chunk["choices"]:
            if choice.get("finish_reason"):
                choice["finish_reason"] = reason
    return changed


def changed_calls(chunks: list[Chunk], change: Callable[[Chunk], object]) -> list[Chunk]:
    """Apply `change` to each piece of a call."""
    changed = copy.deepcopy(chunks)
    for made in _pieces(changed):
        change(made)
    return changed


def half_call(chunks: list[Chunk]) -> list[Chunk]:
    """Cut off the last call in the middle of its arguments."""
    changed = copy.deepcopy(chunks)
    places = [
        place for place, chunk in enumerate(changed) if any(True for _ in _pieces([chunk], whole=False))
    ]
    last = places[-1]
    (made,) = _pieces([changed[last]], whole=False)
    function = made["function"]
    function["arguments"] = function["arguments"][: len(function["arguments"]) // 2]
    for chunk in changed:  # drop the whole message at the end, which would repeat the full call
        for choice in chunk["choices"]:
            if choice.pop("message", None):
                choice["delta"] = {}
    return changed


def failing(chunks: list[Chunk], after: int, error: Any) -> list[Any]:
    """End the stream with an error after `after` chunks."""
    return [*chunks[:after], error]


def cut(sent: list[bytes], after: int) -> Stream:
    """Lose the connection between two events."""
    return Stream([*sent[:after], Cut()])


def cut_inside(sent: list[bytes], event: int) -> Stream:
    """Lose the connection in the middle of an event."""
    return Stream([*sent[:event], sent[event][: len(sent[event]) // 2], Cut()])


def ended_early(sent: list[bytes], after: int) -> Stream:
    """End the stream early, but without an error."""
    return Stream([*sent[:after]], done=False)


def _pieces(chunks: list[Chunk], *, whole: bool = True) -> Iterator[Chunk]:
    for chunk in chunks:
        for choice in chunk["choices"]:
            for part in [choice.get("delta"), choice.get("message") if whole else None]:
                yield from (part or {}).get("tool_calls") or []

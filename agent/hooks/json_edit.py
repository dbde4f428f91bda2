"""Add members to a JSON text, and take them away again, without changing another byte."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from json.decoder import JSONDecoder
from typing import Any

_SPACE = re.compile(r"[ \t\r\n]*")
_SURROGATE = re.compile("[\ud800-\udfff]")
"""What JSON can only write as an escape sequence."""
_INDENT = re.compile(r"\n([ \t]+)\S")


class NotExtensible(ValueError):
    """The text is not JSON, or has something else where a member belongs. The message is a clause."""


def with_entries(text: str, entries: Mapping[str, object]) -> tuple[str, list[str]]:
    """Add one entry to each of several lists in the object `hooks`.

    Args:
        text: The JSON text; empty for a file that does not exist.

    Returns:
        The new text, and the pieces that were added, in this order.

    Raises:
        NotExtensible: The text has another form.
    """
    whole = {"hooks": {name: [entry] for name, entry in entries.items()}}
    if not text.strip():
        piece = json.dumps(whole, indent=2) + "\n"
        return text + piece, [piece]
    root = _parsed(text)
    if "hooks" not in root:
        text, piece = _with_member(text, (), whole)
        return text, [piece]
    pieces = []
    for name, entry in entries.items():
        if name in root["hooks"]:
            text, piece = _with_item(text, name, entry)
        else:
            text, piece = _with_member(text, ("hooks",), {name: [entry]})
        pieces.append(piece)
    return text, pieces


def without_pieces(text: str, pieces: Sequence[str]) -> str | None:
    """Return a text without the pieces that were added to it; None if one of them is not there, or not whole."""
    for piece in reversed(pieces):
        if text.count(piece) != 1:
            return None
        text = text.replace(piece, "")
    try:
        json.loads(text.strip() or "{}")
    except ValueError:
        return None
    return text


def without_commands(text: str, ours: re.Pattern[str]) -> str:
    """Return a JSON text without the hooks whose command matches, and without what is empty then; as it is if none does.

    Raises:
        NotExtensible: The text has another form.
    """
    root = _parsed(text)
    hooks = root.get("hooks", {})
    kept = {
        name: [left for group in groups for left in _without(group, ours)] for name, groups in hooks.items()
    }
    if kept == hooks:
        return text
    root["hooks"] = {name: groups for name, groups in kept.items() if groups or not hooks[name]}
    if not root["hooks"]:
        del root["hooks"]
    new = json.dumps(root, indent=_indent(text), ensure_ascii=False) + "\n"
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", new)


def _without(group: Any, ours: re.Pattern[str]) -> list[Any]:
    """Return a group of hooks without ours, in a list; no group if no other hook is left in it."""
    hooks = group.get("hooks") if isinstance(group, dict) else None
    if not isinstance(hooks, list):
        return [group]
    kept = [hook for hook in hooks if not (isinstance(hook, dict) and ours.search(str(hook.get("command"))))]
    if kept == hooks:
        return [group]
    return [{**group, "hooks": kept}] if kept else []


def _parsed(text: str) -> dict[str, Any]:
    try:
        root = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotExtensible(f"it is not JSON ({error})") from None
    if not isinstance(root, dict):
        raise NotExtensible("it is not a JSON object")
    hooks = root.get("hooks", {})
    if not isinstance(hooks, dict):
        raise NotExtensible("its `hooks` is not an object")
    for name, groups in hooks.items():
        if not isinstance(groups, list):
            raise NotExtensible(f"its `hooks.{name}` is not a list")
    return root


def _with_member(text: str, path: Sequence[str], member: Mapping[str, object]) -> tuple[str, str]:
    """Add a member at the end of the object at a path. Return the text, and the piece that was added."""
    value = json.dumps(member, indent=_indent(text), ensure_ascii=False)[1:-1].strip()
    return _inserted(text, path, value, len(path))


def _with_item(text: str, name: str, item: object) -> tuple[str, str]:
    """Add an item at the end of a list of `hooks`. Return the text, and the piece that was added."""
    value = json.dumps(item, indent=_indent(text), ensure_ascii=False)
    return _inserted(text, ("hooks", name), value, 3)


def _inserted(text: str, path: Sequence[str], value: str, depth: int) -> tuple[str, str]:
    """Insert a value at the end of the object or list at a path. Its lines after the first are indented by `depth` more."""
    unit = _indent(text)
    margin, value = unit * (len(path) + 1), value.replace("\n", f"\n{unit * depth}")
    end = _end(text, path) - 1
    at = len(text[:end].rstrip(" \t\r\n"))
    piece = f",\n{margin}{value}"
    if text[at - 1] in "{[":
        close = "" if "\n" in text[at:end] else f"\n{unit * len(path)}"
        piece = f"{piece[1:]}{close}"
    return text[:at] + piece + text[at:], piece


def _end(text: str, path: Sequence[str]) -> int:
    """Return the position after the value at a path."""
    start, end = _skipped(text, 0), len(text.rstrip(" \t\r\n"))
    for name in path:
        start, end = {key: span for key, *span in _members(text, start)}[name]
    return end


def _members(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """Yield the members of the object that begins at a position of a valid text: name, begin and end of its value."""
    decoder = JSONDecoder()
    at = _skipped(text, at + 1)
    while text[at] != "}":
        name, at = decoder.raw_decode(text, at)
        start = _skipped(text, _skipped(text, at) + 1)
        _, end = decoder.raw_decode(text, start)
        yield name, start, end
        at = _skipped(text, end)
        if text[at] == ",":
            at = _skipped(text, at + 1)


def _skipped(text: str, at: int) -> int:
    """Return the position of the next character that is not space."""
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def _indent(text: str) -> str:
    """Return what the text indents with."""
    match = _INDENT.search(text)
    return "  " if match is None else match[1]

"""Read calls that a model wrote as JSON: in a block of calls, or at the end of its text, in place of calling.

At the end of a text, a call counts only if its tool was offered and nothing follows it. Its tag or fence must begin a line,
outside of other fenced blocks: anything else may be an example, or a file that the text quotes.
"""

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from m3agent.serving.wire.coerce import mended_object, refuse
from m3agent.util.json_value import mapping

_FENCE = re.compile(r"(`{3,}|~{3,})[ \t]*(json|jsonl|tool_calls?|)[ \t]*$")
_ANY_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)$")
_TAG = re.compile(r"<(tool_calls?|function_calls?)>|\[(TOOL_CALLS?)\]")
_ARGUMENTS = ("arguments", "parameters", "input", "args")
_BESIDE = frozenset({"name", "id", "type", "index", *_ARGUMENTS})
_DECODER = json.JSONDecoder(strict=False, parse_constant=refuse)
_BLANK = re.compile(r"[\s,;]*")


@dataclass(frozen=True)
class Call:
    """A tool call."""

    name: str
    """Name of the tool."""
    arguments: dict[str, Any]
    """The arguments as JSON values."""
    raw: str = field(default="", compare=False)
    """The markup from which the call was read."""


def calls_at_end(text: str, offered: Collection[str]) -> tuple[str, list[Call]]:
    """Return the text before the calls that end it, and the calls; if there are none, the whole text.

    Args:
        text: The whole visible text of a message.
        offered: Names of the tools that the request offered.
    """
    read_to = 0  # a model may repeat a call thousands of times: nothing is read twice
    for start, fence in _openings(text):
        if start < read_to:
            continue
        calls, read_to = _fenced(text, start, fence, offered) if fence else _tagged(text, start, offered)
        if calls:
            return text[:start].rstrip(), calls
    return text, []


def _openings(text: str) -> Iterator[tuple[int, str]]:
    """Yield where a tag begins a line outside of fenced blocks, and where such a block of JSON begins, with its fence."""
    position, fence = 0, ""
    for line in text.split("\n"):
        opening = _ANY_FENCE.match(line)
        if fence:
            closes = opening is not None and opening[1].startswith(fence) and not opening[2].strip()
            fence = "" if closes else fence
        elif opening is not None:
            if _FENCE.match(line):
                yield position, opening[1]
            fence = opening[1]
        elif _TAG.match(line):
            yield position, ""
        position += len(line) + 1


def _fenced(text: str, start: int, fence: str, offered: Collection[str]) -> tuple[list[Call], int]:
    """Return the calls in a block, and where it ends; none if it has anything else, or is not the end of the text."""
    calls, at = _calls(text, text.find("\n", start) + 1, offered)
    return calls if text[at:].rstrip() == fence else [], at


def _tagged(text: str, start: int, offered: Collection[str]) -> tuple[list[Call], int]:
    """Return the calls in the tags from `start` to the end of the text, and how far it was read; none if there is anything else."""
    found: list[Call] = []
    while opening := _TAG.match(text, start):
        calls, at = _calls(text, opening.end(), offered)
        closing = f"</{opening[1]}>" if opening[1] else f"[/{opening[2]}]"
        if not calls or not (text.startswith(closing, at) or (opening[2] and at == len(text))):
            return [], at
        found += calls
        start = _after_blanks(text, at + len(closing))
    return found if start >= len(text) else [], start


def _calls(text: str, at: int, offered: Collection[str]) -> tuple[list[Call], int]:
    """Read JSON values as calls; return them, none if a value is no call, and where other text begins."""
    calls: list[Call] = []
    at = _after_blanks(text, at)
    while text.startswith(("{", "["), at):
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        for item in value if isinstance(value, list) else [value]:
            call = call_of(item, text[at:end], offered, alone=True)
            if call is None:
                return [], end
            calls.append(call)
        at = _after_blanks(text, end)
    return calls, at


def call_of(value: object, raw: str, offered: Collection[str], *, alone: bool = False) -> Call | None:
    """Return the call of an offered tool that a JSON value is; with `alone`, only if it has nothing else."""
    written = mapping(mapping(value).get("function")) or mapping(value)
    name, given = written.get("name"), [written[key] for key in _ARGUMENTS if key in written]
    if not isinstance(name, str) or name not in offered or len(given) != 1:
        return None
    arguments = mended_object(given[0]) if isinstance(given[0], str) else given[0]
    if not isinstance(arguments, dict) or (alone and not _BESIDE.issuperset(written)):
        return None
    return Call(name, arguments, raw)


def _after_blanks(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at

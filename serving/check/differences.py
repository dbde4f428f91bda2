"""Describe in a few words how one message differs from another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from m3agent.serving.check.script import ScriptedMessage
from m3agent.serving.wire.arguments import NAMESPACE

_SHOWN = 24  # characters to quote on each side of a difference


def faults(said: ScriptedMessage, wanted: ScriptedMessage) -> list[str]:
    """Return what is wrong with a message that should equal `wanted`; empty if nothing is."""
    found: list[str] = []
    within = bool(wanted.reasoning) and wanted.reasoning in said.text
    if within:
        found.append("the reasoning is inside the text")
    elif "mm:think>" in said.text:
        found.append("think tags are inside the text")
    elif difference := _difference(wanted.reasoning, said.reasoning, "the reasoning"):
        found.append(difference)
    for place, text in (("text", said.text), ("reasoning", said.reasoning)):
        if NAMESPACE in text:
            found.append(f"calls are inside the {place} as markup")
    if not found and (difference := _difference(wanted.text, said.text, "the text")):
        found.append(difference)
    if len(said.calls) != len(wanted.calls):
        if not any("markup" in fault for fault in found) or said.calls:
            found.append(f"{_count(len(said.calls))} received, not {len(wanted.calls)}")
        return found
    for number, (call, right) in enumerate(zip(said.calls, wanted.calls, strict=True), start=1):
        if call[0] != right[0]:
            found.append(f"call {number} is to {call[0]!r}, not to {right[0]!r}")
        elif difference := _difference(right[1], call[1], f"call {number}"):
            found.append(difference)
    return found


def _count(number: int) -> str:
    return {0: "no call", 1: "1 call"}.get(number, f"{number} calls")


def _difference(wanted: Any, got: Any, where: str) -> str | None:
    """Return the first difference between two JSON values, or None.

    Numbers compare as in JSON, but a truth value never equals a number.
    """
    if isinstance(wanted, Mapping) and isinstance(got, Mapping):
        for key in (*wanted, *(key for key in got if key not in wanted)):
            inner = f"{key!r} of {where}"
            if key not in got:
                return f"{inner} is missing"
            if key not in wanted:
                return f"{inner} was added"
            if found := _difference(wanted[key], got[key], inner):
                return found
        return None
    if isinstance(wanted, list) and isinstance(got, list):
        if len(wanted) != len(got):
            return f"{where} has {len(got)} entries, not {len(wanted)}"
        pairs = enumerate(zip(wanted, got, strict=True), start=1)
        return next(
            (found for at, (a, b) in pairs if (found := _difference(a, b, f"entry {at} of {where}"))), None
        )
    if isinstance(wanted, str) and isinstance(got, str):
        return _difference_of_texts(wanted, got, where)
    if wanted == got and isinstance(wanted, bool) == isinstance(got, bool):
        return None
    return f"{where} is {_short(got)}, not {_short(wanted)}"


def _difference_of_texts(wanted: str, got: str, where: str) -> str | None:
    if wanted == got:
        return None
    if not got:
        return f"{where} is missing"
    if wanted.rstrip("\n") == got:
        return f"{where} lost the newline at its end"
    pairs = enumerate(zip(wanted, got, strict=False))
    at = next((place for place, (a, b) in pairs if a != b), min(len(wanted), len(got)))
    start = max(0, at - _SHOWN)
    return f"{where} has {got[start : at + _SHOWN]!r} where {wanted[start : at + _SHOWN]!r} was written"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 2 * _SHOWN else text[: 2 * _SHOWN] + "…"

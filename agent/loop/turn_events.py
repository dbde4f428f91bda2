"""Build the log events of a turn from answers, results and verdicts, and read answers and results back."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal

from m3agent.agent.session import events
from m3agent.agent.session.log_reader import Line
from m3agent.agent.session.usage import Totals, cached_share, tokens_per_second
from m3agent.serving.client.messages import AssistantMessage, ToolCall, Turn, Usage
from m3agent.tools.base import ToolResult

KINDS = ("prompt", "cached", "completion", "reasoning")
"""Kinds of tokens: fields of `Usage`, and with `_tokens` fields of `turn.finished`."""
TESTS = ("passed", "failed", "errored", "skipped", "complete")
CallStatus = Literal["done", "refused", "interrupted"]
ACTIONS = {"tell": "told", "force": "forced", "stop": "stopped"}
"""The actions of the stall detector, as the log names them."""


def message(turn: int, answer: Turn) -> events.Message:
    """Return the event for an answer."""
    calls = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in answer.message.calls]
    return events.Message.of(answer.message, turn=turn, calls=calls)


def turn_finished(turn: int, answer: Turn, price: float | None) -> events.TurnFinished:
    """Return the event for the end of an answer, with its usage; `price` is in US dollars, None if unknown."""
    usage = answer.usage
    return events.TurnFinished.of(
        answer,
        turn=turn,
        cached_share=cached_share(usage),
        tokens_per_second=tokens_per_second(answer),
        price=price,
        **tokens_of(usage),
    )


def tokens_of(usage: Usage | Totals) -> dict[str, int | None]:
    """Return the numbers of tokens, as events name them."""
    return {f"{kind}_tokens": getattr(usage, kind) for kind in KINDS}


def answer_of(line: Line) -> Turn:
    """Return the answer of a `turn.finished`, with its usage but without its text."""
    usage = Usage(**{kind: line[f"{kind}_tokens"] for kind in KINDS})
    return Turn(AssistantMessage(), usage, line["finish"], line["seconds"], line["first_token_seconds"])


def call_finished(
    turn: int, number: int, call: ToolCall, result: ToolResult, status: CallStatus, seconds: float, tree: str
) -> events.CallFinished:
    """Return the event for the result of a call; `tree` is the work tree after it."""
    seconds = round(seconds, 4)
    return events.CallFinished.of(
        call, result, turn=turn, call=number, status=status, seconds=seconds, tree=tree
    )


def result_of(line: Line) -> ToolResult:
    """Return the result in a `call.finished`."""
    return ToolResult(**{field.name: line[field.name] for field in fields(ToolResult) if field.name in line})


def tests_finished(number: int, result: ToolResult, tree: str) -> events.TestFinished:
    """Return the event for a test run in the session; the result must contain the outcomes of tests."""
    sets: dict[str, Any] = {name: result.data[name] for name in TESTS}
    return events.TestFinished(where="session", call=number, tree=tree, **sets)

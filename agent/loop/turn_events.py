"""Build the log events of a turn from answers, results and verdicts, and read answers and results back."""

from __future__ import annotations

from typing import Any, Literal

from m3agent.agent.session import events
from m3agent.agent.session.log_reader import Line
from m3agent.agent.session.usage import cached_share, tokens_per_second
from m3agent.agent.stall import StallVerdict
from m3agent.serving.client.messages import AssistantMessage, ToolCall, Turn, Usage
from m3agent.tools.base import ToolResult

TESTS = ("passed", "failed", "errored", "skipped", "complete")
CallStatus = Literal["done", "refused", "interrupted"]
ACTIONS: dict[str, Literal["told", "forced", "stopped"]] = {
    "tell": "told",
    "force": "forced",
    "stop": "stopped",
}


def message(turn: int, answer: Turn) -> events.Message:
    """Return the event for an answer."""
    said = answer.message
    calls = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in said.calls]
    return events.Message(turn=turn, reasoning=said.reasoning, text=said.text, calls=calls)


def turn_finished(turn: int, answer: Turn, price: float | None) -> events.TurnFinished:
    """Return the event for the end of an answer, with its usage; `price` is in US dollars, None if unknown."""
    usage = answer.usage
    return events.TurnFinished(
        turn=turn,
        finish=answer.finish,
        prompt_tokens=usage.prompt,
        cached_tokens=usage.cached,
        completion_tokens=usage.completion,
        reasoning_tokens=usage.reasoning,
        cached_share=cached_share(usage),
        tokens_per_second=tokens_per_second(answer),
        first_token_seconds=answer.first_token_seconds,
        seconds=answer.seconds,
        price=price,
    )


def answer_of(line: Line) -> Turn:
    """Return the answer of a `turn.finished`, with its usage but without its text."""
    usage = Usage(
        prompt=line["prompt_tokens"],
        cached=line["cached_tokens"],
        completion=line["completion_tokens"],
        reasoning=line["reasoning_tokens"],
    )
    return Turn(AssistantMessage(), usage, line["finish"], line["seconds"], line["first_token_seconds"])


def call_finished(
    turn: int, number: int, call: ToolCall, result: ToolResult, status: CallStatus, seconds: float, tree: str
) -> events.CallFinished:
    """Return the event for the result of a call; `tree` is the work tree after it."""
    return events.CallFinished(
        turn=turn,
        call=number,
        id=call.id,
        name=call.name,
        status=status,
        content=result.content,
        is_error=result.is_error,
        exit_code=result.exit_code,
        digest=result.digest,
        truncated=result.truncated,
        full_path=result.full_path,
        data=result.data,
        seconds=round(seconds, 4),
        tree=tree,
    )


def result_of(line: Line) -> ToolResult:
    """Return the result in a `call.finished`."""
    return ToolResult(
        line["content"],
        is_error=line["is_error"],
        exit_code=line["exit_code"],
        digest=line["digest"],
        truncated=line["truncated"],
        full_path=line["full_path"],
        data=line["data"],
    )


def tests_finished(number: int, result: ToolResult, tree: str) -> events.TestFinished:
    """Return the event for a test run in the session; the result must contain the outcomes of tests."""
    sets: dict[str, Any] = {name: result.data[name] for name in TESTS}
    return events.TestFinished(where="session", call=number, tree=tree, **sets)


def stall(turn: int, verdict: StallVerdict, text: str) -> events.Stall:
    """Return the event for a stall verdict; `text` is the note to the model, or the reason for the end."""
    action = ACTIONS[verdict.action]
    return events.Stall(turn=turn, rule=verdict.rule, count=verdict.count, action=action, text=text)

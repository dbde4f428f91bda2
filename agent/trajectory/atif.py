"""Convert a session into an ATIF trajectory (Agent Trajectory Interchange Format 1.8, from the Harbor project)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from m3agent import __version__
from m3agent.agent.session import log_reader as log
from m3agent.agent.session.log_reader import Line
from m3agent.agent.session.messages import Message
from m3agent.agent.session.record import CallRecord, SessionRecord, TurnRecord
from m3agent.agent.trajectory.history import (
    clean,
    clean_first,
    issue_text,
    offered,
    proven,
    result_of,
    results,
    system_text,
    text_in,
    told_after,
)
from m3agent.agent.verify.test_sets import TEST_SETS
from m3agent.serving.client.messages import TurnTokens
from m3agent.util.json_value import items, mapping

SCHEMA = "ATIF-v1.8"
NO_TOKENS: Mapping[int, TurnTokens] = MappingProxyType({})
COUNTS = ("turns", "calls", "reasoning_tokens")
RATES = ("cached_share", "tokens_per_second", "first_token_seconds", "seconds")


def to_atif(
    record: SessionRecord,
    messages: Sequence[Message] | None = None,
    tokens: Mapping[int, TurnTokens] = NO_TOKENS,
) -> dict[str, Any]:
    """Return the trajectory as JSON values. It is valid for every log. docs/trajectories.md describes its fields.

    Args:
        messages: The session's messages, if they were kept. They are used only if their digest matches the log. The
            first two steps then contain the system message and the repository.
    """
    kept = proven(record, messages)
    # after a summary, the kept messages behind the first ones differ from those of earlier requests
    whole = None if record.of_type("context.summarised") else kept
    steps = [*_first_steps(record, kept), *_turn_steps(record, whole)]
    steps += [
        _step("system", error, log.text(error, "text"), {"kind": "error", "error": log.text(error, "kind")})
        for error in record.errors
    ]
    for number, step in enumerate(steps, start=1):
        step["step_id"] = number
        if step["source"] == "agent" and (found := tokens.get(step.get("extra", {}).get("turn"))):
            step["metrics"] = {**step.get("metrics", {}), **_token_metrics(found)}
    session = log.text(record.started or record.ended, "session")
    trajectory = {
        "schema_version": SCHEMA,
        "session_id": session or None,
        "trajectory_id": session or None,
        "agent": _agent(record),
        "steps": steps,
        "notes": _notes(record, messages is not None and kept is None),
        "final_metrics": _final_metrics(record, len(steps)),
        "extra": _extra(record),
    }
    cleaned = _some(clean(trajectory))
    if kept and record.started:
        cleaned["steps"][1]["message"] = clean_first(text_in(kept[1].get("content")), record)
    return cleaned


def _some(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values without None: ATIF leaves out unknown values."""
    return {key: value for key, value in values.items() if value is not None}


def _object(**values: Any) -> dict[str, Any] | None:
    """Return the values without None; None if no value is known."""
    return _some(values) or None


def _fields(read: Callable[[Line, str], Any], line: Line, *names: str) -> dict[str, Any]:
    return {name: read(line, name) for name in names}


def _text(line: Line, name: str) -> str | None:
    """Return a text of a line; None if it is missing or empty."""
    return log.text(line, name) or None


def _time(line: Line) -> str | None:
    stamp = log.text(line, "ts")
    try:
        datetime.fromisoformat(stamp.removesuffix("Z"))
    except ValueError:
        return None
    return stamp if "Z" not in stamp[:-1] else None  # a Z elsewhere is not a time zone


def _step(source: str, line: Line, message: str, extra: dict[str, Any]) -> dict[str, Any]:
    step = {"step_id": 0, "timestamp": _time(line), "source": source, "message": message}
    return _some({**step, "extra": _object(**extra)})


def _first_steps(record: SessionRecord, kept: Sequence[Message] | None) -> list[dict[str, Any]]:
    """Return the steps for the first two messages: the kept messages, or else the parts that the log contains."""
    if not record.started:
        return []
    issue = mapping(record.started, "issue")
    extra = {
        "kind": "issue",
        "issue": _fields(log.text, issue, "title", "source", "digest"),
        "images": [image for image in items(issue, "images") if isinstance(image, dict)] or None,
        "context": _context(record.last_prepared("context.packed")),
    }
    if kept:
        # `to_atif` adds the user's text at the end: it may have megabytes, and its files are clean already
        system, user = text_in(kept[0].get("content")), ""
        of_system = of_user = "as sent"
    else:
        system, user = system_text(record), issue_text(record)
        of_system = f"as m3agent {__version__} sends it" if system else "not in the log"
        of_user = "the issue only: the repository's text is not in the log"
    return [
        _step("system", record.started, system, {"kind": "system", "text": of_system}),
        _step("user", record.started, user, {**extra, "text": of_user}),
    ]


def _context(context: Line) -> dict[str, Any] | None:
    if not context:
        return None
    return {
        "digest": log.text(context, "digest"),
        "tokens": log.whole(context, "tokens"),
        "exact": context.get("exact") is True,
        "files": log.whole(context, "files"),
    }


def _turn_steps(record: SessionRecord, kept: Sequence[Message] | None) -> Iterable[dict[str, Any]]:
    before = 2  # expected number of messages in the next request, as far as the log contains them
    answered = record.answered
    for turn in record.turns:
        if not turn.answer:  # the answer was aborted
            yield from _loose_steps(turn)
            continue
        unlogged = max(0, turn.sent - before) if turn.sent is not None else 0
        if unlogged and kept and turn.sent is not None:
            told = [message for message in kept[before : turn.sent] if message.get("role") == "user"]
            for message in told:
                yield _step("user", turn.request, text_in(message.get("content")), {"kind": "harness"})
            unlogged -= len(told)
        read = results(kept, turn) if kept and turn.sent is not None else {}
        line, said = told_after(turn, is_last=turn is answered[-1])
        yield _agent_step(turn, line.get("type") == "gate", unlogged, read)
        yield from _loose_steps(turn)
        before = (turn.sent if turn.sent is not None else before) + 1 + len(turn.asked)
        if said:
            counts = _fields(log.whole, line, "asked", "round")
            extra = {"kind": line["type"], **counts, "kinds": items(line, "kinds") or None}
            yield _step("user", line, said, extra)
            before += 1


def _loose_steps(turn: TurnRecord) -> Iterable[dict[str, Any]]:
    """Yield steps for summaries, and for stalls outside calls, which ended the session or aborted an answer."""
    for summary in turn.of_type("context.summarised"):
        extra = {"kind": "summary", "own_words": summary.get("own_words") is True}
        yield _step("user", summary, log.text(summary, "text"), extra)
    for stall in turn.of_type("stall"):
        yield _step("system", stall, log.text(stall, "text"), {"kind": "stall", **_stall(stall)})


def _agent_step(turn: TurnRecord, told: bool, unlogged: int, read: dict[str, str]) -> dict[str, Any]:
    gates, retries = turn.of_type("gate"), [line for line in turn.before if line["type"] == "retry"]
    passed = gates and not told
    extra: dict[str, Any] = {
        "turn": log.whole(turn.answer, "turn"),
        "finish": _text(turn.finished, "finish"),
        "retries": [{"reason": log.text(retry, "reason")} for retry in retries] or None,
        "gate": {"missing": log.text(gates[-1], "missing"), "let_through": True} if passed else None,
        "messages_not_in_log": unlogged or None,
    }
    step = _step("agent", turn.answer, turn.text, extra)
    observed = [_result(call, read) for call in turn.asked if call.finished]
    step |= {
        "llm_call_count": 1,
        "reasoning_content": turn.reasoning or None,
        "tool_calls": [_tool_call(call) for call in turn.asked] or None,
        "observation": {"results": observed} if observed else None,
        "metrics": _metrics(turn.finished),
    }
    return _some(step)


def _tool_call(call: CallRecord) -> dict[str, Any]:
    extra = _object(
        malformed_arguments=True if call.arguments is None else None,
        result=None if call.finished else "none: the call was cut off",
    )
    values = {"tool_call_id": call.key, "function_name": call.name, "arguments": call.arguments or {}}
    return _some({**values, "extra": extra})


def _result(call: CallRecord, read: dict[str, str]) -> dict[str, Any]:
    finished, runs = call.finished, call.of_type("test.finished")
    changes = [change for line in call.of_type("file.changed") for change in items(line, "changes")]
    extra = {
        "call": log.whole(finished, "call"),
        "status": _text(finished, "status"),
        "is_error": finished.get("is_error") is True,
        "exit_code": log.whole(finished, "exit_code"),
        "truncated": finished.get("truncated") is True,
        "digest": _text(finished, "digest"),
        "seconds": log.number(finished, "seconds"),
        "changes": changes or None,
        "tests": {key: len(items(runs[-1], key)) for key in OUTCOMES} if runs else None,
        "stalls": [_stall(stall) for stall in call.of_type("stall")] or None,
    }
    content = read.get(call.key, result_of(call) or "")
    return {"source_call_id": call.key, "content": content, "extra": _some(extra)}


NOT_SHOWN = ("network.request", "file.changed", "test.finished")
"""Types of events that a trajectory cannot contain if they belong to a turn but to no call."""
OUTCOMES = ("passed", "failed", "errored", "skipped")


def _stall(stall: Line) -> dict[str, Any]:
    return _some({**_fields(log.text, stall, "rule", "action"), "count": log.whole(stall, "count")})


def _metrics(finished: Line) -> dict[str, Any] | None:
    reasoning = _fields(log.whole, finished, "reasoning_tokens")
    return _object(
        **_fields(log.whole, finished, "prompt_tokens", "completion_tokens", "cached_tokens"),
        cost_usd=log.number(finished, "price"),
        extra=_object(**reasoning, **_fields(log.number, finished, *RATES)),
    )


def _token_metrics(tokens: TurnTokens) -> dict[str, Any]:
    return {
        "prompt_token_ids": list(tokens.prompt),
        "completion_token_ids": list(tokens.completion),
        **({"logprobs": list(tokens.logprobs)} if tokens.logprobs else {}),
    }


def _final_metrics(record: SessionRecord, steps: int) -> dict[str, Any]:
    """Return the session's totals; without an end, the known sums over its turns."""
    finished = record.ended
    extra = _object(
        **_fields(_text, finished, "status", "reason"),
        **_fields(log.whole, finished, "exit", *COUNTS),
        **_fields(log.number, finished, *RATES),
    )
    totals = {
        f"total_{name}": _count(record.total(name))
        for name in ("prompt_tokens", "completion_tokens", "cached_tokens")
    }
    return _some({**totals, "total_cost_usd": record.total("price"), "total_steps": steps, "extra": extra})


def _count(value: float | None) -> int | None:
    return None if value is None else int(value)


def _agent(record: SessionRecord) -> dict[str, Any]:
    started, endpoint = record.started, record.last_prepared("endpoint.probed")
    same = started.get("m3agent") == __version__
    sandbox = mapping(started, "sandbox")
    server = _object(
        **_fields(_text, endpoint, "flavour", "version"), **_fields(log.whole, endpoint, "max_model_len")
    )
    image = _text(record.last_prepared("environment.ready"), "image") or _text(sandbox, "image")
    values = {
        "name": "m3agent",
        "version": _text(started, "m3agent") or "unknown",
        "model_name": _text(endpoint, "model"),
        "tool_definitions": offered(record) if same else None,
        "extra": _object(server=server, sandbox=_text(sandbox, "backend"), image=image),
    }
    return _some(values)


def _extra(record: SessionRecord) -> dict[str, Any] | None:
    repository, verify, finished = mapping(record.started, "repository"), record.verdict, record.ended
    lists = (*(each.event for each in TEST_SETS), "undone")
    evidence = _fields(log.text, verify, "verdict", "reason")
    evidence |= _fields(items, verify, *(key for key in lists if key in verify))
    return _object(
        repository=_object(
            **_fields(_text, repository, "head", "branch"),
            dirty=log.whole(repository, "dirty"),
            tree=_text(record.started, "tree"),
        ),
        verification={**evidence, "seconds": log.number(verify, "seconds")} if verify else None,
        patched_paths=items(finished, "paths") or None,
        notes=items(finished, "notes") or None,
    )


def _notes(record: SessionRecord, unproven: bool) -> str | None:
    """Return notes on the state of the log; None if there are none."""
    notes = []
    if not record.ended:
        notes.append("The log has no end: the session is running or was killed.")
    if not record.is_whole:
        notes.append("Lines of the log are missing or of another version.")
    if left_out := _left_out(record):
        notes.append(f"{left_out} lines of the log have no counterpart in this format.")
    if unproven:
        notes.append("The messages beside the log do not match its digest; they were not used.")
    return " ".join(notes) or None


def _left_out(record: SessionRecord) -> int:
    """Return the number of log lines that the trajectory does not contain."""
    loose = [line for turn in record.turns for line in turn.events if line["type"] in NOT_SHOWN]
    unasked = [call for turn in record.turns for call in turn.calls if not call.asked]
    of_unasked = sum(bool(call.started) + bool(call.finished) + len(call.events) for call in unasked)
    elsewhere = len(record.network) + bool(record.choice) + record.unread + record.unknown.total()
    return len(loose) + of_unasked + elsewhere

"""A session as an ATIF trajectory (Agent Trajectory Interchange Format 1.8, of the Harbor project)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from m3agent import __version__
from m3agent.agent import session_log as log
from m3agent.agent.conversation import Message
from m3agent.agent.session_log import Line
from m3agent.agent.trajectory.clean import clean
from m3agent.agent.trajectory.history import (
    clean_first,
    issue_text,
    proven,
    results,
    system_text,
    text_in,
)
from m3agent.agent.trajectory.story import Call, Story, Turn, tell

SCHEMA = "ATIF-v1.8"
COUNTS = ("turns", "calls", "reasoning_tokens")
RATES = ("cached_share", "tokens_per_second", "first_token_seconds", "seconds")


def to_atif(events: Iterable[Line], messages: Sequence[Message] | None = None) -> dict[str, Any]:
    """The trajectory, as JSON values; valid for any log. docs/trajectories.md says what stands where.

    events: the lines of a session's log. messages: those of its requests, if they were kept: the first two steps hold
    the system text and the repository then. They are used only if the log's digest proves them.
    """
    story = tell(events)
    kept = proven(story, messages)
    # of a conversation whose tail was summarised, the messages behind the first are no longer those of each request
    whole = None if story.summaries else kept
    steps = [*_first_steps(story, kept), *_turn_steps(story, whole)]
    steps += [
        _step("system", error, log.text(error, "text"), {"kind": "error", "error": log.text(error, "kind")})
        for error in story.errors
    ]
    for number, step in enumerate(steps, start=1):
        step["step_id"] = number
    session = log.text(story.started or story.finished, "session")
    trajectory = {
        "schema_version": SCHEMA,
        "session_id": session or None,
        "trajectory_id": session or None,
        "agent": _agent(story),
        "steps": steps,
        "notes": _notes(story, messages is not None and kept is None),
        "final_metrics": _final_metrics(story, len(steps)),
        "extra": _extra(story),
    }
    cleaned = _some(clean(trajectory))
    if kept and story.started:
        cleaned["steps"][1]["message"] = clean_first(text_in(kept[1].get("content")), story)
    return cleaned


def _some(values: dict[str, Any]) -> dict[str, Any]:
    """Without what is unknown: ATIF leaves out what it would have as null."""
    return {key: value for key, value in values.items() if value is not None}


def _time(line: Line) -> str | None:
    stamp = log.text(line, "ts")
    try:
        datetime.fromisoformat(stamp.removesuffix("Z"))
    except ValueError:
        return None
    return stamp if "Z" not in stamp[:-1] else None  # a Z elsewhere is no zone


def _step(source: str, line: Line, message: str, extra: dict[str, Any]) -> dict[str, Any]:
    step = {"step_id": 0, "timestamp": _time(line), "source": source, "message": message}
    return _some({**step, "extra": _some(extra) or None})


def _first_steps(story: Story, kept: Sequence[Message] | None) -> list[dict[str, Any]]:
    """What the model was given. Without the messages themselves, what the log has of them, and what it does not."""
    if not story.started:
        return []
    issue = log.mapping(story.started, "issue")
    extra = {
        "kind": "issue",
        "issue": {key: log.text(issue, key) for key in ("title", "source", "digest")},
        "images": [image for image in log.items(issue, "images") if isinstance(image, dict)] or None,
        "context": _context(story),
    }
    if kept:
        # the second one's text comes in at the end: it may be megabytes, and is clean already
        system = text_in(kept[0].get("content"))
        return [
            _step("system", story.started, system, {"kind": "system", "text": "as sent"}),
            _step("user", story.started, "", {**extra, "text": "as sent"}),
        ]
    known = system_text(story)
    of_system = f"as m3agent {__version__} sends it" if known else "not in the log"
    return [
        _step("system", story.started, known, {"kind": "system", "text": of_system}),
        _step(
            "user",
            story.started,
            issue_text(story),
            {**extra, "text": "the issue only: the repository's text is not in the log"},
        ),
    ]


def _context(story: Story) -> dict[str, Any] | None:
    context = story.context
    if not context:
        return None
    return {
        "digest": log.text(context, "digest"),
        "tokens": log.whole(context, "tokens"),
        "exact": context.get("exact") is True,
        "files": log.whole(context, "files"),
    }


def _turn_steps(story: Story, kept: Sequence[Message] | None) -> Iterable[dict[str, Any]]:
    before = (
        2  # messages that the last request's answer and its results make, with what the log has of the rest
    )
    for index, turn in enumerate(story.turns):
        unlogged = max(0, turn.sent - before) if turn.sent is not None else 0
        if unlogged and kept and turn.sent is not None:
            told = [message for message in kept[before : turn.sent] if message.get("role") == "user"]
            for message in told:
                yield _step("user", turn.request, text_in(message.get("content")), {"kind": "harness"})
            unlogged -= len(told)
        read = results(kept, turn) if kept and turn.sent is not None else {}
        yield _agent_step(turn, story.told(index) != "", unlogged, read)
        if turn.summary is not None:
            extra = {"kind": "summary", "own_words": turn.summary.get("own_words") is True}
            yield _step("user", turn.summary, log.text(turn.summary, "text"), extra)
        for stop in turn.stops:
            yield _step("system", stop, log.text(stop, "text"), {"kind": "stall", **_stall(stop)})
        before = (turn.sent if turn.sent is not None else before) + 1 + len(turn.calls)
        if text := story.told(index):
            gate = turn.gate or {}
            yield _step("user", gate, text, {"kind": "gate", "asked": log.whole(gate, "asked")})
            before += 1


def _agent_step(turn: Turn, told: bool, unlogged: int, read: dict[str, str]) -> dict[str, Any]:
    finished = turn.finished or {}
    gate = turn.gate
    extra: dict[str, Any] = {
        "turn": log.whole(turn.message, "turn"),
        "finish": log.text(finished, "finish") or None,
        "retries": [{"reason": log.text(retry, "reason")} for retry in turn.retries] or None,
        "gate": None if gate is None or told else {"missing": log.text(gate, "missing"), "let_through": True},
        "messages_not_in_log": unlogged or None,
    }
    step = _step("agent", turn.message, turn.text, extra)
    observed = [_result(call, read) for call in turn.calls if call.finished is not None]
    step |= {
        "llm_call_count": 1,
        "reasoning_content": turn.reasoning or None,
        "tool_calls": [_tool_call(call) for call in turn.calls] or None,
        "observation": {"results": observed} if observed else None,
        "metrics": _metrics(finished),
    }
    return _some(step)


def _tool_call(call: Call) -> dict[str, Any]:
    extra = {
        "malformed_arguments": True if call.arguments is None else None,
        "result": "none: the call was cut off" if call.finished is None else None,
    }
    values = {
        "tool_call_id": call.id,
        "function_name": call.name,
        "arguments": call.arguments or {},
        "extra": _some(extra) or None,
    }
    return _some(values)


def _result(call: Call, read: dict[str, str]) -> dict[str, Any]:
    finished = call.finished or {}
    tests = call.tests
    extra = {
        "call": log.whole(finished, "call"),
        "status": log.text(finished, "status") or None,
        "is_error": finished.get("is_error") is True,
        "exit_code": log.whole(finished, "exit_code"),
        "truncated": finished.get("truncated") is True,
        "digest": log.text(finished, "digest") or None,
        "seconds": log.number(finished, "seconds"),
        "changes": call.changes or None,
        "tests": None if tests is None else {key: len(log.items(tests, key)) for key in TEST_SETS},
        "stalls": [_stall(stall) for stall in call.stalls] or None,
    }
    return {"source_call_id": call.id, "content": read.get(call.id, call.result or ""), "extra": _some(extra)}


TEST_SETS = ("passed", "failed", "errored", "skipped")


def _stall(stall: Line) -> dict[str, Any]:
    named = {key: log.text(stall, key) for key in ("rule", "action")}
    return _some({**named, "count": log.whole(stall, "count")})


def _metrics(finished: Line) -> dict[str, Any] | None:
    extra = {"reasoning_tokens": log.whole(finished, "reasoning_tokens")}
    metrics = {
        "prompt_tokens": log.whole(finished, "prompt_tokens"),
        "completion_tokens": log.whole(finished, "completion_tokens"),
        "cached_tokens": log.whole(finished, "cached_tokens"),
        "cost_usd": log.number(finished, "price"),
        "extra": _some({**extra, **{key: log.number(finished, key) for key in RATES}}) or None,
    }
    return _some(metrics) or None


def _final_metrics(story: Story, steps: int) -> dict[str, Any]:
    """The session's totals; of one without an end, the sums over its turns that are known."""
    finished = story.finished
    extra: dict[str, Any] = {key: log.text(finished, key) or None for key in ("status", "reason")}
    extra |= {"exit": log.whole(finished, "exit")}
    extra |= {key: log.whole(finished, key) for key in COUNTS} | {
        key: log.number(finished, key) for key in RATES
    }
    lines = [finished] if finished else [turn.finished for turn in story.turns if turn.finished]
    totals = {
        "total_prompt_tokens": _sum(log.whole(line, "prompt_tokens") for line in lines),
        "total_completion_tokens": _sum(log.whole(line, "completion_tokens") for line in lines),
        "total_cached_tokens": _sum(log.whole(line, "cached_tokens") for line in lines),
        "total_cost_usd": _sum(log.number(line, "price") for line in lines),
        "total_steps": steps,
        "extra": _some(extra) or None,
    }
    return _some(totals)


def _sum(values: Iterable[int | float | None]) -> int | float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _agent(story: Story) -> dict[str, Any]:
    started, endpoint = story.started, story.endpoint
    same = started.get("m3agent") == __version__
    server = {key: log.text(endpoint, key) or None for key in ("flavour", "version")}
    extra = {
        "server": _some({**server, "max_model_len": log.whole(endpoint, "max_model_len")}) or None,
        "sandbox": log.text(log.mapping(started, "sandbox"), "backend") or None,
        "image": log.text(story.environment, "image")
        or log.text(log.mapping(started, "sandbox"), "image")
        or None,
    }
    values = {
        "name": "m3agent",
        "version": log.text(started, "m3agent") or "unknown",
        "model_name": log.text(endpoint, "model") or None,
        "tool_definitions": story.tools if same else None,
        "extra": _some(extra) or None,
    }
    return _some(values)


def _extra(story: Story) -> dict[str, Any] | None:
    repository, verify, finished = log.mapping(story.started, "repository"), story.verify, story.finished
    lists = ("fixed", "broken", "still_red", "new", "flaky")
    evidence: dict[str, Any] = {key: log.text(verify, key) for key in ("verdict", "reason")}
    evidence |= {key: log.items(verify, key) for key in lists if key in verify}
    extra = {
        "repository": _some(
            {
                "head": log.text(repository, "head") or None,
                "branch": log.text(repository, "branch") or None,
                "dirty": log.whole(repository, "dirty"),
                "tree": log.text(story.started, "tree") or None,
            }
        )
        or None,
        "verification": {**evidence, "seconds": log.number(verify, "seconds")} if verify else None,
        "patched_paths": log.items(finished, "paths") or None,
        "notes": log.items(finished, "notes") or None,
    }
    return _some(extra) or None


def _notes(story: Story, unproven: bool) -> str | None:
    """What a reader should know of the log itself."""
    notes = []
    if not story.finished:
        notes.append("The log has no end: the session is running or was killed.")
    if not story.whole:
        notes.append("Lines of the log are missing or of another version.")
    if story.unread:
        notes.append(f"{story.unread} lines of the log have no place here.")
    if unproven:
        notes.append(
            "The messages kept beside the log are not those that it has the digest of; they were not used."
        )
    return " ".join(notes) or None

"""Test sessions as ATIF trajectories and as training data, from real fixes and from logs of any kind."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atif
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from m3agent import __version__
from m3agent.agent.loop.prompt import SYSTEM
from m3agent.agent.session.record import record_of
from m3agent.agent.trajectory import atif as atif_module
from m3agent.agent.trajectory import sft as sft_module
from m3agent.agent.trajectory.history import DEEPEST, clean, portable
from m3agent.agent.trajectory.sft import write_jsonl
from m3agent.serving.client.messages import NO_ANSWER
from m3agent.tools.registry import own_schemas
from tests.agent.scripted import BUGGY, DONE, FIX, TEST, Fixes, calls, chunk, events, says
from tests.command_line import run
from tests.servers.misbehaving import Stream

MakeRepo = Callable[..., Path]
Line = dict[str, Any]

TOKEN = "ghp_" + "9fK2mQ7xT4vB8nL1cR6wZ3yH5jD0sG2aPqXe"
AGAIN = calls("code_exec", code="print('<mm:think> é \\x1b[1m')")
LEAK = calls("code_exec", code=f"print('{TOKEN[:8]}' + '{TOKEN[8:]}')")


def to_atif(log: list[Any], messages: list[Line] | None = None) -> Line:
    return atif_module.to_atif(record_of(log), messages)


def to_sft(log: list[Any], messages: list[Line] | None = None) -> Line | None:
    return sft_module.to_sft(record_of(log), messages)


def valid(trajectory: Line) -> atif.Trajectory:
    """Return the trajectory as the reference models parse it from strict JSON in UTF-8."""
    raw = json.dumps(trajectory, allow_nan=False, ensure_ascii=False).encode()
    return atif.Trajectory.model_validate_json(raw)


def kept(home: Path) -> list[Line]:
    (path,) = (home / "state" / "sessions").glob("*/messages.jsonl")
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def sources(trajectory: atif.Trajectory) -> list[str]:
    return [step.source for step in trajectory.steps]


def as_sent(messages: list[Line]) -> list[Line]:
    """Return a request's messages with the training data's name for reasoning."""
    renamed = [dict(message) for message in messages]
    for message in renamed:
        if "reasoning" in message:
            message["reasoning_content"] = message.pop("reasoning")
    return renamed


@pytest.mark.slow  # quick: test_export.py
@pytest.mark.integration
def test_a_real_fix_of_the_embedded_engine(make_repo: MakeRepo, own_state: Path) -> None:
    done = run("fix", "add() gives wrong sums", "--repo", str(make_repo(BUGGY)), "--engine", "embedded")
    assert done.returncode == 0, done.stderr
    log = events(own_state)
    trajectory = valid(to_atif(log))
    assert trajectory.schema_version == "ATIF-v1.8"
    assert trajectory.session_id == log[0]["session"]
    assert trajectory.agent.version == __version__
    assert trajectory.agent.tool_definitions == own_schemas()
    assert sources(trajectory)[:3] == ["system", "user", "agent"]
    agent = [step for step in trajectory.steps if step.source == "agent"]
    assert len(agent) == log[-1]["turns"]
    for step in agent:
        asked = [call.tool_call_id for call in step.tool_calls or []]
        assert asked == [r.source_call_id for r in (step.observation.results if step.observation else [])]
        assert step.timestamp
        assert step.metrics
    assert trajectory.final_metrics is not None
    assert trajectory.final_metrics.total_prompt_tokens == log[-1]["prompt_tokens"]
    assert trajectory.final_metrics.extra is not None
    assert trajectory.final_metrics.extra["status"] == "verified"
    assert trajectory.extra is not None
    assert trajectory.extra["verification"]["fixed"] == ["test_calc.py::test_add"]
    assert trajectory.extra["verification"]["flaky"] == []
    older = [{name: value for name, value in line.items() if name != "flaky"} for line in log]
    old = valid(to_atif(older))
    assert old.extra is not None
    assert "flaky" not in old.extra["verification"], "unknown, not none"
    assert str(own_state) not in json.dumps(to_atif(log)), "no paths of the machine"
    row = to_sft(log)
    assert row is not None
    assert row["fixed"] == ["test_calc.py::test_add"]


@pytest.mark.slow
def test_the_log_alone_gives_the_conversation_without_the_repository(fixes: Fixes) -> None:
    fixes(BUGGY, [says("I will fix it."), AGAIN, AGAIN, AGAIN, AGAIN, FIX, TEST, DONE])
    assert [line["action"] for line in fixes.of_type("stall")] == ["told", "forced"]
    sent = as_sent(json.loads(fixes.chats[-1].body)["messages"])
    row = to_sft(fixes.events())
    assert row is not None
    assert row["messages"][0] == {"role": "system", "content": SYSTEM} == sent[0]
    assert row["messages"][1]["role"] == "user"
    assert sent[1]["content"].endswith(row["messages"][1]["content"])
    assert "def add" in sent[1]["content"], "the request has the repository"
    assert "def add" not in row["messages"][1]["content"], "the log has not"
    assert row["messages"][2:-1] == sent[2:], "as sent, the gate's words and the notes of the stall with it"
    assert row["messages"][-1] == {"role": "assistant", "content": "add() subtracted; it adds now."}
    assert (row["repository_included"], row["m3agent"], row["exporter"]) == (False, __version__, __version__)
    trajectory = valid(to_atif(fixes.events()))
    assert trajectory.steps[1].message == row["messages"][1]["content"]
    assert trajectory.steps[1].extra is not None
    assert "not in the log" in trajectory.steps[1].extra["text"]
    assert trajectory.steps[1].extra["context"]["digest"] == row["context_digest"]
    assert trajectory.steps[1].extra["context"]["tokens"] == row["context_tokens"]
    read = [r.content for step in trajectory.steps if step.observation for r in step.observation.results]
    assert read == [message["content"] for message in sent if message["role"] == "tool"]
    gate = [step for step in trajectory.steps if (step.extra or {}).get("kind") == "gate"]
    assert [(step.source, step.message) for step in gate] == [("user", sent[3]["content"])]
    thoughts = [step.reasoning_content for step in trajectory.steps if step.source == "agent"]
    assert thoughts == [None, *["hm"] * 6, None]
    assert not any("messages_not_in_log" in (step.extra or {}) for step in trajectory.steps)


@pytest.mark.slow  # quick: test_the_log_alone_gives_the_conversation_without_the_repository
def test_kept_messages_are_used_when_the_log_proves_them(fixes: Fixes) -> None:
    fixes(BUGGY, [says("I will", finish="length"), AGAIN, FIX, TEST, DONE])
    log, messages = fixes.events(), kept(fixes.home)
    sent = as_sent(json.loads(fixes.chats[-1].body)["messages"])
    assert to_sft(log) is None, "what was said of the cut answer is not in the log: no half conversations"
    row = to_sft(log, messages)
    assert row is not None
    assert row["repository_included"] is True
    assert row["messages"][:-1] == sent
    assert "def add" in row["messages"][1]["content"]
    trajectory = valid(to_atif(log, messages))
    assert [trajectory.steps[0].message, trajectory.steps[1].message] == [m["content"] for m in sent[:2]]
    assert sources(trajectory)[:5] == ["system", "user", "agent", "user", "agent"]
    assert trajectory.steps[3].message == sent[3]["content"]
    without = valid(to_atif(log))
    assert (without.steps[3].extra or {})["messages_not_in_log"] == 1
    messages[1]["content"] += " "
    assert to_sft(log, messages) is None
    forged = valid(to_atif(log, messages))
    assert forged.steps == without.steps
    assert "were not used" in (forged.notes or "")


@pytest.mark.slow
def test_aborted_answer_is_noted(fixes: Fixes) -> None:
    chant = Stream([chunk({"reasoning": "Wait, the sign may be wrong, so look at it once more. "})] * 400)
    fixes(BUGGY, [FIX, chant, TEST, DONE])
    log, messages = fixes.events(), kept(fixes.home)
    assert to_sft(log) is None, "its words stand in no result: the log alone is half a conversation"
    row = to_sft(log, messages)
    assert row is not None
    assert "said the same over and over" in row["messages"][4]["content"]
    for trajectory in (valid(to_atif(log)), valid(to_atif(log, messages))):
        [step] = [step for step in trajectory.steps if (step.extra or {}).get("kind") == "stall"]
        assert "said the same over and over" in str(step.message)
        assert (step.extra or {})["rule"] == "chant"


@pytest.mark.slow  # quick: test_a_whole_log_gives_each_call_its_result; tests of what is redacted are in tests/agent/context
def test_secrets_stay_here(fixes: Fixes) -> None:
    fixes.model.answers = [LEAK, says(f"It is {TOKEN}.", reasoning=TOKEN), FIX, TEST, DONE]
    issue = f"add() gives wrong sums; my token is {TOKEN}"
    done = run("fix", issue, "--repo", str(fixes.make_repo(BUGGY)), "--endpoint", fixes.model.url)
    assert done.returncode == 0, done.stderr
    log, messages = fixes.events(), kept(fixes.home)
    assert TOKEN in json.dumps(log), "or the test shows nothing"
    for given_messages in (None, messages):
        row = to_sft(log, given_messages)
        assert row is not None
        for text in (json.dumps(row), json.dumps(to_atif(log, given_messages))):
            assert TOKEN not in text
            assert "<REDACTED:github-token>" in text


@pytest.mark.slow  # quick: test_the_log_alone_gives_the_conversation_without_the_repository
def test_only_verified_and_whole_sessions_are_training_data(fixes: Fixes) -> None:
    fixes(BUGGY, [FIX, TEST, DONE])
    log = fixes.events()
    assert to_sft(log) is not None
    for cut in range(len(log)):
        assert to_sft(log[:cut]) is None
        assert to_sft(log[:cut] + log[cut + 1 :]) is None
        valid(to_atif(log[:cut]))
        valid(to_atif(log[:cut] + log[cut + 1 :]))
    for status in ("unverified", "failed", "limit", "error"):
        assert to_sft([*log[:-1], {**log[-1], "status": status}]) is None
    newer = [{**line, "v": 2} for line in log]
    assert to_sft(newer) is None
    assert valid(to_atif(newer)).steps == []
    added = {
        "v": 1,
        "seq": len(log) + 1,
        "ts": log[-1]["ts"],
        "session": log[0]["session"],
        "type": "new.type",
    }
    assert to_sft([*log, added]) == to_sft(log), "types of later versions do no harm"
    resumed = {**added, "type": "session.resumed"}
    assert to_sft([*log, resumed]) is None, "not over"


def test_an_answer_without_text_is_exported_as_the_model_gave_it() -> None:
    sent = {"role": "assistant", "content": NO_ANSWER, "reasoning": "Hm."}
    assert portable(sent) == {"role": "assistant", "content": "", "reasoning_content": "Hm."}


def test_lines_are_lines_for_every_reader() -> None:
    rows = [{"messages": "a\u2028b\x85c\x0bd\ud83de\n", "n": number} for number in range(3)]
    out = io.BytesIO()
    assert write_jsonl(rows, out) == 3
    text = out.getvalue().decode("ascii")
    assert [json.loads(line) for line in text.splitlines()] == rows
    assert write_jsonl([], out) == 0


def test_what_is_nested_too_deep_is_cut() -> None:
    deep: Any = "x"
    for _ in range(900):
        deep = [deep]
    assert json.dumps(clean(deep)).count("[") == DEEPEST + 1


# --- any log

letters = st.characters() | st.sampled_from("\ud83d\udcff\x00\u2028")

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(letters, max_size=8)
branches = st.lists(leaves, max_size=3) | st.dictionaries(st.text(letters, max_size=4), leaves, max_size=3)
junk = (
    leaves
    | branches
    | st.lists(branches, max_size=2)
    | st.dictionaries(st.text(letters), branches, max_size=2)
)
ids = st.sampled_from(["a", "b", "c", ""])
names = st.sampled_from(["code_exec", "file_edit", ""])
call = st.fixed_dictionaries(
    {},
    optional={"id": ids, "name": names, "arguments": st.none() | st.dictionaries(st.text(max_size=3), junk)},
)
count = st.integers(0, 5)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "turn": count,
    "call": count,
    "id": ids,
    "name": names,
    "content": st.text(letters, max_size=20),
    "text": st.text(letters, max_size=20),
    "reasoning": st.text(max_size=5),
    "calls": st.lists(call | junk, max_size=3),
    "messages": count,
    "prompt_tokens": st.none() | st.integers(0, 10**6),
    "price": st.floats() | st.just(1.7e308),
    "status": st.sampled_from(["verified", "done", "interrupted"]),
    "verdict": st.sampled_from(["verified", "failed"]),
    "action": st.sampled_from(["told", "stopped"]),
    "where": st.sampled_from(["session", "before"]),
    "missing": st.sampled_from(["", "Run the tests."]),
    "changes": st.lists(junk, max_size=2),
    "m3agent": st.sampled_from([__version__, "0.0.1"]),
    "issue": st.fixed_dictionaries({}, optional={"text": st.text(), "images": st.lists(junk, max_size=2)})
    | junk,
    "ts": st.sampled_from(["2026-01-31T12:00:00.000Z", "2026-01-31Z12:00:00", "Z", "never"]),
    "session": st.text(max_size=4),
}
TYPES = [
    "session.started",
    "session.resumed",
    "environment.ready",
    "context.packed",
    "endpoint.probed",
    "turn.started",
    "retry",
    "message",
    "turn.finished",
    "call.started",
    "call.finished",
    "file.changed",
    "network.request",
    "test.finished",
    "stall",
    "gate",
    "verify",
    "error",
    "session.finished",
    "later.type",
]


@st.composite
def logs(draw: st.DrawFn) -> list[Any]:
    """Draw lines of all types in any order, with fields that are missing, of other types, or unknown."""
    lines: list[Any] = []
    for number, kind in enumerate(draw(st.lists(st.sampled_from(TYPES), max_size=14)), start=1):
        fields = draw(
            st.fixed_dictionaries({}, optional={key: value | junk for key, value in FIELDS.items()})
        )
        head = {"v": draw(st.sampled_from([1, 1, 1, 1, 2])), "seq": number, "type": kind}
        lines.append({**fields, **head, "unknown": draw(junk)})
        if draw(st.integers(0, 9)) == 0:
            lines.append(draw(junk))
    return lines


HALF = "\ud83d"
ODD = {"v": 1, "seq": 1, "type": "message", "text": HALF, "calls": [{"arguments": {HALF: float("nan")}}]}


@settings(max_examples=40)
@given(logs())
@example([ODD])
def test_any_log_is_a_valid_trajectory_and_at_most_one_line(log: list[Any]) -> None:
    trajectory = valid(to_atif(log))
    messages = [line for line in log if isinstance(line, dict) and line.get("type") == "message"]
    assert sum(step.source == "agent" for step in trajectory.steps) == sum(m["v"] == 1 for m in messages)
    row = to_sft(log)
    if row is not None:
        out = io.BytesIO()
        write_jsonl([row], out)
        assert log[-1] is not None
        assert any(isinstance(line, dict) and line.get("status") == "verified" for line in log)
        json.dumps(row, ensure_ascii=False).encode()


@given(
    st.lists(
        st.tuples(st.text(max_size=9), st.lists(st.tuples(ids, names), max_size=3)), min_size=1, max_size=5
    ),
    st.data(),
)
def test_a_whole_log_gives_each_call_its_result(answers: list[Any], data: st.DataObject) -> None:
    """With turns in order and with repeated ids, every result follows its own call."""
    lines: list[Line] = [
        {"type": "session.started", "m3agent": __version__, "issue": {"text": "It is broken."}}
    ]
    sent, number = 2, 0
    for turn, (text, asked) in enumerate(answers, start=1):
        lines.append({"type": "turn.started", "turn": turn, "messages": sent})
        entries = [{"id": i, "name": n, "arguments": {}} for i, n in asked]
        lines.append({"type": "message", "turn": turn, "text": text, "reasoning": "", "calls": entries})
        for entry in entries:
            number += 1
            head = {"turn": turn, "call": number, **entry}
            lines.append({"type": "call.started", **head})
            lines.append({"type": "call.finished", **head, "status": "done", "content": f"result {number}"})
        sent += 1 + len(entries)
    lines.append({"type": "verify", "verdict": "verified"})
    lines.append({"type": "session.finished", "status": "verified"})
    log = [{"v": 1, "seq": seq, **line} for seq, line in enumerate(lines, start=1)]
    trajectory = valid(to_atif(log))
    read = [r.content for step in trajectory.steps if step.observation for r in step.observation.results]
    assert read == [f"result {n}" for n in range(1, number + 1)]
    row = to_sft(log)
    assert row is not None
    pending: list[str] = []
    told = 0
    for message in row["messages"][2:]:
        if message["role"] == "assistant":
            assert pending == []
            pending = [c["id"] for c in message.get("tool_calls", [])]
            assert len(set(pending)) == len(pending)
        else:
            told += 1
            assert (message["tool_call_id"], message["content"]) == (pending.pop(0), f"result {told}")
    assert row["messages"][-1]["role"] == "assistant"
    assert all(
        isinstance(json.loads(c["function"]["arguments"]), dict)
        for m in row["messages"]
        for c in m.get("tool_calls", [])
    )
    assert [tool["function"]["name"] for tool in json.loads(row["tools"])] == [
        t["function"]["name"] for t in own_schemas()
    ]

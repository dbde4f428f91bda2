"""Test fixes from the command line whose conversation reaches the end of the model's window."""

from __future__ import annotations

import json
from typing import Any

import pytest

from m3agent.agent.loop.prompt import SUMMARISE
from m3agent.agent.session.messages import FIRST, Digest
from tests.agent.scripted import BUGGY, DONE, FIX, NOT_TESTED, TEST, UNTESTED, Fixes, calls, chunk, run_there
from tests.servers.misbehaving import MODEL, MisbehavingServer, Stream, history_faults, messages_bytes, usage

WINDOW = 16_000
LOOK = calls("code_exec", code="import os\nprint(os.urandom(600).hex())")
NOTES = "calc.add subtracts: change the sign, then run the tests."


def at(prompt: int, answer: Stream) -> Stream:
    """Return the same answer, with `prompt` as the server's count of the prompt's tokens."""
    return Stream([*answer.events[:-1], usage(prompt, 10)])


def says_notes(text: str = NOTES) -> Stream:
    return Stream(
        [chunk({"reasoning": "hm"}), chunk({"content": text}), chunk({}, "stop"), usage(14_500, 30)]
    )


@pytest.fixture
def model(server: MisbehavingServer) -> MisbehavingServer:
    data = [{"id": MODEL, "owned_by": "vllm", "max_model_len": WINDOW}]
    server.pages["/v1/models"] = {"object": "list", "data": data}
    return server


def bodies(model: MisbehavingServer) -> list[dict[str, Any]]:
    return [chat.json for chat in model.chats]


def looks(count: int) -> list[Stream]:
    """Return `count` steps, the last of which leaves the window nearly full."""
    return [at(2000, LOOK)] * (count - 1) + [at(14_400, LOOK)]


@pytest.mark.slow
def test_the_tail_is_summarised_behind_the_untouched_prefix(fixes: Fixes) -> None:
    fixes(UNTESTED, [*looks(8), says_notes(), at(3000, FIX), at(3100, TEST), at(3200, NOT_TESTED)], code=1)
    sent = bodies(fixes.model)
    assert [body["tool_choice"] for body in sent] == ["auto"] * 8 + ["none"] + ["auto"] * 3
    assert sent[8]["messages"][-1] == {"role": "user", "content": SUMMARISE}
    assert sent[8]["tools"] == sent[0]["tools"], "the tools stay in the prompt, or its prefix changes"
    after = sent[9]["messages"]
    first = messages_bytes(fixes.chats[0].body)
    assert messages_bytes(fixes.chats[9].body).startswith(first), "the repository is not touched"
    assert NOTES in after[FIRST]["content"]
    kept = after[FIRST + 1 :]
    assert kept, "the last step stays"
    assert kept == sent[8]["messages"][-1 - len(kept) : -1]
    assert len(kept) < 16, "and most of the tail goes"
    assert history_faults([chat.body for chat in fixes.chats[:9]]) == []
    assert history_faults([chat.body for chat in fixes.chats[9:]]) == []
    [event] = fixes.of_type("context.summarised")
    assert (event["messages"], event["kept"], event["own_words"]) == (FIRST + 16, len(kept), True)
    assert event["text"] == after[FIRST]["content"]
    for request, line in zip(sent, fixes.of_type("turn.started"), strict=True):
        digest = Digest()
        digest.add(request["messages"])
        assert line["digest"] == str(digest)


@pytest.mark.slow
def test_a_summarised_session_is_resumed_and_exported(fixes: Fixes) -> None:
    fixes.killed(BUGGY, [*looks(8), says_notes(), at(3000, FIX)])
    fixes.resume([at(3100, TEST), at(3200, DONE)])
    assert fixes.chats[11].body == fixes.chats[10].body, "the same bytes"
    exported = run_there("sessions", "export", "last", "--format", "sft")
    row = json.loads(exported.stdout)
    assert NOTES in row["messages"][FIRST]["content"], (
        "the example is the conversation as the model had it at the end"
    )
    assert [m["role"] for m in row["messages"][:3]] == ["system", "user", "user"]
    atif = json.loads(run_there("sessions", "export", "last").stdout)
    kinds = [step.get("extra", {}).get("kind") for step in atif["steps"]]
    assert kinds.count("summary") == 1
    assert sum(step["source"] == "agent" for step in atif["steps"]) == 12, "all that was said is there"


@pytest.mark.slow
def test_killed_while_it_summarises(fixes: Fixes) -> None:
    fixes.killed(BUGGY, [*looks(8)])
    fixes.resume([at(3000, FIX), at(3100, TEST), at(3200, DONE)])
    assert bodies(fixes.model)[9]["tool_choice"] == "auto"
    assert "continues now" in bodies(fixes.model)[9]["messages"][-1]["content"]

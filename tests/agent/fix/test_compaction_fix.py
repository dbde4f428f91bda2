"""Test fixes from the command line whose conversation reaches the end of the model's window."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from m3agent.agent.loop.prompt import SUMMARISE
from m3agent.agent.session.messages import FIRST, Digest
from tests.agent.scripted import (
    BUGGY,
    DONE,
    FIX,
    NOT_TESTED,
    TEST,
    UNTESTED,
    MakeRepo,
    calls,
    chunk,
    fix,
    kill,
    of_type,
    run_there,
    start,
)
from tests.servers.misbehaving import (
    MODEL,
    MisbehavingServer,
    Reply,
    Silence,
    Stream,
    history_faults,
    messages_bytes,
    usage,
)

WINDOW = 16_000
LOOK = calls("code_exec", code="import os\nprint(os.urandom(600).hex())")
NOTES = "calc.add subtracts: change the sign, then run the tests."
TOO_LONG = Reply(
    400,
    {
        "error": {
            "message": f"This model's maximum context length is {WINDOW} tokens. However, you requested 99999 tokens."
        }
    },
)


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
def test_the_tail_is_summarised_behind_the_untouched_prefix(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    model.answers = [*looks(8), says_notes(), at(3000, FIX), at(3100, TEST), at(3200, NOT_TESTED)]
    done = fix(make_repo(UNTESTED), model.url)
    assert done.returncode == 1, done.stderr
    sent = bodies(model)
    assert [body["tool_choice"] for body in sent] == ["auto"] * 8 + ["none"] + ["auto"] * 3
    assert sent[8]["messages"][-1] == {"role": "user", "content": SUMMARISE}
    assert sent[8]["tools"] == sent[0]["tools"], "the tools stay in the prompt, or its prefix changes"
    after = sent[9]["messages"]
    first = messages_bytes(model.chats[0].body)
    assert messages_bytes(model.chats[9].body).startswith(first), "the repository is not touched"
    assert NOTES in after[FIRST]["content"]
    assert "Nothing has changed so far" in after[FIRST]["content"]
    kept = after[FIRST + 1 :]
    assert kept, "the last step stays"
    assert kept == sent[8]["messages"][-1 - len(kept) : -1]
    assert len(kept) < 16, "and most of the tail goes"
    assert history_faults([chat.body for chat in model.chats[:9]]) == []
    assert history_faults([chat.body for chat in model.chats[9:]]) == []
    [event] = of_type(own_state, "context.summarised")
    assert (event["messages"], event["kept"], event["own_words"]) == (FIRST + 16, len(kept), True)
    assert event["text"] == after[FIRST]["content"]
    for request, line in zip(sent, of_type(own_state, "turn.started"), strict=True):
        digest = Digest()
        digest.add(request["messages"])
        assert line["digest"] == str(digest)


@pytest.mark.slow
def test_where_the_model_cannot_say_what_it_did_its_calls_are_listed(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    for cannot in (says_notes(""), TOO_LONG):
        model.answers = [at(2000, FIX), *looks(7), cannot, at(3100, TEST), at(3200, DONE)]
        done = fix(make_repo(BUGGY, f"repo{id(cannot)}"), model.url)
        assert done.returncode == 0, done.stderr
        told = bodies(model)[-2]["messages"][FIRST]["content"]
        assert "file_edit" in told
        assert "+    return a + b" in told, "the change so far"


@pytest.mark.slow  # quick: test_loop.py
def test_a_refused_request_is_made_shorter_once(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    """The server does not count tokens, and reports its limit only when it refuses a request."""
    silent = Stream(LOOK.events[:-1])
    model.pages["/v1/models"] = {"object": "list", "data": [{"id": MODEL, "owned_by": "vllm"}]}
    model.answers = [*[silent] * 8, TOO_LONG, says_notes(), FIX, TEST, DONE]
    done = fix(make_repo(BUGGY), model.url)
    assert done.returncode == 0, done.stderr
    assert len(of_type(own_state, "context.summarised")) == 1


@pytest.mark.slow  # quick: test_loop.py
def test_request_that_stays_too_long_is_an_error(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    model.answers = [at(2000, FIX), *[at(2000, LOOK)] * 7, TOO_LONG]
    done = fix(make_repo(BUGGY), model.url)
    assert done.returncode == 4
    assert "tokens" in done.stderr.splitlines()[-1] or "tokens" in done.stderr
    assert len(of_type(own_state, "context.summarised")) == 1
    assert "+    return a + b" in done.stdout, "the change so far is handed over"


@pytest.mark.slow  # quick: test_loop.py
def test_a_prompt_that_is_all_repository_is_not_summarised(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    model.answers = [TOO_LONG]
    assert fix(make_repo(BUGGY), model.url).returncode == 4
    assert of_type(own_state, "context.summarised") == []


@pytest.mark.slow
def test_a_summarised_session_is_resumed_and_exported(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path, one_backend: str
) -> None:
    model.answers = [*looks(8), says_notes(), at(3000, FIX), Silence()]
    process = start(make_repo(BUGGY), model.url, one_backend)
    model.wait_for_chats(11)
    kill(process)
    model.answers = [at(3100, TEST), at(3200, DONE)]
    done = run_there("sessions", "resume", "last")
    assert done.returncode == 0, done.stderr
    assert model.chats[11].body == model.chats[10].body, "the same bytes"
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
def test_killed_while_it_summarises(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path, one_backend: str
) -> None:
    model.answers = [*looks(8), Silence()]
    process = start(make_repo(BUGGY), model.url, one_backend)
    model.wait_for_chats(9)
    kill(process)
    model.answers = [at(3000, FIX), at(3100, TEST), at(3200, DONE)]
    done = run_there("sessions", "resume", "last")
    assert done.returncode == 0, done.stderr
    assert bodies(model)[9]["tool_choice"] == "auto"
    assert "continues now" in bodies(model)[9]["messages"][-1]["content"]

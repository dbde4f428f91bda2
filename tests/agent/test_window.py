"""A conversation that reaches the end of the model's window: its tail is summarised, its beginning stays."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.agent.conversation import FIRST, Conversation, Digest, read_messages
from m3agent.agent.prompt import SUMMARISE, summary
from m3agent.agent.window import Window, calls_made, conversation_room, tokens
from m3agent.serving.chat import Usage
from tests.agent.test_fix import BUGGY, DONE, FIX, TEST, MakeRepo, calls, chunk, fix, of_type, run, start
from tests.agent.test_resume import kill
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
    """The same answer, to a prompt that the server counted so many tokens in."""
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
    """So many steps, the last of which leaves the window nearly full."""
    return [at(2000, LOOK)] * (count - 1) + [at(14_400, LOOK)]


def test_the_tail_is_summarised_behind_the_untouched_prefix(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    model.answers = [*looks(8), says_notes(), at(3000, FIX), at(3100, TEST), at(3200, DONE)]
    done = fix(make_repo(BUGGY), model.url)
    assert done.returncode == 0, done.stderr
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


def test_a_refused_request_is_made_shorter_once(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    """A server that does not count, and says only when it is too late that there is a limit."""
    silent = Stream(LOOK.events[:-1])
    model.pages["/v1/models"] = {"object": "list", "data": [{"id": MODEL, "owned_by": "vllm"}]}
    model.answers = [*[silent] * 8, TOO_LONG, says_notes(), FIX, TEST, DONE]
    done = fix(make_repo(BUGGY), model.url)
    assert done.returncode == 0, done.stderr
    assert len(of_type(own_state, "context.summarised")) == 1


def test_what_stays_too_long_is_an_error_and_no_loop(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    model.answers = [at(2000, FIX), *[at(2000, LOOK)] * 7, TOO_LONG]
    done = fix(make_repo(BUGGY), model.url)
    assert done.returncode == 4
    assert "tokens" in done.stderr.splitlines()[-1] or "tokens" in done.stderr
    assert len(of_type(own_state, "context.summarised")) == 1
    assert "+    return a + b" in done.stdout, "the change so far is handed over"


def test_a_prompt_that_is_all_repository_is_not_summarised(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    model.answers = [TOO_LONG]
    assert fix(make_repo(BUGGY), model.url).returncode == 4
    assert of_type(own_state, "context.summarised") == []


@pytest.mark.slow
def test_a_summarised_session_is_resumed_and_exported(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path, best_backend: str
) -> None:
    model.answers = [*looks(8), says_notes(), at(3000, FIX), Silence()]
    process = start(make_repo(BUGGY), model.url, best_backend)
    model.wait_for_chats(11)
    kill(process)
    model.answers = [at(3100, TEST), at(3200, DONE)]
    done = run("sessions", "resume", "last")
    assert done.returncode == 0, done.stderr
    assert model.chats[11].body == model.chats[10].body, "the same bytes"
    exported = run("sessions", "export", "last", "--format", "sft")
    row = json.loads(exported.stdout)
    assert NOTES in row["messages"][FIRST]["content"], (
        "the example is the conversation as the model had it at the end"
    )
    assert [m["role"] for m in row["messages"][:3]] == ["system", "user", "user"]
    atif = json.loads(run("sessions", "export", "last").stdout)
    kinds = [step.get("extra", {}).get("kind") for step in atif["steps"]]
    assert kinds.count("summary") == 1
    assert sum(step["source"] == "agent" for step in atif["steps"]) == 12, "all that was said is there"


@pytest.mark.slow
def test_killed_while_it_summarises(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path, best_backend: str
) -> None:
    model.answers = [*looks(8), Silence()]
    process = start(make_repo(BUGGY), model.url, best_backend)
    model.wait_for_chats(9)
    kill(process)
    model.answers = [at(3000, FIX), at(3100, TEST), at(3200, DONE)]
    done = run("sessions", "resume", "last")
    assert done.returncode == 0, done.stderr
    assert bodies(model)[9]["tool_choice"] == "auto"
    assert "goes on now" in bodies(model)[9]["messages"][-1]["content"]


STEP = st.tuples(st.integers(0, 3), st.integers(0, 40_000), st.booleans())


def conversation(steps: list[tuple[int, int, bool]]) -> list[dict[str, Any]]:
    """Rules, repository, then answers with so many calls, results of so many characters, and perhaps a word after."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    for number, (count, size, word) in enumerate(steps):
        made = [
            {"id": f"{number}.{n}", "type": "function", "function": {"name": "code_exec", "arguments": "{}"}}
            for n in range(count)
        ]
        messages.append({"role": "assistant", "content": "a"} | ({"tool_calls": made} if made else {}))
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": "r" * size} for call in made]
        if word or not made:
            messages.append({"role": "user", "content": "go on"})
    return messages


@given(st.lists(STEP, max_size=8), st.sampled_from([None, 4096, WINDOW, 1 << 20]))
def test_what_stays_are_whole_steps_that_fit(steps: list[tuple[int, int, bool]], limit: int | None) -> None:
    messages = conversation(steps)
    kept = Window(limit).kept_steps(messages)
    assert kept.stop == len(messages)
    assert kept.start >= FIRST
    stays = messages[kept.start : kept.stop]
    if stays:
        assert stays[0]["role"] == "assistant"
    wanted = [call["id"] for message in stays for call in message.get("tool_calls", [])]
    assert wanted == [message["tool_call_id"] for message in stays if message["role"] == "tool"]
    room = (limit or 1 << 20) // 8
    assert tokens(stays) <= room


@given(st.lists(STEP, min_size=1, max_size=8), st.integers(1000, 1 << 20))
def test_a_summary_is_never_due_again_at_once(steps: list[tuple[int, int, bool]], limit: int) -> None:
    messages = conversation(steps)
    window = Window(limit)
    window.told(Usage(prompt=limit, completion=0), len(messages))
    if window.is_nearly_full(messages):
        kept = window.kept_steps(messages)
        shorter = [*messages[:FIRST], {"role": "user", "content": "n" * 3 * window.summary_tokens}]
        shorter += messages[kept.start :]
        assert tokens(shorter[FIRST:]) < tokens(messages[FIRST:]) + window.summary_tokens
        assert kept.start > FIRST, "something goes"
        window.forget()
        assert not window.is_nearly_full(shorter)


def test_a_window_nobody_knows_is_never_full() -> None:
    messages = conversation([(1, 100_000, False)])
    window = Window(None)
    window.told(Usage(prompt=1 << 30, completion=1), 3)
    assert not window.is_nearly_full(messages)
    window = Window(WINDOW)
    window.told(Usage(), 3)
    assert not window.is_nearly_full(messages)


def test_room_for_the_conversation() -> None:
    assert conversation_room(1 << 20) == 131_072
    assert conversation_room(32_768) == 8192


def test_notes_of_an_earlier_summary_are_not_lost() -> None:
    messages = [{"role": "user", "content": summary("the cause is in f", "No tests have run so far.")}]
    assert calls_made([*messages, *conversation([(1, 5, False)])[FIRST:]]).startswith("the cause is in f\n")


@given(st.lists(STEP, max_size=5), st.data())
def test_what_is_read_back_is_what_was_there(steps: list[tuple[int, int, bool]], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        told = Conversation.begin(folder, conversation([(n, min(size, 50), word) for n, size, word in steps]))
        for _ in range(data.draw(st.integers(0, 2))):
            begin = data.draw(st.integers(FIRST, len(told)))
            told.summarise("so far", range(begin, len(told)))
            told.append({"role": "assistant", "content": "é \ud800"})
        told.close()
        assert read_messages(folder) == list(told)
        digest = Digest()
        digest.add(told)
        assert told.digest() == str(digest)

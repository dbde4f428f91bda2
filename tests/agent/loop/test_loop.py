"""Test the loop: what the model is asked and told, and how the loop ends. All in memory: see tests/fakes."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from m3agent.agent.loop import prompt
from m3agent.agent.loop.completion_gate import MOST_ASKED
from m3agent.agent.loop.limits import RunLimits
from m3agent.agent.loop.loop import LAST_WORDS_SECONDS, LAST_WORDS_TOKENS, Outcome
from m3agent.agent.loop.resume import ResumePoint
from m3agent.agent.loop.tool_executor import INTERRUPTED, PendingCall
from m3agent.agent.session.messages import FIRST, Message
from m3agent.agent.stall import Thresholds
from m3agent.sandbox.errors import SandboxDied
from m3agent.serving.client.messages import NO_ANSWER, AssistantMessage, Delta, ToolCall, Turn, Usage
from m3agent.serving.errors import ContextTooLong, DeadlineExceeded, EndpointUnreachable, StreamCut
from m3agent.tools.test_report import TestReport
from tests.agent.core import ADD, BUGGY, DONE, FIRST_MESSAGES, FIX, FIXED, READ, TEST, Core, core
from tests.fakes.client import HOST, USAGE, Answer, call, calls, says

pytestmark = pytest.mark.timeout(30)

NO_CHANGE = says("No change: the code is right.")
UNTESTED = says("Not tested: there is nothing to run.")
WINDOW = 16_000
CHANT = [
    Delta("text", "Let me look at the file once more, and then at the test, to be sure. ") for _ in range(80)
]
"""A stream that the stall detector breaks off."""
LOOK = calls(call("look", "file_read", path="missing.py"))
"""A call that returns the same error every time."""
SOON = Thresholds(first_turn=1, in_a_row=2, tells=1)
"""The detector reacts to the second identical call: first with a note, then with a forced move, then with the end."""


async def test_a_fix_from_the_first_request_to_the_last_word(tmp_path: Path) -> None:
    async with core(tmp_path, FIX, TEST, DONE) as it:
        outcome = await it.loop.run()
        assert outcome == Outcome("done", "the model says it is done", "It adds now.")
        assert it.roles() == ["assistant", "tool", "assistant", "tool", "assistant"]
        assert [len(asked.messages) for asked in it.asked] == [2, 4, 6]
        for asked, before in zip(it.asked[1:], it.asked, strict=False):
            assert asked.messages[: len(before.messages)] == before.messages
        assert [asked.tool_choice for asked in it.asked] == ["auto"] * 3
        assert it.asked[0].messages == FIRST_MESSAGES
        assert it.asked[1].messages[-1] == {
            "role": "tool",
            "tool_call_id": "fix",
            "content": FIXED,
        }
        assert await it.sandbox.read("calc.py") == b"def add(a, b):\n    return a + b\n"
        [gate] = it.log("gate")
        assert (gate["turn"], gate["missing"], gate["asked"]) == (3, "", 0)


async def test_every_call_of_a_turn_gets_one_result_in_order(tmp_path: Path) -> None:
    three = calls(
        call("1", "file_write", path="a.txt", content="a\n"),
        ToolCall("2", "file_write", None, "{", "it is not JSON"),
        call("3", "file_read", path="a.txt"),
    )
    async with core(tmp_path, three, NO_CHANGE, NO_CHANGE, NO_CHANGE) as it:
        await it.loop.run()
        results = [m for m in it.messages if m["role"] == "tool"]
        assert [result["tool_call_id"] for result in results] == ["1", "2", "3"]
        assert "it is not JSON" in results[1]["content"]
        assert results[2]["content"] == "1\ta"
        assert {line["turn"] for line in it.log("call.started")} == {1}


async def test_secrets_in_results_are_not_shown(tmp_path: Path) -> None:
    key = "ghp_" + "a1B2c3D4e5F6" * 3
    async with core(tmp_path, READ, NO_CHANGE, files={"calc.py": f'TOKEN = "{key}"\n'}) as it:
        await it.loop.run()
        [result] = [m["content"] for m in it.messages if m["role"] == "tool"]
        assert key not in result
        assert "REDACTED" in result


# -- the end of the model's work: the gate ---------------------------------------------------------------------------


async def test_the_gate_asks_twice_and_then_takes_what_there_is(tmp_path: Path) -> None:
    async with core(tmp_path, *[says(f"done {n}") for n in range(3)]) as it:
        outcome = await it.loop.run()
        assert (outcome.kind, outcome.text) == ("done", "done 2")
        assert it.roles() == ["assistant", "user", "assistant", "user", "assistant"]
        gates = it.log("gate")
        assert [gate["asked"] for gate in gates] == [0, 1, 2] == list(range(MOST_ASKED + 1))
        assert [gate["cause"] for gate in gates] == ["no_change", "no_change", ""]
        assert gates[-1]["missing"] == "", "what is not sent is not logged as a reminder"
        for gate, position in zip(gates, (3, 5), strict=False):
            assert it.messages[position] == {"role": "user", "content": gate["missing"]}
            assert gate["missing"].startswith("No file of the repository has changed.")


async def test_the_gate_knows_what_changed_and_what_was_tested(tmp_path: Path) -> None:
    async with core(tmp_path, TEST, FIX, DONE, TEST, DONE) as it:
        outcome = await it.loop.run()
        assert outcome.kind == "done"
        [untested, passed] = it.log("gate")
        assert untested["missing"].startswith("No test has run since your last change.")
        assert (passed["missing"], passed["asked"]) == ("", 0)


UNKNOWN = calls(call("x", "no_such_tool"))
REPRODUCES = calls(call("r", "code_exec", code="python /tmp/reproduce_test.py", language="bash"))
BACK = calls(call("back", "file_edit", path="calc.py", old="a + b", new="a - b"))
WORK = [READ, FIX, TEST]
ANNOUNCED = [says("Let me look."), says("Now I'll fix it:"), says("Next, I'll run the tests.")]


@pytest.mark.parametrize(
    ("answers", "gates"),
    [
        pytest.param(
            [*itertools.chain(*zip(ANNOUNCED, WORK, strict=True)), says("Let me check again."), DONE],
            [*[("announced", 0)] * 4, ("", 1)],
            id="a call that ran begins a new row of reminders",
        ),
        pytest.param(
            [DONE, UNKNOWN, DONE, UNKNOWN, DONE],
            [("no_change", 0), ("no_change", 1), ("", 2)],
            id="a call that was refused is no work",
        ),
        pytest.param(
            [*[says(f"Let me look at line {number}.") for number in range(4)], FIX, TEST, DONE],
            [*[("announced", number) for number in range(4)], ("", 0)],
            id="a model that announces is told more often",
        ),
        pytest.param(
            [FIX, REPRODUCES, DONE, TEST, DONE],
            [("not_counted", 0), ("", 0)],
            id="a program that only reproduces is no test run",
        ),
        pytest.param(
            [FIX, BACK, TEST, DONE, NO_CHANGE],
            [("no_change", 0), ("", 1)],
            id="a change that is taken back is no change",
        ),
    ],
)
async def test_what_the_gate_asks_for(
    tmp_path: Path, answers: list[Answer], gates: list[tuple[str, int]]
) -> None:
    async with core(tmp_path, *answers) as it:
        await it.loop.run()
        assert [(gate["cause"], gate["asked"]) for gate in it.log("gate")] == gates


async def test_an_answer_without_text_and_calls_is_never_sent_back_empty(tmp_path: Path) -> None:
    async with core(tmp_path, says(""), says(" \n"), NO_CHANGE) as it:
        await it.loop.run()
        assert [gate["cause"] for gate in it.log("gate")] == ["empty", "empty", ""]
        sent = [message for message in it.asked[-1].messages if message["role"] == "assistant"]
        assert [message["content"] for message in sent] == [NO_ANSWER] * 2
        assert [message["reasoning"] for message in sent] == ["hm"] * 2


async def test_red_tests_are_named_once_for_each_change(tmp_path: Path) -> None:
    """The model may have answered why they are red; the verdict says the rest."""
    passed = TestReport((ADD,), (), (), (), {}, True, False, 1.0, 0, "", False)
    again = calls(call("again", "file_edit", path="calc.py", old="a * b", new="a / b"))
    wrong = calls(call("wrong", "file_edit", path="calc.py", old="a - b", new="a * b"))
    async with core(tmp_path, wrong, TEST, DONE, TEST, DONE) as it:
        it.loop.baseline = lambda: passed
        await it.loop.run()
        assert [gate["cause"] for gate in it.log("gate")] == ["red", ""]
    other = tmp_path / "other"
    other.mkdir()
    async with core(other, wrong, TEST, DONE, again, TEST, DONE, DONE) as it:
        it.loop.baseline = lambda: passed
        await it.loop.run()
        assert [gate["cause"] for gate in it.log("gate")] == ["red", "red", ""]


async def test_an_answer_cut_off_at_the_length_limit_is_not_the_end(tmp_path: Path) -> None:
    async with core(tmp_path, says("No change: it", finish="length"), NO_CHANGE) as it:
        outcome = await it.loop.run()
        assert outcome.kind == "done"
        assert it.messages[3] == {"role": "user", "content": prompt.CUT_OFF}
        assert len(it.log("gate")) == 1


async def test_complete_calls_of_a_cut_answer_are_run(tmp_path: Path) -> None:
    cut = Turn(FIX.message, USAGE, "length", 1.0, 0.1)
    async with core(tmp_path, cut, TEST, DONE) as it:
        assert (await it.loop.run()).kind == "done"
        assert it.roles() == ["assistant", "tool", "assistant", "tool", "assistant"]


# -- limits ----------------------------------------------------------------------------------------------------------


async def test_at_a_limit_the_model_has_the_last_word(tmp_path: Path) -> None:
    async with core(tmp_path, FIX, says("The sign was wrong."), limits=RunLimits(1, 60)) as it:
        before = time.monotonic()
        outcome = await it.loop.run()
        assert outcome == Outcome("limit", "the limit of 1 turn was reached", "The sign was wrong.")
        last = it.asked[-1]
        assert last.messages[-1]["content"] == prompt.LIMIT_REACHED.format(limit="1 turn")
        assert (last.tool_choice, last.max_tokens) == ("none", LAST_WORDS_TOKENS)
        assert last.tools == it.asked[0].tools != []
        assert last.deadline is not None
        assert before + LAST_WORDS_SECONDS <= last.deadline <= time.monotonic() + LAST_WORDS_SECONDS
        assert it.log("gate") == []


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (RunLimits(9, 60, tokens=5), "the limit of 5 completion tokens was reached"),
        (RunLimits(9, 60, cost=0.0), "the limit of $0.00 was reached"),
    ],
)
async def test_what_is_spent_pays_for_no_summary(tmp_path: Path, limits: RunLimits, reason: str) -> None:
    async with core(tmp_path, FIX, says("too much"), limits=limits) as it:
        assert (await it.loop.run()) == Outcome("limit", reason, "")
        assert len(it.asked) <= 1


async def test_a_limit_that_is_reached_at_once(tmp_path: Path) -> None:
    async with core(tmp_path, says("Nothing was done."), limits=RunLimits(9, 0.0)) as it:
        assert (await it.loop.run()).reason == "the limit of 0 minutes was reached"
        assert len(it.asked) == 1


@pytest.mark.parametrize(
    "failure",
    [
        StreamCut(HOST, "gone"),
        DeadlineExceeded(HOST),
        EndpointUnreachable(HOST, "refused"),
        ContextTooLong(1, 2),
        CHANT,
    ],
    ids=["cut", "late", "gone", "too long", "chant"],
)
async def test_limit_is_the_outcome_even_without_a_last_answer(tmp_path: Path, failure: Any) -> None:
    async with core(tmp_path, FIX, failure, limits=RunLimits(1, 60)) as it:
        outcome = await it.loop.run()
        assert (outcome.kind, outcome.text) == ("limit", "")


async def test_the_time_is_over_in_the_middle_of_an_answer(tmp_path: Path) -> None:
    async with core(tmp_path, DeadlineExceeded(HOST), says("So far."), limits=RunLimits(9, 2.5)) as it:
        outcome = await it.loop.run()
        assert outcome == Outcome("limit", "the limit of 2.5 minutes was reached", "So far.")
        assert it.asked[0].deadline == it.loop.limits.deadline


async def test_errors_of_the_server_end_the_session(tmp_path: Path) -> None:
    async with core(tmp_path, FIX, StreamCut(HOST, "gone")) as it:
        with pytest.raises(StreamCut):
            await it.loop.run()
        assert it.roles() == ["assistant", "tool"]


async def test_a_sandbox_that_dies_ends_the_session(tmp_path: Path) -> None:
    async with core(tmp_path, FIX) as it:
        await it.sandbox.machine.destroy()
        with pytest.raises(SandboxDied):
            await it.loop.run()


# -- loops of the model ----------------------------------------------------------------------------------------------


async def test_note_to_a_repetitive_model_is_in_the_result(tmp_path: Path) -> None:
    async with core(tmp_path, LOOK, LOOK, NO_CHANGE, thresholds=SOON) as it:
        await it.loop.run()
        [stall] = it.log("stall")
        assert (stall["turn"], stall["rule"], stall["action"], stall["count"]) == (
            *(2, "same-call-same-result", "told"),
            2,
        )
        assert it.messages[5]["content"] == f"{it.messages[3]['content']}\n\n[note: {stall['text']}]"
        assert it.roles() == ["assistant", "tool", "assistant", "tool", "assistant"]


async def test_a_forced_move_shows_the_tests_and_the_diff_and_then_comes_the_end(tmp_path: Path) -> None:
    async with core(tmp_path, TEST, FIX, LOOK, LOOK, LOOK, LOOK, thresholds=SOON) as it:
        outcome = await it.loop.run()
        told, forced, stopped = it.log("stall")
        assert [told["action"], forced["action"], stopped["action"]] == ["told", "forced", "stopped"]
        assert "The last test run: 0 passed, 1 failed, 0 errored." in forced["text"]
        assert f"- {ADD}" in forced["text"]
        assert "+    return a + b" in forced["text"]
        assert "Your change so far" not in told["text"] + stopped["text"]
        assert forced["text"] in it.messages[-3]["content"]
        assert "note:" not in it.last(), "the last result is as it came: nobody reads a note in it"
        assert outcome == Outcome("stalled", stopped["text"], "")


async def test_forced_move_shows_a_diff_that_is_not_utf_8(tmp_path: Path) -> None:
    thresholds = Thresholds(first_turn=1, empty=1, tells=0)
    async with core(tmp_path, says(""), UNTESTED, thresholds=thresholds) as it:
        await it.sandbox.write("a.txt", b"caf\xe9\n")
        await it.loop.run()
        [forced] = it.log("stall")
        said, state = forced["text"].split("\n\n", 1)
        assert said.endswith("check it first.")
        assert "\ndiff --git a/a.txt b/a.txt" in state
        assert "+caf\N{REPLACEMENT CHARACTER}" in state


async def test_text_beside_the_last_calls_is_in_the_outcome(tmp_path: Path) -> None:
    last = calls(*LOOK.message.calls, text="Once more.")
    async with core(tmp_path, LOOK, LOOK, LOOK, last, thresholds=SOON) as it:
        outcome = await it.loop.run()
        assert (outcome.kind, outcome.text) == ("stalled", "Once more.")


async def test_all_calls_of_the_last_turn_are_run(tmp_path: Path) -> None:
    both = calls(*LOOK.message.calls, *FIX.message.calls)
    async with core(tmp_path, LOOK, LOOK, LOOK, both, thresholds=SOON) as it:
        assert (await it.loop.run()).kind == "stalled"
        assert await it.sandbox.read("calc.py") == b"def add(a, b):\n    return a + b\n"
        assert it.last() == FIXED


async def test_empty_answers_get_a_note_then_force_then_stop(tmp_path: Path) -> None:
    thresholds = Thresholds(first_turn=1, empty=1, tells=1)
    async with core(tmp_path, *[says("")] * 3, thresholds=thresholds) as it:
        outcome = await it.loop.run()
        told, forced, stopped = it.log("stall")
        missing = it.log("gate")[0]["missing"]
        assert it.messages[3]["content"] == f"{missing}\n\n{told['text']}"
        assert it.messages[5]["content"] == f"{missing}\n\n{forced['text']}"
        assert "\n\n" in forced["text"], "the state follows"
        assert outcome == Outcome("stalled", stopped["text"], "")
        assert len(it.log("gate")) == 2, "the last answer is not asked for anything more"


async def test_note_on_an_answer_that_was_cut_off(tmp_path: Path) -> None:
    thresholds = Thresholds(first_turn=1, cut_off=1, tells=1)
    cut = Turn(FIX.message, USAGE, "length", 1.0, 0.1)
    async with core(tmp_path, says("No", finish="length"), cut, thresholds=thresholds) as it:
        it.client.answers += [TEST, DONE]
        await it.loop.run()
        told, forced = it.log("stall")
        assert it.messages[3]["content"] == f"{prompt.CUT_OFF}\n\n{told['text']}"
        assert it.messages[5]["content"] == f"{FIXED}\n\n[note: {forced['text']}]"


async def test_note_on_the_answer_is_in_the_first_result_and_notes_on_calls_in_theirs(tmp_path: Path) -> None:
    """The note on the answer comes before the note on the first call; no result has the note of another call."""
    thresholds = Thresholds(first_turn=1, cut_off=1, in_a_row=2, tells=9)
    twice = Turn(
        AssistantMessage("hm", "", (*LOOK.message.calls, call("new", "file_read", path="calc.py"))),
        USAGE,
        "length",
        1.0,
        0.1,
    )
    async with core(tmp_path, LOOK, twice, NO_CHANGE, thresholds=thresholds) as it:
        await it.loop.run()
        first, second = it.log("stall")
        result = it.messages[3]["content"]
        assert it.messages[5]["content"] == f"{result}\n\n[note: {first['text']}]\n\n[note: {second['text']}]"
        assert "note:" not in it.messages[6]["content"]


async def test_a_chant_is_broken_off_and_the_history_stays_as_it_was(tmp_path: Path) -> None:
    async with core(tmp_path, CHANT, NO_CHANGE, thresholds=Thresholds(tells=1)) as it:
        outcome = await it.loop.run()
        assert outcome.kind == "done"
        [stall] = it.log("stall")
        assert (stall["rule"], stall["action"]) == ("chant", "told")
        assert it.asked[1].messages == [*FIRST_MESSAGES, {"role": "user", "content": stall["text"]}]


async def test_model_that_keeps_chanting_is_stopped(tmp_path: Path) -> None:
    async with core(tmp_path, CHANT, CHANT, CHANT, thresholds=Thresholds(tells=1)) as it:
        outcome = await it.loop.run()
        told, forced, stopped = it.log("stall")
        assert [told["turn"], forced["turn"], stopped["turn"]] == [1, 2, 3]
        assert it.last() == forced["text"]
        assert "\n\n" in forced["text"], "the state follows"
        assert outcome == Outcome("stalled", stopped["text"], "")


# -- a conversation that is recorded for training -----------------------------------------------------------------------


async def test_a_recorded_conversation_has_no_last_words(tmp_path: Path) -> None:
    async with core(tmp_path, FIX, limits=RunLimits(1, 60)) as it:
        it.loop.append_only = True
        outcome = await it.loop.run()
        assert (outcome.kind, outcome.text) == ("limit", "")
        assert len(it.asked) == 1


async def test_a_recorded_conversation_ends_with_a_chant(tmp_path: Path) -> None:
    async with core(tmp_path, CHANT, thresholds=Thresholds(tells=1)) as it:
        it.loop.append_only = True
        outcome = await it.loop.run()
        assert outcome == Outcome("stalled", it.log("stall")[0]["text"], "")
        assert list(it.messages) == FIRST_MESSAGES


# -- a full window -----------------------------------------------------------------------------------------------------


def at(prompt_tokens: int, answer: Turn) -> Turn:
    """Return the same answer, with `prompt_tokens` as the server's count of its prompt."""
    return Turn(answer.message, Usage(prompt=prompt_tokens, completion=10), answer.finish, 1.0, 0.1)


LONG = {"calc.py": BUGGY["calc.py"] + "# a long file\n" * 110}
READS = [calls(call(f"read {n}", "file_read", path="calc.py", start=n)) for n in range(1, 9)]
"""Different steps whose results each take nearly half of the margin."""
NOTES = says("calc.add subtracts: change the sign.", reasoning="hm")
TOO_LONG = ContextTooLong(WINDOW, WINDOW + 1)


async def test_the_tail_is_summarised_when_the_window_is_nearly_full(tmp_path: Path) -> None:
    answers: list[Answer] = [FIX, *READS[:3], at(14_400, READS[3]), NOTES, TEST, DONE]
    async with core(tmp_path, *answers, files=LONG, window=WINDOW) as it:
        outcome = await it.loop.run()
        assert outcome.kind == "done"
        assert [asked.tool_choice for asked in it.asked] == ["auto"] * 5 + ["none"] + ["auto"] * 2
        summary = it.asked[5]
        assert summary.messages[-1] == {"role": "user", "content": prompt.SUMMARISE}
        assert summary.max_tokens == it.loop.window.summary_tokens == 1000
        assert summary.tools == it.asked[0].tools
        assert summary.deadline == it.loop.limits.deadline
        [event] = it.log("context.summarised")
        assert (event["turn"], event["messages"], event["own_words"]) == (6, FIRST + 10, True)
        kept = event["kept"]
        assert kept == 2, "the last step"
        after = it.asked[6].messages
        assert after[:FIRST] == FIRST_MESSAGES
        assert after[FIRST] == {"role": "user", "content": event["text"]}
        assert after[FIRST + 1 :] == summary.messages[-1 - kept : -1]
        assert "calc.add subtracts: change the sign." in event["text"]
        assert "+    return a + b" in event["text"]


@pytest.mark.parametrize("last", ["full", "too long"])
async def test_a_recorded_conversation_is_not_summarised(tmp_path: Path, last: str) -> None:
    end: Answer = at(14_400, READS[3]) if last == "full" else TOO_LONG
    async with core(tmp_path, FIX, *READS[:3], end, files=LONG, window=WINDOW) as it:
        it.loop.append_only = True
        assert await it.loop.run() == Outcome("limit", "the context window is full", "")
        assert it.log("context.summarised") == []
        for before, after in itertools.pairwise(it.asked):
            assert after.messages[: len(before.messages)] == before.messages
            assert (after.tools, after.tool_choice) == (before.tools, before.tool_choice)


async def test_a_window_that_is_not_full_is_left_alone(tmp_path: Path) -> None:
    answers: list[Answer] = [FIX, *READS[:3], at(8000, READS[3]), TEST, DONE]
    async with core(tmp_path, *answers, files=LONG, window=WINDOW) as it:
        await it.loop.run()
        assert it.log("context.summarised") == []


@pytest.mark.parametrize("cannot", [says("  \n"), TOO_LONG, CHANT], ids=["empty", "too long", "chant"])
async def test_where_the_model_cannot_say_what_it_did_its_calls_are_listed(
    tmp_path: Path, cannot: Any
) -> None:
    answers: list[Answer] = [FIX, *READS[:3], at(14_400, READS[3]), cannot, TEST, DONE]
    async with core(tmp_path, *answers, files=LONG, window=WINDOW) as it:
        assert (await it.loop.run()).kind == "done"
        [event] = it.log("context.summarised")
        assert not event["own_words"]
        assert "The calls so far:\n- file_edit" in event["text"]
        assert event["text"].count("- file_read") == 3, "the calls that stay are not listed"
        assert prompt.SUMMARISE not in [message["content"] for message in it.messages]


async def test_token_count_before_a_summary_does_not_cause_another(tmp_path: Path) -> None:
    """After the summary the server counts no tokens, and the tail is again long enough to summarise."""
    uncounted = [Turn(answer.message, Usage(), answer.finish, 1.0, 0.1) for answer in (*READS[4:7], TEST)]
    answers: list[Answer] = [FIX, *READS[:3], at(14_400, READS[3]), NOTES, *uncounted, DONE]
    async with core(tmp_path, *answers, files=LONG, window=WINDOW) as it:
        assert (await it.loop.run()).kind == "done"
        assert len(it.log("context.summarised")) == 1


async def test_a_server_that_fails_while_it_summarises_ends_the_session(tmp_path: Path) -> None:
    answers: list[Answer] = [FIX, *READS[:3], at(14_400, READS[3]), StreamCut(HOST, "gone")]
    async with core(tmp_path, *answers, files=LONG, window=WINDOW) as it:
        with pytest.raises(StreamCut):
            await it.loop.run()
        assert it.log("context.summarised") == []


async def test_the_time_is_over_while_it_summarises(tmp_path: Path) -> None:
    answers: list[Answer] = [FIX, *READS[:3], at(14_400, READS[3]), DeadlineExceeded(HOST), says("So far.")]
    async with core(tmp_path, *answers, files=LONG, window=WINDOW) as it:
        assert await it.loop.run() == Outcome("limit", "the limit of 60 minutes was reached", "So far.")


async def test_a_request_that_is_too_long_is_made_shorter(tmp_path: Path) -> None:
    """This works twice, with an answer in between; the window is then the size that the server reported."""
    answers: list[Answer] = [FIX, *READS[:3], TOO_LONG, NOTES, *READS[3:6], TOO_LONG, NOTES, TEST, DONE]
    async with core(tmp_path, *answers, files=LONG) as it:
        assert (await it.loop.run()).kind == "done"
        assert len(it.log("context.summarised")) == 2
        assert it.loop.window.limit == WINDOW
        refused, asked_for_notes, shorter = it.asked[4:7]
        assert asked_for_notes.messages[:-1] == refused.messages
        assert len(shorter.messages) < len(refused.messages)


@pytest.mark.parametrize(
    ("answers", "window", "summaries"),
    [
        ([FIX, *READS[:3], TOO_LONG, NOTES, TOO_LONG], None, 1),
        ([FIX, *READS[:3], at(14_400, READS[3]), NOTES, TOO_LONG], WINDOW, 1),
        ([TOO_LONG], None, 0),
    ],
    ids=["after a summary", "after a due summary", "first"],
)
async def test_a_request_that_cannot_be_made_shorter_is_an_error(
    tmp_path: Path, answers: list[Answer], window: int | None, summaries: int
) -> None:
    async with core(tmp_path, *answers, files=LONG, window=window) as it:
        with pytest.raises(ContextTooLong):
            await it.loop.run()
        assert len(it.log("context.summarised")) == summaries


# -- a resumed session -------------------------------------------------------------------------------------------------


def asking(*made: ToolCall) -> list[Message]:
    """Return a conversation that ended after the model had made these calls."""
    return [*FIRST_MESSAGES, AssistantMessage("hm", "", made).to_request("reasoning")]


def begun(number: int) -> dict[str, Any]:
    return {"type": "call.started", "call": number}


def ended(status: str, content: str) -> dict[str, Any]:
    line: dict[str, Any] = {
        "content": content,
        "is_error": False,
        "exit_code": None,
        "digest": "d",
        "data": {},
    }
    return {"type": "call.finished", "status": status, "truncated": False, "full_path": None, **line}


async def test_pending_calls_are_delivered_reported_or_run(tmp_path: Path) -> None:
    known, interrupted, reported, fresh = (
        call(name, "file_write", path=f"{name}.txt", content="x") for name in ("a", "b", "c", "d")
    )
    pending = [
        PendingCall(known, begun(4), ended("done", "wrote a.txt")),
        PendingCall(interrupted, begun(5)),
        PendingCall(reported, begun(6), ended("interrupted", "interrupted")),
        PendingCall(fresh),
    ]
    async with core(
        tmp_path, NO_CHANGE, NO_CHANGE, NO_CHANGE, messages=asking(known, interrupted, reported, fresh)
    ) as it:
        it.model.turn, it.calls.number = 3, 6
        await it.loop.run(pending)
        first = it.asked[0].messages[3:]
        assert [message["tool_call_id"] for message in first] == ["a", "b", "c", "d"]
        assert [message["content"] for message in first] == [
            "wrote a.txt",
            INTERRUPTED,
            INTERRUPTED,
            "wrote d.txt (1 lines, 1 bytes)",
        ]
        assert [(line["call"], line["id"]) for line in it.log("call.started")] == [(7, "d")]
        cut, run = it.log("call.finished")
        assert (cut["turn"], cut["call"], cut["id"], cut["status"], cut["seconds"]) == (
            *(3, 5, "b"),
            *("interrupted", 0.0),
        )
        assert (cut["content"], cut["tree"]) == (INTERRUPTED, it.sandbox.workspace.base)
        assert (run["turn"], run["id"], run["status"]) == (3, "d", "done")


async def test_results_that_are_known_are_shown_with_the_same_care(tmp_path: Path) -> None:
    key = "ghp_" + "a1B2c3D4e5F6" * 3
    made = call("a", "code_exec", code="print()")
    pending = [PendingCall(made, begun(1), ended("done", f"TOKEN={key}"))]
    async with core(tmp_path, NO_CHANGE, messages=asking(made)) as it:
        await it.loop.run(pending)
        assert key not in it.messages[3]["content"]


async def repeat(it: Core, times: int) -> None:
    """Feed the detector turns that make the call of `LOOK`, as resuming from a log does."""
    from m3agent.agent.stall import as_seen

    made = LOOK.message.calls[0]
    for _ in range(times):
        it.loop.stall.answered(reasoning="hm", text="", calls=1, finish="tool_calls")
        result = await it.calls.tools.call(made.name, made.arguments, 1)
        it.loop.stall.see(as_seen(made, result, result.content, it.sandbox.tree))


async def test_a_pending_call_may_be_the_last_of_a_loop(tmp_path: Path) -> None:
    made = LOOK.message.calls[0]
    async with core(tmp_path, messages=asking(made), thresholds=SOON) as it:
        await repeat(it, 3)
        it.loop.stall.answered(reasoning="hm", text="", calls=1, finish="tool_calls")
        outcome = await it.loop.run([PendingCall(made)])
        [stopped] = it.log("stall")
        assert outcome == Outcome("stalled", stopped["text"], "")
        assert it.roles() == ["assistant", "tool"]
        assert it.asked == []


async def test_a_known_result_is_not_fed_to_the_detector_again(tmp_path: Path) -> None:
    made = LOOK.message.calls[0]
    async with core(tmp_path, NO_CHANGE, messages=asking(made), thresholds=SOON) as it:
        await repeat(it, 1)
        it.loop.stall.answered(reasoning="hm", text="", calls=1, finish="tool_calls")
        content = "error: missing.py: No such file or directory"
        await it.loop.run([PendingCall(made, begun(2), ended("done", content))])
        assert it.log("stall") == []


@pytest.mark.parametrize(
    ("last", "told", "wanted"),
    [
        ({"role": "user", "content": "go on"}, "", None),
        ({"role": "assistant", "content": "Now"}, "", prompt.RESUMED),
        ({"role": "user", "content": prompt.LIMIT_REACHED.format(limit="9 turns")}, "", prompt.RESUMED),
        ({"role": "user", "content": prompt.SUMMARISE}, "", prompt.RESUMED),
        ({"role": "assistant", "content": "Now"}, "Mind the sign.", "Mind the sign."),
        ({"role": "user", "content": "go on"}, "Mind the sign.", "Mind the sign."),
    ],
)
async def test_messages_to_a_resumed_session(
    tmp_path: Path, last: Message, told: str, wanted: str | None
) -> None:
    messages = [*FIRST_MESSAGES, last]
    async with core(tmp_path, NO_CHANGE, messages=messages) as it:
        it.loop.user_message = told
        await it.loop.run()
        expected = [] if wanted is None else [{"role": "user", "content": wanted}]
        assert it.asked[0].messages == [*messages, *expected]


async def test_where_a_session_resumes(tmp_path: Path) -> None:
    point = ResumePoint({"tree": "t"}, "t", turn=4, calls=7, tell="Mind the sign.")
    point.tests.add_run({"passed": [], "failed": [ADD], "errored": []}, "u")
    async with core(tmp_path, READ, *[says("done")] * 3) as it:
        it.loop.resume_from(point)
        assert (it.calls.tests.tree, it.calls.tests.red_on("u")) == ("u", {ADD})
        outcome = await it.loop.run()
        assert it.messages[2]["content"] == "Mind the sign."
        assert [line["turn"] for line in it.log("turn.started")] == [5, 6, 7, 8]
        assert [line["call"] for line in it.log("call.started")] == [8]
        assert [line["asked"] for line in it.log("gate")] == [0, 1, 2]
        assert outcome.kind == "done"
        assert it.calls.tests == point.tests

"""Test what a person says while the model works: when the model gets it, and that nothing of it is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.agent.loop import prompt
from m3agent.agent.loop.inbox import Inbox
from m3agent.agent.loop.resume import resume_point
from tests.agent.core import DONE, FIX, READ, TEST, core
from tests.fakes.client import says

pytestmark = pytest.mark.timeout(30)


async def test_the_model_gets_a_message_with_its_next_request(tmp_path: Path) -> None:
    async with core(tmp_path, READ, FIX, TEST, DONE) as it:
        it.loop.hear("Only add() is wrong.")
        it.loop.hear("Keep double().")
        assert (await it.loop.run()).text == "It adds now."
        told = [prompt.SAID.format(text) for text in ("Only add() is wrong.", "Keep double().")]
        assert it.asked[0].messages[-1] == {"role": "user", "content": "\n\n".join(told)}
        assert [line["text"] for line in it.log("person.message")] == [
            "Only add() is wrong.",
            "Keep double().",
        ]
        assert it.roles().count("user") == 1


async def test_a_message_keeps_the_session_from_its_end(tmp_path: Path) -> None:
    """A message that comes while the result is reviewed is answered as well."""
    async with core(tmp_path, FIX, TEST, DONE, says("I kept the name.")) as it:

        async def review(_: str) -> str:
            if not it.log("person.message"):
                it.loop.hear("Keep the name.")
            return ""

        it.loop.before_end = review
        assert (await it.loop.run()).text == "I kept the name."
        assert it.asked[-1].messages[-1]["content"] == prompt.SAID.format("Keep the name.")


async def test_a_message_goes_before_what_the_gate_would_say(tmp_path: Path) -> None:
    async with core(tmp_path, DONE, FIX, TEST, DONE) as it:
        answered = it.loop.stall.answered

        def hears(**how: object) -> object:
            if not it.log("person.message"):
                it.loop.hear("Begin with add().")
            return answered(**how)  # type: ignore[arg-type]

        it.loop.stall.answered = hears  # type: ignore[method-assign, assignment]
        await it.loop.run()
        assert [gate["cause"] for gate in it.log("gate")] == [""]


async def test_a_message_that_was_not_sent_survives_a_kill(tmp_path: Path) -> None:
    async with core(tmp_path, READ, FIX, TEST, DONE, says("I looked.")) as it:
        it.loop.hear("Look there first.")
        await it.loop.run()
        sent = next(n for n, line in enumerate(it.lines) if line["type"] == "turn.started")
        started = {"type": "session.started", "tree": "t", "v": 1, "seq": 1, "ts": "2026-01-01T00:00:00Z"}
        before, after = ([started, *it.lines[:end]] for end in (sent, sent + 1))
        assert resume_point(before).unheard(it.messages[:2]) == ["Look there first."]
        assert resume_point(before).unheard(it.messages[:3]) == [], "it is in the conversation already"
        assert resume_point(after).unheard(it.messages[:2]) == []


async def test_a_short_message_is_not_taken_for_a_part_of_the_one_before(tmp_path: Path) -> None:
    started = {"type": "session.started", "tree": "t", "v": 1, "seq": 1, "ts": "2026-01-01T00:00:00Z"}
    async with core(tmp_path) as it:
        for text in ("Keep the name.", "name"):
            it.loop.hear(text)
        point = resume_point([started, *it.lines])
        told = {"role": "user", "content": prompt.SAID.format("Keep the name.")}
        assert point.unheard([told]) == ["name"]
        assert point.unheard([{"role": "user", "content": "Which name?"}]) == ["Keep the name.", "name"]


async def test_text_of_a_person_cannot_be_taken_for_markup(tmp_path: Path) -> None:
    async with core(tmp_path, FIX, TEST, DONE) as it:
        it.loop.hear("x</issue>")
        await it.loop.run()
        assert "</issue>" not in it.asked[0].messages[-1]["content"]


def test_every_attempt_hears_all_messages() -> None:
    inbox, first, second = Inbox(), list[str](), list[str]()
    inbox.put("early")
    with inbox.heard_by(first.append):
        inbox.put("to the first")
        with inbox.heard_by(second.append):
            inbox.put("to both")
        inbox.put("late")
    assert not inbox.put("to nobody")
    assert first == ["early", "to the first", "to both", "late"]
    assert second == ["early", "to the first", "to both"]


def test_the_next_work_does_not_hear_the_messages_of_the_last_one() -> None:
    """`pr follow` works in rounds, with one inbox."""
    inbox, second = Inbox(), list[str]()
    with inbox.heard_by(lambda _: None):
        assert inbox.put("to the first")
    with inbox.heard_by(second.append):
        assert inbox.put("to the second")
    assert second == ["to the second"]

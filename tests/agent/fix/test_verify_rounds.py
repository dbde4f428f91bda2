"""Test that a verdict goes back to the model, what the model is told, and when the session ends instead."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from m3agent.agent.fix.attempt import Attempt
from m3agent.agent.loop.resume import resume_point
from m3agent.agent.verify.baseline import BaselineRun, KeptBaselines
from m3agent.agent.verify.verify import Verification
from m3agent.sandbox.errors import PathEscapes
from m3agent.serving.client.messages import Turn
from m3agent.tools.test_report import TestReport
from tests.agent.core import ADD, BUGGY, DONE, FIX, TEST
from tests.agent.fix.attempt_parts import CUT_SHORT, RUN_CONTEXT, SPEC, World, no_baseline
from tests.fakes.client import Answer, call, calls, says
from tests.fakes.machine import Command, Done, Script
from tests.fakes.suite import Run, Suite

NEW = "test_new.py"
NEW_ID = f"{NEW}::test_new"


def write(path: str, content: str) -> Turn:
    """Return a turn that writes a file."""
    return calls(call(f"write-{path}", "file_write", path=path, content=content))


BREAK = write("calc.py", "def add(a, b):\n    return 5\n")
MEND = write("calc.py", "def add(a, b):\n    return a + b\n")
RED_TEST = write(NEW, "def test_new():\n    assert add(1, 1) == 3\n")
WEAK_TEST = write(NEW, "def test_new():\n    pass\n")
SKIPPED_TEST = write(NEW, "@pytest.mark.skip\ndef test_new():\n    assert add(1, 1) == 3\n")
RIGHT_CODE = write("calc.py", "def add(a, b):\n    return a + b\n\nNEW = True\n")


def suite(files: Mapping[str, str], _: Sequence[str]) -> Run:
    """Run a suite in which `ADD` needs the right sum, `other` a sum that is computed, and `NEW_ID` its own text."""
    code, found = files["calc.py"], {}
    found[ADD] = "passed" if "a + b" in code or "return 5" in code else "failed"
    found["test_calc.py::test_other"] = "failed" if "return 5" in code else "passed"
    if NEW in files:
        text = files[NEW]
        found[NEW_ID] = "skipped" if "skip" in text else "failed" if "== 3" in text else "passed"
    return Run(found)


async def run(
    world: World,
    *answers: Answer,
    rounds: int = 2,
    with_baseline: bool = False,
    script: Script | None = None,
    **settings: Any,
) -> Attempt:
    """Run an attempt to its verdict, by default without a known result of the base tree."""
    world.script = script or Suite(suite)
    attempt = world.attempt(*answers, verify_rounds=rounds, **settings)
    known: dict[str, Verification] = {}
    await attempt.start_sandbox(SPEC, "bwrap")
    baseline = no_baseline(world.folder)
    if with_baseline:
        assert attempt.workspace is not None
        runs, base = attempt.fresh_runs("bwrap", SPEC), attempt.workspace.base
        baseline = BaselineRun(lambda: runs.run(base, "baseline"), KeptBaselines(world.folder), None)
        await baseline.result()

    async def verify() -> None:
        await world.verify(attempt, known, baseline=baseline)

    warm = asyncio.Event()
    await attempt.work(RUN_CONTEXT, baseline, warm, verify)
    await verify()
    return attempt


async def test_a_broken_test_goes_back_and_is_mended(world: World) -> None:
    attempt = await run(world, BREAK, TEST, DONE, MEND, TEST, DONE)
    assert attempt.is_verified
    [told] = world.log("feedback")
    assert (told["round"], told["kinds"]) == (1, ["broken"])
    assert told["tests"] == ["test_calc.py::test_other"]
    assert "test_calc.py::test_other" in told["text"]
    assert "message 1 of at most 2" in told["text"]
    sent = world.clients[0].asked[3].messages
    assert sent[-1] == {"role": "user", "content": told["text"]}
    before = world.clients[0].asked[2].messages
    assert sent[: len(before)] == before, "the conversation only grows"
    assert [(line["round"], line["by"], line["verdict"]) for line in world.log("verify")] == [
        (1, "gate", "failed"),
        (2, "gate", "verified"),
    ]


MAKE_OR_REMOVE = "[ -e .gitattributes ] && rm .gitattributes || touch .gitattributes"
ATTRIBUTES = calls(call("attributes", "code_exec", code=MAKE_OR_REMOVE, language="bash"))


class Attributes(Suite):
    """A suite on a machine that also runs the program `MAKE_OR_REMOVE`."""

    async def __call__(self, command: Command) -> Done | None:
        if "bash" not in " ".join(command.argv):
            return await super().__call__(command)
        if ".gitattributes" in command.files:
            command.files.remove(".gitattributes")
        else:
            command.files.write(".gitattributes", b"")
        return Done()


async def test_a_change_that_may_not_be_handed_over_goes_back(world: World) -> None:
    attempt = await run(world, MEND, ATTRIBUTES, TEST, DONE, ATTRIBUTES, TEST, DONE, script=Attributes(suite))
    assert attempt.is_verified
    [told] = world.log("feedback")
    assert (told["kinds"], told["tests"]) == (["refused"], [])
    assert ".gitattributes, which git itself reads" in told["text"]


async def test_a_change_that_is_refused_twice_ends_the_session(world: World) -> None:
    with pytest.raises(PathEscapes):
        await run(world, MEND, ATTRIBUTES, TEST, DONE, TEST, DONE, script=Attributes(suite))
    assert len(world.log("feedback")) == 1


@pytest.mark.parametrize("noted", [0.0, 60.0])
async def test_a_long_wait_for_the_baseline_is_said(
    world: World, monkeypatch: pytest.MonkeyPatch, noted: float
) -> None:
    monkeypatch.setattr("m3agent.agent.fix.attempt.NOTED_SECONDS", noted)
    attempt = world.attempt(FIX, TEST, DONE)
    said, told = list[str](), asyncio.Event()

    def say(text: str) -> None:
        said.append(text)
        told.set()

    attempt.say = say
    await attempt.start_sandbox(SPEC, "bwrap")

    async def late() -> TestReport:
        if noted == 0:
            await told.wait()
        return CUT_SHORT

    baseline = BaselineRun(late, KeptBaselines(world.folder), None)

    async def verify() -> None:
        await world.verify(attempt, baseline=baseline)

    await attempt.work(RUN_CONTEXT, baseline, asyncio.Event(), verify)
    await verify()
    assert said == ["waiting for the result of the unchanged tree's tests"] * (noted == 0)
    assert baseline.done


async def test_the_old_tree_runs_once_for_all_rounds(world: World) -> None:
    attempt = await run(world, WEAK_TEST, BREAK, TEST, DONE, DONE, MEND, TEST, DONE, with_baseline=True)
    assert attempt.is_verified
    assert len(world.log("verify")) == 2
    logs = sorted(path.name for path in (attempt.session.folder / "calls").glob("*.log"))
    assert [name for name in logs if name.startswith(("baseline", "verify"))] == [
        "baseline.log",
        "verify-added-after.log",
        "verify-added-before.log",
        "verify-after.log",
        "verify-inverted-1.log",
    ]
    runs = len(world.sandboxes) - len(["the session", "the baseline"])
    both = ["the new tree", "the new test on the old code", "the new test on the new code"]
    assert runs == 2 * len(both) + len(["the copies of the fixed test"])


async def test_the_gate_names_a_test_that_the_change_broke(world: World) -> None:
    attempt = await run(world, BREAK, TEST, DONE, MEND, TEST, DONE, with_baseline=True)
    assert attempt.is_verified
    told, passed = world.log("gate")
    assert "passed before your change and are red now (1):\n- test_calc.py::test_other" in told["missing"]
    assert passed["missing"] == ""
    assert world.log("feedback") == []
    assert len(world.log("verify")) == 1


async def test_the_gate_names_a_red_test_that_the_change_adds(world: World) -> None:
    attempt = await run(world, MEND, RED_TEST, TEST, DONE, WEAK_TEST, TEST, DONE, with_baseline=True)
    assert attempt.is_verified
    told, passed = world.log("gate")
    assert f"are new and are red now (1):\n- {NEW_ID}" in told["missing"]
    assert passed["missing"] == ""


async def test_a_verified_change_ends_the_session_at_once(world: World) -> None:
    attempt = await run(world, FIX, TEST, DONE)
    assert attempt.is_verified
    assert world.log("feedback") == []
    assert [line["by"] for line in world.log("verify")] == ["gate"]
    assert len(world.sandboxes) == 1 + len(["the old tree", "the new tree", "the copies of the fixed test"])


async def test_without_rounds_the_verdict_comes_after_the_model(world: World) -> None:
    attempt = await run(world, BREAK, TEST, DONE, rounds=0)
    assert attempt.evidence is not None
    assert attempt.evidence.verdict == "failed"
    assert [line["by"] for line in world.log("verify")] == ["end"]
    assert world.log("feedback") == []


async def test_an_unchanged_tree_is_not_verified_again_and_ends_the_session(world: World) -> None:
    attempt = await run(world, BREAK, TEST, DONE, says("It is right as it is."))
    assert attempt.outcome is not None
    assert attempt.outcome.text == "It is right as it is."
    assert len(world.log("feedback")) == len(world.log("verify")) == 1
    assert attempt.evidence is not None
    assert attempt.evidence.verdict == "failed"


async def test_there_are_as_many_rounds_as_set(world: World) -> None:
    again = write("calc.py", "def add(a, b):\n    return 5  # sic\n")
    once_more = write("calc.py", "def add(a, b):\n    return 5  # still\n")
    attempt = await run(world, BREAK, TEST, DONE, again, TEST, DONE, once_more, TEST, DONE)
    assert [line["round"] for line in world.log("feedback")] == [1, 2]
    assert [(line["round"], line["by"]) for line in world.log("verify")] == [
        (1, "gate"),
        (2, "gate"),
        (3, "end"),
    ]
    assert attempt.evidence is not None
    assert attempt.evidence.verdict == "failed"


async def test_no_message_at_a_limit(world: World) -> None:
    attempt = await run(world, BREAK, TEST, DONE, max_turns=3)
    assert attempt.outcome is not None
    assert attempt.outcome.kind == "done"
    assert world.log("feedback") == []


async def test_a_change_without_a_red_test_asks_for_one(world: World) -> None:
    files = {**BUGGY, "calc.py": "def add(a, b):\n    return a + b\n"}
    world.workspace_files = files
    attempt = await run(world, RIGHT_CODE, TEST, DONE, says("Not tested: it cannot be."))
    [told] = world.log("feedback")
    assert told["kinds"] == ["no_red_test"]
    assert told["tests"] == []
    assert "Write a test that fails without your change" in told["text"]
    assert attempt.evidence is not None
    assert attempt.evidence.verdict == "unverified"


async def test_a_change_of_tests_alone_asks_for_no_failure(world: World) -> None:
    world.workspace_files = {**BUGGY, "calc.py": "def add(a, b):\n    return a + b\n"}
    await run(world, WEAK_TEST, TEST, DONE, DONE)
    [told] = world.log("feedback")
    assert told["kinds"] == ["no_red_test"]
    assert "No change:" in told["text"]
    assert "Write a test that fails" not in told["text"]


async def test_a_stated_reason_is_not_taken_where_tests_run(world: World) -> None:
    world.workspace_files = {**BUGGY, "calc.py": "def add(a, b):\n    return a + b\n"}
    reason = says("Not tested: it needs a printer.")
    await run(world, RIGHT_CODE, reason, TEST, reason, reason, with_baseline=True)
    assert [gate["cause"] for gate in world.log("gate")] == ["no_test", "", ""]
    assert [told["kinds"] for told in world.log("feedback")] == [["no_red_test"]]


async def test_a_stated_reason_is_taken_where_no_test_passes(world: World) -> None:
    attempt = await run(world, RIGHT_CODE, says("Not tested: no compiler."), script=Suite(lambda *_: Run({})))
    assert attempt.outcome is not None
    assert (attempt.outcome.kind, world.log("feedback")) == ("done", [])
    assert [gate["cause"] for gate in world.log("gate")] == [""]


async def test_a_red_test_of_the_change_itself_goes_back(world: World) -> None:
    right = write(NEW, "def test_new():\n    assert add(1, 1) == 2\n")
    attempt = await run(world, MEND, RED_TEST, TEST, DONE, right, TEST, DONE, DONE)
    told, _ = world.log("feedback")
    assert told["kinds"] == ["added_red"]
    assert told["tests"] == [NEW_ID]
    assert attempt.evidence is not None
    assert attempt.evidence.verdict == "unverified"
    assert attempt.evidence.reason.endswith(f"{NEW_ID} was weakened")


@pytest.mark.parametrize(
    ("later", "how"),
    [(WEAK_TEST, "weakened"), (SKIPPED_TEST, "skipped"), (write(NEW, "# nothing\n"), "deleted")],
)
async def test_a_test_that_was_named_red_must_not_be_weakened(world: World, later: Turn, how: str) -> None:
    attempt = await run(world, MEND, RED_TEST, TEST, DONE, later, TEST, DONE, DONE)
    assert [line["kinds"] for line in world.log("feedback")] == [["added_red"], ["weakened"]]
    assert attempt.evidence is not None
    assert attempt.evidence.verdict == "unverified"
    assert f"{NEW_ID} was {how}" in attempt.evidence.reason


async def test_a_killed_session_knows_its_rounds(world: World) -> None:
    await run(world, BREAK, TEST, DONE, MEND, TEST, DONE)
    started = {
        "v": 1, "seq": 0, "ts": "2026-01-01T00:00:00.000Z", "session": "session", "type": "session.started", "tree": "base",
    }  # fmt: skip
    lines = [started, *world.lines]
    end = next(n for n, line in enumerate(lines) if line["type"] == "feedback")
    before = resume_point(lines[:end])
    assert (before.rounds, before.accepted_answer) == (0, "It adds now."), (
        "killed before the verdict went back"
    )
    after = resume_point(lines[: end + 1])
    assert (after.rounds, after.accepted_answer) == (1, None)
    assert after.named_red == dict.fromkeys(["test_calc.py::test_other"], lines[end]["tree"])
    assert after.returned["text"] == lines[end]["text"]

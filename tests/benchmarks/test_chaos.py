"""Fixes with faults of every kind reach their end, and the judge of the benchmark finds what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.chaos import run
from benchmarks.chaos.__main__ import plans, table
from benchmarks.chaos.faults import KINDS, Plan, Stage, barred, plan_of
from benchmarks.chaos.model import MANNERS, STEPS, TURNS, answer, stream
from benchmarks.chaos.run import BRANCH, BUGGY, FIXED, End, Result, Witness
from benchmarks.common import commit_all, git

from m3agent.serving.wire import Call
from tests.agent.repositories import write_files

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)  # on two idle cores it takes a quarter of that
def test_a_run_with_each_kind_of_fault(tmp_path: Path) -> None:
    without = barred()
    command = [
        sys.executable,
        "-m",
        "benchmarks.chaos",
        "--runs",
        "6",
        "--json",
        str(tmp_path / "found.json"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    seen = {each["plan"]["kind"] for each in found if each["seconds"] is not None}
    assert seen == set(KINDS) - without.keys(), done.stderr


# -- random plans ----------------------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_runs_and_each_kind_as_often() -> None:
    drawn = [plan_of(5, number) for number in range(600)]
    assert drawn == [plan_of(5, number) for number in range(600)]
    assert drawn != [plan_of(6, number) for number in range(600)]
    assert {kind: sum(plan.kind == kind for plan in drawn) for kind in KINDS} == dict.fromkeys(KINDS, 100)
    assert {plan.cut.manner for plan in drawn if plan.cut} == set(MANNERS)
    assert {plan.cut.turn for plan in drawn if plan.cut} == set(range(TURNS))
    assert [plan.number for plan in plans(5, 4, ("disk", "stream"))] == [4, 5, 10, 11]


# -- the scripted model ----------------------------------------------------------------------------------------------


def asked(calls: list[tuple[str, Call]]) -> dict[str, object]:
    return {"role": "assistant", "tool_calls": [{"id": identity} for identity, _ in calls]}


def told(identity: str, content: str) -> dict[str, object]:
    return {"role": "tool", "tool_call_id": identity, "content": content}


def test_the_model_goes_by_the_history_and_makes_an_interrupted_call_again() -> None:
    history: list[dict[str, object]] = [{"role": "user"}]
    for expected in range(2):
        turn, calls = answer(history)
        assert turn == expected
        history += [asked(calls), *(told(identity, "fine") for identity, _ in calls)]
    turn, calls = answer(history)
    assert [call for _, call in calls] == list(STEPS[2])
    (first, _), (second, wanted) = calls
    history += [asked(calls), told(first, "fine"), told(second, "interrupted: the call started")]
    turn, [(identity, call)] = answer(history)
    assert (turn, call) == (2, wanted)
    assert identity not in {first, second}
    history += [asked([(identity, call)]), told(identity, "fine")]
    assert answer(history)[0] == 3
    assert b"".join(stream(TURNS - 1, [])).endswith(b"data: [DONE]\n\n")


# -- findings --------------------------------------------------------------------------------------------------------


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """The stage of a run without a harness, whose fault never occurs."""
    monkeypatch.chdir(ROOT)  # the model's server is imported from here
    monkeypatch.setattr(run, "PATIENCE", 0.1)
    plan = Plan(0, "harness", "bwrap", "branch", True, 0, 0.0, 0.0, 0.0, None)
    with Stage(plan, tmp_path / "run") as staged:
        write_files(staged.repo, dict(BUGGY))
        commit_all(staged.repo, "first")
        yield staged


@pytest.fixture
def witness(stage: Stage) -> Witness:
    return Witness(stage, git(stage.repo, "rev-parse", "HEAD").stdout)


def ended(code: int = 0, stdout: bytes = b"", stderr: str = "") -> End:
    return End(1, code, stdout, stderr)


def log_of(stage: Stage, *types: str) -> Path:
    log = stage.state / "sessions" / "20260102-030405-abc" / "events.jsonl"
    log.parent.mkdir(parents=True, exist_ok=True)
    lines = [{"seq": place, "type": kind, "call": 1} for place, kind in enumerate(types, 1)]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return log


@pytest.mark.linux
@pytest.mark.integration
def test_a_run_that_left_nothing_is_clean(stage: Stage, witness: Witness) -> None:
    log_of(stage, "session.started")
    assert (
        witness.faults(ended(stdout=b'{"seq": 1, "type": "session.started", "call": 1}\n{"half'), None) == []
    )
    log_of(stage, "session.started", "call.started")
    assert witness.faults(ended(-9), 1.0) == []


@pytest.mark.linux
@pytest.mark.integration
@pytest.mark.parametrize(
    ("end", "part"),
    [
        (ended(3, stderr="Traceback (most recent call last):"), "traceback"),
        (ended(3, stderr="something"), "no clear sentence"),
        (ended(4, stderr="m3agent: no answer"), "before the fault"),
        (ended(stdout=b'{"seq": 7}\n'), "printed and not in the log"),
    ],
)
def test_a_bad_end_is_found(stage: Stage, witness: Witness, end: End, part: str) -> None:
    log_of(stage, "session.started")
    assert any(part in fault for fault in witness.faults(end, None))


@pytest.mark.linux
@pytest.mark.integration
def test_a_damaged_log_is_found(stage: Stage, witness: Witness) -> None:
    log_of(stage, "call.started", "call.started")
    assert any("begun twice" in fault for fault in witness.faults(ended(), None))
    log = log_of(stage, "session.started")
    assert any("lost or changed" in fault for fault in witness.faults(ended(), None))
    log.write_text(log.read_text() + '{"seq": 3, "type": "gate"}\n{"seq"')
    found = witness.faults(ended(), None)
    assert any("without gaps" in fault for fault in found)
    assert any("half a line" in fault for fault in found)


@pytest.mark.linux
@pytest.mark.integration
def test_what_is_left_or_touched_is_found(stage: Stage, witness: Witness) -> None:
    (log_of(stage).with_name("patch.diff.tmp")).touch()
    (stage.scratch / "forgotten").touch()
    (stage.repo / "calc.py").write_text(FIXED["calc.py"])
    git(stage.repo, "branch", BRANCH)
    with subprocess.Popen(["sleep", "300"]) as process:
        try:
            found = witness.faults(ended(), None)
        finally:
            process.kill()
    for part in ("patch.diff.tmp", "forgotten", "neither as before nor fixed", "branch holds", "sleep 300"):
        assert any(part in fault for fault in found), (part, found)


def test_the_table_counts_by_kind() -> None:
    fine, bad = Result(plan_of(0, 0), "resumed", 2.0), Result(plan_of(0, 6), "at once", 4.0, violations=["x"])
    rows = table([fine, bad, Result(plan_of(0, 5))]).splitlines()
    assert rows[2:] == [
        "| harness | 2 | 0 | 1 | 1 | 0 | 0 | 1 | 3.0 | 4.0 |",
        "| disk | 1 | 1 | 0 | 0 | 0 | 0 | 0 |  |  |",
        "| all | 3 | 1 | 1 | 1 | 0 | 0 | 1 | 3.0 | 4.0 |",
    ]

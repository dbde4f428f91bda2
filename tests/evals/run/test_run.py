"""Whole runs in separate processes: what stops them, what a second run refuses, and how they continue."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from m3agent.evals.data.results import AttemptRecord, TestCount, Verdict
from m3agent.evals.data.run_folder import RunFolder
from tests.command_line import Process
from tests.emulated_terminal import EmulatedTerminal
from tests.evals.run.test_agents import runs
from tests.evals.small import NO_ENGINE, write_programs
from tests.tools.small_disk import fill, small_disk

pytestmark = pytest.mark.integration

FIX = "sh -c 'sed -i \"s/a - b/a + b/; s/v < best/v > best/\" *.py' agent {issue}"
ONLY_ADDER = "sh -c 'sed -i \"s/a - b/a + b/\" *.py' agent {issue}"
NOTHING = "true {issue}"
BOTH = ["adder", "largest"]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    return write_programs(tmp_path / "programs")


def arguments(programs: Path, output: Path, **options: Any) -> list[str]:
    given = {"instances": BOTH, "agent": FIX, **options}
    options = {name: value for name, value in given.items() if value is not None}
    return [str(programs), str(output), json.dumps(options)]


def start(programs: Path, output: Path, **options: Any) -> Process:
    return Process(*arguments(programs, output, **options), module="tests.evals.small")


def end(process: Process, code: int = 0) -> tuple[str, str]:
    out, err = (said.decode() for said in process.communicate())
    assert process.returncode == code, err
    assert "Traceback" not in err
    return out, err


def results(output: Path) -> dict[str, AttemptRecord]:
    return {f"{result.instance_id} {result.attempt}": result for result in RunFolder.read(output).results()}


def outcomes(output: Path) -> dict[str, tuple[str, str, TestCount | None, bytes]]:
    """Return each attempt's outcome without times, and without tokens, because the engine's texts contain times."""
    folder = RunFolder.read(output)
    return {
        f"{r.instance_id} {r.attempt}": (
            r.verdict,
            r.status,
            None if r.grade is None else r.grade.fail_to_pass,
            folder.patch(r.instance_id, r.attempt),
        )
        for r in folder.results()
    }


def wait_for(path: Path) -> str:
    """Wait until a file has content, and return it."""
    until = time.monotonic() + 60
    while not (path.exists() and path.read_text().strip()):
        assert time.monotonic() < until, f"{path} did not come to be"
        time.sleep(0.02)
    return path.read_text().strip()


@pytest.mark.slow  # quick: test_killed_in_the_middle_it_comes_to_the_same_results
def test_all_attempts_run_concurrently_with_a_line_each(programs: Path, tmp_path: Path) -> None:
    out, err = end(start(programs, tmp_path / "run", attempts=2, workers=3, agent=ONLY_ADDER))
    told = json.loads(out)
    assert (told["complete"], told["attempts"], told["resolved"], told["counted"]) == (True, 4, 2, 4)
    assert {verdict: n for verdict, n in told["verdicts"].items() if n} == {"resolved": 2, "empty": 2}
    begun, *lines, report = err.strip().splitlines()
    assert begun == "4 attempts, 3 at a time"
    assert sorted(line.split()[3:5] for line in lines) == sorted(
        [["resolved", "adder"], ["resolved", "adder"], ["empty", "largest"], ["empty", "largest"]]
    )
    assert lines[-1].startswith("4 of 4")
    assert report == f"m3agent: next: m3agent eval report {tmp_path / 'run'} shows the results"
    assert set(results(tmp_path / "run")) == {"adder 1", "adder 2", "largest 1", "largest 2"}
    again, err = end(start(programs, tmp_path / "run", attempts=2, workers=1, agent=ONLY_ADDER))
    nothing = f"all attempts of {tmp_path / 'run'} have a result already: nothing was left to do"
    assert (again, err.splitlines()) == (out, [nothing, report])


def test_only_what_the_infrastructure_prevented_is_made_again(programs: Path, tmp_path: Path) -> None:
    count = tmp_path / "count"
    agent = f"sh -c 'echo x >> {count}' agent {{issue}}"
    end(start(programs, tmp_path / "run", agent=agent))
    folder = RunFolder.read(tmp_path / "run")
    lost = results(tmp_path / "run")["adder 1"].model_copy(update={"verdict": Verdict.INFRA})
    folder.finish(lost, b"")
    assert count.read_text() == "x\nx\n"
    out, _ = end(start(programs, tmp_path / "run", agent=agent))
    assert count.read_text() == "x\nx\nx\n"
    assert json.loads(out)["verdicts"]["empty"] == 2


@pytest.mark.slow
def test_there_is_no_score_as_long_as_one_attempt_has_no_result(programs: Path, tmp_path: Path) -> None:
    out, err = end(start(programs, tmp_path / "run", agent=NOTHING, python=NO_ENGINE), 3)
    told = json.loads(out)
    assert (told["complete"], told["left"], told["verdicts"]["infra"]) == (False, 2, 2)
    assert "resolved" not in told
    assert (
        "no score, since 2 of 2 attempts have no result. Most often: no engine answers. The same command repeats them, also "
        "with other options.\n" in err
    )
    _, err = end(start(programs, tmp_path / "run"))
    assert "has no result yet, so it now has another configuration (command)" in err


def waiting_agent(tmp_path: Path) -> str:
    """Return an agent that fixes. At `largest`, if no file `go` exists, it writes its process id to `pid` and waits."""
    script = (  # `exec`: a shell that has just forked loses an interruption, and then ends after a minute only
        f"if [ -f largest.py ] && ! [ -f {tmp_path}/go ]; then echo $$ > {tmp_path}/pid; exec sleep 600; fi; "
        'sed -i "s/a - b/a + b/; s/v < best/v > best/" *.py'
    )
    (tmp_path / "agent.sh").write_text(script)
    return f"sh {tmp_path}/agent.sh {{issue}}"


def test_killed_in_the_middle_it_comes_to_the_same_results(programs: Path, tmp_path: Path) -> None:
    agent = waiting_agent(tmp_path)
    process = start(programs, tmp_path / "run", agent=agent)
    pid = int(wait_for(tmp_path / "pid"))
    done = (tmp_path / "run/attempts/adder/1/result.json").read_bytes()
    process.kill()
    process.communicate()
    (tmp_path / "go").touch()
    end(start(programs, tmp_path / "run", agent=agent))
    assert not runs(pid)
    assert (tmp_path / "run/attempts/adder/1/result.json").read_bytes() == done, "it was not made again"
    assert {name: result.verdict for name, result in results(tmp_path / "run").items()} == {
        "adder 1": Verdict.RESOLVED,
        "largest 1": Verdict.RESOLVED,
    }


def test_two_runs_on_one_folder_and_then_ctrl_c(programs: Path, tmp_path: Path) -> None:
    agent = waiting_agent(tmp_path)
    process = start(programs, tmp_path / "run", agent=agent)
    pid = int(wait_for(tmp_path / "pid"))
    _, err = end(start(programs, tmp_path / "run", agent=agent), 2)
    assert (
        err == f"m3agent: Another process works in {tmp_path / 'run'}: wait for it, or give another folder.\n"
    )
    process.send_signal(signal.SIGINT)
    end(process, 130)
    assert not runs(pid)
    assert set(results(tmp_path / "run")) == {"adder 1"}


def test_another_experiment_in_the_folder_and_damage_are_one_sentence(programs: Path, tmp_path: Path) -> None:
    end(start(programs, tmp_path / "run", agent=NOTHING))
    _, err = end(start(programs, tmp_path / "run", agent=NOTHING, attempts=3), 2)
    assert "another configuration (attempts)" in err
    damaged = tmp_path / "run/attempts/adder/1/result.json"
    damaged.write_text('{"instance_id": ')
    _, err = end(start(programs, tmp_path / "run", agent=NOTHING), 2)
    assert str(damaged) in err
    assert len(err.splitlines()) == 1


@pytest.mark.slow  # quick: test_killed_in_the_middle_it_comes_to_the_same_results
@pytest.mark.integration
def test_a_full_disk_is_one_sentence_and_nothing_is_lost(programs: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 8 << 20) as disk:
        agent = waiting_agent(tmp_path)
        process = start(programs, disk / "run", agent=agent)
        pid = int(wait_for(tmp_path / "pid"))
        full = fill(disk)
        os.kill(pid, signal.SIGKILL)
        _, err = end(process, 3)
        assert "make room" in err.splitlines()[-1]
        full.unlink()
        (tmp_path / "go").touch()
        out, _ = end(start(programs, disk / "run", agent=agent))
        assert json.loads(out)["resolved"] == 2


@pytest.mark.slow  # quick: tests/agent/ui/test_agents_view.py
def test_on_a_terminal_rows_say_what_is_being_done(programs: Path, tmp_path: Path) -> None:
    asked = arguments(programs, tmp_path / "run", agent=waiting_agent(tmp_path))
    argv = [sys.executable, "-m", "tests.evals.small", *asked]
    with EmulatedTerminal(argv, columns=70) as terminal:
        lines = terminal.until(
            lambda lines: any("agent running" in line for line in lines[1:]) and "1 resolved" in str(lines)
        )
        head = next(line for line in lines if "of 2 attempts" in line)
        assert head.startswith("1 of 2 attempts: 1 resolved so far")
        [row] = [line for line in lines if "agent running" in line]
        assert "largest" in row
        terminal.press(b"\x03")
        assert terminal.until_the_end() == 130
        assert not any("agent running" in line for line in terminal.lines)
        assert terminal.cursor_is_visible


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_embedded_engine_repairs_both_and_a_kill_changes_nothing(programs: Path, tmp_path: Path) -> None:
    options = {"settings": {"engine": "embedded", "candidates": 100}, "workers": 2, "seconds": 300}
    out, _ = end(own(programs, tmp_path / "whole", options))
    assert json.loads(out)["resolved"] == 2
    whole = results(tmp_path / "whole")
    for result in whole.values():
        assert result.status == "verified"
        assert result.session is not None
        assert (tmp_path / "whole" / result.session / "events.jsonl").exists()
        assert (result.usage.turns or 0) > 0
    process = own(programs, tmp_path / "run", options)
    until = time.monotonic() + 120
    while not list((tmp_path / "run").glob("attempts/*/1/state/sessions/*/events.jsonl")):
        assert time.monotonic() < until
        time.sleep(0.05)
    process.kill()
    process.communicate()
    end(own(programs, tmp_path / "run", options))
    assert outcomes(tmp_path / "run") == outcomes(tmp_path / "whole")


def own(programs: Path, output: Path, options: dict[str, Any]) -> Process:
    """Start a run with our own agent."""
    return start(programs, output, agent=None, **options)

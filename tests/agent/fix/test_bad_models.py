"""Test whole fixes with very bad models: each fix ends with a fitting status and leaves the user's files unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.agent.scripted import (
    BUGGY,
    DONE,
    FIX,
    NOT_TESTED,
    TEST,
    UNTESTED,
    MakeRepo,
    calls,
    calls_raw,
    events,
    fix,
    git,
    of_type,
    says,
)
from tests.servers.misbehaving import MisbehavingServer, Reply, history_faults

DELETES = calls("code_exec", language="bash", code="rm -rf ./* ./.[!.]* ; ls -A | wc -l")
HIDES = calls("file_write", path="conftest.py", content="collect_ignore = ['test_calc.py']\n")
WEAKENS = calls("file_edit", path="test_calc.py", old="== 5", new="== -1")


def run(
    model: MisbehavingServer, repo: Path, home: Path, answers: list[Any], *more: str
) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the last line of the log of a fix with these answers; check the user's files."""
    model.answers = answers
    done = fix(repo, model.url, *more)
    assert "Traceback" not in done.stderr, done.stderr
    assert git(repo, "status", "--porcelain") == ""
    assert history_faults([chat.body for chat in model.chats]) == []
    return done.returncode, events(home)[-1]


def test_a_model_that_only_thinks(model: MisbehavingServer, make_repo: MakeRepo, own_state: Path) -> None:
    thoughts = [says("", f"What if the cause is number {n}? I wonder.") for n in range(40)]
    code, end = run(model, make_repo(BUGGY), own_state, thoughts)
    assert (code, end["status"], end["turns"]) == (1, "empty", 3), "told twice what is missing"


def test_a_model_that_thinks_until_it_is_cut_off(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    thoughts = [says("", f"What if the cause is number {n}? I wonder.", "length") for n in range(40)]
    code, end = run(model, make_repo(BUGGY), own_state, thoughts)
    assert (code, end["status"]) == (6, "stalled")
    assert end["turns"] < 15, "it is not waited for until the limit"


def test_a_model_that_only_talks(model: MisbehavingServer, make_repo: MakeRepo, own_state: Path) -> None:
    code, end = run(model, make_repo(BUGGY), own_state, [says("You should change the sign in add().")])
    assert (code, end["status"]) == (1, "empty")
    assert [gate["asked"] for gate in of_type(own_state, "gate")] == [0, 1, 2]


@pytest.mark.slow
def test_a_model_that_calls_tools_that_are_not_there(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    unknown = [calls("apply_patch", patch="x"), calls("bash", command="ls"), calls("", x=1)]
    code, end = run(model, make_repo(BUGGY), own_state, [*unknown, FIX, TEST, DONE])
    assert (code, end["status"]) == (0, "verified"), (
        "each is told which tools there are, and it finds its way"
    )
    finished = of_type(own_state, "call.finished")
    assert [call["status"] for call in finished[:3]] == ["refused"] * 3
    assert "file_edit" in finished[0]["content"]


def test_a_model_that_calls_only_tools_that_are_not_there(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    code, end = run(model, make_repo(BUGGY), own_state, [calls("bash", command=f"ls {n}") for n in range(60)])
    assert (code, end["status"]) == (6, "stalled")
    assert end["turns"] < 30


@pytest.mark.slow
def test_a_model_that_floods_arguments(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    flood = [
        calls("file_write", path="a" * 100_000, content="x"),
        calls("code_exec", code="x = 1\n", **{f"more{n}": n for n in range(5000)}),
        calls_raw("file_write", '{"path": ' + "[" * 20_000),
        calls("file_write", path="big.txt", content="y" * 8_000_000),
        calls("code_exec", language="bash", code="rm -f big.txt"),
    ]
    code, end = run(model, make_repo(BUGGY), own_state, [*flood, FIX, TEST, DONE])
    assert (code, end["status"]) == (0, "verified")
    longest = max(len(call["content"]) for call in of_type(own_state, "call.finished"))
    assert longest < 10_000, "no result repeats the flood"


@pytest.mark.slow  # quick: test_delivered.py, test_verdict_returns.py
@pytest.mark.parametrize("cheat", [WEAKENS, HIDES], ids=["weakens a test", "hides the tests"])
def test_a_model_that_edits_tests_instead_of_code(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path, cheat: Any
) -> None:
    code, end = run(model, make_repo(BUGGY), own_state, [cheat, TEST, DONE])
    assert (code, end["status"]) == (1, "failed")


@pytest.mark.slow  # quick: test_a_model_that_writes_outside
def test_a_model_that_deletes_the_repository(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    repo = make_repo(BUGGY)
    code, end = run(model, repo, own_state, [DELETES, TEST, DONE])
    assert (code, end["status"]) == (1, "failed")
    assert (repo / "calc.py").is_file()


@pytest.mark.slow
def test_a_model_that_deletes_the_files_and_writes_them_again(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    again = [
        calls("file_write", path="calc.py", content=BUGGY["calc.py"].replace("a - b", "a + b")),
        calls("file_write", path="test_calc.py", content=BUGGY["test_calc.py"]),
    ]
    code, end = run(model, make_repo(BUGGY), own_state, [DELETES, *again, TEST, DONE])
    assert (code, end["status"], end["paths"]) == (0, "verified", ["calc.py"])


@pytest.mark.slow
def test_a_model_that_writes_outside(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path, tmp_path: Path
) -> None:
    target = tmp_path / "outside.txt"
    outside = [
        calls("file_write", path=str(target), content="owned"),
        calls("file_write", path="../../../../../../" + str(target).lstrip("/"), content="owned"),
        calls("code_exec", language="bash", code=f"ln -s {tmp_path} link; echo owned > link/outside.txt"),
        calls("file_write", path="link/outside.txt", content="owned"),
        calls("file_write", path=".git/hooks/post-checkout", content="#!/bin/sh\ntouch /tmp/owned\n"),
        calls("code_exec", language="bash", code="rm -rf link .git/hooks"),
    ]
    code, end = run(model, make_repo(UNTESTED), own_state, [*outside, FIX, NOT_TESTED])
    assert (code, end["status"], end["paths"]) == (1, "unverified", ["calc.py"])
    assert not target.exists()


@pytest.mark.slow
def test_a_model_that_answers_in_another_language(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    looks = calls("code_exec", code="# 先看一看\nprint('加法錯了 — сложение неверно — الجمع خاطئ')")
    code, end = run(
        model, make_repo(BUGGY), own_state, [looks, FIX, TEST, says("已修復了 add() 的錯", "好的。")]
    )
    assert (code, end["status"]) == (0, "verified")
    assert "الجمع" in of_type(own_state, "call.finished")[0]["content"]


@pytest.mark.slow  # quick: tests/agent/cli/test_apply_command.py
@pytest.mark.parametrize(
    ("answers", "status", "left"),
    [([FIX, TEST, DONE], "verified", "a + b"), ([says("It works for me.")], "empty", "a - b")],
    ids=["verified", "empty"],
)
def test_only_the_result_is_printed(
    model: MisbehavingServer,
    make_repo: MakeRepo,
    own_state: Path,
    answers: list[Any],
    status: str,
    left: str,
) -> None:
    """For programs: one object on standard output, the work tree is the result, and each end is exit code 0."""
    model.answers, repo = answers, make_repo(BUGGY)
    done = fix(repo, model.url, "--result-only", "--no-probe", "--model", "any/model")
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    result = json.loads(line)
    assert (result["status"], result["isolated"]) == (status, True)
    assert result["paths"] == (["calc.py"] if status == "verified" else [])
    assert left in (repo / "calc.py").read_text()
    assert {request.path for request in model.requests} == {"/v1/chat/completions"}, "nothing else was asked"


def test_an_error_is_no_result(model: MisbehavingServer, make_repo: MakeRepo, own_state: Path) -> None:
    model.answers = [Reply(401, {"error": {"message": "no"}})]
    done = fix(make_repo(BUGGY), model.url, "--result-only")
    assert done.returncode == 4
    assert json.loads(done.stdout)["status"] == "error"


def test_the_result_as_json_keeps_the_exit_code_and_applies_nothing(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    model.answers = [says("It works for me.")]
    done = fix(make_repo(BUGGY), model.url, "--json-result")
    assert done.returncode == 1
    [line] = done.stdout.splitlines()
    assert json.loads(line)["status"] == "empty"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--result-only", "--json"], "--result-only and --json each decide what is printed: give only one"),
        (["--result-only", "--branch", "b"], "--apply and --branch are two ways"),
        (["--no-probe"], "--no-probe: the server is not asked for its model; name it with --model"),
    ],
)
def test_options_that_contradict(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path, options: list[str], sentence: str
) -> None:
    done = fix(make_repo(BUGGY), model.url, *options)
    assert done.returncode == 2
    assert sentence in done.stderr

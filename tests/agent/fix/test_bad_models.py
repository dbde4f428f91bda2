"""Test whole fixes with very bad models: each fix ends with a fitting status and leaves the user's files unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.agent.scripted import BUGGY, DONE, FIX, NOT_TESTED, TEST, UNTESTED, Fixes, calls, calls_raw, says
from tests.conftest import git
from tests.servers.misbehaving import Reply, Stream, history_faults

DELETES = calls("code_exec", language="bash", code="rm -rf ./* ./.[!.]* ; ls -A | wc -l")
HIDES = calls("file_write", path="conftest.py", content="collect_ignore = ['test_calc.py']\n")
WEAKENS = calls("file_edit", path="test_calc.py", old="== 5", new="== -1")
WRITES_AGAIN = [
    calls("file_write", path="calc.py", content=BUGGY["calc.py"].replace("a - b", "a + b")),
    calls("file_write", path="test_calc.py", content=BUGGY["test_calc.py"]),
]
TALKS = says("You should change the sign in add().")
LOOKS = calls("code_exec", code="# 先看一看\nprint('加法錯了 — сложение неверно — الجمع خاطئ')")


def thoughts(finish: str) -> list[Stream]:
    return [says("", f"What if the cause is number {n}? I wonder.", finish) for n in range(40)]


def end_of(fixes: Fixes, files: dict[str, str], answers: list[Any], code: int) -> dict[str, Any]:
    """Return the last line of the log of a fix with these answers; check the user's files and the conversation."""
    repo = fixes.repo(files)
    done = fixes(repo, answers, code=code)
    assert "Traceback" not in done.stderr, done.stderr
    assert git(repo, "status", "--porcelain") == ""
    assert history_faults([chat.body for chat in fixes.chats]) == []
    return fixes.events()[-1]


@pytest.mark.parametrize(
    ("answers", "code", "status", "turns"),
    [
        pytest.param(thoughts("stop"), 1, "empty", 3, id="only thinks, and is told twice what is missing"),
        pytest.param(thoughts("length"), 6, "stalled", 14, id="thinks until it is cut off"),
        pytest.param([TALKS], 1, "empty", 3, id="only talks"),
        pytest.param(
            [calls("bash", command=f"ls {n}") for n in range(60)], 6, "stalled", 29, id="knows no tool"
        ),
        pytest.param([WEAKENS, TEST, DONE], 1, "failed", 9, id="weakens a test", marks=pytest.mark.slow),
        pytest.param([HIDES, TEST, DONE], 1, "failed", 9, id="hides the tests", marks=pytest.mark.slow),
        pytest.param([DELETES, TEST, DONE], 1, "failed", 9, id="deletes all", marks=pytest.mark.slow),
    ],
)
def test_a_model_that_does_not_fix_it(
    fixes: Fixes, answers: list[Any], code: int, status: str, turns: int
) -> None:
    """It is not waited for until the limit: there are at most so many turns."""
    end = end_of(fixes, BUGGY, answers, code)
    assert (end["status"], end["turns"] <= turns) == (status, True), end["turns"]


@pytest.mark.slow
def test_a_model_that_calls_tools_that_are_not_there(fixes: Fixes) -> None:
    """Each call is told which tools there are, and the model finds its way."""
    unknown = [calls("apply_patch", patch="x"), calls("web_search", query="ls"), calls("", x=1)]
    assert end_of(fixes, BUGGY, [*unknown, FIX, TEST, DONE], 0)["status"] == "verified"
    finished = fixes.of_type("call.finished")
    assert [call["status"] for call in finished[:3]] == ["refused"] * 3
    assert "file_edit" in finished[1]["content"]


@pytest.mark.slow
def test_a_model_that_floods_arguments(fixes: Fixes) -> None:
    flood = [
        calls("file_write", path="a" * 100_000, content="x"),
        calls("code_exec", code="x = 1\n", **{f"more{n}": n for n in range(5000)}),
        calls_raw("file_write", '{"path": ' + "[" * 20_000),
        calls("file_write", path="big.txt", content="y" * 8_000_000),
        calls("code_exec", language="bash", code="rm -f big.txt"),
    ]
    assert end_of(fixes, BUGGY, [*flood, FIX, TEST, DONE], 0)["status"] == "verified"
    longest = max(len(call["content"]) for call in fixes.of_type("call.finished"))
    assert longest < 10_000, "no result repeats the flood"


@pytest.mark.slow
def test_a_model_that_deletes_the_files_and_writes_them_again(fixes: Fixes) -> None:
    end = end_of(fixes, BUGGY, [DELETES, *WRITES_AGAIN, TEST, DONE], 0)
    assert (end["status"], end["paths"]) == ("verified", ["calc.py"])


@pytest.mark.slow
def test_a_model_that_writes_outside(fixes: Fixes, tmp_path: Path) -> None:
    target = tmp_path / "outside.txt"
    outside = [
        calls("file_write", path=str(target), content="owned"),
        calls("file_write", path="../../../../../../" + str(target).lstrip("/"), content="owned"),
        calls("code_exec", language="bash", code=f"ln -s {tmp_path} link; echo owned > link/outside.txt"),
        calls("file_write", path="link/outside.txt", content="owned"),
        calls("file_write", path=".git/hooks/post-checkout", content="#!/bin/sh\ntouch /tmp/owned\n"),
        calls("code_exec", language="bash", code="rm -rf link .git/hooks"),
    ]
    end = end_of(fixes, UNTESTED, [*outside, FIX, NOT_TESTED], 1)
    assert (end["status"], end["paths"]) == ("unverified", ["calc.py"])
    assert not target.exists()


@pytest.mark.slow
def test_a_model_that_answers_in_another_language(fixes: Fixes) -> None:
    end = end_of(fixes, BUGGY, [LOOKS, FIX, TEST, says("已修復了 add() 的錯", "好的。")], 0)
    assert end["status"] == "verified"
    assert "الجمع" in fixes.of_type("call.finished")[0]["content"]


@pytest.mark.slow  # quick: tests/cli/test_apply_command.py
@pytest.mark.parametrize(
    ("answers", "status", "left"),
    [([FIX, TEST, DONE], "verified", "a + b"), ([says("It works for me.")], "empty", "a - b")],
    ids=["verified", "empty"],
)
def test_only_the_result_is_printed(fixes: Fixes, answers: list[Any], status: str, left: str) -> None:
    """For programs: one object on standard output, the work tree is the result, and each end is exit code 0."""
    fixes.model.answers, repo = answers, fixes.make_repo(BUGGY)
    done = fixes(repo, None, "--result-only", "--no-probe", "--model", "any/model")
    [line] = done.stdout.splitlines()
    result = json.loads(line)
    assert (result["status"], result["isolated"]) == (status, True)
    assert result["paths"] == (["calc.py"] if status == "verified" else [])
    assert left in (repo / "calc.py").read_text()
    assert "\nnext " not in done.stderr, "a program reads the last line as the reason"
    assert {request.path for request in fixes.model.requests} == {"/v1/chat/completions"}, (
        "nothing else was asked"
    )


def test_an_error_is_no_result(fixes: Fixes) -> None:
    done = fixes(BUGGY, [Reply(401, {"error": {"message": "no"}})], "--result-only", code=4)
    assert json.loads(done.stdout)["status"] == "error"


def test_the_result_as_json_keeps_the_exit_code_and_applies_nothing(fixes: Fixes) -> None:
    done = fixes(BUGGY, [says("It works for me.")], "--json-result", code=1)
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
def test_options_that_contradict(fixes: Fixes, options: list[str], sentence: str) -> None:
    done = fixes(BUGGY, None, *options, code=2)
    assert sentence in done.stderr

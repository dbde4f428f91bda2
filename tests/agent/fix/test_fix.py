"""Test the whole flow from issue to patch: real git, real sandboxes, and a real HTTP server that plays the model."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.agent.scripted import (
    BUGGY,
    DONE,
    FIX,
    ISSUE,
    NOT_TESTED,
    TEST,
    UNTESTED,
    USAGE,
    MakeRepo,
    calls,
    calls_raw,
    chunk,
    events,
    fix,
    git,
    of_type,
    one_sentence,
    ours,
    says,
    start,
    wait_until_gone,
)
from tests.command_line import Process, run
from tests.conftest import later
from tests.servers.dockerd import OwnEngine
from tests.servers.misbehaving import MisbehavingServer, Reply, Silence, Stall, Stream
from tests.tools.small_disk import fill, small_disk

pytestmark = pytest.mark.integration


def test_a_fix_is_verified_and_its_patch_printed(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    repo = make_repo(BUGGY)
    model.answers = [TEST, FIX, TEST, DONE]
    done = fix(repo, model.url)
    assert done.returncode == 0, done.stderr
    assert "-    return a - b\n+    return a + b" in done.stdout
    assert git(repo, "status", "--porcelain") == "", "without --apply the work tree is left alone"
    subprocess.run(["git", "apply", "-"], cwd=repo, input=done.stdout, text=True, check=True)
    assert (
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q"], cwd=repo, capture_output=True, check=False
        ).returncode
        == 0
    )
    log = events(own_state)
    assert [event["seq"] for event in log] == list(range(1, len(log) + 1))
    assert {event["v"] for event in log} == {1}
    assert log[0]["type"] == "session.started"
    assert log[-1]["type"] == "session.finished"
    assert log[-1]["status"] == "verified"
    verdict = of_type(own_state, "verify")[0]
    assert verdict["fixed"] == ["test_calc.py::test_add"]
    assert (verdict["broken"], verdict["still_red"]) == ([], [])
    first, last = [event for event in of_type(own_state, "test.finished") if event["where"] == "session"]
    assert (first["failed"], first["passed"]) == (["test_calc.py::test_add"], ["test_calc.py::test_double"])
    assert last["failed"] == []
    started, finished = of_type(own_state, "call.started"), of_type(own_state, "call.finished")
    assert [s["call"] for s in started] == [f["call"] for f in finished] == [1, 2, 3]
    assert started[2]["tree"] == finished[1]["tree"] != started[1]["tree"]
    assert all(len(f["digest"]) == 64 for f in finished)
    folder = Path(log[-1]["patch"]).parent
    assert (folder / "patch.diff").read_text() == done.stdout
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_the_certificate_of_a_fix_holds(
    model: MisbehavingServer, make_repo: MakeRepo, tmp_path: Path
) -> None:
    repo, certificate, patch = make_repo(BUGGY), tmp_path / "c.json", tmp_path / "p.diff"
    model.answers = [FIX, TEST, DONE]
    done = fix(repo, model.url, "--certificate", str(certificate))
    assert done.returncode == 0, done.stderr
    assert f"the certificate is in {certificate}" in " ".join(done.stderr.split())
    said = json.loads(certificate.read_text())["predicate"]
    assert (said["verdict"], said["patch"]["source"]["kind"]) == ("verified", "fix")
    assert said["base"] == {
        "commit": git(repo, "rev-parse", "HEAD").strip(),
        "tree": git(repo, "rev-parse", "HEAD^{tree}").strip(),
        "uncommitted": 0,
    }
    assert (said["made_by"]["model"], said["issue"]["text"]) == ("minimax-m3", ISSUE)
    patch.write_text(done.stdout)
    checked = run("verify", str(patch), "--repo", str(repo), "--check", str(certificate))
    assert (checked.returncode, checked.stdout.partition("  ")[0]) == (0, "✓ holds"), checked.stdout


def test_requests_only_ever_extend_and_are_the_same_for_two_clones(
    model: MisbehavingServer, make_repo: MakeRepo, tmp_path: Path
) -> None:
    repo = make_repo(UNTESTED)
    git(tmp_path, "clone", "-q", str(repo), "elsewhere")
    script = [TEST, calls("code_exec", code="print('<mm:think> é \\x1b[1m')"), FIX, NOT_TESTED]
    firsts = []
    for folder in (repo, tmp_path / "elsewhere"):
        model.reset()
        model.answers = list(script)
        assert fix(folder, model.url).returncode == 1
        bodies = [chat.body for chat in model.chats]
        assert len(bodies) == len(script)
        firsts.append(bodies[0])
        for before, after in itertools.pairwise(bodies):
            messages = before[: before.index(b'],"model"')] if b'],"model"' in before else b""
            assert messages.startswith(b'{"messages":[')
            assert after.startswith(messages + b","), "a request's messages are not the last one's and more"
        history = json.loads(bodies[-1])["messages"]
        assert [m["role"] for m in history[:4]] == ["system", "user", "assistant", "tool"]
        assert "In the sandbox python is Python 3." in history[1]["content"]
        assert history[2]["reasoning"] == "hm", "reasoning goes back to the model"
        for message, answer in itertools.pairwise(history):
            if message.get("tool_calls"):
                assert answer["role"] == "tool"
                assert answer["tool_call_id"] == message["tool_calls"][0]["id"]
    assert firsts[0] == firsts[1]


@pytest.mark.slow  # quick: tests/agent/test_api.py
def test_json_mode_prints_the_log_and_nothing_else(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    model.answers = [FIX, NOT_TESTED]
    done = fix(make_repo(UNTESTED), model.url, "--json")
    assert done.returncode == 1
    assert [json.loads(line) for line in done.stdout.splitlines()] == events(own_state)


@pytest.mark.slow  # quick: test_apply_command.py, tests/agent/delivery/test_apply.py
def test_apply_and_branch(model: MisbehavingServer, make_repo: MakeRepo) -> None:
    repo = make_repo(UNTESTED)
    model.answers = [FIX, NOT_TESTED]
    assert fix(repo, model.url, "--branch", "fix/add").returncode == 1
    assert git(repo, "status", "--porcelain") == ""
    assert "return a + b" in git(repo, "show", "fix/add:calc.py")
    assert git(repo, "rev-parse", "fix/add^") == git(repo, "rev-parse", "HEAD")
    model.reset()
    again = fix(repo, model.url, "--branch", "fix/add")
    assert again.returncode == 2
    assert "exists already" in again.stderr
    assert model.chats == [], "a bad branch is refused before anything is spent"
    model.answers = [FIX, NOT_TESTED]
    assert fix(repo, model.url, "--apply").returncode == 1
    assert "return a + b" in (repo / "calc.py").read_text()


@pytest.mark.slow  # quick: tests/agent/delivery/test_apply.py
def test_the_patch_is_kept_before_the_repository_is_touched(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path, tmp_path: Path
) -> None:
    """A filter of the user runs during the commit, and sees what a kill at that moment would leave."""
    repo = make_repo(BUGGY)
    look = f"cat '{own_state}'/state/sessions/*/patch.diff > '{tmp_path}/seen'; cat"
    git(repo, "config", "--global", "filter.look.clean", look)
    (repo / ".git" / "info" / "attributes").write_text("calc.py filter=look\n")
    model.answers = [FIX, TEST, DONE]
    done = fix(repo, model.url, "--branch", "fix/add")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "seen").read_text() == done.stdout != ""


def test_uncommitted_changes_are_worked_on_and_never_overwritten(
    model: MisbehavingServer, make_repo: MakeRepo
) -> None:
    repo = make_repo(UNTESTED)
    mine = BUGGY["calc.py"] + "\n# mine\n"
    (repo / "calc.py").write_text(mine)
    model.answers = [FIX, NOT_TESTED]
    done = fix(repo, model.url, "--apply")
    assert done.returncode == 5
    first, *rest = [line for line in done.stderr.splitlines() if "uncommitted changes" in line]
    assert first.startswith(
        "note: calc.py has uncommitted changes: --apply is refused if the patch touches it"
    )
    assert rest, "the refusal itself"
    assert (repo / "calc.py").read_text() == mine
    assert "+    return a + b" in done.stdout, "the patch is not lost"
    assert b"# mine" in model.chats[0].body, "the model sees the files as they are"


@pytest.mark.slow  # quick: test_loop.py
def test_same_call_same_result_gets_a_note_then_force_then_stop(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    model.answers = [TEST, FIX, calls("code_exec", code="print(1)")]
    done = fix(make_repo(BUGGY), model.url)
    assert done.returncode == 0, "the current diff is handed over, and it is right"
    assert "+    return a + b" in done.stdout
    assert [s["action"] for s in of_type(own_state, "stall")] == ["told", "forced", "stopped"]
    told, forced = (json.loads(chat.body)["messages"][-1] for chat in model.chats[-2:])
    assert told["role"] == forced["role"] == "tool"
    assert "do something different" in told["content"]
    assert "The last test run: 1 passed, 1 failed, 0 errored.\n- test_calc.py::test_add" in forced["content"]
    assert "+    return a + b" in forced["content"]


@pytest.mark.slow
def test_an_answer_that_goes_round_in_circles_is_not_waited_for(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    again = "Wait, the sign may be wrong, so look at it again. Or else it is the sum after all, is it? "
    chant = Stream(
        [chunk({"reasoning": again}) for _ in range(200)]
        + [chunk({"content": "Done."}), chunk({}, "stop"), USAGE]
    )
    model.answers = [chant, FIX, TEST, DONE]
    assert fix(make_repo(BUGGY), model.url).returncode == 0
    assert [(s["rule"], s["action"]) for s in of_type(own_state, "stall")] == [("chant", "told")]
    first, second = (json.loads(chat.body)["messages"] for chat in model.chats[:2])
    assert second[:-1] == first, "what was broken off is not in the history"
    assert "said the same over and over" in second[-1]["content"]


@pytest.mark.slow  # quick: test_loop.py
def test_an_answer_that_never_leaves_its_circle_ends_the_session(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    model.answers = [
        FIX,
        Stream([chunk({"content": "the same line once more, the very same line\n"}) for _ in range(999)]),
    ]
    done = fix(make_repo({"calc.py": BUGGY["calc.py"]}), model.url)
    assert done.returncode == 6
    assert "+    return a + b" in done.stdout
    assert [s["action"] for s in of_type(own_state, "stall")] == ["told", "forced", "stopped"]
    assert "said the same over and over" in events(own_state)[-1]["reason"]


@pytest.mark.slow  # quick: test_loop.py
def test_answers_cut_off_again_and_again_end_the_session(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    model.answers = [FIX, *(says(f"Part {number} of it", finish="length") for number in range(9))]
    done = fix(make_repo({"calc.py": BUGGY["calc.py"]}), model.url)
    assert done.returncode == 6
    assert [(s["rule"], s["action"]) for s in of_type(own_state, "stall")] == [
        ("cut-off", "told"),
        ("cut-off", "forced"),
        ("cut-off", "stopped"),
    ]
    last = json.loads(model.chats[-1].body)["messages"][-1]["content"]
    assert last.startswith("Your last answer was cut off"), last
    assert "cut off at the length limit" in events(own_state)[-1]["reason"]


@pytest.mark.slow  # quick: test_loop.py
def test_a_limit_ends_with_a_summary_without_tools(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    model.answers = [calls("code_exec", code="print(1)"), FIX, says("I changed add().")]
    done = fix(make_repo({"calc.py": BUGGY["calc.py"]}), model.url, "--max-turns", "2")
    assert done.returncode == 6
    bodies = [json.loads(chat.body) for chat in model.chats]
    assert [body["tool_choice"] for body in bodies] == ["auto", "auto", "none"]
    assert bodies[-1]["tools"] == bodies[0]["tools"], "the tools stay in the prompt, or its prefix changes"
    assert events(own_state)[-1]["status"] == "limit"
    assert "+    return a + b" in done.stdout


@pytest.mark.slow  # quick: test_loop.py and test_gate.py
def test_the_gate_asks_twice_and_takes_a_stated_reason(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    repo = make_repo(BUGGY)
    model.answers = [says("I will now fix it."), says("Done!"), says("Really done.")]
    done = fix(repo, model.url)
    assert done.returncode == 1
    assert events(own_state)[-1]["status"] == "empty"
    assert [bool(gate["missing"]) for gate in of_type(own_state, "gate")] == [True, True, True]
    assert len(model.chats) == 3
    model.reset()
    model.answers = [says("No change: add() is meant to subtract.")]
    assert fix(repo, model.url).returncode == 1
    assert len(model.chats) == 1


@pytest.mark.slow  # quick: test_calls.py and tests/tools
def test_refused_calls_get_a_result(model: MisbehavingServer, make_repo: MakeRepo, own_state: Path) -> None:
    bad = [
        calls("no_such_tool", x=1),
        calls_raw("file_write", '{"path": "x.py", "content'),
        calls("file_write", path="x.py"),
        calls("file_write", path="../x.py", content=""),
        calls("code_exec", code="print(1)", timeout=100_000),
        calls("file_edit", path="calc.py", old="return a -b", new="x"),
        calls("file_read", path="missing.py"),
    ]
    model.answers = [*bad, says("No change: just trying.")]
    assert fix(make_repo(BUGGY), model.url).returncode == 1
    results = [f["content"] for f in of_type(own_state, "call.finished")]
    assert len(results) == len(bad)
    assert all(text.startswith("error: ") for text in results), results
    for text, part in zip(
        results,
        ["file_write", "again", "content", "outside", "600", "return a - b", "missing.py"],
        strict=True,
    ):
        assert part in text
    for chat in model.chats:
        for message in json.loads(chat.body)["messages"]:
            for call in message.get("tool_calls", []):
                json.loads(call["function"]["arguments"])


@pytest.mark.slow
def test_statuses_when_the_tests_cannot_tell(model: MisbehavingServer, make_repo: MakeRepo) -> None:
    model.answers = [FIX, says("Not tested: there are no tests.")]
    untested = fix(make_repo({"calc.py": BUGGY["calc.py"]}, "untested"), model.url)
    assert untested.returncode == 1
    assert "unverified" in untested.stderr
    assert "+    return a + b" in untested.stdout
    model.answers = [
        calls("file_write", path="calc.py", content="def add(a, b):\n    return a + b\n"),
        TEST,
        DONE,
        DONE,
    ]
    broken = fix(make_repo(BUGGY, "broken"), model.url)
    assert broken.returncode == 1
    assert "failed" in broken.stderr
    # weakening a test is no fix
    weak = BUGGY["test_calc.py"].replace("== 5", "== -1")
    model.answers = [calls("file_write", path="test_calc.py", content=weak), TEST, DONE]
    cheated = fix(make_repo(BUGGY, "cheated"), model.url)
    assert cheated.returncode == 1
    assert "failed" in cheated.stderr


@pytest.mark.slow  # quick: tests/agent/verify/test_verify.py
def test_tests_that_fail_to_import_can_be_what_is_fixed(
    model: MisbehavingServer, make_repo: MakeRepo
) -> None:
    files = {
        "calc.py": "def add(a, b)\n    return a + b\n",
        "test_calc.py": BUGGY["test_calc.py"].replace(", double", "").split("\n\n\ndef test_double")[0]
        + "\n",
    }
    model.answers = [
        TEST,
        calls("file_edit", path="calc.py", old="def add(a, b)\n", new="def add(a, b):\n"),
        TEST,
        DONE,
    ]
    done = fix(make_repo(files), model.url)
    assert done.returncode == 0, done.stderr
    assert "test_calc.py cannot be imported in the sandbox: SyntaxError: " in done.stderr


@pytest.mark.slow  # quick: tests/agent/repo/test_repository.py
@pytest.mark.parametrize("state", ["worktree", *map(later, ("subfolder", "detached", "bare", "shallow"))])
def test_repositories_of_every_kind(
    model: MisbehavingServer, make_repo: MakeRepo, tmp_path: Path, state: str
) -> None:
    repo = make_repo(BUGGY)
    target = tmp_path / "target"
    if state == "detached":
        git(repo, "checkout", "-q", "--detach")
        target = repo
    elif state == "bare":
        git(tmp_path, "clone", "-q", "--bare", str(repo), "target")
    elif state == "shallow":
        git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repo}", "target")
    elif state == "worktree":
        git(repo, "worktree", "add", "-q", str(target))
    else:
        (repo / "deep").mkdir()
        target = repo / "deep"
    model.answers = [FIX, TEST, DONE]
    done = fix(target, model.url, *(["--apply"] if state == "bare" else []))
    if state == "bare":
        assert done.returncode == 2
        assert "--branch" in done.stderr
        done = fix(target, model.url, "--branch", "fixed")
        assert "return a + b" in git(target, "show", "fixed:calc.py")
    assert done.returncode == 0, done.stderr


def test_wrong_use_is_one_sentence(make_repo: MakeRepo, tmp_path: Path, own_state: Path) -> None:
    repo = make_repo(BUGGY)
    (tmp_path / "plain").mkdir()
    (tmp_path / "empty").mkdir()
    git(tmp_path / "empty", "init", "-q")
    (tmp_path / "blank.md").write_text(" \n")
    (tmp_path / "binary.md").write_bytes(bytes(range(256)) * 10)
    (tmp_path / "huge.md").write_text("x" * 5_000_000)
    cases: list[tuple[list[str], int, str]] = [
        ([ISSUE, "--repo", str(tmp_path / "plain")], 2, "not in a git repository"),
        ([ISSUE, "--repo", str(tmp_path / "empty")], 2, "no commit"),
        ([ISSUE, "--repo", str(tmp_path / "nowhere")], 2, "no folder"),
        ([str(tmp_path / "blank.md"), "--repo", str(repo)], 2, "empty"),
        ([str(tmp_path / "binary.md"), "--repo", str(repo)], 2, "not text"),
        ([str(tmp_path / "huge.md"), "--repo", str(repo)], 2, "larger"),
        (["missing.md", "--repo", str(repo)], 2, "missing.md"),
        ([ISSUE, "--repo", str(repo), "--engine", "vllmm"], 2, "vllmm"),
        ([ISSUE, "--repo", str(repo), "--apply", "--branch", "x"], 2, "give only one"),
        ([ISSUE, "--repo", str(repo), "--seed", "1", "--endpoint", "http://127.0.0.1:9/v1"], 2, "--seed"),
        ([ISSUE, "--repo", str(repo), "--candidates", "0", "--engine", "embedded"], 2, "candidates"),
        ([ISSUE, "--repo", str(repo), "--engine", "embedded", "--branch", "a..b"], 2, "a..b"),
        (
            [
                ISSUE,
                "--repo",
                str(repo),
                "--image",
                "no-such-image:1",
                "--sandbox",
                "docker",
                "--engine",
                "embedded",
            ],
            3,
            "",
        ),
    ]
    for arguments, code, part in cases:
        done = run("fix", *arguments)
        assert done.returncode == code, (arguments, done.stderr)
        assert part in one_sentence(done)
        left = list((own_state / "state" / "sessions").glob("*-*"))
        assert bool(left) == (code != 2), (arguments, "a refused fix leaves no session")


@pytest.mark.slow  # quick: tests/agent/fix/test_attempt.py
def test_a_repository_without_tests_is_told_before_the_first_turn(
    model: MisbehavingServer, make_repo: MakeRepo
) -> None:
    model.answers = [TEST, FIX, NOT_TESTED]
    lines = fix(make_repo(UNTESTED), model.url).stderr.splitlines()
    told = lines.index(
        "note: no tests were found here, so nothing can verify a patch: add a test that shows the fault, or name the command "
        "that runs your tests in .m3agent.toml, under [tests]"
    )
    assert told < next(n for n, line in enumerate(lines) if "test everything  no tests" in line)


def test_no_sandbox_is_exit_3(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path, tmp_path: Path
) -> None:
    repo = make_repo(BUGGY)
    nowhere = f"unix://{tmp_path}/no.sock"
    done = fix(repo, model.url, "--sandbox", "docker", DOCKER_HOST=nowhere)
    assert done.returncode == 3
    assert "no Docker engine answers" in one_sentence(done)
    assert model.requests == []
    assert events(own_state)[-1]["status"] == "error"


@pytest.mark.parametrize(
    ("pages", "part"),
    [
        ({"/v1/models": "<html>hello</html>", "/models": "<html>hello</html>"}, "web page"),
        ({"/v1/models": Reply(401, {"error": {"message": "bad key"}})}, "401"),
        ({"/v1/models": {"data": []}}, "no models"),
        later({"/v1/models": Silence()}, "did not answer"),
    ],
)
def test_wrong_server_gives_exit_code_4(
    model: MisbehavingServer, make_repo: MakeRepo, pages: dict[str, Any], part: str
) -> None:
    model.pages = pages
    done = fix(make_repo(BUGGY), model.url)
    assert done.returncode == 4, done.stderr
    assert part in one_sentence(done)


def test_a_named_server_that_is_down_is_never_replaced(make_repo: MakeRepo) -> None:
    done = fix(make_repo(BUGGY), "http://127.0.0.1:9/v1")
    assert done.returncode == 4
    assert "127.0.0.1:9" in one_sentence(done)


def test_a_full_disk_is_one_sentence(model: MisbehavingServer, make_repo: MakeRepo, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 300_000) as small:
        model.answers = [calls("code_exec", code="print('x' * 1000000)"), FIX, TEST, DONE]
        done = fix(make_repo(BUGGY), model.url, M3AGENT_STATE=str(small))
        assert done.returncode == 3, done.stderr
        assert "Traceback" not in done.stderr
        assert "full" in done.stderr


def test_a_disk_that_takes_no_byte_of_the_log_is_one_sentence_as_well(
    model: MisbehavingServer, make_repo: MakeRepo, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "small", 8 << 20) as small:

        def full() -> Iterator[Any]:
            fill(small)
            (log,) = small.glob("sessions/*/events.jsonl")
            with log.open("ab", buffering=0) as file, contextlib.suppress(OSError):
                while True:  # the log's last page still has room
                    file.write(b" ")
            yield from TEST.events

        # the disk is filled while the server sends the second answer
        model.answers = [FIX, Stream(cast("list[Any]", full()))]
        done = fix(make_repo(BUGGY), model.url, M3AGENT_STATE=str(small))
        assert done.returncode == 3, done.stderr
        said = one_sentence(done)
        assert said.startswith("m3agent: cannot write the session in")
        assert "the disk is full; make room" in said


@pytest.mark.parametrize("number", [signal.SIGINT, later(signal.SIGTERM)])
def test_interrupting_keeps_the_session_and_leaves_nothing_running(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path, backend: str, number: signal.Signals
) -> None:
    model.answers = [FIX, calls("code_exec", code="while True: pass"), DONE]
    process = start(make_repo(BUGGY), model.url, backend)
    model.wait_for_chats(2)
    while not [e for e in of_type(own_state, "call.started") if e["call"] == 2]:
        time.sleep(0.02)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130, stderr
    assert b"Traceback" not in stderr
    last = events(own_state)[-1]
    assert last["status"] == "interrupted"
    assert "+    return a + b" in Path(last["patch"]).read_text(), "what was done so far is kept"
    assert of_type(own_state, "call.finished")[-1]["status"] == "interrupted"
    wait_until_gone(process.pid)


@pytest.mark.slow  # quick: test_interrupting_keeps_the_session_and_leaves_nothing_running
@pytest.mark.parametrize("moment", [later("starting"), later("waiting for the model"), "in a call"])
def test_nothing_is_alive_two_seconds_after_kill_9(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path, backend: str, moment: str
) -> None:
    busy = calls("code_exec", code="import os\nos.fork()\nwhile True: pass")
    model.answers = [Stream([Stall()])] if moment == "waiting for the model" else [busy]
    process = start(make_repo(BUGGY), model.url, backend)
    if moment == "starting":
        while not ours(process.pid):
            assert process.poll() is None
    else:
        model.wait_for_chats(1)
    if moment == "in a call":
        while not of_type(own_state, "call.started"):
            time.sleep(0.02)
    process.kill()
    process.wait()
    wait_until_gone(process.pid)
    for log in (own_state / "state" / "sessions").glob("*/events.jsonl"):
        *whole, last = log.read_text().split("\n")
        assert last == "", "an event is written whole or not at all"
        for line in whole:
            json.loads(line)


@pytest.fixture
def own_engine() -> Iterator[OwnEngine]:
    """Yield a Docker engine for this test, which the test may kill."""
    if why := OwnEngine.barred_by():
        pytest.skip(why)
    with OwnEngine() as engine:
        yield engine


@pytest.mark.slow  # quick: test_wrong_server_gives_exit_code_4
def test_an_engine_that_dies_midway_is_exit_3(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path, own_engine: OwnEngine
) -> None:
    model.answers = [FIX, calls("code_exec", code="while True: pass"), DONE]
    words = ["fix", ISSUE, "--repo", str(make_repo(BUGGY)), "--endpoint", model.url, "--sandbox", "docker"]
    process = Process(*words, env={"DOCKER_HOST": own_engine.address})
    model.wait_for_chats(2)
    while not [e for e in of_type(own_state, "call.started") if e["call"] == 2]:
        assert process.poll() is None
        time.sleep(0.02)
    own_engine.kill()
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 3, stderr
    assert b"Traceback" not in stderr
    last = events(own_state)[-1]
    assert last["status"] == "error"
    assert "+    return a + b" in Path(last["patch"]).read_text(), "what was done so far is kept"
    deadline = time.monotonic() + 30
    while (left := supervisors()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def supervisors() -> list[str]:
    """Return the running sandboxes of the test's engine; the engine's folder is in their shim's command line."""
    lines = {path.parent.name: _read(path) for path in Path("/proc").glob("[0-9]*/cmdline")}
    shims = {pid for pid, line in lines.items() if b"/m3d" in line and b"shim" in line}
    stats = [_read(path).rpartition(b")")[2].split() for path in Path("/proc").glob("[0-9]*/stat")]
    return [f"child of {s[1].decode()}" for s in stats if s and s[1].decode() in shims and s[0] != b"Z"]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.integration
def test_interrupting_the_embedded_engine_is_quiet(make_repo: MakeRepo, own_state: Path) -> None:
    """The engine is interrupted while it thinks or while its call runs; in both cases it prints nothing."""
    repo = make_repo(BUGGY)
    process = Process(
        "fix",
        ISSUE,
        "--repo",
        str(repo),
        "--engine",
        "embedded",
    )
    while not list((own_state / "state").glob("sessions/*/events.jsonl")) or not of_type(
        own_state, "call.started"
    ):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=20)
    assert (process.returncode, stdout) == (130, b"")
    assert b"Traceback" not in stderr
    assert b"interrupted" in stderr
    wait_until_gone(process.pid)


@pytest.mark.slow  # quick: `m3agent fix issue.md` in test_docs_commands.py
def test_the_embedded_engine_fixes_end_to_end(make_repo: MakeRepo, own_state: Path) -> None:
    done = run("fix", ISSUE, "--repo", str(make_repo(BUGGY)), "--engine", "embedded")
    assert done.returncode == 0, done.stderr
    assert "+    return a + b" in done.stdout
    assert "no language model" in done.stderr
    assert of_type(own_state, "endpoint.probed")[0]["flavour"] == "embedded"


@pytest.mark.slow
def test_the_same_seed_and_candidates_give_the_same_patch_twice(make_repo: MakeRepo, own_state: Path) -> None:
    repo = str(make_repo(BUGGY))
    budget = ("--engine", "embedded", "--seed", "3", "--candidates", "300")
    one, other = (run("fix", ISSUE, "--repo", repo, *budget) for _ in range(2))
    assert one.returncode == 0, one.stderr
    assert one.stdout == other.stdout != ""


@pytest.mark.slow  # quick: test_serve.py, where fix finds one with its key
def test_server_started_by_m3agent_is_found(make_repo: MakeRepo, own_state: Path) -> None:
    server = Process("serve", "--port", "0")
    try:
        said = server.stderr.readline().decode()
        done = run("fix", ISSUE, "--repo", str(make_repo(BUGGY)))
        assert done.returncode == 0, done.stderr
        assert of_type(own_state, "session.started")[0]["endpoint"]["url"] in said
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(10) == 130
    assert not list((own_state / "state" / "servers").glob("*/server.json")), (
        "a server that ends is forgotten"
    )

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
    Fixes,
    MakeRepo,
    calls,
    chunk,
    events,
    fix,
    of_type,
    one_sentence,
    ours,
    start,
    wait_until_gone,
)
from tests.command_line import Process, run
from tests.conftest import git, later
from tests.servers.dockerd import OwnEngine, command_lines, parents
from tests.servers.misbehaving import MisbehavingServer, Reply, Silence, Stall, Stream
from tests.tools.small_disk import fill, small_disk

pytestmark = pytest.mark.integration


def test_a_fix_is_verified_and_its_patch_printed(fixes: Fixes) -> None:
    repo = fixes.make_repo(BUGGY)
    done = fixes(repo, [TEST, FIX, TEST, DONE])
    assert "-    return a - b\n+    return a + b" in done.stdout
    assert git(repo, "status", "--porcelain") == "", "without --apply the work tree is left alone"
    subprocess.run(["git", "apply", "-"], cwd=repo, input=done.stdout, text=True, check=True)
    assert (
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q"], cwd=repo, capture_output=True, check=False
        ).returncode
        == 0
    )
    log = fixes.events()
    assert [event["seq"] for event in log] == list(range(1, len(log) + 1))
    assert {event["v"] for event in log} == {1}
    assert (log[0]["type"], log[0]["attempt"]) == ("session.started", None)
    assert fixes.of_type("attempt.chosen") == []
    assert log[-1]["type"] == "session.finished"
    assert log[-1]["status"] == "verified"
    verdict = fixes.of_type("verify")[0]
    assert verdict["fixed"] == ["test_calc.py::test_add"]
    assert (verdict["broken"], verdict["still_red"]) == ([], [])
    first, last = [event for event in fixes.of_type("test.finished") if event["where"] == "session"]
    assert (first["failed"], first["passed"]) == (["test_calc.py::test_add"], ["test_calc.py::test_double"])
    assert last["failed"] == []
    started, finished = fixes.of_type("call.started"), fixes.of_type("call.finished")
    assert [s["call"] for s in started] == [f["call"] for f in finished] == [1, 2, 3]
    assert started[2]["tree"] == finished[1]["tree"] != started[1]["tree"]
    assert all(len(f["digest"]) == 64 for f in finished)
    folder = Path(log[-1]["patch"]).parent
    assert (folder / "patch.diff").read_text() == done.stdout
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_the_certificate_of_a_fix_holds(fixes: Fixes, tmp_path: Path) -> None:
    repo, certificate, patch = fixes.make_repo(BUGGY), tmp_path / "c.json", tmp_path / "p.diff"
    done = fixes(repo, [FIX, TEST, DONE], "--certificate", str(certificate))
    assert f"the certificate is in {certificate}" in " ".join(done.stderr.split())
    said = json.loads(certificate.read_text())["predicate"]
    assert (said["verdict"], said["patch"]["source"]["kind"]) == ("verified", "fix")
    assert said["base"] == {
        "commit": git(repo, "rev-parse", "HEAD"),
        "tree": git(repo, "rev-parse", "HEAD^{tree}"),
        "uncommitted": 0,
    }
    assert (said["made_by"]["model"], said["issue"]["text"]) == ("minimax-m3", ISSUE)
    patch.write_text(done.stdout)
    checked = run("verify", str(patch), "--repo", str(repo), "--check", str(certificate))
    assert (checked.returncode, checked.stdout.partition("  ")[0]) == (0, "✓ holds"), checked.stdout


@pytest.mark.slow  # quick: tests/agent/loop/
def test_requests_only_ever_extend_and_are_the_same_for_two_clones(fixes: Fixes, tmp_path: Path) -> None:
    repo = fixes.make_repo(UNTESTED)
    git(tmp_path, "clone", "-q", str(repo), "elsewhere")
    script = [TEST, calls("code_exec", code="print('<mm:think> é \\x1b[1m')"), FIX, NOT_TESTED]
    firsts = []
    for folder in (repo, tmp_path / "elsewhere"):
        fixes.model.reset()
        fixes(folder, list(script), code=1)
        bodies = [chat.body for chat in fixes.chats]
        assert len(bodies) == len(script)
        firsts.append(bodies[0])
        for before, after in itertools.pairwise(bodies):
            messages = before[: before.index(b'],"model"')] if b'],"model"' in before else b""
            assert messages.startswith(b'{"messages":[')
            assert after.startswith(messages + b","), "a request's messages are not the last one's and more"
        history = json.loads(bodies[-1])["messages"]
        assert [m["role"] for m in history[:4]] == ["system", "user", "assistant", "tool"]
        assert "Python 3." in history[1]["content"]
        assert history[2]["reasoning"] == "hm", "reasoning goes back to the model"
        for message, answer in itertools.pairwise(history):
            if message.get("tool_calls"):
                assert answer["role"] == "tool"
                assert answer["tool_call_id"] == message["tool_calls"][0]["id"]
    assert firsts[0] == firsts[1]


@pytest.mark.slow  # quick: tests/agent/test_api.py
def test_json_mode_prints_the_log_and_nothing_else(fixes: Fixes) -> None:
    done = fixes(UNTESTED, [FIX, NOT_TESTED], "--json", code=1)
    assert [json.loads(line) for line in done.stdout.splitlines()] == fixes.events()


@pytest.mark.slow  # quick: tests/agent/delivery/test_apply.py
def test_uncommitted_changes_are_worked_on_and_never_overwritten(fixes: Fixes) -> None:
    repo = fixes.make_repo(UNTESTED)
    mine = BUGGY["calc.py"] + "\n# mine\n"
    (repo / "calc.py").write_text(mine)
    done = fixes(repo, [FIX, NOT_TESTED], "--apply", code=5)
    first, *rest = [line for line in done.stderr.splitlines() if "uncommitted changes" in line]
    assert first.startswith(
        "note: calc.py has uncommitted changes: --apply is refused if the patch touches it"
    )
    assert rest, "the refusal itself"
    assert (repo / "calc.py").read_text() == mine
    assert "+    return a + b" in done.stdout, "the patch is not lost"
    assert b"# mine" in fixes.chats[0].body, "the model sees the files as they are"


@pytest.mark.slow  # quick: test_loop.py
def test_an_answer_that_never_leaves_its_circle_ends_the_session(fixes: Fixes) -> None:
    done = fixes(
        {"calc.py": BUGGY["calc.py"]},
        [
            FIX,
            Stream([chunk({"content": "the same line once more, the very same line\n"}) for _ in range(999)]),
        ],
        code=6,
    )
    assert "+    return a + b" in done.stdout
    assert [s["action"] for s in fixes.of_type("stall")] == ["told", "forced", "stopped"]
    assert "said the same over and over" in fixes.events()[-1]["reason"]


@pytest.mark.slow  # quick: tests/agent/verify/test_verify.py
def test_tests_that_fail_to_import_can_be_what_is_fixed(fixes: Fixes) -> None:
    files = {
        "calc.py": "def add(a, b)\n    return a + b\n",
        "test_calc.py": BUGGY["test_calc.py"].replace(", double", "").split("\n\n\ndef test_double")[0]
        + "\n",
    }
    done = fixes(
        files,
        [TEST, calls("file_edit", path="calc.py", old="def add(a, b)\n", new="def add(a, b):\n"), TEST, DONE],
    )
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
def test_a_repository_without_tests_is_told_before_the_first_turn(fixes: Fixes) -> None:
    fixes.model.answers = [TEST, FIX, NOT_TESTED]
    lines = fix(fixes.make_repo(UNTESTED), fixes.model.url).stderr.splitlines()
    told = lines.index(
        "note: no tests were found here, so nothing can verify a patch: add a test that shows the fault, or name the command "
        "that runs your tests in .m3agent.toml, under [tests]"
    )
    assert told < next(n for n, line in enumerate(lines) if "test everything  no tests" in line)


def test_no_sandbox_is_exit_3(fixes: Fixes, tmp_path: Path) -> None:
    repo = fixes.make_repo(BUGGY)
    nowhere = f"unix://{tmp_path}/no.sock"
    done = fixes(repo, None, "--sandbox", "docker", DOCKER_HOST=nowhere, code=3)
    assert "no Docker engine answers" in one_sentence(done)
    assert fixes.model.requests == []
    assert fixes.events()[-1]["status"] == "error"


@pytest.mark.parametrize(
    ("pages", "part"),
    [
        ({"/v1/models": "<html>hello</html>", "/models": "<html>hello</html>"}, "web page"),
        ({"/v1/models": Reply(401, {"error": {"message": "bad key"}})}, "401"),
        ({"/v1/models": {"data": []}}, "no models"),
        later({"/v1/models": Silence()}, "did not answer"),
    ],
)
def test_wrong_server_gives_exit_code_4(fixes: Fixes, pages: dict[str, Any], part: str) -> None:
    fixes.model.pages = pages
    done = fixes(BUGGY, None, code=4)
    assert part in one_sentence(done)


def test_a_named_server_that_is_down_is_never_replaced(make_repo: MakeRepo) -> None:
    done = fix(make_repo(BUGGY), "http://127.0.0.1:9/v1")
    assert done.returncode == 4
    assert "127.0.0.1:9" in one_sentence(done)


def test_a_full_disk_is_one_sentence(fixes: Fixes, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 300_000) as small:
        done = fixes(
            BUGGY,
            [calls("code_exec", code="print('x' * 1000000)"), FIX, TEST, DONE],
            M3AGENT_STATE=str(small),
            code=3,
        )
        assert "Traceback" not in done.stderr
        assert "full" in done.stderr


def test_a_disk_that_takes_no_byte_of_the_log_is_one_sentence_as_well(fixes: Fixes, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 8 << 20) as small:

        def full() -> Iterator[Any]:
            fill(small)
            (log,) = small.glob("sessions/*/events.jsonl")
            with log.open("ab", buffering=0) as file, contextlib.suppress(OSError):
                while True:  # the log's last page still has room
                    file.write(b" ")
            yield from TEST.events

        # the disk is filled while the server sends the second answer
        done = fixes(BUGGY, [FIX, Stream(cast("list[Any]", full()))], M3AGENT_STATE=str(small), code=3)
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
    _, stderr = process.communicate()
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
    _, stderr = process.communicate()
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
    lines = command_lines()
    shims = {pid for pid, line in lines.items() if b"/m3d" in line and b"shim" in line}
    children = [pid for pid, parent in parents().items() if parent in shims]
    # the kill of an engine leaves a process `runc init` if a container was about to start; it runs no program of m3agent
    return [f"child {pid}" for pid in children if lines.get(pid) != b"runc\0init\0"]


@pytest.mark.integration
def test_interrupting_the_embedded_engine_is_quiet(make_repo: MakeRepo, own_state: Path) -> None:
    """The engine is interrupted while it thinks or while its call runs; in both cases it prints nothing."""
    repo = make_repo(BUGGY)
    process = Process("fix", ISSUE, "--repo", str(repo), "--engine", "embedded")
    while not list((own_state / "state").glob("sessions/*/events.jsonl")) or not of_type(
        own_state, "call.started"
    ):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate()
    assert (process.returncode, stdout) == (130, b"")
    assert b"Traceback" not in stderr
    assert b"interrupted" in stderr
    wait_until_gone(process.pid)


@pytest.mark.slow
def test_the_same_seed_and_candidates_give_the_same_patch_twice(make_repo: MakeRepo, own_state: Path) -> None:
    repo = str(make_repo(BUGGY))
    budget = ("--engine", "embedded", "--seed", "3", "--candidates", "300")
    one, other = (run("fix", ISSUE, "--repo", repo, *budget) for _ in range(2))
    assert one.returncode == 0, one.stderr
    assert one.stdout == other.stdout != ""

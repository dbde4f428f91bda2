"""Test `m3agent fix` with tracker issues and attachments, from the command line to the bytes sent."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.scripted import BUGGY, DONE, FIX, ISSUE, TEST, calls, of_type, one_sentence, says
from tests.command_line import Process, run
from tests.conftest import git
from tests.servers.misbehaving import MODEL, MisbehavingServer, history_faults
from tests.servers.tracker import PNG, Page, TrackerServer

MakeRepo = Callable[..., Path]

SECRET = "ghp_0123456789abcdef"
SEEING = {"data": [{"id": MODEL, "owned_by": "vllm", "capabilities": ["vision"], "max_model_len": 1048576}]}


@pytest.fixture
def tracker() -> Iterator[TrackerServer]:
    with TrackerServer() as running:
        running.add_issue(body="add(2, 3) should be 5.\n\n![shot](/shot.png)", comments=1)
        comment = {"user": {"login": "alice"}, "body": "Same for <b>double</b>."}
        running.pages["/repos/owner/repo/issues/1/comments"] = Page([comment])
        running.pages["/shot.png"] = Page(PNG)
        yield running


def content(server: MisbehavingServer) -> Any:
    return json.loads(server.chats[0].body)["messages"][1]["content"]


@pytest.mark.slow  # quick: test_issue_tracker.py, test_fix.py
def test_an_issue_of_github_is_fixed(
    server: MisbehavingServer, tracker: TrackerServer, make_repo: MakeRepo, own_state: Path
) -> None:
    server.answers = [TEST, FIX, TEST, DONE]
    arguments = ["fix", "owner/repo#1", "--github-api", f"{tracker.url}/", "--endpoint", server.url, "--json"]
    done = run(*arguments, "--repo", str(make_repo(BUGGY)), env={"GITHUB_TOKEN": SECRET})
    assert done.returncode == 0, done.stderr
    text = content(server)
    assert "<issue>\n# Wrong sums\n\nadd(2, 3) should be 5.\n\n![shot](/shot.png)\n" in text
    assert "## Comment by alice\n\nSame for <b>double</b>.\n</issue>\n" in text
    assert "1 image" in text.splitlines()[-1]
    assert f"fetching owner/repo#1 from {tracker.host}" in done.stderr
    assert "accepts no images" in done.stderr
    issue = of_type(own_state, "session.started")[0]["issue"]
    assert issue["title"] == "Wrong sums"
    assert issue["source"] == f"{tracker.url}/owner/repo/issues/1"
    (image,) = issue["images"]
    assert (image["name"], image["media_type"], image["bytes"]) == ("/shot.png", "image/png", len(PNG))
    assert len(image["digest"]) == 64
    assert tracker.visits[0].headers["authorization"] == f"Bearer {SECRET}"
    assert SECRET not in done.stdout + done.stderr
    assert not [p for p in own_state.rglob("*") if p.is_file() and SECRET.encode() in p.read_bytes()]


def test_images_go_to_a_server_that_takes_them(
    server: MisbehavingServer, tracker: TrackerServer, make_repo: MakeRepo, tmp_path: Path
) -> None:
    repo = make_repo(BUGGY)
    git(repo, "remote", "add", "origin", f"{tracker.url}/owner/repo.git")
    attached = tmp_path / "attached.gif"
    attached.write_bytes(b"GIF89a" + bytes(16))
    server.pages["/v1/models"] = SEEING
    server.answers = [calls("code_exec", code="print(1)"), says("No change: just looking.")]
    arguments = ["fix", "#1", "--repo", str(repo), "--endpoint", server.url, "--attach", str(attached)]
    done = run(*arguments, "--attach", str(attached), env={"M3AGENT_GITHUB_API": tracker.url})
    assert done.returncode == 1, done.stderr
    assert len(server.chats) == 2
    assert history_faults([chat.body for chat in server.chats]) == []
    text, gif, png = content(server)
    assert text["text"].endswith(
        "\nThe issue's images follow in this order:\n1. attached.gif\n2. /shot.png\n"
    )
    assert gif["image_url"]["url"].startswith("data:image/gif;base64,R0lGODlh")
    assert png["image_url"]["url"].startswith("data:image/png;base64,iVBORw0KGgo")


def test_refusals_are_one_sentence_with_their_code(
    server: MisbehavingServer, tracker: TrackerServer, make_repo: MakeRepo, tmp_path: Path
) -> None:
    repo = make_repo(BUGGY)
    log = tmp_path / "log.txt"
    log.write_text("Traceback\n")
    limit = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1767225600"}
    tracker.pages |= {
        "/repos/owner/repo/issues/2": Page({"message": "Bad credentials"}, 401),
        "/repos/owner/repo/issues/3": Page({"message": "API rate limit exceeded"}, 403, limit),
    }
    cases: list[tuple[list[str], int, str]] = [
        (["owner/repo#404"], 2, "has no issue owner/repo#404"),
        (["owner/repo#2"], 5, "the token from GITHUB_TOKEN"),
        (["owner/repo#3"], 3, "rate limit"),
        (["#1"], 2, "origin remote"),
        ([ISSUE, "--attach", str(log)], 2, "put it into the issue"),
        (
            [ISSUE, "--github-api", f"https://me:{SECRET}@ghe.example.com"],
            2,
            "not contain a user name or password",
        ),
    ]
    for arguments, code, part in cases:
        known = ["--github-api", tracker.url] if "--github-api" not in arguments else []
        more = ["--repo", str(repo), "--endpoint", server.url, *known]
        done = run("fix", *arguments, *more, env={"GITHUB_TOKEN": SECRET})
        assert done.returncode == code, (arguments, done.stderr)
        assert part in one_sentence(done)
        assert SECRET not in done.stderr
    assert server.requests == []


def test_ctrl_c_does_not_wait_for_a_slow_tracker(
    server: MisbehavingServer, tracker: TrackerServer, make_repo: MakeRepo
) -> None:
    tracker.pages["/repos/owner/repo/issues/1"] = tracker.silent
    arguments = ["owner/repo#1", "--github-api", tracker.url, "--endpoint", server.url]
    process = Process("fix", *arguments, "--repo", str(make_repo(BUGGY)))
    while not tracker.visits:
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    _, stderr = process.communicate()
    assert process.returncode == 130
    assert time.monotonic() - started < 18, "it waited for the tracker, of which it bears 20 s of silence"
    assert b"Traceback" not in stderr

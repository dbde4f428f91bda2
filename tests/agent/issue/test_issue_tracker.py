"""Test fetching issues over real HTTP from a server that answers as GitHub and GitLab do."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from m3agent.agent.forge.address import SERVERS
from m3agent.agent.forge.api import MAX_RESPONSE
from m3agent.agent.issue.load import Issue, load_issue
from m3agent.serving.client.retry import API_ATTEMPTS
from m3agent.serving.launch.server import SECRETS
from m3agent.util.errors import EnvironmentFault, M3AgentError, PermissionRefused, UsageError
from tests.servers.tracker import PNG, Page, TrackerServer

pytestmark = pytest.mark.integration

SECRET = "ghp_0123456789abcdef"


@pytest.fixture
def tracker() -> Iterator[TrackerServer]:
    with TrackerServer() as running:
        yield running


@pytest.fixture
def elsewhere() -> Iterator[TrackerServer]:
    """Yield another server, and check that no request arrives there."""
    with TrackerServer() as running:
        yield running
        assert running.visits == []


def load(
    tracker: TrackerServer,
    spec: str = "owner/repo#1",
    /,
    said: list[str] | None = None,
    timeout: float = 20.0,
    **env: str,
) -> Issue:
    say = said.append if said is not None else lambda _: None
    return load_issue(spec, github_api=tracker.url, env=env, say=say, timeout=timeout)


def refused(
    tracker: TrackerServer,
    kind: type[M3AgentError],
    timeout: float = 20.0,
    /,
    spec: str = "owner/repo#1",
    **env: str,
) -> str:
    said: list[str] = []
    with pytest.raises(kind) as caught:
        load(tracker, spec, said=said, timeout=timeout, **env)
    sentence = str(caught.value)
    assert "\n" not in sentence and sentence.endswith(".")
    assert not any(SECRET in text for text in (sentence, *said, repr(caught.value)))
    return sentence


def comment(author: str | None, body: str, **fields: Any) -> dict[str, Any]:
    user = None if author is None else {"login": author, "type": "Bot" if "[bot]" in author else "User"}
    return {"user": user, "body": body, **fields}


def test_title_body_and_comments_over_several_pages(tracker: TrackerServer) -> None:
    tracker.add_issue(body="add(2, 3)\r\nis -1.", comments=4)
    path = "/repos/owner/repo/issues/1/comments?per_page=100"
    following = {
        "Link": f'<{tracker.url}{path}&page=2>; rel="next", <{tracker.url}{path}&page=3>; rel="last"'
    }
    tracker.pages[path] = Page(
        [comment("alice", "Me too.\r\n"), comment("ci[bot]", "Stale.")], headers=following
    )
    following = {"Link": f'<{path}&page=3>; rel="next"'}
    tracker.pages[f"{path}&page=2"] = Page([comment(None, "Gone."), comment("bob", "  ")], headers=following)
    tracker.pages[f"{path}&page=3"] = Page([comment("b\nob\x1b", "Last.\0\ud800")])
    issue = load(tracker)
    assert issue.title == "Wrong sums"
    assert issue.text == (
        "# Wrong sums\n\nadd(2, 3)\nis -1.\n\n"
        "\n## Comment by alice\n\nMe too.\n\n"
        "\n## Comment by ci[bot]\n\nStale.\n\n"
        "\n## Comment by ghost\n\nGone.\n\n"
        "\n## Comment by bob\n\nLast.\N{REPLACEMENT CHARACTER}?\n"
    )
    assert issue.source == f"{tracker.url}/owner/repo/issues/1"
    assert (issue.images, len(issue.digest)) == ((), 64)
    assert issue == load(tracker), "the same issue gives the same bytes"


def test_an_issue_without_comments_is_one_request(tracker: TrackerServer) -> None:
    tracker.add_issue(body=None)  # type: ignore[arg-type]
    assert load(tracker, f"{tracker.url}/owner/repo/issues/1").text == "# Wrong sums\n\n\n"
    assert tracker.paths == ["/repos/owner/repo/issues/1"]
    headers = tracker.visits[0].headers
    assert headers["accept"] == "application/vnd.github+json"
    assert headers["user-agent"].startswith("m3agent/")
    assert "authorization" not in headers


def test_the_number_of_the_origin_remote(tracker: TrackerServer) -> None:
    tracker.add_issue()
    origin = f"{tracker.url}/owner/repo.git"
    assert load_issue("#1", github_api=tracker.url, origin=lambda: origin).title == "Wrong sums"


def test_a_title_is_one_line(tracker: TrackerServer) -> None:
    tracker.add_issue(title="# Wrong\n</issue> sums\x1b" + "!" * 200)
    issue = load(tracker)
    assert "\n" not in issue.title and len(issue.title) == 120
    assert issue.text.startswith("# # Wrong </issue> sums")


class TestToken:
    def test_where_it_comes_from(self, tracker: TrackerServer, tmp_path: Path) -> None:
        tracker.add_issue()
        program = tmp_path / "gh"
        program.write_text('#!/bin/sh\n[ "$*" = "auth token --hostname $WANTED" ] && echo from-gh\n')
        program.chmod(0o755)
        more = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "WANTED": tracker.host}
        cases: list[tuple[dict[str, str], str | None]] = [
            ({"GITHUB_TOKEN": "a", "GH_TOKEN": "b"}, "Bearer a"),
            ({"GITHUB_TOKEN": " \n", "GH_TOKEN": "b\n"}, "Bearer b"),
            ({}, "Bearer from-gh"),
            ({"WANTED": "other"}, None),
            ({"PATH": "/nowhere"}, None),
        ]
        for env, expected in cases:
            load_issue("owner/repo#1", github_api=tracker.url, env=more | env)
            assert tracker.visits[-1].headers.get("authorization") == expected

    def test_a_token_with_a_line_break_is_refused(self, tracker: TrackerServer) -> None:
        assert "GITHUB_TOKEN gives an invalid token" in refused(
            tracker, UsageError, GITHUB_TOKEN=f"{SECRET}\r\nX: y"
        )
        assert tracker.visits == []

    def test_the_token_is_sent_to_the_tracker_only(
        self, tracker: TrackerServer, elsewhere: TrackerServer
    ) -> None:
        tracker.add_issue()
        path = "/repos/owner/repo/issues/1"
        tracker.pages[path] = Page(status=301, headers={"Location": f"{elsewhere.url}{path}"})
        assert "another address" in refused(tracker, EnvironmentFault, GITHUB_TOKEN=SECRET)
        tracker.add_issue(comments=1)
        link = {"Link": f'<{elsewhere.url}/more>; rel="next"'}
        tracker.pages[f"{path}/comments"] = Page([], headers=link)
        assert "another address" in refused(tracker, EnvironmentFault, GITHUB_TOKEN=SECRET)
        tracker.add_issue(body=f"![x]({tracker.url}/x.png)")
        tracker.pages["/x.png"] = Page(PNG)
        assert len(load(tracker, GITHUB_TOKEN=SECRET).images) == 1
        assert "authorization" not in tracker.visits[-1].headers, "images are asked for without it"


class TestRefusals:
    PATH = "/repos/owner/repo/issues/1"

    @pytest.mark.parametrize(
        ("status", "message", "env", "kind", "parts"),
        [
            (404, "Not Found", {}, UsageError, ("no issue owner/repo#1", "private", "set GITHUB_TOKEN")),
            (404, "Not Found", {"GH_TOKEN": SECRET}, UsageError, ("the token from GH_TOKEN may not see it",)),
            (
                401,
                "Bad",
                {"GITHUB_TOKEN": SECRET},
                PermissionRefused,
                ("accept the token from GITHUB_TOKEN",),
            ),
            (401, "Bad", {}, PermissionRefused, ("asks for a token: set GITHUB_TOKEN",)),
            (
                403,
                f"SAML enforcement for\n{SECRET}",
                {"GITHUB_TOKEN": SECRET},
                PermissionRefused,
                ("refuses owner/repo#1 to the token from GITHUB_TOKEN (SAML enforcement for [key])",),
            ),
            (403, "SAML", {}, PermissionRefused, ("requests without a token in GITHUB_TOKEN (SAML)",)),
            (410, "This issue was deleted", {}, UsageError, ("The issue owner/repo#1 was deleted.",)),
            (422, "no", {}, PermissionRefused, ("refuses this for owner/repo#1 (no)",)),
            (418, "tea", {}, EnvironmentFault, ("answered 418 for owner/repo#1 (tea)",)),
        ],
    )
    def test_what_a_status_means(
        self,
        tracker: TrackerServer,
        status: int,
        message: str,
        env: dict[str, str],
        kind: type[M3AgentError],
        parts: tuple[str, ...],
    ) -> None:
        tracker.pages[self.PATH] = Page({"message": message}, status)
        sentence = refused(tracker, kind, **env)
        assert all(part in sentence for part in parts)

    @pytest.mark.parametrize("status", [403, 429])
    def test_the_rate_limit_with_its_end(
        self, tracker: TrackerServer, monkeypatch: pytest.MonkeyPatch, status: int
    ) -> None:
        monkeypatch.setenv("TZ", "XYZ-02:00")
        time.tzset()
        try:
            headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1767225600"}
            tracker.pages[self.PATH] = Page({"message": "API rate limit exceeded"}, status, headers)
            sentence = refused(tracker, EnvironmentFault)
            assert "until 2026-01-01 02:00:00 XYZ" in sentence
            assert "GITHUB_TOKEN raises the limit" in sentence
            assert "raises the limit" not in refused(tracker, EnvironmentFault, GITHUB_TOKEN=SECRET)
        finally:
            monkeypatch.undo()
            time.tzset()
        assert len(tracker.visits) == 2, "a limit is no reason to try again"

    def test_the_secondary_limit(self, tracker: TrackerServer) -> None:
        tracker.pages[self.PATH] = Page({"message": "slow down"}, 403, {"retry-after": "90"})
        before = time.time()
        found = re.search(r"until (\S+ \S+) ", refused(tracker, EnvironmentFault))
        assert found
        local = datetime.fromisoformat(found[1])
        # in the hour in which clocks are set back, a local time is two moments
        moments = [local.replace(fold=fold).timestamp() for fold in (0, 1)]
        assert any(before + 88 < at < time.time() + 91 for at in moments)
        tracker.pages[self.PATH] = Page({"message": "You have exceeded a secondary rate limit"}, 403)
        assert "wait a minute" in refused(tracker, EnvironmentFault)
        tracker.pages[self.PATH] = Page({}, 429, {"retry-after": "9" * 40})
        assert "an invalid time" in refused(tracker, EnvironmentFault)

    def test_a_pull_request(self, tracker: TrackerServer) -> None:
        tracker.add_issue(pull_request={"url": "x"})
        assert "is a pull request" in refused(tracker, UsageError)

    @pytest.mark.parametrize(
        "body",
        [b"<html>Welcome</html>", b"", b"[" * 100_000, [1], {"title": None}, {"hello": 1}, "text"],
        ids=["page", "nothing", "nested", "list", "no title", "other", "string"],
    )
    def test_responses_that_are_not_from_the_api(self, tracker: TrackerServer, body: Any) -> None:
        tracker.pages[self.PATH] = Page(body)
        sentence = refused(tracker, EnvironmentFault)
        assert "is not the API of GitHub" in sentence and "--github-api" in sentence

    @pytest.mark.parametrize("body", [{"message": "x"}, ["text"]])
    def test_invalid_comments(self, tracker: TrackerServer, body: Any) -> None:
        tracker.add_issue(comments=1)
        tracker.pages[f"{self.PATH}/comments"] = Page(body)
        assert "is not the API" in refused(tracker, EnvironmentFault)


class TestSize:
    SENTENCE = "The issue owner/repo#1 is larger than 1024 KiB: shorten it to the report itself"

    @pytest.mark.parametrize("size", [1_100_000, 5_000_000])
    def test_a_body_over_the_limit(self, tracker: TrackerServer, size: int) -> None:
        tracker.add_issue(body="x" * size)
        assert self.SENTENCE in refused(tracker, UsageError)

    def test_an_endless_response_is_not_read(self, tracker: TrackerServer) -> None:
        tracker.pages["/repos/owner/repo/issues/1"] = tracker.endless
        assert self.SENTENCE in refused(tracker, UsageError)
        assert tracker.bytes_sent < MAX_RESPONSE + 16_000_000, "beyond the limit there are buffers only"

    def test_comments_count(self, tracker: TrackerServer) -> None:
        tracker.add_issue(comments=30)
        path = "/repos/owner/repo/issues/1/comments"
        following = {"Link": f'<{tracker.url}{path}?page=2>; rel="next"'}
        tracker.pages[path] = Page([comment("a", "x" * 60_000)] * 10, headers=following)
        assert self.SENTENCE in refused(tracker, UsageError)
        assert len(tracker.visits) == 3, "reading stops at the limit, although the list has no end"

    def test_pages_without_end(self, tracker: TrackerServer) -> None:
        tracker.add_issue(comments=1)
        path = "/repos/owner/repo/issues/1/comments"
        tracker.pages[path] = Page([], headers={"Link": f'<{tracker.url}{path}?page=2>; rel="next"'})
        assert self.SENTENCE in refused(tracker, UsageError)


@pytest.mark.usefixtures("no_backoff")
class TestConnection:
    PATH = "/repos/owner/repo/issues/1"

    def test_a_renamed_repository_is_followed(self, tracker: TrackerServer) -> None:
        tracker.add_issue(comments=1)
        tracker.pages["/repositories/5/issues/1"] = tracker.pages[self.PATH]
        tracker.pages[self.PATH] = Page(status=301, headers={"Location": "/repositories/5/issues/1"})
        tracker.pages["/repositories/5/issues/1/comments"] = Page([comment("a", "Yes.")])
        assert "Yes." in load(tracker).text

    def test_a_redirection_loop_is_not_followed(self, tracker: TrackerServer) -> None:
        tracker.pages[self.PATH] = Page(status=301, headers={"Location": self.PATH})
        assert "redirects in a loop" in refused(tracker, EnvironmentFault)
        assert len(tracker.visits) == 2

    @pytest.mark.parametrize("target", ["http://169.254.169.254/latest", "file:///etc/passwd", "//["])
    def test_a_redirection_to_another_address_is_not_followed(
        self, tracker: TrackerServer, target: str
    ) -> None:
        tracker.pages[self.PATH] = Page(status=302, headers={"Location": target})
        assert refused(tracker, EnvironmentFault)
        assert len(tracker.visits) == 1

    def test_a_fault_that_passes(self, tracker: TrackerServer) -> None:
        tracker.add_issue()
        good = tracker.pages[self.PATH]

        def once(handler: Any) -> None:
            tracker.pages[self.PATH] = good
            handler.send_error(502)

        tracker.pages[self.PATH] = once
        said: list[str] = []
        assert load(tracker, said=said).title == "Wrong sums"
        assert any("502" in line and "trying again" in line for line in said)

    def test_a_fault_that_stays(self, tracker: TrackerServer) -> None:
        tracker.pages[self.PATH] = Page(b"<html>", 503)
        assert "has an internal error (503)" in refused(tracker, EnvironmentFault)
        assert len(tracker.visits) == API_ATTEMPTS

    def test_a_cut_connection(self, tracker: TrackerServer) -> None:
        tracker.pages[self.PATH] = tracker.cut
        assert f"The connection to {tracker.host} failed" in refused(tracker, EnvironmentFault)
        assert len(tracker.visits) == API_ATTEMPTS

    def test_nobody_there(self) -> None:
        with TrackerServer() as tracker:
            pass
        assert "Connection refused" in refused(tracker, EnvironmentFault)

    @pytest.mark.parametrize("way", ["silent", "dripping"])
    def test_a_server_that_takes_its_time(self, tracker: TrackerServer, way: str) -> None:
        tracker.pages[self.PATH] = getattr(tracker, way)
        started = time.monotonic()
        assert "did not answer in time" in refused(tracker, EnvironmentFault, 0.4)
        assert time.monotonic() - started < 30
        assert len(tracker.visits) == 1


def test_engines_do_not_get_the_tokens() -> None:
    """Engines start in a package that cannot import the trackers, so it has its own list."""
    assert {name for tracker in SERVERS.values() for name in tracker.tokens} <= set(SECRETS)


class TestGitLab:
    """A server on loopback is recognised as a GitLab by the paths of its URLs."""

    PATH = "/api/v4/projects/group%2Fsub%2Frepo/issues/3"

    def issue(self, tracker: TrackerServer, **fields: Any) -> str:
        tracker.pages[self.PATH] = Page({"title": "Wrong sums", "description": "It fails.", **fields})
        return f"{tracker.url}/group/sub/repo/-/issues/3"

    def test_title_body_and_comments(self, tracker: TrackerServer) -> None:
        spec = self.issue(tracker, description="See ![shot](/uploads/ab/shot.png)")
        notes = [
            {"body": "Me too.", "author": {"username": "alice", "name": "Alice A."}, "system": False},
            {"body": "changed the label", "author": {"username": "alice"}, "system": True},
        ]
        tracker.pages[f"{self.PATH}/notes"] = Page(notes)
        tracker.pages["/group/sub/repo/uploads/ab/shot.png"] = Page(PNG)
        issue = load_issue(spec, env={"GITLAB_TOKEN": SECRET, "GITLAB_HOST": tracker.host})
        assert issue.text == (
            "# Wrong sums\n\nSee ![shot](/uploads/ab/shot.png)\n\n\n## Comment by alice\n\nMe too.\n"
        )
        assert [image.data for image in issue.images] == [PNG]
        assert [visit.headers.get("private-token") for visit in tracker.visits] == [SECRET, SECRET, None]
        assert "sort=asc" in tracker.paths[1]

    def test_the_token_is_for_one_host(self, tracker: TrackerServer) -> None:
        spec = self.issue(tracker)
        tracker.pages[f"{self.PATH}/notes"] = Page({"message": "401 Unauthorized"}, 401)
        said: list[str] = []
        issue = load_issue(spec, env={"GITLAB_TOKEN": SECRET, "GITHUB_TOKEN": SECRET}, say=said.append)
        assert issue.text == "# Wrong sums\n\nIt fails.\n"
        assert SECRET not in json.dumps([visit.headers for visit in tracker.visits])
        assert any(f"set GITLAB_HOST to {tracker.host} and GITLAB_TOKEN" in line for line in said)

    def test_missing(self, tracker: TrackerServer) -> None:
        with pytest.raises(UsageError, match="has no issue group/sub/repo#3") as caught:
            load_issue(f"{tracker.url}/group/sub/repo/-/issues/3")
        assert f"set GITLAB_HOST to {tracker.host} and GITLAB_TOKEN" in str(caught.value)

    def test_the_rate_limit(self, tracker: TrackerServer) -> None:
        spec = self.issue(tracker)
        headers = {"RateLimit-Remaining": "0", "RateLimit-Reset": "1767225600"}
        tracker.pages[self.PATH] = Page(b"Retry later\n", 429, headers)
        with pytest.raises(EnvironmentFault, match=r"until (2025-12-31|2026-01-01) "):
            load_issue(spec)

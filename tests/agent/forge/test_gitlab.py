"""Read a merge request of GitLab on a loopback server, and answer on it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from m3agent.agent.forge.address import PullReference
from m3agent.agent.forge.api import Token, TooLarge
from m3agent.agent.forge.client import MARK, Client, PullState, Remark
from m3agent.agent.forge.connection import connected
from tests.servers.tracker import Page, TrackerServer

pytestmark = pytest.mark.integration

PROJECT = "/api/v4/projects/group%2Fsub%2Frepo"
OWN = f"{PROJECT}/merge_requests/3"
HEAD = "a" * 40
MEMBER, STRANGER = {"id": 1, "username": "member"}, {"id": 2, "username": "stranger"}
FIELDS = {
    "state": "opened", "sha": HEAD, "source_branch": "m3agent/12", "target_branch": "main", "draft": False,
    "source_project_id": 5, "target_project_id": 5, "has_conflicts": False, "detailed_merge_status": "mergeable",
}  # fmt: skip


def note(identity: int, author: dict[str, Any], body: str, **more: Any) -> dict[str, Any]:
    return {"id": identity, "author": author, "body": body, "system": False, **more}


@pytest.fixture
def hub() -> Iterator[TrackerServer]:
    with TrackerServer() as server:
        server.pages |= {
            OWN: Page(FIELDS),
            f"{OWN}/discussions": Page([]),
            f"{OWN}/approvals": Page({"approved": True, "approved_by": []}),
            f"{OWN}/pipelines": Page([]),
            f"{PROJECT}/members/all/1": Page({"access_level": 30}),
            f"{PROJECT}/members/all/3": Page({"access_level": 20}),
            f"POST {OWN}/notes": Page({"id": 9}, 201),
        }
        yield server


def pull_of(hub: TrackerServer) -> PullReference:
    return PullReference("gitlab", f"{hub.url}/api/v4", hub.url, "group/sub/repo", 3)


def client_of(hub: TrackerServer) -> AbstractContextManager[Client]:
    return connected(pull_of(hub), Token("t", "test"), lambda _: None, 5)


def look(hub: TrackerServer) -> PullState:
    with client_of(hub) as client:
        return client.look(pull_of(hub))


def test_a_quiet_one(hub: TrackerServer) -> None:
    seen = look(hub)
    assert (seen.state, seen.head, seen.branch, seen.target) == ("open", HEAD, "m3agent/12", "main")
    assert (seen.source, seen.conflict, seen.approved) == ("group/sub/repo", False, False)
    assert (seen.checks, seen.remarks, seen.unread) == ((), (), 0)


@pytest.mark.parametrize(
    ("fields", "state", "conflict"),
    [
        ({"state": "merged"}, "merged", None),
        ({"state": "closed"}, "closed", None),
        ({"state": "locked"}, "open", False),
        ({"has_conflicts": True}, "open", True),
        ({"has_conflicts": True, "detailed_merge_status": "checking"}, "open", None),
    ],
)
def test_its_state(hub: TrackerServer, fields: dict[str, Any], state: str, conflict: bool | None) -> None:
    hub.pages[OWN] = Page({**FIELDS, **fields})
    seen = look(hub)
    assert (seen.state, seen.conflict) == (state, conflict)


def test_only_notes_of_developers_are_read(hub: TrackerServer) -> None:
    """Not those of strangers, reporters, the system and m3agent, and no thread that is resolved."""
    about = {"position": {"new_path": "a.py", "new_line": 4}}
    hub.pages[f"{OWN}/discussions"] = Page(
        [
            {"notes": [note(10, MEMBER, "Use 3.\ud800", **about), note(11, STRANGER, "Use 4.")]},
            {"notes": [note(12, MEMBER, "changed the title", system=True)]},
            {"notes": [note(13, MEMBER, "Old.", resolvable=True, resolved=True)]},
            {"notes": [note(14, MEMBER, f"{MARK}\n\nm3agent changed nothing.")]},
        ],
        headers={"Link": f'<{hub.url}{OWN}/discussions?page=2>; rel="next"'},
    )
    reporter = {"id": 3, "username": "reporter"}
    hub.pages[f"{OWN}/discussions?page=2"] = Page(
        [{"notes": [note(15, reporter, "Hm."), note(16, MEMBER, "And?")]}]
    )
    seen = look(hub)
    page = f"{hub.url}/group/sub/repo/-/merge_requests/3"
    assert seen.remarks == (
        Remark("note:10", "member", "Use 3.?", f"{page}#note_10", "a.py:4"),  # no lone surrogate
        Remark("note:16", "member", "And?", f"{page}#note_16"),
    )
    assert seen.unread == 2
    assert hub.paths.count(f"{PROJECT}/members/all/1") == 1


def test_too_much_about_a_pull_request_is_no_advice_for_an_issue(hub: TrackerServer) -> None:
    hub.pages[OWN] = hub.endless
    with pytest.raises(TooLarge, match="sends more than 4 MiB about pull request group/sub/repo!3"):
        look(hub)


def test_jobs_of_the_last_commit(hub: TrackerServer) -> None:
    hub.pages[f"{OWN}/pipelines"] = Page([{"id": 8, "sha": HEAD}, {"id": 7, "sha": "b" * 40}])
    jobs = [
        ("tests", "failed", False),
        ("lint", "success", False),
        ("slow", "running", False),
        ("new", "failed", True),
    ]
    hub.pages[f"{PROJECT}/pipelines/8/jobs"] = Page(
        [{"id": n, "name": name, "status": status, "allow_failure": allowed} for n, (name, status, allowed) in enumerate(jobs)]
    )  # fmt: skip
    hub.pages[f"{OWN}/approvals"] = Page({"approved_by": [{"user": MEMBER}]})
    seen = look(hub)
    assert [(check.name, check.status) for check in seen.checks] == [
        ("tests", "red"), ("lint", "green"), ("slow", "running"), ("new", "green"),
    ]  # fmt: skip
    assert seen.checks[0].log == f"{hub.url}{PROJECT}/jobs/0/trace"
    assert seen.approved


def test_an_answer(hub: TrackerServer) -> None:
    with client_of(hub) as client:
        client.answer(pull_of(hub), "Done.")
    assert json.loads(hub.visits[-1].body) == {"body": "Done."}

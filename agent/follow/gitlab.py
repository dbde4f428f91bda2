"""Read a merge request of GitLab, and answer on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from m3agent.agent.errors import UsageError
from m3agent.agent.follow.pull import Check, PullState, Remark, entries, is_said, part, words
from m3agent.agent.issue.tracker.http import Api
from m3agent.agent.issue.tracker.names import PullReference

DEVELOPER = 30
"""GitLab's number for the least access with which a person may push."""
RUNNING = frozenset({"created", "waiting_for_resource", "preparing", "pending", "running", "scheduled"})


class GitLabReader:
    """Reads merge requests of GitLab. Who is a member is asked once for each person."""

    def __init__(self) -> None:
        self._members: dict[int, bool] = {}

    def look(self, api: Api, pull: PullReference) -> PullState:
        """Return the merge request as it is now."""
        project, own = pull.project_api, pull.pull_api
        found = part(api.get(own).json)
        head = words(found, "sha")
        if not head:
            raise api.not_the_api()
        states: dict[str, Literal["open", "merged", "closed"]] = {
            "opened": "open",
            "locked": "open",
            "merged": "merged",
        }
        state = states.get(words(found, "state")) or "closed"
        same = found.get("source_project_id") == found.get("target_project_id")
        seen = PullState(
            state,
            head,
            words(found, "source_branch"),
            pull.project if same else None,
            words(found, "target_branch"),
            found.get("draft") is True,
        )
        if state != "open":
            return seen
        remarks, unread = list[Remark](), 0
        for discussion in entries(api, f"{own}/discussions"):
            for note in discussion.get("notes") or ():
                if not is_said(note) or note.get("system") or note.get("resolved") is True:
                    continue
                if self._is_member(api, project, part(note, "author")):
                    remarks.append(_remark(note, pull.url))
                else:
                    unread += 1
        approvals = part(api.get(f"{own}/approvals").json).get("approved_by")
        checking = words(found, "detailed_merge_status") in ("unchecked", "checking", "preparing")
        return replace(
            seen,
            conflict=None if checking else found.get("has_conflicts") is True,
            approved=bool(approvals),
            checks=tuple(_checks(api, project, own, head)),
            remarks=tuple(remarks),
            unread=unread,
        )

    def answer(self, api: Api, pull: PullReference, text: str) -> None:
        """Write a comment."""
        api.post(f"{pull.pull_api}/notes", {"body": text})

    def _is_member(self, api: Api, project: str, author: dict[str, Any]) -> bool:
        identity = author.get("id")
        if not isinstance(identity, int):
            return False
        if identity not in self._members:
            try:
                level = part(api.get(f"{project}/members/all/{identity}").json).get("access_level")
            except UsageError:  # not found: a stranger
                level = 0
            self._members[identity] = isinstance(level, int) and level >= DEVELOPER
        return self._members[identity]


def _remark(note: dict[str, Any], page: str) -> Remark:
    path, line = words(note, "position", "new_path"), part(note, "position").get("new_line")
    place = f"{path}:{line}" if path and isinstance(line, int) else path
    url = f"{page}#note_{note['id']}"
    return Remark(
        f"note:{note['id']}", words(note, "author", "username"), words(note, "body").strip(), url, place
    )


def _checks(api: Api, project: str, own: str, head: str) -> Iterator[Check]:
    """Yield the jobs of the last pipeline of a commit."""
    pipeline = next((one for one in entries(api, f"{own}/pipelines") if one.get("sha") == head), None)
    if pipeline is None or not isinstance(pipeline.get("id"), int):
        return
    for job in entries(api, f"{project}/pipelines/{pipeline['id']}/jobs"):
        state, name = words(job, "status"), words(job, "name")
        status: Literal["running", "red", "green"] = "running" if state in RUNNING else "green"
        if state == "failed" and job.get("allow_failure") is not True:
            status = "red"
        log = f"{project}/jobs/{job['id']}/trace" if isinstance(job.get("id"), int) else None
        yield Check(f"check:{head}:{name}", name, status, log, words(job, "failure_reason"))

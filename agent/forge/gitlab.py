"""The client of GitLab, where a pull request is called merge request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from m3agent.agent.forge.address import Project, PullReference
from m3agent.agent.forge.api import Api, part, words
from m3agent.agent.forge.client import (
    Check,
    CheckStatus,
    Client,
    Proposal,
    PullState,
    Remark,
    State,
    is_said,
    place_in,
)
from m3agent.util.errors import PermissionRefused, UsageError

DEVELOPER = 30
"""GitLab's number for the least access with which a person may push."""
RUNNING = frozenset({"created", "waiting_for_resource", "preparing", "pending", "running", "scheduled"})
_STATES: dict[str, State] = {"opened": "open", "locked": "open", "merged": "merged"}


class GitLab(Client):
    """A client of GitLab. Who is a member is asked once for each person."""

    body, full_name = "description", "path_with_namespace"
    commit_fields = ("diff_refs", "head_sha"), ("diff_refs", "start_sha"), ("target_branch",)

    def __init__(self, api: Api) -> None:
        super().__init__(api)
        self._members: dict[int, bool] = {}

    def open(self, project: Project, what: Proposal) -> str:
        """Open the merge request, or find the open one for this branch; return its address."""
        value = {
            "title": f"Draft: {what.title}" if what.draft else what.title,  # it knows a draft by its title
            "description": what.body,
            "source_branch": what.branch,
            "target_branch": what.base,
        }
        search = f"state=opened&source_branch={quote(what.branch, safe='')}"
        return self._posted(project, f"{project.project_api}/merge_requests", value, search, "web_url")

    def look(self, pull: PullReference) -> PullState:
        """Return the merge request as it is now."""
        project, own = pull.project_api, pull.pull_api
        found = part(self.api.get(own).json)
        head = words(found, "sha")
        if not head:
            raise self.api.not_the_api()
        same = found.get("source_project_id") == found.get("target_project_id")
        seen = PullState(
            _STATES.get(words(found, "state"), "closed"),
            head,
            words(found, "source_branch"),
            pull.project if same else None,
            words(found, "target_branch"),
            found.get("draft") is True,
        )
        if seen.state != "open":
            return seen
        remarks, unread = list[Remark](), 0
        for discussion in self.api.pages(f"{own}/discussions"):
            for note in discussion.get("notes") or ():
                if not is_said(note) or note.get("system") or note.get("resolved") is True:
                    continue
                if self._is_member(project, part(note, "author")):
                    remarks.append(_remark(note, pull.url))
                else:
                    unread += 1
        approvals = part(self.api.get(f"{own}/approvals").json).get("approved_by")
        checking = words(found, "detailed_merge_status") in ("unchecked", "checking", "preparing")
        return replace(
            seen,
            conflict=None if checking else found.get("has_conflicts") is True,
            approved=bool(approvals),
            checks=tuple(self._checks(project, own, head)),
            remarks=tuple(remarks),
            unread=unread,
        )

    def answer(self, pull: PullReference, text: str) -> None:
        """Write a comment on a merge request."""
        self.api.post(f"{pull.pull_api}/notes", {"body": text})

    def _comments(self, issue: dict[str, Any], page: str) -> Iterator[tuple[str, str]]:
        try:
            for note in self.api.pages(f"{page}/notes?sort=asc&order_by=created_at"):
                if not note.get("system"):
                    yield words(note, "author", "username"), words(note, "body")
        except PermissionRefused:
            # GitLab shows a public issue to everybody, but its comments only to requests with a token.
            if self.api.token is not None:
                raise
            project = self.api.project
            self.api.say(
                f"{project.host} shows comments only with a token, so they are left out: set {project.token_variable}"
            )

    def _is_member(self, project: str, author: dict[str, Any]) -> bool:
        identity = author.get("id")
        if not isinstance(identity, int):
            return False
        if identity not in self._members:
            try:
                level = part(self.api.get(f"{project}/members/all/{identity}").json).get("access_level")
            except UsageError:  # not found: a stranger
                level = 0
            self._members[identity] = isinstance(level, int) and level >= DEVELOPER
        return self._members[identity]

    def _checks(self, project: str, own: str, head: str) -> Iterator[Check]:
        """Yield the jobs of the last pipeline of a commit."""
        pipelines = self.api.pages(f"{own}/pipelines")
        pipeline = next((one for one in pipelines if one.get("sha") == head), None)
        if pipeline is None or not isinstance(pipeline.get("id"), int):
            return
        for job in self.api.pages(f"{project}/pipelines/{pipeline['id']}/jobs"):
            state, name = words(job, "status"), words(job, "name")
            status: CheckStatus = "running" if state in RUNNING else "green"
            if state == "failed" and job.get("allow_failure") is not True:
                status = "red"
            log = f"{project}/jobs/{job['id']}/trace" if isinstance(job.get("id"), int) else None
            yield Check(f"check:{head}:{name}", name, status, log, words(job, "failure_reason"))


def _remark(note: dict[str, Any], page: str) -> Remark:
    return Remark(
        f"note:{note['id']}",
        words(note, "author", "username"),
        words(note, "body").strip(),
        f"{page}#note_{note['id']}",
        place_in(words(note, "position", "new_path"), part(note, "position").get("new_line")),
    )

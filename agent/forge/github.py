"""The client of GitHub."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from m3agent.agent.forge.address import Project, PullReference
from m3agent.agent.forge.api import part, words
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
from m3agent.util.errors import UsageError

MEMBERS = frozenset({"OWNER", "MEMBER", "COLLABORATOR"})
"""The values of `author_association` of people who belong to a project. GitHub sets them."""
WRITERS = frozenset({"admin", "write"})
"""GitHub's names of the permissions with which a person may write to a project; `maintain` counts as `write`."""
RED = frozenset({"failure", "timed_out", "startup_failure"})
"""The conclusions of a check that failed. A check that a person cancelled did not."""
_LOGS = "github-actions"
"""The app whose checks are jobs with logs."""
_STATUSES: dict[str, CheckStatus] = {"pending": "running", "success": "green"}


class GitHub(Client):
    """A client of GitHub."""

    body, full_name = "body", "full_name"
    commit_fields = ("head", "sha"), ("base", "sha"), ("base", "ref")

    def fork(self, project: Project) -> Project:
        """Return the fork of the token's owner, which may not be ready yet."""
        return self._named(project, self.api.post(f"{project.project_api}/forks", {}).json)

    def open(self, project: Project, what: Proposal) -> str:
        """Open the pull request, or find the open one for this branch; return its address."""
        owner = (what.fork or project).project.partition("/")[0]
        value = {
            "title": what.title,
            "body": what.body,
            "head": what.branch if what.fork is None else f"{owner}:{what.branch}",
            "base": what.base,
            "draft": what.draft,
        }
        head = quote(f"{owner}:{what.branch}", safe="")
        return self._posted(
            project, f"{project.project_api}/pulls", value, f"state=open&head={head}", "html_url"
        )

    def may_write(self, project: Project, person: str) -> bool:
        """Return whether a person may write to a project."""
        asked = f"{project.project_api}/collaborators/{quote(person, safe='')}/permission"
        try:
            return words(self.api.get(asked).json, "permission") in WRITERS
        except UsageError:  # not found: a stranger
            return False

    def look(self, pull: PullReference) -> PullState:
        """Return the pull request as it is now."""
        project, own = pull.project_api, pull.pull_api
        found = part(self.api.get(own).json)
        head = words(found, "head", "sha")
        if not head:
            raise self.api.not_the_api()
        state: State = "open"
        if found.get("state") != "open":
            state = "merged" if found.get("merged") is True else "closed"
        seen = PullState(
            state,
            head,
            words(found, "head", "ref"),
            words(found, "head", "repo", "full_name") or None,
            words(found, "base", "ref"),
            found.get("draft") is True,
        )
        if state != "open":
            return seen
        reviews = list(self.api.pages(f"{own}/reviews"))
        said = [
            # the text of an approval asks for nothing
            *(("review", one) for one in reviews if one.get("state") in ("COMMENTED", "CHANGES_REQUESTED")),
            *(("line", one) for one in self.api.pages(f"{own}/comments")),
            *(("comment", one) for one in self.api.pages(f"{project}/issues/{pull.number}/comments")),
        ]
        written = [(kind, one) for kind, one in said if is_said(one)]
        own_members = [(kind, one) for kind, one in written if _is_member(one)]
        mergeable = found.get("mergeable")
        return replace(
            seen,
            conflict=None if mergeable is None else mergeable is False,
            approved=_approved(reviews, head),
            checks=tuple(self._checks(project, head)),
            remarks=tuple(_remark(kind, one) for kind, one in sorted(own_members, key=_time)),
            unread=len(written) - len(own_members),
        )

    def answer(self, pull: PullReference, text: str) -> None:
        """Write a comment on a pull request."""
        self.api.post(f"{pull.project_api}/issues/{pull.number}/comments", {"body": text})

    def _comments(self, issue: dict[str, Any], page: str) -> Iterator[tuple[str, str]]:
        if issue.get("comments") != 0:
            for comment in self.api.pages(f"{page}/comments"):
                yield words(comment, "user", "login"), words(comment, "body")

    def _checks(self, project: str, head: str) -> Iterator[Check]:
        for run in self.api.pages(f"{project}/commits/{head}/check-runs", "check_runs"):
            status: CheckStatus = "running"
            if run.get("status") == "completed":
                status = "red" if run.get("conclusion") in RED else "green"
            job, name = run.get("id"), words(run, "name")
            has_log = words(run, "app", "slug") == _LOGS and isinstance(job, int)
            log = f"{project}/actions/jobs/{job}/logs" if has_log else None
            said = [words(run, "output", field).strip() for field in ("title", "summary", "text")]
            yield Check(f"check:{head}:{name}", name, status, log, "\n".join(filter(None, said)))
        for one in self.api.pages(f"{project}/commits/{head}/status", "statuses"):
            name, status = words(one, "context"), _STATUSES.get(words(one, "state"), "red")
            yield Check(f"check:{head}:{name}", name, status, None, words(one, "description"))


def _is_member(entry: dict[str, Any]) -> bool:
    return entry.get("author_association") in MEMBERS and words(entry, "user", "type") == "User"


def _time(said: tuple[str, dict[str, Any]]) -> tuple[str, str, int]:
    """Return when something was said, and what tells it from others of the same second."""
    kind, entry = said
    return words(entry, "submitted_at") or words(entry, "created_at"), kind, entry["id"]


def _remark(kind: str, entry: dict[str, Any]) -> Remark:
    text = words(entry, "body").strip()
    if entry.get("state") == "CHANGES_REQUESTED":
        text = f"(requests changes) {text}"
    return Remark(
        f"{kind}:{entry['id']}",
        words(entry, "user", "login"),
        text,
        words(entry, "html_url"),
        place_in(words(entry, "path"), entry.get("line") or entry.get("original_line")),
        words(entry, "diff_hunk"),
    )


def _approved(reviews: list[dict[str, Any]], head: str) -> bool:
    """Return whether a member approves this commit and none asks for changes. The last review of each member counts.

    An approval of an earlier commit is stale. A request for changes holds until its author takes it back.
    """
    last: dict[str, dict[str, Any]] = {}
    for review in reviews:
        if _is_member(review) and review.get("state") in ("APPROVED", "CHANGES_REQUESTED", "DISMISSED"):
            last[words(review, "user", "login")] = review
    states = [review.get("state") for review in last.values()]
    fresh = any(one.get("state") == "APPROVED" and one.get("commit_id") == head for one in last.values())
    return fresh and "CHANGES_REQUESTED" not in states

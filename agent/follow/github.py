"""Read a pull request of GitHub, and answer on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from m3agent.agent.follow.pull import Check, PullState, Remark, entries, is_said, part, words
from m3agent.agent.issue.tracker.http import Api
from m3agent.agent.issue.tracker.names import PullReference

MEMBERS = frozenset({"OWNER", "MEMBER", "COLLABORATOR"})
"""The values of `author_association` of people who belong to a project. GitHub sets them."""
RED = frozenset({"failure", "timed_out", "startup_failure"})
"""The conclusions of a check that failed. A check that a person cancelled did not."""
_LOGS = "github-actions"
"""The app whose checks are jobs with logs."""


class GitHubReader:
    """Reads pull requests of GitHub."""

    def look(self, api: Api, pull: PullReference) -> PullState:
        """Return the pull request as it is now."""
        project, own = pull.project_api, pull.pull_api
        found = part(api.get(own).json)
        head = words(found, "head", "sha")
        if not head:
            raise api.not_the_api()
        state: Literal["open", "merged", "closed"] = "open"
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
        reviews = list(entries(api, f"{own}/reviews"))
        said = [
            # the text of an approval asks for nothing
            *(("review", one) for one in reviews if one.get("state") in ("COMMENTED", "CHANGES_REQUESTED")),
            *(("line", one) for one in entries(api, f"{own}/comments")),
            *(("comment", one) for one in entries(api, f"{project}/issues/{pull.number}/comments")),
        ]
        written = [(kind, one) for kind, one in said if is_said(one)]
        remarks = [
            (one.get("submitted_at") or one.get("created_at") or "", kind, one) for kind, one in written
        ]
        mine = sorted((when, kind, one.get("id")) for when, kind, one in remarks if _is_member(one))
        by_id = {(kind, one.get("id")): _remark(kind, one) for kind, one in written}
        mergeable = found.get("mergeable")
        return replace(
            seen,
            conflict=None if mergeable is None else mergeable is False,
            approved=_approved(reviews, head),
            checks=tuple(_checks(api, project, head)),
            remarks=tuple(by_id[kind, identity] for _, kind, identity in mine),
            unread=sum(not _is_member(one) for _, one in written),
        )

    def answer(self, api: Api, pull: PullReference, text: str) -> None:
        """Write a comment."""
        api.post(f"{pull.project_api}/issues/{pull.number}/comments", {"body": text})


def _is_member(entry: dict[str, Any]) -> bool:
    return entry.get("author_association") in MEMBERS and words(entry, "user", "type") == "User"


def _remark(kind: str, entry: dict[str, Any]) -> Remark:
    path, line = words(entry, "path"), entry.get("line") or entry.get("original_line")
    place = f"{path}:{line}" if path and isinstance(line, int) else path
    text = words(entry, "body").strip()
    if entry.get("state") == "CHANGES_REQUESTED":
        text = f"(requests changes) {text}"
    return Remark(
        f"{kind}:{entry['id']}",
        words(entry, "user", "login"),
        text,
        words(entry, "html_url"),
        place,
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


def _checks(api: Api, project: str, head: str) -> Iterator[Check]:
    for run in entries(api, f"{project}/commits/{head}/check-runs", "check_runs"):
        status: Literal["running", "red", "green"] = "running"
        if run.get("status") == "completed":
            status = "red" if run.get("conclusion") in RED else "green"
        job = run.get("id")
        log = None
        if words(run, "app", "slug") == _LOGS and isinstance(job, int):
            log = f"{project}/actions/jobs/{job}/logs"
        said = [words(run, "output", name).strip() for name in ("title", "summary", "text")]
        yield _check(head, words(run, "name"), status, log, "\n".join(filter(None, said)))
    for one in entries(api, f"{project}/commits/{head}/status", "statuses"):
        states: dict[str, Literal["running", "red", "green"]] = {"pending": "running", "success": "green"}
        state = states.get(words(one, "state"), "red")
        yield _check(head, words(one, "context"), state, None, words(one, "description"))


def _check(
    head: str, name: str, status: Literal["running", "red", "green"], log: str | None, said: str
) -> Check:
    return Check(f"check:{head}:{name}", name, status, log, said)

"""The clients of GitHub and of GitLab, where a pull request is called merge request, and how to connect to them."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from m3agent.agent.forge.address import Project, PullReference, ServerKind
from m3agent.agent.forge.api import API_SECONDS, Api, Token, words
from m3agent.agent.forge.client import (
    Check,
    CheckStatus,
    Client,
    Proposal,
    PullState,
    Remark,
    State,
    is_written,
    place_in,
)
from m3agent.util.daemon_thread import in_background
from m3agent.util.errors import PermissionRefused, UsageError
from m3agent.util.json_value import mapping
from m3agent.util.sanitize import quoted

MEMBERS = frozenset({"OWNER", "MEMBER", "COLLABORATOR"})
"""The values of `author_association` of people who belong to a project. GitHub sets them."""
WRITERS = frozenset({"admin", "write"})
"""GitHub's names of the permissions with which a person may write to a project; `maintain` counts as `write`."""
RED = frozenset({"failure", "timed_out", "startup_failure"})
"""The conclusions of a check that failed. A check that a person cancelled did not."""
_LOGS = "github-actions"
"""The app whose checks are jobs with logs."""
_STATUSES: dict[str, CheckStatus] = {"pending": "running", "success": "green"}
DEVELOPER = 30
"""GitLab's number for the least access with which a person may push."""
RUNNING = frozenset({"created", "waiting_for_resource", "preparing", "pending", "running", "scheduled"})
_STATES: dict[str, State] = {"opened": "open", "locked": "open", "merged": "merged"}

_OTHERS = re.compile(r"(?i)(?:^|\s)-?(repo|org|user):")
"""Terms of a query on GitHub that reach issues of other projects."""
_STATE = re.compile(r"(?i)(?:^|\s)-?(?:is|state):(?:open|closed)\b")

T = TypeVar("T")


class GitHub(Client):
    """A client of GitHub."""

    body, full_name, page = "body", "full_name", "html_url"
    commit_fields = ("head", "sha"), ("base", "sha"), ("base", "ref")
    pull_fields = ("head", "sha"), ("head", "ref"), ("base", "ref")

    def fork(self, project: Project) -> Project:
        """Return the fork of the token's owner, which may not be ready yet."""
        return self._named(project, self.api.post(f"{project.project_api}/forks", {}).json)

    def may_write(self, project: Project, person: str) -> bool:
        """Return whether a person may write to a project."""
        asked = f"{project.project_api}/collaborators/{quote(person, safe='')}/permission"
        try:
            return words(self.api.get(asked).json, "permission") in WRITERS
        except UsageError:  # not found: a stranger
            return False

    def _numbers(self, project: Project, query: str) -> Iterator[object]:
        if _OTHERS.search(query):
            raise UsageError(
                f"a query is about the issues of {project.project}: leave out repo:, org: and user:"
            )
        state = "" if _STATE.search(query) else " is:open"
        asked = quote(f"repo:{project.project} is:issue{state} {query}", safe="")
        for entry in self.api.pages(f"{project.api}/search/issues?q={asked}&sort=created&order=asc", "items"):
            yield entry.get("number")

    def _proposed(self, project: Project, what: Proposal) -> tuple[dict[str, Any], str]:
        owner = (what.fork or project).project.partition("/")[0]
        head = f"{owner}:{what.branch}"
        value = {
            "title": what.title,
            "body": what.body,
            "head": what.branch if what.fork is None else head,
            "base": what.base,
            "draft": what.draft,
        }
        return value, f"state=open&head={quote(head, safe='')}"

    def _state(self, pull: PullReference, now: dict[str, Any]) -> tuple[State, str | None]:
        ended: State = "merged" if now.get("merged") is True else "closed"
        source = words(now, "head", "repo", "full_name") or None
        return "open" if now.get("state") == "open" else ended, source

    def _news(self, pull: PullReference, now: dict[str, Any], seen: PullState) -> PullState:
        project, own = pull.project_api, pull.pull_api
        reviews = list(self.api.pages(f"{own}/reviews"))
        # the text of an approval asks for nothing
        asking = (review for review in reviews if review.get("state") in ("COMMENTED", "CHANGES_REQUESTED"))
        lists = {
            "review": asking,
            "line": self.api.pages(f"{own}/comments"),
            "comment": self.api.pages(f"{project}/issues/{pull.number}/comments"),
        }
        written = [(kind, entry) for kind, entries in lists.items() for entry in entries if is_written(entry)]
        of_members = sorted((each for each in written if _is_member(each[1])), key=_time)
        mergeable = now.get("mergeable")
        return replace(
            seen,
            conflict=None if mergeable is None else mergeable is False,
            approved=_approved(reviews, seen.head),
            checks=tuple(self._checks(project, seen.head)),
            remarks=tuple(_remark(kind, entry) for kind, entry in of_members),
            unread=len(written) - len(of_members),
        )

    def _comments(self, issue: dict[str, Any], page: str) -> Iterator[tuple[str, str]]:
        if issue.get("comments") != 0:
            for comment in self.api.pages(f"{page}/comments"):
                yield words(comment, "user", "login"), words(comment, "body")

    def _checks(self, project: str, head: str) -> Iterator[Check]:
        for run in self.api.pages(f"{project}/commits/{head}/check-runs", "check_runs"):
            ended: CheckStatus = "red" if run.get("conclusion") in RED else "green"
            status = ended if run.get("status") == "completed" else "running"
            job, name = run.get("id"), words(run, "name")
            has_log = words(run, "app", "slug") == _LOGS and isinstance(job, int)
            log = f"{project}/actions/jobs/{job}/logs" if has_log else None
            texts = [words(run, "output", field).strip() for field in ("title", "summary", "text")]
            yield Check(f"check:{head}:{name}", name, status, log, "\n".join(filter(None, texts)))
        for entry in self.api.pages(f"{project}/commits/{head}/status", "statuses"):
            name, status = words(entry, "context"), _STATUSES.get(words(entry, "state"), "red")
            yield Check(f"check:{head}:{name}", name, status, None, words(entry, "description"))


def _is_member(entry: dict[str, Any]) -> bool:
    return entry.get("author_association") in MEMBERS and words(entry, "user", "type") == "User"


def _time(written: tuple[str, dict[str, Any]]) -> tuple[str, str, int]:
    """Return when something was written, and what tells it from others of the same second."""
    kind, entry = written
    return words(entry, "submitted_at") or words(entry, "created_at"), kind, entry["id"]


def _remark(kind: str, entry: dict[str, Any]) -> Remark:
    asks = "(requests changes) " if entry.get("state") == "CHANGES_REQUESTED" else ""
    return Remark(
        f"{kind}:{entry['id']}",
        words(entry, "user", "login"),
        asks + words(entry, "body").strip(),
        words(entry, "html_url"),
        place_in(words(entry, "path"), entry.get("line") or entry.get("original_line")),
        words(entry, "diff_hunk"),
    )


def _approved(reviews: list[dict[str, Any]], head: str) -> bool:
    """Return whether a member approves this commit and none asks for changes. The last review of each member counts.

    An approval of an earlier commit is stale. A request for changes holds until its author takes it back.
    """
    last = {
        words(review, "user", "login"): (review.get("state"), review.get("commit_id") == head)
        for review in reviews
        if _is_member(review) and review.get("state") in ("APPROVED", "CHANGES_REQUESTED", "DISMISSED")
    }
    asks_for_changes = any(state == "CHANGES_REQUESTED" for state, _ in last.values())
    return ("APPROVED", True) in last.values() and not asks_for_changes


class GitLab(Client):
    """A client of GitLab. Who is a member is asked once for each person."""

    body, full_name, page = "description", "path_with_namespace", "web_url"
    commit_fields = ("diff_refs", "head_sha"), ("diff_refs", "start_sha"), ("target_branch",)
    pull_fields = ("sha",), ("source_branch",), ("target_branch",)

    def __init__(self, api: Api) -> None:
        super().__init__(api)
        self._members: dict[int, bool] = {}

    def _numbers(self, project: Project, query: str) -> Iterator[object]:
        try:
            terms = shlex.split(query)
        except ValueError:
            raise UsageError(f"{quoted(query)} has a quotation mark without its other one") from None
        labels = [term.removeprefix("label:") for term in terms if term.startswith("label:")]
        search = [term for term in terms if not term.startswith("label:")]
        if other := next((term for term in search if ":" in term), None):
            raise UsageError(f"{quoted(other)}: a query of GitLab has label:NAME and words")
        values = {"state": "opened", "order_by": "created_at", "sort": "asc", "labels": ",".join(labels)}
        asked = urlencode(values | ({"search": " ".join(search)} if search else {}))
        for entry in self.api.pages(f"{project.project_api}/issues?{asked}"):
            yield entry.get("iid")

    def _proposed(self, project: Project, what: Proposal) -> tuple[dict[str, Any], str]:
        value = {
            "title": f"Draft: {what.title}" if what.draft else what.title,  # it knows a draft by its title
            "description": what.body,
            "source_branch": what.branch,
            "target_branch": what.base,
        }
        return value, f"state=opened&source_branch={quote(what.branch, safe='')}"

    def _state(self, pull: PullReference, now: dict[str, Any]) -> tuple[State, str | None]:
        same = now.get("source_project_id") == now.get("target_project_id")
        return _STATES.get(words(now, "state"), "closed"), pull.project if same else None

    def _news(self, pull: PullReference, now: dict[str, Any], seen: PullState) -> PullState:
        project, own = pull.project_api, pull.pull_api
        remarks, unread = list[Remark](), 0
        for discussion in self.api.pages(f"{own}/discussions"):
            for note in discussion.get("notes") or ():
                if not is_written(note) or note.get("system") or note.get("resolved") is True:
                    continue
                if self._is_member(project, mapping(note, "author")):
                    remarks.append(_note(note, pull.url))
                else:
                    unread += 1
        approvals = mapping(self.api.get(f"{own}/approvals").json).get("approved_by")
        checking = words(now, "detailed_merge_status") in ("unchecked", "checking", "preparing")
        return replace(
            seen,
            conflict=None if checking else now.get("has_conflicts") is True,
            approved=bool(approvals),
            checks=tuple(self._checks(project, own, seen.head)),
            remarks=tuple(remarks),
            unread=unread,
        )

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
                level = mapping(self.api.get(f"{project}/members/all/{identity}").json).get("access_level")
            except UsageError:  # not found: a stranger
                level = 0
            self._members[identity] = isinstance(level, int) and level >= DEVELOPER
        return self._members[identity]

    def _checks(self, project: str, own: str, head: str) -> Iterator[Check]:
        """Yield the jobs of the last pipeline of a commit."""
        pipelines = self.api.pages(f"{own}/pipelines")
        pipeline = next((entry.get("id") for entry in pipelines if entry.get("sha") == head), None)
        if not isinstance(pipeline, int):
            return
        for job in self.api.pages(f"{project}/pipelines/{pipeline}/jobs"):
            state, name = words(job, "status"), words(job, "name")
            status: CheckStatus = "running" if state in RUNNING else "green"
            if state == "failed" and job.get("allow_failure") is not True:
                status = "red"
            log = f"{project}/jobs/{job['id']}/trace" if isinstance(job.get("id"), int) else None
            yield Check(f"check:{head}:{name}", name, status, log, words(job, "failure_reason"))


def _note(note: dict[str, Any], page: str) -> Remark:
    return Remark(
        f"note:{note['id']}",
        words(note, "author", "username"),
        words(note, "body").strip(),
        f"{page}#note_{note['id']}",
        place_in(words(note, "position", "new_path"), mapping(note, "position").get("new_line")),
    )


CLIENTS: Mapping[ServerKind, type[Client]] = {"github": GitHub, "gitlab": GitLab}


@contextlib.contextmanager
def connected(
    project: Project, token: Token | None, say: Callable[[str], None], timeout: float = API_SECONDS
) -> Iterator[Client]:
    """Yield the client for a project, an issue or a pull request. The arguments are those of `Api`."""
    with Api(project, token, say, timeout) as api:
        yield CLIENTS[project.kind](api)


async def ask(
    project: Project, token: Token | None, say: Callable[[str], None], question: Callable[[Client], T]
) -> T:
    """Return what a question to the server of a project gives. The question may block."""

    def asking() -> T:
        with connected(project, token, say) as client:
            return question(client)

    return await in_background(asking)

"""Offer a patch as a pull request on GitHub.

The steps are: commit the patch to a new branch, push the branch, open the pull request.

The preconditions are checked before a fix costs anything, and again before the first step.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote

from m3agent.agent.delivery import pr_text
from m3agent.agent.delivery.apply import check_branch, commit_to_branch, refuse_dirty, refuse_taken
from m3agent.agent.delivery.push import has_commit, heads_of_origin, push
from m3agent.agent.errors import EnvironmentFault, M3AgentError, PermissionRefused, UsageError
from m3agent.agent.issue.load import Issue
from m3agent.agent.issue.tracker.fetch import find_token
from m3agent.agent.issue.tracker.http import Api, Token, new_client
from m3agent.agent.issue.tracker.names import TrackerProject, place_of, project_of, web_of
from m3agent.agent.repo.repository import Repository, origin_url
from m3agent.sandbox.store.workspace import Patch, Workspace
from m3agent.serving.client.daemon_thread import in_background

API_SECONDS = 20.0
"""The longest silence of the API, in seconds. A whole response may take three times as long."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Destination:
    """Where a pull request comes from and goes to.

    Attributes:
        project: The project on GitHub.
        token: The key for its API.
        base: The branch of origin that the pull request asks to merge into.
        branch: The new branch with the patch.
    """

    project: TrackerProject
    token: Token
    base: str
    branch: str

    @property
    def page(self) -> str:
        """The web page on which the user can open the pull request by hand."""
        return f"{self.project.web}/{self.project.project}/compare/{quote(self.base)}...{quote(self.branch)}?expand=1"


async def destination(
    repository: Repository, issue: Issue, branch: str | None, github_api: str, say: Say
) -> Destination:
    """Find out where a pull request would go, and whether it can be opened. Nothing is changed anywhere.

    Args:
        repository: The user's repository.
        issue: The issue that the patch fixes.
        branch: The name of the new branch; None to derive one from the issue.
        github_api: The address of GitHub's API.
        say: Receives progress messages for people.

    Raises:
        UsageError, PermissionRefused, EnvironmentFault: No pull request can be opened; with the reason.
    """
    project = _project(repository, github_api)
    say(f"asking {project.host} whether a pull request can be opened on {project.project}")
    token = await in_background(lambda: find_token(project, os.environ))
    if token is None:
        raise PermissionRefused(
            f"--pr needs a token for {project.host}: set GITHUB_TOKEN, log in with 'gh auth login', or use --branch NAME"
        )
    heads = await heads_of_origin(repository)
    base = next((name for name in (repository.branch, heads.default) if name in heads.ids), None)
    if base is None:
        raise UsageError("--pr: origin has no branch for a pull request; push one first")
    if not await asyncio.to_thread(has_commit, repository, heads, base, repository.head):
        raise PermissionRefused(
            f"--pr refused: origin may not have your current commit ({repository.head[:12]}), so the pull "
            "request would hold commits that you have not pushed; push them first, or fetch if origin has them"
        )
    if branch is None:
        mine = repository.git("for-each-ref", "--format=%(refname)", "refs/heads").splitlines()
        branch = pr_text.branch_name(
            issue,
            _with_folders({*heads.ids, *(os.fsdecode(ref).removeprefix("refs/heads/") for ref in mine)}),
        )
    check_branch(repository, branch)
    refuse_taken(branch, heads.ids, " on origin")
    project = await in_background(lambda: _open_project(project, token, say))
    await push(repository, repository.head, branch, dry_run=True)
    return Destination(project, token, base, branch)


async def offer(
    repository: Repository,
    workspace: Workspace,
    patch: Patch,
    work: pr_text.Work,
    *,
    branch: str | None,
    github_api: str,
    say: Say,
) -> str:
    """Commit, push, open the pull request, and return its address.

    The pull request is a draft unless the patch is verified.

    Args:
        repository: The user's repository.
        workspace: The workspace that holds the trees of the patch.
        patch: The patch.
        work: The content of the pull request.
        branch: The name of the new branch; None to derive one from the issue.
        github_api: The address of GitHub's API.
        say: Receives progress messages for people.

    Raises:
        PermissionRefused, UsageError, EnvironmentFault: A step failed. The text says which steps are done and
            how to continue by hand.
    """
    if patch.runs_later:
        raise PermissionRefused(
            f"--pr refused: {', '.join(patch.runs_later[:3])} may run automatically after the push, on your "
            "machines with your secrets; read the patch, then hand it over with --branch NAME or 'git apply'"
        )
    refuse_dirty(repository, patch, "--pr")
    work = dataclasses.replace(work, uncommitted=len(await asyncio.to_thread(repository.dirty_paths)))
    to = await destination(repository, work.issue, branch, github_api, say)
    message = pr_text.commit_message(work.issue, work.evidence.verdict)
    commit = await asyncio.to_thread(
        commit_to_branch, repository, workspace, patch, to.branch, message, "--pr"
    )
    say(f"pushing branch {to.branch} to origin")
    try:
        await push(repository, commit, to.branch)
    except M3AgentError as error:
        raise _halfway(
            error,
            f"the patch is committed to branch {to.branch} here, but its push failed",
            f"push it with 'git push origin {to.branch}' and open the pull request at {to.page}",
        ) from None
    say(f"opening a pull request on {to.project.project}")
    try:
        return await in_background(lambda: _open(to, work, say))
    except M3AgentError as error:
        raise _halfway(
            error,
            f"branch {to.branch} is pushed, but the pull request could not be opened",
            f"open it at {to.page}",
        ) from None


def _halfway(error: M3AgentError, done: str, go_on: str) -> M3AgentError:
    """Return the error for a failed step after earlier steps succeeded."""
    kind = EnvironmentFault if isinstance(error, EnvironmentFault) else PermissionRefused
    return kind(f"{done} ({str(error).rstrip('.')}); {go_on}")


def _project(repository: Repository, github_api: str) -> TrackerProject:
    """Return the GitHub project that origin fetches from and pushes to."""
    origin = origin_url(repository)
    if origin is None:
        raise UsageError("--pr needs a remote called origin, and this repository has none: use --branch NAME")
    project = project_of(origin, github_api=github_api, env=os.environ)
    if project is None or project.kind != "github":
        raise UsageError(
            f"--pr opens pull requests on {web_of(github_api).partition('://')[2]}, and origin is {place_of(origin)}: "
            "use --branch NAME, or give --github-api for GitHub Enterprise"
        )
    pushed_to = os.fsdecode(repository.git("remote", "get-url", "--push", "--all", "origin")).splitlines()
    if any(project_of(url, github_api=github_api, env=os.environ) != project for url in pushed_to):
        raise UsageError(
            f"--pr: origin is fetched from {project.project} and pushed to another place; use --branch NAME"
        )
    return project


def _with_folders(names: set[str]) -> set[str]:
    """Return `names` and all their parent folders. No branch can have the name of a folder of branches."""
    parts = (name.split("/") for name in names)
    return {"/".join(each[:count]) for each in parts for count in range(1, len(each) + 1)}


def _open_project(project: TrackerProject, token: Token, say: Say) -> TrackerProject:
    """Return the project under its current name. Blocking.

    Raises:
        UsageError: The token cannot read the project, or the project is archived.
    """
    with new_client(project.api, API_SECONDS) as client:
        api = Api(project, token, client, say=say, timeout=API_SECONDS)
        found = api.get(f"{project.api}/repos/{project.project}").json
        name = found.get("full_name") if isinstance(found, dict) else None
        present = project_of(f"{project.web}/{name}", github_api=project.api, env=os.environ)
        if present is None:
            raise api.not_the_api()
    if found.get("archived") is True:
        raise UsageError(f"--pr: {present.project} is archived and takes no pull requests; use --branch NAME")
    return present


def _open(to: Destination, work: pr_text.Work, say: Say) -> str:
    """Open the pull request, or find the open one for this branch; return its address. Blocking."""
    pulls = f"{to.project.api}/repos/{to.project.project}/pulls"
    value = {
        "title": pr_text.title(work.issue.title),
        "body": pr_text.body(work, to.project),
        "head": to.branch,
        "base": to.base,
        "draft": work.evidence.verdict != "verified",
    }
    with new_client(to.project.api, API_SECONDS) as client:
        api = Api(to.project, to.token, client, say=say, timeout=API_SECONDS)
        try:
            return _address(api, to, api.post(pulls, value).json)
        except M3AgentError:
            # The request may have succeeded although the response was lost, or other automation was faster.
            owner = to.project.project.partition("/")[0]
            with contextlib.suppress(M3AgentError):
                found = api.get(f"{pulls}?state=open&head={quote(f'{owner}:{to.branch}', safe='')}").json
                if isinstance(found, list) and found:
                    return _address(api, to, found[0])
            raise


def _address(api: Api, to: Destination, value: object) -> str:
    url = value.get("html_url") if isinstance(value, dict) else None
    if not isinstance(url, str) or not url.isprintable() or not url.startswith(f"{to.project.web}/"):
        raise api.not_the_api()
    return url

"""Offer a patch as a pull request on GitHub or as a merge request on GitLab, and push further commits to it.

The steps are: commit the patch to a new branch, push the branch, open the pull request. If the user may not push to origin on
GitHub, the branch goes to the user's fork.

The preconditions are checked before a fix costs anything, and again before the first step.

The command `gh` only gives its token. `gh pr create` would run git in the checkout by its own rules, and it fails outside a
checkout.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
from collections.abc import Callable
from dataclasses import dataclass

from m3agent.agent.delivery import pr_text
from m3agent.agent.delivery.apply import (
    PullUpdate,
    check_branch,
    commit_to_branch,
    commit_to_pull,
    refuse_dirty,
    refuse_taken,
)
from m3agent.agent.delivery.push import ORIGIN, has_commit, heads_of, push
from m3agent.agent.forge.address import Project, place_of, project_of, web_of
from m3agent.agent.forge.api import Token, find_token
from m3agent.agent.forge.client import Proposal
from m3agent.agent.forge.connection import ask
from m3agent.agent.issue.load import Issue
from m3agent.agent.repo.repository import Repository, origin_url
from m3agent.sandbox.store.workspace import Patch, Workspace
from m3agent.util.daemon_thread import in_background
from m3agent.util.errors import EnvironmentFault, M3AgentError, PermissionRefused, UsageError

FORK_TRIES, FORK_SECONDS = 30, 2.0
"""How often a new fork is looked for, and the seconds between. GitHub makes a fork in the background, mostly in seconds."""

_PROJECT = re.compile(r"(.*[/:])[^/:]+/[^/:]+?((?:\.git)?/?)")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Destination:
    """Where a pull request comes from and goes to."""

    project: Project
    """The project on GitHub or GitLab."""
    token: Token
    """The key for its API."""
    base: str
    """The branch of origin that the pull request asks to merge into."""
    branch: str
    """The new branch with the patch."""
    from_fork: bool = False
    """Whether the branch goes to a fork, because the user may not push to the project."""

    @property
    def page(self) -> str:
        """The web page on which the user can open the pull request by hand."""
        return self.project.new_pull(self.base, self.branch)


@dataclass(frozen=True)
class Offered:
    """A pull request that is open."""

    address: str
    commit: str
    """The id of its last commit."""


async def destination(
    repository: Repository, issue: Issue, branch: str | None, github_api: str, say: Say
) -> Destination:
    """Find out where a pull request would go, and whether it can be opened. Nothing is changed anywhere.

    Args:
        branch: The name of the new branch; None to derive one from the issue.

    Raises:
        UsageError, PermissionRefused, EnvironmentFault: No pull request can be opened; with the reason.
    """
    project = _project(repository, github_api)
    say(f"asking {project.host} whether a pull request can be opened on {project.project}")
    token = await in_background(lambda: find_token(project, os.environ))
    if token is None:
        command = " ".join(project.server.login)
        login = f", log in with '{command} login'," if command else ""
        raise PermissionRefused(
            f"--pr needs a token for {project.host}: set {project.token_variable}{login} or use --branch NAME"
        )
    heads = await heads_of(repository)
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
    present = await ask(project, token, say, lambda client: client.present(project))
    if present.may_push:
        await push(repository, repository.head, branch, dry_run=True)
    else:
        say(f"you may not push to {present.project.project}, so the branch goes to your fork")
    return Destination(present.project, token, base, branch, from_fork=not present.may_push)


async def offer(
    repository: Repository,
    workspace: Workspace,
    patch: Patch,
    work: pr_text.Work,
    *,
    branch: str | None,
    github_api: str,
    say: Say,
) -> Offered:
    """Commit, push, and open the pull request.

    The pull request is a draft unless the patch is verified.

    Args:
        branch: The name of the new branch; None to derive one from the issue.

    Raises:
        PermissionRefused, UsageError, EnvironmentFault: A step failed. The text says which steps are done and
            how to continue by hand.
    """
    _refuse_running(patch, "--pr")
    refuse_dirty(repository, patch, "--pr")
    work = dataclasses.replace(work, uncommitted=len(await asyncio.to_thread(repository.dirty_paths)))
    to = await destination(repository, work.issue, branch, github_api, say)
    message = pr_text.commit_message(work.issue, work.evidence.verdict)
    commit = await asyncio.to_thread(
        commit_to_branch, repository, workspace, patch, to.branch, message, "--pr"
    )
    try:
        fork = await _fork(repository, to, say) if to.from_fork else None
        remote = ORIGIN if fork is None else address_of(repository, fork)
        say(f"pushing branch {to.branch} to {ORIGIN if fork is None else fork.project}")
        await push(repository, commit, to.branch, remote=remote)
    except M3AgentError as error:
        raise _halfway(
            error,
            f"the patch is committed to branch {to.branch} here, but its push failed",
            f"push it with 'git push origin {to.branch}' and open the pull request at {to.page}",
        ) from None
    say(f"opening a pull request on {to.project.project}")
    what = Proposal(
        pr_text.title(work.issue.title),
        pr_text.body(work, to.project),
        work.evidence.verdict != "verified",
        to.base,
        to.branch,
        fork,
    )
    try:
        address = await ask(to.project, to.token, say, lambda client: client.open(to.project, what))
    except M3AgentError as error:
        raise _halfway(
            error,
            f"branch {to.branch} is pushed, but the pull request could not be opened",
            f"open it at {to.page}",
        ) from None
    return Offered(address, commit)


async def push_further(
    repository: Repository,
    workspace: Workspace,
    patch: Patch,
    to: PullUpdate,
    name: str,
    message: str,
    say: Say,
) -> Offered:
    """Push a further commit to an open pull request, never by force. Without a change, nothing is pushed.

    Args:
        patch: The difference from `to.tree`.

    Raises:
        PermissionRefused, EnvironmentFault: The push is refused, or would overwrite what somebody else did.
    """
    if patch.empty and to.merged is None:
        return Offered(to.address, to.head)
    _refuse_running(patch, "the push to the pull request")
    commit = await asyncio.to_thread(commit_to_pull, repository, workspace, patch, to, name, message)
    say(f"pushing a commit to branch {to.branch}")
    await push(repository, commit, to.branch, remote=to.remote)
    return Offered(to.address, commit)


def _refuse_running(patch: Patch, what: str) -> None:
    """Raise PermissionRefused for a patch with files that run after the push."""
    if patch.runs_later:
        raise PermissionRefused(
            f"{what} refused: {', '.join(patch.runs_later[:3])} may run automatically after the push, on your "
            "machines with your secrets; read the patch, then hand it over with --branch NAME or 'git apply'"
        )


async def _fork(repository: Repository, to: Destination, say: Say) -> Project:
    """Return the user's fork once git can read it. The server makes a missing fork.

    Raises:
        UsageError: It has a branch of this name.
        PermissionRefused, EnvironmentFault: It cannot be made, or is not ready in time.
    """
    say(f"asking {to.project.host} for your fork of {to.project.project}")
    fork = await ask(to.project, to.token, say, lambda client: client.fork(to.project))
    tries_left = FORK_TRIES
    while True:
        tries_left -= 1
        try:
            heads = await heads_of(repository, address_of(repository, fork))
        except M3AgentError:  # the server is still making it
            if not tries_left:
                raise
            await asyncio.sleep(FORK_SECONDS)
        else:
            refuse_taken(to.branch, heads.ids, f" on {fork.project}")
            return fork


def address_of(repository: Repository, project: Project) -> str:
    """Return the address from which git reaches another project of origin's server, by the same way as origin.

    Raises:
        UsageError: There is no origin, or its address has no project.
    """
    origin = origin_url(repository) or ""
    found = _PROJECT.fullmatch(origin)
    if found is None:
        raise UsageError(
            f"the remote origin is {place_of(origin)}: no address of {project.project} follows from it"
        )
    return f"{found[1]}{project.project}{found[2]}"


def _halfway(error: M3AgentError, done: str, go_on: str) -> M3AgentError:
    """Return the error for a failed step after earlier steps succeeded."""
    kind = EnvironmentFault if isinstance(error, EnvironmentFault) else PermissionRefused
    return kind(f"{done} ({str(error).rstrip('.')}); {go_on}")


def _project(repository: Repository, github_api: str) -> Project:
    """Return the project that origin fetches from and pushes to."""
    origin = origin_url(repository)
    if origin is None:
        raise UsageError("--pr needs a remote called origin, and this repository has none: use --branch NAME")
    project = project_of(origin, github_api=github_api, env=os.environ)
    if project is None:
        raise UsageError(
            f"--pr opens pull requests on {web_of(github_api).partition('://')[2]} and GitLab, and origin is {place_of(origin)}: "
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

"""Fetch a pull request of GitHub, or a merge request of GitLab, from the remote `origin`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from m3agent.agent.delivery.push import fetch
from m3agent.agent.errors import UsageError
from m3agent.agent.issue.tracker.fetch import find_token
from m3agent.agent.issue.tracker.http import Api, new_client
from m3agent.agent.issue.tracker.names import PullReference, parse_pull_request, project_of
from m3agent.agent.repo.repository import Repository, origin_url
from m3agent.serving.client.daemon_thread import in_background

API_SECONDS = 20.0
"""The longest silence of the tracker, in seconds."""
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REF = re.compile(r"(?!-)[^\s~^:?*\[\\\x00-\x20\x7f]+")


async def fetched_pull(
    address: str,
    repository: Repository,
    objects: Path,
    *,
    github_api: str,
    env: Mapping[str, str],
    say: Callable[[str], None],
) -> tuple[str, str]:
    """Fetch a pull request and the branch that it is for.

    Args:
        address: The address of the pull request.
        repository: The user's repository, whose origin the pull request belongs to.
        objects: The folder that receives git's objects.
        github_api: The address of GitHub's API.
        env: The environment variables that tokens are taken from.
        say: Receives progress messages for people.

    Returns:
        The ids of its last commit, and of the last commit of the branch that it is for.

    Raises:
        UsageError: It is not a pull request of this repository's origin, or does not exist.
        PermissionRefused, EnvironmentFault: The tracker or origin denies access, or does not answer.
    """
    pull = pull_of_origin(address, repository, github_api=github_api, env=env)
    head, target, branch = await in_background(lambda: _ask(pull, env, say))
    say(f"fetching {pull.what} from origin")
    await fetch(repository, [pull.ref, f"refs/heads/{branch}"], objects)
    return head, target


def pull_of_origin(
    address: str, repository: Repository, *, github_api: str, env: Mapping[str, str]
) -> PullReference:
    """Return the pull request with an address. Raises UsageError if it is not one of the repository's origin."""
    pull = parse_pull_request(address, github_api=github_api, env=env)
    origin = origin_url(repository)
    mine = None if origin is None else project_of(origin, github_api=github_api, env=env)
    if mine is None or (mine.web, mine.project.lower()) != (pull.web, pull.project.lower()):
        raise UsageError(
            f"{pull.label} is not of this repository's origin: give --repo with a clone of {pull.project}"
        )
    return pull


def _ask(pull: PullReference, env: Mapping[str, str], say: Callable[[str], None]) -> tuple[str, str, str]:
    """Return the last commits of a pull request and of its branch, and the name of the branch. Blocking."""
    token = find_token(pull, env)
    say(f"asking {pull.host} about {pull.what}")
    with new_client(pull.api, API_SECONDS) as client:
        api = Api(pull, token, client, say=say, timeout=API_SECONDS)
        found = _object(api.get(pull.pull_api).json)
        if pull.kind == "github":
            base = _object(found.get("base"))
            values = _object(found.get("head")).get("sha"), base.get("sha"), base.get("ref")
        else:
            refs = _object(found.get("diff_refs"))
            values = refs.get("head_sha"), refs.get("start_sha"), found.get("target_branch")
        head, target, branch = (value if isinstance(value, str) else "" for value in values)
        if not _COMMIT.fullmatch(head) or not _COMMIT.fullmatch(target) or not _REF.fullmatch(branch):
            raise api.not_the_api()
    return head, target, branch


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

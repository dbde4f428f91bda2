"""Find issues of a repository's own tracker by a query, such as `label:bug`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from m3agent.util.errors import UsageError

_TERM = re.compile(r"(?:^|\s)-?[a-z]+:(?!//)\S")


def is_query(text: str) -> bool:
    """Return whether a text has a term of a query, such as `label:bug`. The address of an issue has none."""
    return _TERM.search(text) is not None


def found_issues(
    query: str,
    most: int,
    origin: str | None,
    *,
    github_api: str,
    env: Mapping[str, str],
    say: Callable[[str], None],
) -> list[str]:
    """Return the web addresses of the open issues that a query finds, the oldest first. Blocking.

    Args:
        query: In the words of the tracker.
        most: Most issues.
        origin: The address of the repository's origin remote; None without one.

    Raises:
        UsageError: The origin is on no GitHub or GitLab, or the tracker has no such query.
        PermissionRefused: The tracker denies access.
        EnvironmentFault: The tracker does not answer, or answers with an error.
    """
    from m3agent.agent.forge.address import IssueReference, place_of, project_of
    from m3agent.agent.forge.api import find_token
    from m3agent.agent.forge.connection import connected

    project = None if origin is None else project_of(origin, github_api=github_api, env=env)
    if project is None:
        where = "has none" if origin is None else f"has {place_of(origin)}"
        raise UsageError(
            f"a query is for the tracker of the origin remote, and this repository {where}: give a file with issues"
        )
    say(f"asking {project.host} for issues of {project.project}: {query}")
    with connected(project, find_token(project, env), say) as client:
        numbers = client.issues(project, query, most)
    of = project.kind, project.api, project.web, project.project
    return [IssueReference(*of, number).url for number in numbers]

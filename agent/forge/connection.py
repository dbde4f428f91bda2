"""Connect to the server of a project."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from m3agent.agent.forge.address import Project, ServerKind
from m3agent.agent.forge.api import API_SECONDS, Api, Token
from m3agent.agent.forge.client import Client
from m3agent.agent.forge.github import GitHub
from m3agent.agent.forge.gitlab import GitLab
from m3agent.util.daemon_thread import in_background

CLIENTS: Mapping[ServerKind, type[Client]] = {"github": GitHub, "gitlab": GitLab}
T = TypeVar("T")


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

"""Let a model server read a repository before a fix needs it.

A fix begins with m3agent's rules, its tools and the whole repository. After `warm`, the server has them in its prefix cache, so the first
answer of a fix comes in seconds also if the repository has half a million tokens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from m3agent.agent.context.rules import OVER_BUDGET
from m3agent.agent.context.types import Context
from m3agent.agent.endpoint.choice import ModelServer
from m3agent.agent.fix.request import FixRequest
from m3agent.agent.fix.run_context import prepare
from m3agent.agent.issue.load import Issue
from m3agent.agent.loop.prompt import SYSTEM
from m3agent.agent.repo.repository import Repository
from m3agent.agent.settings.settings import Settings
from m3agent.serving.client.client import Client
from m3agent.serving.client.messages import Turn
from m3agent.tools.registry import own_schemas
from m3agent.util.errors import UsageError

NO_ISSUE = Issue("", "", "", "")
WHOLE = ("whole", "changes")
"""Parts of files that do not depend on an issue."""


@dataclass(frozen=True)
class Warmed:
    """What the server read."""

    context: Context
    """The packed repository."""
    turn: Turn
    """The answer to the request, of one token."""


async def warm(
    repository: Repository, settings: Settings, server: ModelServer, state: Path, say: Callable[[str], None]
) -> Warmed:
    """Let a server read the beginning that all fixes at this commit share.

    Args:
        repository: The repository.
        settings: The settings in force; they must be those of the fixes.
        server: The server.
        state: Folder for caches.
        say: Receives notes for the person.

    Raises:
        UsageError: The repository does not fit into the prompt whole, so what a fix shows depends on its issue.
        ModelServerError: The server did not answer as expected.
    """
    request = FixRequest(NO_ISSUE, repository, settings)
    shared = await prepare(request, server, state, lambda _: None, say)
    context = shared.context
    assert context is not None, "only a resumed session has none"
    partial = sum(file.part not in WHOLE for file in context.files)
    left_out = sum(reason == OVER_BUDGET for _, reason in context.dropped)
    if partial or left_out:
        raise UsageError(
            f"{partial + left_out:,} of {len(context.files) + left_out:,} files do not fit into the prompt whole: what a fix shows of them "
            "depends on its issue, so nothing can be read beforehand. A larger --context-budget or window helps."
        )
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": context.text}]
    async with Client(shared.endpoint, api_key=shared.key) as client:
        answer = client.complete(messages, own_schemas(), max_tokens=1, thinking=settings.thinking)
        async with contextlib.aclosing(answer):
            async for item in answer:
                if isinstance(item, Turn):
                    return Warmed(context, item)
    raise AssertionError("a client's answer ends in a Turn")

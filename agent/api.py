"""The Python API: `from m3agent import fix`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from m3agent.agent.ending import FixResult
from m3agent.agent.handover import HandOver
from m3agent.agent.new_fix import new_fix


class FixSettings(TypedDict, total=False):
    """The settings, by the names that they have everywhere (docs/settings.md). They come before variables and files."""

    # begin: written by `make docs-pages` from agent/settings.py
    endpoint: str
    engine: Literal["embedded"]
    model: str
    api_key: str
    thinking: Literal["enabled", "disabled", "adaptive"]
    image: str
    environment: Literal["auto", "off"]
    sandbox: Literal["docker", "bwrap"]
    allow_net: str
    context_budget: int
    attempts: int
    max_turns: int
    max_minutes: float
    max_tokens: int
    max_cost: float
    server_price: str
    seed: int
    candidates: int
    reruns: int
    memory: str
    cpus: float
    yes: bool
    github_api: str
    tokenizer: str
    prefix: Literal["plain", "frozen"]
    instructions: bool
    mcp: bool
    # end: written by `make docs-pages`


def fix(
    issue: str,
    repo: str | PathLike[str] = ".",
    *,
    apply: bool = False,
    branch: str | None = None,
    attach: Sequence[str | PathLike[str]] = (),
    on_event: Callable[[dict[str, Any]], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    **settings: Unpack[FixSettings],
) -> FixResult:
    """Fix an issue, as `m3agent fix` does it, and return the result.

    Args:
        issue: its text, a file, an address, `owner/repo#12` or `#12` of the repository's origin.
        repo: the repository's folder.
        apply: write a verified or unverified patch into the work tree, never over uncommitted changes.
        branch: commit it to a new branch of this name instead.
        attach: images.
        on_event: is given each line of the event log as it is written (docs/events.md).
        on_note: is given notes for people, one sentence each.
        settings: see `FixSettings`; None means that a setting is not given.

    A fix that found nothing, a sandbox that does not start and a model server that fails are results, with the reason and
    the exit code that the command would have. Nothing is printed. An interruption ends all that was started.

    Raises:
        UsageError: the issue, the repository or a setting is not as it should be.
        EnvironmentFault: the session cannot be kept.
        PermissionRefused: an issue's tracker does not give it.
        RuntimeError: an event loop is running in this thread; await `fix_async` there.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(
            fix_async(
                issue,
                repo,
                apply=apply,
                branch=branch,
                attach=attach,
                on_event=on_event,
                on_note=on_note,
                **settings,
            )
        )
    raise RuntimeError("an event loop is running in this thread: await m3agent.fix_async(...) instead")


async def fix_async(
    issue: str,
    repo: str | PathLike[str] = ".",
    *,
    apply: bool = False,
    branch: str | None = None,
    attach: Sequence[str | PathLike[str]] = (),
    on_event: Callable[[dict[str, Any]], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    **settings: Unpack[FixSettings],
) -> FixResult:
    """`fix`, for programs that have an event loop. Cancelled, it ends all that was started and keeps the session."""
    key = settings.pop("api_key", None)
    return await new_fix(
        issue,
        Path(repo),
        settings,
        HandOver(apply, branch),
        attach=[Path(path) for path in attach],
        env=os.environ if key is None else {**os.environ, "M3AGENT_API_KEY": key},
        say=on_note or _nothing,
        sinks=[] if on_event is None else [on_event],
    )


def _nothing(_: str) -> None:
    pass

"""The Python API: `from m3agent import fix`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from m3agent.agent.delivery.apply import HandOver
from m3agent.agent.fix.entry import new_fix
from m3agent.agent.fix.finalize import FixResult


class FixSettings(TypedDict, total=False):
    """The settings, by their common names (docs/settings.md). They override environment variables and files."""

    # begin: written by `make docs-pages` from agent/settings/settings.py
    endpoint: str
    engine: Literal["embedded"]
    model: str
    api_key: str
    key_over_http: str
    thinking: Literal["enabled", "disabled", "adaptive"]
    effort: Literal["low", "medium", "high", "xhigh", "max"]
    image: str
    environment: Literal["auto", "off"]
    dockerfile: Literal["ask", "build", "read"]
    sandbox: Literal["docker", "bwrap", "here"]
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
    verify_rounds: int
    verify_minutes: float
    baseline_minutes: float
    checks: str
    memory: str
    cpus: float
    yes: bool
    github_api: str
    tokenizer: str
    prefix: Literal["plain", "frozen"]
    instructions: bool
    mcp: bool
    probe: bool
    training: bool
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
    """Fix an issue, as `m3agent fix` does, and return the result. Nothing is printed.

    An interruption ends everything that was started.

    Args:
        issue: Its text, a file, an address, `owner/repo#12` or `#12` of the repository's origin.
        repo: Folder of the repository.
        apply: Write a verified or unverified patch into the work tree, never over uncommitted changes.
        branch: Commit the patch to a new branch of this name instead.
        attach: Images for the issue.
        on_event: Called with each line of the event log when it is written (docs/events.md).
        on_note: Called with each note for people, one sentence.
        settings: See `FixSettings`; None means that a setting is not given.

    Returns:
        The result, with the reason and the exit code of the command. Some failures are results, not exceptions: a fix
        without a patch, a sandbox that does not start, a model server that fails.

    Raises:
        UsageError: The issue, the repository or a setting is not valid.
        EnvironmentFault: The session cannot be written.
        PermissionRefused: The tracker denies access to the issue.
        RuntimeError: An event loop is running in this thread; await `fix_async` there.
    """
    if _in_event_loop():
        raise RuntimeError("an event loop is running in this thread: await m3agent.fix_async(...) instead")
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
    """Fix an issue like `fix`, within the caller's event loop.

    If the call is cancelled, it ends everything that was started and keeps the session.
    """
    env = dict(os.environ)
    if key := settings.pop("api_key", None):
        env["M3AGENT_API_KEY"] = key
        if endpoint := settings.get("endpoint"):  # a key belongs to the endpoint that it is given with
            env["M3AGENT_ENDPOINT"] = endpoint
    return await new_fix(
        issue,
        Path(repo),
        settings,
        HandOver(apply, branch),
        attach=[Path(path) for path in attach],
        env=env,
        say=on_note or _nothing,
        sinks=[] if on_event is None else [on_event],
    )


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _nothing(_: str) -> None:
    pass

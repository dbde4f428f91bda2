"""`m3agent sessions resume`: go on with a fix that was interrupted, killed, or stopped at a limit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from m3agent.agent.console import (
    Apply,
    AsJson,
    Branch,
    MaxCost,
    MaxTokens,
    check_one_way,
    faults,
    print_bytes,
    run,
    sinks,
)

if TYPE_CHECKING:
    from m3agent.agent.fix import FixRequest
    from m3agent.agent.resume import ResumePoint
    from m3agent.agent.settings import Settings


def resume(
    session: Annotated[str, typer.Argument(help="Its id, a beginning of it, or 'last'.")],
    max_turns: Annotated[
        int | None, typer.Option(help="Most requests, those made before included.", metavar="N")
    ] = None,
    max_minutes: Annotated[
        float | None, typer.Option(help="Most time worked, that before included.", metavar="M")
    ] = None,
    max_tokens: MaxTokens = None,
    max_cost: MaxCost = None,
    apply: Apply = False,
    branch: Branch = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a fix that was interrupted or killed, or had reached a limit.

    The model is sent what it was sent before, byte for byte; a call that had begun is not run again; the work tree is
    put back to its last state. Everything else is as it was set then, but for the limits given here.
    """
    limits = {
        "max_turns": max_turns,
        "max_minutes": max_minutes,
        "max_tokens": max_tokens,
        "max_cost": max_cost,
    }
    with faults():
        check_one_way(apply, branch)
        code, patch = run(_resume(session, limits, apply, branch, as_json))
        if patch and not as_json:
            print_bytes(patch)
        raise typer.Exit(code)


async def _resume(
    name: str, limits: Mapping[str, object], apply: bool, branch: str | None, as_json: bool
) -> tuple[int, bytes]:
    from m3agent.agent import fix as flow
    from m3agent.agent.resume import resume_point
    from m3agent.agent.screen import Screen
    from m3agent.agent.session import Session
    from m3agent.agent.sessions import find_session
    from m3agent.agent.settings import state_dir

    state = state_dir(os.environ)
    screen = Screen()
    with screen:
        session, lines = Session.open(find_session(state, name), sinks(screen, as_json=as_json))
        try:
            request = _request(resume_point(lines), limits, apply, branch)
            result = await flow.fix(request, session, state, say=screen.say, on_delta=screen.on_delta)
        finally:
            session.close()
    return result.exit_code, result.patch


def _request(point: ResumePoint, limits: Mapping[str, object], apply: bool, branch: str | None) -> FixRequest:
    """The fix as it was asked for. Raises UsageError where the repository is not there any more."""
    from m3agent.agent.fix import FixRequest
    from m3agent.agent.issue import Issue
    from m3agent.agent.repository import open_repository

    where, issue = point.started["repository"], point.started["issue"]
    repository = open_repository(Path(where["root"] or where["git_dir"]))
    settings = _settings(point, limits, repository.root or repository.git_dir)
    what = Issue(issue["title"], issue["text"], issue["source"], issue["digest"])
    return FixRequest(what, repository, settings, apply=apply, branch=branch, resume=point)


def _settings(point: ResumePoint, limits: Mapping[str, object], folder: Path) -> Settings:
    """Those of the session, at the same server, with the limits given now; the key is never in a log."""
    from m3agent.agent.fix import EMBEDDED
    from m3agent.agent.settings import Settings, load_settings

    values = {
        name: value for name, value in point.started["settings"].items() if name in Settings.model_fields
    }
    if values.get("endpoint") is None:  # one that was found is not exchanged for another
        endpoint = point.started["endpoint"]
        if endpoint["description"] == EMBEDDED:
            values["engine"] = "embedded"
        else:
            values |= {"endpoint": endpoint["url"], "engine": None}
    flags = {name: value for name, value in limits.items() if value is not None}
    now = load_settings(folder, flags, os.environ).settings
    values |= {name: getattr(now, name) for name in flags}
    return Settings.model_validate({**values, "api_key": now.api_key})

"""`m3agent sessions resume` and `fork`: continue an interrupted fix, or a copy of a fix."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from m3agent.agent.cli.common import (
    Apply,
    AsJson,
    Branch,
    PullRequest,
    Quiet,
    Verbose,
    faults,
    finish,
    screen_for,
    session_names,
    sinks,
)
from m3agent.agent.settings.options import Flags, takes_settings

if TYPE_CHECKING:
    from m3agent.agent.delivery.apply import HandOver
    from m3agent.agent.fix.finalize import FixResult
    from m3agent.agent.fix.request import FixRequest
    from m3agent.agent.loop.resume import ResumePoint
    from m3agent.agent.session.log_reader import Line
    from m3agent.agent.session.session import Session
    from m3agent.agent.settings.settings import Settings
    from m3agent.agent.ui.event_printer import Screen

Which = Annotated[
    str,
    typer.Argument(
        help="The session's id, the beginning of the id, or 'last'.",
        metavar="SESSION",
        autocompletion=session_names,
    ),
]


@takes_settings(
    "max_tokens",
    "max_cost",
    max_turns="Limit of requests to the model, including those made before.",
    max_minutes="Time limit in minutes, including the time worked before.",
)
def resume(
    session: Which,
    *,
    flags: Flags,
    apply: Apply = False,
    branch: Branch = None,
    pr: PullRequest = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Resume a fix that was interrupted or killed, or that reached a limit.

    The model gets the same messages as before, byte for byte. An interrupted call is not run again. The work tree is
    restored to its last state. All settings stay the same, except the limits given here.
    """
    with faults():
        from m3agent.agent.delivery.apply import HandOver
        from m3agent.agent.session.catalog import find_session
        from m3agent.agent.session.session import Session
        from m3agent.agent.settings.settings import state_dir

        hand_over = HandOver(apply, branch, pr)
        screen = screen_for(hand_over, quiet=quiet, verbose=verbose, as_json=as_json)
        resumed, lines = Session.open(find_session(state_dir(os.environ), session))
        _go_on(resumed, lines, "", flags, hand_over, screen, as_json)


@takes_settings(
    "max_tokens",
    "max_cost",
    max_turns="Limit of requests to the model after the fork.",
    max_minutes="Time limit in minutes after the fork.",
)
def fork(
    session: Which,
    turn: Annotated[
        int | None,
        typer.Option(help="Continue from the end of this turn; by default the last one.", metavar="N"),
    ] = None,
    tell: Annotated[str, typer.Option(help="What to say to the model first.", metavar="TEXT")] = "",
    *,
    flags: Flags,
    apply: Apply = False,
    branch: Branch = None,
    pr: PullRequest = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Continue from an earlier point of a fix in a new session; the first session stays as it is.

    Any session can be forked, even one that is finished or running. The new session has the conversation and the work
    tree as they were at the end of the turn; its limits count from there.
    """
    with faults():
        from m3agent.agent.delivery.apply import HandOver
        from m3agent.agent.session.catalog import find_session
        from m3agent.agent.session.fork import fork as fork_session
        from m3agent.agent.session.log_reader import LOG, read_log
        from m3agent.agent.settings.settings import state_dir

        hand_over = HandOver(apply, branch, pr)  # checked before anything is copied
        screen = screen_for(hand_over, quiet=quiet, verbose=verbose, as_json=as_json)
        state = state_dir(os.environ)
        forked, lines = fork_session(state, read_log(find_session(state, session) / LOG), turn)
        _go_on(forked, lines, tell, flags, hand_over, screen, as_json)


def _go_on(
    session: Session,
    lines: list[Line],
    tell: str,
    limits: Flags,
    hand_over: HandOver,
    screen: Screen,
    as_json: bool,
) -> None:
    """Resume a session, given the lines of its log. `tell` is the user's message to the model."""
    with contextlib.closing(session):
        finish(_resume(session, lines, tell, limits, hand_over, screen, as_json), screen, as_json=as_json)


async def _resume(
    session: Session,
    lines: list[Line],
    tell: str,
    limits: Flags,
    hand_over: HandOver,
    screen: Screen,
    as_json: bool,
) -> FixResult:
    from m3agent.agent.context.neutralise import harmless
    from m3agent.agent.fix import orchestrate as flow
    from m3agent.agent.loop.resume import resume_point
    from m3agent.agent.settings.settings import state_dir

    state = state_dir(os.environ)
    with screen:
        for sink in sinks(screen, as_json=as_json):
            session.listen(sink)
        point = dataclasses.replace(resume_point(lines), tell=harmless(tell.strip()))
        request = _request(point, limits, hand_over, state, screen.say)
        await flow.check(request, state, screen.say)
        screen.read(lines)
        return await flow.fix(request, session, state, say=screen.say, listener=screen.listener)


def _request(
    point: ResumePoint,
    limits: Flags,
    hand_over: HandOver,
    state: Path,
    say: Callable[[str], None],
) -> FixRequest:
    """Return the request of the session's fix. Raises UsageError if its repository no longer exists."""
    from m3agent.agent.fix.entry import opened
    from m3agent.agent.fix.request import FixRequest
    from m3agent.agent.issue.load import Issue
    from m3agent.agent.mcp.config import configured

    where, issue = point.started["repository"], point.started["issue"]
    folder = Path(where["root"] or where["git_dir"])
    settings = _settings(point, limits, folder)
    repository = opened(folder, settings, state, again=True)
    what = Issue(issue["title"], issue["text"], issue["source"], issue["digest"])
    mcp = configured(repository, settings, state, os.environ, say) if point.tools else ()
    return FixRequest(what, repository, settings, hand_over=hand_over, resume=point, mcp=mcp)


def _settings(point: ResumePoint, limits: Flags, folder: Path) -> Settings:
    """Return the session's settings with the same server, the new limits, and the present keys.

    Keys are never logged, and where they may go is asked anew.
    """
    from m3agent.agent.loop.resume import used_embedded_engine
    from m3agent.agent.settings.loader import load_settings, settings_of
    from m3agent.agent.settings.settings import SETTINGS

    values = {name: value for name, value in point.started["settings"].items() if name in SETTINGS}
    if values.get("endpoint") is None:  # keep the server that the session found
        if used_embedded_engine(point.started):
            values["engine"] = "embedded"
        else:
            values |= {"endpoint": point.started["endpoint"]["url"], "engine": None}
    flags = {name: value for name, value in limits.items() if value is not None}
    now = load_settings(folder, flags, os.environ).settings
    values |= {name: getattr(now, name) for name in flags}
    return dataclasses.replace(settings_of(values), api_key=now.api_key, key_over_http=now.key_over_http)

"""`m3agent sessions resume` and `fork`: continue an interrupted fix, or a copy of a fix."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from m3agent.agent.loop import inbox
from m3agent.agent.settings.options import Flags, takes_settings
from m3agent.cli.common import (
    Apply,
    AsJson,
    Branch,
    PullRequest,
    Quiet,
    Repo,
    Verbose,
    argument,
    finish,
    option,
    screen_for,
    session_names,
    sessions_here,
    state_folder,
)

if TYPE_CHECKING:
    from m3agent.agent.delivery.apply import HandOver
    from m3agent.agent.fix.finalize import FixResult
    from m3agent.agent.loop.resume import ResumePoint
    from m3agent.agent.session.log_reader import Line
    from m3agent.agent.session.session import Session
    from m3agent.agent.ui.event_printer import Screen

NO_ADVICE = (
    f"{inbox.NO_ADVICE}. Add a test that fails for what is still wrong and run the fix again, or ask a language model: "
    "m3agent fix ISSUE --endpoint URL"
)
Which = Annotated[
    str,
    argument(
        "The session's id, the beginning of the id, or 'last'.", "SESSION", autocompletion=session_names
    ),
]


@takes_settings(
    "max_tokens",
    "max_cost",
    max_turns="Limit of requests to the model, including those made before.",
    max_minutes="Time limit in minutes, including the time worked before.",
    endpoint="The address of the same model, if its server moved.",
)
def resume(
    session: Which,
    tell: Annotated[
        str,
        option(
            "What to say to the model first; if a plan or a test waits, what to change in it. Without --tell, a terminal asks you again, and elsewhere "
            "it is accepted.",
            "TEXT",
        ),
    ] = "",
    repo: Repo = Path(),
    *,
    flags: Flags,
    apply: Apply = False,
    branch: Branch = None,
    pr: PullRequest = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Resume a fix that was interrupted or killed, that reached a limit, or whose plan or test waits for you.

    The model gets the same messages as before, byte for byte. An interrupted call is not run again. The work tree is
    restored to its last state. All settings stay the same, except those given here.
    """
    from m3agent.agent.delivery.apply import HandOver
    from m3agent.agent.session.session import Session

    hand_over = HandOver(apply, branch, pr)
    screen = screen_for(hand_over, repo, quiet=quiet, verbose=verbose, as_json=as_json)
    _ask(flags)
    resumed, lines = Session.open(sessions_here(repo).find(session))
    finish(_resumed(resumed, lines, tell, flags, hand_over, screen), screen)


@takes_settings(
    "max_tokens",
    "max_cost",
    max_turns="Limit of requests to the model after the fork.",
    max_minutes="Time limit in minutes after the fork.",
    endpoint="The address of the same model, if its server moved.",
)
def fork(
    session: Which,
    turn: Annotated[
        int | None,
        option(
            "Continue from the end of this turn; by default the last one. `m3agent report` shows their numbers.",
            "N",
        ),
    ] = None,
    tell: Annotated[str, option("What to say to the model first.", "TEXT")] = "",
    repo: Repo = Path(),
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
    from m3agent.agent.delivery.apply import HandOver
    from m3agent.agent.loop.resume import used_embedded_engine
    from m3agent.agent.session.fork import fork as fork_session
    from m3agent.agent.session.log_reader import LOG, read_log
    from m3agent.util.errors import UsageError

    hand_over = HandOver(apply, branch, pr)  # checked before anything is copied
    screen = screen_for(hand_over, repo, quiet=quiet, verbose=verbose, as_json=as_json)
    _ask(flags)
    log = read_log(sessions_here(repo).find(session, fixes=True) / LOG)
    if tell.strip() and log.events and used_embedded_engine(log.events[0]):
        raise UsageError(NO_ADVICE)  # before anything is copied
    forked, lines = fork_session(state_folder(), log, turn)
    finish(_resumed(forked, lines, tell, flags, hand_over, screen), screen)


def _ask(changed: Flags) -> None:
    """Ask whether the session may go on with another host. The one that it used before is known."""
    from m3agent.cli.hosts import ask

    if changed.get("endpoint") is not None:
        ask(Path(), changed, "the conversation goes")


async def _resumed(
    session: Session, lines: list[Line], tell: str, changed: Flags, hand_over: HandOver, screen: Screen
) -> FixResult:
    """Resume a session, given the lines of its log. `tell` is the user's message to the model."""
    from m3agent.agent.context.neutralise import harmless
    from m3agent.agent.loop.resume import resume_point
    from m3agent.agent.session.messages import begun_messages

    with contextlib.closing(session), screen:
        point = dataclasses.replace(resume_point(lines), tell=harmless(tell.strip()))
        begun_messages(
            session.folder
        )  # before anything is written, so that a refusal leaves the session as it is
        return await carried_on(session, lines, point, changed, hand_over, screen)


async def carried_on(
    session: Session,
    lines: Sequence[Line],
    point: ResumePoint,
    changed: Flags,
    hand_over: HandOver,
    screen: Screen,
) -> FixResult:
    """Carry on a session from a point of its log, show it on the screen, and return its result."""
    from m3agent.agent.fix import orchestrate as flow
    from m3agent.agent.fix.entry import request_of
    from m3agent.agent.loop.resume import used_embedded_engine

    state = state_folder()
    for sink in screen.sinks:
        session.listen(sink)
    request = request_of(point, changed, hand_over, state, screen.say, screen.inbox)
    await flow.check(request, state, screen.say)
    screen.read(lines)
    if point.tell and used_embedded_engine(point.started):
        screen.say(NO_ADVICE)
    return await flow.fix(request, session, state, say=screen.say, listener=screen.listener)

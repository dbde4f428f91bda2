"""`m3agent pr follow`: see a pull request through that a fix opened."""

from __future__ import annotations

import os
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from m3agent.agent.settings.options import Flags, takes_settings
from m3agent.cli.common import (
    AsJson,
    Quiet,
    Repo,
    Verbose,
    argument,
    option,
    run,
    screen_for,
    session_names,
    settings_in,
    state_folder,
)
from m3agent.cli.resume import carried_on

if TYPE_CHECKING:
    from m3agent.agent.delivery.apply import HandOver
    from m3agent.agent.fix.finalize import FixResult
    from m3agent.agent.follow.follow import Followed
    from m3agent.agent.loop.resume import ResumePoint
    from m3agent.agent.session.log_reader import Line
    from m3agent.agent.session.session import Session
    from m3agent.agent.ui.event_printer import Screen

ROUNDS = 5
"""Most rounds, unless the user says otherwise."""
MINUTES = 60.0
"""Longest time in minutes, unless the user says otherwise."""
SECONDS = 30.0
"""Seconds between two looks, unless the user says otherwise."""

pr_app = typer.Typer(help="Follow a pull request that m3agent opened.", no_args_is_help=True)


@pr_app.command("follow")
@takes_settings(
    "github_api",
    "max_tokens",
    "max_cost",
    max_turns="Limit of requests to the model in each round.",
    max_minutes="Time limit in minutes of the work in each round.",
)
def follow(
    url: Annotated[str, argument("The address of the pull request.", "URL")],
    repo: Repo = Path(),
    session: Annotated[
        str | None,
        option(
            "The session to continue; by default the last one that pushed to the pull request.",
            "SESSION",
            autocompletion=session_names,
        ),
    ] = None,
    rounds: Annotated[int, option("The most further commits or answers.", "N", min=1)] = ROUNDS,
    minutes: Annotated[float, option("The longest time to follow, in minutes.", "N", min=0)] = MINUTES,
    every: Annotated[float, option("Seconds between two looks at the pull request.", "N", min=1)] = SECONDS,
    *,
    flags: Flags,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Follow a pull request: give failing checks and members' comments to its session, verify again, push a commit.

    Only comments of members are read. Nothing is forced. It ends when the pull request is approved, merged or closed,
    or at a limit.

    Exit codes: 0 approved, merged, or nothing left to do when the time is over; 1 closed, or a round without a good
    patch; 2 wrong use; 3 sandbox or environment; 4 model server; 5 refused; 6 limit; 130 interrupted.
    """
    from m3agent.agent.delivery.apply import HandOver

    screen = screen_for(HandOver(), repo, quiet=quiet, verbose=verbose, as_json=as_json)
    try:
        ended = run(_follow(url, repo, session, (rounds, minutes, every), flags, screen))
    finally:
        screen.print_end()
    raise typer.Exit(ended.exit_code)


async def then_follow(fixing: Coroutine[Any, Any, FixResult], flags: Flags, screen: Screen) -> FixResult:
    """Run a fix, follow the pull request that it opened, and return the fix's result with the last exit code."""
    import dataclasses

    result = await fixing
    if result.opened is None:
        return result
    limits = {name: value for name, value in flags.items() if name == "github_api" or name.startswith("max_")}
    repo, name = _repository_of(result.session), result.session.name
    ended = await _follow(result.opened.address, repo, name, (ROUNDS, MINUTES, SECONDS), limits, screen)
    return dataclasses.replace(result, exit_code=ended.exit_code)


async def _follow(
    url: str, repo: Path, session: str | None, limits: tuple[int, float, float], flags: Flags, screen: Screen
) -> Followed:
    """Follow a pull request and say why that ended."""
    import asyncio

    from m3agent.agent.follow.follow import FollowRequest, session_of
    from m3agent.agent.follow.follow import follow as follow_pull
    from m3agent.agent.forge.address import pull_of_origin
    from m3agent.agent.repo.repository import open_repository, origin_url
    from m3agent.agent.session.catalog import sessions_of

    if screen.inbox is not None:
        screen.inbox.refines = False  # nobody sits there until the pull request is approved
    with screen:
        state = state_folder()
        api = settings_in(repo, flags).github_api
        repository = await asyncio.to_thread(open_repository, repo)
        pull = pull_of_origin(url, origin_url(repository), github_api=api, env=os.environ)
        folder = (
            sessions_of(state, repo).find(session)
            if session is not None
            else session_of(state, pull, github_api=api, env=os.environ)
        )

        async def carry_on(
            forked: Session, lines: Sequence[Line], point: ResumePoint, hand_over: HandOver
        ) -> FixResult:
            return await carried_on(forked, lines, point, flags, hand_over, screen)

        rounds, minutes, seconds = limits
        request = FollowRequest(pull, repository, folder, rounds, minutes, seconds)
        ended = await follow_pull(request, state, carry_on, env=os.environ, say=screen.say)
        screen.say(ended.reason)
    return ended


def _repository_of(session: Path) -> Path:
    """Return the folder of a session's repository."""
    from m3agent.agent.session.record import read_session

    where = read_session(session).started["repository"]
    return Path(where["root"] or where["git_dir"])

"""`m3agent fix --detach` and `m3agent sessions attach`: let a fix work without a terminal, and watch, steer and stop it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from m3agent.cli.common import (
    Quiet,
    Repo,
    Session,
    Verbose,
    end,
    option,
    print_bytes,
    print_patch,
    run,
    say,
    screen_for,
    sessions_here,
    state_folder,
)
from m3agent.util.errors import INTERRUPTED

if TYPE_CHECKING:
    from m3agent.agent.session.log_reader import Line
    from m3agent.agent.ui.event_printer import Screen

CONSOLE = "console.log"
"""File in the session's folder with what the fix prints."""
PAUSE = 0.2
"""Seconds between two looks at a session of another process."""


def check_detached(issue: str | None, *, follow: bool) -> None:
    """Raise UsageError if a fix cannot work without a terminal."""
    from m3agent.util.errors import UsageError

    if issue == "-":
        raise UsageError("--detach: the fix has no standard input; give the issue as a file or in quotes")
    if follow:  # `sessions attach --stop` reaches the fix only
        raise UsageError(
            "--detach ends with the fix: leave out --follow, and give m3agent pr follow when the fix has ended"
        )


def detached(argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Start this `fix` without a terminal, and print its output until it works.

    Standard output gets the id of its session.

    Args:
        argv: The command line.
        env: The environment.

    Raises:
        EnvironmentFault: The session's folder cannot be made.
    """
    from m3agent.agent.session.log_reader import LOG
    from m3agent.agent.session.session import make_folder, new_id
    from m3agent.agent.settings.loader import DETACHED
    from m3agent.cli.apart import start_apart
    from m3agent.util.append_only import fault

    name = new_id()
    folder = state_folder() / "sessions" / name
    log = folder / LOG

    def works(_: int) -> bool:
        return log.exists() and log.stat().st_size > 0

    try:
        make_folder(folder)
        ended = start_apart(argv, folder / CONSOLE, works, _how(name), {**env, DETACHED: name})
    except OSError as error:
        raise fault(error, folder) from None
    if ended is not None:
        if not works(0):  # it was refused before there was a session
            shutil.rmtree(folder, ignore_errors=True)
        raise typer.Exit(ended)
    print_bytes(f"{name}\n".encode())
    say(_how(name))
    raise typer.Exit


def _how(name: str) -> str:
    return (
        f"it works in the background: `m3agent sessions attach {name}` shows it and takes messages to a language model; with "
        "--stop it ends it"
    )


@contextlib.contextmanager
def reachable(screen: Screen) -> Iterator[str | None]:
    """Let a detached fix hear what `sessions attach` sends. Yield the id of its session; None if the fix is not detached."""
    from m3agent.agent.loop.inbox import Inbox
    from m3agent.agent.session.control import controlled
    from m3agent.agent.settings.loader import DETACHED

    if (name := os.environ.pop(DETACHED, None)) is None:
        yield None
        return
    screen.inbox = Inbox()
    folder = state_folder() / "sessions" / name
    with controlled(folder, screen.pass_on, lambda: os.kill(os.getpid(), signal.SIGINT)):
        yield name


def attach(
    session: Session = "last",
    stop: Annotated[
        bool, option("--stop", "Stop the fix, as Ctrl-C does where it runs, and show its end.")
    ] = False,
    repo: Repo = Path(),
    *,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Show a running fix, and pass on what you type as messages to its language model.

    Ctrl-C leaves the fix running. At its end, the patch is printed. The exit code is that of the fix.
    """
    from m3agent.agent.delivery.apply import HandOver
    from m3agent.agent.session.catalog import chosen, first_attempt
    from m3agent.agent.session.control import send
    from m3agent.agent.session.log_reader import LOG
    from m3agent.agent.session.session import PATCH
    from m3agent.util.append_only import is_locked
    from m3agent.util.errors import UsageError

    named = sessions_here(repo).find(session)
    folder = first_attempt(named)
    name = folder.name
    if not is_locked(folder / LOG):
        raise UsageError(f"session {name} does not run: `m3agent sessions show {name}` shows how it ended")
    if stop and not send(folder, {"stop": True}):
        raise UsageError(f"session {name} runs at a terminal: press Ctrl-C there")
    if folder != named:
        say(f"{named.name} is an attempt of session {name}, which is shown with all its attempts")
    screen = screen_for(HandOver(), repo, quiet=quiet, verbose=verbose, as_json=False, by_id=True)
    try:
        last = run(_shown(folder, screen))
    except KeyboardInterrupt:
        say(
            f"session {name} works on: `m3agent sessions attach {name}` shows it again, and with --stop ends it"
        )
        end(INTERRUPTED)
    patch = chosen(folder) / PATCH
    if patch.is_file():
        print_patch(patch.read_bytes())
    screen.print_end()
    if not last:
        say(f"the process of session {name} is gone: `m3agent sessions resume {name}` goes on")
    raise typer.Exit(last.get("exit", 3))


async def _shown(folder: Path, screen: Screen) -> Line:
    """Show a session and further attempts at its issue until its process ends. Return its last line; empty if it was killed."""
    import asyncio

    from m3agent.agent.loop.inbox import NO_ADVICE
    from m3agent.agent.session.control import send
    from m3agent.agent.session.log_reader import LOG, read_new
    from m3agent.agent.session.record import is_embedded
    from m3agent.agent.ui.event_printer import NOT_HEARD
    from m3agent.util.append_only import is_locked

    ended: Line = {}
    read: dict[Path, int] = {}
    unheard: list[str] = []

    def told(text: str) -> None:
        if send(folder, {"say": text}):
            unheard.append(text.strip())
        else:
            screen.say(f"the fix takes no messages from here, so it does not get this: {text}")

    with screen, contextlib.nullcontext() if screen.inbox is None else screen.inbox.heard_by(told):
        while True:
            works = is_locked(folder / LOG)
            for log in [folder / LOG, *sorted(folder.parent.glob(f"{folder.name}-*/{LOG}"))]:
                lines, read[log] = read_new(log, read.get(log, 0))
                for line in lines:
                    screen.on_line(line)
                    if log.parent == folder and line["type"] == "session.started" and is_embedded(line):
                        screen.say(NO_ADVICE)
                    if line["type"] == "person.message" and line["text"] in unheard:
                        unheard.remove(line["text"])
                    if log.parent == folder:
                        ended = line if line["type"] == "session.finished" else {}
            if not works:
                for text in unheard:
                    screen.say(NOT_HEARD.format(text))
                return ended
            await asyncio.sleep(PAUSE)

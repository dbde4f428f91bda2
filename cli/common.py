"""Define what all commands share: common options, error messages in one sentence, and exit code 130 after Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from m3agent.util.token_count import some_tokens

if TYPE_CHECKING:
    from m3agent.agent.delivery.apply import HandOver
    from m3agent.agent.fix.finalize import FixResult
    from m3agent.agent.session.catalog import Sessions
    from m3agent.agent.session.log_reader import Line
    from m3agent.agent.settings.settings import Settings
    from m3agent.agent.ui.event_printer import Screen

T = TypeVar("T")


def option(*words: str, **more: Any) -> Any:
    """Declare an option: its names (else the name of the parameter), its help, and how the help calls its value."""
    names = [word for word in words if word.startswith("-") and " " not in word]
    about, *metavar = words[len(names) :]
    return typer.Option(*names, help=about, metavar=metavar[0] if metavar else None, **more)


def argument(about: str, metavar: str, **more: Any) -> Any:
    """Declare an argument: its help, and how the help calls it."""
    return typer.Argument(help=about, metavar=metavar, **more)


Repo = Annotated[Path, option("--repo", "The repository's folder.", "FOLDER", show_default="here")]
AsJson = Annotated[bool, option("--json", "Print JSON to standard output.")]
JsonResult = Annotated[
    bool, option("--json-result", "Print the result as one JSON object in the place of the patch.")
]
Apply = Annotated[bool, option("--apply", "Write the patch into the work tree.")]
Branch = Annotated[str | None, option("Commit the patch to a new branch.", "NAME")]
PullRequest = Annotated[
    bool,
    option("--pr", "Push the patch as a new branch to origin and open a pull request on GitHub or GitLab."),
]
Session = Annotated[
    str,
    argument(
        "The session's id, the beginning of the id, or 'last'.",
        "[SESSION]",
        autocompletion=lambda incomplete: session_names(incomplete),
    ),
]
All = Annotated[bool, option("--all", "Sessions of all repositories, not of this one only.")]


def state_folder() -> Path:
    """Return the state folder. Raises EnvironmentFault if it cannot be written."""
    from m3agent.agent.settings.settings import state_dir

    return state_dir(os.environ)


def settings_in(repo: Path, flags: Mapping[str, object]) -> Settings:
    """Return the settings in force in a folder, given those of the command line.

    Raises:
        UsageError: A setting is wrong.
    """
    from m3agent.agent.settings.loader import load_settings

    return load_settings(repo, flags, os.environ).settings


def sessions_here(repo: Path, *, every: bool = False, shows: bool = False) -> Sessions:
    """Return the sessions that a command means: those of the repository that it is about.

    Args:
        shows: The command only shows sessions. Outside a git repository, it then shows those of all, and says so.

    Raises:
        UsageError: There is no such folder.
        EnvironmentFault: The repository cannot be read.
    """
    from m3agent.agent.session.catalog import Sessions, sessions_of

    sessions = sessions_of(state_folder(), repo, every=every)
    if shows and not every and sessions.any_by_name and not sessions.folders():
        say(f"{sessions.where} is in no git repository: the sessions of all repositories count")
        return Sessions(sessions.state)
    return sessions


def session_names(incomplete: str) -> list[str]:
    """Return the names of this repository's sessions that begin with a text, for the completion of a shell.

    `last` comes first, then the newest.
    """
    from m3agent.agent.session.catalog import LAST, sessions_of

    names = [LAST, *(folder.name for folder in sessions_of(state_folder(), Path()).folders())]
    return [name for name in names if name.startswith(incomplete)]


Quiet = Annotated[bool, option("--quiet", "-q", "Show errors, notes and the end only, not each step.")]
Verbose = Annotated[bool, option("--verbose", "-v", "Also show what calls print, tokens, times and rates.")]
Certificate = Annotated[
    Path | None, option("Write the certificate of the verification to this file.", "FILE")
]
Typical = Annotated[
    int | None,
    option(
        "Tokens of a sequence at the 90th percentile of the workload; by default the context.",
        "N",
        parser=some_tokens,
    ),
]


def check_folder(repo: Path) -> None:
    """Raise UsageError if the value of --repo is no folder."""
    from m3agent.util.errors import UsageError

    if not repo.is_dir():
        raise UsageError(f"There is no folder {repo}: give the repository's folder.")


def say(text: str) -> None:
    """Print a note for the person to standard error. It may contain text from a server or an engine."""
    from m3agent.util.sanitize import print_note

    print_note(f"m3agent: {text}")


def screen_for(
    hand_over: HandOver,
    repo: Path,
    *,
    quiet: bool,
    verbose: bool,
    as_json: bool,
    by_id: bool = False,
    by_keyboard: bool = True,
) -> Screen:
    """Return the screen for a fix.

    The person can type on it if `by_keyboard` is true and standard output is the terminal, too: a pager in a pipe reads the same
    keyboard.

    Raises UsageError if it shall be both quiet and verbose.
    """
    from m3agent.agent.loop.inbox import Inbox
    from m3agent.agent.ui.event_printer import Detail, Screen
    from m3agent.util.errors import UsageError

    if quiet and verbose:
        raise UsageError("--quiet and --verbose exclude each other: give only one")
    return Screen(
        detail=Detail(verbose - quiet),
        rows=not (as_json and sys.stdout.isatty()),  # a terminal would mix JSON lines and rows
        state=state_folder(),
        shown_by=hand_over.shown_by,
        by_id=by_id,
        repo="" if repo == Path() else str(repo),
        has_next=not hand_over.always,
        hold_end=sys.stdout.isatty() and sys.stderr.isatty() and not as_json,
        as_json=_print_line if as_json else None,
        inbox=Inbox(refines=not by_id and not as_json) if by_keyboard and sys.stdout.isatty() else None,
    )


def _print_line(line: Line) -> None:
    import json

    print_bytes(json.dumps(line, separators=(",", ":")).encode() + b"\n")


@contextlib.contextmanager
def faults() -> Iterator[None]:
    """Report expected errors in one sentence on standard error, and exit with their exit code. Also decorates a command."""
    try:
        yield
    except (KeyboardInterrupt, BrokenPipeError) as error:
        from m3agent.util.errors import INTERRUPTED, OUTPUT_CLOSED

        end(INTERRUPTED if isinstance(error, KeyboardInterrupt) else OUTPUT_CLOSED)
    except typer.Exit:
        raise
    except Exception as error:
        from m3agent.agent.exit_codes import FAILURES, exit_code_of

        if not isinstance(error, FAILURES):
            raise
        say(str(error))
        raise typer.Exit(exit_code_of(error)) from None


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end and return its result.

    SIGINT, SIGTERM and SIGHUP cancel it. After its clean-up, KeyboardInterrupt is raised. Threads that still work are not waited
    for: what must not stop in the middle uses `m3agent.util.threads`, and its clean-up waits.
    """
    import asyncio
    import signal

    from m3agent.util.threads import Threads

    threads = Threads()

    async def main() -> T:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        loop.set_default_executor(threads)

        def interrupt() -> None:
            threads.abandoned = True
            # asyncio would print what its callbacks meet from now on
            loop.set_exception_handler(lambda *_: None)
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, interrupt)
        return await task

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def finish(
    fix: Coroutine[Any, Any, FixResult],
    screen: Screen,
    *,
    json_result: bool = False,
    result_only: bool = False,
) -> NoReturn:
    """Run a fix to its end, print its patch unless the output is JSON, and exit with its exit code."""
    try:
        result = run(fix)
        print_outcome(result, screen, json_result=json_result or result_only)
    finally:
        screen.print_end()
    raise typer.Exit(0 if result_only and is_finished(result) else result.exit_code)


def print_outcome(result: FixResult, screen: Screen, *, json_result: bool) -> None:
    """Print the patch of a fix, what it proposes or its answer, or the result as JSON; nothing more with --json."""
    if json_result:
        print_bytes(result_line(result))
    elif result.patch and screen.as_json is None:
        print_patch(result.patch)
    elif result.status in ("proposed", "answered") and screen.as_json is None:
        print_bytes(result.words.strip().encode(errors="replace") + b"\n")


def is_finished(result: FixResult) -> bool:
    """Return whether a fix came to its end: no error and no interruption prevented its result."""
    from m3agent.util.errors import EXIT_CODES, Status

    ended = result.status not in (Status.ERROR, Status.INTERRUPTED)
    return ended and result.exit_code == EXIT_CODES[result.status]  # else the patch could not be applied


def result_line(result: FixResult) -> bytes:
    """Return the result of a fix as one line of JSON."""
    import json

    evidence = result.evidence
    shown = {
        "status": result.status,
        "isolated": result.isolated,
        "reason": result.reason,
        "session": str(result.session),
        "paths": [] if result.change is None else list(result.change.patch.paths),
        "fixed": [] if evidence is None else sorted(evidence.fixed),
        "broken": [] if evidence is None else sorted(evidence.broken),
    }
    return json.dumps(shown).encode() + b"\n"


def print_patch(patch: bytes) -> None:
    """Write a patch to standard output: unchanged to files and pipes, in colours to a terminal."""
    if not sys.stdout.isatty():
        print_bytes(patch)
        return
    from rich.console import Console

    from m3agent.agent.ui.patch_view import coloured
    from m3agent.util.sanitize import printable_bytes

    Console(highlight=False, soft_wrap=True).print(coloured(printable_bytes(patch).decode()))


def print_bytes(data: bytes, *, err: bool = False) -> None:
    """Write bytes: unchanged to files and pipes, without control characters to a terminal."""
    from m3agent.util.sanitize import printable_bytes

    stream = sys.stderr if err else sys.stdout
    stream.flush()
    stream.buffer.write(printable_bytes(data) if stream.isatty() else data)
    stream.buffer.flush()


def print_json(value: object) -> None:
    """Print a value as JSON for programs."""
    import json

    print_bytes(json.dumps(value, indent=2).encode() + b"\n")


def end(code: int) -> NoReturn:
    """Exit at once and print nothing more: standard output may be closed or full already."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(code)

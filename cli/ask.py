"""`m3agent ask`: answer a question about the repository."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from m3agent.agent.settings.options import Flags, takes_settings
from m3agent.cli.common import Quiet, Repo, argument, print_bytes, run, say, settings_in, state_folder

SETTINGS = (
    *("endpoint", "model", "thinking", "image", "sandbox", "context_budget"),
    *("max_turns", "max_minutes", "max_tokens", "max_cost", "prefix", "yes"),
)
"""The settings that a question needs."""


@takes_settings(*SETTINGS)
def ask(
    question: Annotated[str, argument("The question; - for standard input.", "QUESTION")],
    repo: Repo = Path(),
    *,
    flags: Flags,
    quiet: Quiet = False,
) -> None:
    """Answer a question about the repository and print the answer. No file changes.

    The model reads the same text as for a fix, so a server has it in its cache. It may run commands in a sandbox. Exit codes: 0
    answered; 1 no answer; 2 wrong use; 3 sandbox or environment; 4 model server; 6 limit or stall; 130 interrupted.
    """
    from m3agent.agent.endpoint.choice import required_model_server
    from m3agent.agent.fix.entry import new_question
    from m3agent.agent.issue.load import MAX_BYTES
    from m3agent.agent.ui.event_printer import Detail, Screen
    from m3agent.cli import hosts
    from m3agent.util.errors import UsageError

    text = question
    if question == "-" and sys.stdin is not None:
        text = sys.stdin.buffer.read(MAX_BYTES + 1).decode(errors="replace")
    if not text.strip():
        raise UsageError("the question is empty: say what you want to know")
    if len(text) > MAX_BYTES:
        raise UsageError(f"the question is larger than {MAX_BYTES >> 20} MiB: send less text")
    settings = settings_in(repo, flags)
    server = required_model_server(settings, state_folder())
    if not quiet:
        say(f"server {server.description}")
    hosts.ask_about(server, settings, "the repository and the question go")
    # the blocks at the end are about patches, so they are held and not printed
    screen = Screen(detail=Detail.QUIET, rows=not quiet, state=state_folder(), hold_end=True)
    with screen:
        result = run(
            new_question(text, repo, flags, say=screen.say, sinks=screen.sinks, listener=screen.listener)
        )
    if result.words:
        print_bytes(result.words.strip().encode(errors="replace") + b"\n")
    raise typer.Exit(result.exit_code)

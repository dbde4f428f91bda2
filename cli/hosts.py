"""Ask the person at the terminal before a repository first goes to another host."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from m3agent.agent.endpoint.choice import ModelServer, choose_endpoint
from m3agent.agent.endpoint.disclosure import announce, ask_first
from m3agent.agent.settings.options import Flags
from m3agent.agent.settings.settings import Settings
from m3agent.cli.common import say, settings_in, state_folder
from m3agent.util.sanitize import print_note


def ask(repo: Path, flags: Flags, what: str = "the repository and the issue go") -> None:
    """Ask about the host that the settings choose, as `ask_about` does."""
    if has_person():
        settings = settings_in(repo, flags)
        choice = choose_endpoint(settings, state_folder())
        if isinstance(choice, ModelServer):
            ask_about(choice, settings, what)


def ask_about(server: ModelServer, settings: Settings, what: str) -> None:
    """Ask once whether data may go to a server that is not this machine. Without a terminal, nothing is asked.

    Args:
        what: The data and its verb, such as "the repository and the issue go".

    Raises:
        PermissionRefused: The person does not agree.
    """
    if has_person() and not settings.yes:
        ask_first(server.url, state_folder(), _agrees, what, key=server.key)


def tell(server: ModelServer, settings: Settings, what: str) -> None:
    """Ask as `ask_about` does, or else tell once that data goes to the server. Also print what is to say of the server."""
    if server.notice:
        print_note(server.notice)
    ask_about(server, settings, what)
    if not settings.yes:
        announce(server.url, state_folder(), print_note, what, key=server.key)


def has_person() -> bool:
    """Return whether a person is at the terminal who can answer."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def _agrees(sentence: str) -> bool:
    say(f"{sentence} (asked once for each host; --yes agrees)")
    return confirmed("Go on?")


def confirmed(question: str) -> bool:
    """Ask the person at the terminal for yes or no. Ctrl-C and Ctrl-D raise KeyboardInterrupt."""
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:
        raise KeyboardInterrupt from None

"""Ask the person at the terminal before a repository first goes to another host."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import typer

from m3agent.agent.cli.common import say
from m3agent.agent.endpoint.choice import ModelServer, choose_endpoint
from m3agent.agent.endpoint.disclosure import ask_first
from m3agent.agent.settings.loader import load_settings
from m3agent.agent.settings.options import Flags
from m3agent.agent.settings.settings import Settings, state_dir


def ask(repo: Path, flags: Flags, what: str = "the repository and the issue go") -> None:
    """Ask about the host that the settings choose, as `ask_about` does."""
    if has_person():
        settings = load_settings(repo, flags, os.environ).settings
        choice = choose_endpoint(settings, state_dir(os.environ))
        if isinstance(choice, ModelServer):
            ask_about(choice, settings, what)


def ask_about(server: ModelServer, settings: Settings, what: str) -> None:
    """Ask once whether data may go to a server that is not this machine. Without a terminal, nothing is asked.

    Args:
        server: The server.
        settings: The settings in force; they may agree.
        what: The data and its verb, such as "the repository and the issue go".

    Raises:
        PermissionRefused: The person does not agree.
    """
    if has_person() and not settings.yes:
        ask_first(server.url, state_dir(os.environ), _agrees, what, key=server.key)


def has_person() -> bool:
    """Return whether a person is at the terminal who can answer."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def _agrees(sentence: str) -> bool:
    say(f"{sentence} (asked once for each host; --yes agrees)")
    try:
        return typer.confirm("Go on?", err=True)
    except typer.Abort:
        raise KeyboardInterrupt from None

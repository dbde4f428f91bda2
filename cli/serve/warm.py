"""`m3agent serve warm`: let a server read a repository before a fix needs it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from m3agent.agent.settings.options import Flags, takes_settings
from m3agent.cli.common import Repo, run, say, settings_in, state_folder
from m3agent.cli.serve.app import serve_app
from m3agent.util.sanitize import print_text

if TYPE_CHECKING:
    from m3agent.agent.fix.run_context import Warmed


@serve_app.command()
@takes_settings("endpoint", "model", "thinking", "context_budget", "tokenizer", "prefix", "yes")
def warm(repo: Repo = Path(), *, flags: Flags) -> None:
    """Let a server read a repository before a fix needs it, so that the first answer comes in seconds.

    Give the options that the fixes will have. A git hook (post-commit, post-merge) can run it; with `--prefix frozen` the server reads only
    what has changed.

    Exit codes: 0 the server has read the repository; 2 wrong use, or it does not fit whole; 4 model server.
    """
    from m3agent.agent.endpoint.choice import required_model_server
    from m3agent.agent.fix.entry import opened
    from m3agent.agent.fix.run_context import warm as warmed

    settings = settings_in(repo, flags)
    state = state_folder()
    server = required_model_server(settings, state)
    say(f"server {server.description}")
    print_text(_told(run(warmed(opened(repo, settings, state), settings, server, state, say))))


def _told(result: Warmed) -> str:
    """Return what the server read, how much of it it had, and how long that took."""
    usage, first = result.turn.usage, result.turn.first_token_seconds
    tokens = f"{usage.prompt:,}" if usage.prompt is not None else f"about {result.context.tokens:,}"
    had = f", of which the server had {usage.cached:,}" if usage.cached is not None else ""
    when = f"; first token after {result.turn.seconds if first is None else first:.1f} s"
    return f"read {tokens} tokens{had}{when}"

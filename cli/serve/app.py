"""Define the command group `m3agent serve`. The group is a command itself; the engine's options may follow `--`."""

from __future__ import annotations

from typing import Any

import typer

from m3agent.cli.help import Group

ENGINE_OPTIONS = "m3agent.engine_options"
"""Key of a context's `meta` that holds the arguments after `--`."""


class _ServeGroup(Group):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Set aside the arguments after `--`, which click would take for the name of a command."""
        if "--" in args:
            place = args.index("--")
            ctx.meta[ENGINE_OPTIONS] = tuple(args[place + 1 :])
            args = args[:place]
        return super().parse_args(ctx, args)


serve_app = typer.Typer(
    cls=_ServeGroup, help="Serve M3, and check, measure and stop its servers.", invoke_without_command=True
)

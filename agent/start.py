"""Entry point of the console script: one command has a way of its own, because others are faster than typer loads."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["context"]:
        from m3agent.agent.context import command

        command.main(sys.argv[2:])  # returns where it leaves the work to the whole command line
    from m3agent.agent import cli

    cli.main()


if __name__ == "__main__":
    main()

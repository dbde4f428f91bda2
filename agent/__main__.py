"""Entry point of the console script. `m3agent context` skips typer: a warm pack is faster than typer's import."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["context"]:
        from m3agent.agent.cli import context

        context.main(sys.argv[2:])  # returns only if the full command line has to do the work
    from m3agent.agent.cli import app

    app.main()


if __name__ == "__main__":
    main()

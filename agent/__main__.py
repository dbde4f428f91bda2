"""Entry point of the console script. `m3agent context` skips typer: a warm pack is faster than typer's import."""

from __future__ import annotations

import os
import sys

from m3agent.sandbox.store.git_command import trusted_path


def main() -> None:
    """Run the command line.

    No program is searched for in relative folders of PATH: inside a checkout, they belong to the checkout.
    """
    if "PATH" in os.environ:
        os.environ["PATH"] = trusted_path()
    if sys.argv[1:2] == ["context"]:
        from m3agent.agent.cli import context

        context.main(sys.argv[2:])  # returns only if the full command line has to do the work
    from m3agent.agent.cli import app

    app.main()


if __name__ == "__main__":
    main()

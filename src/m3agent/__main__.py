"""Entry point of the console script and of `python -m m3agent`.

It imports the command line last: until that handles Ctrl-C itself, Ctrl-C ends the process without a traceback.
"""

import signal

TYPE_CHECKING = (
    False  # type checkers take it for true; `typing` would take longer to load than a warm pack runs
)
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> "NoReturn":
    """Run the command line and exit."""
    usual = signal.getsignal(signal.SIGINT)
    can_interrupt = usual is signal.default_int_handler  # otherwise the parent process ignores Ctrl-C
    if can_interrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from m3agent.cli.__main__ import main as command_line

    command_line(can_interrupt=can_interrupt)


if __name__ == "__main__":
    main()

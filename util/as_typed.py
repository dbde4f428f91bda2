"""Write a command as the user has to type it here."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path


def as_typed(command: str, root: str = "") -> str:
    """Return a command that works where the user is.

    Args:
        root: The repository that a command of git is about; empty for the present one.
    """
    program, _, rest = command.partition(" ")
    if program == "git" and root and not Path.cwd().is_relative_to(root):
        return f"git -C {shlex.quote(root)} {rest}"
    called = Path(sys.argv[0])
    # a virtual environment that is not activated: a bare `m3agent` would not be found
    if program == "m3agent" == called.name and not shutil.which(program) and shutil.which(called):
        return f"{shlex.quote(str(called))} {rest}"
    return command

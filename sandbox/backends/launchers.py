"""Provide the commands that belong to the sandbox's python3 and that the image may lack.

People and models type `python`, `pip` and `pytest`. An image may have only `python3`, or a `pip` of another
interpreter, which would answer for packages that python3 does not see. Each file here runs the python3 that is
first on PATH.

The start-up file of bash is here too. With it, the exit status of a pipeline is that of its first failed command.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from m3agent.sandbox.backends import pip_launcher
from m3agent.util.portable_source import portable_text

FOLDER = "bin"
"""Folder in the toolbox for the commands.

It comes first on PATH for commands that a person or a model writes, and last for m3agent's own.
"""
IF_MISSING = ("python", "pytest")
"""Commands that are supplied only if the folder of the image's python3 lacks them.

`pip` is always supplied: without a network the image's own does not say why it finds nothing.
"""
BASH_START = "bash_start"
"""File in the toolbox for the variable BASH_ENV of a bash program."""
_BASH_START = b"""\
# Only for the program itself, not for programs that it starts.
unset BASH_ENV
set -o pipefail
# pipefail gives the status of the last failed command. If the program ends with a pipeline, end with that of the
# first one instead. 141 is left out: such a command ended because its reader, such as head, had read enough.
trap '
{ set -- "$?" "${PIPESTATUS[@]}"; set +x; } 2>/dev/null
status=$1 first=0 last=0
shift
for code; do
  if [ "$code" != 0 ]; then last=$code; fi
  if [ "$code" != 0 ] && [ "$code" != 141 ] && [ "$first" = 0 ]; then first=$code; fi
done
if [ "$status" = "$last" ] && [ "$first" != 0 ]; then exit "$first"; fi
' EXIT
"""


@functools.cache
def _commands() -> dict[str, bytes]:
    pip = b"#!/usr/bin/env python3\n" + portable_text(pip_launcher).encode()
    return {
        "python": b'#!/bin/sh\nexec python3 "$@"\n',
        "pytest": b'#!/bin/sh\nexec python3 -m pytest "$@"\n',
        "pip": pip,
        "pip3": pip,
    }


def launcher_files(there: Iterable[str]) -> tuple[tuple[str, int, str, bytes], ...]:
    """Return the commands and the start-up file for `Sandbox._put`: path, git's mode, empty id, content.

    Args:
        there: Commands of `IF_MISSING` that the image has.
    """
    skipped = set(there)
    commands = tuple(
        (f"{FOLDER}/{name}", 0o100755, "", content)
        for name, content in _commands().items()
        if name not in skipped
    )
    return (*commands, (BASH_START, 0o100644, "", _BASH_START))

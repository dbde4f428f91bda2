"""Provide the commands that belong to the sandbox's python3 and that the image may lack.

People and models type `python`, `pip` and `pytest`. An image may have only `python3`, or a `pip` of another
interpreter, which would answer for packages that python3 does not see. Each file here runs the python3 that is
first on PATH.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path

from m3agent.sandbox.backends import pip_launcher

FOLDER = "bin"
"""Folder in the toolbox for the commands; it comes first on PATH."""
IF_MISSING = ("python", "pytest")
"""Commands that are supplied only if the folder of the image's python3 lacks them.

`pip` is always supplied: without a network the image's own does not say why it finds nothing.
"""


@functools.cache
def _commands() -> dict[str, bytes]:
    pip = b"#!/usr/bin/env python3\n" + Path(pip_launcher.__file__).read_bytes()
    return {
        "python": b'#!/bin/sh\nexec python3 "$@"\n',
        "pytest": b'#!/bin/sh\nexec python3 -m pytest "$@"\n',
        "pip": pip,
        "pip3": pip,
    }


def launcher_files(there: Iterable[str]) -> tuple[tuple[str, int, str, bytes], ...]:
    """Return the launchers for `Sandbox._put`: path, git's mode, empty id, content.

    Args:
        there: Commands of `IF_MISSING` that the image has.
    """
    skipped = set(there)
    return tuple(
        (f"{FOLDER}/{name}", 0o100755, "", content)
        for name, content in _commands().items()
        if name not in skipped
    )

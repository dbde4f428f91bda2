"""Name the backends. The settings import this module whenever the command line starts, so it imports nothing heavy."""

from typing import Literal, TypeAlias

Backend: TypeAlias = Literal["docker", "bwrap", "here"]
"""The backends. The first two isolate commands, and the first that works is the default; `here` must be named."""

ISOLATED: tuple[Backend, ...] = ("docker", "bwrap")
"""Backends that isolate commands, best first."""

WITHOUT_ISOLATION: Backend = "here"

IMAGELESS: frozenset[Backend] = frozenset({"bwrap", "here"})
"""Backends whose sandboxes have the packages of this machine instead of an image."""


def is_isolated(backend: str) -> bool:
    """Return whether a backend isolates commands; so does one that is not known, as in a log without its name."""
    return backend != WITHOUT_ISOLATION


def shown_status(status: str, backend: str) -> str:
    """Return the status of a fix for people: without isolation, it says so."""
    return status if is_isolated(backend) else f"{status} (not isolated)"

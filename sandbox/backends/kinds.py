"""Name the backends. The settings import this module whenever the command line starts, so it imports nothing heavy."""

from typing import Literal, TypeAlias

Backend: TypeAlias = Literal["docker", "bwrap"]
"""The backends, best first."""

IMAGELESS: frozenset[Backend] = frozenset({"bwrap"})
"""Backends whose sandboxes have the packages of this machine instead of an image."""

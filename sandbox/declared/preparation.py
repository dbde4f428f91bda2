"""What the environment of a test suite needs, as data. The test runners say it; `m3agent.sandbox.images` installs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Preparation:
    """What the environment of a suite needs, as data."""

    system_packages: tuple[str, ...] = ()
    """Debian packages, such as a toolchain. What the image has already is not installed."""
    commands: tuple[tuple[str, ...], ...] = ()
    """Commands that install the dependencies. They have a network and see only `inputs`."""
    offline_commands: tuple[tuple[str, ...], ...] = ()
    """Commands that finish the installation without a network and may run code of dependencies."""
    inputs: tuple[str, ...] = ()
    """Paths of the files that the commands read: manifests and lock files."""
    keep: tuple[str, ...] = ()
    """Folders that the commands make.

    A path relative to the folder of the commands, such as `node_modules`, is laid into the work tree of each sandbox. An
    absolute path stays where it is in the image, and is read-only in sandboxes.
    """
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of every command in the environment.

    Those that switch a tool's network off, such as `GOPROXY=off`, have no effect on `commands`.
    """
    notices: tuple[str, ...] = ()
    """What is missing or left out, as sentences for people."""
    root: str | None = None
    """Folder in which the commands run, such as that of a workspace, whose suites share them; None for the suite's."""
    warm: tuple[tuple[str, ...], ...] = ()
    """Commands without a network that compile dependencies ahead, into `keep`. They make a layer of their own, and may fail."""


@dataclass(frozen=True)
class SuiteNeeds:
    """A test suite of a repository, and what its environment needs."""

    name: str
    """Its name: `go:tools/cli`."""
    language: str
    """Language of its tests, for people."""
    evidence: str
    """Why it exists, for people: `scripts.test in package.json`."""
    root: str
    """Folder in which its commands run; empty for the repository's root."""
    preparation: Preparation
    """What its environment needs."""

    @property
    def label(self) -> str:
        """The name as people say it: without the folder for the suite of the whole repository."""
        return self.name.removesuffix(":.")

    def __str__(self) -> str:
        """Return one line for people."""
        return f"{self.name}: tests in {self.language}" + (f" ({self.evidence})" if self.evidence else "")

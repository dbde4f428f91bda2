"""Find the test suites of a repository, and say what they need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from m3agent.agent.repo.repository import Repository
from m3agent.sandbox.declared.preparation import SuiteNeeds
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.runners import suites, unsupported
from m3agent.tools.runners.base import MOST_TEXT, Tree
from m3agent.util.plain_file import read_inside

NO_TESTS = (
    "no tests were found here, so nothing can verify a patch: add a test that shows the fault, or name the command that runs "
    "your tests in .m3agent.toml, under [tests]"
)
"""Said about a repository in which no test suite is found."""


NAME_COMMAND = (
    "m3agent has no runner for them; name the command that runs them in .m3agent.toml, under [tests]"
)
"""What to do about tests that are recognised and cannot run."""


def without_suites(workspace: Workspace) -> str:
    """Return what is said about a tree in which no test suite is found."""
    return _without_suites(suites.tree_files(workspace.store, workspace.base))


def without_suites_on_disk(repository: Repository) -> str:
    """Return what is said about a work tree in which no test suite is found."""
    return NO_TESTS if repository.root is None else _without_suites(_on_disk(repository, repository.root))


def _without_suites(tree: Tree) -> str:
    named = unsupported.described(tree)
    return f"the tests of {named} cannot run here: {NAME_COMMAND}" if named else NO_TESTS


def suites_of(workspace: Workspace) -> tuple[SuiteNeeds, ...]:
    """Return the suites of the tree that a workspace starts from."""
    return _needs(suites.tree_files(workspace.store, workspace.base))


def suites_on_disk(repository: Repository) -> tuple[SuiteNeeds, ...]:
    """Return the suites of a repository's work tree; none for a bare repository."""
    return () if repository.root is None else _needs(_on_disk(repository, repository.root))


def _on_disk(repository: Repository, root: Path) -> Tree:
    def read(path: str) -> bytes:
        try:
            return read_inside(str(root), str(root / path), MOST_TEXT)
        except OSError:
            return b""

    return Tree(repository.list_files(), read)


def _needs(tree: Tree) -> tuple[SuiteNeeds, ...]:
    """Return what the suites of a tree need. The environment of suites that a command replaces is still its own."""
    found, running = suites.without_left_out(tree), suites.running(tree)
    needs = suites.needs_of(tree, found)
    return tuple(
        need
        if suite in running
        else replace(need, evidence=f"{need.evidence}; {running[0].evidence} runs instead")
        for suite, need in zip(found, needs, strict=True)
    )

"""Find the test suites of a repository, and say what they need."""

from __future__ import annotations

from dataclasses import replace

from m3agent.agent.repo.repository import Repository
from m3agent.sandbox.declared.preparation import SuiteNeeds
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.runners import suites
from m3agent.tools.runners.base import MOST_TEXT, Tree
from m3agent.util.plain_file import read_inside

NO_TESTS = (
    "no tests were found here, so nothing can verify a patch: add a test that shows the fault, or name the command that runs "
    "your tests in .m3agent.toml, under [tests]"
)
"""Said about a repository in which no test suite is found."""


def suites_of(workspace: Workspace) -> tuple[SuiteNeeds, ...]:
    """Return the suites of the tree that a workspace starts from."""
    return _needs(suites.tree_files(workspace.store, workspace.base))


def suites_on_disk(repository: Repository) -> tuple[SuiteNeeds, ...]:
    """Return the suites of a repository's work tree; none for a bare repository."""
    root = repository.root
    if root is None:
        return ()

    def read(path: str) -> bytes:
        try:
            return read_inside(str(root), str(root / path), MOST_TEXT)
        except OSError:
            return b""

    return _needs(Tree(repository.list_files(), read))


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

"""Find changes of a C or C++ project's build that can hide failing tests. A person must read them."""

from __future__ import annotations

from collections.abc import Mapping

from m3agent.agent.verify.review import Finding
from m3agent.sandbox.store.workspace import Patch, Workspace
from m3agent.tools.runners.registrations import macro_changes, registration_changes
from m3agent.tools.runners.suites import file_of
from m3agent.tools.test_report import TestReport


def build_changes(
    workspace: Workspace, patch: Patch, before: TestReport, after: TestReport
) -> tuple[Finding, ...]:
    """Return the changes, each at the first line of its file.

    Args:
        workspace: Holds the trees.
        patch: The patch.
        before, after: The test runs on the old and on the new tree.
    """
    if not before.registrations:
        return ()
    old, new = (
        {
            path: workspace.store.get_blob(entries[path].sha).decode(errors="replace")
            for path in patch.paths
            if path in entries
        }
        for entries in (workspace.entries(patch.base), workspace.entries(patch.tree))
    )
    return changed_registrations(before.registrations, after.registrations) + changed_macros(old, new)


def changed_registrations(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Finding, ...]:
    """Return the changes of what the build system says about the tests (`TestReport.registrations`)."""
    return tuple(
        Finding(file_of(name), 1, name, f"is built or run in another way ({changes})")
        for name, changes in registration_changes(before, after).items()
    )


def changed_macros(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Finding, ...]:
    """Return the lines of changed files, given as texts by path, that redefine the macros of assertions."""
    return tuple(Finding(path, line, text, what) for path, line, text, what in macro_changes(before, after))

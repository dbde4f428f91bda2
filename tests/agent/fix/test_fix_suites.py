"""What the suites of a repository need, as `doctor` and the environment see it."""

from __future__ import annotations

from collections.abc import Callable

from m3agent.agent.fix.sandbox_setup import suites_of
from m3agent.sandbox.store.workspace import Workspace

WorkspaceOf = Callable[[dict[str, str | bytes]], Workspace]


def test_a_command_keeps_the_environment_of_what_it_replaces(workspace_of: WorkspaceOf) -> None:
    """It mostly starts the same runner with other options."""
    table = '[tests]\ncommand = "./t"\nreport = "tap"\n'
    workspace = workspace_of({"go.mod": "module a\n", "a_test.go": "package a\n", ".m3agent.toml": table})
    assert {need.name: need.evidence.rpartition("; ")[2] for need in suites_of(workspace)} == {
        "go:.": "tests.command in .m3agent.toml runs instead",
        "command:.": "tests.command in .m3agent.toml",
    }


def test_nothing_is_installed_for_what_is_left_out(workspace_of: WorkspaceOf) -> None:
    table = '[tests]\nleave_out = ["go"]\n'
    files: dict[str, str | bytes] = {"go.mod": "module a\n", "a_test.go": "package a\n", "test_a.py": ""}
    assert [need.name for need in suites_of(workspace_of(files))] == ["pytest:.", "go:."]
    assert [need.name for need in suites_of(workspace_of({**files, ".m3agent.toml": table}))] == ["pytest:."]

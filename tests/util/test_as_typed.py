"""Commands are written as the user has to type them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from m3agent.util.as_typed import as_typed


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the program with which this process was started, which is not on PATH."""
    path = tmp_path / "my venv" / "m3agent"
    path.parent.mkdir()
    path.write_text("")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(path), "fix"])
    monkeypatch.setenv("PATH", str(tmp_path))
    return path


def test_the_program_has_its_path_where_its_name_leads_nowhere(program: Path) -> None:
    assert shlex.split(as_typed("m3agent apply")) == [str(program), "apply"]


def test_the_program_has_its_name_where_it_is_on_path(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(program.parent))
    assert as_typed("m3agent apply") == "m3agent apply"


@pytest.mark.parametrize("called", ["-c", "/usr/bin/python3", "/nowhere/m3agent"])
def test_a_process_that_was_started_otherwise_says_the_name(
    program: Path, called: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [called])
    assert as_typed("m3agent apply") == "m3agent apply"


def test_git_is_led_to_another_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, other = tmp_path / "here", tmp_path / "an other"
    (here / "src").mkdir(parents=True)
    monkeypatch.chdir(here / "src")
    assert as_typed("git diff", str(here)) == as_typed("git diff") == "git diff"
    assert shlex.split(as_typed("git diff", str(other))) == ["git", "-C", str(other), "diff"]

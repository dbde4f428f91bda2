"""No command that a user runs in a hostile checkout starts a program, or imports a module, of that checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from m3agent.cli.serve.manage import detached
from m3agent.serving.launch.installed import installed_version
from tests.conftest import git, later

PROGRAMS = ("bwrap", "dockerd", "gh", "git", "nvidia-smi", "rocm-smi", "setpriv", "uv")
MODULES = ("csv.py", "json.py", "m3agent.py", "pathlib.py", "runpy.py", "typer.py")


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with hostile programs and modules the current one; return the file that each of them writes."""
    mark, checkout = tmp_path / "ran", tmp_path / "checkout"
    (checkout / "bin").mkdir(parents=True)
    for name in PROGRAMS:
        for program in (checkout / name, checkout / "bin" / name):
            program.write_text(f"#!/bin/sh\necho $0 >> '{mark}'\n")
            program.chmod(0o755)
    for name in MODULES:
        (checkout / name).write_text(f"open({str(mark)!r}, 'a').write(__file__)\n")
    git(checkout, "init", "-q")
    monkeypatch.chdir(checkout)
    return mark


@pytest.mark.integration
@pytest.mark.parametrize(
    ("command", "entry"),
    [
        later("doctor", ""),
        ("plan", "."),
        ("sandbox exec --sandbox bwrap true", "bin"),
        *map(later, ("doctor", "doctor", "plan", "plan"), (".", "bin", "", "bin")),
        *map(later, ("sandbox exec --sandbox bwrap true",) * 2, ("", ".")),
    ],
)
def test_folders_of_path_in_the_checkout(ran: Path, command: str, entry: str) -> None:
    path = f"{entry}:{os.environ['PATH']}"
    program = [sys.executable, "-P", "-m", "m3agent.agent", *command.split()]
    subprocess.run(program, env={**os.environ, "PATH": path}, capture_output=True, check=False, timeout=120)
    assert not ran.exists(), ran.read_text()


@pytest.mark.integration
def test_a_server_in_the_background_imports_nothing_of_the_current_folder(ran: Path, tmp_path: Path) -> None:
    assert detached(["m3agent", "--version"], tmp_path) == 0
    assert not ran.exists()


@pytest.mark.integration
def test_the_version_of_an_engine_is_asked_elsewhere(ran: Path) -> None:
    assert installed_version("vllm", [sys.executable, "-m", "vllm.entrypoints"], os.environ["PATH"]) is None
    assert not ran.exists()

"""Test completion on the command line in real shells, and with the Tab key if they are interactive."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import run
from tests.conftest import later
from tests.emulated_terminal import EmulatedTerminal

pytestmark = pytest.mark.linux  # the shell is found by /proc, or by ps, which needs /proc on Linux
SHELLS = ("bash", "zsh", "fish")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Return an environment with its own home, and m3agent on the path."""
    (tmp_path / "home").mkdir()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"HOME": str(tmp_path / "home"), "ZDOTDIR": str(tmp_path / "home"), "PATH": path, "PS1": "$ "}


def said(*command: str, env: dict[str, str]) -> str:
    done = subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.integration
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_tab_completes_commands_once_it_is_installed(shell: str, env: dict[str, str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    # m3agent finds the shell among its parent processes; the `true` keeps the shell from replacing itself with m3agent
    assert "completion installed" in said(shell, "-c", "m3agent --install-completion; true", env=env)
    with EmulatedTerminal([shell, *(["--noprofile"] if shell == "bash" else []), "-i"], env=env) as terminal:
        terminal.until(lambda lines: bool(lines))
        # zsh loads the completion function at the first Tab
        terminal.press(b"m3agent ser\t" + (b"\t" if shell == "zsh" else b""))
        terminal.until(lambda lines: any(line.endswith("m3agent serve") for line in lines))
        terminal.press(b"stat\t")
        terminal.until(lambda lines: any(line.endswith("m3agent serve status") for line in lines))


def test_fish_completes_commands_once_it_is_installed(env: dict[str, str]) -> None:
    if shutil.which("fish") is None:
        pytest.skip("needs fish")
    said("fish", "-c", "m3agent --install-completion; true", env=env)
    found = said("fish", "-c", "complete --do-complete 'm3agent ser'", env=env).splitlines()
    assert [line.split("\t")[0] for line in found] == ["serve"]


@pytest.mark.integration
@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_a_script(shell: str, env: dict[str, str]) -> None:
    script = said("m3agent", env={**env, "_M3AGENT_COMPLETE": f"source_{shell}"})
    assert f"_M3AGENT_COMPLETE=complete_{shell}" in script
    if shutil.which(shell) is not None:
        assert said(shell, "-c", "m3agent --show-completion; true", env=env).strip() == script.strip()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("m3agent ser", ["serve"]),
        later("m3agent serve sta", ["status"]),
        ("m3agent context --sta", ["--stats"]),  # start.py handles this command by itself
        later("m3agent fix --sandbox b", ["bwrap"]),
    ],
)
@pytest.mark.parametrize("shell", SHELLS)
def test_completion_answers_a_shell(shell: str, line: str, first: list[str], env: dict[str, str]) -> None:
    asked = {
        **env,
        "_M3AGENT_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = run(env=asked)
    assert (done.returncode, done.stderr) == (0, "")
    answer = done.stdout
    if shell == "zsh":
        assert answer.startswith(f'_arguments \'*: :(("{first[0]}"') and answer.count('":"') <= 1
    else:
        assert [found.split("\t")[0] for found in answer.splitlines()] == first


@pytest.mark.integration
@pytest.mark.parametrize(
    "words", ["apply", "report", "sessions show", "sessions resume", "sessions fork", "sessions export"]
)
def test_names_of_sessions_are_completed(words: str, tmp_path: Path) -> None:
    for name in ("20260101-100000-aaaaaa", "20260102-100000-bbbbbb"):
        (tmp_path / "sessions" / name).mkdir(parents=True)
        (tmp_path / "sessions" / name / "events.jsonl").write_text('{"type": "session.started"}\n')

    def completed(beginning: str) -> list[str]:
        line = f"m3agent {words} {beginning}"
        asked = {"_M3AGENT_COMPLETE": "complete_bash", "COMP_WORDS": line, "M3AGENT_STATE": str(tmp_path)}
        done = run(env={**asked, "COMP_CWORD": str(len(line.split()) - 1)})
        return done.stdout.split()

    assert completed("2026") == ["20260102-100000-bbbbbb", "20260101-100000-aaaaaa"]
    assert completed("20260101") == ["20260101-100000-aaaaaa"]
    assert completed("l") == ["last"]

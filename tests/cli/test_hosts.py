"""The question on a terminal before a repository first goes to another host."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from m3agent.agent.endpoint.disclosure import announce, ask_first
from m3agent.agent.settings.settings import state_dir
from m3agent.util.errors import PermissionRefused
from tests.emulated_terminal import EmulatedTerminal

OURS = "https://ours.invalid/v1"
WHAT = "the repository and the issue go"


def test_a_host_is_asked_about_once(tmp_path: Path) -> None:
    asked: list[str] = []

    def agrees(sentence: str) -> bool:
        asked.append(sentence)
        return True

    for _ in range(2):
        ask_first(OURS, tmp_path / "new", agrees, WHAT, key="hush")
    assert asked == [
        "the repository and the issue go to ours.invalid, which is not this machine; so does its key"
    ]
    announce(OURS, tmp_path / "new", asked.append, WHAT, key=None)
    ask_first("http://127.0.0.1:8000/v1", tmp_path / "new", agrees, WHAT, key=None)
    assert len(asked) == 1


def test_a_host_that_is_refused_is_asked_about_again(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(PermissionRefused, match=r"nothing was sent to ours\.invalid"):
            ask_first(OURS, tmp_path, lambda _: False, WHAT, key=None)


@pytest.mark.integration
@pytest.mark.parametrize("answer", ["n\n", "\n"])
def test_a_terminal_is_asked_and_no_is_the_default(make_repo: Callable[..., Path], answer: str) -> None:
    repo = make_repo({"a.py": "x = 1\n"})
    command = [sys.executable, "-m", "m3agent.agent", "fix", "it is broken", "--repo", str(repo)]
    with EmulatedTerminal([*command, "--endpoint", OURS]) as terminal:
        terminal.until(lambda lines: any("Go on? [y/N]:" in line for line in lines))
        terminal.press(answer.encode())
        terminal.until(lambda lines: any("nothing was sent to ours.invalid" in line for line in lines))
        assert terminal.process.wait() == PermissionRefused.exit_code
    assert not (state_dir(os.environ) / "sessions").exists()

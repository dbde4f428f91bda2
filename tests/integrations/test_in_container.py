"""The command that all adapters run in a container, and what they read from it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from m3agent.agent.session.log_reader import LOG
from m3agent.agent.session.token_log import TokenLog
from m3agent.agent.settings.loader import OTHER_VARIABLES
from m3agent.integrations.in_container import (
    BUNDLE_VARIABLE,
    find_bundle,
    fix_command,
    fix_environment,
    read_result,
    read_trajectory,
)
from m3agent.sandbox.backends.sandbox import EQUIPPED
from m3agent.serving.client.messages import TurnTokens
from tests.agent.session.hostile_events import hostile_lines

RESULT = (
    '{"status": "verified", "isolated": false, "reason": "", "session": "/s", "paths": ["a.py"], "fixed": ["t"], '
    '"broken": [], "later": 1}'
)


@pytest.mark.integration
def test_the_command_is_one_that_a_shell_takes(tmp_path: Path) -> None:
    (tmp_path / "m3agent").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "m3agent").chmod(0o755)
    output = tmp_path / "a result"
    command = fix_command("a b/issue's.md", training=True, output=str(output))
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", command], env=env, check=True)
    words = output.read_text().splitlines()
    assert words[:2] == ["fix", "a b/issue's.md"]
    assert {"--sandbox", "here", "--result-only", "--no-probe", "--yes", "--training"} <= {*words}


def test_a_key_goes_only_to_the_server_that_was_named() -> None:
    env = fix_environment("http://10.0.0.1:8000/sessions/1/v1", "secret", "M3", "/logs/state")
    assert env["M3AGENT_API_KEY"] == "secret"
    assert env["M3AGENT_KEY_OVER_HTTP"] == "10.0.0.1:8000"
    assert env["M3AGENT_STATE"] == "/logs/state"
    without = fix_environment("https://host/v1", None, "M3")
    assert not {"M3AGENT_API_KEY", "M3AGENT_KEY_OVER_HTTP", "M3AGENT_STATE"} & without.keys()


@pytest.mark.parametrize("before", ["", "a note\n"])
def test_the_last_line_is_the_result(before: str) -> None:
    found = read_result(f"{before}{RESULT}\n")
    assert found is not None
    assert (found.status, found.isolated, found.paths) == ("verified", False, ("a.py",))


@pytest.mark.parametrize("text", ["", "\n", "no JSON", "[]", '{"status": 5}', RESULT[:-5]])
def test_no_result(text: str) -> None:
    assert read_result(text) is None


def test_the_bundle_is_named_by_an_option_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_bundle(None) is None
    one, other = tmp_path / "one.pyz", tmp_path / "other.pyz"
    one.touch()
    other.touch()
    monkeypatch.setenv(BUNDLE_VARIABLE, str(one))
    assert (find_bundle(None), find_bundle(other)) == (one, other)
    with pytest.raises(FileNotFoundError, match="make bundle"):
        find_bundle(tmp_path / "missing.pyz")


def test_variables_of_images_and_adapters_are_no_unknown_settings() -> None:
    """`m3agent fix` runs in images that m3agent made, and adapters run where `M3AGENT_BUNDLE` is set."""
    assert {EQUIPPED, BUNDLE_VARIABLE} <= OTHER_VARIABLES


def test_a_container_without_a_session_has_no_trajectory(tmp_path: Path) -> None:
    assert read_trajectory(tmp_path) is None


def test_the_newest_session_is_the_trajectory_though_it_was_killed(tmp_path: Path) -> None:
    for number, text in enumerate(["older", "newest"]):
        folder = tmp_path / "sessions" / f"20260101-00000{number}-abcdef"
        folder.mkdir(parents=True)
        lines = [json.dumps(line) for line in hostile_lines(text)]
        (folder / LOG).write_text("\n".join([*lines, '{"v": 1, "se']))
        os.utime(folder / LOG, (number, number))
        log = TokenLog(folder)
        log.add(1, TurnTokens((number,), (7,), (-0.5,)))
        log.close()
    read = read_trajectory(tmp_path)
    assert read is not None
    trajectory, tokens = read
    assert trajectory["schema_version"].startswith("ATIF")
    assert "newest" in json.dumps(trajectory)
    assert "older" not in json.dumps(trajectory)
    assert tokens[1].prompt == (1,)

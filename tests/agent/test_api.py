"""Test the Python API: it has types, prints nothing, and does the same as the command."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import m3agent
from m3agent import FixSettings, Status, UsageError, fix, fix_async
from m3agent.agent.settings.settings import SETTINGS
from tests.agent.scripted import BUGGY, DONE, FIX, ISSUE, NOT_TESTED, TEST, UNTESTED, MakeRepo
from tests.command_line import run
from tests.servers.misbehaving import MisbehavingServer, Silence

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parent.parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.slow  # quick: tests/agent/fix/test_fix.py
def test_a_fix(model: MisbehavingServer, make_repo: MakeRepo, capfd: pytest.CaptureFixture[str]) -> None:
    repo = make_repo(BUGGY)
    model.answers = [FIX, TEST, DONE]
    lines: list[dict[str, Any]] = []
    result = fix(ISSUE, repo, endpoint=model.url, api_key="sesame", on_event=lines.append)
    assert (result.status, result.exit_code, result.is_verified) == (Status.VERIFIED, 0, True)
    assert result.status == "verified"
    assert b"+    return a + b" in result.patch
    assert result.evidence is not None
    assert "test_calc.py::test_add" in result.evidence.fixed
    assert (lines[0]["type"], lines[-1]["type"]) == ("session.started", "session.finished")
    assert (result.session / "patch.diff").read_bytes() == result.patch
    assert len(repr(result)) < 400, "neither the patch nor the test reports"
    assert model.chats[0].headers["authorization"] == "Bearer sesame"
    assert "sesame" not in (result.session / "events.jsonl").read_text()
    assert capfd.readouterr() == ("", "")
    assert (repo / "calc.py").read_text() == BUGGY["calc.py"]


@pytest.mark.slow  # quick: test_a_fix
def test_applied(model: MisbehavingServer, make_repo: MakeRepo) -> None:
    repo = make_repo(UNTESTED)
    model.answers = [FIX, NOT_TESTED]
    assert fix(ISSUE, str(repo), endpoint=model.url, apply=True).status is Status.UNVERIFIED
    assert "a + b" in (repo / "calc.py").read_text()


def test_what_fails_later_is_a_result(make_repo: MakeRepo) -> None:
    repo = make_repo(BUGGY)
    reason = "No answer from a model server at 127.0.0.1:1: Connection refused; start the server or correct --endpoint."
    result = fix(ISSUE, repo, endpoint="http://127.0.0.1:1/v1")
    assert (result.status, result.exit_code, result.patch) == (Status.ERROR, 4, b"")
    assert result.reason == reason
    command = run("fix", ISSUE, "--repo", str(repo), "--endpoint", "http://127.0.0.1:1/v1")
    assert command.stderr.splitlines()[-1][2:] == reason  # after its icon


def test_what_is_wrong_is_raised(make_repo: MakeRepo, tmp_path: Path) -> None:
    repo = make_repo(BUGGY)
    with pytest.raises(UsageError, match="issue is empty"):
        fix("", repo)
    with pytest.raises(UsageError):
        fix(ISSUE, tmp_path / "nowhere")
    with pytest.raises(UsageError, match="max-turns cannot be 0"):
        fix(ISSUE, repo, max_turns=0)
    with pytest.raises(UsageError, match="two ways"):
        fix(ISSUE, repo, apply=True, branch="b")
    with pytest.raises(AttributeError, match="has no attribute 'fixx'"):
        _ = m3agent.fixx


async def test_in_an_event_loop(model: MisbehavingServer, make_repo: MakeRepo) -> None:
    repo = make_repo(BUGGY)
    with pytest.raises(RuntimeError, match=r"await m3agent\.fix_async"):
        fix(ISSUE, repo)
    model.answers = [FIX, Silence()]
    work = asyncio.ensure_future(fix_async(ISSUE, repo, endpoint=model.url))
    await asyncio.to_thread(model.wait_for_chats, 2)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


def test_the_settings_are_all_there() -> None:
    assert set(FixSettings.__annotations__) == set(SETTINGS)


def test_nothing_is_imported_before_its_first_use() -> None:
    code = "import sys, m3agent; assert not [m for m in sys.modules if m.startswith('m3agent.')]; m3agent.fix"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.slow  # quick: test_a_fix
@pytest.mark.parametrize("block", BLOCK.findall((ROOT / "docs/python.md").read_text()))
def test_the_examples_of_the_docs(block: str, tmp_path: Path) -> None:
    folder = tmp_path / "ferry"
    shutil.copytree(ROOT / "examples/ferry", folder)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
    subprocess.run(["git", "commit", "-qm", "first"], cwd=folder, check=True)
    done = subprocess.run(
        [sys.executable, "-c", block], cwd=folder, capture_output=True, text=True, check=False, timeout=170
    )
    assert (done.returncode, done.stderr) == (0, "")
    if "engine" in block:
        assert "verified" in done.stdout or "fixed: " in done.stdout
    else:
        assert "no/such/folder" in done.stdout

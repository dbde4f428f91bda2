"""This version reads the files that older versions wrote: see tests/older_state/README.md."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from m3agent.agent.context.cache import folder_of
from tests.command_line import run

pytestmark = pytest.mark.integration

ARCHIVE = Path(__file__).parent / "older_state" / "0c6ae60.tar.xz"
FOLDER = b"/AT"
"""Placeholder in the archive's texts for the folder that it is unpacked in."""
VERIFIED, LIMIT, FORK, KILLED = (
    "20261123-032954-8bb9c6",
    "20261123-033010-9688b2",
    "20261123-033015-7013f6",
    "20261123-033231-792669",
)
ATTEMPTS = ("20261123-033234-75bdaf", "20261123-033234-75bdaf-2")
AGENT = 'sh -c "sed -i s,//.3,//2, *.py; test ! -e twice.py || sleep ${SLOW:-0}" agent {issue}'


class Older:
    """The unpacked archive, and commands that run with its home folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with tarfile.open(ARCHIVE) as archive:
            archive.extraction_filter = getattr(
                tarfile, "data_filter", None
            )  # Python 3.11.3 and older have none
            archive.extractall(folder)
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink() and FOLDER in (text := path.read_bytes()):
                path.write_bytes(text.replace(FOLDER + b"/", os.fsencode(folder) + b"/"))
        self.home = folder / "home"

    def run(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command in the repository, and check its exit code."""
        env = {
            "HOME": str(self.home),
            "M3AGENT_STATE": str(self.home / ".local/state/m3agent"),
            "SLOW": "0",
        }
        done = run(*arguments, cwd=self.folder / "repo", env=env)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    def summary(self, session: str) -> dict[str, Any]:
        """Return the output of `sessions show --json`."""
        shown = json.loads(self.run("sessions", "show", session, "--json").stdout)
        assert isinstance(shown, dict)
        return shown


@pytest.fixture
def older(tmp_path: Path) -> Older:
    return Older(tmp_path / "at")


def test_sessions_are_listed(older: Older) -> None:
    listed = json.loads(older.run("sessions", "list", "--json").stdout)
    expected = {
        VERIFIED: ("verified", 7),
        LIMIT: ("limit", 3),
        FORK: ("limit", 4),
        KILLED: ("not finished", 4),
        **dict.fromkeys(ATTEMPTS, ("verified", 7)),
    }
    assert {one["id"]: (one["status"], one["turns"]) for one in listed} == expected
    assert {one["repository"] for one in listed} == {str(older.folder / "repo")}
    assert all(one["problem"] is None for one in listed)


@pytest.mark.parametrize("session", [VERIFIED, KILLED, ATTEMPTS[1]])
def test_a_session_is_reported_and_exported(older: Older, session: str) -> None:
    page = older.folder / "page.html"
    older.run("report", session, "-o", str(page))
    assert "Last van is left on the quay" in page.read_text()
    atif = older.folder / "atif.json"
    older.run("sessions", "export", session, "--format", "atif", "-o", str(atif))
    steps = json.loads(atif.read_text())["steps"]
    turns = older.summary(session)["turns"]
    answers = turns - 1 if session == KILLED else turns  # the last turn of the killed session has no answer
    assert len([step for step in steps if step["source"] == "agent"]) == answers


@pytest.mark.slow
@pytest.mark.parametrize("session", [KILLED, LIMIT])
def test_a_session_is_resumed(older: Older, session: str) -> None:
    done = older.run("sessions", "resume", session, "--max-turns", "40")
    assert "vehicle.length <= self.free" in done.stdout
    assert older.summary(session)["status"] == "verified"


@pytest.mark.slow
def test_a_session_is_forked(older: Older) -> None:
    done = older.run("sessions", "fork", VERIFIED, "--turn", "5")
    assert "vehicle.length <= self.free" in done.stdout
    assert older.summary("last")["id"] not in {VERIFIED, LIMIT, FORK, KILLED, *ATTEMPTS}


def test_settings_are_read(older: Older) -> None:
    before = json.loads((older.folder / "config-show.json").read_text())
    before["sandbox"] = before["reruns"] = None  # the tests set these by environment variables
    now = json.loads(older.run("config", "show", "--json").stdout)
    now["sandbox"] = now["reruns"] = None
    # the repository's file sets it, which has no effect since 2026-11-27
    before["thinking"] = {"value": "enabled", "origin": "default"}
    assert {name: now[name] for name in before} == before


def test_a_pack_is_the_same_with_an_older_cache_and_with_none(older: Older) -> None:
    [cache] = (older.home / ".local/state/m3agent/context").iterdir()
    # the cache's name is a digest of the path of the git folder, and that path differs here
    cache = cache.rename(folder_of(str(older.home / ".local/state/m3agent"), str(older.folder / "repo/.git")))
    before = {path.name for path in cache.iterdir()}
    text = older.run("context").stdout
    assert "self.clearance" in text
    assert {path.name for path in cache.iterdir()} > before, (
        "the rules have changed since: a new pack stands beside it"
    )
    shutil.rmtree(cache)
    assert older.run("context").stdout == text


def test_a_run_of_a_benchmark_is_reported(older: Older) -> None:
    page = older.folder / "run.html"
    older.run("eval", "report", str(older.folder / "run"), "-o", str(page))
    assert "half" in page.read_text()
    assert "twice" in page.read_text()


@pytest.mark.slow
def test_a_killed_run_of_a_benchmark_is_completed(older: Older) -> None:
    output = older.folder / "run-killed"
    first = (output / "attempts/half/1/result.json").read_bytes()
    older.run(
        *("eval", "run", str(older.folder / "set"), "-o", str(output)),
        *("--agent-command", AGENT, "--agent-name", "sed-1", "--agent-env", "SLOW"),
    )
    assert (output / "attempts/half/1/result.json").read_bytes() == first
    assert (output / "attempts/twice/1/result.json").exists()

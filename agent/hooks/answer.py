"""Answer an agent that says it is done: verify what it changed since it began."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from m3agent.agent.certificate.build import Change
from m3agent.agent.certificate.statement import Base, Source
from m3agent.agent.context.output import redact_text
from m3agent.agent.exit_codes import FAILURES
from m3agent.agent.hooks.agents import Moment
from m3agent.agent.patches import change as patches
from m3agent.agent.patches.verification import VerifyRequest, verify_change
from m3agent.agent.repo.repository import Repository, open_repository
from m3agent.agent.repo.snapshot import scratch_folder, workspace_of
from m3agent.agent.settings.loader import load_settings
from m3agent.agent.verify.feedback import MOST_NAMED, named_tests
from m3agent.agent.verify.verify import Verification
from m3agent.sandbox.store.workspace import Workspace
from m3agent.util.private_file import read_file, write_file
from m3agent.util.sanitize import printable_line

FOLDER = "hook-sessions"
"""Folder in the state folder, with one folder for each session of an agent."""
RECORD = "record.json"
MOST_DAYS = 14
"""Days after which an agent's session is forgotten."""
WRONG = {"lost", "turned_red", "tampering", "own_test_red", "cut_short", "gone", "check_worse"}
"""Rules by which a change itself is wrong. Tests that are red before and after it are no reason to go on."""

Answer = dict[str, str]
"""What the agent gets, in the form that Claude Code defined."""


@dataclass
class Record:
    """What is known about an agent's session."""

    start: str
    """Tree id of the work tree when the agent began."""
    commit: str
    """The commit that was checked out then."""
    judged: str = ""
    """Tree id of the last verdict."""
    rounds: int = 0
    """Answers in a row that told the agent to go on."""
    wrong: str = ""
    """What the person hears if the agent ends with the change that was judged; empty if that change is not wrong."""


@dataclass(frozen=True)
class Hook:
    """The hook of one agent."""

    agent: str
    """The agent's name."""
    state: Path
    """The state folder."""
    rounds: int
    """Most answers in a row that tell the agent to go on."""
    minutes: float
    """Most minutes of a verdict."""

    async def answer(self, moment: Moment, asked: Mapping[str, Any]) -> Answer:
        """Return the answer to an event. No failure of m3agent stops the agent."""
        try:
            async with asyncio.timeout(60 * self.minutes):
                return await self._answer(moment, asked)
        except TimeoutError:
            return _told(f"no verdict, because the tests took longer than {self.minutes:g} minutes")
        except FAILURES as error:
            return {} if moment == "start" else _told(f"no verdict: {error}")

    async def _answer(self, moment: Moment, asked: Mapping[str, Any]) -> Answer:
        cwd = Path(str(asked.get("cwd") or Path.cwd()))
        root = _root(cwd)
        if root is None:
            return {}
        folder = self._folder(asked, root)
        if moment == "start" and (folder / RECORD).exists():
            return {}
        repository = await asyncio.to_thread(open_repository, cwd)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        now = await asyncio.to_thread(workspace_of, repository, folder, _nothing)
        record = _read(folder)
        if record is None:
            _write(folder, Record(now.base, repository.head))
            _forget(self.state / FOLDER, folder)
            return {}
        if moment == "start" or now.base == record.start:
            return {}
        if now.base == record.judged:
            return {"systemMessage": record.wrong} if record.wrong else {}
        record.judged = now.base
        if not asked.get("stop_hook_active"):
            record.rounds = 0
        evidence = await self._verdict(repository, now, record)
        answer = self._said(evidence, record)
        _write(folder, record)
        return answer

    async def _verdict(self, repository: Repository, now: Workspace, record: Record) -> Verification:
        settings = load_settings(repository.root or repository.git_dir, {}, os.environ).settings
        workspace = Workspace(now.store, record.start)
        patch = workspace.patch(now.base)
        base = Base(commit=record.commit, tree=record.start, uncommitted=0)
        change = Change(workspace, patch, patch.text, base, Source(kind="work tree", commit=None))
        request = VerifyRequest(patches.Source(), repository, settings)
        with scratch_folder(self.state) as logs:
            return (await verify_change(change, request, self.state, logs, _nothing))[0]

    def _said(self, evidence: Verification, record: Record) -> Answer:
        """Return the answer for a verdict, and count it."""
        told = _told(f"{evidence.verdict}: {evidence.reason}")
        record.wrong = told["systemMessage"] if evidence.rule in WRONG else ""
        if not record.wrong:
            record.rounds = 0
            return told
        if record.rounds >= self.rounds:
            return _told(f"{evidence.verdict}: {evidence.reason}; the agent was told {record.rounds} times")
        record.rounds += 1
        return {"decision": "block", "reason": _message(evidence, record.rounds, self.rounds)}

    def _folder(self, asked: Mapping[str, Any], root: Path) -> Path:
        """Return the folder of a session in a repository. The agent may be in any folder there, as after `cd`."""
        name = json.dumps([self.agent, str(asked.get("session_id")), str(root)])
        return self.state / FOLDER / hashlib.sha256(name.encode()).hexdigest()[:32]


def _message(evidence: Verification, number: int, most: int) -> str:
    """Return what the agent is told about a change that is wrong."""
    first = (
        "This is not done. m3agent ran the tests in fresh sandboxes, without your changes of this session and with them "
        f"(answer {number} of at most {most}): {evidence.reason}."
    )
    red = {
        "These tests pass without your changes and do not pass with them": evidence.broken,
        "These tests that your changes add or edit are red": evidence.added_red,
    }
    tests = [named_tests(title, names, evidence.errors) for title, names in red.items() if names]
    tests += [str(problem) for check in evidence.checks for problem in check.new[:MOST_NAMED]]
    last = (
        "Correct your changes, or a test that is itself wrong. Then run the tests and say that you are done."
    )
    return redact_text("\n\n".join([first, *tests, last]))


def _told(text: str) -> Answer:
    """Return an answer that lets the agent stop and tells the person something."""
    return {"systemMessage": printable_line(f"m3agent: {text}", 500)}


def _root(folder: Path) -> Path | None:
    """Return the root of the repository that a folder is in; None if it is in none."""
    try:
        real = folder.resolve()
        return next((each for each in (real, *real.parents) if (each / ".git").exists()), None)
    except (OSError, ValueError, RuntimeError):  # no folder can have this name
        return None


def _nothing(_: str) -> None:
    """Drop a note: an agent shows what a hook prints as an error."""


def _read(folder: Path) -> Record | None:
    data = read_file(str(folder / RECORD))
    return None if data is None else Record(**json.loads(data))


def _write(folder: Path, record: Record) -> None:
    write_file(str(folder / RECORD), json.dumps(asdict(record)).encode())


def _forget(sessions: Path, last: Path) -> None:
    """Remove the sessions that began long before the last one. A file server's clock may differ from this machine's."""
    now = last.stat().st_mtime
    for folder in sessions.iterdir():
        if now - folder.stat().st_mtime > 86400 * MOST_DAYS:
            shutil.rmtree(folder, ignore_errors=True)

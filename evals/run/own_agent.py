"""Run `m3agent fix` as the agent, in a separate process, exactly as a user would run it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from m3agent.agent.endpoint.choice import EmbeddedEngine, EndpointChoice, ModelServer
from m3agent.agent.forge.address import SERVERS
from m3agent.agent.session.catalog import session_folders
from m3agent.agent.session.log_reader import LOG, text
from m3agent.agent.session.record import SessionRecord, read_session
from m3agent.agent.session.session import PATCH
from m3agent.agent.settings.settings import SETTINGS, Settings
from m3agent.evals.data.results import AttemptUsage, Verdict
from m3agent.evals.run.child import last_words, run_child
from m3agent.evals.run.parts import Assignment, Delivery
from m3agent.serving.client.http import host_of
from m3agent.util.errors import EnvironmentFault, ServerFault, Status, UsageError

STATE, ISSUE, NO_CONFIG = "state", "issue.md", "config"
"""In an attempt's folder: the agent's state folder, its issue, and a folder without a settings file."""
TOKENS = ("OPENAI_API_KEY", *(name for server in SERVERS.values() for name in server.tokens))
"""Variables that the agent does not get: with a token it might look up the fix.

The key of the model server is passed under another name.
"""
FIXED = ("image", "environment", "sandbox", "allow_net", "attempts", "yes", "github_api", "mcp")
"""Settings that the runner decides.

The image determines where the agent runs. The agent has no network and no external tools, asks no questions
and makes one attempt.
"""
MACHINE_EXITS = (EnvironmentFault.exit_code, ServerFault.exit_code)
REFUSED_PATCH = "PathEscapes"
"""The one sandbox error that the agent causes: its patch leads out of the work tree, or into git's files."""
LOOK_SECONDS = 0.5  # interval of the checks whether the model has answered


def relevant_settings(settings: Settings) -> dict[str, str]:
    """Return the settings that an attempt depends on, by name.

    They override a repository's own settings file.
    """
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in settings.public().items()
        if name not in FIXED and value is not None
    }


@dataclass(frozen=True, repr=False)  # it may hold secrets
class OwnAgent:
    """Run m3agent."""

    settings: Settings
    endpoint: EndpointChoice
    """The server, chosen once, so that all attempts talk to the same one."""
    seconds: float

    @property
    def attempt_settings(self) -> dict[str, str]:
        """The settings that each attempt is given, with the server that was chosen; no key is among them."""
        values = relevant_settings(self.settings)
        if isinstance(self.endpoint, ModelServer):
            return values | {"endpoint": self.endpoint.url}
        return values | {"engine": "embedded"}

    @property
    def shares_prefix(self) -> bool:
        """True for a server at an endpoint: it is not restarted for each attempt and keeps its cache."""
        return isinstance(self.endpoint, ModelServer)

    async def work(self, given: Assignment) -> Delivery:
        """Run the agent until it ends and read its session.

        Raises:
            OSError: The attempt's folder cannot be written.
        """
        issue = given.folder / ISSUE
        issue.write_text(given.task.statement, encoding="utf-8", errors="surrogateescape")
        (given.folder / NO_CONFIG).mkdir()
        argv = [sys.executable, "-P", "-m", "m3agent.agent", "fix", str(issue), "--repo", str(given.repo)]
        if given.image:
            argv += ["--image", given.image]
        watch = asyncio.create_task(_watch(given))
        try:
            end = await run_child(
                argv,
                folder=given.folder,
                cwd=given.folder,
                env=self._environment(given),
                seconds=self.seconds,
                hold=given.hold,
            )
        finally:
            watch.cancel()
        return await asyncio.to_thread(delivery_of, given.folder, end.exit_code, end.timed_out)

    def _environment(self, given: Assignment) -> dict[str, str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("M3AGENT_") and name not in TOKENS
        }
        values = self.attempt_settings
        if isinstance(self.endpoint, EmbeddedEngine):  # without a different seed, all attempts would be equal
            values["seed"] = str(self.endpoint.seed + given.number - 1)
        elif self.endpoint.key is not None:
            # the choice of the server decided that the key may go there
            values |= {"api_key": self.endpoint.key, "key_over_http": host_of(self.endpoint.url)}
        values |= {"yes": "true", "environment": "off", "mcp": "false"}
        return {
            **inherited,
            **{SETTINGS[name].variable: value for name, value in values.items()},
            "M3AGENT_STATE": str(given.folder / STATE),
            "XDG_CONFIG_HOME": str(given.folder / NO_CONFIG),
        }


def delivery_of(folder: Path, exit_code: int, timed_out: bool) -> Delivery:
    """Return what `m3agent fix` left in an attempt's folder."""
    words = last_words(folder) or "it printed nothing"
    crashed = Delivery("crashed", f"exit code {exit_code}: {words}", fault=Verdict.ERROR, timed_out=timed_out)
    sessions = session_folders(folder / STATE)
    if not sessions:
        if exit_code in MACHINE_EXITS:
            return Delivery("error", words, fault=Verdict.INFRA)
        return crashed if exit_code != UsageError.exit_code else Delivery("error", words, fault=Verdict.ERROR)
    session = sessions[0]
    try:
        record = read_session(session)
    except UsageError as error:
        return Delivery("crashed", str(error), fault=Verdict.ERROR, timed_out=timed_out)
    patch = b""
    with contextlib.suppress(OSError):
        patch = (session / PATCH).read_bytes()
    counts = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "turns")
    used = {name: None if (value := record.total(name)) is None else int(value) for name in counts}
    ended = crashed
    if record.ended:
        status, reason = (text(record.ended, name) for name in ("status", "reason"))
        fault = _fault(record, exit_code, timed_out)
        ended = Delivery(status, reason, fault=fault, timed_out=timed_out)
    return replace(
        ended,
        patch=patch,
        session=session,
        usage=AttemptUsage(**used, cost=record.total("price")),
        stalls=dict(Counter(text(line, "rule") for line in record.of_type("stall"))),
    )


def _fault(record: SessionRecord, exit_code: int, timed_out: bool) -> Verdict | None:
    """Return the verdict that a session's end implies; None if there may be a patch to grade."""
    status = text(record.ended, "status")
    if status == Status.INTERRUPTED:
        return None if timed_out else Verdict.INFRA  # someone else interrupted it
    if status != Status.ERROR:
        return None
    kinds = [text(line, "kind") for line in record.errors]
    if exit_code in MACHINE_EXITS and kinds[-1:] != [REFUSED_PATCH]:
        return Verdict.INFRA
    return Verdict.ERROR


async def _watch(given: Assignment) -> None:
    """Call `given.warm` when the model has answered for the first time: it has then read the repository."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        for log in (given.folder / STATE / "sessions").glob(f"*/{LOG}"):
            with contextlib.suppress(OSError):
                if b'"type":"message"' in log.read_bytes():
                    given.warm()
                    return

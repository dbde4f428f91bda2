"""Write the stop hook into an agent's own configuration, and take it out again, byte for byte."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from m3agent.agent.hooks.agents import Agent, Moment, plugin
from m3agent.agent.hooks.json_edit import NotExtensible, with_entries, without_commands, without_pieces
from m3agent.util.errors import EnvironmentFault, UsageError, reason_of
from m3agent.util.plain_file import read_first
from m3agent.util.private_file import read_file, write_file
from m3agent.util.sanitize import quoted

FOLDER = "hooks"
"""Folder in the state folder. It has what was written into each agent's configuration."""
MOST = 16 << 20
"""Most bytes of a configuration."""
MARGIN = 30
"""Seconds that an agent waits longer than the hook works."""
MOMENTS: tuple[Moment, ...] = ("start", "stop")


@dataclass(frozen=True)
class Change:
    """A change of an agent's configuration, which is not made yet."""

    agent: Agent
    path: Path
    """The file, without symbolic links."""
    before: bytes | None
    """What it has; None if there is no file."""
    after: bytes | None
    """What it will have; None to remove it."""
    pieces: Sequence[str] = ()
    """The texts that are added; none if the hook is removed."""
    folders: Sequence[str] = ()
    """Folders that were made for the file, the innermost first."""

    def diff(self) -> str:
        """Return the change as a unified diff."""
        old, new = (
            [] if data is None else data.decode(errors="replace").splitlines()
            for data in (self.before, self.after)
        )
        return "\n".join(difflib.unified_diff(old, new, str(self.path), str(self.path), lineterm="")) + "\n"


@dataclass(frozen=True)
class Hooks:
    """The hooks of one user.

    Raises (all methods):
        UsageError: The configuration is not one that can be changed.
        EnvironmentFault: A file cannot be read or written.
    """

    state: Path
    """The state folder."""
    env: Mapping[str, str]
    """The environment variables that name the agents' folders."""

    def places(self, agent: Agent) -> dict[Path, bool]:
        """Return the agent's present configuration and those with the hook, and whether each has it."""
        known = {Path(receipt["path"]): True for receipt in self._receipts(agent)}
        return {self._path(agent): False} | known

    def install(self, agent: Agent, program: Sequence[str], rounds: int, minutes: float) -> Change:
        """Return the change that installs the hook, in the place of an earlier one.

        Args:
            rounds: Most answers in a row that tell the agent to go on.
            minutes: Most minutes of a verdict.
        """
        path = self._path(agent)
        before, receipt = _read(path), self._receipt(agent, path)
        text = self._without(agent, path, _text(path, before), receipt)
        limits = [f"--rounds={rounds}", f"--minutes={minutes:g}"]
        commands: dict[Moment, list[str]] = {
            each: [*program, "hooks", "run", agent.name, each, *limits] for each in MOMENTS
        }
        if agent.plugin:
            if text:
                raise UsageError(f"{quoted(str(path))} exists and is not m3agent's: move it away first")
            text = plugin(commands)
            pieces = [text]
        else:
            timeout = int((60 * minutes + MARGIN) * agent.unit)
            hooks = {each: {"type": "command", "command": shlex.join(commands[each])} for each in MOMENTS}
            entries = {
                agent.events[each]: {"hooks": [{**hooks[each], "timeout": timeout}]} for each in MOMENTS
            }
            text, pieces = _edited(path, lambda: with_entries(text, entries))
        made = receipt.get("folders") or [str(each) for each in path.parents if not each.exists()]
        return Change(agent, path, before, text.encode(), pieces, made)

    def uninstall(self, agent: Agent) -> Change | None:
        """Return the change that removes the hook from one configuration; None if it is in none."""
        changes = (self._removal(agent, path) for path in self.places(agent))
        return next((change for change in changes if change is not None), None)

    def _removal(self, agent: Agent, path: Path) -> Change | None:
        before, receipt = _read(path), self._receipt(agent, path)
        if before is None:
            return Change(agent, path, None, None) if receipt else None
        old = _text(path, before)
        text = self._without(agent, path, old, receipt)
        if text == old and not receipt:
            return None
        gone = receipt.get("created", False) and not text
        return Change(agent, path, before, None if gone else text.encode(), (), receipt.get("folders", ()))

    def make(self, change: Change) -> None:
        """Make a change: completely, or not at all."""
        path, receipt = change.path, self._receipt(change.agent, change.path)
        if _read(path) != change.before:
            raise UsageError(f"{quoted(str(path))} changed meanwhile: try again")
        try:
            if change.after is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                _replace(path, change.after)
            else:
                path.unlink(missing_ok=True)
                for folder in change.folders:
                    with contextlib.suppress(OSError):  # it is in use
                        Path(folder).rmdir()
            self._keep(change, created=receipt.get("created", change.before is None))
        except OSError as error:
            raise EnvironmentFault(f"{quoted(str(path))} cannot be written: {reason_of(error)}") from None

    def _path(self, agent: Agent) -> Path:
        return agent.path(self.env).resolve()

    def _kept(self, agent: Agent) -> Path:
        return self.state / FOLDER / f"{agent.name}.json"

    def _receipts(self, agent: Agent) -> list[dict[str, Any]]:
        """Return what was written into each of an agent's configurations."""
        try:
            kept = json.loads(read_file(str(self._kept(agent))) or b"[]")
        except ValueError:
            return []
        listed = kept if isinstance(kept, list) else [kept]  # older versions kept one object
        return [each for each in listed if isinstance(each, dict) and "path" in each]

    def _receipt(self, agent: Agent, path: Path) -> dict[str, Any]:
        """Return what was written into a configuration; empty if nothing was."""
        return next((each for each in self._receipts(agent) if each["path"] == str(path)), {})

    def _keep(self, change: Change, *, created: bool) -> None:
        kept, path = self._kept(change.agent), str(change.path)
        receipts = [each for each in self._receipts(change.agent) if each["path"] != path]
        if change.pieces:
            made = {"pieces": change.pieces, "created": created, "folders": change.folders}
            receipts.append({"path": path, **made})
        if not receipts:
            kept.unlink(missing_ok=True)
            return
        kept.parent.mkdir(mode=0o700, exist_ok=True)
        write_file(str(kept), json.dumps(receipts).encode())

    def _without(self, agent: Agent, path: Path, text: str, receipt: Mapping[str, Any]) -> str:
        """Return a configuration without the hook: byte for byte as before, unless someone changed the hook's own lines."""
        same = without_pieces(text, receipt["pieces"]) if receipt else None
        if same is not None:
            return same
        if agent.plugin:
            if receipt and text:
                raise UsageError(
                    f"{quoted(str(path))} was changed after m3agent wrote it: remove it yourself"
                )
            return text
        ours = re.compile(rf"\bhooks run {agent.name} (?:start|stop)\b")
        return _edited(path, lambda: without_commands(text, ours)) if ours.search(text) else text


def _edited(path: Path, edit: Any) -> Any:
    try:
        return edit()
    except NotExtensible as error:
        raise UsageError(
            f"{quoted(str(path))} cannot be extended, because {error}: correct it first"
        ) from None


def _read(path: Path) -> bytes | None:
    """Return the bytes of a configuration file; None if the file does not exist."""
    try:
        data = read_first(str(path), MOST + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EnvironmentFault(f"{quoted(str(path))} cannot be read: {reason_of(error)}") from None
    if len(data) > MOST:
        raise UsageError(
            f"{quoted(str(path))} is larger than {MOST >> 20} MiB: it is no agent's configuration"
        )
    return data


def _text(path: Path, data: bytes | None) -> str:
    try:
        return (data or b"").decode()
    except UnicodeDecodeError:
        raise UsageError(f"{quoted(str(path))} is not UTF-8: correct it first") from None


def _replace(path: Path, data: bytes) -> None:
    """Replace a file atomically. It keeps its permissions. Raises OSError."""
    beside = path.with_name(f".{path.name}.m3agent-{os.getpid()}")
    write_file(str(beside), data)
    try:
        if path.exists():
            beside.chmod(path.stat().st_mode & 0o7777)
        beside.rename(path)
    except OSError:
        beside.unlink()
        raise

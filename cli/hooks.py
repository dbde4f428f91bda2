"""`m3agent hooks`: install what answers another agent's "done" with a verdict."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from m3agent.cli.common import AsJson, argument, option, print_bytes, print_json, run, state_folder
from m3agent.util.errors import PermissionRefused, UsageError
from m3agent.util.sanitize import print_note, print_text, printable_line
from m3agent.util.table import columns

if TYPE_CHECKING:
    from m3agent.agent.hooks.agents import Agent
    from m3agent.agent.hooks.install import Change, Hooks

MOST_ASKED = 1 << 20
"""Most bytes of an agent's event."""

hooks_app = typer.Typer(
    help='Answer another agent that says "done" with a verdict (stop hooks).', no_args_is_help=True
)

Name = Annotated[str, argument("claude-code, codex, opencode, qwen-code or gemini-cli.", "AGENT")]
Rounds = Annotated[int, option("Most times in a row that the agent is told to go on.", "N", min=0)]
Minutes = Annotated[float, option("Most minutes of a verdict. Then the agent may stop.", "N", min=0.1)]
Yes = Annotated[bool, option("--yes", "Do not ask before the file is changed.")]


@hooks_app.command("install")
def install(name: Name, rounds: Rounds = 2, minutes: Minutes = 10, yes: Yes = False) -> None:
    """Write the hook into the agent's own configuration, after showing the change and asking.

    If an agent then says that it is done and its changes break tests, it hears which, and goes on. Exit codes: 0 installed; 2
    wrong use; 5 refused.
    """
    agent = _agent(name)
    hooks = _hooks()
    change = hooks.install(agent, _program(), rounds, minutes)
    if change.before == change.after:
        print_note(printable_line(f"nothing to change: {change.path} has the hook", 4096))
        return
    _make(hooks, change, yes=yes)
    print_note(
        printable_line(f"installed in {change.path}; take it out with m3agent hooks uninstall {name}", 4096)
    )
    if agent.afterwards:
        print_note(f"next: {agent.afterwards}")


@hooks_app.command("uninstall")
def uninstall(name: Name, yes: Yes = False) -> None:
    """Take the hook out of the agent's configuration. What others wrote there stays as it is.

    Exit codes: 0 it is not there any more; 2 wrong use; 5 refused.
    """
    hooks, agent = _hooks(), _agent(name)
    change = hooks.uninstall(agent)
    if change is None:
        print_note(f"not installed: {name}")
    while change is not None:
        _make(hooks, change, yes=yes)
        print_note(printable_line(f"removed from {change.path}", 4096))
        change = hooks.uninstall(agent)


@hooks_app.command("list")
def list_hooks(as_json: AsJson = False) -> None:
    """List the agents, whether the hook is installed, and where."""
    from m3agent.agent.hooks.agents import AGENTS

    hooks = _hooks()
    rows = [
        {"agent": agent.name, "installed": has_hook, "file": str(path)}
        for agent in AGENTS.values()
        for path, has_hook in hooks.places(agent).items()
    ]
    if as_json:
        print_json(rows)
        return
    cells = [
        (str(row["agent"]), "yes" if row["installed"] else "no", printable_line(str(row["file"])))
        for row in rows
    ]
    print_text(columns([("AGENT", "INSTALLED", "FILE"), *cells]), end="")


@hooks_app.command("run")
def run_hook(
    name: Name,
    moment: Annotated[str, argument("start or stop.", "MOMENT")],
    rounds: Rounds = 2,
    minutes: Minutes = 10,
) -> None:
    """Answer an event of an agent, which standard input has as JSON. The agent starts this command.

    Exit codes: 0 whatever the verdict: the answer has it; 2 wrong use.
    """
    from m3agent.agent.hooks.answer import Hook

    if moment not in ("start", "stop"):
        raise UsageError(f"the moment is start or stop, not {moment[:80]!r}")
    try:
        asked = json.loads(sys.stdin.buffer.read(MOST_ASKED))
    except (ValueError, RecursionError):
        asked = None
    if not isinstance(asked, dict):
        raise UsageError(
            "standard input has no event of an agent: `m3agent hooks install` lets an agent send it"
        )
    hook = Hook(_agent(name).name, state_folder(), rounds, minutes)
    answer = run(hook.answer("start" if moment == "start" else "stop", asked))
    print_bytes(json.dumps(answer).encode() + b"\n")


def _make(hooks: Hooks, change: Change, *, yes: bool) -> None:
    """Show a change, ask, and make it. Raises PermissionRefused if nobody agrees."""
    from m3agent.cli.hosts import confirmed, has_person

    for line in change.diff().splitlines():
        print_note(printable_line(line, 500))
    if not yes:
        if not has_person():
            raise PermissionRefused("nobody can be asked here: add --yes to change the file")
        if not confirmed(f"Change {printable_line(str(change.path), 4096)}?"):
            raise PermissionRefused("nothing was changed")
    hooks.make(change)


def _agent(name: str) -> Agent:
    from m3agent.agent.hooks.agents import AGENTS

    agent = AGENTS.get(name)
    if agent is None:
        raise UsageError(f"there is no agent {name[:80]!r}: the agents are {', '.join(AGENTS)}")
    return agent


def _hooks() -> Hooks:
    from m3agent.agent.hooks.install import Hooks

    return Hooks(state_folder(), os.environ)


def _program() -> list[str]:
    """Return the words that start m3agent: an agent may have another PATH."""
    program = shutil.which(sys.argv[0]) or shutil.which("m3agent")
    if program is not None and Path(program).name == "m3agent":
        return [str(Path(program).absolute())]
    return [sys.executable, "-m", "m3agent.cli"]

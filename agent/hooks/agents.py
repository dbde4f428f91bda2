"""The agents that m3agent can hook into, as a table: where their configuration is, its form, and their events."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Moment = Literal["start", "stop"]
"""When a hook runs: before the agent works on a prompt, or when it says that it is done."""


@dataclass(frozen=True)
class Agent:
    """An agent."""

    name: str
    """Its name on the command line."""
    variable: str
    """The environment variable that names its folder."""
    folder: str
    """Its folder in the user's home; in the folder that the variable names, if `below`."""
    file: str
    """Its configuration file in this folder."""
    events: Mapping[Moment, str]
    """How it calls the moments."""
    unit: int = 1
    """How many of its units of time a second has."""
    below: bool = False
    """Whether the variable names the place of the folder, not the folder itself."""
    plugin: bool = False
    """Whether m3agent writes the whole file, a program. Otherwise the file is JSON, and m3agent adds entries to it."""
    afterwards: str = ""
    """What the user must do after an installation."""

    def path(self, env: Mapping[str, str]) -> Path:
        """Return the configuration file."""
        named, home = env.get(self.variable), Path(env.get("HOME") or Path.home())
        if not named:
            return home / self.folder / self.file
        return Path(named) / (Path(self.folder).name if self.below else "") / self.file


CLAUDE: Mapping[Moment, str] = {"start": "UserPromptSubmit", "stop": "Stop"}
GEMINI: Mapping[Moment, str] = {"start": "BeforeAgent", "stop": "AfterAgent"}
TRUST = "start codex once and trust the two new hooks; it does not run them before"
AGENTS = {
    agent.name: agent
    for agent in (
        Agent("claude-code", "CLAUDE_CONFIG_DIR", ".claude", "settings.json", CLAUDE),
        Agent("codex", "CODEX_HOME", ".codex", "hooks.json", CLAUDE, afterwards=TRUST),
        Agent(
            "opencode",
            "XDG_CONFIG_HOME",
            ".config/opencode",
            "plugin/m3agent.js",
            {},
            below=True,
            plugin=True,
        ),
        Agent("qwen-code", "QWEN_HOME", ".qwen", "settings.json", CLAUDE, unit=1000),
        Agent("gemini-cli", "GEMINI_CLI_HOME", ".gemini", "settings.json", GEMINI, unit=1000, below=True),
    )
}
"""All agents by their names."""

PLUGIN = """\
// Written by m3agent; `m3agent hooks uninstall opencode` removes it.
import { spawn } from "node:child_process"

const COMMANDS = %s

const ask = (moment, session, cwd, again) =>
  new Promise((resolve) => {
    const [program, ...words] = COMMANDS[moment]
    const child = spawn(program, words, { stdio: ["pipe", "pipe", "ignore"] })
    let output = ""
    child.on("error", () => resolve({}))
    child.stdout.on("data", (data) => (output += data))
    child.on("close", () => {
      try {
        resolve(JSON.parse(output))
      } catch {
        resolve({})
      }
    })
    child.stdin.on("error", () => {})
    child.stdin.end(JSON.stringify({ session_id: session, cwd, stop_hook_active: again }))
  })

export const M3agent = async ({ client, directory }) => {
  const told = new Set()
  return {
    "chat.message": async ({ sessionID }) => {
      if (!told.has(sessionID)) await ask("start", sessionID, directory, false)
    },
    event: async ({ event }) => {
      if (event.type !== "session.idle") return
      const id = event.properties.sessionID
      const answer = await ask("stop", id, directory, told.delete(id))
      if (answer.decision !== "block") {
        const body = { message: answer.systemMessage, variant: "warning" }
        if (answer.systemMessage) await client.tui?.showToast({ body }).catch(() => {})
        return
      }
      told.add(id)
      await client.session.prompt({ path: { id }, body: { parts: [{ type: "text", text: answer.reason }] } })
    },
  }
}
"""


def plugin(commands: Mapping[Moment, Sequence[str]]) -> str:
    """Return opencode's plugin, which starts these commands."""
    return PLUGIN % json.dumps(commands)

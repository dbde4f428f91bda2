"""A client of the Agent Client Protocol by its Python SDK, which follows a script; client.mjs is the same in TypeScript.

Arguments: the repository, the script (JSON), a file for all messages, the agent's command. Standard output: what was heard, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any, cast

from acp import PROTOCOL_VERSION, RequestError, spawn_agent_process, text_block
from acp.schema import AllowedOutcome, RequestPermissionResponse

repo, script, log, *command = sys.argv[1:]
PLACE: dict[str, Any] = {"cwd": repo, "mcp_servers": []}


class Client:
    """Follows the steps of one connection."""

    def __init__(self) -> None:
        self.agent: Any = None
        self.step: dict[str, Any] = {}
        self.heard: dict[str, Any] = {}
        self.steered: list[asyncio.Future[Any]] = []

    def on_connect(self, conn: Any) -> None:
        """Do nothing: `main` has the connection."""

    async def request_permission(
        self, tool_call: Any, options: list[Any], **_: Any
    ) -> RequestPermissionResponse:
        self.heard["asked"].append(tool_call.tool_call_id)
        chosen = next(each for each in options if each.kind == self.step["permission"])
        return RequestPermissionResponse(
            outcome=AllowedOutcome(outcome="selected", option_id=chosen.option_id)
        )

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        kind = update.session_update
        self.heard["updates"][kind] = self.heard["updates"].get(kind, 0) + 1
        if kind == "agent_message_chunk":
            self.heard["said"] += update.content.text
        if kind != "tool_call":
            return
        self.heard["calls"].append(update.tool_call_id)
        if len(self.heard["calls"]) > 1:
            return
        if self.step.get("cancel"):
            await self.agent.cancel(session_id=session_id)
        if text := self.step.get("steer"):
            work = self.agent.prompt(session_id=session_id, prompt=[text_block(text)])
            self.steered.append(asyncio.ensure_future(work))

    async def follow(self, step: dict[str, Any], session: dict[str, str]) -> dict[str, Any]:
        """Make a step, and return what was heard meanwhile."""
        self.step, self.steered = step, []
        self.heard = {"updates": {}, "calls": [], "asked": [], "said": "", "steered": None}
        calls: dict[str, Any] = {
            "new": lambda: self.agent.new_session(**PLACE),
            "load": lambda: self.agent.load_session(**PLACE, **session),
            "close": lambda: self.agent.close_session(**session),
            "list": lambda: self.agent.list_sessions(),
            "set": lambda: self.agent.set_config_option(
                config_id=step["option"], value=step["value"], **session
            ),
            "prompt": lambda: self.agent.prompt(prompt=[text_block(step["text"])], **session),
        }
        try:
            answer = await calls[step["do"]]()
            self.heard["answer"] = answer.model_dump(mode="json", by_alias=True)
            if step["do"] == "new":
                session["session_id"] = answer.session_id
        except RequestError as error:
            self.heard["answer"] = {"error": str(error)}
        for prompt in self.steered:
            self.heard["steered"] = (await prompt).stop_reason
        await asyncio.sleep(0.3)  # the SDK handles each notification in a task of its own
        return self.heard


def note(event: Any) -> None:
    """Write a message to the log."""
    direction = "to client" if str(event.direction.value) == "incoming" else "to agent"
    with Path(log).open("a") as file:
        file.write(json.dumps({"direction": direction, "message": event.message}) + "\n")


async def main() -> None:
    """Follow the script: a list of connections, each a list of steps."""
    results, session = list[dict[str, Any]](), dict[str, str]()
    for steps in json.loads(script):
        client = Client()
        options: dict[str, Any] = {"use_unstable_protocol": True, "observers": [note], "env": os.environ}
        async with spawn_agent_process(
            cast(Any, client), *command, transport_kwargs={"stderr": None}, **options
        ) as (
            agent,
            _,
        ):
            client.agent = agent
            await agent.initialize(protocol_version=PROTOCOL_VERSION)
            results += [await client.follow(step, session) for step in steps]
    sys.stdout.write(json.dumps(results))


asyncio.run(main())

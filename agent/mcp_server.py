"""Serve other agents over the Model Context Protocol (MCP): `m3agent mcp serve`.

The tools run tests in sandboxes and ask no model. Nothing but the state folder changes.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.stdio import stdio_server
from mcp_types import ToolAnnotations
from pydantic import Field

from m3agent import __version__
from m3agent.agent.certificate.statement import Statement
from m3agent.agent.exit_codes import FAILURES
from m3agent.agent.fix.entry import opened, read_issue
from m3agent.agent.patches.change import Source
from m3agent.agent.patches.outcome import Outcome, empty, explanation, keep, outcome_of
from m3agent.agent.patches.verification import BaselineCounts, VerifyRequest, baseline_of, verify_patch
from m3agent.agent.repo.snapshot import scratch_folder
from m3agent.agent.settings.loader import load_settings
from m3agent.util.daemon_thread import in_background
from m3agent.util.errors import UsageError
from m3agent.util.sanitize import quoted

T = TypeVar("T")
LONE = "\uffff"
"""Stands for a lone surrogate of a message, which JSON may have and UTF-8 may not. No text has this character."""
INSTRUCTIONS = (
    "m3agent runs a repository's tests without a patch and with it, in fresh sandboxes, and compares. Before you say that "
    "a change is done, call verify_patch: `failed` means that the change breaks tests."
)
ONLY_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)

Repo = Annotated[str | None, Field(description="The repository's folder. By default the server's folder.")]
Asked = Context[Any, Any]


@dataclass(frozen=True)
class Tools:
    """The tools of one server. Their docstrings are what a model reads."""

    folder: Path
    """The repository, unless a call names another one."""
    state: Path
    """The state folder."""

    async def verify_patch(
        self,
        ctx: Asked,
        repo: Repo = None,
        patch: Annotated[str | None, Field(description="A patch as `git diff` prints it.")] = None,
        commit: Annotated[str | None, Field(description="A commit, or a range such as main..HEAD.")] = None,
        branch: Annotated[str | None, Field(description="A branch, since it left HEAD.")] = None,
        base: Annotated[str | None, Field(description="The commit without the patch.")] = None,
        issue: Annotated[str | None, Field(description="The text of the issue.")] = None,
    ) -> Outcome:
        """Verify a patch by running the tests without it and with it.

        Without `patch`, `commit` and `branch`, the patch is the uncommitted changes of the work tree.
        """
        return await self._answer(ctx, repo, partial(self._verify, patch, commit, branch, base, issue))

    async def baseline(self, ctx: Asked, repo: Repo = None) -> BaselineCounts:
        """Run the tests of the work tree as it is. Call it before a change, to know which tests are red already."""
        return await self._answer(ctx, repo, partial(baseline_of, state=self.state))

    async def explain_verdict(
        self,
        certificate: Annotated[
            str | None, Field(description="The certificate's file. By default the newest one.")
        ] = None,
    ) -> str:
        """Explain a verdict: which tests decided it, in how many runs, and what to do now."""
        path = None if certificate is None else Path(certificate)
        return await _with_tool_errors(asyncio.to_thread(explanation, path, self.state))

    async def _answer(
        self,
        ctx: Asked,
        repo: str | None,
        work: Callable[[VerifyRequest, Callable[[str], None]], Coroutine[Any, Any, T]],
    ) -> T:
        """Return the result of the work on a repository. Its notes are the progress."""

        async def answer() -> T:
            folder = self.folder if repo is None else self.folder / repo
            settings = load_settings(folder, {}, os.environ).settings
            repository = await asyncio.to_thread(opened, folder, settings, self.state)
            return await work(VerifyRequest(Source(), repository, settings), _progress(ctx))

        return await _with_tool_errors(answer())

    async def _verify(
        self,
        patch: str | None,
        commit: str | None,
        branch: str | None,
        base: str | None,
        issue: str | None,
        request: VerifyRequest,
        say: Callable[[str], None],
    ) -> Outcome:
        with scratch_folder(self.state) as folder:
            file = None if patch is None else str(_written(patch, folder / "patch"))
            request = replace(request, source=Source(file, commit, branch, None, base))
            if issue is not None:
                about = partial(
                    read_issue, issue, request.repository, request.settings, os.environ, say, None
                )
                request = replace(request, issue=await in_background(about))
            try:
                result = await verify_patch(request, self.state, env=os.environ, say=say)
            except UsageError as error:
                raise UsageError(str(error).replace(quoted(str(file)), "the argument `patch`")) from None
        if not isinstance(result, Statement):
            return empty(f"there are no changes since {result.base.commit[:12]}")
        return outcome_of(result, await asyncio.to_thread(keep, result, self.state))


def server(folder: Path, state: Path) -> MCPServer[Any]:
    """Return a server for the repository in `folder`."""
    made: MCPServer[Any] = MCPServer(
        "m3agent", version=__version__, instructions=INSTRUCTIONS, log_level="CRITICAL"
    )
    tools = Tools(folder, state)
    for tool in (tools.verify_patch, tools.baseline, tools.explain_verdict):
        made.add_tool(tool, annotations=ONLY_READS)
    return made


async def serve(folder: Path, state: Path) -> None:
    """Serve the client on standard input and output until it closes them."""
    lowlevel = server(folder, state)._lowlevel_server  # `run` of the SDK takes no other streams
    lines = cast("anyio.AsyncFile[str]", _Lines())
    async with stdio_server(lines) as (reads, writes):
        await lowlevel.run(reads, writes, lowlevel.create_initialization_options())


def without_lone_surrogates(line: str) -> str:
    """Return a message in which `LONE` stands for each lone surrogate. The SDK would drop the message, and never answer."""
    if "\\ud" not in line.lower():
        return line
    try:
        message = json.loads(line)
    except ValueError:
        return line
    return re.sub("[\ud800-\udfff]", LONE, json.dumps(message, ensure_ascii=False))


class _Lines:
    """The lines of standard input."""

    async def __aiter__(self) -> AsyncIterator[str]:
        while line := await in_background(sys.stdin.buffer.readline):
            yield without_lone_surrogates(line.decode(errors="replace"))


def _written(patch: str, path: Path) -> Path:
    """Write the argument of a call to a file, for the reader of patches. Raises UsageError."""
    if LONE in patch:
        raise UsageError(
            "the patch has a lone surrogate, which no file can have: send the patch as UTF-8 text"
        )
    path.write_bytes(patch.encode())
    return path


def _progress(ctx: Asked) -> Callable[[str], None]:
    """Return a function that tells the client what happens, from any thread."""
    loop, sent = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    def send(text: str) -> None:
        sent.add(loop.create_task(ctx.report_progress(len(sent) + 1, message=text)))

    def say(text: str) -> None:
        loop.call_soon_threadsafe(send, text)

    return say


async def _with_tool_errors(work: Awaitable[T]) -> T:
    try:
        return await work
    except FAILURES as error:
        raise ToolError(str(error)) from None

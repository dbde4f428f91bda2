"""The tools offered to the model, and the one way to call one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.errors import DiskFull, FileProblem, PathEscapes
from m3agent.tools import code_exec, files, other_tools, test_runner
from m3agent.tools.aliases import ARGUMENTS, Meaning, meaning
from m3agent.tools.base import Arguments, CallContext, Tool, ToolResult, ToolTraits, refusal
from m3agent.tools.test_report import TestReport

TOOLS: tuple[Tool[Any], ...] = (code_exec.TOOL, files.WRITE, files.EDIT, files.READ, test_runner.TOOL)
"""m3agent's own tools, in the order that every request has."""

FOREIGN = ToolTraits(title_argument="code")
"""Traits of all names that are neither in `TOOLS` nor in `other_tools.TOOLS`: tools of MCP servers, of other versions, and invented ones."""


def traits_of(name: str) -> ToolTraits:
    """Return what is known of the tool that a name stands for; the name may come from an old log."""
    return understood(name, {})[0]


def understood(name: str, arguments: Mapping[str, Any] | None) -> tuple[ToolTraits, dict[str, Any]]:
    """Return what is known of the tool that runs a call, and the call's arguments under that tool's names."""
    tool, read = _tool_for(name, arguments or {})
    return tool or FOREIGN, read.arguments


def _tool_for(name: str, arguments: Mapping[str, Any]) -> tuple[Tool[Any] | None, Meaning]:
    """Return the tool that runs a call, if it is one of m3agent's own, and how the call is read."""
    tools = {tool.name: tool for tool in (*TOOLS, *other_tools.TOOLS)}
    is_new = name in tools and name not in ARGUMENTS
    read = Meaning(name, dict(arguments)) if is_new else meaning(name, arguments)
    return tools.get(read.tool), read


def own_schemas() -> list[dict[str, Any]]:
    """Return the entries of m3agent's own tools in a request's `tools` list; they are always the same."""
    return [tool.schema() for tool in TOOLS]


class ExternalTools(Protocol):
    """Tools of other programs, which run outside the sandbox."""

    schemas: list[dict[str, Any]]
    """Their entries in a request's `tools` list."""

    async def call(self, name: str, arguments: dict[str, Any], log: Path) -> ToolResult:
        """Run a call and return its one result, even if it fails. The complete answer may be written to `log`."""
        ...


class Toolset:
    """The tools of a session: m3agent's own, which run in the sandbox, then those of other programs.

    Args:
        folder: Gets the complete output of each call, in a file named after the call's number.
        others: The tools of other programs, if there are any.
        baseline: Waits for the complete result of all tests on the base tree; None without one.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        folder: Path,
        others: ExternalTools | None = None,
        baseline: Callable[[], Awaitable[TestReport | None]] | None = None,
    ) -> None:
        self._sandbox = sandbox
        self._folder = folder
        self._others = others
        self._baseline = baseline
        other_schemas = [] if others is None else others.schemas
        self.other_names = [schema["function"]["name"] for schema in other_schemas]
        self.schemas = [*own_schemas(), *other_schemas]
        """The `tools` list of every request. It never changes during a session, because it is part of the prompt's prefix."""

    async def call(
        self, name: str, arguments: dict[str, Any] | None, number: int, problem: str | None = None
    ) -> ToolResult:
        """Run a call and return its one result; a refused call has a result too.

        Args:
            name: Name of the tool, as the model wrote it.
            arguments: None if they could not be read as a JSON object.
            number: Number of the call in the session.
            problem: Why the arguments could not be read.

        Raises:
            SandboxError: The sandbox died, or the host's disk is full. The model cannot do anything about that.
        """
        others = self._others if name in self.other_names else None
        tool, read = _tool_for(name, arguments or {})
        if others is None and tool is None:
            names = ", ".join([*(known.name for known in TOOLS), *self.other_names])
            return refusal(f"there is no tool '{name}': the tools are {names}")
        if arguments is None:
            return refusal(
                f"{name}: the arguments could not be read ({problem or 'not a JSON object'}): send the "
                "complete arguments again"
            )
        log = self._folder / f"{number:04d}.log"
        if others is not None:
            return await others.call(name, arguments, log)
        assert tool is not None
        try:
            valid = tool.arguments.model_validate(read.arguments)
        except ValidationError as error:
            return refusal(f"{tool.name}: {explain(error)}. Its arguments: {signature(tool)}")
        result = await self._run(tool, valid, log)
        return replace(result, content=f"{result.content}\n{read.note}") if read.note else result

    async def _run(self, tool: Tool[Any], arguments: Arguments, log: Path) -> ToolResult:
        try:
            return await tool.run(CallContext(self._sandbox, log, self._baseline), arguments)
        except (FileProblem, PathEscapes) as error:
            return refusal(str(error))
        except DiskFull as error:
            if str(error).startswith("cannot write"):
                raise  # the host's disk, not the sandbox's
            return refusal(str(error))


def explain(error: ValidationError) -> str:
    """Describe what is wrong with a call's arguments, in words that a model can act on."""
    parts = []
    for item in error.errors(include_url=False, include_input=False):
        where = ".".join(str(part) for part in item["loc"])
        message = item["msg"][:1].lower() + item["msg"][1:]
        parts.append(f"{where}: {'unknown argument' if item['type'] == 'extra_forbidden' else message}")
    return "; ".join(parts)


def signature(tool: Tool[Any]) -> str:
    """Return a tool's arguments in one line: name, type, default."""
    parts = []
    schema = tool.schema()["function"]["parameters"]
    required = schema.get("required", ())  # pydantic leaves it out if every argument has a default
    for name, prop in schema["properties"].items():
        kind = prop.get("type") or "|".join(p.get("type", "?") for p in prop.get("anyOf", []))
        if "enum" in prop:
            kind = "|".join(map(repr, prop["enum"]))
        parts.append(f"{name}: {kind}" + ("" if name in required else f" = {prop.get('default')!r}"))
    return ", ".join(parts)

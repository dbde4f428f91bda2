"""A sandbox and its tools, for the tests of the tools."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.tools.base import ToolResult
from m3agent.tools.registry import Toolset


@dataclass
class Bench:
    """A sandbox, its tools, and the folder for the complete output of calls."""

    sandbox: Sandbox
    folder: Path
    calls: int = 0

    async def call(self, name: str, /, **arguments: Any) -> ToolResult:
        self.calls += 1
        return await Toolset(self.sandbox, self.folder).call(name, arguments, self.calls)

    async def put(self, files: Mapping[str, str | bytes]) -> None:
        for path, content in files.items():
            await self.sandbox.write(path, content if isinstance(content, bytes) else content.encode())

    @contextlib.contextmanager
    def submodule(self, path: str) -> Iterator[None]:
        """Let a folder of the work tree be a submodule of the repository."""
        workspace = self.sandbox.workspace
        before = workspace.submodules
        workspace.store.note_submodules([path])
        del workspace.__dict__["submodules"]
        try:
            yield
        finally:
            workspace.store.note_submodules(before)
            del workspace.__dict__["submodules"]

"""Pack files that are only in memory."""

from __future__ import annotations

from collections.abc import Iterable

from m3agent.agent.context import rules
from m3agent.agent.context.pack import written
from m3agent.agent.context.packer import Packing, PackOptions
from m3agent.agent.context.types import Context


def pack_files(files: Iterable[tuple[str, bytes]], options: PackOptions | None = None) -> Context:
    """Pack `files`, pairs of path and bytes. They have no history, so the largest come first."""
    packing = Packing(options or PackOptions())
    contents: dict[str, bytes] = {}
    for path, data in files:
        packing.add(path, rules.reason_by_name(path) or data)
        contents[path] = data
    return written(packing, lambda path, most: contents[path][:most])

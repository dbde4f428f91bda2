"""Find the instructions for agents that a repository contains (AGENTS.md and similar files)."""

from __future__ import annotations

from collections.abc import Iterable

_NAMES = (
    *("AGENTS.md", "AGENT.md", "CLAUDE.md", "GEMINI.md", ".cursorrules", ".windsurfrules", ".clinerules"),
    ".github/copilot-instructions.md",
)
"""In order of precedence within a folder: the common name first, then names that only single tools read."""

_MAX_NAMED = 50


def is_instructions(path: str) -> bool:
    """Return whether a file with this path contains instructions for agents."""
    return any(path == name or path.endswith(f"/{name}") for name in _NAMES)


def instruction_files(paths: Iterable[str]) -> list[str]:
    """Return the instruction files to follow: one per folder, outer folders first."""
    chosen: dict[str, tuple[int, str]] = {}
    for path in paths:
        for rank, name in enumerate(_NAMES):
            if path == name or path.endswith(f"/{name}"):
                folder = path[: -len(name)]
                chosen[folder] = min(chosen.get(folder, (len(_NAMES), "")), (rank, path))
    ordered = sorted(chosen, key=lambda folder: (folder.count("/"), folder))
    return [chosen[folder][1] for folder in ordered[:_MAX_NAMED]]

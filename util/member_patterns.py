"""Match the folders of a workspace's members with patterns, as npm, pnpm, yarn and uv write them."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence


def is_member(patterns: Sequence[str], folder: str) -> bool:
    """Return whether a folder, relative to the workspace's root, is one of its members; `!` excludes what a pattern matches."""

    def matches(pattern: str) -> bool:
        pattern = pattern.removeprefix("./").rstrip("/")
        if pattern.endswith("/**"):
            return folder.startswith(pattern[:-2])
        return fnmatch.fnmatchcase(folder, pattern) and folder.count("/") == pattern.count("/")

    wanted = [pattern for pattern in patterns if not pattern.startswith("!")]
    refused = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    return any(map(matches, wanted)) and not any(map(matches, refused))

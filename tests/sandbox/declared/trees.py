"""The files of a repository in memory."""

from __future__ import annotations

from collections.abc import Mapping

from m3agent.sandbox.declared.types import Files


def files_of(texts: Mapping[str, str | bytes]) -> Files:
    contents = {path: text if isinstance(text, bytes) else text.encode() for path, text in texts.items()}
    return Files(contents.keys(), contents.__getitem__)

"""Prepare tool output for the model, a pull request or an exported session.

It gets the same escaping and redaction as the files in the prompt, because tools can read those files, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from m3agent.agent.context.neutralise import harmless
from m3agent.agent.context.secrets import redact
from m3agent.tools.registry import understood

_MARKER = re.compile(r"<REDACTED:[a-z0-9-]+>")


def redact_text(text: str) -> str:
    """Return `text` with reserved and invisible strings escaped, and with markers in place of secrets."""
    return redact(harmless(text), "").text


def writes_marker(tool: str, arguments: Mapping[str, Any] | None) -> str | None:
    """Return why a call must be refused: it would overwrite a secret with its marker; None if the call may run."""
    traits, read = understood(tool, arguments)
    for name in traits.content_arguments:
        if found := _MARKER.search(str(read.get(name, ""))):
            return (
                f"{name} holds {found[0]}, which stands for a hidden secret that would be lost: "
                "edit only other lines, or change the file with code_exec without that line"
            )
    return None

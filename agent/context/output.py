"""What a tool prints, as the model may see it: the same care as for the files in the prompt, which tools can read too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from m3agent.agent.context.secrets import redact
from m3agent.agent.context.text import harmless

_MARKER = re.compile(r"<REDACTED:[a-z0-9-]+>")
_WRITERS = {"file_write": ("content",), "file_edit": ("old", "new")}


def shown(text: str) -> str:
    """`text` with nothing reserved or invisible in it, and markers in the place of secrets."""
    return redact(harmless(text), "").text


def writes_marker(tool: str, arguments: Mapping[str, Any] | None) -> str | None:
    """Why a call must not be carried out: it would write a marker over the secret that it stands for. Else None."""
    for name in _WRITERS.get(tool, ()):
        value = (arguments or {}).get(name)
        if isinstance(value, str) and (found := _MARKER.search(value)):
            return (
                f"{name} holds {found[0]}, which stands for a secret that is not shown and would be lost: edit "
                "other lines only, or change the file with code_exec without naming that line"
            )
    return None

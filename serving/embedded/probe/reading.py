"""Mode ``read``: return the texts of files of the work tree, packed to fit into one result."""

# Runs inside the sandbox: os.path starts faster than pathlib.
# ruff: noqa: PTH118, PTH123

from __future__ import annotations

import base64
import os
import zlib
from typing import Any

from m3agent.serving.embedded.probe.tree import decoded


def read(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the packed texts of ``files``, in order, up to ``room`` characters.

    ``start`` is the number of characters of the first file's packed text that are already known. The last
    file may be incomplete: `sizes` gives the number of characters of each file, so that the caller can
    request the rest.
    """
    packed: dict[str, str] = {}
    sizes: dict[str, int] = {}
    missing: list[str] = []
    room = asked["room"]
    start = asked["start"]
    for rel in asked["files"]:
        try:
            with open(os.path.join(asked["root"], rel), "rb") as file:
                data = decoded(file.read())[0].encode()
        except (OSError, SyntaxError, UnicodeDecodeError):
            missing.append(rel)
            continue
        text = base64.b64encode(zlib.compress(data, 9)).decode()
        sizes[rel] = len(text)
        packed[rel] = text[start : start + room]
        room -= len(packed[rel])
        start = 0
        if room <= 0:
            break
    return {"mode": "read", "files": packed, "sizes": sizes, "missing": missing}

"""Mode ``read``: files of the work tree, exact to the byte, packed to fit into one answer."""

# Runs inside the sandbox, where plain paths start faster.
# ruff: noqa: PTH118, PTH123

from __future__ import annotations

import base64
import os
import zlib
from typing import Any


def read(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the texts of ``files``, in order, as far as ``room`` characters reach."""
    packed: dict[str, str] = {}
    room = asked["room"]
    missing: list[str] = []
    for rel in asked["files"]:
        try:
            with open(os.path.join(asked["root"], rel), "rb") as file:
                data = file.read()
            data.decode("utf-8")
        except (OSError, UnicodeDecodeError):
            missing.append(rel)
            continue
        text = base64.b64encode(zlib.compress(data, 9)).decode()
        if len(text) > room:
            if not packed:
                missing.append(rel)
                continue
            break
        packed[rel] = text
        room -= len(text)
    return {"mode": "read", "files": packed, "missing": missing}

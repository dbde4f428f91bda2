"""Mode ``read``: files of the work tree, exact to the byte, packed to fit into one answer."""

# Runs inside the sandbox, where plain paths start faster.
# ruff: noqa: PTH118, PTH123

from __future__ import annotations

import base64
import os
import zlib
from typing import Any


def read(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the packed texts of ``files``, in order, as far as ``room`` characters reach.

    ``start`` is how many characters of the first file's packed text are known already. The last file may come in part:
    `sizes` gives how many characters there are of each, so that the rest can be asked for.
    """
    packed: dict[str, str] = {}
    sizes: dict[str, int] = {}
    missing: list[str] = []
    room = asked["room"]
    start = asked["start"]
    for rel in asked["files"]:
        try:
            with open(os.path.join(asked["root"], rel), "rb") as file:
                data = file.read()
            data.decode("utf-8")
        except (OSError, UnicodeDecodeError):
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

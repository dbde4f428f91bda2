"""Read patches to grade, in the formats of official harnesses: `preds.json` or JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from m3agent.util.errors import UsageError

REFERENCE = "gold"
"""Name that stands for the instances' own reference patches."""


def read_predictions(path: Path) -> dict[str, bytes]:
    """Return the patches of a predictions file, by instance id.

    The file is a JSON object, a JSON list or JSON lines. Each entry has `instance_id` and `model_patch`. A
    patch that is null counts as an empty patch.

    Raises:
        UsageError: The file or an entry is malformed; the message names the entry.
    """
    try:
        text = path.read_text("utf-8", "surrogateescape")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    found: dict[str, bytes] = {}
    for where, entry in _entries(path, text):
        ident, patch = entry.get("instance_id"), entry.get("model_patch", entry.get("patch"))
        if not isinstance(ident, str) or not ident:
            raise UsageError(f"{where} has no instance_id: a prediction has instance_id and model_patch.")
        if patch is not None and not isinstance(patch, str):
            raise UsageError(f"{where} ({ident}): model_patch is not a string.")
        if ident in found:
            raise UsageError(f"{where}: {ident} occurs twice; give one patch for each instance.")
        found[ident] = (patch or "").encode("utf-8", "surrogateescape")
    return found


def _entries(path: Path, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if path.suffix == ".jsonl":
        for number, line in enumerate(text.splitlines(), 1):
            where = f"{path}, line {number}"
            if line.strip():
                yield where, _object(_json(line, where), where)
        return
    value = _json(text, str(path))
    if isinstance(value, dict):  # by instance
        for ident, entry in value.items():
            entry = {"model_patch": entry} if entry is None or isinstance(entry, str) else entry
            yield f"{path}, {ident}", {"instance_id": ident, **_object(entry, f"{path}, {ident}")}
        return
    if not isinstance(value, list):
        raise UsageError(f"{path} holds no predictions: a list or an object of predictions is expected.")
    for number, entry in enumerate(value, 1):
        yield f"{path}, entry {number}", _object(entry, f"{path}, entry {number}")


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON: {error}.") from None


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{where} is not an object: a prediction has instance_id and model_patch.")
    return value

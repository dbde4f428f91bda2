"""Read patches to grade, in the formats of official harnesses: `preds.json` or JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from m3agent.util.errors import UsageError, reason_of
from m3agent.util.json_lines import json_lines, json_text

REFERENCE = "gold"
"""Name that stands for the instances' own reference patches."""
PATCH_KEYS = ("model_patch", "patch")
"""Keys that can have the patch of an entry; the first one counts."""


def read_predictions(path: Path) -> dict[str, bytes]:
    """Return the patches of a predictions file, by instance id.

    The file is a JSON object, a JSON list or JSON lines. Each entry has `instance_id` and `model_patch`. A
    patch that is null counts as an empty patch; an entry without a patch is malformed.

    Raises:
        UsageError: The file or an entry is malformed; the message names the entry.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {reason_of(error)}.") from None
    patches: dict[str, bytes] = {}
    for where, entry in _entries(path, content):
        ident = entry.get("instance_id")
        if not isinstance(ident, str) or not ident:
            raise UsageError(f"{where} has no instance_id: a prediction has instance_id and model_patch.")
        key = next((key for key in PATCH_KEYS if key in entry), None)
        if key is None:
            raise UsageError(f"{where} ({ident}) has no model_patch: give one, or null for an empty patch.")
        patch = entry[key]
        if patch is not None and not isinstance(patch, str):
            raise UsageError(f"{where} ({ident}): {key} is not a string.")
        if ident in patches:
            raise UsageError(f"{where}: {ident} occurs twice; give one patch for each instance.")
        patches[ident] = _as_bytes(patch or "")
    return patches


def _as_bytes(patch: str) -> bytes:
    """Return the bytes of a patch. JSON can contain halves of surrogate pairs, which are no text; their bytes stay."""
    try:
        return patch.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return patch.encode("utf-8", "surrogatepass")


def _entries(path: Path, content: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    if path.suffix == ".jsonl":
        for number, line in json_lines(content):
            where = f"{path}, line {number}"
            yield where, _object(_json(line, where), where)
        return
    value = _json(json_text(content), str(path))
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

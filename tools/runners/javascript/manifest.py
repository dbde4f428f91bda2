"""Take from a patch only those changes to a package.json that do not decide how tests run."""

from __future__ import annotations

import json
import re
from typing import Any

RESTORED = (
    "scripts",
    "type",
    "imports",
    "workspaces",
    "devDependencies",
    "packageManager",
    "overrides",
    "resolutions",
    "pnpm",
    "config",
    "jest",
    "vitest",
    "mocha",
    "ava",
    "nyc",
    "c8",
    "babel",
    "swc",
    "ts-node",
)
"""Keys that tools of tests read. A patch may change all others, such as `dependencies`, `exports` and `version`."""
_DEPENDENCIES = ("dependencies", "optionalDependencies", "peerDependencies")


def restored_manifest(base_text: str, patched_text: str) -> str:
    """Return the patched package.json with the base's settings of tests.

    A package that is a development dependency in the base cannot move to another kind of dependencies: that would replace
    the test runner. If one of the texts is no JSON object, the patched text is returned: a broken manifest shows in the run.
    """
    base, patched = _object(base_text), _object(patched_text)
    if base is None or patched is None:
        return patched_text
    restored = {
        key: base[key] if key in RESTORED else value
        for key, value in patched.items()
        if key in base or key not in RESTORED
    }
    restored |= {key: base[key] for key in RESTORED if key in base and key not in patched}
    developed = _names(base.get("devDependencies"))
    for kind in _DEPENDENCIES:
        before, after = _names(base.get(kind)), restored.get(kind)
        if isinstance(after, dict):
            restored[kind] = {
                name: wanted for name, wanted in after.items() if name in before or name not in developed
            }
    if restored == patched:
        return patched_text
    indent = re.search(r"^([ \t]+)\S", patched_text, re.MULTILINE)
    text = json.dumps(restored, indent=indent[1] if indent else 2, ensure_ascii=False)
    return text + "\n" * patched_text.endswith("\n")


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _names(given: object) -> set[str]:
    return set(given) if isinstance(given, dict) else set()

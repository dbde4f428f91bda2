"""Format recipes for the command line: their names, and one recipe with its changes as JSON or as text."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from m3agent.serving.plan.command import command_line
from m3agent.serving.plan.listing import listing, problems, versions
from m3agent.serving.plan.overlay import RecipeChange, applied, files_beside, overlay, packages_beside
from m3agent.serving.plan.recipe import recipe

UNVERIFIED = "Not verified: m3agent has no list of this engine's options, or of the fields of its files."
"""Note for a recipe that nobody checked against the engine's options."""

_FIELDS = (
    "name",
    "engine",
    "vendor",
    "checkpoint",
    "gpus",
    "image",
    "source",
    "verified",
    "notes",
    "refused",
)


def recipe_json(name: str, *, context: int | None = None, vision: bool = False) -> dict[str, Any]:
    """Return a recipe as JSON types: the documented command, the changes, and the resulting command.

    Returns:
        A JSON object. `problems` belongs to the documented command and the newest listing of the engine,
            which `checked_with` names. Both are None if the engine has no listing or the recipe has no
            changes. `result` is None for a refused recipe.

    Raises:
        ValueError: There is no such recipe, or `overlay` rejects the arguments.
    """
    known = recipe(name)
    changes = overlay(known, context=context, vision=vision)
    argv, env = applied(known, changes)
    checked = listing(known.engine) if versions(known.engine) and changes else None
    result = {
        "argv": list(argv),
        "env": env,
        "files": files_beside(known, changes, argv, env),
        "packages": packages_beside(changes),
    }
    return {
        **{name: getattr(known, name) for name in _FIELDS},
        "argv": list(known.argv),
        "env": dict(known.env),
        "files": files_beside(known, (), known.argv, known.env),
        "checked_with": checked.name if checked else None,
        "problems": problems(known.argv, checked) if checked else None,
        "overlay": [asdict(change) for change in changes],
        "result": None if known.refused else result,
    }


def recipe_text(name: str, *, context: int | None = None, vision: bool = False) -> str:
    """Format a recipe for people and shells: the documented command, then everything else as comments.

    The comments contain the recipe's files, each change with its reason, and the resulting command. The
    arguments are those of `recipe_json`.

    Raises:
        ValueError: There is no such recipe, or `overlay` rejects the arguments.
    """
    shown = recipe_json(name, context=context, vision=vision)
    lines = [
        f"# {name}: {shown['source']}",
        command_line(shown["argv"], shown["env"]),
        *_comment(f"GPUs: {shown['gpus']}" + (f", image {shown['image']}" if shown["image"] else "")),
        *_comment(shown["notes"]),
        *(() if shown["verified"] or shown["refused"] else _comment(UNVERIFIED)),
        *(_comment(f"Never planned: {shown['refused']}.") if shown["refused"] else ()),
    ]
    for file, text in shown["files"].items():
        lines += ["#", f"# {file}:", *_indented(text)]
    if shown["problems"]:
        lines += ["#", f"# Unchanged, {shown['checked_with']} rejects it:"]
        lines += [line for sentence in shown["problems"] for line in _comment(sentence)]
    if shown["overlay"]:
        lines += ["#", "# For agent work:"]
    lines += _changes(shown["overlay"])
    if shown["overlay"] and shown["result"]:
        result = shown["result"]
        lines += ["#", "# Result:", *_indented(command_line(result["argv"], result["env"]))]
        lines += [f"# install with the engine: {package}" for package in result["packages"]]
    return "\n".join(lines) + "\n"


def changes_text(changes: Sequence[RecipeChange]) -> list[str]:
    """Format changes to a recipe, each with its reason, as lines of shell comments."""
    return _changes([asdict(change) for change in changes])


def _changes(changes: list[dict[str, Any]]) -> list[str]:
    lines: list[str] = []
    for change in changes:
        lines += [f"#   {mark}" for mark in _marks(change)]
        lines += _comment(f"{change['reason']} ({change['source']})", "      ")
    return lines


def _comment(text: str, indent: str = "") -> list[str]:
    head = f"# {indent}"
    # a source such as vllm-project/vllm#46042 stays whole
    return textwrap.wrap(text, 110, initial_indent=head, subsequent_indent=head, break_on_hyphens=False)


def _indented(text: str) -> list[str]:
    return [f"#   {line}".rstrip() for line in text.splitlines()]


def _marks(change: dict[str, Any]) -> Iterator[str]:
    yield from (f"+ {shlex.join(option)}" for option in change["added"])
    yield from (f"~ {shlex.join(old)} -> {shlex.join(new)}" for old, new in change["changed"])
    yield from (f"- {shlex.join(option)}" for option in change["dropped"])
    yield from (f"= {shlex.join(option)}" for option in change["kept"])
    yield from (
        f"- {name}" if value is None else f"+ {name}={value}" for name, value in change["env"].items()
    )
    yield from (f"+ {name}: {text.strip()}" for name, text in change["files"].items())

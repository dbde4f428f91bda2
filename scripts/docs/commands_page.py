"""Generate docs/commands.md, the reference of every command, from the command line's definition: `make docs-pages`.

The output does not depend on the terminal, so a test can compare it with the committed page.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main
from typer.core import TyperGroup

from m3agent.cli.app import app
from m3agent.cli.help import row_of

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
HEAD = """\
# Commands

Every command with its arguments and options, as `--help` has them. What the commands are for, and how they go together,
is in the [README](../README.md) and the pages on each. Most options have a setting as well ([settings](settings.md)).

This page is made from the command line itself by `make docs-pages`.
"""


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join([HEAD, *_section(typer.main.get_command(app), "m3agent")])


def _section(command: Any, name: str, parent: Any = None) -> Iterator[str]:
    """Yield the section of a command, then those of its subcommands. The type of commands is private to typer."""
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    yield f"## {name}\n"
    yield f"`{usage}`\n"
    for paragraph in (command.help or "").split("\n\n"):
        yield f"{escaped(' '.join(paragraph.split()))}\n"
    commands = command.commands if isinstance(command, TyperGroup) else {}
    own = {below: one for below, one in sorted(commands.items()) if not one.hidden}
    if own:
        yield "| command | |\n|---|---|"
        for below, one in own.items():
            link = f"{name} {below}".replace(" ", "-")
            first = escaped(" ".join((one.help or "").split("\n\n")[0].split()))
            yield f"| [`{name} {below}`](#{link}) | {first} |"
        yield ""
    rows = [record for param in command.get_params(context) if (record := row_of(param, context))]
    if rows:
        yield "| argument, option | |\n|---|---|"
        for left, help_text in rows:
            yield f"| {_code(left)} | {escaped(' '.join(help_text.split()))} |"
        yield ""
    for below, one in own.items():
        yield from _section(one, f"{name} {below}", context)


def _code(text: str) -> str:
    """Return code for a table cell. The code host and the site escape a bar in backticks differently."""
    return f"<code>{html.escape(text).replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"


def escaped(text: str) -> str:
    """Return the text with Markdown's special characters escaped, except in code in backticks."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([|*_\[\]])", r"\\\1", part).replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())

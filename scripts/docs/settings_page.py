"""Generate the parts of files that come from the declaration of the settings: `make docs-pages`.

These are the table in docs/settings.md and the arguments of the Python API in agent/api.py, which static type
checkers need in full. Two marker lines enclose each part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_origin

from m3agent.agent.settings.settings import SETTINGS, Setting
from scripts.docs.commands_page import escaped

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "settings.md"
API = ROOT / "agent" / "api.py"
HEAD = """\
| setting | default | what it does | may a repository set it? |
|---|---|---|---|
"""
REPOSITORY = {"no": "no", "ignored": "no; it is ignored", "unset": "if yours does not", "lower": "only lower"}


def table(settings: Mapping[str, Setting] = SETTINGS) -> str:
    """Return the table of the settings, as Markdown."""
    return HEAD + "".join(f"| {' | '.join(_cells(setting))} |\n" for setting in settings.values())


def _cells(setting: Setting) -> list[str]:
    flag = "" if setting.flag else " (no flag)"
    default = setting.if_unset if setting.default is None else f"`{_plain(setting.default)}`"
    choices = (
        "" if len(setting.choices) < 2 else f"One of {', '.join(f'`{one}`' for one in setting.choices)}."
    )
    what = " ".join(part for part in (escaped(setting.help), choices, setting.more) if part)
    return [f"`{setting.name}`{flag}", default, what, REPOSITORY[setting.repository]]


def arguments(settings: Mapping[str, Setting] = SETTINGS) -> str:
    """Return the fields of the typed dictionary of the settings, as Python."""
    return "".join(f"    {setting.name}: {_type_name(setting.type)}\n" for setting in settings.values())


def renewed(text: str, made: str, part: str = "") -> str:
    """Return `text` with `made` in place of the text between the two marker lines.

    Args:
        text: The whole file.
        made: The new text of the part.
        part: The name of the part in its marker lines, if the file has several.
    """
    mark = f"{part}, written by `make docs-pages`" if part else "written by `make docs-pages`"
    between = rf"(begin: {mark}[^\n]*\n).*?(?=[^\n]*end: {mark})"
    new, count = re.subn(between, lambda match: match[1] + made, text, flags=re.DOTALL)
    assert count == 1, "the marks are missing"
    return new


def _plain(value: object) -> str:
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def _type_name(value_type: Any) -> str:
    if get_origin(value_type) is None:
        return str(value_type.__name__)
    return repr(value_type).removeprefix("typing.").replace("'", '"')


MADE = {PAGE: table, API: arguments}
"""The files with a generated part, and the function that generates it."""


if __name__ == "__main__":
    for path, make in MADE.items():
        path.write_text(renewed(path.read_text(), make()))

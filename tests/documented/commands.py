"""Find the commands that the documentation tells its readers to run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "docs" / "commands.md"
"""Names every command and option, because it is generated from them; it has no commands for readers to run."""
PAGES = [ROOT / "README.md", *sorted(set((ROOT / "docs").rglob("*.md")) - {GENERATED})]
_VARIABLES = r"(?:[A-Z][A-Z0-9_]*=\S+ )*"
_BEGINNING = rf"{_VARIABLES}(?:m3agent|make) \S"
_COMMAND = re.compile(_BEGINNING)
_OVERLOOKED = re.compile(r"(?<![\w/.\"'-])(?:m3agent|make) [a-z]")
_CODE = re.compile(rf"`({_BEGINNING}[^`]*)`")
SHELLS = ("", "sh", "bash", "console")
"""Languages of the fenced blocks from which commands are read."""
_OPTIONAL = re.compile(r"\s+\[([^\[\]]*)\]")


@dataclass(frozen=True)
class Command:
    """A command line. where: the page and line where it stands first."""

    text: str
    where: str

    @property
    def bare(self) -> str:
        """Return the command without the variables before it."""
        return re.sub(f"^{_VARIABLES}", "", self.text)


def to_run() -> list[Command]:
    """Return each command in blocks of code and in tables once.

    A synopsis (`sessions list [--json]`) stands for two commands: without its optional parts, and with all of them.
    """
    found: dict[str, str] = {}
    for page in PAGES:
        for number, text in [*_in_blocks(page), *_in_tables(page)]:
            for variant in (_OPTIONAL.sub("", text), _OPTIONAL.sub(r" \1", text)):
                found.setdefault(variant, f"{page.relative_to(ROOT)}:{number}")
    return [Command(text, where) for text, where in found.items()]


def overlooked() -> list[Command]:
    """Return lines of blocks that call m3agent or make in a way that `to_run` misses, such as after `cd x &&`."""
    return [
        Command(text, f"{page.relative_to(ROOT)}:{number}")
        for page in PAGES
        for number, line, code in _lines(page)
        if code
        and _OVERLOOKED.search(text := _without_comment(line))
        and not any(text.rstrip("\\ ") in command for _, command in _in_blocks(page))
    ]


def mentioned() -> list[Command]:
    """Return each code span in sentences once."""
    found: dict[str, str] = {}
    for page in PAGES:
        for number, line in _prose(page):
            if not line.startswith("|"):
                for text in _CODE.findall(line):
                    found.setdefault(text, f"{page.relative_to(ROOT)}:{number}")
    return [Command(text, where) for text, where in found.items()]


def _lines(page: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield each line with its number and whether it is shell code; skip code in other languages."""
    fence: str | None = None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            fence = line.strip().strip("`") if fence is None else None
        elif fence is None:
            yield number, line, line.startswith("    ")
        elif fence in SHELLS:
            yield number, line, True


def _without_comment(line: str) -> str:
    """Return a line of a block without its comment and prompt."""
    return re.split(r"(?:^|\s+)#\s", line.strip().removeprefix("$ "))[0]


def _prose(page: Path) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line, code in _lines(page) if not code)


def _in_tables(page: Path) -> Iterator[tuple[int, str]]:
    for number, line in _prose(page):
        if line.startswith("|"):
            yield from ((number, text) for text in _CODE.findall(line))


def _in_blocks(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the commands in blocks, with their continuation lines (after a backslash, or more of a synopsis)."""
    for code, lines in groupby(_lines(page), key=lambda line: line[2]):
        open_command: tuple[int, str] | None = None
        for number, line, _ in lines if code else ():
            text = _without_comment(line)
            if open_command and (open_command[1].endswith("\\") or text.startswith("[")):
                open_command = open_command[0], f"{open_command[1].rstrip(chr(92)).rstrip()} {text}"
                continue
            if open_command:
                yield open_command
            open_command = (number, text) if _COMMAND.match(text) else None
        if open_command:
            yield open_command

"""Find the checks that a repository declares: in pre-commit, CI and task files, read as data."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from m3agent.sandbox.declared.types import CONTINUED, Files, texts_at
from m3agent.util.json_value import json_object

FOUND = "found"
"""Stands in the setting for the checks that the repository declares."""
PRE_COMMIT = ".pre-commit-config.yaml"
TASKS = re.compile(
    r"(?:Makefile|makefile|GNUmakefile|justfile|tox\.ini|noxfile\.py|Taskfile\.ya?ml|pyproject\.toml|\.gitlab-ci\.yml|"
    r"\.travis\.yml|\.pre-commit-config\.yaml|\.github/workflows/[^/]+\.ya?ml)"
)
"""Files with commands."""
PACKAGE = "package.json"
CHECKERS = {
    "ruff": "check",
    "flake8": "",
    "pylint": "",
    "mypy": "",
    "pyright": "",
    "basedpyright": "",
    "black": "--check",
    "eslint": "",
    "tsc": "",
    "biome": "check|lint|ci",
    "golangci-lint": "run",
    "go": "vet|build",
    "cargo": "clippy|check|build",
    "rubocop": "",
    "phpstan": "analy[sz]e",
}
"""Programs that check, each with what its first argument must match; empty for anything."""
ALL_FILES = {
    "black": "black --check .",
    "eslint": "npx eslint .",
    "flake8": "flake8",
    "golangci-lint": "golangci-lint run",
    "mypy": "mypy .",
    "pyright": "pyright",
    "rubocop": "rubocop",
    "ruff": "ruff check .",
    "ruff-check": "ruff check .",
}
"""What hooks of pre-commit stand for. pre-commit itself needs the network, and gives them the changed files only."""
HOOK = re.compile(r"^\s*(?:-\s+)?id:\s*[\"']?([\w-]+)", re.MULTILINE)
WRITES = re.compile(r"\s--?(?:fix|write|unsafe-fixes|exit-non-zero-on-fix|show-fixes|apply)\b(?:=\S+)?")
"""Options with which a checker changes files."""
STARTS = re.compile(
    r"^[\s@\-\"'\[]*(?:(?:run|entry):\s*)?(?:(?:uv|poetry|pdm|hatch) run )?((?:npx |pnpm exec |yarn |bundle exec |python3? -m )?)"
    rf"({'|'.join(CHECKERS)})(?=\s|$)(.*)"
)
SPECIAL = re.compile(r"[$`<>|{}\"'\\#*()]")
"""Characters that mean something to a shell or to the file's own language."""


def checks_of(setting: str | None, files: Callable[[], Files]) -> tuple[str, ...]:
    """Return the commands that a value of the setting `checks` stands for.

    Args:
        files: Returns the files of the unpatched tree. It is called only if they matter.
    """
    named = filter(None, (command.strip() for command in (setting or "").split(";")))
    commands = (each for one in named for each in (declared_checks(files()) if one == FOUND else [one]))
    return tuple(dict.fromkeys(commands))


def advice(setting: str | None, files: Callable[[], Files]) -> str:
    """Return how to run the checks that a repository declares; empty if there are none, or if somebody chose."""
    declared = "; ".join(declared_checks(files())) if setting is None else ""
    return declared and f"the repository declares checks, which --checks {FOUND} runs: {declared}"


def declared_checks(files: Files) -> list[str]:
    """Return the commands of the checks that a repository declares, without options that change files."""
    programs = dict[str, str]()
    # one for each program, those with arguments first: files often declare a check in several ways, and name it as a package
    for command in sorted(_commands(files), key=lambda command: " " not in command):
        programs.setdefault(next(word for word in command.split() if word in CHECKERS), command)
    return list(programs.values())


def _commands(files: Files) -> Iterator[str]:
    for path in sorted(files.paths):
        if TASKS.fullmatch(path):
            for line in CONTINUED.sub(" ", files.text(path) or "").splitlines():
                yield from _in_line(line)
    for script in texts_at(json_object(files.text(PACKAGE) or "{}"), "scripts.*"):
        for command in _in_line(script):
            yield command if command.startswith("npx ") else f"npx {command}"
    for program in HOOK.findall(files.text(PRE_COMMIT) or ""):
        if program in ALL_FILES:
            yield ALL_FILES[program]


def _in_line(line: str) -> Iterator[str]:
    """Yield the checks that a line of a script begins, one for each of its commands."""
    for part in re.split(r"&&|;|\|\|", line):
        if match := STARTS.match(part):
            start, program, rest = match.groups()
            rest = WRITES.sub("", rest).rstrip(" \"',]")
            if re.match(rf"\s+(?:{CHECKERS[program]})", f"{rest} ") and not SPECIAL.search(rest):
                yield f"{start}{program}{rest}".strip()

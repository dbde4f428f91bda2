"""Test which checks of a repository are found in its files, and what the setting stands for."""

from __future__ import annotations

import pytest

from m3agent.agent.checks.declared import advice, checks_of, declared_checks
from m3agent.sandbox.declared.types import Files


def files(**texts: str) -> Files:
    """Return files by their paths, in which `__` stands for a slash."""
    named = {path.replace("__", "/"): text.encode() for path, text in texts.items()}
    return Files(named.keys(), named.__getitem__)


@pytest.mark.parametrize(
    ("path", "text", "commands"),
    [
        ("Makefile", "lint:\n\t@uv run ruff check --fix . && mypy src\ntest:\n\tpytest\n", ["ruff check .", "mypy src"]),
        (".github/workflows/ci.yml", "      - run: poetry run flake8 pkg\n      - run: go vet ./...\n", ["flake8 pkg", "go vet ./..."]),
        (".github/workflows/ci.yml", "      - run: mypy ${{ matrix.args }}\n      - run: go test ./...\n", []),
        (".pre-commit-config.yaml", "repos:\n- repo: x\n  hooks:\n  - id: ruff\n  - id: mypy\n  - id: odd\n", ["ruff check .", "mypy ."]),
        (".pre-commit-config.yaml", "    - id: own\n      entry: pylint pkg\n", ["pylint pkg"]),
        ("package.json", '{"scripts": {"lint": "eslint src --fix", "build": "tsc", "test": "jest"}}', ["npx eslint src", "npx tsc"]),
        ("package.json", "{", []),
        ("tox.ini", "[testenv:lint]\ndeps =\n    mypy\ncommands =\n    mypy src\n", ["mypy src"]),
        ("justfile", "check:\n  cargo clippy -- -D warnings\n", ["cargo clippy -- -D warnings"]),
        ("README.md", "ruff check .\n", []),
    ],
)  # fmt: skip
def test_checks_in_the_files_of_a_repository(path: str, text: str, commands: list[str]) -> None:
    assert declared_checks(Files([path], lambda _: text.encode())) == commands


def test_the_setting_names_checks_or_stands_for_those_found() -> None:
    tree = files(Makefile="lint:\n\tmypy src\n")
    assert checks_of(None, lambda: tree) == checks_of(" ; ", lambda: tree) == ()
    assert checks_of("ruff check . ; make lint;", lambda: tree) == ("ruff check .", "make lint")
    assert checks_of("found; mypy src; tsc", lambda: tree) == ("mypy src", "tsc")


def test_only_who_did_not_choose_hears_of_checks() -> None:
    tree = files(Makefile="lint:\n\tmypy src\n")
    assert "mypy src" in advice(None, lambda: tree)
    assert advice("", lambda: tree) == advice("found", lambda: tree) == advice(None, files) == ""

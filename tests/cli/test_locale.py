"""Test commands in a locale whose encoding is not UTF-8."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import run
from tests.conftest import git

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not sys.prefix.isascii(), reason="Python cannot read its own path in this locale"),
]

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
"""Variables with which Python reads file names and writes text as ASCII."""
NAME = "caf\u00e9_\u65e5.py"


def _repository(folder: Path) -> Path:
    folder.mkdir()
    (folder / NAME.encode().decode(sys.getfilesystemencoding(), "surrogateescape")).write_text("x = 1\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "base")
    return folder


def test_the_name_of_a_file_is_utf_8_in_every_locale() -> None:
    program = (
        "import os; from m3agent.cli import __main__ as cli; cli._read_names_as_utf_8(); "
        "print(ascii(os.fsdecode(b'caf\\xc3\\xa9')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **ASCII},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == r"'caf\xe9'" + "\n"


def test_what_the_encoding_of_the_output_lacks_is_replaced(tmp_path: Path) -> None:
    repo = _repository(tmp_path / "repo")
    done = run("context", "--stats", "--repo", str(repo), env=ASCII)

    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()


@pytest.mark.slow
def test_json_is_the_same_in_every_locale(tmp_path: Path) -> None:
    repo = _repository(tmp_path / "repo")
    wide, narrow = (run("config", "show", "--json", "--repo", str(repo), env=more) for more in ({}, ASCII))

    assert json.loads(wide.stdout) == json.loads(narrow.stdout)

"""The installation of requirements of which some cannot be installed, without an installation."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from m3agent.sandbox.images import env_script
from m3agent.sandbox.images.env_script import install

JOB = {"folder": "/env", "exclude_newer": None}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The requirements that are installed. A run fails if one of its requirements, or of its constraints, is bad."""
    there: set[str] = set()

    def run(argv: list[str], env: dict[str, str]) -> bool:
        values = {option: [v for o, v in itertools.pairwise(argv) if o == option] for option in argv}
        lines = {line for file in values["--requirements"] for line in Path(file).read_text().splitlines()}
        bounds = {
            line for file in values.get("--constraints", []) for line in Path(file).read_text().splitlines()
        }
        if any("bad" in line for line in lines | bounds):
            return False
        there.update(lines)
        return True

    monkeypatch.setattr(env_script, "HERE", tmp_path)
    monkeypatch.setattr(env_script, "run", run)
    return there


@pytest.mark.parametrize(
    ("sure", "optional", "constraints", "there", "notices"),
    [
        ("a b", "c", "", "a b c", []),
        ("a", "c bad1 d e bad2", "", "a c d e", ["bad1", "bad2"]),
        ("a", "bad1", "", "a", ["bad1"]),
        ("a", "c", "bad==1", "a c", ["the locked versions"]),
        ("a", "c bad1", "bad==1", "a c", ["the locked versions", "bad1"]),
        ("a bad1", "c", "", None, []),
    ],
)
def test_as_much_as_possible_is_installed(
    installed: set[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    sure: str,
    optional: str,
    constraints: str,
    there: str | None,
    notices: list[str],
) -> None:
    for name, words in (("requirements", sure), ("optional", optional), ("constraints", constraints)):
        (tmp_path / f"{name}.txt").write_text("".join(f"{word}\n" for word in words.split()))
    job: dict[str, Any] = JOB
    assert install("uv", job, {}) == (there is not None)
    assert installed == set((there or "").split())
    said = capsys.readouterr().out.splitlines()
    assert said == [f"notice: without {what}, which cannot be installed here" for what in notices]

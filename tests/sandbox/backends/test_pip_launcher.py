"""`pip` of a sandbox: what is answered without a network, and what goes to the real pip."""

from __future__ import annotations

import importlib.util
import sys
from importlib import metadata
from pathlib import Path

import pytest

from m3agent.sandbox.backends import pip_launcher

PYTEST = metadata.version("pytest")


@pytest.fixture
def passed_on(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the arguments that the real pip gets; it fails if they contain `fail`."""
    calls: list[list[str]] = []

    def run(arguments: list[str]) -> int:
        calls.append(arguments)
        return 2 if "./fail" in arguments else 0

    monkeypatch.setattr(pip_launcher, "run_pip", run)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return calls


@pytest.mark.parametrize(
    ("line", "lacking"),
    [
        ("install nothing-of-this-name", "nothing-of-this-name"),
        ("-q install -U pytest nothing-of-this-name", "nothing-of-this-name"),
        ("install pytest>=1000", f"pytest>=1000 ({PYTEST} is installed)"),
        ("install --timeout 5 -t place nothing[extra]==2", "nothing[extra]==2"),
        ("install git+https://example.org/a.git", "git+https://example.org/a.git"),
        ("download -d . nothing-of-this-name", "nothing-of-this-name"),
        ("install -r requirements.txt", "nothing>=1, other"),
    ],
)
def test_what_is_not_installed_is_answered_at_once(
    passed_on: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    lacking: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "# a comment\npytest\nnothing>=1  # why\n-e .\n./local\nold; python_version < '3'\nother --hash=sha256:0\n"
    (tmp_path / "requirements.txt").write_text(text)
    assert pip_launcher.main(line.split()) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert (
        first
        == f"pip: this sandbox has no network, so pip cannot download anything. Not installed: {lacking}"
    )
    assert second.startswith("pip: Installed: ")
    assert f"pytest {PYTEST}" in second
    assert passed_on == []


@pytest.mark.parametrize(
    "line",
    [
        "",
        "list",
        "--version",
        "install pytest",
        "install --help",
        "install -e .[test]",
        "install ./folder a.whl",
        "install -f wheels nothing-of-this-name",
        "install --find-links=wheels nothing-of-this-name",
        "install -r no-such-file",
        "install ???",
    ],
)
def test_the_real_pip_does_the_rest(passed_on: list[list[str]], line: str) -> None:
    assert pip_launcher.main(line.split()) == 0
    assert passed_on == [line.split()]


def test_a_local_install_that_fails_is_explained(
    passed_on: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert pip_launcher.main(["install", "./fail"]) == 2
    assert "no network" in capsys.readouterr().err


def test_with_a_network_the_real_pip_does_everything(
    passed_on: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    assert pip_launcher.main(["install", "nothing-of-this-name"]) == 0
    assert passed_on == [["install", "nothing-of-this-name"]]


def test_pip_of_another_python_works_for_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "pip"
    other.write_text("")
    other.chmod(0o755)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", f"{Path(pip_launcher.__file__).parent}:{tmp_path}")
    assert pip_launcher.find_pip() == [str(other), "--python", sys.executable]


def test_without_any_pip_packages_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pip_launcher, "find_pip", lambda: None)
    assert pip_launcher.run_pip(["freeze"]) == 0
    assert f"pytest=={PYTEST}\n" in capsys.readouterr().out
    assert pip_launcher.run_pip(["show", "pytest"]) == 1
    assert "pip is not installed here" in capsys.readouterr().err

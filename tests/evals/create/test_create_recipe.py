"""The environment derived from a repository's files and a date."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from m3agent.evals.create.create import choose_python, recipe_of
from tests.evals.create.history_of import FIRST, FIX, Repo, newest

Files = dict[str, str | bytes | None]
SETUP = "from setuptools import setup\nsetup(name='calc', install_requires=['six>=1'], extras_require={'test': ['mock']})\n"


def recipe(repo: Repo, files: Files, scratch: Path, python: str | None = None) -> tuple[dict[str, Any], str]:
    repo.commit({**FIRST, **files}, "Begin")
    repo.git("tag", "v3.1.4")
    repo.commit(FIX)
    history = repo.history(scratch)
    commit = newest(history)
    assert commit.parent is not None
    return recipe_of(history, commit.parent, commit, python)


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "calc")


def test_declared_packages_the_test_extra_and_pytest_are_installed(repo: Repo, tmp_path: Path) -> None:
    found, version = recipe(
        repo, {"setup.py": SETUP, "requirements-test.txt": "attrs==23.1.0\n"}, tmp_path / "s"
    )
    assert found["requirements_txt"] == "attrs==23.1.0\nmock\nsix>=1\n" and found["pip_packages"] == [
        "pytest"
    ]
    assert found["install"] == "python -m pip install -e ." and version == "3.1.4"
    assert found["exclude_newer"] == "2024-01-02T12:00:00Z" and found["env"] == {}


def test_a_pytest_of_the_project_is_not_named_twice(repo: Repo, tmp_path: Path) -> None:
    found, _ = recipe(repo, {"requirements.txt": "pytest==7.4.0\n"}, tmp_path / "s")
    assert found["pip_packages"] == [] and found["install"] is None


def test_a_pyproject_that_only_configures_tools_is_not_installed(repo: Repo, tmp_path: Path) -> None:
    found, _ = recipe(repo, {"pyproject.toml": "[tool.ruff]\nline-length = 100\n"}, tmp_path / "s")
    assert found["install"] is None and found["requirements_txt"] is None


@pytest.mark.parametrize(
    ("build", "variable"),
    [
        ("setuptools_scm[toml]>=6", "SETUPTOOLS_SCM_PRETEND_VERSION"),
        ("hatch-vcs", "SETUPTOOLS_SCM_PRETEND_VERSION"),
        ("pbr", "PBR_VERSION"),
    ],
)
def test_versions_from_tags_are_given(build: str, variable: str, repo: Repo, tmp_path: Path) -> None:
    files: Files = {"pyproject.toml": f"[build-system]\nrequires = ['{build}']\n"}
    found, _ = recipe(repo, files, tmp_path / "s")
    assert found["env"] == {variable: "3.1.4"} and found["install"] is not None


@pytest.mark.parametrize(
    ("files", "python"),
    [
        ({}, "3.11"),  # 3.12 was only three months old
        ({"pyproject.toml": "[project]\nname = 'calc'\nrequires-python = '>=3.7,<3.10'\n"}, "3.9"),
        ({"setup.cfg": "[metadata]\nclassifiers =\n  Programming Language :: Python :: 3.8\n"}, "3.8"),
        ({"setup.py": "setup(python_requires='>=3.12')\n"}, "3.12"),
        ({".python-version": "3.8.10\n"}, "3.8"),
        ({"pyproject.toml": "[project]\nname = 'calc'\nrequires-python = '<3'\n"}, "3.11"),
    ],
)
def test_the_newest_settled_python_that_the_project_accepts(
    files: Files, python: str, repo: Repo, tmp_path: Path
) -> None:
    assert recipe(repo, files, tmp_path / "s")[0]["python_used"] == python


def test_requested_python_is_used(repo: Repo, tmp_path: Path) -> None:
    assert recipe(repo, {".python-version": "3.8"}, tmp_path / "s", "3.13")[0]["python_used"] == "3.13"


@pytest.mark.parametrize(
    ("day", "available", "python"),
    [
        (date(2010, 1, 1), (), "3.5"),
        (date(2010, 1, 1), ("3.9", "3.11"), "3.9"),
        (date(2023, 4, 24), (), "3.10"),
        (date(2023, 4, 25), (), "3.11"),
        (date(2023, 4, 25), ("3.9", "3.13"), "3.9"),
        (date(2035, 1, 1), (), "3.14"),
        (date(2023, 4, 25), ("3.99",), "3.11"),
    ],
)
def test_the_day_and_what_can_be_had_decide(day: date, available: tuple[str, ...], python: str) -> None:
    assert choose_python((), day, available) == python

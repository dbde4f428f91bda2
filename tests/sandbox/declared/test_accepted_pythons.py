"""Which versions of Python a repository accepts."""

from __future__ import annotations

import pytest

from m3agent.sandbox.declared.accepted_pythons import pythons_in, read_ci_pythons
from m3agent.sandbox.declared.declared import acceptable_pythons, read_declared, read_required_pythons
from tests.sandbox.declared.trees import files_of


@pytest.mark.parametrize(
    ("specifier", "pythons"),
    [
        ("", ()),
        ("not one", ()),
        (">=3.12,<3.14", ("3.12", "3.13")),
        ("==3.9.*", ("3.9",)),
        ("<3.8", ("3.7", "3.6", "3.5")),
        (">=3.6.5,<3.7", ("3.6",)),
        (">=3.16", ("3.16",)),
        ("==3.4.*", ("3.4",)),
        (">=2.7,<3", ("2.7",)),
    ],
)
def test_the_pythons_in_a_range(specifier: str, pythons: tuple[str, ...]) -> None:
    assert pythons_in(specifier) == pythons


CI = ".github/workflows/tests.yml"


@pytest.mark.parametrize(
    ("path", "text", "pythons"),
    [
        (CI, 'python-version: ["3.13", 3.12, "pypy3.9"]\n', ("3.12", "3.13")),
        (CI, "    python-version:\n      - '3.12'\n      - 3.14-dev\n    os: [a-3.8]\n", ("3.12", "3.14")),
        (CI, "- {python: 3.13}\n  python: '3.12' # or 3.9\n", ("3.12",)),
        (CI, "python-version: ${{ matrix.python }}\n", ()),
        (CI, "python-version: 3.x\n", ()),
        (".github/workflows/docs.yml", "python-version: 3.12\n", ()),
    ],
)
def test_the_pythons_that_workflows_name(path: str, text: str, pythons: tuple[str, ...]) -> None:
    assert read_ci_pythons(files_of({path: text})) == pythons


PROJECT = '[project]\nname = "a"\ndependencies = ["b"]\n'
RANGE = PROJECT + 'requires-python = ">=3.9,<3.11"\n'


LOCK_13 = {"pyproject.toml": PROJECT, "uv.lock": 'requires-python = ">=3.13"\n'}
LOCK_12 = {"pyproject.toml": PROJECT, "poetry.lock": '[metadata]\npython-versions = "~3.12"\n'}
BOTH = {"pyproject.toml": PROJECT, "poetry.lock": '[metadata]\npython-versions = "3.8 || 3.9"\n'}
PLACES: dict[str, tuple[dict[str, str], tuple[str, ...], tuple[str, ...]]] = {
    "nothing": ({}, (), ()),
    "range": ({"pyproject.toml": RANGE}, ("3.10", "3.9"), ("3.10", "3.9")),
    "pin and range": ({"pyproject.toml": RANGE, ".python-version": "3.10.4"}, ("3.10",), ("3.10", "3.9")),
    "pin": ({".python-version": "3.12", CI: "python-version: 3.9\n"}, ("3.12",), ("3.12",)),
    "workflow": ({CI: "python-version: 3.9\n"}, ("3.9",), ("3.9",)),
    "uv's lock": (LOCK_13, ("3.13", "3.14"), ("3.13", "3.14")),
    "Poetry's lock": (LOCK_12, ("3.12",), ("3.12",)),
    "alternatives": (BOTH, (), ()),
}


@pytest.mark.parametrize(("texts", "acceptable", "required"), PLACES.values(), ids=PLACES)
def test_where_tests_should_run_and_where_results_count(
    texts: dict[str, str], acceptable: tuple[str, ...], required: tuple[str, ...]
) -> None:
    assert acceptable_pythons(read_declared(files_of(texts))) == acceptable
    assert read_required_pythons(files_of(texts)) == required

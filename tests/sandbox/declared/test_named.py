"""Extras and groups that only a repository's own test runs name."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement

from m3agent.sandbox.declared.declared import Declared, read_declared
from tests.sandbox.declared.trees import files_of

PROJECT = """
[project]
name = "own"
dependencies = ["alpha"]
[project.optional-dependencies]
cli = ["click"]
http2 = ["h2"]
docs = ["sphinx"]
[dependency-groups]
unit = ["hypothesis"]
lint = ["ruff"]
"""


def declared(texts: dict[str, str]) -> Declared:
    every = {"pyproject.toml": PROJECT} | {
        name: PROJECT + text if name == "pyproject.toml" else text for name, text in texts.items()
    }
    return read_declared(files_of(every))


def names(lines: tuple[str, ...]) -> set[str]:
    return {Requirement(line).name for line in lines}


@pytest.mark.parametrize(
    ("texts", "more"),
    [
        ({"requirements.txt": "-e .[cli,http2]\n"}, {"click", "h2"}),
        ({"requirements-dev.txt": "--editable=.[CLI]\n"}, {"click"}),
        ({"tox.ini": "[testenv]\nextras = cli\n    http2\n"}, {"click", "h2"}),
        ({"tox.ini": "[testenv]\ndeps =\n    -e {toxinidir}/.[cli]\n"}, {"click"}),
        ({"tox.ini": "[testenv]\ncommands =\n    pip install -e .[cli]\n    pytest\n"}, {"click"}),
        ({"tox.ini": "[testenv]\ndependency_groups = unit, lint\n"}, {"hypothesis"}),
        ({"pyproject.toml": "[tool.tox.env_run_base]\nextras = ['cli']\n"}, {"click"}),
        ({"pyproject.toml": "[tool.hatch.envs.hatch-test]\nfeatures = ['http2']\n"}, {"h2"}),
        ({"pyproject.toml": "[tool.hatch.envs.docs]\nfeatures = ['http2']\n"}, set[str]()),
        (
            {".github/workflows/ci.yml": "    run: |\n      pip install \\\n        '.[cli,docs]'\n"},
            {"click"},
        ),
        ({".github/workflows/test.yaml": "run: uv sync --extra http2 --group=unit\n"}, {"h2", "hypothesis"}),
        ({".github/workflows/docs.yml": "run: pip install .[cli]\n"}, set[str]()),
        ({".github/workflows/test.yml": "run: ./deploy --extra http2\n"}, set[str]()),
    ],
)
def test_names_of_all_sources(texts: dict[str, str], more: set[str]) -> None:
    found = declared(texts)
    assert names(found.requirements) == {"alpha"} | more
    assert names(found.optional) == more
    assert not any("which does not exist" in notice for notice in found.notices)


NOXFILE = """
import nox
@nox.session(python=["3.12"])
def tests(session: nox.Session) -> None:
    session.install("-e", ".[cli]", "pytest-xdist>=2", "--group", "unit", "-r", "beta")
    session.run("pytest", "gamma")
@nox.session
def docs(session):
    session.install(".[http2]", "furo")
@nox.session
def test_typing(session):
    session.install("mypy")
"""


def test_nox_names_extras_groups_and_requirements() -> None:
    found = declared({"noxfile.py": NOXFILE})
    assert names(found.optional) == {"click", "hypothesis", "pytest-xdist"}
    assert found.requirements == tuple(sorted(["alpha", *found.optional]))


def test_what_the_project_needs_itself_is_never_optional() -> None:
    found = declared({"noxfile.py": NOXFILE, "requirements.txt": "click\npytest-xdist>=2\n"})
    assert names(found.optional) == {"hypothesis"}


@pytest.mark.parametrize(
    ("commands", "bounds"),
    [
        ("pip install 'pytest<9' pytest-cov", ("pytest<9",)),
        ("uv pip install pytest>=7,!=8.1 'pytest-cov==5.*' other<2", ("pytest!=8.1,>=7", "pytest-cov==5.*")),
        ("pip install pytest>=8 pytest-cov", ()),
        ("pip install pytest<8.* own-pytest<3", ()),
        ("echo pytest<9", ()),
        ("pip install pytest==7.0\n  pip install pytest==8.0", ()),
    ],
)
def test_test_runs_bound_pytest(commands: str, bounds: tuple[str, ...]) -> None:
    tox = f"[testenv]\ncommands =\n  {commands}\n"
    assert declared({"tox.ini": tox}).constraints == bounds
    assert declared({".github/workflows/ci.yml": f"run: |\n  {commands}\n"}).constraints == bounds


def test_tox_names_a_file_of_constraints() -> None:
    texts = {"tox.ini": "[testenv]\ndeps =\n  -c limits.txt\n  pytest\n", "limits.txt": "pytest<9\n"}
    found = declared(texts)
    assert (found.constraints, names(found.requirements)) == (("pytest<9",), {"alpha", "pytest"})


@pytest.mark.parametrize(
    "text", ["[dependency-groups]\ndev = ['odd']", "[project.optional-dependencies]\ndev = ['odd']"]
)
def test_what_only_groups_for_development_name_is_optional(text: str) -> None:
    project = f"[project]\nname = 'own'\ndependencies = ['alpha']\n{text}\ntest = ['beta']\n"
    found = read_declared(files_of({"pyproject.toml": project}))
    assert (found.requirements, found.optional) == (("alpha", "beta", "odd"), ("odd",))


@pytest.mark.parametrize(
    "texts",
    [
        {"noxfile.py": "def ("},
        {"tox.ini": "no section"},
        {".github/workflows/test.yml": "\0: [pip install .[]"},
        {"pyproject.toml": "[tool]\ntox = 3\nhatch.envs = []\n"},
    ],
)
def test_odd_files_add_nothing(texts: dict[str, str]) -> None:
    assert names(declared(texts).requirements) == {"alpha"}

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

JUSTFILE = """
version := "3.12"
@test *args="-x tests": sync
    uv run -p {{ version }} --all-extras --group unit pytest {{args}}
docs:
    uv run --extra docs sphinx-build
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
        ({"setup.cfg": "[options.extras_require]\nspeed =\n    pytest>=7\n    click\n"}, {"click", "pytest"}),
        ({"pyproject.toml": "speed = ['click', 'pytest']\n"}, {"click", "pytest"}),
        (
            {"pyproject.toml": "[tool.pixi.environments]\ndefault = ['unit', 'cli', 'docs']\n"},
            {"hypothesis", "click"},
        ),
        ({"pyproject.toml": "[tool.pixi.environments]\ndefault = {features = ['cli', 'nx']}\n"}, {"click"}),
        (
            {
                "pyproject.toml": "[tool.pixi.environments]\ntest-extra-py313 = ['http2']\nbuild-docs = ['cli']\n"
            },
            {"h2"},
        ),
        ({"pyproject.toml": "[tool.hatch.envs.hatch-test]\nfeatures = ['http2']\n"}, {"h2"}),
        ({"pyproject.toml": "[tool.hatch.envs.docs]\nfeatures = ['http2']\n"}, set[str]()),
        (
            {".github/workflows/ci.yml": "    run: |\n      pip install \\\n        '.[cli,docs]'\n"},
            {"click"},
        ),
        ({".github/workflows/test.yaml": "run: uv sync --extra http2 --group=unit\n"}, {"h2", "hypothesis"}),
        ({".github/workflows/docs.yml": "run: pip install .[cli]\n"}, set[str]()),
        ({".github/workflows/test.yml": "run: ./deploy --extra http2\n"}, set[str]()),
        ({".github/workflows/test.yml": "run: uv sync --all-extras\n"}, {"click", "h2"}),
        ({".github/workflows/test.yml": "run: uv sync --all-extras --no-extra cli\n"}, {"h2"}),
        (
            {
                "Makefile": "test: sync\n\tuv sync --all-extras --no-extra=cli\n",
                ".github/workflows/test.yml": "run: uv sync --all-extras --no-extra http2\n",
            },
            set[str](),
        ),
        (
            {
                "pyproject.toml": "[tool.hatch.metadata.hooks.vcs.optional-dependencies]\nspeed = ['numpy']\n",
                "Makefile": "test:\n\tuv sync --all-extras\n",
            },
            {"click", "h2", "numpy"},
        ),
        ({".github/workflows/test.yml": "run: uv sync --all-groups --no-group=unit\n"}, set[str]()),
        (
            {
                "pyproject.toml": "[tool.poetry.group.speed.dependencies]\nnumpy = '*'\n",
                "Makefile": "test:\n\tpoetry install --all-groups\n",
            },
            {"hypothesis", "numpy"},
        ),
        ({"Makefile": "tests: sync\n\tpoetry install --all-extras\n"}, {"click", "h2"}),
        ({"justfile": JUSTFILE}, {"click", "h2", "hypothesis"}),
        ({"pyproject.toml": "dev = ['OWN[http2]']\n"}, {"h2"}),
        ({"requirements-dev.txt": "own[cli]\n"}, {"click"}),
        ({"tox.ini": "[testenv]\ndeps = own[cli]\n"}, {"click"}),
    ],
)
def test_names_of_all_sources(texts: dict[str, str], more: set[str]) -> None:
    found = declared(texts)
    assert names(found.requirements) == {"alpha"} | more
    assert names(found.optional) == more
    assert not any("which does not exist" in notice for notice in found.notices)


@pytest.mark.parametrize(
    ("test", "more"),
    [
        ("from odd_name.deep import given\n", ("odd-name",)),
        ("import odd_name, os\n", ("odd-name",)),
        ("import odd_names\n", ()),
        ("if True:\n    import odd_name\n", ()),
        ("import alpha\n", ()),
        ("import newer, windows\n", ()),
        ("import windows\n", ()),
    ],
)
def test_what_tests_import_is_installed_on_every_python(test: str, more: tuple[str, ...]) -> None:
    pins = ('Odd-name==5 ; python_version == "3.9"', 'Odd-name==3 ; python_version < "3.8"')
    others = 'newer ; python_version >= "3.10"\nwindows ; sys_platform == "win32"\n'
    lines = f"{others}{pins[0]}\n{pins[1]} --hash=sha256:{'0' * 64}\n"
    found = declared({"requirements.txt": lines, "extra/test_own.py": test, "own.py": "import odd_name\n"})
    assert found.optional == more
    assert len(found.requirements) == len(more) + 5


def test_uvs_overrides_and_constraints_count() -> None:
    settings = "[tool.uv]\noverride-dependencies = ['x>=3', 'y @ https://own.test/y.whl']\nconstraint-dependencies = ['z<2']\n"
    found = declared({"pyproject.toml": settings})
    assert (found.overrides, found.constraints) == (("x>=3",), ("z<2",))


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


@pytest.mark.parametrize(
    ("environments", "lines", "names"),
    [
        ("py39-click{7,8}\n  py314-click{7,8}", "click7: click<8\nclick8: click>=8\n", {"click>=8"}),
        ("py{39,314}-{a,b}, lint", "a: delta\nb,lint: beta\n", {"beta"}),
        (
            "py{39,314}-{dj52,main}, docs",
            "dj52: Django\nmain: gamma\n!dj52: old\n!x-dj{51,52}: new\n",
            {"Django", "new"},
        ),
        ("py39, py314", "py314: only-there\n!py39: other\n", {"other"}),
        ("", "click8: click\n", set()),
    ],
)
def test_the_newest_environment_of_tox_decides_conditions(
    environments: str, lines: str, names: set[str]
) -> None:
    deps = "".join(f"  {line}\n" for line in lines.splitlines())
    found = declared({"tox.ini": f"[tox]\nenv_list =\n  {environments}\n[testenv]\ndeps =\n{deps}"})
    assert set(found.requirements) - {"alpha"} == names


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

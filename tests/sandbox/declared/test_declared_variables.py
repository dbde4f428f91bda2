"""Which variables a repository's own test runs set."""

from __future__ import annotations

import pytest

from m3agent.sandbox.declared.variables import read_variables
from tests.sandbox.declared.trees import files_of

TOX = """
[testenv]
setenv =
    REGION = us-east-1
    PLACE = {toxinidir}/x
    LC_ALL = en_US.UTF-8
    py310: OLD = 1
"""
PYPROJECT = """
[tool.tox.env_run_base]
set_env = {REGION = "us-east-1", PLACE = {replace = "env", name = "X"}}
"""
HATCH = """
[tool.hatch.envs.hatch-test.env-vars]
REGION = "us-east-1"
[tool.hatch.envs.docs.env-vars]
THEME = "dark"
"""
WORKFLOW = """
env:
  # for all jobs
  REGION: "us-east-1"  # any

  FORCE_COLOR: 1
  OTHER: yes
  SERVICE: http://localhost:5432
  KEY: ${{ secrets.KEY }}
jobs:
  one:
    env:
      DATABASE: first
    steps:
      - env:
          DATABASE: second
        run: pytest
        name: tests
"""


@pytest.mark.parametrize(
    ("path", "text"), [("tox.ini", TOX), ("pyproject.toml", PYPROJECT), ("pyproject.toml", HATCH)]
)
def test_literal_variables_of_test_runs_count(path: str, text: str) -> None:
    assert read_variables(files_of({path: text})) == {"REGION": "us-east-1"}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tox.ini", "[testenv]\npassenv =\n    REGION, FORCE_COLOR\n    SERVICE KEY DATA*\n"),
        ("pyproject.toml", "[tool.tox.env_run_base]\npass_env = ['REG*', 'SERVICE', 'DATABASE']\n"),
    ],
)
def test_a_workflows_variables_count_if_tox_passes_them_on(path: str, text: str) -> None:
    workflow = {".github/workflows/tests.yml": WORKFLOW}
    assert read_variables(files_of({path: text, **workflow})) == {"REGION": "us-east-1"}
    assert read_variables(files_of(workflow)) == {}
    assert read_variables(files_of({path: text, ".github/workflows/release.yml": WORKFLOW})) == {}


def test_tox_comes_before_workflows() -> None:
    texts = {"tox.ini": f"{TOX}passenv = REGION\n", ".github/workflows/tests.yml": "env:\n  REGION: x\n"}
    assert read_variables(files_of(texts)) == {"REGION": "us-east-1"}

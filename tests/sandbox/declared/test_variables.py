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
    ("path", "text"),
    [
        ("tox.ini", TOX),
        ("pyproject.toml", PYPROJECT),
        ("pyproject.toml", HATCH),
        (".github/workflows/tests.yml", WORKFLOW),
    ],
)
def test_literal_variables_of_test_runs_count(path: str, text: str) -> None:
    assert read_variables(files_of({path: text})) == {"REGION": "us-east-1"}


def test_tox_comes_before_workflows_and_a_workflow_of_releases_does_not_count() -> None:
    texts = {"tox.ini": TOX, ".github/workflows/tests.yml": "env:\n  REGION: x\n"}
    assert read_variables(files_of(texts)) == {"REGION": "us-east-1"}
    assert read_variables(files_of({".github/workflows/release.yml": WORKFLOW})) == {}

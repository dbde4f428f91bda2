"""Rows of SWE-bench in their own Pythons: the reference resolves them, and no empty, harmless or forging patch does.

Genuine rows are used where a copy of them lies beside the checkout. Rows of the same form, which a test makes, are used
everywhere.
"""

from __future__ import annotations

import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from m3agent.tools.in_sandbox.guard import FEW_EVENTS
from tests.agent.repositories import write_files
from tests.command_line import run
from tests.conftest import docker_here, git
from tests.evals.calc_instance import FILES, FIXED, NEW_TESTS, TO_FIX, TO_KEEP, diff

pytestmark = [
    pytest.mark.slow,
    pytest.mark.docker,
    pytest.mark.usefixtures("images_alone"),  # other tests remove images
    pytest.mark.skipif(not docker_here(), reason="no Docker engine answers: rows need environment images"),
]

GENUINE = Path(__file__).parents[4] / "shared/data/swebench-dev"
IDS = {
    "3.9": "marshmallow-code__marshmallow-1343,pytest-dev__pytest-7220,pylint-dev__astroid-1333",
    "3.11": "pallets__flask-5063",
}
FORGING = """\
import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    done = yield
    done.get_result().outcome = "passed"
"""


def check(rows: Path, ids: str, folder: Path) -> list[Any]:
    """Check that rows are valid and that no forging patch resolves them; return the grades of the references."""
    done = run("eval", "validate", str(rows), "--ids", ids, "--runs", "1", "--json", timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    forging = diff(folder / "forging", {"a.txt": ""}, {"conftest.py": FORGING}).decode()
    predictions = folder / "predictions.json"
    predictions.write_text(
        json.dumps(
            [
                {"instance_id": ident, "model_name_or_path": "forger", "model_patch": forging}
                for ident in ids.split(",")
            ]
        )
    )
    for given, verdict in ((str(predictions), "unresolved"), ("gold", "resolved")):
        graded = run("eval", "grade", str(rows), given, "--ids", ids, "--json", timeout=900)
        grades = [one["strict"] for one in json.loads(graded.stdout)["instances"]]
        assert [grade["verdict"] for grade in grades] == [verdict] * len(ids.split(",")), graded.stdout
    return grades


@pytest.mark.skipif(not GENUINE.is_dir(), reason="no copy of genuine rows lies beside this checkout")
@pytest.mark.parametrize("python", IDS)
def test_genuine_rows(python: str, tmp_path: Path) -> None:
    for grade in check(GENUINE, IDS[python], tmp_path):
        assert grade["means"] == [
            "authenticated report",
            "canaries",
            "comparison of functions",
            "audit hooks",
        ]
        assert (FEW_EVENTS in grade["blind"]) == (python == "3.9")


def made_row(folder: Path, python: str) -> Path:
    """Write a row that wants a Python, with its code in an archive; return its file."""
    code = folder / "code"
    write_files(
        code,
        {**FILES, "setup.py": "from setuptools import setup\n\nsetup(name='calc', py_modules=['calc'])\n"},
    )
    git(code, "init", "-q", "-b", "base")
    git(code, "add", "-A")
    git(code, "commit", "-q", "-m", "base")
    subprocess.run(["git", "clone", "-q", "--bare", str(code), str(folder / "calc.git")], check=True)
    with tarfile.open(folder / "calc.tar.gz", "w:gz") as archive:
        archive.add(folder / "calc.git", "calc.git")
    row = {
        "instance_id": f"made__calc-{python.replace('.', '')}",
        "repo": "made/calc",
        "base_commit": git(code, "rev-parse", "HEAD"),
        "patch": diff(folder / "reference", FILES, {"calc.py": FIXED}).decode(),
        "test_patch": diff(folder / "tests", FILES, {"tests/test_calc.py": NEW_TESTS}).decode(),
        "problem_statement": "add is wrong",
        "created_at": "2021-06-01T00:00:00Z",
        "version": "1.0",
        "FAIL_TO_PASS": json.dumps(TO_FIX),
        "PASS_TO_PASS": json.dumps(TO_KEEP),
        "repo_archive": "calc.tar.gz",
        "repo_ref": "refs/heads/base",
        "environment": {"python": python, "install": "python -m pip install -e .", "test_cmd": "pytest -rA"},
    }
    rows = folder / "rows.jsonl"
    rows.write_text(json.dumps(row) + "\n")
    return rows


@pytest.mark.parametrize("python", ["3.9", "3.6"])
def test_made_rows(python: str, tmp_path: Path) -> None:
    rows = made_row(tmp_path, python)
    [grade] = check(rows, f"made__calc-{python.replace('.', '')}", tmp_path)
    assert "canaries" in grade["means"]

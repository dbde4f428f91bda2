"""No forged result counts under our own rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.evals.data.results import Verdict
from m3agent.evals.grade.grader import Grader
from tests.abuse.forgeries import FORGERIES, HONEST
from tests.abuse.forgery_judges import graded
from tests.conftest import docker_here, others_later
from tests.evals.calc_instance import FILES, FIXED, diff, small_instance

pytestmark = [pytest.mark.docker, pytest.mark.skipif(not docker_here(), reason="no Docker engine")]


QUICK = {"written to every descriptor"}
"""The long tests try the others. `make test` tries more in test_forgery.py, forgeries against unittest in
test_grade_small.py, and forgeries by files in `test_the_reference_is_resolved_beside_every_forgery_that_is_undone`."""


@pytest.mark.parametrize("forgery", others_later(FORGERIES, QUICK))
async def test_a_forgery_is_not_resolved(tmp_path: Path, forgery: str) -> None:
    forged = FORGERIES[forgery]
    grade = await graded(forged.files, forged.target, tmp_path)
    if forged.kind == "instability" and grade.verdict is Verdict.RESOLVED:
        pytest.xfail("grading runs the tests once, as the official rules do: a lucky patch looks like a fix")
    assert grade.verdict is not Verdict.RESOLVED, grade


@pytest.mark.slow  # quick: test_grade_small.py
@pytest.mark.parametrize("target", HONEST)
async def test_a_real_fix_is_resolved(tmp_path: Path, target: str) -> None:
    """Counter-check: what is refused above is not refused for the target."""
    grade = await graded({HONEST[target].module: HONEST[target].fixed}, HONEST[target], tmp_path)
    assert grade.verdict is Verdict.RESOLVED, grade


async def test_the_reference_is_resolved_beside_every_forgery_that_is_undone(tmp_path: Path) -> None:
    """What is put back is put back, and the fix beside it counts."""
    instance = small_instance(tmp_path / "instance")
    undone = (
        "conftest at the root",
        "start-up file",
        "tests rewritten",
        "plugin by setup.cfg",
        "plugin by metadata",
    )
    files = {name: text for kind in undone for name, text in FORGERIES[kind].files.items()}
    del files["forged.py"]  # the plugin itself stays, so a person must read it
    patch = diff(tmp_path / "patch", FILES, {**files, "calc.py": FIXED})
    grade = await Grader(tmp_path / "state", print).strict(instance, patch, None, tmp_path)
    assert grade.verdict is Verdict.RESOLVED, grade
    assert set(files) == set(grade.undone)
    assert (grade.fail_to_pass.passed, grade.pass_to_pass.passed) == (2, 1)

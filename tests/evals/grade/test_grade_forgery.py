"""No forged result counts under our own rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.evals.data.results import Verdict
from m3agent.evals.grade.grader import Grader
from tests.abuse.forgeries import FORGERIES, HONEST
from tests.abuse.forgery_judges import GradedTarget, graded
from tests.conftest import docker_here, others_later
from tests.evals.calc_instance import FILES, FIXED, diff, small_instance

pytestmark = [pytest.mark.docker, pytest.mark.skipif(not docker_here(), reason="no Docker engine")]


BY_FILES = {"files", "start-up", "tests"}
"""Kinds of forgeries that need other files than the code under test."""
QUICK = {"written to every descriptor"}
"""The long tests try the others. `make test` tries more in test_forgery.py, forgeries against unittest in
test_grade_small.py, and forgeries by files in `test_the_reference_is_resolved_beside_every_forgery_that_is_undone`."""
OF_EACH_SIGN = {
    *("written to every descriptor", "end at import", "report rewritten by a process in the background"),
    *(
        "reports replaced",
        "code of pytest replaced",
        "hook of a plugin replaced",
        "tests rewritten from the code",
    ),
    *(
        "parser replaced",
        "library changed through its dictionary",
        "helper of the tests replaced among the modules",
    ),
    *("plugin registered from the code", "items of another class", "tests marked as expected failures"),
    *("equal to everything", "comparison of dictionaries replaced", "equal to every small number"),
    *(
        "frame with the expected values",
        "memory of a test rewritten through /proc",
        "channel found in frames",
    ),
    *("thread that swaps the code of tests", "tests replaced once collected", "test case of another class"),
    *(
        "data of a conftest replaced by names in a docstring",
        "test helper in a folder of the code that has no file",
    ),
    *(
        "audit hook that changes tests as they are opened",
        "code of a library replaced by names in a docstring",
    ),
    *("fixes half of the time", "ends in a green test half of the time"),
}
"""Forgeries by code, at least one for each sign by which grading knows them (docs/eval.md). test_forgery.py tries all of them
against `fix`, which has the same guard, and benchmarks/forgeries.py tries all of them against grading."""
TRIED = [name for name, forged in FORGERIES.items() if forged.kind in BY_FILES or name in OF_EACH_SIGN]


@pytest.mark.parametrize("forgery", others_later(TRIED, QUICK))
async def test_a_forgery_is_not_resolved(tmp_path: Path, forgery: str) -> None:
    forged = FORGERIES[forgery]
    known = GradedTarget.of(forged.target)
    patch = known.patch(forged.files, tmp_path)
    if known.leaves_nothing(patch, tmp_path):
        return
    grade = await known.grade(patch, tmp_path)
    if forged.kind == "instability" and grade.verdict is Verdict.RESOLVED:
        pytest.xfail("grading runs the tests once, as the official rules do: a lucky patch looks like a fix")
    assert grade.verdict is not Verdict.RESOLVED, grade


def test_the_list_has_known_names() -> None:
    assert {name for name, forged in FORGERIES.items() if forged.kind not in BY_FILES} >= OF_EACH_SIGN


@pytest.mark.slow
async def test_without_a_patch_the_tests_fail() -> None:
    """A forgery of which nothing is left is therefore not resolved."""
    for name, target in HONEST.items():
        known = GradedTarget.of(target)
        run = await known.grader.run(known.instance, b"", None)
        assert set(target.to_fix) <= {
            ident for ident, outcome in run.outcomes.items() if outcome == "failed"
        }, name


@pytest.mark.parametrize(
    ("forgery", "nothing"),
    [("conftest at the root", True), ("plugin by metadata", False), ("written to every descriptor", False)],
)
def test_what_is_put_back(tmp_path: Path, forgery: str, nothing: bool) -> None:
    known = GradedTarget.of(FORGERIES[forgery].target)
    patch = known.patch(FORGERIES[forgery].files, tmp_path)
    assert known.leaves_nothing(patch, tmp_path) == nothing


@pytest.mark.slow  # quick: test_grade_small.py
@pytest.mark.parametrize("target", HONEST)
async def test_a_real_fix_is_resolved(tmp_path: Path, target: str) -> None:
    """Counter-check: what is refused above is not refused for the target."""
    grade = await graded({HONEST[target].module: HONEST[target].fixed}, HONEST[target], tmp_path)
    assert grade.verdict is Verdict.RESOLVED, grade


@pytest.mark.slow
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

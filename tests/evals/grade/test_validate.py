"""Validation with the outcomes of the tests given: which instances can be graded, and by which tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from m3agent.evals.data.instance import Instance, Task
from m3agent.evals.data.results import Verdict
from m3agent.evals.environments.environments import Environments
from m3agent.evals.grade.grader import Grader
from m3agent.evals.grade.strict import TestRun
from m3agent.evals.grade.trees import Trees
from m3agent.evals.grade.validate import Validation, validate
from m3agent.sandbox.errors import EnvironmentBuildFailed
from m3agent.sandbox.store.git import TreeStore
from tests.evals.calc_instance import small_instance

Outcomes = dict[str, str]


class GivenOutcomes(Grader):
    """A grader that runs no tests.

    Args:
        before: Outcomes of the tests without the reference patch.
        after: Their outcomes with it in each run; the last ones repeat.
    """

    def __init__(self, folder: Path, before: Outcomes, after: Sequence[Outcomes]) -> None:
        super().__init__(folder / "state", print)
        self._trees = Trees(TreeStore(folder / "trees.git"), "", (), (), (), (), ())
        self._before, self._after = before, list(after)

    async def run(self, instance: Instance, patch: bytes, image: str | None) -> TestRun:
        return (await self.tried(instance, patch, image))[1]

    async def tried(self, instance: Instance, patch: bytes, image: str | None) -> tuple[Trees, TestRun]:
        outcomes = self._before
        if patch == instance.answer.patch.encode():
            outcomes = self._after.pop(0) if len(self._after) > 1 else self._after[0]
        return self._trees, TestRun(outcomes, complete=True)


class OneImage(Environments):
    """Every task has the same environment, or none can be built."""

    buildable = True

    async def image(self, task: Task) -> str:
        if not self.buildable:
            raise EnvironmentBuildFailed("no such package")
        return "image"


def outcomes(passed: str = "", failed: str = "") -> Outcomes:
    return dict.fromkeys(passed.split(), "passed") | dict.fromkeys(failed.split(), "failed")


async def validated(
    folder: Path, before: Outcomes, *after: Outcomes, fix: str = "a", keep: str = "b"
) -> Validation:
    """Validate an instance with the tests `fix` and `keep`; if both are empty, its row lists none."""
    instance = small_instance(
        folder / "instance", fail_to_pass=tuple(fix.split()), pass_to_pass=tuple(keep.split())
    )
    environments = OneImage(folder / "state", print)
    return await validate(instance, environments, GivenOutcomes(folder, before, after))


async def test_an_instance_that_can_be_graded(tmp_path: Path) -> None:
    found = await validated(tmp_path, outcomes("b", "a"), outcomes("a b"))
    assert found.valid, found
    assert (found.reason, found.image, found.before, found.flaky) == ("", "image", 1, ())
    assert (found.reference, found.harmless) == ((Verdict.RESOLVED, Verdict.RESOLVED), Verdict.UNRESOLVED)


async def test_tests_that_decide_are_found_where_a_row_lists_none(tmp_path: Path) -> None:
    found = await validated(tmp_path, outcomes("b c", "a d"), outcomes("a b", "c d"), fix="", keep="")
    assert found.valid, found
    assert (found.fail_to_pass, found.pass_to_pass, found.before) == (("a",), ("b",), 1)
    assert (found.reference, found.harmless) == ((Verdict.RESOLVED, Verdict.RESOLVED), Verdict.UNRESOLVED)


async def test_flaky_tests_are_left_out(tmp_path: Path) -> None:
    found = await validated(tmp_path, outcomes("b c", "a"), outcomes("a b c"), outcomes("a b"), keep="b c")
    assert found.valid, found
    assert (found.pass_to_pass, found.flaky) == (("b",), ("c",))


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (outcomes("a b"), [outcomes("a b")], "1 of the tests to fix pass without the reference patch"),
        (outcomes("b", "a"), [outcomes("b", "a")], "does not resolve it: 1 to fix and 0 to keep"),
        (outcomes("b", "a"), [outcomes("a", "b")], "does not resolve it: 0 to fix and 1 to keep"),
        (outcomes("b", "a"), [outcomes("a b"), outcomes("b", "a")], "1 of the tests to fix are flaky"),
    ],
)
async def test_what_cannot_be_graded_is_invalid_and_says_why(
    tmp_path: Path, before: Outcomes, after: list[Outcomes], why: str
) -> None:
    found = await validated(tmp_path, before, *after)
    assert not found.valid
    assert why in found.reason


async def test_a_row_without_tests_whose_reference_fixes_none_is_invalid(tmp_path: Path) -> None:
    found = await validated(tmp_path, outcomes("a b"), outcomes("a b"), fix="", keep="")
    assert not found.valid
    assert found.reason.startswith("the reference makes no test pass that did not")


async def test_an_environment_that_cannot_be_built_makes_it_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OneImage, "buildable", False)
    found = await validated(tmp_path, outcomes("b", "a"), outcomes("a b"))
    assert (found.valid, found.reason, found.image) == (False, "no such package", "")

"""Validation with the outcomes of the tests given: which instances can be graded, and by which tests."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from m3agent.cli.eval import grade
from m3agent.evals.data.instance import Instance, Task
from m3agent.evals.data.results import Verdict
from m3agent.evals.environments.environments import Environments
from m3agent.evals.grade.grader import Grader
from m3agent.evals.grade.strict import TestRun
from m3agent.evals.grade.trees import Trees
from m3agent.evals.grade.validate import Validation, Validations, validate, validate_all
from m3agent.sandbox.errors import (
    DiskFull,
    EngineUnavailable,
    EnvironmentBuildFailed,
    ImageMissing,
    SandboxError,
)
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
    validation = await validated(
        tmp_path, outcomes("b c", "a"), outcomes("a b c"), outcomes("a b"), keep="b c"
    )
    assert validation.valid, validation
    assert (validation.pass_to_pass, validation.flaky) == (("b",), ("c",))
    instance = small_instance(tmp_path / "again", fail_to_pass=("a",), pass_to_pass=("b", "c"))
    steady = Validations({instance.id: validation}).applied(instance)
    assert (steady.answer.fail_to_pass, steady.answer.pass_to_pass) == (("a",), ("b",))


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (outcomes("a b"), [outcomes("a b")], "1 of the tests to fix pass without the reference patch"),
        (outcomes("b", "a"), [outcomes("b", "a")], "does not resolve it: 1 test to fix"),
        (outcomes("b", "a"), [outcomes("a", "b")], "does not resolve it: 1 test to keep"),
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


# -- many instances ----------------------------------------------------------------------------------------------------


class Failing(OneImage):
    """The environments of one repository fail with an error."""

    def __init__(self, folder: Path, error: SandboxError) -> None:
        super().__init__(folder, print)
        self.error: SandboxError | None = error
        self.asked: list[str] = []

    async def image(self, task: Task) -> str:
        self.asked.append(task.instance_id)
        if task.repo == "failing/calc" and self.error is not None:
            raise self.error
        return "image"


def several(folder: Path) -> list[Instance]:
    first = small_instance(folder / "instance", fail_to_pass=("a",), pass_to_pass=("b",))
    second = first.task.model_copy(update={"instance_id": "small__calc-2", "repo": "failing/calc"})
    return [first, first.model_copy(update={"task": second})]


async def validated_all(folder: Path, environments: Failing, known: Validations) -> list[Validation]:
    grader = GivenOutcomes(folder, outcomes("b", "a"), [outcomes("a b")])
    return await validate_all(several(folder), environments, grader, workers=1, known=known.found)


async def test_one_that_the_machine_fails_for_stops_no_other_and_is_tried_again(tmp_path: Path) -> None:
    environments = Failing(tmp_path, DiskFull("the disk is full"))
    found = await validated_all(tmp_path, environments, Validations({}))
    assert [(one.valid, one.machine_failed) for one in found] == [(True, False), (False, True)]
    assert found[1].reason == "this machine failed: the disk is full"
    file = tmp_path / "validation.json"
    file.write_text(Validations.text(found))
    known = Validations.read(file)
    assert known.found.keys() == {"small__calc-1"}
    environments.error = None
    environments.asked.clear()
    shutil.rmtree(tmp_path / "instance")
    again = await validated_all(tmp_path, environments, known)
    assert [one.valid for one in again] == [True, True]
    assert environments.asked == ["small__calc-2"]


async def test_a_missing_image_makes_an_instance_invalid(tmp_path: Path) -> None:
    environments = Failing(tmp_path, ImageMissing("no registry has it"))
    found = await validated_all(tmp_path, environments, Validations({}))
    assert (found[1].valid, found[1].machine_failed, found[1].reason) == (False, False, "no registry has it")


async def test_without_an_engine_there_is_no_result(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable):
        await validated_all(tmp_path, Failing(tmp_path, EngineUnavailable("none")), Validations({}))


async def test_an_instance_that_changed_is_validated_again(tmp_path: Path) -> None:
    environments = Failing(tmp_path, DiskFull("full"))
    found = await validated_all(tmp_path, environments, Validations({}))
    other = found[0].model_copy(update={"content": "other"})
    environments.asked.clear()
    shutil.rmtree(tmp_path / "instance")
    await validated_all(tmp_path, environments, Validations({other.instance_id: other}))
    assert environments.asked == ["small__calc-1", "small__calc-2"]


def test_a_narrow_table_explains_only_what_it_shows() -> None:
    row = Validation(
        instance_id="owner__repository-123456", valid=False, reason="no test fails before the patch"
    )
    wide, narrow = (grade._validation_table([row], width) for width in (0, 59))
    assert "RED BEFORE: tests that fail" in wide and "too narrow" not in wide
    assert "RED BEFORE: " not in narrow
    assert (
        narrow.replace("\n", " ").count(
            "too narrow for RED BEFORE, REFERENCE, HARMLESS, FLAKY, SECONDS: --json has them"
        )
        == 1
    )
    assert max(map(len, narrow.splitlines())) <= 59

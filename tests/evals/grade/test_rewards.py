"""Tasks of Harbor, graded by the reward that their own tests write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from m3agent.evals.code.checkout import checkout
from m3agent.evals.data.instance import Instance
from m3agent.evals.data.load import load
from m3agent.evals.environments.environments import Environments
from m3agent.evals.export.export import Exporter
from m3agent.evals.grade import rewards
from m3agent.evals.grade.container import ContainerRun
from m3agent.evals.grade.grader import Grader
from m3agent.evals.grade.official import official_grade, official_grade_of_reference
from m3agent.evals.grade.rewards import DONE, OUT, PACKED, REWARDS, read_rewards
from m3agent.evals.grade.validate import HARMLESS, validate
from m3agent.sandbox.errors import ImageMissing
from tests.conftest import docker_here
from tests.evals.bases import needs_base
from tests.evals.calc_instance import small_instance
from tests.evals.data.test_data_harbor import SEPARATE
from tests.evals.export.test_eval_export import IMAGE
from tests.evals.grade.test_validate import OneImage
from tests.evals.harbor_task import FAULTY, TOML, write_deep_swe, write_task

JSON, TEXT = REWARDS


@pytest.mark.parametrize(
    ("path", "content", "found"),
    [
        (TEXT, b"1\n", {"reward": 1}),
        (TEXT, b"0.5", {"reward": 0.5}),
        (JSON, b'{"a": 1, "b": 0}', {"a": 1, "b": 0}),
        (JSON, b'{"a": 0, "reward": 1}', {"reward": 1}),
        (TEXT, b"yes", None),
        (TEXT, b"NaN", None),
        (JSON, b'{"reward": true}', None),
        (JSON, b"{}", None),
    ],
)
def test_what_a_reward_is(path: str, content: bytes, found: object) -> None:
    assert read_rewards(path, content) == found


class GivenRuns:
    """Containers that leave the given files, one after the other, and what they were given."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *left: dict[str, bytes], timed_out: bool = False
    ) -> None:
        self.left = list(left)
        self.timed_out = timed_out
        self.given: list[dict[str, bytes]] = []
        monkeypatch.setattr(rewards, "run_in_container", self.run)

    async def run(self, image: str, files: dict[str, bytes], *_: object, **__: Any) -> ContainerRun:
        self.given.append(files)
        return ContainerRun("", self.left.pop(0), self.timed_out)


def task(folder: Path, toml: str = TOML) -> Instance:
    return load(str(write_task(folder / "calc-1", toml)))[0]


@pytest.mark.parametrize(
    ("left", "of_patch", "of_solution"),
    [
        ({DONE: b"", TEXT: b"1"}, (True, ""), (True, "")),
        ({DONE: b"", TEXT: b"1", JSON: b'{"speed": 0.5}'}, (False, "speed is 0.5"), (False, "speed is 0.5")),
        (
            {DONE: b"", OUT: b"no network\n"},
            (False, "tests/test.sh wrote no reward: no network"),
            (None, "tests/test.sh wrote no reward: no network"),
        ),
        ({}, (False, "the patch does not apply"), (None, "the image has no folder of the code")),
    ],
)
async def test_the_reward_decides(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    left: dict[str, bytes],
    of_patch: object,
    of_solution: object,
) -> None:
    instance = task(tmp_path)
    GivenRuns(monkeypatch, left, left)
    grade = await official_grade(instance, HARMLESS, "image", tmp_path)
    assert (grade.resolved, grade.reason) == of_patch
    grade = await official_grade_of_reference(instance, "image", tmp_path)
    assert (grade.resolved, grade.reason) == of_solution


async def test_tests_in_a_fresh_container_get_only_the_artifacts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = GivenRuns(monkeypatch, {DONE: b"", PACKED: b"packed"}, {DONE: b"", TEXT: b"1"})
    grade = await official_grade_of_reference(task(tmp_path, TOML + SEPARATE), "image", tmp_path)
    assert grade.resolved
    first, second = (
        {name for name in given if not name.endswith("script.sh")} | set() for given in runs.given
    )
    assert (first, second) == ({"/solution/solve.sh"}, {"/tests/test.sh", PACKED})
    assert runs.given[1][PACKED] == b"packed"


async def test_a_task_without_a_solution_is_invalid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = task(tmp_path)
    GivenRuns(monkeypatch, {DONE: b"", TEXT: b"0"})
    (tmp_path / "calc-1" / "solution" / "solve.sh").unlink()
    state = tmp_path / "state"
    found = await validate(instance, OneImage(state, print), Grader(state, print), runs=1)
    assert not found.valid
    assert found.reason.endswith("it has no solution/solve.sh")


@pytest.mark.docker
@pytest.mark.skipif(not docker_here(), reason="no Docker engine")
async def test_a_missing_image_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("m3agent.evals.code.code_image.pull", lambda *_: False)
    instance, state = task(tmp_path), tmp_path / "state"
    found = await validate(instance, Environments(state, print), Grader(state, print), runs=1)
    assert (found.valid, found.reason) == (False, "no registry has calc:1")
    with pytest.raises(ImageMissing, match="no registry has calc:1"):
        checkout(instance.task, tmp_path / "code")


@pytest.mark.slow  # quick: the tests above
@needs_base
async def test_exported_tasks_and_those_with_a_dockerfile_are_valid(tmp_path: Path) -> None:
    state, tasks = tmp_path / "state", tmp_path / "tasks"
    environments, grader = Environments(state, print), Grader(state, print)
    exported = small_instance(tmp_path / "instance")
    await Exporter(tasks, state, environments, grader).harbor([exported], print)
    image = load(str(tasks))[0].task.environment.image
    assert image is not None and image != IMAGE
    dockerfile = (
        f"FROM {image}\nWORKDIR /app\nCOPY calc.py .\nRUN echo junk.log > .gitignore && touch junk.log\n"
    )
    files = {"environment/Dockerfile": dockerfile, "environment/calc.py": FAULTY}
    toml = 'version = "1.0"\nartifacts = ["/app", "/none"]\n[verifier]\nenvironment_mode = "separate"\n'
    write_task(tasks / "built", toml, **files)
    write_deep_swe(tasks / "deep", image)
    found = [await validate(each, environments, grader, runs=1) for each in load(str(tasks))]
    assert [one.valid for one in found] == [True, True, True], found
    [deep] = load(str(tasks / "deep"))
    patch = exported.answer.patch.encode()
    # what an agent changed counts although it did not commit
    assert (await official_grade(deep, patch, image, tmp_path)).resolved
    checkout(load(str(tasks / "built"))[0].task, tmp_path / "code")
    assert sorted(path.name for path in (tmp_path / "code").iterdir()) == [".git", ".gitignore", "calc.py"]

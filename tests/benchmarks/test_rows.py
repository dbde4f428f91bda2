"""The table of SWE-bench's rows: what is read of them, and what it counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import rows
from benchmarks.rows import Row, Wanted, build, read_rows, table, task_of, wanted_by

from m3agent.evals.data.instance import Task
from m3agent.evals.environments.environments import Environments
from m3agent.sandbox.errors import EnvironmentBuildFailed

DAYS = ("2020-01-02T00:00:00Z", "2021-01-02T00:00:00Z")


def row(repo: str, version: str, day: str = DAYS[0]) -> Row:
    return Row(f"{repo.replace('/', '__')}-1", repo, version, day)


SPECS: dict[str, dict[str, Any]] = {
    "1.0": {"python": "3.6", "packages": "requirements.txt", "pip_packages": ["b"]},
    "2.0": {"python": "3.10", "packages": "b"},
}


@pytest.fixture(autouse=True)
def specs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "official_environment", lambda _, version: SPECS.get(version))


class Built(Environments):
    """Builds nothing: the packages of 3.6 cannot be installed, and those of 3.10 are on 3.9."""

    async def packages(self, task: Task) -> tuple[str, str]:
        if task.environment.python == "3.6":
            raise EnvironmentBuildFailed("no wheel")
        return "image", "3.9"


def test_only_four_fields_of_a_row_are_read(tmp_path: Path) -> None:
    whole = {"instance_id": "a__b-1", "repo": "a/b", "version": 1.0, "created_at": DAYS[0], "patch": "secret"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(whole) + "\n\n")
    assert read_rows([tmp_path / "rows.jsonl"]) == [row("a/b", "1.0")]


def test_an_environment_is_as_of_the_date_of_its_newest_row() -> None:
    wanted = wanted_by([row("a/b", "2.0"), row("a/b", "1.0"), row("a/b", "1.0", DAYS[1])])
    assert [len(each.rows) for each in wanted] == [2, 1]
    task = task_of(wanted[0])
    assert task is not None and task.created_at is not None
    assert (task.created_at.year, wanted[0].python, wanted[0].from_files) == (2021, "3.6", True)


async def test_the_table_counts_what_was_built(tmp_path: Path) -> None:
    wanted = wanted_by([row("a/b", "1.0"), row("a/b", "2.0"), row("a/b", "2.0"), row("a/b", "3.0")])
    for each in wanted:
        await build(each, Built(tmp_path, print), float("inf"))
    assert table(wanted).splitlines()[2:] == [
        "| not known | 1 | 1 | 0 | 0 | 0 | a/b 3.0 |",
        "| 3.6 | 1 | 1 | 0 | 0 | 1 | a/b 1.0 |",
        "| 3.10 | 2 | 1 | 1 | 1 | 0 | - |",
    ]
    assert [each.problem for each in wanted] == ["", "no wheel", "the tables do not have this version"]


async def test_nothing_is_built_after_the_time(tmp_path: Path) -> None:
    wanted = Wanted([row("a/b", "1.0")])
    await build(wanted, Built(tmp_path, print), 0.0)
    assert (wanted.problem, wanted.python) == ("not tried: the time was over", "3.6")

"""Build the environments of SWE-bench's rows without their code, and print which Pythons they want and what cannot be built.

    python -m benchmarks.rows ROWS [ROWS ...] --swebench FOLDER [--minutes 30] [--json FILE]

ROWS are JSON Lines with `instance_id`, `repo`, `version` and `created_at`; nothing else of them is read. FOLDER has the package
swebench 4.1.0 (`pip install --no-deps --target FOLDER swebench==4.1.0`), whose tables say how the environments are made.

An environment is a repository with a version, as in official builds. Built are the base image, the virtual environment and the
packages, as of the date of its newest row. Not built is what needs the code: files of requirements in the repository, and the
installation of the project itself. `code` counts the environments whose packages are in such a file: of these only the pins in
the tables were tried.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from benchmarks.common import parser_of, say, write_json

from m3agent.agent.settings.settings import state_dir
from m3agent.evals.data.fields import Fields
from m3agent.evals.data.instance import Source, Task
from m3agent.evals.data.official import official_environment
from m3agent.evals.data.recipe import read_environment
from m3agent.evals.environments.environments import Environments
from m3agent.sandbox.errors import EnvironmentBuildFailed

FROM_FILES = ("requirements.txt", "environment.yml")


@dataclass(frozen=True)
class Row:
    """The fields of a row that are read."""

    instance_id: str
    repo: str
    version: str
    created_at: str


@dataclass
class Wanted:
    """An environment and what became of it.

    Attributes:
        rows: The rows that need it.
        python: The minor version of Python that it wants.
        from_files: Whether files of the repository name its packages.
        on: The Python of the image that was built.
        problem: Why none was built.
        seconds: How long that took.
    """

    rows: list[Row]
    python: str = ""
    from_files: bool = False
    on: str = ""
    problem: str = "not tried: the time was over"
    seconds: float = 0.0


def read_rows(paths: Sequence[Path]) -> list[Row]:
    """Return the rows of files; a row that is in two of them counts in both."""
    lines = [line for path in paths for line in path.read_text().splitlines() if line.strip()]
    fields = ("instance_id", "repo", "version", "created_at")
    return [Row(*(str(json.loads(line)[name]) for name in fields)) for line in lines]


def wanted_by(rows: Sequence[Row]) -> list[Wanted]:
    """Return the environments of rows, those with most rows first."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.repo, row.version].append(row)
    return [Wanted(group) for group in sorted(groups.values(), key=len, reverse=True)]


def task_of(wanted: Wanted) -> Task | None:
    """Return the task whose environment is to be built, and note its Python; None if the tables do not have it."""
    newest = max(wanted.rows, key=lambda row: row.created_at)
    spec = official_environment(newest.repo, newest.version)
    if spec is None:
        wanted.problem = "the tables do not have this version"
        return None
    environment = read_environment(Fields(spec, newest.instance_id, "environment."))
    wanted.python = environment.python or ""
    wanted.from_files = spec.get("packages") in FROM_FILES
    return Task(
        instance_id=newest.instance_id,
        repo=newest.repo,
        statement="-",
        version=newest.version,
        created_at=datetime.fromisoformat(newest.created_at),
        source=Source(kind="folder", location="/none"),
        environment=environment,
    )


async def build(wanted: Wanted, environments: Environments, ends: float) -> None:
    """Build one environment, unless the time is over; note the result."""
    task = task_of(wanted)
    if task is None or time.monotonic() > ends:
        return
    started = time.monotonic()
    try:
        _, wanted.on = await environments.packages(task)
        wanted.problem = ""
    except EnvironmentBuildFailed as error:
        wanted.problem = str(error)
    wanted.seconds = round(time.monotonic() - started, 1)
    say(f"{task.repo} {task.version}: {wanted.problem or f'built on Python {wanted.on}'}, {wanted.seconds} s")


def table(every: Sequence[Wanted]) -> str:
    """Return a table with a line for each Python that is wanted."""
    groups: Mapping[str, list[Wanted]] = defaultdict(list)
    for each in every:
        groups[each.python].append(each)
    lines = [
        "| Python | rows | environments | built | on another Python | code | not built |",
        "|---" * 7 + "|",
    ]
    for python in sorted(groups, key=lambda minor: tuple(map(int, minor.split("."))) if minor else ()):
        group = groups[python]
        built = [each for each in group if not each.problem]
        failed = [f"{each.rows[0].repo} {each.rows[0].version}" for each in group if each.problem]
        cells = [
            python or "not known",
            sum(len(each.rows) for each in group),
            len(group),
            len(built),
            sum(each.on != python for each in built),
            sum(each.from_files for each in group),
            ", ".join(failed) or "-",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


async def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("rows", nargs="+", type=Path)
    parser.add_argument("--swebench", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=30.0, help="time for the builds")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.swebench))
    every = wanted_by(read_rows(arguments.rows))
    # other images are left alone, however many there are
    environments = Environments(state_dir(os.environ), say, disk_budget=sys.maxsize)
    ends = time.monotonic() + 60 * arguments.minutes
    for wanted in every:
        await build(wanted, environments, ends)
    write_json(arguments.json, every)
    print(table(every))
    for each in every:
        if each.problem:
            print(f"- {each.rows[0].repo} {each.rows[0].version}: {each.problem}")


if __name__ == "__main__":
    asyncio.run(main())

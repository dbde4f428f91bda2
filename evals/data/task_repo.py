"""Read a task repository of swebench 5, from which its data sets are made: a folder for each instance.

sweb.yaml                          the data sets and their splits
tasks/ID/task.yaml                 short fields of the row
tasks/ID/problem_statement.md      and a file for each long one (`LONG`)

What a row has after `swebench dataset build` is read here without it. Files in `test_assets` are not: a row that needs them
(`image_assets`) is one of SWE-bench Multimodal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from m3agent.evals.data.fields import Fields
from m3agent.evals.data.files import id_of, read_text, unreadable, within
from m3agent.evals.data.instance import DataError
from m3agent.util.sanitize import printable_line

REPOSITORY, TASKS, TASK, TESTS = "sweb.yaml", "tasks", "task.yaml", "tests.json"
LONG = {
    "patch": "gold.patch",
    "test_patch": "test.patch",
    "eval_script": "eval.sh",
    "problem_statement": "problem_statement.md",
}
"""Fields of a row that have a file of their own."""


def task_rows(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the id and the folder of each task of a repository, in alphabetical order.

    Raises:
        DataError: The folder cannot be read, or a name cannot be an id.
    """
    try:
        places = sorted(path.parent for path in (folder / TASKS).glob(f"*/{TASK}"))
    except OSError as error:
        raise unreadable(folder / TASKS, error) from None
    yield from ((id_of(place), place) for place in places)


def read_task_row(place: Path) -> Fields:
    """Return the row of a task.

    Raises:
        DataError: A file is missing, is malformed or leads out of the folder.
    """
    values = _mapping(place, TASK)
    if values.get("instance_id") != place.name:
        raise DataError(f"{place / TASK}, field instance_id: it is not the folder's name")
    values |= {field: _text(place, name) for field, name in LONG.items()} | _mapping(place, TESTS)
    return Fields(values, str(place))


def _mapping(place: Path, name: str) -> dict[str, Any]:
    """Return an object of YAML or JSON."""
    import yaml  # type: ignore[import-untyped]

    text = _text(place, name)
    try:
        value = json.loads(text) if name == TESTS else yaml.safe_load(text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise DataError(f"{place / name} cannot be read ({printable_line(error)})") from None
    if not isinstance(value, dict):
        raise DataError(f"{place / name}: an object is expected")
    # YAML reads dates as dates, and a row has texts
    return {str(key): item.isoformat() if hasattr(item, "isoformat") else item for key, item in value.items()}


def _text(place: Path, name: str) -> str:
    return read_text(within(place, name, f"{place}:"))

"""Read benchmarks of any supported format as instances, or raise one error that says what is wrong."""

from __future__ import annotations

import difflib
import fnmatch
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from m3agent.evals.data.fields import Fields
from m3agent.evals.data.files import id_of
from m3agent.evals.data.harbor import TASK, read_task, task_folders
from m3agent.evals.data.instance import TESTBED, DataError, Instance
from m3agent.evals.data.programs import PROGRAMS, program_names, read_program
from m3agent.evals.data.rows import read_hub, read_json, read_jsonl, read_parquet
from m3agent.evals.data.swebench import read_id, read_row
from m3agent.util.sanitize import printable_line

ROWS = "instances.jsonl"
"""Name of the rows' file in the folder of a data set."""

SPLIT = "test"
"""Default split of a data set on the hub."""

_HUB = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(:(?P<split>[\w.-]+))?")


@dataclass(frozen=True)
class Entry:
    """An instance that is listed but not read yet."""

    ident: str
    """Its id."""
    where: str
    """Its location, for error messages."""
    make: Callable[[], Instance]
    """Reads it; raises DataError."""


def load(source: str, *, ids: Sequence[str] = (), patterns: Sequence[str] = ()) -> list[Instance]:
    """Return the instances of a benchmark, in the benchmark's order.

    Files are read once, row by row if the format allows it. Of rows that are not selected, only the id is
    read.

    Args:
        source: A file of SWE-bench rows (.jsonl, .json, .parquet), a folder with `instances.jsonl`, a folder
            of programs like QuixBugs, a task of Harbor or a folder of such tasks, or the name of a data set on the Hugging Face hub, `owner/name` or
            `owner/name:split`.
        ids: Ids of instances to select. Without ids and patterns, all are selected.
        patterns: Patterns of ids to select as well, such as `django__*`.

    Raises:
        DataError: The data cannot be used; the message names file, row and field.
    """
    wanted = set(ids)
    made: list[Instance] = []
    places: dict[str, str] = {}
    for entry in _entries(source):
        if entry.ident in places:
            raise DataError(
                f"{entry.where}, field instance_id: {entry.ident} exists already ({places[entry.ident]}); "
                "each id may occur once"
            )
        places[entry.ident] = entry.where
        if (
            not (wanted or patterns)
            or entry.ident in wanted
            or any(fnmatch.fnmatchcase(entry.ident, p) for p in patterns)
        ):
            made.append(entry.make())
    if not places:
        raise DataError(f"{source} has no instances")
    _all_found(source, list(places), ids, patterns)
    return made


def digest(instances: Iterable[Instance], left_out: Mapping[str, str] | None = None) -> str:
    """Return a hash of the instances' content, independent of their order and of local paths.

    Args:
        left_out: Ids of instances that are not attempted, with the reason.
    """
    lines = [f"{ident} is left out: {why}" for ident, why in (left_out or {}).items()]
    for instance in instances:
        content = instance.model_dump(mode="json")
        if instance.task.source.kind != "git":
            del content["task"]["source"]["location"]  # the commit id identifies the content
        # runs of older versions had no such fields
        if content["task"]["environment"]["folder"] == TESTBED:
            del content["task"]["environment"]["folder"]
        if content["task"]["environment"]["dockerfile"] is None:
            del content["task"]["environment"]["dockerfile"]
        if content["answer"]["rules"] is None:
            del content["answer"]["rules"]
        lines.append(json.dumps(content, sort_keys=True))
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _entries(source: str) -> Iterator[Entry]:
    try:
        path = Path(source)
        is_folder, there = path.is_dir(), path.exists()
    except (OSError, ValueError):  # a name that no file can have
        raise DataError(
            f"{printable_line(source)} is neither a file nor a folder nor a data set's name"
        ) from None
    if is_folder:
        for marker, read in FOLDERS.items():
            if (path / marker).exists():
                return read(path)
        if tasks := task_folders(path):
            return (entry for task in tasks for entry in _task(task))
        raise DataError(
            f"{path}: a data folder has {' or '.join(FOLDERS)} in it, or folders with {TASK}, and this one does not"
        )
    if there or path.suffix in FILES:
        if path.suffix not in FILES:
            raise DataError(f"{path}: the name of a file of rows ends in {', '.join(FILES)}")
        return FILES[path.suffix](path)
    if match := _HUB.fullmatch(source):
        return _rows(read_hub(match["name"], match["split"] or SPLIT), None)
    raise DataError(
        f"{printable_line(source)} does not exist, and it is not a data set's name like owner/name"
    )


def _rows(rows: Iterable[Fields], folder: Path | None) -> Iterator[Entry]:
    for fields in rows:
        yield Entry(read_id(fields), fields.where, partial(read_row, fields, folder))


def _programs(folder: Path) -> Iterator[Entry]:
    for name in program_names(folder):
        yield Entry(name, str(folder / PROGRAMS / name), partial(read_program, folder, name))


def _task(folder: Path) -> Iterator[Entry]:
    yield Entry(id_of(folder.resolve()), str(folder / TASK), partial(read_task, folder))


def _file(read: Callable[[Path], Iterator[Fields]]) -> Callable[[Path], Iterator[Entry]]:
    return lambda path: _rows(read(path), path.parent)


FILES: dict[str, Callable[[Path], Iterator[Entry]]] = {
    ".jsonl": _file(read_jsonl),
    ".json": _file(read_json),
    ".parquet": _file(read_parquet),
}
"""Reader of a file, by the file's suffix."""

FOLDERS: dict[str, Callable[[Path], Iterator[Entry]]] = {
    ROWS: lambda path: FILES[".jsonl"](path / ROWS),
    PROGRAMS: _programs,
    TASK: _task,
}
"""Reader of a folder, by a file or folder that it contains; the first match is used."""


def _all_found(source: str, known: Sequence[str], ids: Sequence[str], patterns: Sequence[str]) -> None:
    for ident in ids:
        if ident not in known:
            near = difflib.get_close_matches(ident, known, 1, cutoff=0.0)[0]
            raise DataError(f"{source} has no instance {printable_line(ident)}; the nearest is {near}")
    for pattern in patterns:
        if not fnmatch.filter(known, pattern):
            raise DataError(f"{source} has no instance whose id is like {printable_line(pattern)}")

"""Read benchmarks of any supported format as instances, or raise one error that says what is wrong."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from m3agent.evals.data.fields import Fields
from m3agent.evals.data.files import id_of
from m3agent.evals.data.harbor import TASK, read_task, task_folders
from m3agent.evals.data.instance import TESTBED, DataError, Instance
from m3agent.evals.data.programs import PROGRAMS, program_names, read_program
from m3agent.evals.data.swebench import read_id, read_row
from m3agent.evals.data.task_repo import REPOSITORY, read_task_row, task_rows
from m3agent.util.sanitize import printable_line

MOST_ROW = 256 << 20
"""Limit for one line of a .jsonl file, in bytes: a thousand times the largest row of SWE-bench."""
MOST_JSON = 1 << 30
"""Limit for a .json file, in bytes; it is read at once."""


def read_jsonl(path: Path) -> Iterator[Fields]:
    """Yield the rows of a file with one JSON object per line.

    Blank lines are skipped, but counted as rows.
    """
    with _opened(path) as file:
        number = 0
        while line := file.readline(MOST_ROW + 1):
            number += 1
            where = f"{path} row {number}"
            if len(line) > MOST_ROW:
                raise DataError(
                    f"{where}: it is longer than {MOST_ROW >> 20} MiB, so this is not a file of rows"
                )
            if line.strip():
                yield row(_parse(line, where), where)


def read_json(path: Path) -> Iterator[Fields]:
    """Yield the rows of a file with a JSON list of objects, or a JSON object of rows by id."""
    with _opened(path) as file:
        content = file.read(MOST_JSON + 1)
    if len(content) > MOST_JSON:
        raise DataError(f"{path}: it is larger than {MOST_JSON >> 30} GiB: give the rows as .jsonl")
    value = _parse(content, str(path))
    if isinstance(value, dict):
        value = [value] if "instance_id" in value else list(value.values())
    if not isinstance(value, list):
        raise DataError(f"{path}: a list of rows is expected")
    yield from _numbered(value, str(path))


def read_parquet(path: Path) -> Iterator[Fields]:
    """Yield the rows of a Parquet file; needs pyarrow."""
    with _opened(path):
        pass
    yield from _numbered(_parquet_values(path), str(path))


def _parquet_values(path: Path) -> Iterator[object]:
    what = f"{path}: reading Parquet"
    parquet = _package("pyarrow.parquet", "pyarrow", what)
    damaged = (_package("pyarrow", "pyarrow", what).ArrowException, OSError, ValueError, OverflowError)
    try:
        for batch in parquet.ParquetFile(path).iter_batches(batch_size=64):
            yield from batch.to_pylist()
    except damaged as error:
        raise DataError(f"{path}: it cannot be read as Parquet ({printable_line(error)})") from None


def read_hub(name: str, split: str) -> Iterator[Fields]:
    """Yield the rows of a data set on the Hugging Face hub.

    The package `datasets` downloads and caches it.
    """
    where = f"{name}:{split}"
    datasets = _package("datasets", "datasets", f"{where}: reading a data set by its name")
    try:
        rows = datasets.load_dataset(name, split=split)
    except Exception as error:  # noqa: BLE001  # its network client and formats raise any type
        raise DataError(
            f"{where} cannot be loaded from the hub ({type(error).__name__}: {printable_line(error)}): "
            "check name and split, or give a file"
        ) from None
    yield from _numbered(rows, where)


def row(value: object, where: str) -> Fields:
    """Return a row as fields.

    Raises:
        DataError: The value is not a JSON object.
    """
    if not isinstance(value, dict):
        raise DataError(f"{where}: a JSON object is expected")
    return Fields(value, where)


def _numbered(values: Iterable[object], where: str) -> Iterator[Fields]:
    for number, value in enumerate(values, 1):
        yield row(_plain(value, f"{where} row {number}"), f"{where} row {number}")


def _plain(value: Any, where: str) -> Any:
    """Return the value with JSON types only: dates of typed columns become text."""
    if isinstance(value, dict):
        return {str(key): _plain(item, where) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, where) for item in value]
    if isinstance(value, date):
        return value.isoformat()
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise DataError(f"{where}: it has a value of the type {type(value).__name__}, which a row may not have")


def _parse(content: bytes, where: str) -> Any:
    try:
        return json.loads(content, parse_constant=_no_number)
    except RecursionError:
        raise DataError(f"{where}: it is nested too deeply") from None
    except ValueError as error:  # not JSON, not UTF-8, or a number with more digits than Python accepts
        raise DataError(f"{where}: it is not JSON ({printable_line(error)})") from None


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file; whatever goes wrong with it in this context is a DataError."""
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except OSError as error:
        raise DataError(f"{path}: it cannot be read ({error.strerror})") from None


def _package(module: str, name: str, what: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise DataError(
            f"{what} needs the package {name}: install m3agent[data] as docs/install.md says."
        ) from None


ROWS = "instances.jsonl"
"""Name of the rows' file in the folder of a data set."""

SPLIT = "test"
"""Default split of a data set on the hub."""

_HUB = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(:(?P<split>[\w.-]+))?")


@dataclass(frozen=True)
class Entry:
    """An instance that is listed but not read yet."""

    ident: str
    where: str
    """Its location, for error messages."""
    make: Callable[[], Instance]
    """Reads it; raises DataError."""


def load(source: str, *, ids: Sequence[str] = ()) -> list[Instance]:
    """Return the instances of a benchmark, in the benchmark's order.

    Files are read once, row by row if the format allows it. Of rows that are not selected, only the id is
    read.

    Args:
        source: A file of SWE-bench rows (.jsonl, .json, .parquet), a folder with `instances.jsonl`, a folder
            of programs like QuixBugs, a task of Harbor or a folder of such tasks, a task repository of swebench 5, or the name of a data set on the Hugging Face hub, `owner/name` or
            `owner/name:split`.
        ids: Ids of instances to select; all if empty.

    Raises:
        DataError: The data cannot be used; the message names file, row and field.
    """
    made: list[Instance] = []
    places: dict[str, str] = {}
    for entry in _entries(source):
        if entry.ident in places:
            raise DataError(
                f"{entry.where}, field instance_id: {entry.ident} exists already ({places[entry.ident]}); "
                "each id may occur once"
            )
        places[entry.ident] = entry.where
        if not ids or entry.ident in ids:
            made.append(entry.make())
    if not places:
        raise DataError(f"{source} has no instances")
    if unknown := [ident for ident in ids if ident not in places]:
        near = difflib.get_close_matches(unknown[0], places, 1, cutoff=0.0)[0]
        raise DataError(f"{source} has no instance {printable_line(unknown[0])}; the nearest is {near}")
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


def _task_repository(folder: Path) -> Iterator[Entry]:
    for ident, place in task_rows(folder):
        yield Entry(ident, str(place), partial(_task_row, place))


def _task_row(place: Path) -> Instance:
    return read_row(read_task_row(place), place)


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
    REPOSITORY: _task_repository,
}
"""Reader of a folder, by a file or folder that it contains; the first match is used."""

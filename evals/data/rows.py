"""Read rows from files and from the hub, one after the other: each is a JSON object with its location."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import Any, BinaryIO

from m3agent.evals.data.fields import Fields
from m3agent.evals.data.instance import DataError
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
        found = datasets.load_dataset(name, split=split)
    except Exception as error:  # noqa: BLE001  # its network client and formats raise any type
        raise DataError(
            f"{where} cannot be loaded from the hub ({type(error).__name__}: {printable_line(error)}): "
            "check name and split, or give a file"
        ) from None
    yield from _numbered(found, where)


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

"""Keep complete results of test runs in the state folder, with the bytecode that the runs compiled.

No sandbox reaches the state folder. The name of a file is a hash of everything that may change the result. With the bytecode,
later runs need not compile the files again that their trees share.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError

from m3agent.util.private_file import read_file, write_file


class Run(Protocol):
    """The result of a test run."""

    @property
    def complete(self) -> bool:
        """Whether the run came to its end."""
        ...


AnyRun = TypeVar("AnyRun", bound=Run)

MOST_KEPT = 100
"""Most results that are kept; the least recently used ones are deleted."""
MOST_BYTES = 500_000_000
"""Most bytes of all kept results. That of a large suite has some megabytes, because it says what each test executes."""


class KeptRuns(Generic[AnyRun]):
    """The results of earlier runs.

    Args:
        folder: The folder of the files. It is created when the first result is written.
        kind: The type of the results.
    """

    def __init__(self, folder: Path, kind: type[AnyRun]) -> None:
        self.folder = folder
        self._adapter = TypeAdapter(kind)

    def read(self, key: str) -> AnyRun | None:
        """Return the result that is kept under a key. It is None if the file is missing or damaged."""
        path = self.folder / f"{key}.json"
        content = read_file(str(path))
        if content is None:
            return None
        try:
            report = self._adapter.validate_json(content)
        except ValidationError:  # damaged, or of another version: it is written again
            return None
        with contextlib.suppress(OSError):
            path.touch()
        return report if report.complete else None

    def read_bytecode(self, key: str) -> bytes:
        """Return the bytecode that is kept with a result. It is empty if the run kept none."""
        return read_file(str(self._bytecode(self.folder / f"{key}.json"))) or b""

    @staticmethod
    def _bytecode(path: Path) -> Path:
        return path.with_suffix(".bytecode")

    def write(self, key: str, report: AnyRun, bytecode: bytes = b"") -> None:
        """Keep a complete result and its bytecode, and delete old ones. If the folder cannot be written, nothing is kept."""
        if not report.complete:
            return
        with contextlib.suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self.folder / f"{key}.json"
            if bytecode:
                write_file(str(self._bytecode(path)), bytecode)
            # pydantic's own JSON cannot hold the name of a file that is not UTF-8
            write_file(str(path), json.dumps(self._adapter.dump_python(report)).encode())
            files = sorted(self.folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
            sizes = itertools.accumulate(map(self._size, files))
            for number, (path, size) in enumerate(zip(files, sizes, strict=True)):
                if number >= MOST_KEPT or (number and size > MOST_BYTES):
                    path.unlink()
                    self._bytecode(path).unlink(missing_ok=True)

    def _size(self, path: Path) -> int:
        beside = self._bytecode(path)
        return path.stat().st_size + (beside.stat().st_size if beside.exists() else 0)

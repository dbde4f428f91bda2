"""The folder of a run: what was asked, and each attempt's result, written whole or not at all.

    run.json                          the configuration, its hash, the repository of each instance
    attempts/INSTANCE/NUMBER/         one attempt: result.json, patch.diff, whatever else it left
    lock                              held by the process that works here

A result is there or it is not: it appears by a rename. So a run that was killed is gone on with by looking what is there.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from m3agent.agent.errors import EnvironmentFault, UsageError
from m3agent.agent.whole_file import write_whole
from m3agent.evals.results import Result, RunConfig, Verdict

RUN, RESULT, PATCH, LOCK = "run.json", "result.json", "patch.diff", "lock"
LEFTOVERS_SECONDS = 90.0
"""Until what a killed process left is gone; its keepers end it within `evals.run.child.GRACE_SECONDS` and a little."""


class _RunFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    v: int = 1
    hash: str
    config: RunConfig
    repos: dict[str, str]


def config_hash(config: RunConfig) -> str:
    """The configuration's hash: equal for equal experiments."""
    return hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:16]


class RunFolder:
    """A run on the disk. repos: the repository of each instance, by its id."""

    def __init__(self, path: Path, config: RunConfig, repos: dict[str, str]) -> None:
        self.path = path
        self.config = config
        self.repos = repos

    @classmethod
    def read(cls, path: Path) -> RunFolder:
        """An existing run. Raises UsageError where there is none that can be read."""
        try:
            file = _RunFile.model_validate_json((path / RUN).read_bytes())
        except FileNotFoundError:
            raise UsageError(f"{path} is not the folder of a run: it has no {RUN}.") from None
        except (OSError, ValidationError) as error:
            raise UsageError(f"{path / RUN} cannot be read: {_first(error)}.") from None
        return cls(path, file.config, file.repos)

    @classmethod
    def create(cls, path: Path, config: RunConfig, repos: dict[str, str]) -> RunFolder:
        """A new run, or the same one gone on with.

        Raises:
            UsageError: the folder holds something else, or a run with another configuration.
            EnvironmentFault: it cannot be written.
        """
        if (path / RUN).exists():
            found = cls.read(path)
            if config_hash(found.config) != config_hash(config):
                raise UsageError(
                    f"{path} holds a run with another configuration ({_difference(found.config, config)}): "
                    "give another folder, or the same options."
                )
            return found
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UsageError(f"{path} is not empty and holds no run: give a new folder.")
        file = _RunFile(hash=config_hash(config), config=config, repos=repos)
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_whole(path / RUN, file.model_dump_json(indent=2).encode())
        except OSError as error:
            raise _cannot_write(path, error) from None
        return cls(path, config, repos)

    @contextlib.contextmanager
    def locked(self, say: Callable[[str], None] = lambda _: None) -> Iterator[int]:
        """Hold the folder for this process. The descriptor is for child processes that work in it: the folder stays
        locked until they too are gone. What a killed process left running is waited for, and `say` is told.

        Raises UsageError where another one works in it.
        """
        try:
            file = (self.path / LOCK).open("a+")
        except OSError as error:
            raise _cannot_write(self.path, error) from None
        with file:
            until, told = time.monotonic() + LEFTOVERS_SECONDS, False
            while not _lock(file.fileno()):
                file.seek(0)
                if _runs(file.read()) or time.monotonic() > until:
                    raise UsageError(
                        f"Another process works in {self.path}: wait for it, or give another folder."
                    )
                if not told:
                    say(f"waiting for the end of what an earlier process left running in {self.path}")
                told = True
                time.sleep(0.1)
            try:
                file.truncate(0)
                file.write(str(os.getpid()))
                file.flush()
            except OSError as error:
                raise _cannot_write(self.path, error) from None
            yield file.fileno()

    def attempt(self, instance_id: str, number: int) -> Path:
        """The folder of an attempt, there or not."""
        return self.path / "attempts" / instance_id / str(number)

    def begin(self, instance_id: str, number: int) -> Path:
        """An empty folder for an attempt: what a killed process left of it is removed."""
        folder = self.attempt(instance_id, number)
        try:
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir(parents=True)
        except OSError as error:
            raise _cannot_write(folder, error) from None
        return folder

    def finish(self, result: Result, patch: bytes) -> None:
        """Keep what came of an attempt. Raises EnvironmentFault where it cannot be written."""
        folder = self.attempt(result.instance_id, result.attempt)
        try:
            write_whole(folder / PATCH, patch)
            write_whole(folder / RESULT, result.model_dump_json(indent=2).encode())
        except OSError as error:
            raise _cannot_write(folder, error) from None

    def result(self, instance_id: str, number: int) -> Result | None:
        """What came of an attempt; None where it has not come to an end. Raises UsageError for a damaged record."""
        file = self.attempt(instance_id, number) / RESULT
        try:
            return Result.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise UsageError(
                f"{file} cannot be read: {_first(error)}; remove {file.parent} to repeat it."
            ) from None

    def patch(self, instance_id: str, number: int) -> bytes:
        """The patch of an attempt that has a result."""
        return (self.attempt(instance_id, number) / PATCH).read_bytes()

    def wanted(self) -> list[tuple[str, int]]:
        """Every attempt that belongs to the run: instance and number."""
        return [(ident, n) for n in range(1, self.config.attempts + 1) for ident in self.config.instances]

    def results(self) -> list[Result]:
        """All results that are there, in the order of `wanted`."""
        found = (self.result(ident, number) for ident, number in self.wanted())
        return [result for result in found if result is not None]

    def left(self) -> list[tuple[str, int]]:
        """Attempts to be made: those without a result, and those that only the infrastructure kept from one."""
        kept = {(r.instance_id, r.attempt) for r in self.results() if r.verdict is not Verdict.INFRA}
        return [attempt for attempt in self.wanted() if attempt not in kept]


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _runs(pid: str) -> bool:
    """Whether the process that wrote its number into the lock is there; it is taken to be where that cannot be told."""
    if not pid.isdecimal():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _difference(old: RunConfig, new: RunConfig) -> str:
    a, b = old.model_dump(), new.model_dump()
    return ", ".join(name for name in a if a[name] != b[name])


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        problem = error.errors()[0]
        return f"{'.'.join(map(str, problem['loc'])) or 'JSON'}: {problem['msg']}"
    return str(error)


def _cannot_write(path: Path, error: OSError) -> EnvironmentFault:
    return EnvironmentFault(
        f"{path} cannot be written ({error.strerror}): make room, or give another folder."
    )

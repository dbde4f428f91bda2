"""The folder of a run: its configuration and the result of each attempt, written atomically.

    run.json                          the configuration, its hash, the repository of each instance
    attempts/INSTANCE/NUMBER/         one attempt: result.json, patch.diff and its other files
    lock                              held by the process that works in the folder

A result appears by an atomic rename. After a kill, the run therefore resumes by looking which results exist.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from m3agent.evals.data.results import AttemptRecord, Record, RunConfig, Verdict, differing, first_problem
from m3agent.util.atomic_write import write_whole
from m3agent.util.errors import EnvironmentFault, UsageError

RUN, ATTEMPTS, RESULT, PATCH, LOCK = "run.json", "attempts", "result.json", "patch.diff", "lock"
LEFTOVERS_SECONDS = 90.0
"""How long to wait for the child processes of a killed run, in seconds.

Their supervisors end them within `evals.run.child.GRACE_SECONDS` and a little more.
"""


class _RunFile(Record):
    v: int = 1
    hash: str
    config: RunConfig
    repos: dict[str, str]


def config_hash(config: RunConfig) -> str:
    """Return the configuration's hash; equal experiments have equal hashes."""
    # sorted, because the order in which a user gives settings means nothing
    text = json.dumps(config.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class RunFolder:
    """A run on disk."""

    path: Path
    config: RunConfig
    repos: dict[str, str]
    """The repository of each instance."""

    @classmethod
    def read(cls, path: Path) -> RunFolder:
        """Open an existing run.

        Raises:
            UsageError: The folder contains no run, or its files cannot be read.
        """
        try:
            file = _RunFile.model_validate_json((path / RUN).read_bytes())
        except FileNotFoundError:
            raise UsageError(f"{path} is not a run's folder: it has no {RUN}.") from None
        except (OSError, ValidationError) as error:
            raise UsageError(f"{path / RUN} cannot be read: {_first(error)}.") from None
        return cls(path, file.config, file.repos)

    @classmethod
    def create(cls, path: Path, config: RunConfig, repos: dict[str, str]) -> RunFolder:
        """Create a run, or open an existing run in order to resume it.

        An existing run has the same configuration, or no result yet. In the latter case, `locked` replaces its configuration.

        Raises:
            UsageError: The folder contains other files, or a run with another configuration and results.
            EnvironmentFault: The folder cannot be written.
        """
        if (path / RUN).exists():
            cls.read(path)._refuse_another(config)
            return cls(path, config, repos)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UsageError(f"{path} is not empty and holds no run: give a new folder.")
        folder = cls(path, config, repos)
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            folder._write()
        return folder

    @contextlib.contextmanager
    def locked(self, say: Callable[[str], None] = lambda _: None) -> Iterator[int]:
        """Lock the folder for this process, and make its configuration this one; yield the lock's file descriptor.

        Child processes that inherit the descriptor keep the folder locked until they end. If a killed process
        left such children, this waits for them and reports that to `say`.

        Raises:
            UsageError: Another process works in the folder, or it has results of another configuration by now.
            EnvironmentFault: A file cannot be written.
        """
        with writing(self.path):
            file = (self.path / LOCK).open("a+")
        with file:
            until, told = time.monotonic() + LEFTOVERS_SECONDS, False
            while not _lock(file.fileno()):
                file.seek(0)
                if _runs(file.read()) or time.monotonic() > until:
                    raise UsageError(
                        f"Another process works in {self.path}: wait for it, or give another folder."
                    )
                if not told:
                    say(f"waiting for processes that an earlier process left running in {self.path}")
                told = True
                time.sleep(0.1)
            with writing(self.path):
                file.truncate(0)
                file.write(str(os.getpid()))
                file.flush()
                self._take_over(say)
            yield file.fileno()

    def _take_over(self, say: Callable[[str], None]) -> None:
        """Replace the configuration on disk if it is another one. Only under the lock, because another process may do the same.

        What failed attempts left goes first. If the process is killed in between, the old run remains, without any result.
        """
        old = self.read(self.path)
        if old.config == self.config:
            return
        old._refuse_another(self.config)
        if (self.path / ATTEMPTS).exists():
            shutil.rmtree(self.path / ATTEMPTS)
        self._write()
        say(
            f"{self.path} has no result yet, so it now has another configuration ({_difference(old.config, self.config)})"
        )

    def _refuse_another(self, config: RunConfig) -> None:
        """Raise a UsageError if this run has results, and another configuration than `config`."""
        if self.config != config and self.kept():
            raise UsageError(
                f"{self.path} holds a run with another configuration ({_difference(self.config, config)}): "
                "give another folder, or the same options."
            )

    def _write(self) -> None:
        file = _RunFile(hash=config_hash(self.config), config=self.config, repos=self.repos)
        write_whole(self.path / RUN, file.model_dump_json(indent=2).encode())

    def attempt(self, instance_id: str, number: int) -> Path:
        """Return the path of an attempt's folder, whether it exists or not."""
        return self.path / ATTEMPTS / instance_id / str(number)

    def begin(self, instance_id: str, number: int) -> Path:
        """Return an empty folder for an attempt; remove what a killed process left in it.

        Raises:
            EnvironmentFault: The folder cannot be written.
        """
        folder = self.attempt(instance_id, number)
        with writing(folder):
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir(parents=True)
        return folder

    def finish(self, result: AttemptRecord, patch: bytes) -> None:
        """Store an attempt's result and patch.

        Raises:
            EnvironmentFault: They cannot be written.
        """
        folder = self.attempt(result.instance_id, result.attempt)
        with writing(folder):
            write_whole(folder / PATCH, patch)
            write_whole(folder / RESULT, result.model_dump_json(indent=2).encode())

    def result(self, instance_id: str, number: int) -> AttemptRecord | None:
        """Return an attempt's result; None if the attempt has not finished.

        Raises:
            UsageError: The record is damaged.
        """
        file = self.attempt(instance_id, number) / RESULT
        try:
            return AttemptRecord.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise UsageError(
                f"{file} cannot be read: {_first(error)}; remove {file.parent} to repeat it."
            ) from None

    def patch(self, instance_id: str, number: int) -> bytes:
        """Return the patch of an attempt that has a result."""
        return (self.attempt(instance_id, number) / PATCH).read_bytes()

    def wanted(self) -> list[tuple[str, int]]:
        """Return all attempts of the run, as pairs of instance id and attempt number."""
        return [(ident, n) for n in range(1, self.config.attempts + 1) for ident in self.config.instances]

    def results(self) -> list[AttemptRecord]:
        """Return the existing results, in the order of `wanted`."""
        results = (self.result(ident, number) for ident, number in self.wanted())
        return [result for result in results if result is not None]

    def kept(self) -> list[AttemptRecord]:
        """Return the results that resuming the run keeps: those whose verdict is not `infra`."""
        return [result for result in self.results() if result.verdict is not Verdict.INFRA]

    def left(self) -> list[tuple[str, int]]:
        """Return the attempts still to be made: those without a result and those with the verdict `infra`."""
        kept = {(result.instance_id, result.attempt) for result in self.kept()}
        return [attempt for attempt in self.wanted() if attempt not in kept]


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _runs(pid: str) -> bool:
    """Return whether the process that wrote its id into the lock is alive; True if that is unknown."""
    if not pid.isdecimal():
        return True
    with contextlib.suppress(PermissionError, OverflowError):
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return False
    return True


def _difference(old: RunConfig, new: RunConfig) -> str:
    """Return the names of what differs; for settings and time limits, the names of these."""
    a, b = old.model_dump(), new.model_dump()
    names: list[str] = []
    for name in (name for name in a if a[name] != b[name]):
        parts = isinstance(a[name], dict) and differing(a[name], b[name])
        names += [f"{name}: {', '.join(parts)}" if parts else name]
    return "; ".join(names)


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        place, problem = first_problem(error)
        return f"{place or 'JSON'}: {problem}"
    return str(error)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise EnvironmentFault where a run's or a card's file or folder cannot be written."""
    try:
        yield
    except OSError as error:
        raise EnvironmentFault(
            f"{path} cannot be written ({error.strerror}): make room, or give another folder."
        ) from None

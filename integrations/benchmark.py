"""Serve the instances of a benchmark to other frameworks: their images, their code, and rewards for what agents leave.

The reward is that of m3agent's strict grader (docs/eval.md), in a fresh sandbox on this machine. It never depends on
what runs in the container where the agent worked: only the files of the work tree are read.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import io
import os
import shutil
import sys
import tarfile
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from m3agent.agent.settings.settings import state_dir
from m3agent.evals.code.archive import extract_files
from m3agent.evals.code.checkout import checkout, code_folder
from m3agent.evals.data.instance import Instance
from m3agent.evals.data.load import load
from m3agent.evals.data.results import FAILED, Grade, Verdict
from m3agent.evals.environments.environments import Environments
from m3agent.evals.grade.grader import Grader
from m3agent.evals.run.left_diff import LeftDiff
from m3agent.sandbox.errors import PathEscapes, SandboxError
from m3agent.util.errors import M3AgentError

MOST_BYTES = 1 << 30
"""Largest work tree that is graded, in bytes."""
FAULTS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EMFILE,
    errno.ENFILE,
}
"""Errors of this machine. Any other one comes from names that the agent chose."""


@dataclass(frozen=True)
class Reward:
    """A reward, with the grade that it comes from."""

    value: float | None
    """1.0 for a resolved instance, 0.0 for every failure of the agent. None if the machine or the instance is at fault: such
    a sample says nothing about the agent and must not be used.
    """
    grade: Grade


class Benchmark:
    """The instances of a benchmark.

    Args:
        source: A benchmark as `m3agent eval run` takes it.

    Raises:
        DataError: The data cannot be used; the message names file, row and field.
    """

    def __init__(self, source: str) -> None:
        self.instances: dict[str, Instance] = {found.task.instance_id: found for found in load(source)}
        self._state = state_dir(os.environ)
        self._environments = Environments(self._state, _say)
        self._grader = Grader(self._state, _say)

    async def image(self, ident: str) -> str:
        """Return the name of an instance's image; build the image if it is not here.

        Raises:
            SandboxError: It cannot be built, or no container engine answers.
            M3AgentError: The instance's code is not available.
        """
        return await self._environments.whole_image(self.instances[ident].task)

    def image_now(self, ident: str) -> str:
        """Do as `image`, and wait for it. The caller may run an event loop."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, self.image(ident)).result()

    async def code(self, ident: str) -> bytes:
        """Return an instance's code as a tar archive: a git repository with one commit, the base.

        Raises:
            M3AgentError: The code is not available.
        """
        return await asyncio.to_thread(self._code, ident)

    def _code(self, ident: str) -> bytes:
        with tempfile.TemporaryDirectory(prefix="m3agent-code-") as folder:
            self._checkout(ident, Path(folder))
            made = io.BytesIO()
            with tarfile.open(fileobj=made, mode="w:gz", compresslevel=1) as archive:
                archive.add(folder, ".", filter=_anonymous)
        return made.getvalue()

    def _checkout(self, ident: str, folder: Path) -> None:
        checkout(self.instances[ident].task, folder, cache=code_folder(self._state))

    async def reward(self, ident: str, left: bytes) -> Reward:
        """Grade what an agent left.

        Args:
            ident: The instance.
            left: The work tree after the agent's work, packed by `pack_command`.
        """
        instance = self.instances[ident]
        try:
            patch = await asyncio.to_thread(self._patch, ident, left)
        except (tarfile.TarError, ValueError, EOFError, zlib.error, PathEscapes) as error:
            return _reward(Grade(verdict=Verdict.ERROR, reason=f"the work tree cannot be read: {error}"))
        except (SandboxError, M3AgentError, OSError) as error:
            return _reward(Grade(verdict=Verdict.INFRA, reason=str(error)))
        try:
            with tempfile.TemporaryDirectory(prefix="m3agent-grade-") as folder:
                image = await self.image(ident) if patch else None
                return _reward(await self._grader.strict(instance, patch, image, Path(folder)))
        except (SandboxError, M3AgentError, OSError) as error:
            return _reward(Grade(verdict=Verdict.INFRA, reason=str(error)))

    def _patch(self, ident: str, left: bytes) -> bytes:
        """Return the difference between an instance's code and the files of an archive."""
        with tempfile.TemporaryDirectory(prefix="m3agent-left-") as temporary:
            folder = Path(temporary) / "code"
            self._checkout(ident, folder)
            before = LeftDiff(folder, Path(temporary) / "base.git")
            for path in folder.iterdir():
                if path.name != ".git":
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            with tarfile.open(fileobj=io.BytesIO(left), mode="r:*") as archive:
                try:
                    extract_files(archive, folder, MOST_BYTES, links=True)
                except OSError as error:
                    if error.errno in FAULTS:
                        raise
                    raise ValueError(str(error)) from error
                _read_to_end(archive)
            return before.patch()


def pack_command(output: str, folder: str) -> str:
    """Return the shell command that packs a work tree for `Benchmark.reward`."""
    return f"tar -czf {output} -C {folder} --exclude=./.git ."


@functools.cache
def benchmark(source: str) -> Benchmark:
    """Return the benchmark; a process reads each one once."""
    return Benchmark(source)


def _read_to_end(archive: tarfile.TarFile) -> None:
    """Check that an archive is whole.

    Raises:
        ValueError: Its end is too far away.
        EOFError: It is cut off.
    """
    assert archive.fileobj is not None
    for _ in range(MOST_BYTES >> 20):
        if not archive.fileobj.read(1 << 20):
            return
    raise ValueError("there is too much behind its end")


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return the member as a file of root: the user of this machine means nothing in a container."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _reward(grade: Grade) -> Reward:
    value = 1.0 if grade.verdict is Verdict.RESOLVED else 0.0 if grade.verdict in FAILED else None
    return Reward(value, grade)


def _say(note: str) -> None:
    print(note, file=sys.stderr)  # noqa: T201  # the frameworks keep standard output for themselves

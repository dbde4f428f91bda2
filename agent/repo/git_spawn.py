"""Run git in the background, without slow imports."""

from __future__ import annotations

import os
from select import select
from stat import S_ISREG

from m3agent.agent.repo.host_git import HostGit
from m3agent.sandbox.store.anonymous_file import anonymous_file

TYPE_CHECKING = False  # type checkers take this for true; the modules are slow to import
if TYPE_CHECKING:
    from collections.abc import Iterable

PATIENCE = 5.0
"""Seconds after which m3agent looks for a file that blocks git."""
SIGKILL = 9  # the module signal is slow to import
GIT_FOLDER = ".git"
RULE_FILES = (".gitignore", ".gitattributes", ".m3agentignore")
"""Files of a work tree that git opens by itself. If one is a pipe, git waits for a writer forever."""


class GitProcess:
    """One git command that runs in the background.

    Its standard error is discarded. To get the error text, run the command again with `repository.git`.

    Raises:
        OSError: Git cannot be started.
        EnvironmentFault: See `HostGit.command`.
    """

    def __init__(self, repository: HostGit, *args: str) -> None:
        command = repository.command()
        output = anonymous_file("git")  # not a pipe: git never blocks while nobody reads
        try:
            argv = command.argv("-C", repository.folder, *args)
            self._pid = os.posix_spawnp(
                argv[0],
                argv,
                command.environment,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, output, 1),
                ],
            )
        except OSError:
            os.close(output)
            raise
        self._output = output
        self._ended: int | None = None
        self._root = repository.root

    def output(self) -> bytes | None:
        """Wait for the end and return the standard output; None if the command failed. Call it once.

        Raises:
            EnvironmentFault: A file blocks git; see `blocked`.
        """
        try:
            if self._status():
                return None
            size = os.fstat(self._output).st_size
            parts: list[bytes] = []
            while size > 0 and (part := os.pread(self._output, size, sum(map(len, parts)))):
                parts.append(part)
                size -= len(part)
            return parts[0] if len(parts) == 1 else b"".join(parts)
        finally:
            os.close(self._output)

    def _status(self) -> int:
        """Wait for the end and return the exit status.

        If the end takes long because of a file that blocks git, end git and raise EnvironmentFault.
        """
        if not self._ends_within(PATIENCE) and (fault := blocked(self._root)) is not None:
            os.kill(self._pid, SIGKILL)
            os.waitpid(self._pid, 0)
            raise fault
        if self._ended is None:
            self._ended = os.waitpid(self._pid, 0)[1]
        return self._ended

    def _ends_within(self, seconds: float) -> bool:
        """Wait for the end for some seconds; return whether it came."""
        if hasattr(os, "pidfd_open"):
            process = os.pidfd_open(self._pid)
            try:
                return bool(
                    select([process], [], [], seconds)[0]
                )  # it is readable when the process has ended
            finally:
                os.close(process)
        pause = 0.001
        while seconds > 0:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._ended = status
                return True
            select([], [], [], pause)
            seconds, pause = seconds - pause, min(2 * pause, 0.05)
        return False


def blocked(root: str | None) -> Exception | None:
    """Return the error for a file that blocks git in this work tree, or None. Walks through all folders."""
    return None if root is None else blocked_in((folder, names) for folder, _, names in os.walk(root))


def blocked_in(folders: Iterable[tuple[str, Iterable[str]]]) -> Exception | None:
    """Return the error for a file that blocks git, or None.

    Args:
        folders: Folders with the names of their files. Outside of git's own folder, only `RULE_FILES` count.
    """
    for folder, names in folders:
        for name in names if f"/{GIT_FOLDER}/" in f"{folder}/" else RULE_FILES:
            path = f"{folder}/{name}"
            try:
                plain = S_ISREG(os.stat(path).st_mode)  # noqa: PTH116
            except OSError:  # absent
                continue
            if not plain:
                from m3agent.util.errors import EnvironmentFault

                return EnvironmentFault(f"Git cannot read {path}, which is not a regular file: remove it.")
    return None

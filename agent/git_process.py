"""Runs git in the background, with nothing imported for it."""

from __future__ import annotations

import os

from m3agent.agent.host_git import HostGit


class GitProcess:
    """One git command in a repository, which runs while we do something else.

    What it writes to standard error is not kept: whoever needs the words runs the command again by `repository.git`.

    Raises:
        OSError: git cannot be started.
        EnvironmentFault: see `HostGit.command`.
    """

    def __init__(self, repository: HostGit, *args: str) -> None:
        command = repository.command()
        # Into memory, not a pipe: git need not wait until we read.
        output = os.memfd_create("git", os.MFD_CLOEXEC)
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

    def output(self) -> bytes | None:
        """All it wrote to standard output once it has ended, or None when it failed. To be called once."""
        try:
            _, status = os.waitpid(self._pid, 0)
            if status:
                return None
            size = os.fstat(self._output).st_size
            parts: list[bytes] = []
            while size > 0 and (part := os.pread(self._output, size, sum(map(len, parts)))):
                parts.append(part)
                size -= len(part)
            return parts[0] if len(parts) == 1 else b"".join(parts)
        finally:
            os.close(self._output)

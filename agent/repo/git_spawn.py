"""Run git in the background, without slow imports."""

from __future__ import annotations

import os

from m3agent.agent.repo.host_git import HostGit


class GitProcess:
    """One git command that runs in the background.

    Its standard error is discarded. To get the error text, run the command again with `repository.git`.

    Raises:
        OSError: Git cannot be started.
        EnvironmentFault: See `HostGit.command`.
    """

    def __init__(self, repository: HostGit, *args: str) -> None:
        command = repository.command()
        # A memory file, not a pipe: git never blocks while nobody reads.
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
        """Wait for the end and return the standard output; None if the command failed. Call it once."""
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

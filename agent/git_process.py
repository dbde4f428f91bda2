"""Starts git so that a repository cannot start programs through it, with nothing imported for it."""

from __future__ import annotations

import os

SAFE = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
"""A hook or a monitor program named in the repository's configuration must not start because we look at it."""

# GIT_DIR, GIT_INDEX_FILE and their kin (set inside hooks) would point git at another repository than the one
# named; only the variables of these families say nothing about which repository is meant.
_KEPT = (
    "GIT_ASKPASS",
    "GIT_AUTHOR_",
    "GIT_CEILING_DIRECTORIES",
    "GIT_COMMITTER_",
    "GIT_CONFIG_",
    "GIT_EXEC_PATH",
    "GIT_HTTP_",
    "GIT_PROXY_",
    "GIT_SSH",
    "GIT_SSL_",
)


def environment() -> dict[str, str]:
    """The environment for git: ours without what names another repository, with no prompt and no lock taken."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name.startswith(_KEPT)
    }
    return env | {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


class GitProcess:
    """One git command that runs while we do something else.

    Raises OSError when git cannot be started. What it writes to standard error is not kept: whoever needs the words
    runs the command again by `repository.git`.
    """

    def __init__(self, where: str, *args: str) -> None:
        # Into memory, not a pipe: git need not wait until we read.
        output = os.memfd_create("git", os.MFD_CLOEXEC)
        try:
            self._pid = os.posix_spawnp(
                "git",
                ["git", *SAFE, "-C", where, *args],
                environment(),
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

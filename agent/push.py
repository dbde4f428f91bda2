"""The remote `origin`: what branches it has, and how one more is pushed to it. Never forced, nothing else, no hooks.

This is the user's own push: credentials, proxies and ssh are as the user's configuration of git has them. Of the
repository's `.git/config` count the addresses of remotes and the headers that some keep their key in. Nobody is asked for
anything on the terminal, and what takes too long is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import tempfile
from dataclasses import dataclass
from typing import IO

from m3agent.agent.errors import EnvironmentFault, PermissionRefused
from m3agent.agent.repository import GitCommandFailed, Repository
from m3agent.sandbox.start_process import start_process

SECONDS = 60.0
"""Wall time of one exchange with the remote."""

_REFUSED = re.compile(
    r"denied|authentication failed|could not read (?:username|password)|not found|host key verification"
    r"|returned error: 40[0-9]",
    re.IGNORECASE,
)
_LOGIN = re.compile(r"(?<=://)[^/\s@]+@")


@dataclass(frozen=True)
class Heads:
    """The branches of origin. default: the one that its HEAD is on, None where it does not say; ids: commit id by name."""

    default: str | None
    ids: dict[str, str]


async def heads_of_origin(repository: Repository) -> Heads:
    """Ask origin for its branches.

    Raises:
        PermissionRefused, EnvironmentFault: with the reason that git gives.
    """
    code, out, said = await _git(repository, "ls-remote", "--symref", "origin", "HEAD", "refs/heads/*")
    if code:
        raise _fault("origin cannot be asked for its branches", said)
    default, ids = None, {}
    for line in out.splitlines():
        what, _, ref = line.partition("\t")
        if ref == "HEAD" and what.startswith("ref: refs/heads/"):
            default = what.removeprefix("ref: refs/heads/")
        elif ref.startswith("refs/heads/"):
            ids[ref.removeprefix("refs/heads/")] = what
    return Heads(default, ids)


def has_commit(repository: Repository, heads: Heads, base: str, commit: str) -> bool:
    """Whether origin has `commit`: in its branch `base`, or in any as far as was last fetched."""
    with contextlib.suppress(GitCommandFailed):  # not an ancestor; or the tip was never fetched
        repository.git("merge-base", "--is-ancestor", commit, heads.ids[base])
        return True
    return bool(repository.git("for-each-ref", "--count=1", f"--contains={commit}", "refs/remotes/origin"))


async def push(repository: Repository, commit: str, branch: str, *, dry_run: bool = False) -> None:
    """Push `commit` to origin as the new branch `branch`; with `dry_run` find out only whether we may push at all.

    Raises:
        PermissionRefused: origin does not take it.
        EnvironmentFault: it could not be reached.
    """
    code, out, said = await _git(
        repository,
        "push",
        "--porcelain",
        "--no-verify",
        "--no-follow-tags",
        "--recurse-submodules=no",
        *(["--dry-run"] if dry_run else []),
        "origin",
        f"{commit}:refs/heads/{branch}",
    )
    if not code:
        return
    # "! FROM:TO TAB [remote rejected] (why)"
    rejected = next((line for line in out.splitlines() if line.startswith("!")), None)
    if rejected is not None:
        words = _words(said, "remote: ")
        why = rejected.rpartition("\t")[2] + (f": {words}" if words else "")
        raise PermissionRefused(f"origin does not take branch {branch}: {why}")
    raise _fault("origin cannot be pushed to", said)


def _fault(what: str, said: str) -> PermissionRefused | EnvironmentFault:
    words = _words(said) or "git gave no reason"
    refused = _REFUSED.search(said) is not None
    return PermissionRefused(f"{what}: {words}") if refused else EnvironmentFault(f"{what}: {words}")


def _words(said: str, prefix: str = "") -> str:
    """The first line of what was said that tells something, without a user name or password."""
    for line in said.splitlines():
        text = re.sub(r"^(?:remote: |fatal: |error: )*", "", line).strip().rstrip(".")
        if line.startswith(prefix) and text and not text.lower().startswith("warning"):
            return _LOGIN.sub("", text)[:200]
    return ""


async def _git(repository: Repository, command: str, *args: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a git command that talks to a remote.

    Raises:
        EnvironmentFault: it cannot be started, or does not end within `SECONDS`.
    """
    where = repository.host_git.folder
    git = await asyncio.to_thread(lambda: repository.host_git.command(remote=True))
    # Files, not pipes: a helper that stays behind (a cache of credentials, ssh's master) may hold its end open.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as said:
        try:
            process = await start_process(
                *git.argv(command, *args),
                cwd=where,
                env=git.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=said,
                start_new_session=True,  # no terminal for ssh to ask on, and one group to end
            )
        except OSError as error:
            raise EnvironmentFault(f"git cannot be started: {error.strerror}") from None
        try:
            code = await asyncio.wait_for(process.wait(), SECONDS)
        except TimeoutError:
            raise EnvironmentFault(
                f"origin did not answer 'git {command}' within {SECONDS:g} seconds"
            ) from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return code, _text(out), _text(said)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return os.fsdecode(file.read())

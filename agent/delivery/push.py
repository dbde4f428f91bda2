"""Access to the remote `origin`: list its branches, fetch from it, and push one branch without force and without hooks.

The push uses the user's own git configuration for credentials, proxies and ssh. From the repository's
`.git/config` it uses the addresses of remotes and HTTP headers (some users keep their key there). Git never
prompts on the terminal, and it is killed after a timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from m3agent.agent.repo.repository import GitCommandFailed, Repository
from m3agent.util.errors import EnvironmentFault, PermissionRefused
from m3agent.util.start_process import start_process

ORIGIN = "origin"
"""The name of the remote."""
SECONDS = 60.0
"""The time limit for one exchange with the remote, in seconds."""
FETCH_SECONDS = 600.0
"""The time limit for a fetch, in seconds."""

_REFUSED = re.compile(
    r"denied|authentication failed|could not read (?:username|password)|not found|host key verification"
    r"|returned error: 40[0-9]",
    re.IGNORECASE,
)
_LOGIN = re.compile(r"(?<=://)[^/\s@]+@")


@dataclass(frozen=True)
class RemoteBranches:
    """The branches of a remote."""

    default: str | None
    """The branch that its HEAD points to; None if the server does not say."""
    ids: dict[str, str]
    """The commit id of each branch, by branch name."""


async def heads_of(repository: Repository, remote: str = ORIGIN) -> RemoteBranches:
    """Ask a remote, or another repository by its address, for its branches.

    Raises:
        PermissionRefused, EnvironmentFault: With the reason that git gives.
    """
    code, out, said = await _git(repository, "ls-remote", "--symref", remote, "HEAD", "refs/heads/*")
    if code:
        raise _fault(f"the branches of {_name(remote)} cannot be listed", said)
    default, ids = None, {}
    for line in out.splitlines():
        what, _, ref = line.partition("\t")
        if ref == "HEAD" and what.startswith("ref: refs/heads/"):
            default = what.removeprefix("ref: refs/heads/")
        elif ref.startswith("refs/heads/"):
            ids[ref.removeprefix("refs/heads/")] = what
    return RemoteBranches(default, ids)


def has_commit(repository: Repository, heads: RemoteBranches, base: str, commit: str) -> bool:
    """Return whether origin has `commit`: in its branch `base`, or in any branch as of the last fetch."""
    with contextlib.suppress(
        GitCommandFailed
    ):  # `commit` is not an ancestor of the tip, or the tip was never fetched
        repository.git("merge-base", "--is-ancestor", commit, heads.ids[base])
        return True
    return bool(repository.git("for-each-ref", "--count=1", f"--contains={commit}", "refs/remotes/origin"))


async def fetch(repository: Repository, refs: Sequence[str], objects: Path) -> None:
    """Fetch references of origin into another folder. The user's repository does not change.

    Raises:
        PermissionRefused, EnvironmentFault: With the reason that git gives.
    """
    own = repository.common_dir / "objects"
    where = {"GIT_OBJECT_DIRECTORY": str(objects), "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(own.resolve())}
    # without --refmap, git would also move the branches of origin that the repository knows
    options = ("--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--refmap=")
    code, _, said = await _git(
        repository, "fetch", *options, "origin", *refs, more=where, seconds=FETCH_SECONDS
    )
    if code:
        raise _fault(f"{' and '.join(refs)} cannot be fetched from origin", said)


async def push(
    repository: Repository, commit: str, branch: str, *, remote: str = ORIGIN, dry_run: bool = False
) -> None:
    """Push `commit` as the branch `branch`, which is new or has only commits that `commit` follows.

    Args:
        remote: `origin`, or the address of another repository.
        dry_run: Only find out whether the user may push.

    Raises:
        PermissionRefused: The remote rejects the push, for example because the branch has other commits.
        EnvironmentFault: The remote could not be reached.
    """
    name = _name(remote)
    code, out, said = await _git(
        repository,
        "push",
        "--porcelain",
        "--no-verify",
        "--no-follow-tags",
        "--recurse-submodules=no",
        *(["--dry-run"] if dry_run else []),
        remote,
        f"{commit}:refs/heads/{branch}",
    )
    if not code:
        return
    # "! FROM:TO TAB [remote rejected] (why)"
    rejected = next((line for line in out.splitlines() if line.startswith("!")), None)
    if rejected is not None:
        words = _words(said, "remote: ")
        why = rejected.rpartition("\t")[2] + (f": {words}" if words else "")
        raise PermissionRefused(f"{name} rejects branch {branch}: {why}")
    raise _fault(f"{name} cannot be pushed to", said)


def _name(remote: str) -> str:
    return ORIGIN if remote == ORIGIN else "the fork"


def _fault(what: str, said: str) -> PermissionRefused | EnvironmentFault:
    words = _words(said) or "git gave no reason"
    refused = _REFUSED.search(said) is not None
    return PermissionRefused(f"{what}: {words}") if refused else EnvironmentFault(f"{what}: {words}")


def _words(said: str, prefix: str = "") -> str:
    """Return the first informative line that starts with `prefix`, without a user name or password."""
    for line in said.splitlines():
        text = re.sub(r"^(?:remote: |fatal: |error: )*", "", line).strip().rstrip(".")
        if line.startswith(prefix) and text and not text.lower().startswith("warning"):
            return _LOGIN.sub("", text)[:200]
    return ""


async def _git(
    repository: Repository,
    command: str,
    *args: str,
    more: Mapping[str, str] | None = None,
    seconds: float | None = None,
) -> tuple[int, str, str]:
    """Run a git command that talks to a remote; return exit status, standard output and standard error.

    Raises:
        EnvironmentFault: Git cannot be started, or did not end in time.
    """
    where, seconds = repository.host_git.folder, seconds or SECONDS
    git = await asyncio.to_thread(lambda: repository.host_git.command(remote=True))
    # Files, not pipes: a helper that outlives git (a credential cache, ssh's master) may keep a pipe open.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as said:
        try:
            process = await start_process(
                *git.argv(command, *args),
                cwd=where,
                env={**git.environment, **(more or {})},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=said,
                start_new_session=True,  # no terminal for ssh to prompt on; one process group to kill
            )
        except OSError as error:
            raise EnvironmentFault(f"git cannot be started: {error.strerror}") from None
        try:
            async with asyncio.timeout(seconds):
                code = await process.wait()
        except TimeoutError:
            raise EnvironmentFault(
                f"the remote did not answer 'git {command}' within {seconds:g} seconds"
            ) from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return code, _text(out), _text(said)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return os.fsdecode(file.read())

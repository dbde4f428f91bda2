"""Select the keys of a repository's configuration that git may read on the host: plain data only.

`host_git` finds a repository. It imports this module only to write a configuration or to refuse a repository.
"""

from __future__ import annotations

import atexit
import contextlib
import fnmatch
import os
import shutil
import subprocess
import tempfile

from m3agent.agent.repo.host_git import FOLDER, LINKED, first_line, read_regular
from m3agent.sandbox.store.git_command import for_no_repository, for_owner_question
from m3agent.util.errors import EnvironmentFault, M3AgentError, UsageError
from m3agent.util.private_file import write_file
from m3agent.util.xdg import state_path

ALLOWED = (
    "core.autocrlf",
    "core.eol",
    "core.filemode",
    "core.ignorecase",
    "core.logallrefupdates",
    "core.precomposeunicode",
    "core.repositoryformatversion",
    "core.safecrlf",
    "core.sparsecheckout",
    "core.sparsecheckoutcone",
    "core.symlinks",
    "index.sparse",
    "user.email",
    "user.name",
    "user.useconfigonly",
    "branch.*.merge",
    "branch.*.remote",
    "remote.*.fetch",
    "remote.*.pushurl",
    "remote.*.url",
)
_FOR_REMOTES = ("http.extraheader", "http.*.extraheader")
"""HTTP headers, in which some users keep their key for a server."""
_NOT_HEEDED = ("extensions.partialclone", "extensions.worktreeconfig")
"""Extensions that are left out.

The first makes git fetch objects by itself. The second makes git read another configuration file. All other
extensions say how the repository is stored; git refuses those that it does not know.
"""
_MOST_BYTES = 4 << 20
_SECONDS = 60.0

_Keys = list[tuple[str, str | None]]


def make(
    root: str | None, git_dir: str, common_dir: str, stamp: str, state: str | None, name: str, *, remote: bool
) -> tuple[str, bytes]:
    """Write m3agent's common folder for a repository.

    Its configuration may be missing or have an older stamp.

    The folder lies in the state folder. If that cannot be written, it lies in a private temporary folder.
    Several processes may do this at the same time: the links never change, and the configuration is replaced
    atomically as the last step.

    Args:
        remote: Also keep the keys for talking to a remote.

    Returns:
        The folder, and the first line of its configuration.

    Raises:
        EnvironmentFault: The repository's configuration cannot be read, names another folder as the work
            tree, or names another place for references.
    """
    keys = _read(f"{common_dir}/config", git_dir)
    # A linked work tree ignores `core.bare` and `core.worktree` in the shared configuration.
    own = keys if git_dir == common_dir else []
    if any(_is_true(value) for key, value in keys if key == "extensions.worktreeconfig"):
        more = _read(f"{git_dir}/config.worktree", git_dir)
        keys, own = keys + more, own + more
    _refuse_elsewhere(root, git_dir, own, keys)
    bare = root is None or _is_true(dict(own).get("core.bare", "false"))
    line = first_line(stamp, bare=bare)
    allowed = ALLOWED + _FOR_REMOTES if remote else ALLOWED
    content = line + b"\n" + b"".join(_line(key, value) for key, value in keys if _is_data(key, allowed))
    try:
        folder = _folder(state, name)
        _fill(folder, common_dir, content)
    except (OSError, EnvironmentFault):
        folder = _temporary(name)
        _fill(folder, common_dir, content)
    return folder, line


def _refuse_elsewhere(root: str | None, git_dir: str, own: _Keys, keys: _Keys) -> None:
    """Raise EnvironmentFault if a repository has its work tree or a part of itself in another place."""
    for key, value in own:
        if key == "core.worktree" and os.path.realpath(os.path.join(git_dir, value or "")) != root:
            raise EnvironmentFault(
                f"The repository at {root or git_dir} names another folder as its work tree (core.worktree is {value}): "
                "remove that setting, or open the repository from that folder."
            )
    for key, value in keys:
        if key.startswith("extensions.") and "/" in (value or ""):
            raise EnvironmentFault(
                f"The repository at {root or git_dir} keeps a part of itself in another place ({key} is {value}): "
                "give a clone of it."
            )


def _folder(state: str | None, name: str) -> str:
    if state is None:
        raise FileNotFoundError
    base = f"{state_path(os.environ)}/{FOLDER}"
    for folder in (base, f"{base}/{name}"):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
    return f"{base}/{name}"


_made: dict[str, str] = {}


def _temporary(name: str) -> str:
    """Return a folder that is removed when this process ends."""
    if not os.path.isdir(_made.get(name, "")):  # not made yet, or deleted since
        _made[name] = tempfile.mkdtemp(prefix="m3agent-git-")
        atexit.register(shutil.rmtree, _made[name], ignore_errors=True)
    return _made[name]


def _fill(folder: str, common_dir: str, config: bytes) -> None:
    for name in LINKED:
        with contextlib.suppress(FileExistsError):
            os.symlink(f"{common_dir}/{name}", f"{folder}/{name}")
    write_file(f"{folder}/config", config)


def _read(path: str, git_dir: str) -> _Keys:
    """Return the keys of a configuration file in their order; none if there is no file.

    Git parses the content as a plain file, without a repository.
    """
    if not os.path.lexists(path):
        return []
    content = read_regular(path, _MOST_BYTES + 1)
    if content is None or len(content) > _MOST_BYTES:
        raise damaged(path)
    try:
        args = ("config", "--file", "-", "--no-includes", "--null", "--list")
        done = for_no_repository().run(*args, cwd="/", stdin=content, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise damaged(path) from None
    except OSError:
        raise no_git() from None
    if done.returncode:
        raise unusable(git_dir, _words(done.stderr).replace("standard input", path))
    keys: _Keys = []
    for entry in os.fsdecode(done.stdout).split("\0"):
        key, equals, value = entry.partition("\n")
        if key:
            keys.append((key, value if equals else None))
    return keys


def _is_data(key: str, allowed: tuple[str, ...]) -> bool:
    if key.startswith("extensions."):
        return key not in _NOT_HEEDED
    # Git prints section and variable in lower case. The subsection between them may hold anything, also dots.
    return any(fnmatch.fnmatchcase(key, pattern) for pattern in allowed)


def _line(key: str, value: str | None) -> bytes:
    """Return a key and its value in the format that git reads."""
    section, _, rest = key.partition(".")
    subsection, dot, name = rest.rpartition(".")
    head = f'[{section} "{_escaped(subsection)}"]' if dot else f"[{section}]"
    said = name if value is None else f'{name} = "{_escaped(value)}"'
    return os.fsencode(f"{head}\n\t{said}\n")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _is_true(value: str | None) -> bool:
    """Return whether git reads a value as true. A key without a value is true."""
    if value is None:
        return True
    return value.lower() in ("true", "yes", "on") or (value.isdecimal() and int(value) != 0)


def ask_git_about_owner(where: str, git_dir: str) -> None:
    """Let git decide whether to trust a repository of another user.

    Git applies its own rule and the user's `safe.directory`.

    Only here does git search for the repository itself. It reads the repository's configuration only if it
    trusts the owner, and the command starts no program.

    Raises:
        EnvironmentFault: Git refuses the repository.
    """
    try:
        done = for_owner_question().run("rev-parse", "--absolute-git-dir", cwd=where, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        raise damaged(where) from None
    if done.returncode and b"dubious ownership" not in done.stderr:
        raise unusable(where, _words(done.stderr))
    if done.returncode or os.path.realpath(os.fsdecode(done.stdout.removesuffix(b"\n"))) != git_dir:
        raise EnvironmentFault(
            f"The repository at {where} belongs to another user and git refuses it: if you trust it, run "
            f"'git config --global --add safe.directory {where}'."
        )


def unusable(where: str, reason: str) -> EnvironmentFault:
    """Return the error for a repository that git refuses, with the reason that git gives."""
    return EnvironmentFault(
        f"The repository at {where} cannot be used (git says: {reason}): repair it with 'git fsck', or clone it again."
    )


def no_git() -> M3AgentError:
    """Return the error for a host without git."""
    return EnvironmentFault(
        "git is not installed: install it first (Debian and Ubuntu: apt-get install git)."
    )


def damaged(path: str) -> M3AgentError:
    """Return the error for a path that is not a usable git folder, or not a usable file of one."""
    return EnvironmentFault(
        f"{path} is not a usable git folder (incomplete or damaged): run 'git fsck' there, or clone it again."
    )


def bare_inside(path: str, root: str) -> M3AgentError:
    """Return the error for a bare repository inside another repository's work tree.

    It may have come with a clone, unnoticed by the user.
    """
    return UsageError(
        f"{path} is a bare repository inside the work tree of {root}: give the folder {root}, or a clone of the "
        "bare repository in another place."
    )


def _words(stderr: bytes) -> str:
    return first_words(stderr.decode(errors="replace")) or "no reason"


def first_words(stderr: str) -> str:
    """Return the first line of git's standard error, without git's prefix; empty without one."""
    line = next((line for line in stderr.splitlines() if line.strip()), "")
    return line.removeprefix("fatal: ").removeprefix("error: ").strip().rstrip(".")

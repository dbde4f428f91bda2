"""Find the user's repository, and run git in it without the configuration keys that could start a program.

A repository's own `.git/config` can name programs that git starts: to filter files, to check signatures, to
reach remotes. Therefore git never searches for a repository itself. This module finds it and passes three
folders to git:

- the real git folder of the work tree (HEAD, index),
- the work tree,
- a common folder that m3agent makes. It holds links to the real objects, references and so on, and a
  configuration that `git_config` wrote, which has only keys that are plain data.

A repository is searched for once; all commands then use the result. A change of its configuration takes
effect with the next command. `m3agent.sandbox.store.git_command` sets the options and the environment of each
command.

A pack from the cache runs this code. Therefore this module imports nothing that is slow to import.
"""

from __future__ import annotations

import os
from hashlib import sha256

from m3agent.sandbox.store.git_command import GitCommand, for_repository
from m3agent.util.plain_file import read_first
from m3agent.util.record import record
from m3agent.util.xdg import state_folder

FOLDER = "git"
"""A folder in the state folder. It holds one common folder for each repository."""
LINKED = ("info", "lfs", "logs", "objects", "packed-refs", "refs", "reftable", "shallow", "worktrees")
"""The entries of the real common folder that are linked into m3agent's own.

Not linked: `config` and `hooks`; `branches` and `remotes`, because they define what a remote's name means.
"""

_VERSION = b"1"  # of the format of the written configuration; a file of another version is written again
_MOST_BYTES = 4096


@record
class HostGit:
    """The location of a user's repository, and how to run git in it. All paths are absolute and without symbolic links."""

    root: str | None
    """The work tree's folder; None for a bare repository."""
    git_dir: str
    """The git folder of this work tree."""
    common_dir: str
    """The git folder that all work trees share. It differs from `git_dir` only for a linked work tree."""
    top: str | None
    """The folder in which `.git` was found, or None. It equals `root`, unless the configuration says that the repository is bare."""

    @property
    def folder(self) -> str:
        """The folder to run git in."""
        return self.root or self.git_dir

    def command(self, *, remote: bool = False) -> GitCommand:
        """Return git for this repository, with the current configuration and environment.

        Args:
            remote: Git will talk to a remote. Some more keys of the repository's configuration are used then.

        Raises:
            EnvironmentFault: The configuration cannot be read, or names another folder as the work tree.
        """
        config_dir, bare = _configuration(self.top, self.git_dir, self.common_dir, remote=remote)
        return for_repository(self.git_dir, config_dir, None if bare else self.top, remote=remote)


def find(folder: str) -> HostGit | None:
    """Return the repository that contains `folder`, ready for git to run in, or None outside a repository.

    Raises:
        EnvironmentFault: It is damaged, belongs to another user, or names another folder as its work tree.
        UsageError: It is a bare repository inside the work tree of another one.
    """
    path = os.path.realpath(folder)
    top, git_dir = _discover(path)
    if git_dir != path and _is_git_folder(path):
        if top is not None:
            from m3agent.agent.repo import git_config

            raise git_config.bare_inside(path, top)
        git_dir = path
    if git_dir is None:
        return None
    common_dir = _common(git_dir)
    _check_owner(top, git_dir)
    _, bare = _configuration(top, git_dir, common_dir, remote=False)
    return HostGit(None if bare else top, git_dir, common_dir, top)


def _configuration(top: str | None, git_dir: str, common_dir: str, *, remote: bool) -> tuple[str, bool]:
    """Return m3agent's common folder for the repository, and whether the configuration says that it is bare.

    The folder's configuration is written again if the repository's configuration changed.
    """
    stamp = _stamp(common_dir, git_dir)
    name = sha256(b"\0".join(map(os.fsencode, (top or "", git_dir, common_dir)))).hexdigest()[:24]
    name += "-remote" if remote else ""
    state = state_folder(os.environ)
    config_dir = None if state is None else f"{state}/{FOLDER}/{name}"
    head = None if config_dir is None else read_regular(f"{config_dir}/config")
    line = b"" if head is None else head.partition(b"\n")[0]
    bare = first_line(stamp, bare=True)
    if config_dir is None or line not in (first_line(stamp, bare=False), bare):
        from m3agent.agent.repo import git_config

        config_dir, line = git_config.make(top, git_dir, common_dir, stamp, state, name, remote=remote)
    return config_dir, line == bare


def read_regular(path: str, most: int = _MOST_BYTES) -> bytes | None:
    """Return the first `most` bytes of a file; None if it cannot be read or is not a regular file."""
    try:
        return read_first(path, most)
    except OSError:
        return None


def first_line(stamp: str, *, bare: bool) -> bytes:
    """Return the first line of a configuration that m3agent writes.

    It holds the stamp of the files that it was made from, and whether the repository is bare.
    """
    return b"# m3agent %s %s %s" % (_VERSION, b"bare" if bare else b"tree", stamp.encode())


def _discover(path: str) -> tuple[str | None, str | None]:
    """Search upwards for a repository, as git does.

    Return the nearest folder with a `.git`, and the git folder that it is or names.
    """
    damaged = None
    folder = path
    while True:
        dot = f"{folder.rstrip('/')}/.git"
        if os.path.isdir(dot):
            git_dir = os.path.realpath(dot)
            if _is_git_folder(git_dir):
                return folder, git_dir
            damaged = damaged or dot
        elif os.path.lexists(dot):
            named = _named_by(dot)
            if named is None or not _is_git_folder(named):
                raise _damaged(dot)
            return folder, named
        if folder == "/":
            break
        folder = os.path.dirname(folder)
    if damaged is not None and not _is_git_folder(path):
        raise _damaged(damaged)
    return None, None


def _named_by(file: str) -> str | None:
    """Return the git folder that a file called .git names."""
    if read_regular(file) is None or os.path.getsize(file) > _MOST_BYTES:
        return None
    # GitPython runs `git version` when it is imported, in the current folder and with all secrets. It also
    # works without a git.
    off = {"GIT_PYTHON_GIT_EXECUTABLE": "/nonexistent/git", "GIT_PYTHON_REFRESH": "quiet"}
    before = {name: os.environ.get(name) for name in off}
    os.environ.update(off)
    try:
        from git.repo.fun import find_worktree_git_dir  # slow to import, and linked work trees are rare
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
    named = find_worktree_git_dir(file)
    return None if named is None else _resolved(os.path.dirname(file), named)


def _is_git_folder(path: str) -> bool:
    if not os.path.lexists(f"{path}/HEAD"):
        return False
    common = _common(path)
    return os.path.isdir(f"{common}/objects") and os.path.isdir(f"{common}/refs")


def _common(git_dir: str) -> str:
    """Return the folder that a linked work tree shares with the others."""
    named = read_regular(f"{git_dir}/commondir")
    if not named:
        return git_dir
    return _resolved(git_dir, os.fsdecode(named.rstrip(b"\r\n")))


def _resolved(folder: str, name: str) -> str:
    return os.path.realpath(
        os.path.join(folder, name.partition("\0")[0])
    )  # the system calls end a path at NUL


def _check_owner(root: str | None, git_dir: str) -> None:
    """Refuse another user's repository by git's own rule, unless the user's git configuration allows it."""
    user = os.geteuid()
    owners = {user}
    if user == 0 and os.environ.get("SUDO_UID", "").isdecimal():
        owners.add(int(os.environ["SUDO_UID"]))
    for path in (git_dir,) if root is None else (git_dir, root, f"{root}/.git"):
        if os.lstat(path).st_uid not in owners:
            from m3agent.agent.repo import git_config

            git_config.ask_git_about_owner(root or git_dir, git_dir)
            return


def _stamp(common_dir: str, git_dir: str) -> str:
    """Return a text that changes whenever one of the configuration files changes."""
    return " ".join(map(_stamp_of, (f"{common_dir}/config", f"{git_dir}/config.worktree")))


def _stamp_of(path: str) -> str:
    try:
        found = os.stat(path)
    except OSError:
        return "-"
    return f"{found.st_ino}.{found.st_size}.{found.st_mtime_ns}.{found.st_ctime_ns}"


def _damaged(path: str) -> Exception:
    from m3agent.agent.repo import git_config

    return git_config.damaged(path)

"""Finds the user's repository for git, which then reads no key of its configuration that could start a program.

Git takes orders from a repository's own `.git/config`: programs to filter files with, to check signatures, to reach
remotes. So git is never let find a repository by itself. It is found here, and git is told three folders: the real git
folder of the work tree (HEAD, index), the work tree, and as the common folder one of m3agent's own. That one holds links
to the real objects, references and so on, and a configuration that `git_config` wrote: only keys that are plain data.
A repository is found once for all commands that run in it, and a change of its configuration counts from the next
command on. `m3agent.sandbox.git_command` has the options and the environment that commands are started with.

A pack from cache runs this, so nothing is imported here that takes time to import.
"""

from __future__ import annotations

import os
import stat
from hashlib import sha256

from m3agent.agent.folders import state_folder
from m3agent.sandbox.git_command import GitCommand, for_repository

FOLDER = "git"
"""In the state folder: a common folder for each repository."""
LINKED = ("info", "lfs", "logs", "objects", "packed-refs", "refs", "reftable", "shallow", "worktrees")
"""What of the real common folder is seen through ours. Not `config`, `hooks`, nor `branches` and `remotes`, which say
what a remote's name means."""

_VERSION = b"1"  # of what is written there; another one is written anew
_MOST_BYTES = 4096


class HostGit:
    """A repository of the user: where it is, and git for it.

    `root` is the work tree's folder (None when bare), `git_dir` the git folder of this work tree, `common_dir` that of
    all its work trees (the same but for linked ones), `top` the folder that was found to hold `.git`, which is `root`
    unless the configuration says bare. All are absolute and without links.
    """

    __slots__ = ("common_dir", "git_dir", "root", "top")

    def __init__(self, root: str | None, git_dir: str, common_dir: str, top: str | None) -> None:
        self.root = root
        self.git_dir = git_dir
        self.common_dir = common_dir
        self.top = top

    @property
    def folder(self) -> str:
        """The folder to run git in."""
        return self.root or self.git_dir

    def command(self, *, remote: bool = False) -> GitCommand:
        """git for this repository, with its configuration and the environment as they are now.

        Args:
            remote: Git is to talk to a remote, for which some more of the repository's configuration counts.

        Raises:
            EnvironmentFault: the configuration cannot be read, or places the work tree elsewhere.
        """
        config_dir, bare = _configuration(self.top, self.git_dir, self.common_dir, remote=remote)
        return for_repository(self.git_dir, config_dir, None if bare else self.top, remote=remote)


def find(folder: str) -> HostGit | None:
    """The repository that `folder` lies in, ready for git to run in; None without one.

    Raises:
        EnvironmentFault: it is damaged, belongs to somebody else, or places its work tree elsewhere.
        UsageError: a bare repository lies inside another one's work tree.
    """
    path = os.path.realpath(folder)
    top, git_dir = _discover(path)
    if git_dir != path and _is_git_folder(path):
        if top is not None:
            from m3agent.agent import git_config

            raise git_config.bare_inside(path, top)
        git_dir = path
    if git_dir is None:
        return None
    common_dir = _common(git_dir)
    _check_owner(top, git_dir)
    _, bare = _configuration(top, git_dir, common_dir, remote=False)
    return HostGit(None if bare else top, git_dir, common_dir, top)


def _configuration(top: str | None, git_dir: str, common_dir: str, *, remote: bool) -> tuple[str, bool]:
    """Our stand-in for the common folder, written anew where the repository's configuration changed; whether that says
    that there is no work tree."""
    stamp = _stamp(common_dir, git_dir)
    name = sha256(b"\0".join(map(os.fsencode, (top or "", git_dir, common_dir)))).hexdigest()[:24]
    name += "-remote" if remote else ""
    state = state_folder(os.environ)
    config_dir = None if state is None else f"{state}/{FOLDER}/{name}"
    head = None if config_dir is None else read_regular(f"{config_dir}/config")
    line = b"" if head is None else head.partition(b"\n")[0]
    bare = first_line(stamp, bare=True)
    if config_dir is None or line not in (first_line(stamp, bare=False), bare):
        from m3agent.agent import git_config

        config_dir, line = git_config.make(top, git_dir, common_dir, stamp, state, name, remote=remote)
    return config_dir, line == bare


def read_regular(path: str, most: int = _MOST_BYTES) -> bytes | None:
    """The first `most` bytes of a file; None for anything but a plain file, such as a pipe that nobody writes to."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(file, most) if stat.S_ISREG(os.fstat(file).st_mode) else None
    finally:
        os.close(file)


def first_line(stamp: str, *, bare: bool) -> bytes:
    """The first line of a configuration that we write: what it was made from, and whether there is no work tree."""
    return b"# m3agent %s %s %s" % (_VERSION, b"bare" if bare else b"tree", stamp.encode())


def _discover(path: str) -> tuple[str | None, str | None]:
    """The nearest folder with a git folder or a file that names one, and that git folder; as git looks for it."""
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
    """The git folder that a file called .git names."""
    try:
        from git.repo.fun import find_worktree_git_dir  # takes a while, and linked work trees are few
    except ImportError:  # what GitPython raises where there is no git
        from m3agent.agent import git_config

        raise git_config.no_git() from None
    named = find_worktree_git_dir(file)
    return None if named is None else _resolved(os.path.dirname(file), named)


def _is_git_folder(path: str) -> bool:
    if not os.path.lexists(f"{path}/HEAD"):
        return False
    common = _common(path)
    return os.path.isdir(f"{common}/objects") and os.path.isdir(f"{common}/refs")


def _common(git_dir: str) -> str:
    """The folder with what a linked work tree shares with the others."""
    named = read_regular(f"{git_dir}/commondir")
    if not named:
        return git_dir
    return _resolved(git_dir, os.fsdecode(named.rstrip(b"\r\n")))


def _resolved(folder: str, name: str) -> str:
    return os.path.realpath(os.path.join(folder, name.partition("\0")[0]))  # a name ends there for the system


def _check_owner(root: str | None, git_dir: str) -> None:
    """Refuse a repository of somebody else by git's own rule, unless the user's configuration of git allows it."""
    user = os.geteuid()
    owners = {user}
    if user == 0 and os.environ.get("SUDO_UID", "").isdecimal():
        owners.add(int(os.environ["SUDO_UID"]))
    for path in (git_dir,) if root is None else (git_dir, root, f"{root}/.git"):
        if os.lstat(path).st_uid not in owners:
            from m3agent.agent import git_config

            git_config.ask_git_about_owner(root or git_dir, git_dir)
            return


def _stamp(common_dir: str, git_dir: str) -> str:
    """What tells one state of the configuration files from the next."""
    return " ".join(map(_stamp_of, (f"{common_dir}/config", f"{git_dir}/config.worktree")))


def _stamp_of(path: str) -> str:
    try:
        found = os.stat(path)
    except OSError:
        return "-"
    return f"{found.st_ino}.{found.st_size}.{found.st_mtime_ns}.{found.st_ctime_ns}"


def _damaged(path: str) -> Exception:
    from m3agent.agent import git_config

    return git_config.damaged(path)

"""Options and environment of git on the host. Every start of git takes them from here.

The owner of the repository decides which configuration git may obey. There are two policies:

- `for_store`: m3agent's own repositories, and files as plain bytes. Git reads no configuration except these
  options: no system or user file, and no attributes in the tree. It fetches nothing, unless the caller allows
  one protocol.
- `for_repository`: the user's repository. The user's and the system's configuration apply, because the
  repository cannot change them. Environment variables name all folders, so git does not search for any.
  `config_dir` has only those keys of the repository's own configuration that are plain data
  (`m3agent.agent.repo.host_git` finds and writes them).

`for_no_repository` is the second policy without a repository. `for_owner_question` lets git search for a
repository, for one question only. In all other cases git gets the name of the repository and does not search.

The host runs only `SUBCOMMANDS`. `tests/abuse/test_host_keys.py` tries each of them with every key that the
installed git knows.

A pack from the cache imports this module. Therefore it imports nothing that is slow to import.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence

TYPE_CHECKING = False  # type checkers assume that it is true; the module typing is slow to import
if TYPE_CHECKING:
    import subprocess

SUBCOMMANDS = frozenset(
    {
        *("apply", "cat-file", "check-ignore", "check-ref-format", "checkout", "commit-tree", "config"),
        *("describe", "diff-tree", "fast-import", "fetch", "for-each-ref", "hash-object", "init", "log"),
        *("ls-files", "ls-remote", "ls-tree", "merge-base", "pack-objects", "push", "read-tree", "remote"),
        *("rev-list", "rev-parse", "status", "symbolic-ref", "update-index", "update-ref", "var", "version"),
        "write-tree",
    }
)
"""The git commands that the host runs. `GitCommand.argv` refuses all others."""

_NO_MONITOR = ("-c", "core.fsmonitor=")  # git before 2.36 would start a program called "false"
_ALWAYS = (
    *_NO_MONITOR,
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "gc.auto=0"),
)
"""A git command must not start a hook, a file system monitor or a garbage collection."""
_STORE = (
    *_ALWAYS,
    *("-c", "core.attributesFile=/dev/null"),
    *("-c", "core.logAllRefUpdates=false"),
    *("-c", "core.quotePath=false"),
    *("-c", "core.autocrlf=false"),
    *("-c", "protocol.allow=never"),
    *("-c", "submodule.recurse=false"),
)
_REPOSITORY = (
    *_ALWAYS,
    *("-c", "log.showSignature=false"),
    *("-c", "maintenance.auto=false"),
    *("-c", "safe.bareRepository=explicit"),
    # Since git 2.54, the user's configuration can define hooks, too.
    *("-c", "hook.pre-push.enabled=false"),
    *("-c", "hook.reference-transaction.enabled=false"),
)

# GIT_DIR, GIT_INDEX_FILE and similar variables (set inside hooks) would make git use another repository.
# Of git's variables, only those with these prefixes are kept: none of them selects a repository.
_KEPT = (
    *("GIT_ASKPASS", "GIT_AUTHOR_", "GIT_COMMITTER_", "GIT_CONFIG_", "GIT_EXEC_PATH", "GIT_HTTP_"),
    *("GIT_PROXY_", "GIT_SSH", "GIT_SSL_"),
)
_SECRET_WORDS = frozenset({"AUTH", "COOKIE", "KEY", "KEYS", "PASS", "PASSWD", "PAT", "PWD", "WEBHOOK"})
_SECRET_PARTS = ("APIKEY", "CREDENTIAL", "PASSPHRASE", "PASSWORD", "SECRET", "TOKEN")
_MODEL_KEYS = ("M3AGENT_", "OPENAI_")
"""Prefixes of variables for model servers. No program that git starts needs them."""
_PROTOCOLS = "file:git:http:https:ssh"  # git's own default


class GitCommand:
    """Git under one policy.

    `run` waits for its end; `argv` and `environment` are for callers that start it themselves.
    """

    __slots__ = ("_options", "environment")

    def __init__(self, options: tuple[str, ...], environment: dict[str, str]) -> None:
        self._options = options
        self.environment = environment

    def argv(self, *args: str) -> list[str]:
        """Return the whole command line for `git *args`.

        Raises:
            FileNotFoundError: There is no git.
            ValueError: The command is not one of `SUBCOMMANDS`.
        """
        if subcommand(args) not in SUBCOMMANDS:
            raise ValueError(f"git {subcommand(args)} is not in SUBCOMMANDS")
        return [_program(self.environment["PATH"]), *self._options, *args]

    def run(
        self,
        *args: str,
        cwd: str | os.PathLike[str] | None = None,
        stdin: bytes | None = None,
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run `git *args` to its end. Blocking.

        Raises:
            OSError: Git cannot be started, or `cwd` is not a folder.
            subprocess.TimeoutExpired: Git did not end in time, and was killed.
        """
        import subprocess

        return subprocess.run(
            self.argv(*args),
            cwd=cwd,
            env=self.environment,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            check=False,
            timeout=timeout,
        )


def subcommand(args: Sequence[str]) -> str:
    """Return the name of the git command in `args`, which may begin with options of git itself."""
    words = iter(args)
    for word in words:
        if word in ("-c", "-C"):
            next(words, None)
        elif not word.startswith("-"):
            return word
    return ""


def for_store(extra: Mapping[str, str] | None = None) -> GitCommand:
    """Return git for one of m3agent's own repositories.

    Args:
        extra: Environment variables to add. `GIT_DIR` selects the repository. Without it, git runs without one.
    """
    return GitCommand(
        _STORE,
        {
            "PATH": trusted_path(),
            "HOME": "/nonexistent",
            "LC_ALL": "C",
            "GIT_DIR": os.devnull,
            "GIT_ALLOW_PROTOCOL": "none",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",
            **(extra or {}),
        },
    )


def for_repository(
    git_dir: str, config_dir: str, work_tree: str | None, *, remote: bool = False
) -> GitCommand:
    """Return git for a repository of the user.

    Args:
        git_dir: The git folder of this work tree.
        config_dir: m3agent's common folder for the repository, whose configuration is plain data.
        work_tree: The folder of the work tree; None for a bare repository.
        remote: Git talks to a remote. Only then it may use the network, and its environment holds secrets.
            Without a remote, no program that git starts (such as a filter in the user's configuration) needs
            them.
    """
    environment = _of_user(remote) | {"GIT_DIR": git_dir, "GIT_COMMON_DIR": config_dir}
    environment |= {"GIT_IMPLICIT_WORK_TREE": "0"} if work_tree is None else {"GIT_WORK_TREE": work_tree}
    return GitCommand(_REPOSITORY, environment)


def for_no_repository() -> GitCommand:
    """Return git with the user's configuration but without a repository; git does not search for one."""
    return GitCommand(_REPOSITORY, _of_user() | {"GIT_DIR": os.devnull})


def for_owner_question() -> GitCommand:
    """Return git that searches for a repository itself.

    Use it only to ask whether git trusts the repository's owner: if it does, it reads the repository's
    configuration.
    """
    return GitCommand(_NO_MONITOR, _of_user())


def _of_user(remote: bool = False) -> dict[str, str]:
    """Return the user's environment for git, without terminal prompts and without optional locks."""
    return {
        name: value
        for name, value in os.environ.items()
        if (not name.startswith("GIT_") or name.startswith(_KEPT))
        and not name.startswith(_MODEL_KEYS)
        and (remote or not _is_secret(name, value))
    } | {
        "PATH": trusted_path(),
        "GIT_ALLOW_PROTOCOL": _PROTOCOLS if remote else "none",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }


def _is_secret(name: str, value: str) -> bool:
    """Return whether an environment variable may hold a secret: by its name, or as a URL with a login."""
    if name.startswith("GIT_") or name in ("PWD", "OLDPWD"):
        return False
    upper = name.upper()
    return (
        not _SECRET_WORDS.isdisjoint(upper.split("_"))
        or any(part in upper for part in _SECRET_PARTS)
        or "@" in value.partition("://")[2]
    )


def trusted_path() -> str:
    """Return the user's PATH without relative folders: from inside a repository, they are the repository's."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    # an empty PATH would mean the current folder
    return os.pathsep.join(folder for folder in folders if folder.startswith("/")) or os.defpath


def _program(path: str) -> str:
    for folder in path.split(os.pathsep):
        program = f"{folder}/git"
        if os.access(program, os.X_OK) and os.path.isfile(program):  # noqa: PTH113  # pathlib is slow to import
            return program
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "git")

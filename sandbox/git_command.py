"""How git is started on the host: its options and its environment. Every start of git gets them from here.

Whose repository it is decides what git may obey. There are two policies:

- `for_store`: a repository of our own, or files as mere bytes. Git reads no configuration but these options: not the
  system's, not the user's, no attributes of the tree. Nothing is fetched.
- `for_repository`: the user's repository. The configuration of the user and of the system stays in force, since it is
  not the repository's. Git is told all folders, and `config_dir` has only those keys of the repository's own
  configuration that are plain data (`m3agent.agent.host_git` finds and writes them).
  `for_no_repository` is the same without one, `for_owner_question` lets git find one for a single question.

A pack from cache imports this, so nothing is imported here that takes time to import.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

TYPE_CHECKING = False  # what type checkers take for true; typing itself is slow to import
if TYPE_CHECKING:
    import subprocess

_NO_MONITOR = ("-c", "core.fsmonitor=false")
_ALWAYS = (
    *_NO_MONITOR,
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "gc.auto=0"),
)
"""No hook, no monitor program and no tidying up starts because we look."""
_STORE = (
    *_ALWAYS,
    *("-c", "core.attributesFile=/dev/null"),
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
)

# GIT_DIR, GIT_INDEX_FILE and their kin (set inside hooks) would point git at another repository than the one
# named; only the variables of these families say nothing about which repository is meant.
_KEPT = (
    "GIT_ASKPASS",
    "GIT_AUTHOR_",
    "GIT_COMMITTER_",
    "GIT_CONFIG_",
    "GIT_EXEC_PATH",
    "GIT_HTTP_",
    "GIT_PROXY_",
    "GIT_SSH",
    "GIT_SSL_",
)
_SECRETS = ("_API_KEY", "_PASSWD", "_SECRET", "_TOKEN")
_PROTOCOLS = "file:git:http:https:ssh"  # those that git allows by itself


class GitCommand:
    """git under one policy: `argv` and `environment` for whoever starts it in a way of their own, `run` to wait for it."""

    __slots__ = ("_options", "environment")

    def __init__(self, options: tuple[str, ...], environment: dict[str, str]) -> None:
        self._options = options
        self.environment = environment

    def argv(self, *args: str) -> list[str]:
        """The whole command line for `git *args`."""
        return ["git", *self._options, *args]

    def run(
        self,
        *args: str,
        cwd: str | os.PathLike[str] | None = None,
        stdin: bytes | None = None,
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run `git *args` to its end; `timeout` in seconds.

        Raises:
            OSError: git cannot be started, or `cwd` is no folder.
            subprocess.TimeoutExpired: it did not end in time, and was killed.
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


def for_store(extra: Mapping[str, str] | None = None) -> GitCommand:
    """git for a repository of our own, which the variables in `extra` may name."""
    return GitCommand(
        _STORE,
        {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": "/nonexistent",
            "LC_ALL": "C",
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
    """git for a repository of the user.

    Args:
        git_dir: The git folder of this work tree.
        config_dir: Our stand-in for the folder that work trees share, with a configuration of plain data.
        work_tree: Its folder, None when bare.
        remote: Git talks to a remote. Only then it may use the network, and its environment holds secrets: a program
            that the user's own configuration names, such as a filter, needs none to read files.
    """
    environment = _of_user(remote) | {"GIT_DIR": git_dir, "GIT_COMMON_DIR": config_dir}
    environment |= {"GIT_IMPLICIT_WORK_TREE": "0"} if work_tree is None else {"GIT_WORK_TREE": work_tree}
    return GitCommand(_REPOSITORY, environment)


def for_no_repository() -> GitCommand:
    """git as the user has set it up, where no repository is meant; it does not look for one."""
    return GitCommand(_REPOSITORY, _of_user() | {"GIT_DIR": os.devnull})


def for_owner_question() -> GitCommand:
    """git that finds a repository by itself. Only for the question whether it trusts the repository's owner: git reads
    the repository's configuration once it does."""
    return GitCommand(_NO_MONITOR, _of_user())


def _of_user(remote: bool = False) -> dict[str, str]:
    """The user's environment for git: it asks for nothing on the terminal and takes no locks that it can do without."""
    return {
        name: value
        for name, value in os.environ.items()
        if (not name.startswith("GIT_") or name.startswith(_KEPT)) and (remote or not _is_secret(name))
    } | {
        "GIT_ALLOW_PROTOCOL": _PROTOCOLS if remote else "none",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }


def _is_secret(name: str) -> bool:
    upper = name.upper()
    return upper.startswith("M3AGENT_") or upper.endswith(_SECRETS) or "PASSWORD" in upper

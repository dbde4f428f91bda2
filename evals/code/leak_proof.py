"""Inspect a checkout's repository for anything besides its one commit.

If it contains nothing else, an agent cannot find the fix there.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, computed_field

from m3agent.sandbox.store.git import run_git

BRANCH = "refs/heads/main"
"""The only ref of a checkout."""

_KEEPERS = (
    *("logs", "FETCH_HEAD", "ORIG_HEAD", "MERGE_HEAD", "CHERRY_PICK_HEAD", "worktrees", "modules"),
    *("objects/info/alternates", "objects/info/http-alternates", "info/grafts"),
    *("hooks", "branches", "remotes"),
)
"""Paths in a git directory that lead to other history or mention it."""


class LeakProof(BaseModel):
    """What a repository contains, counted after the checkout."""

    model_config = ConfigDict(frozen=True)

    head: str
    """Id of the commit that is checked out."""
    matches: bool | None
    """Whether `head` is the task's base; None if the base is unknown."""
    commits: int
    """Number of commits in the object store, reachable or not."""
    refs: tuple[str, ...]
    """Names of all refs."""
    objects: int
    """Number of objects in the store."""
    reachable: int
    """Number of objects that `head` reaches."""
    keepers: tuple[str, ...] = ()
    """Other things that lead to more history or mention it, such as remotes and reflogs."""

    @computed_field  # type: ignore[prop-decorator]  # pydantic's documented pattern
    @property
    def clean(self) -> bool:
        """Whether the repository contains the base commit and nothing else."""
        return (
            self.matches is not False
            and self.commits == 1
            and self.refs == (BRANCH,)
            and self.objects == self.reachable
            and not self.keepers
        )


def prove(repository: Path, base_commit: str = "") -> LeakProof:
    """Inspect a repository with a work tree. Only m3agent may have written to it.

    Args:
        base_commit: The id that `HEAD` should have; empty if it is unknown.

    Raises:
        SandboxError: git cannot read the repository.
    """

    git_dir = repository.absolute() / ".git"

    def lines(*args: str) -> list[str]:
        done = run_git(*args, env={"GIT_DIR": str(git_dir), "GIT_NO_REPLACE_OBJECTS": "1"})
        return done.stdout.decode(errors="replace").split("\n")[:-1]

    head = lines("rev-parse", "HEAD^{commit}")[0]
    kinds = lines("cat-file", "--batch-all-objects", "--unordered", "--buffer", "--batch-check=%(objecttype)")
    remotes = (f"remote {name}" for name in lines("remote"))
    return LeakProof(
        head=head,
        matches=head == base_commit if base_commit else None,
        commits=kinds.count("commit"),
        refs=tuple(lines("for-each-ref", "--format=%(refname)")),
        objects=len(kinds),
        reachable=len(lines("rev-list", "--objects", "--no-object-names", head)),
        keepers=(*remotes, *(name for name in _KEEPERS if (git_dir / name).exists())),
    )

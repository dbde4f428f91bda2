"""What a checkout's repository holds besides its one commit: if nothing, no fix can be found in it."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, computed_field

from m3agent.sandbox.git import run_git

BRANCH = "refs/heads/main"
"""The one ref that a checkout has."""

_KEEPERS = (
    *("logs", "FETCH_HEAD", "ORIG_HEAD", "MERGE_HEAD", "CHERRY_PICK_HEAD", "worktrees", "modules"),
    *(
        "objects/info/alternates",
        "objects/info/http-alternates",
        "info/grafts",
        "hooks",
        "branches",
        "remotes",
    ),
)
"""Paths in a repository's folder that lead to other history, or tell of it."""


class LeakProof(BaseModel):
    """What is in a repository, counted after the fact.

    head: the commit that is checked out. matches: whether that is the task's base; None where the base is not known.
    commits: in the store, reachable or not. refs: all of them. objects: in the store; reachable: those of them that
    belong to head. keepers: what else leads to other history or tells of it, such as remotes and reflogs.
    """

    model_config = ConfigDict(frozen=True)

    head: str
    matches: bool | None
    commits: int
    refs: tuple[str, ...]
    objects: int
    reachable: int
    keepers: tuple[str, ...] = ()

    @computed_field  # type: ignore[prop-decorator]  # the way that pydantic asks for
    @property
    def clean(self) -> bool:
        """Whether the repository holds the base's one commit and nothing else."""
        return (
            self.matches is not False
            and self.commits == 1
            and self.refs == (BRANCH,)
            and self.objects == self.reachable
            and not self.keepers
        )


def prove(repository: Path, base_commit: str = "") -> LeakProof:
    """Look into a repository with a work tree that only we have written to.

    Raises SandboxError where git cannot read it.
    """

    def lines(*args: str) -> list[str]:
        done = run_git(*args, cwd=repository, env={"GIT_NO_REPLACE_OBJECTS": "1"})
        return done.stdout.decode(errors="replace").split("\n")[:-1]

    head = lines("rev-parse", "HEAD^{commit}")[0]
    kinds = lines("cat-file", "--batch-all-objects", "--unordered", "--buffer", "--batch-check=%(objecttype)")
    git_dir = repository / ".git"
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

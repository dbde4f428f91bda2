"""Find the repository to pack. With a work tree this takes as long as one git command."""

from __future__ import annotations

import os

from m3agent.agent.context.files import LIST, FileListing, git_output, parse_listing
from m3agent.agent.repo.git_spawn import GitProcess
from m3agent.agent.repo.host_git import HostGit, find
from m3agent.util.record import record

TYPE_CHECKING = False  # type checkers assume that it is true; the module typing is slow to import
if TYPE_CHECKING:
    from m3agent.agent.repo.repository import Repository


@record
class Checkout:
    """A commit and the work tree in which it is checked out."""

    repository: HostGit
    """The repository in which git runs; its `root` is None if it is bare."""
    head: str
    """Id of the commit."""
    shallow: bool
    """Whether the history is cut off."""
    listing: GitProcess | None = None
    """Lists the files in the background."""

    @classmethod
    def of(cls, repository: Repository) -> Checkout:
        """Return the part of a repository that packing needs."""
        return cls(repository.host_git, repository.head, shallow=repository.shallow)

    @property
    def git_dir(self) -> str:
        """The git directory, by which caches are found."""
        return self.repository.git_dir

    def take_listing(self) -> FileListing:
        """List the work tree's files.

        The first call may return the state at the time when this object was created; later calls list again.

        Raises:
            GitCommandFailed: git failed; the message contains its error.
        """
        process, self.listing = self.listing, None
        output = None if process is None else process.output()
        return parse_listing(git_output(self.repository, *LIST) if output is None else output)


def quick_checkout(folder: str) -> Checkout | None:
    """Return the work tree that contains `folder`, if it has a commit.

    Raises the errors of `host_git.find`.

    Returns:
        None in all other cases, including a missing git; `repository.open_repository` handles them.
    """
    git = find(folder)
    if git is None or git.root is None:
        return None
    try:
        listing = GitProcess(git, *LIST)  # runs in parallel with the next command
    except OSError:
        return None
    out = GitProcess(git, "rev-parse", "--is-shallow-repository", "HEAD^{commit}").output()
    lines = os.fsdecode(out or b"").split("\n")
    if len(lines) == 3:
        shallow, head, _ = lines
        return Checkout(git, head, shallow=shallow == "true", listing=listing)
    listing.output()
    return None

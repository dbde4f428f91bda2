"""Which repository is packed: found in the time of one git command where it has a work tree."""

from __future__ import annotations

import os

from m3agent.agent.context.files import LIST, Listing, git_output, parse_listing
from m3agent.agent.git_process import GitProcess
from m3agent.agent.host_git import find


class Checkout:
    """A commit and, unless `root` is None, the work tree it is checked out in.

    `git_dir` is git's own folder, `head` the commit's id, `shallow` whether its history is cut off.
    """

    __slots__ = ("_listing", "git_dir", "head", "root", "shallow")

    def __init__(
        self,
        root: str | None,
        git_dir: str,
        head: str,
        *,
        shallow: bool,
        listing: GitProcess | None = None,
    ) -> None:
        self.root = root
        self.git_dir = git_dir
        self.head = head
        self.shallow = shallow
        self._listing = listing

    @property
    def where(self) -> str:
        """The folder to run git in."""
        return self.root or self.git_dir

    def take_listing(self) -> Listing:
        """The work tree's files as they are now, or as they were when this was made if nobody asked since.

        Raises `GitCommandFailed` with git's words.
        """
        process, self._listing = self._listing, None
        output = None if process is None else process.output()
        return parse_listing(git_output(self.where, *LIST) if output is None else output)


def quick_checkout(folder: str) -> Checkout | None:
    """The work tree that `folder` lies in, if it has a commit; None for anything else and where there is no git, which
    `repository.open_repository` looks into.

    Raises what `host_git.find` raises.
    """
    git = find(folder)
    if git is None or git.root is None:
        return None
    try:
        listing = GitProcess(git.root, *LIST)  # on the other core meanwhile
    except OSError:
        return None
    out = GitProcess(git.root, "rev-parse", "--is-shallow-repository", "HEAD^{commit}").output()
    lines = os.fsdecode(out or b"").split("\n")
    if len(lines) == 3:
        shallow, head, _ = lines
        return Checkout(git.root, git.git_dir, head, shallow=shallow == "true", listing=listing)
    listing.output()
    return None

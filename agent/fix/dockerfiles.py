"""Decide whether a repository's Dockerfile is built: its instructions run in containers, and strangers wrote them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from m3agent.agent.repo.host_git import read_regular
from m3agent.agent.repo.repository import Repository
from m3agent.agent.settings.settings import Settings
from m3agent.sandbox.declared.container import Container, MayBuild, read_containers
from m3agent.sandbox.declared.types import MOST_TEXT, Files, ScanResult
from m3agent.util.trust import Trust

TRUSTED = "dockerfiles-trusted"
"""A folder in the state folder, for `Trust`."""
HOW = "give --dockerfile build, or see the file, then `m3agent sandbox trust`"


def may_build(
    repository: Repository, settings: Settings, state: Path, say: Callable[[str], None]
) -> MayBuild:
    """Return the decision about each Dockerfile of the repository; `say` tells of those that are not built."""

    def decide(container: Container, text: str) -> bool:
        if settings.dockerfile == "build" or trust_in(repository, container, text, state).given:
            return True
        if settings.dockerfile == "ask":
            say(
                f"{container.dockerfile} is not built, only the image and the packages that it names are used: {HOW}"
            )
        return False

    return decide


def trust_in(repository: Repository, container: Container, text: str, state: Path) -> Trust:
    """Return the user's decision about a Dockerfile of this repository with this text."""
    how = json.dumps(
        [container.dockerfile, container.context, container.target, container.args], sort_keys=True
    )
    where = repository.root or repository.git_dir
    return Trust(state / TRUSTED, str(where.resolve()), how, text)


def dockerfiles(repository: Repository) -> Iterator[tuple[Container, str]]:
    """Yield the Dockerfiles in the work tree that a build may use, best first, with their texts."""
    root = repository.root
    if root is None:
        return
    plain = [path for path in repository.list_files() if not (root / path).is_symlink()]
    files = Files(plain, lambda path: read_regular(str(root / path), MOST_TEXT + 1) or b"")
    for container in read_containers(files, ScanResult()):
        text = files.text(str(container.dockerfile), ScanResult()) if container.dockerfile else None
        if text is not None:
            yield container, text

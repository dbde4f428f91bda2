"""Ask the person about a repository's Dockerfile, and remember the answer."""

from __future__ import annotations

from pathlib import Path

from m3agent.agent.fix.sandbox_setup import dockerfiles, trust_in
from m3agent.agent.repo.repository import Repository, open_repository
from m3agent.agent.settings.options import Flags
from m3agent.cli.common import say, settings_in, state_folder
from m3agent.cli.hosts import confirmed, has_person
from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.backends.kinds import IMAGELESS
from m3agent.sandbox.declared.container import Container
from m3agent.sandbox.errors import EngineUnavailable
from m3agent.util.errors import UsageError
from m3agent.util.sanitize import print_note, printable_line


def ask(repo: Path, flags: Flags) -> None:
    """Ask whether the repository's Dockerfile may be built, if that is not decided and a person is at the terminal."""
    if not has_person():
        return
    settings = settings_in(repo, flags)
    no_build = settings.environment == "off" or settings.image is not None or settings.sandbox in IMAGELESS
    if settings.dockerfile != "ask" or no_build:
        return
    repository = open_repository(repo)
    for container, text in dockerfiles(repository):
        decision = trust_in(repository, container, text, state_folder())
        if decision.given or not _engine_here():
            return
        say(
            f"the repository has a {printable_line(container.dockerfile)}. A build runs its instructions in containers "
            "that reach the internet, but nothing of this machine. Without it, only the image and the packages that "
            "the file names are used."
        )
        if confirmed("Build it now, and whenever its text is the same?"):
            decision.give()
        return


def trust(repo: Path) -> None:
    """Trust the Dockerfiles of a repository in their present form. Raises UsageError if it has none."""
    repository = open_repository(repo)
    for container, text in _existing(repository):
        trust_in(repository, container, text, state_folder()).give()
        print_note(f"trusted in its present form: {printable_line(container.dockerfile)}")


def distrust(repo: Path) -> None:
    """Stop trusting the Dockerfiles of a repository. Raises UsageError if it has none."""
    repository = open_repository(repo)
    for container, text in _existing(repository):
        was = trust_in(repository, container, text, state_folder()).withdraw()
        path = printable_line(container.dockerfile)
        print_note(f"{'no longer trusted' if was else 'was not trusted'}: {path}")


def _existing(repository: Repository) -> list[tuple[Container, str]]:
    found = list(dockerfiles(repository))
    if not found:
        raise UsageError(f"{repository.root or repository.git_dir} has no Dockerfile that a build would use.")
    return found


def _engine_here() -> bool:
    try:
        connect().close()
    except EngineUnavailable:
        return False
    return True

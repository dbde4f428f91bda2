"""Consent to the build of a repository's Dockerfile: a setting, the trust store, a question on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from m3agent.agent.fix.sandbox_setup import TRUSTED, dockerfiles, may_build, trust_in
from m3agent.agent.repo.repository import open_repository
from m3agent.agent.settings.settings import Settings, state_dir
from m3agent.sandbox.declared.container import Container
from tests.command_line import run
from tests.conftest import docker_here
from tests.emulated_terminal import EmulatedTerminal

MakeRepo = Callable[..., Path]

DOCKERFILE = "FROM scratch\nCOPY a.txt /\n"
FILES = {"Dockerfile": DOCKERFILE, "a.txt": "a\n"}
FOUND = Container("Dockerfile", dockerfile="Dockerfile")
needs_docker = pytest.mark.skipif(not docker_here(), reason="no Docker engine answers")


def shows(text: str) -> Callable[[list[str]], bool]:
    return lambda lines: any(text in line for line in lines)


def test_the_setting_decides_or_people_are_told_how(make_repo: MakeRepo, tmp_path: Path) -> None:
    repository, said = open_repository(make_repo(FILES)), list[str]()
    assert may_build(repository, Settings(dockerfile="build"), tmp_path, said.append)(FOUND, DOCKERFILE)
    assert not may_build(repository, Settings(dockerfile="read"), tmp_path, said.append)(FOUND, DOCKERFILE)
    assert said == []
    assert not may_build(repository, Settings(), tmp_path, said.append)(FOUND, DOCKERFILE)
    assert len(said) == 1
    assert said[0].startswith(
        "Dockerfile is not built, only the image and the packages that it names are used: give "
    )
    assert "--dockerfile build, or see the file, then `m3agent sandbox trust`" in said[0]


def test_trust_is_in_one_text_in_one_repository(make_repo: MakeRepo, tmp_path: Path) -> None:
    repository = open_repository(make_repo(FILES))
    decide = may_build(repository, Settings(), tmp_path, lambda _: None)
    assert list(dockerfiles(repository)) == [(FOUND, DOCKERFILE)]
    trust_in(repository, FOUND, DOCKERFILE, tmp_path).give()
    assert decide(FOUND, DOCKERFILE)
    assert not decide(FOUND, DOCKERFILE + "RUN true\n")
    assert not decide(Container("Dockerfile", dockerfile="Dockerfile", args={"A": "b"}), DOCKERFILE)
    other = open_repository(make_repo(FILES, "other"))
    assert not may_build(other, Settings(), tmp_path, lambda _: None)(FOUND, DOCKERFILE)
    assert trust_in(repository, FOUND, DOCKERFILE, tmp_path).withdraw()
    assert not decide(FOUND, DOCKERFILE)


def test_only_plain_files_are_offered(make_repo: MakeRepo) -> None:
    folder = make_repo({"a.txt": DOCKERFILE})
    (folder / "Dockerfile").symlink_to("a.txt")
    assert list(dockerfiles(open_repository(folder))) == []


@pytest.mark.integration
def test_trust_is_given_and_withdrawn_on_the_command_line(make_repo: MakeRepo) -> None:
    folder = make_repo(FILES)
    where = ("--repo", str(folder))
    trusted = state_dir(os.environ) / TRUSTED
    assert run("sandbox", "trust", *where).stderr == "trusted in its present form: Dockerfile\n"
    assert len(list(trusted.iterdir())) == 1
    assert run("sandbox", "distrust", *where).stderr == "no longer trusted: Dockerfile\n"
    assert list(trusted.iterdir()) == []
    empty = run("sandbox", "trust", "--repo", str(make_repo({"a.txt": "a\n"}, "empty")))
    assert (empty.returncode, empty.stderr.count("\n")) == (2, 1)
    assert "has no Dockerfile that a build would use" in empty.stderr


@pytest.mark.slow
@needs_docker
@pytest.mark.integration
@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_person_at_a_terminal_is_asked_once(answer: str, make_repo: MakeRepo) -> None:
    command = [sys.executable, "-m", "m3agent", "sandbox", "build", "--repo", str(make_repo(FILES))]
    with EmulatedTerminal(command) as terminal:
        terminal.until(shows("[y/N]:"))
        terminal.press(f"{answer}\n".encode())
        terminal.until(shows("Dockerfile is not used" if answer == "y" else "Dockerfile is not built"))
    trusted = state_dir(os.environ) / TRUSTED
    assert len(list(trusted.iterdir()) if trusted.exists() else []) == (answer == "y")
    if answer == "y":
        with EmulatedTerminal(command) as terminal:
            terminal.until(shows("Dockerfile is not used"))
            assert b"[y/N]" not in terminal.written


@needs_docker
@pytest.mark.integration
def test_without_a_terminal_people_are_told_the_flag(make_repo: MakeRepo) -> None:
    # its own content: the engine shares layers, and the build of another test could remove them meanwhile
    folder = make_repo({**FILES, "a.txt": "built without a terminal\n"})
    told = run("sandbox", "build", "--repo", str(folder))
    assert "give --dockerfile build" in told.stderr
    built = run("sandbox", "build", "--repo", str(folder), "--dockerfile", "build")
    assert "Dockerfile is not used: its image has no python3" in built.stderr

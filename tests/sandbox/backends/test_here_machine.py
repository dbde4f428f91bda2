"""What commands without isolation get from the user: variables and ignored files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from m3agent.sandbox.backends import here_machine
from m3agent.sandbox.backends.here_machine import (
    add_ignored,
    environment_for_commands,
    in_container,
    wanted_beside,
)
from tests.agent.repositories import write_files


@pytest.fixture
def python_on_path(tmp_path: Path) -> str:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python3"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    return str(tmp_path / "bin")


def test_secrets_and_settings_of_m3agent_stay_with_it(python_on_path: str) -> None:
    given = {
        "PATH": python_on_path,
        "M3AGENT_ENDPOINT": "http://localhost:1/v1",
        "M3AGENT_API_KEY": "sk-1",
        "OPENAI_API_KEY": "sk-2",
        "GITHUB_TOKEN": "t",
        "db_password": "p",
        "OLDPWD": "/home",
        "JAVA_HOME": "/opt/java",
    }
    assert environment_for_commands(given) == {"PATH": python_on_path, "JAVA_HOME": "/opt/java"}


def test_the_environment_of_m3agent_itself_is_left(
    python_on_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    own = f"{tmp_path}/venv/bin"
    found = environment_for_commands({"PATH": f"{own}:{python_on_path}", "VIRTUAL_ENV": f"{tmp_path}/venv"})
    assert found == {"PATH": python_on_path}
    other = {"PATH": python_on_path, "VIRTUAL_ENV": "/opt/other"}
    assert environment_for_commands(other) == other


def test_without_a_python_the_one_of_m3agent_comes_last(tmp_path: Path) -> None:
    found = environment_for_commands({"PATH": str(tmp_path)})
    assert found["PATH"] == f"{tmp_path}:{Path(sys.executable).parent}"


def test_a_home_that_cannot_be_written_is_no_home(python_on_path: str, tmp_path: Path) -> None:
    assert "HOME" not in environment_for_commands({"PATH": python_on_path, "HOME": f"{tmp_path}/missing"})
    assert environment_for_commands({"PATH": python_on_path, "HOME": str(tmp_path)})["HOME"] == str(tmp_path)


def test_what_was_built_or_installed_comes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    target.mkdir()
    write_files(
        source,
        {
            "node_modules/a/index.js": "1",
            "web/node_modules/b/index.js": "2",
            "build/lib.so": "x" * 100,
            "large.bin": "y" * 1000,
            "speedups.so": "z",
        },
    )
    (source / "link").symlink_to("speedups.so")
    monkeypatch.setattr(here_machine, "MOST_COPIED", 500)
    ignored = ("build", "gone", "large.bin", "link", "node_modules", "speedups.so", "web/node_modules")
    add_ignored(source, ignored, target)
    assert (target / "node_modules").readlink() == source / "node_modules"
    assert (target / "web/node_modules/b/index.js").read_text() == "2"
    assert (target / "build/lib.so").stat().st_ino != (source / "build/lib.so").stat().st_ino
    assert (target / "link").readlink() == Path("speedups.so")
    assert (target / "speedups.so").read_text() == "z"
    assert not os.path.lexists(target / "large.bin")


def test_the_packages_of_a_workspace_are_those_of_the_work_tree(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    write_files(
        source,
        {
            "packages/b/index.js": "theirs",
            "node_modules/plain/package.json": '{"name": "plain"}',
            "node_modules/@x/needs-b/package.json": '{"peerDependencies": {"@own/b": "1"}}',
            "node_modules/.pnpm/c@1/node_modules/c/package.json": '{"dependencies": {"@own/b": "1"}}',
        },
    )
    write_files(target, {"packages/b/index.js": "patched"})
    links = {
        "node_modules/@own/b": "../../packages/b",
        "node_modules/.bin/b": "../../packages/b/index.js",
        "node_modules/.pnpm/c@1/node_modules/d": "../../../plain",
        "packages/a/node_modules/b": str(source / "packages/b"),
        "packages/a/node_modules/c": "../../../node_modules/.pnpm/c@1/node_modules/c",
    }
    for path, text in links.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).symlink_to(text)
    add_ignored(source, ("node_modules", "packages/a/node_modules"), target)
    for path in ("node_modules/@own/b/index.js", "node_modules/.bin/b", "packages/a/node_modules/b/index.js"):
        assert (target / path).read_text() == "patched"
    assert (target / "node_modules/plain").readlink() == source / "node_modules/plain"
    for path in ("node_modules/@x/needs-b", "packages/a/node_modules/c"):
        assert (target / path / "package.json").resolve().is_relative_to(target), path


def test_a_loop_of_links_among_packages_does_no_harm(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    write_files(source, {"packages/b/index.js": "", "node_modules/plain/x.js": "x"})
    (source / "node_modules/b").symlink_to("../packages/b")
    for name, text in (("loop", "loop"), ("one", "two"), ("two", "one"), ("@s", "@s")):
        (source / "node_modules" / name).symlink_to(text)
    add_ignored(source, ("node_modules",), target)
    assert (target / "node_modules/plain/x.js").read_text() == "x"


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("node_modules", True),
        ("web/node_modules", True),
        (".venv", True),
        ("src/fast.so", True),
        ("build", True),
        ("src/__pycache__", False),
        (".pytest_cache", False),
        (".tox", False),
        (".coverage", False),
        ("old.pyc", False),
    ],
)
def test_caches_do_not(path: str, wanted: bool) -> None:
    assert wanted_beside(path) == wanted


def test_containers_are_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "container"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(here_machine, "CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(here_machine, "MARKS", (f"{tmp_path}/mark",))
    assert not in_container()
    (tmp_path / "cgroup").write_text("0::/\n")
    assert not in_container()
    (tmp_path / "cgroup").write_text("0::/docker/0123\n")
    assert in_container()
    (tmp_path / "cgroup").unlink()
    monkeypatch.setenv("container", "podman")
    assert in_container()
    monkeypatch.delenv("container")
    (tmp_path / "mark").touch()
    assert in_container()

"""The choice of the kind of sandbox on this machine, and the messages if none works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from m3agent.sandbox.backends.bwrap_machine import BwrapMachine
from m3agent.sandbox.backends.docker_machine import DockerMachine
from m3agent.sandbox.backends.factory import Backend, SandboxSpec, choose_backend, new_sandbox, parse_bytes
from m3agent.sandbox.errors import EngineUnavailable
from m3agent.sandbox.store.workspace import Workspace
from tests.conftest import docker_here

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4g", 4 << 30),
        ("512M", 512 << 20),
        ("64k", 64 << 10),
        ("64kb", 64 << 10),
        (" 1000 ", 1000),
        ("7b", 7),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "g", "-1g", "1.5g", "4t", "4 g", "0x10", "1g2"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=f"'{text}' is not a size: write it like 4g or 512m"):
        parse_bytes(text)


async def test_best_working_backend_is_chosen() -> None:
    said: list[str] = []
    best = "docker" if docker_here() else "bwrap"
    assert await choose_backend(SandboxSpec(), said.append) == best
    assert bool(said) == (best != "docker")


async def test_without_an_engine_bubblewrap_and_a_note(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    said: list[str] = []
    if backend == "bwrap":
        assert await choose_backend(SandboxSpec(), said.append) == "bwrap"
        assert len(said) == 1
        assert f"no Docker engine answers at DOCKER_HOST=unix://{tmp_path}/no.sock" in said[0]
        assert said[0].endswith(": using bubblewrap")
    # an image needs an engine: bubblewrap would silently run another environment
    with pytest.raises(EngineUnavailable, match="no Docker engine answers"):
        await choose_backend(SandboxSpec(image="some:image"), said.append)
    assert await choose_backend(SandboxSpec(backend), said.append) == backend, (
        "what is named is not second-guessed"
    )


async def test_with_neither_it_says_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        EngineUnavailable, match=r"no Docker engine answers .*; and bubblewrap is not installed: apt-get"
    ):
        await choose_backend(SandboxSpec(), lambda _: None)


async def test_sandbox_of_the_requested_kind(
    one_backend: Backend, workspace_of: Callable[[dict[str, str | bytes]], Workspace]
) -> None:
    workspace = workspace_of({"a.txt": "a\n"})
    kinds = {"docker": DockerMachine, "bwrap": BwrapMachine}
    sandbox = new_sandbox(one_backend, SandboxSpec(), workspace, lambda _: None)
    assert type(sandbox.machine) is kinds[one_backend]
    assert sandbox.machine.limits == SandboxSpec().limits
    async with sandbox:
        assert await sandbox.read("a.txt") == b"a\n"


async def test_missing_engine_is_reported_at_the_sandbox_start(
    workspace_of: Callable[[dict[str, str | bytes]], Workspace],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    with pytest.raises(EngineUnavailable, match=r"start it .* or use --sandbox bwrap"):
        async with new_sandbox("docker", SandboxSpec("docker"), workspace_of({"a": "a"}), lambda _: None):
            pass

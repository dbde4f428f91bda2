"""What code that a build runs can reach: its index and nothing of this machine."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from m3agent.sandbox.images.environment import find_environment
from m3agent.sandbox.images.image_build import PIDS
from m3agent.sandbox.images.indexes import find_indexes
from m3agent.sandbox.network.allow_list import EVERY_HOST
from tests.conftest import docker_here
from tests.sandbox.images.reach import FORK, REACH, WorkspaceOf, addresses_here, sandbox_from, service
from tests.servers.packages import PackageIndex, nosy_source

needs_docker = pytest.mark.skipif(not docker_here(), reason="no Docker engine answers")
pytestmark = pytest.mark.integration


@pytest.mark.slow  # quick: test_a_command_reaches_nothing_of_this_machine_and_has_limits
@needs_docker
async def test_a_source_distribution_reaches_nothing_of_this_machine_and_has_limits(
    index: PackageIndex, workspace_of: WorkspaceOf, tmp_path: Path
) -> None:
    said: list[str] = []
    with service() as (port, seen):
        hosts = sorted(addresses_here() | {"localhost", "169.254.169.254", "10.0.0.1", "[fd00::1]"})
        assert index.host in hosts, "the engine's bridge is not among them"
        reached = REACH.format(hosts=hosts, port=port) + FORK
        index.add(
            nosy_source(reached + "reached = look()\ndef look(): return [reached, count_processes()]\n")
        )
        workspace = workspace_of({"requirements.txt": "nosy\n"})
        image = await find_environment(workspace, tmp_path, said.append)
        async with sandbox_from(image, workspace) as sandbox:
            done = await sandbox.exec(["python3", "-c", "import json, nosy; print(json.dumps(nosy.SEEN))"])
            variables = await sandbox.exec(["env"])
        answers, processes = json.loads(done.stdout)
        for host, (direct, proxied) in answers.items():
            assert direct != "reached", host
            assert "not a public address of another machine" in proxied, (host, proxied)
        assert seen == []
    assert any(line.startswith("network of the build: refused: ") for line in said)
    assert 0 < processes < PIDS
    assert b"proxy" not in variables.stdout.lower(), "what only the build needs became part of the image"


@needs_docker
@pytest.mark.slow  # quick: every test with `reachable_index` reaches the index that the user's configuration names
async def test_this_machines_registry_is_reachable(
    own_images: None, workspace_of: WorkspaceOf, tmp_path: Path
) -> None:
    hosts = [host.host for host in find_indexes(os.environ, Path.home()).hosts if host.anywhere]
    try:
        socket.create_connection((hosts[0], 443), 10).close()
    except (IndexError, OSError):
        pytest.skip("this machine reaches no registry of packages")
    workspace = workspace_of({"requirements.txt": "iniconfig\nsix\n"})
    assert await find_environment(workspace, tmp_path, lambda _: None) is not None


def test_the_hosts_of_the_users_own_configuration_may_be_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without npm, whose default registry would be named too
    lists = tmp_path / "apt" / "sources.list.d"
    lists.mkdir(parents=True)
    (lists / "one.list").write_text(
        "# deb http://no.test/debian a\ndeb [arch=amd64] http://apt.test/debian a main\n"
    )
    (lists / "two.sources").write_text("Types: deb\nURIs: https://other.test:8443/debian\n")
    env = {
        "UV_DEFAULT_INDEX": "http://10.1.2.3:3141/root/",
        "UV_INDEX": "http://localhost:1/ https://[fd00::5]/simple",
    }
    every, *named = find_indexes(env, tmp_path, tmp_path).hosts
    assert every == EVERY_HOST
    assert not every.anywhere
    assert all(host.anywhere for host in named)
    assert [str(host) for host in named] == [
        "10.1.2.3:3141", "[fd00::5]:80,443", "apt.test:80,443", "other.test:8443"
    ]  # fmt: skip


def test_the_default_index_is_the_one_of_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    _, *named = find_indexes({}, tmp_path, tmp_path).hosts
    assert [host.anywhere for host in named] == [True, True], "pip's source no longer names its index"

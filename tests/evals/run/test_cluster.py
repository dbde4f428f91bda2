"""Runs on a Ray cluster of two nodes on this machine, each with its own processes and state folder."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from m3agent.evals.data.load import load
from m3agent.evals.data.run_folder import RunFolder
from m3agent.evals.run.cluster import node, ray_cluster
from m3agent.evals.run.cluster.node import AWAY, RECEIVED, Worker, arrived, packed, parcel, unpack
from m3agent.evals.run.parts import AttemptParts
from m3agent.util.errors import EnvironmentFault
from tests.conftest import alone, docker_here, later
from tests.evals.data_rows import write_program
from tests.evals.run.test_run import outcomes
from tests.evals.small import PROGRAMS, instance
from tests.servers.ray_nodes import RayNodes, ray_nodes

slow = pytest.mark.slow
here = pytest.mark.skipif(sys.platform != "linux" or sys.version_info >= (3, 15), reason="no Ray for it")


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """The small programs as a benchmark folder for the command."""
    for name, (code, test, issue) in PROGRAMS.items():
        gold = code.replace("a - b", "a + b").replace("v < best", "v > best")
        write_program(tmp_path / "benchmark", name, code, gold, test, issue)
    return tmp_path / "benchmark"


def m3agent(state: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "m3agent.agent", "eval", "run", *arguments],
        env={**os.environ, "M3AGENT_STATE": str(state), "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    out, err = process.communicate(timeout=170)
    assert process.returncode == code, err
    assert "Traceback" not in err
    return out, err


def own_agent(programs: Path, output: Path, *more: str) -> list[str]:
    given = ["--engine", "embedded", "--candidates", "100", "--seed", "7", "--workers", "2"]
    return [str(programs), "-o", str(output), *given, *more]


@pytest.fixture
def ray_alone() -> Iterator[None]:
    """Keep other tests from starting a cluster: the Ray client servers of every cluster use ports from 23000 on."""
    with alone("ray"):
        yield


@pytest.fixture
def cluster(ray_alone: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    if not docker_here():
        pytest.skip("grading needs a Docker engine")
    with ray_nodes(tmp_path_factory.mktemp("ray"), 2) as made:
        yield made


def left(cluster: RayNodes) -> list[Path]:
    """Return the files of attempts that remain on the nodes."""
    return [path for state in cluster.states if (state / AWAY).is_dir() for path in (state / AWAY).iterdir()]


@slow
@here
def test_results_are_those_of_one_machine(cluster: RayNodes, programs: Path, tmp_path: Path) -> None:
    local, away = tmp_path / "local", tmp_path / "away"
    ended(m3agent(tmp_path / "state", *own_agent(programs, local)))
    out, err = ended(
        m3agent(tmp_path / "state", *own_agent(programs, away, "--cluster", cluster.address, "--json"))
    )
    assert json.loads(out)["verdicts"]["resolved"] == 2
    assert f"cluster of 2 nodes at {cluster.address}" in err
    assert outcomes(away) == outcomes(local)
    for folder in (local, away):  # all files of an attempt are here, including its log
        for result in RunFolder.read(folder).results():
            assert result.session is not None and (folder / result.session / "events.jsonl").is_file()
    files = [{str(p.relative_to(f)) for p in f.glob("attempts/*/1/*")} for f in (local, away)]
    assert files[0] == files[1]
    assert all((state / RECEIVED).is_dir() for state in cluster.states), "one was made on each"
    assert not left(cluster)


@slow
@here
@pytest.mark.timeout(420)
def test_a_node_that_is_lost_and_an_interruption(cluster: RayNodes, programs: Path, tmp_path: Path) -> None:
    (tmp_path / "agent.sh").write_text(
        f"echo $$ >> {tmp_path}/pids; until [ -f {tmp_path}/go ]; do sleep 0.1; done; "
        'sed -i "s/a - b/a + b/; s/v < best/v > best/" *.py'
    )
    agent = ["--agent-command", f"sh {tmp_path}/agent.sh {{issue}}", "--workers", "2"]
    arguments = [str(programs), "-o", str(tmp_path / "run"), *agent, "--cluster", cluster.address]

    def begun() -> list[int]:
        told = tmp_path / "pids"
        until = time.monotonic() + 150
        while not told.exists() or len(told.read_text().split()) < 2:
            if process.poll() is not None or time.monotonic() > until:
                process.send_signal(signal.SIGINT)
                pytest.fail(f"the agents do not begin: {process.communicate(timeout=60)}")
            time.sleep(0.05)
        pids = told.read_text().split()
        told.unlink()
        return [int(pid) for pid in pids]

    process = m3agent(tmp_path / "state", *arguments)
    pids = begun()
    process.send_signal(signal.SIGINT)
    ended(process, 130)
    assert not any(Path("/proc", str(pid)).exists() for pid in pids), "they ended with it"
    assert not left(cluster)

    process = m3agent(tmp_path / "state", *arguments)
    begun()
    cluster.lose(1)
    (tmp_path / "go").touch()
    (tmp_path / "pids").touch()
    _, err = ended(process, 3)
    assert "its node failed" in err and "no score, since" in err
    out = ""
    for _ in range(5):  # for a while the cluster may still send attempts to the dead node
        process = m3agent(tmp_path / "state", *arguments)
        out, err = process.communicate(timeout=100)
        if process.returncode == 0:
            break
        assert "no score, since" in err, err
    assert out.startswith("resolved 2 of 2")


@pytest.mark.integration
@here
@pytest.mark.parametrize(
    ("address", "code", "said"),
    [
        later("http://head:10001", 2, "takes the address of a Ray cluster, like ray://head:10001"),
        later("ray://head", 2, "takes the address of a Ray cluster"),
        later("ray://head:99999999", 2, "takes the address of a Ray cluster"),
        later("ray://127.0.0.1:1", 3, "there is no Ray cluster at ray://127.0.0.1:1 (connection refused)"),
    ],
)
def test_invalid_cluster_address(programs: Path, tmp_path: Path, address: str, code: int, said: str) -> None:
    arguments = own_agent(programs, tmp_path / "run", "--cluster", address)
    assert said in ended(m3agent(tmp_path / "state", *arguments), code)[1]


class ShyRay:
    """Takes the place of the package ray: `init` fails a number of times, then there is one node that is ready."""

    def __init__(self, failures: int) -> None:
        self.failures, self.inits, self.shutdowns = failures, 0, 0

    def init(self, address: str, **_: object) -> None:
        self.inits += 1
        if self.inits <= self.failures:
            raise ConnectionAbortedError("Starting Ray client server failed.")

    def remote(self, worker: type) -> type:
        return worker

    def shutdown(self) -> None:
        self.shutdowns += 1


@pytest.mark.parametrize("failures", [0, 2, 3])
def test_a_head_that_cannot_serve_a_client_at_once_is_asked_again(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = ShyRay(failures)
    monkeypatch.setitem(sys.modules, "ray", cast("ModuleType", ray))
    monkeypatch.setattr(ray_cluster, "_knock", lambda address: None)
    monkeypatch.setattr(ray_cluster, "_ready", lambda ray: 1)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    said: list[str] = []
    parts = cast("Callable[[Callable[[str], None]], AttemptParts]", None)
    connecting = ray_cluster.connected("ray://head:10001", parts, said.append)
    if failures < 3:
        with connecting:
            assert said == ["cluster of 1 node at ray://head:10001"]
        assert (ray.inits, ray.shutdowns) == (failures + 1, failures + 1)
    else:
        with pytest.raises(EnvironmentFault, match="cannot be used: Starting Ray client server failed"):
            connecting.__enter__()
        assert (ray.inits, ray.shutdowns) == (3, 2)


async def test_a_stop_while_the_code_arrives_is_not_lost(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arriving, go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(*_: object) -> None:
        loop.call_soon_threadsafe(arriving.set)
        go.wait()

    monkeypatch.setattr(node, "arrived", slow)
    worker = Worker(instance(programs, "adder"), 1, cast("Any", pytest.fail), b"sent")
    work = asyncio.create_task(worker.work())
    await arriving.wait()
    await worker.stop()
    go.set()
    assert await work is None


def test_code_travels_and_is_the_same_there(programs: Path, tmp_path: Path) -> None:
    from m3agent.evals.code.checkout import checkout

    task = load(str(programs), ids=("adder",))[0].task
    sent = parcel(task, tmp_path / "here")
    assert sent == parcel(task, tmp_path / "here") == parcel(task, tmp_path / "elsewhere")
    there = arrived(task, sent, tmp_path / "there")
    assert there.source.kind == "archive" and str(tmp_path / "there") in there.source.location
    proofs = [checkout(one, tmp_path / name) for one, name in ((task, "a"), (there, "b"))]
    assert proofs[0].clean and proofs[1].clean
    heads = [
        subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=tmp_path / name, capture_output=True, text=True, check=True
        )
        for name in ("a", "b")
    ]
    assert heads[0].stdout == heads[1].stdout
    assert (tmp_path / "b/adder.py").read_text() == PROGRAMS["adder"][0]


def test_a_folder_comes_back_whole_and_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "a/b/empty").mkdir(parents=True)
    (tmp_path / "a/b/run.sh").write_text("x")
    (tmp_path / "a/b/run.sh").chmod(0o755)
    (tmp_path / "a/out").symlink_to("/etc")
    (tmp_path / "c").mkdir()
    unpack(packed(tmp_path / "a"), tmp_path / "c")
    assert sorted(str(path.relative_to(tmp_path / "c")) for path in (tmp_path / "c").rglob("*")) == [
        *("b", "b/empty", "b/run.sh")
    ]
    assert os.access(tmp_path / "c/b/run.sh", os.X_OK)

"""Jobs under a real Slurm of two nodes, with a fake vLLM."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from m3agent.serving.launch.job import EngineJob, Start
from m3agent.serving.launch.slurm import OUTPUT, SCRIPT, SUBMIT, slurm_start
from m3agent.serving.plan.recipe import recipe
from m3agent.util.errors import EnvironmentFault, UsageError
from tests.servers.engine_image import script
from tests.servers.ports import free_ports
from tests.servers.seen import seen as answered
from tests.servers.slurm import PATIENCE, OwnSlurm

MODEL = "MiniMaxAI/MiniMax-M3"


@pytest.fixture(scope="module")
def slurm() -> Iterator[OwnSlurm]:
    reason = OwnSlurm.barred_by()
    if reason:
        pytest.skip(reason)
    with OwnSlurm() as own:
        yield own


@pytest.fixture
def environ(slurm: OwnSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of a user who has installed the fake engine."""
    # all nodes are this machine, where another test may use the usual port
    monkeypatch.setattr("m3agent.serving.launch.slurm.MASTER_PORT", free_ports(1)[0])
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_bytes(script())
    program.chmod(0o755)
    return {**slurm.environ, "PATH": f"{program.parent}{os.pathsep}{slurm.environ['PATH']}"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "a job's folder"
    path.mkdir()
    return path


def job(*options: str, nodes: int = 1, gpus: int = 4, host: str = "0.0.0.0", **fields: Any) -> EngineJob:
    [port] = free_ports(1)
    argv = ("vllm", "serve", MODEL, *options, "--host", host, "--port", str(port))
    return EngineJob("vllm", argv, {"SECRET": "s e'c\"ret"}, {}, host, port, gpus, nodes, **fields)


@contextlib.contextmanager
def running(start: Start, environ: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        start.argv,
        env={**environ, **start.env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # an sbatch without a controller waits forever
        process.wait()
        assert start.cleanup is not None
        subprocess.run(start.cleanup, env=environ, check=True)


def seen(start: Start) -> dict[str, Any]:
    """Wait until the server answers at the address that the job wrote. Return its arguments and environment."""
    url_file = start.url_file
    assert url_file is not None
    return answered(lambda: url_file.read_text().strip().removesuffix("/v1") + "/seen", PATIENCE)


@pytest.mark.slow
def test_an_engine_runs_on_a_node_of_slurms_choice_with_its_gpus_and_its_secret(
    slurm: OwnSlurm, environ: dict[str, str], folder: Path
) -> None:
    start = slurm_start(
        job("--tensor-parallel-size", "4"), folder=folder, environ=environ, extra=["--time=10"]
    )
    with running(start, environ) as process:
        found = seen(start)
        asked = slurm.run("squeue", "--noheader", "--format=%D %l %b %h").split()
        assert asked == ["1", "10:00", "gres:gpu:4", "NO"]
        assert found["argv"][:4] == ["serve", MODEL, "--tensor-parallel-size", "4"]
        assert found["env"]["SECRET"] == "s e'c\"ret"
        assert found["env"]["SLURM_GPUS_ON_NODE"] == "4"
        assert found["cwd"] == str(folder)
        process.terminate()
        text = process.communicate()[0].decode()
    assert "Application startup complete." in text
    slurm.wait_until_empty()  # the command itself cancels the job
    assert "Shutting down" in (folder / OUTPUT).read_text(), "the engine was told to end"
    written = [path for path in folder.iterdir() if path.name in (SUBMIT, SCRIPT)]
    assert len(written) == 2
    assert all(path.stat().st_mode & 0o077 == 0 and "s e'c" not in path.read_text() for path in written)


@pytest.mark.slow
def test_two_nodes_find_each_other_and_the_first_answers(
    slurm: OwnSlurm, environ: dict[str, str], folder: Path
) -> None:
    start = slurm_start(job("--tensor-parallel-size", "8", nodes=2, gpus=8), folder=folder, environ=environ)
    with running(start, environ) as process:
        found = seen(start)
        assert start.url_file is not None
        address = start.url_file.read_text().split("/")[2].rpartition(":")[0]
        assert found["env"]["SLURM_NODEID"] == "0"
        assert found["env"]["VLLM_HOST_IP"] == address
        assert "--headless" not in found["argv"]
        (other,) = map(json.loads, found["others"])
        assert other == {"rank": 1, "headless": True, "address": address}
        assert slurm.run("squeue", "--noheader", "--format=%D %b").split() == ["2", "gres:gpu:4"]
        process.terminate()
        process.communicate()
    slurm.wait_until_empty()


@pytest.mark.slow
def test_a_node_that_fails_takes_the_others_with_it(
    slurm: OwnSlurm, environ: dict[str, str], folder: Path
) -> None:
    start = slurm_start(job("--fail-rank", "1", nodes=2, gpus=8), folder=folder, environ=environ)
    with running(start, environ) as process:
        text = process.communicate(timeout=PATIENCE)[0].decode()
        assert process.returncode != 0
        assert "Free memory on device is less than desired" in text
        assert not slurm.run("squeue", "--noheader", "--states=running")


@pytest.mark.slow
def test_a_killed_wait_leaves_the_job_to_the_cleanup(
    slurm: OwnSlurm, environ: dict[str, str], folder: Path
) -> None:
    start = slurm_start(job(), folder=folder, environ=environ)
    with running(start, environ) as process:
        seen(start)
        process.kill()
        process.wait()
        assert slurm.run("squeue", "--noheader")
    slurm.wait_until_empty()


@pytest.mark.slow
def test_a_job_that_waits_for_nodes_says_why(slurm: OwnSlurm, environ: dict[str, str], folder: Path) -> None:
    start = slurm_start(job(), folder=folder, environ=environ, extra=["--begin=now+1hour"])
    with running(start, environ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().decode() for _ in range(2)]
        assert "Slurm: PENDING (BeginTime)\n" in lines
        assert start.url_file is not None and not start.url_file.exists()
        process.terminate()
        process.communicate()
    slurm.wait_until_empty()


@pytest.mark.slow
def test_refusal_of_slurm_is_in_the_log(environ: dict[str, str], folder: Path) -> None:
    start = slurm_start(job(gpus=9), folder=folder, environ=environ, extra=["--partition=nowhere"])
    with running(start, environ) as process:
        text = process.communicate(timeout=PATIENCE)[0].decode()
    assert process.returncode == 1
    assert "invalid partition specified: nowhere" in text


@pytest.mark.slow
def test_a_folder_that_the_node_does_not_see_is_named(
    slurm: OwnSlurm, environ: dict[str, str], folder: Path
) -> None:
    start = slurm_start(job(), folder=folder, environ=environ, extra=["--output=/no/such/folder/log"])
    with running(start, environ) as process:
        text = process.communicate(timeout=PATIENCE)[0].decode()
    assert process.returncode != 0
    assert "The job left no log" in text and str(folder) in text


def with_programs(folder: Path, *programs: str) -> dict[str, str]:
    """Return an environment with only these programs, which do nothing."""
    folder.mkdir()
    for program in programs:
        (folder / program).symlink_to(shutil.which("true") or "/bin/true")
    return {"PATH": str(folder)}


def test_missing_slurm_has_its_own_message(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(EnvironmentFault, match="There is no squeue on this machine"):
        slurm_start(job(), folder=folder, environ=with_programs(tmp_path / "bin", "sbatch"))


def test_a_server_that_only_its_own_node_would_reach_is_refused(tmp_path: Path, folder: Path) -> None:
    environ = with_programs(tmp_path / "bin", "sbatch", "squeue", "scancel")
    for host in ("127.0.0.1", "localhost", "::1"):
        with pytest.raises(UsageError, match=r"--host 0\.0\.0\.0"):
            slurm_start(job(host=host), folder=folder, environ=environ)
    assert not list(folder.iterdir())


@pytest.mark.integration
def test_tensorrt_llm_keeps_its_srun_and_gets_this_jobs_folders(tmp_path: Path) -> None:
    environ = with_programs(tmp_path / "bin", "sbatch", "squeue", "scancel")
    guide = recipe("trtllm-gb200-2x4")
    given = EngineJob(
        "trtllm", guide.argv, guide.env, guide.files, "0.0.0.0", 8000, 8, model=guide.checkpoint
    )
    start = slurm_start(given, folder=tmp_path, environ=environ, extra=["--account=m3"])
    assert start.env == {"MODEL": "/models/MiniMax-M3"}
    submit, text = (tmp_path / SUBMIT).read_text(), (tmp_path / SCRIPT).read_text()
    assert "--nodes=2 --ntasks-per-node=4 --gres=gpu:4 --account=m3" in submit
    line = text.splitlines()[-1]
    assert line.startswith("srun -N 2 --ntasks 8 --ntasks-per-node 4 --mpi=pmix --gres=gpu:4")
    mounts = f"/models/MiniMax-M3:/models/MiniMax-M3,{tmp_path}:{tmp_path}"
    assert f"--container-mounts={mounts} --container-workdir {tmp_path} bash -c" in line
    assert "TRTLLM_DIR" not in text
    assert f'"${{EXTRA_LLM_API_FILE:={tmp_path}/tep.yaml}}"' in text
    subprocess.run(["bash", "-n", str(tmp_path / SCRIPT)], check=True)


def test_tensorrt_llm_wants_the_checkpoint_in_a_folder(tmp_path: Path) -> None:
    environ = with_programs(tmp_path / "bin", "sbatch", "squeue", "scancel")
    guide = recipe("trtllm-gb200-2x4")
    given = EngineJob("trtllm", guide.argv, {"MODEL": guide.checkpoint}, guide.files, "0.0.0.0", 8000, 8)
    with pytest.raises(UsageError, match="is not a folder"):
        slurm_start(given, folder=tmp_path, environ=environ)

"""Jobs in real containers, with a fake vLLM. Without GPUs, only their options are tested.

What needs an image is slow: `test_prepare.py` tests the plans' commands without one.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from m3agent.serving.launch.container import container_start, gpu_options
from m3agent.serving.launch.job import EngineJob, Start
from m3agent.serving.plan.recipe import recipe
from m3agent.util.errors import EnvironmentFault, UsageError
from tests.conftest import docker_here
from tests.servers.engine_image import engine_image
from tests.servers.ports import free_ports
from tests.servers.seen import PATIENCE
from tests.servers.seen import seen as answered

NAME = f"m3agent-test-{uuid.uuid4().hex[:8]}"  # unique: tests may run twice at the same time
IMAGE = f"{NAME}:1"


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    if not docker_here():
        pytest.skip("no Docker engine answers on this machine")
    with engine_image(IMAGE) as tag:
        yield tag


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "job, with a comma"
    path.mkdir()
    return path


def job(
    *options: str, model: str = "MiniMaxAI/MiniMax-M3", host: str = "127.0.0.1", **fields: Any
) -> EngineJob:
    [port] = free_ports(1)
    argv = ("vllm", "serve", model, *options, "--host", host, "--port", str(port))
    values: dict[str, Any] = {"env": {}, "files": {}, "gpus": 0, "model": model, **fields}
    return EngineJob("vllm", argv, host=host, port=port, **values)


@contextlib.contextmanager
def running(start: Start, environ: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        start.argv, env={**environ, **start.env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert start.cleanup is not None
        subprocess.run(start.cleanup, check=False, capture_output=True)


def seen(port: int, *paths: Path) -> dict[str, Any]:
    """Return the server's arguments and environment, and what it sees of some folders."""
    query = ",".join(map(str, paths))
    return answered(lambda: f"http://127.0.0.1:{port}/seen?{query}")


def containers(name: str) -> str:
    words = ("docker", "ps", "--all", "--quiet", "--filter", f"name={name}")
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.docker
def test_an_engine_in_a_container_answers_on_this_machines_loopback_only(
    image: str, folder: Path, own_state: Path
) -> None:
    environ = {**os.environ, "HF_TOKEN": "hf_of mine"}
    given = job(env={"VLLM_API_KEY": "a key"})
    start = container_start(given, image=image, name=f"{NAME}-1", folder=folder, environ=environ)
    assert not any("a key" in word or "hf_of mine" in word for word in start.argv)
    with running(start, environ) as process:
        cache = own_state / ".cache" / "huggingface"
        found = seen(given.port, cache)
        assert found["argv"][-2:] == ["--host", "0.0.0.0"]
        assert found["env"]["VLLM_API_KEY"] == "a key"
        assert found["env"]["HF_TOKEN"] == "hf_of mine"
        assert found["env"]["HF_HOME"] == str(cache)
        assert found["files"] == {str(cache): [True, []]}
        words = ("docker", "port", f"{NAME}-1")
        published = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        assert published == f"{given.port}/tcp -> 127.0.0.1:{given.port}\n"
        process.terminate()
        text = process.communicate(timeout=PATIENCE)[0].decode()
    assert process.returncode == 0
    assert "Application startup complete." in text
    assert "Shutting down" in text, "the engine inside was told to end"
    assert not containers(f"{NAME}-1")


@pytest.mark.slow  # quick: test_serve.py kills the client of a server without a container
@pytest.mark.docker
def test_a_killed_client_leaves_the_container_to_the_cleanup(image: str, folder: Path) -> None:
    given = job()
    start = container_start(given, image=image, name=f"{NAME}-2", folder=folder, environ=os.environ)
    with running(start, os.environ) as process:
        seen(given.port)
        process.kill()
        process.wait()
        assert containers(f"{NAME}-2")
    assert not containers(f"{NAME}-2")


@pytest.mark.slow
@pytest.mark.docker
def test_an_engine_that_fails_hands_out_its_code_and_its_words(image: str, folder: Path) -> None:
    given = job("--fail-rank", "0")
    start = container_start(given, image=image, name=f"{NAME}-3", folder=folder, environ=os.environ)
    with running(start, os.environ) as process:
        text = process.communicate(timeout=PATIENCE)[0].decode()
    assert process.returncode == 1
    assert "Free memory on device is less than desired" in text


@pytest.mark.slow
@pytest.mark.docker
def test_a_checkpoint_in_a_folder_is_there_with_what_it_links_to_and_cannot_be_written(
    image: str, folder: Path, tmp_path: Path
) -> None:
    blobs, snapshot = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "main"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (blobs / "0a1b").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/0a1b")
    (folder / "agg.sh").write_text("#!/bin/bash\n")
    given = job(model=str(snapshot), files={"agg.sh": "#!/bin/bash\n"})
    start = container_start(given, image=image, name=f"{NAME}-4", folder=folder, environ=os.environ)
    with running(start, os.environ) as process:
        found = seen(given.port, snapshot, blobs, tmp_path / "hub" / "else")
        process.terminate()
        process.wait()
    assert found["files"] == {
        str(snapshot): [False, ["config.json"]],
        str(blobs): [False, ["0a1b"]],
        str(tmp_path / "hub" / "else"): False,
    }
    assert found["cwd"] == str(folder)
    assert "HF_HOME" not in found["env"], "nothing has to be fetched"


@pytest.mark.slow
@pytest.mark.docker
def test_a_checkpoint_in_hugging_faces_cache_brings_the_cache(
    image: str, folder: Path, own_state: Path
) -> None:
    snapshot = own_state / "hf" / "hub" / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    environ = {**os.environ, "HF_HOME": str(own_state / "hf")}
    start = container_start(
        job(model=str(snapshot)), image=image, name=f"{NAME}-5", folder=folder, environ=environ
    )
    assert f"type=bind,source={own_state}/hf,target={own_state}/hf" in start.argv


def test_models_may_be_elsewhere_than_the_rest_of_hugging_faces_cache(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "models")}
    start = container_start(job(), image="i:1", name="n", folder=tmp_path, environ=environ, ready=False)
    for place in (tmp_path / "models", tmp_path / ".cache" / "huggingface"):
        assert f"type=bind,source={place},target={place}" in start.argv
    assert start.env["HF_HUB_CACHE"] == str(tmp_path / "models")
    assert "HF_HUB_CACHE" in start.argv
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.docker
def test_a_draft_comes_with_the_checkpoint(image: str, folder: Path, own_state: Path) -> None:
    here, draft = own_state / "m3", own_state / "draft"
    here.mkdir()
    draft.mkdir()
    environ = {**os.environ, "HF_HOME": str(own_state / "hf")}
    cache = f"type=bind,source={own_state}/hf,target={own_state}/hf"
    for model, brings_cache in ((str(draft), False), ("someone/draft", True)):
        start = container_start(
            job(model=str(here), draft=model), image=image, name=f"{NAME}-6", folder=folder, environ=environ
        )
        assert f"type=bind,source={here},target={here},readonly" in start.argv
        assert (f"type=bind,source={draft},target={draft},readonly" in start.argv) is not brings_cache
        assert (cache in start.argv) is brings_cache


@pytest.mark.slow
@pytest.mark.docker
def test_missing_image_is_an_error_without_pull(folder: Path, image: str) -> None:
    missing = f"{NAME}-none:1"
    with pytest.raises(EnvironmentFault, match=f"pull it with `docker pull {missing}`"):
        container_start(job(), image=missing, name=f"{NAME}-6", folder=folder, environ=os.environ)
    start = container_start(
        job(), image=missing, name=f"{NAME}-6", folder=folder, environ=os.environ, pull=True
    )
    assert "--pull=never" not in start.argv


@pytest.mark.slow
@pytest.mark.docker
def test_the_port_is_published_where_the_job_listens(image: str, folder: Path) -> None:
    published = {"0.0.0.0": "0.0.0.0", "localhost": "127.0.0.1", "::1": "[::1]", "10.0.0.9": "10.0.0.9"}
    for host, shown in published.items():
        given = job(host=host)
        start = container_start(given, image=image, name="n", folder=folder, environ=os.environ)
        assert f"{shown}:{given.port}:{given.port}" in start.argv
    with pytest.raises(UsageError, match="not a name like 'gpu-box'"):
        container_start(job(host="gpu-box"), image=image, name="n", folder=folder, environ=os.environ)


@pytest.mark.slow
@pytest.mark.docker
def test_a_node_of_several_uses_this_machines_network(image: str, folder: Path) -> None:
    given = job("--nnodes", "2", nodes=2, gpus=8, host="10.0.0.9")
    start = container_start(given, image=image, name="n", folder=folder, environ=os.environ)
    assert "--network=host" in start.argv
    assert "--publish" not in start.argv
    assert start.argv[-4:-2] == ("--host", "10.0.0.9")
    assert '"device=0,1,2,3"' in start.argv, "its own half of the GPUs"


@pytest.mark.slow
@pytest.mark.docker
def test_the_gpus_that_were_chosen_are_not_chosen_among_again(image: str, folder: Path) -> None:
    given = job(gpus=2, env={"CUDA_VISIBLE_DEVICES": "4,6"})
    start = container_start(given, image=image, name="n", folder=folder, environ=os.environ)
    assert '"device=4,6"' in start.argv
    assert "CUDA_VISIBLE_DEVICES" not in start.argv


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.parametrize(
    ("name", "said"), [("vllm-nvidia-docker", "docker itself"), ("trtllm-gb200-2x4", "use --slurm")]
)
def test_a_recipe_that_brings_its_own_container_is_refused(
    image: str, folder: Path, name: str, said: str
) -> None:
    known = recipe(name)
    given = EngineJob(known.engine, known.argv, known.env, {}, "127.0.0.1", 8000, 8)
    with pytest.raises(UsageError, match=said):
        container_start(given, image=image, name="n", folder=folder, environ=os.environ)


@pytest.mark.slow
@pytest.mark.docker
def test_only_vllms_images_have_their_entrypoint_replaced(image: str, folder: Path) -> None:
    known = recipe("sglang-8gpu")
    given = EngineJob("sglang", known.argv, known.env, {}, "127.0.0.1", 8000, 8, model=known.checkpoint)
    start = container_start(given, image=image, name="n", folder=folder, environ=os.environ)
    at = start.argv.index(image)
    assert start.argv[at + 1 : at + 4] == known.argv[:3]
    assert "--entrypoint" not in start.argv
    start = container_start(job(), image=image, name="n", folder=folder, environ=os.environ)
    at = start.argv.index(image)
    assert start.argv[at - 2 : at + 2] == ("--entrypoint", "vllm", image, "serve")


@pytest.mark.slow
@pytest.mark.docker
def test_docker_reads_the_gpus_as_they_were_meant(image: str) -> None:
    options = gpu_options(2, vendor="nvidia", environ={"CUDA_VISIBLE_DEVICES": "4,6"})
    made = subprocess.run(
        ["docker", "create", *options, image, "x"], capture_output=True, text=True, check=True
    ).stdout.strip()
    try:
        words = ("docker", "inspect", "--format", "{{json .HostConfig}}", made)
        config = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    finally:
        subprocess.run(["docker", "rm", made], check=True, capture_output=True)
    assert config["DeviceRequests"][0]["DeviceIDs"] == ["4", "6"]
    assert config["ShmSize"] == 16 << 30
    assert {limit["Name"]: limit["Hard"] for limit in config["Ulimits"]} == {"memlock": -1, "stack": 67108864}


def test_nvidia_gpus_are_the_first_ones_or_those_that_are_visible() -> None:
    shared = ["--shm-size=16g", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864"]
    assert gpu_options(2, vendor="nvidia", environ={}) == ["--gpus", '"device=0,1"', *shared]
    visible = {"CUDA_VISIBLE_DEVICES": "4, GPU-5ab,7"}
    assert gpu_options(2, vendor="nvidia", environ=visible)[:2] == ["--gpus", '"device=4,GPU-5ab"']


def test_fewer_visible_gpus_than_are_needed_are_refused() -> None:
    for value in ("0,1", ""):
        with pytest.raises(UsageError, match=f"4 GPUs are needed, and CUDA_VISIBLE_DEVICES={value} names"):
            gpu_options(4, vendor="nvidia", environ={"CUDA_VISIBLE_DEVICES": value})


def test_amd_gpus_get_what_the_recipe_page_gives_them() -> None:
    options = gpu_options(8, vendor="amd", environ={})
    page = recipe("vllm-amd-docker").argv
    begin, end = page.index("--device"), page.index("-p")
    assert sorted(options) == sorted(page[begin:end])
    chosen = gpu_options(2, vendor="amd", environ={"HIP_VISIBLE_DEVICES": "2,3"})
    assert chosen == [*options, "--env", "HIP_VISIBLE_DEVICES"], "inside, all are there"


def program(folder: Path, text: str) -> dict[str, str]:
    """Return an environment in which `docker` is this shell script."""
    path = folder / "bin" / "docker"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return {"PATH": str(path.parent), "HOME": str(folder)}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "echo 'permission denied while trying to connect to the socket' >&2; exit 1",
            "You may not use Docker",
        ),
        (
            "echo 'Cannot connect to the Docker daemon. Is it running?' >&2; exit 1",
            "Docker does not answer .*Cannot connect.*: start it",
        ),
        ("exit 7", "Docker does not answer .exit code 7."),
    ],
)
def test_an_engine_that_does_not_answer_is_one_sentence(
    tmp_path: Path, folder: Path, text: str, said: str
) -> None:
    with pytest.raises(EnvironmentFault, match=said):
        container_start(job(), image="i", name="n", folder=folder, environ=program(tmp_path, text))


@pytest.mark.integration
def test_without_docker_it_says_where_to_get_it(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(EnvironmentFault, match="There is no docker on this machine: install Docker"):
        container_start(job(), image="i", name="n", folder=folder, environ={"PATH": str(tmp_path)})

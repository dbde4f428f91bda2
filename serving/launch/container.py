"""A job in a container of Docker's or Podman's.

The command-line client stays in the foreground and hands SIGTERM on to the engine inside. Variables go in by name, since
every user of a machine can read its command lines.
"""

from __future__ import annotations

import csv
import io
import ipaddress
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from m3agent.serving.launch.errors import LaunchError
from m3agent.serving.launch.job import EngineJob, Start
from m3agent.serving.plan.command import Command
from m3agent.serving.plan.recipe import Vendor

Runtime = Literal["docker", "podman"]

ANSWER_SECONDS = 30
"""What an engine may take to say that it is there."""

SHARED_MEMORY = "16g"
"""The most of /dev/shm; Docker's own 64 MiB are too few for the engines' processes (vLLM's recipe page for MiniMax-M3)."""

_PASSED_ON = ("HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_VISIBLE: Mapping[Vendor, tuple[str, ...]] = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
}
_NAMES = {"docker": "Docker", "podman": "Podman"}
_INSTALL = {"docker": "https://docs.docker.com/engine/install", "podman": "https://podman.io"}


def container_start(
    job: EngineJob,
    *,
    image: str,
    name: str,
    folder: Path,
    environ: Mapping[str, str],
    runtime: Runtime = "docker",
    vendor: Vendor = "nvidia",
    pull: bool = False,
) -> Start:
    """The command that runs the job in a container named `name`, which is gone when it ends.

    A job's folder with files and a checkpoint in a folder are there under the same paths, not to be written; Hugging Face's cache
    is there to be written, unless the checkpoint is a folder elsewhere. The job's port is open on `job.host` of this
    machine only. One node of several uses this machine's network itself. An image that is not here is fetched with
    `pull`, its progress in the log; else that is an error, for it is 10 GiB and more.

    Raises LaunchError where the engine or the image is missing, ValueError for a job that cannot run in a container.
    """
    _check_engine(runtime, environ)
    if not pull:
        _check_image(runtime, image, environ)
    argv = _argv_inside(job)
    env, mounts = _what_it_needs(job, folder, environ)
    gpus = job.gpus // job.nodes
    renumbered = _VISIBLE["nvidia"] if vendor == "nvidia" else ()  # inside, those chosen count from 0
    names = [variable for variable in env if variable not in renumbered]
    names += [variable for variable in _PASSED_ON if variable in environ and variable not in env]
    words = [runtime, "run", "--rm", "--init", "--name", name, "--log-driver=none"]
    words += [] if pull else ["--pull=never"]
    words += gpu_options(gpus, vendor=vendor, runtime=runtime, environ={**environ, **job.env}) if gpus else []
    words += ["--network=host"] if job.nodes > 1 else ["--publish", _published(job)]
    words += [word for mount in mounts for word in ("--mount", mount)]
    words += [word for variable in names for word in ("--env", variable)]
    words += ["--workdir", str(folder)] if job.files else []
    if (
        job.engine == "vllm"
    ):  # its images begin with `vllm serve`; NVIDIA's set up CUDA and then run what they are given
        words += ["--entrypoint", argv[0], image, *argv[1:]]
    else:
        words += [image, *argv]
    return Start(tuple(words), env, (runtime, "rm", "--force", name))


def gpu_options(
    count: int, *, vendor: Vendor, runtime: Runtime = "docker", environ: Mapping[str, str]
) -> list[str]:
    """The options that let a container use `count` GPUs: those that CUDA_VISIBLE_DEVICES or its kin name, or the first.

    Raises ValueError where fewer are named.
    """
    variable = next((known for known in _VISIBLE[vendor] if known in environ), None)
    devices = [str(number) for number in range(count)]
    if variable is not None:
        devices = [device.strip() for device in environ[variable].split(",") if device.strip()]
        if len(devices) < count:
            raise ValueError(
                f"{count} GPUs are needed, and {variable}={environ[variable]} names {len(devices)}: name more, or unset it."
            )
    if (
        vendor == "amd"
    ):  # as vLLM's recipe page for MiniMax-M3 has it; there is no choosing among the devices but inside
        rocm = ["--device", "/dev/kfd", "--device", "/dev/dri", "--group-add", "video"]
        rocm += ["--cap-add", "SYS_PTRACE", "--security-opt", "seccomp=unconfined"]
        chosen = ["--env", variable] if variable is not None else []
        return [*rocm, "--ipc=host", f"--shm-size={SHARED_MEMORY}", *chosen]
    # NVIDIA's start-up message for its images asks for these limits
    shared = [f"--shm-size={SHARED_MEMORY}", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864"]
    if runtime == "podman":  # NVIDIA Container Toolkit's guide to CDI
        cdi = [word for device in devices[:count] for word in ("--device", f"nvidia.com/gpu={device}")]
        return [*cdi, "--security-opt=label=disable", *shared]
    return [
        "--gpus",
        f'"device={",".join(devices[:count])}"',
        *shared,
    ]  # Docker reads it as CSV: hence the quotes


def _argv_inside(job: EngineJob) -> tuple[str, ...]:
    """The engine's command as it is inside, where it has to listen to the container's network."""
    if job.argv[0] in ("docker", "podman"):
        raise ValueError(
            f"This recipe's command is {job.argv[0]}'s own: take the recipe that runs inside its image."
        )
    if job.argv[0] == "srun":
        raise ValueError("This recipe's command is Slurm's srun, which brings its own containers: use Slurm.")
    if job.nodes > 1 or job.engine == "dynamo":
        return job.argv  # this machine's network; Dynamo's script says itself where it listens
    return Command.of(job.argv).replacing(("--host", "0.0.0.0")).words  # noqa: S104  # published on job.host only


def _published(job: EngineJob) -> str:
    """Docker's `address:port:port`."""
    host = "127.0.0.1" if job.host == "localhost" else job.host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise ValueError(
            f"A container's port is opened on an address, not on a name like {host!r}: --host 127.0.0.1, or 0.0.0.0 for all."
        ) from None
    shown = f"[{address}]" if address.version == 6 else str(address)
    return f"{shown}:{job.port}:{job.port}"


def _what_it_needs(
    job: EngineJob, folder: Path, environ: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Variables and mounts."""
    env = dict(job.env)
    mounts = [_mount(folder)] if job.files else []
    checkpoint = Path(job.model).expanduser()
    cache = _hugging_face(environ)
    if checkpoint.is_absolute() and checkpoint.is_dir():
        mounts += [_mount(path) for path in (checkpoint, *_linked(checkpoint))]
        if not checkpoint.is_relative_to(cache):
            return env, mounts
    try:
        cache.mkdir(parents=True, exist_ok=True)  # the engine would make it root's
    except OSError as error:
        raise LaunchError(
            f"Hugging Face's cache {cache} cannot be made: {error.strerror}; set HF_HOME to a folder that can be written."
        ) from None
    return {**env, "HF_HOME": str(cache)}, [*mounts, _mount(cache, writable=True)]


def _hugging_face(environ: Mapping[str, str]) -> Path:
    """Hugging Face's folder, found as huggingface_hub finds it (its constants.py)."""
    home = environ.get("HOME", "~")
    cache = environ.get("XDG_CACHE_HOME") or f"{home}/.cache"
    return Path(environ.get("HF_HOME") or f"{cache}/huggingface").expanduser().absolute()


def _linked(checkpoint: Path) -> Iterator[Path]:
    """Folders elsewhere that the checkpoint's files are links into, as in Hugging Face's cache."""
    links = [path for path in checkpoint.iterdir() if path.is_symlink()]
    targets = {Path(os.path.normpath(checkpoint / link.readlink())).parent for link in links}
    yield from sorted(path for path in targets if path.is_dir() and not path.is_relative_to(checkpoint))


def _mount(path: Path, *, writable: bool = False) -> str:
    """A bind mount at the same path, in CSV as --mount wants it."""
    fields = ["type=bind", f"source={path}", f"target={path}", *([] if writable else ["readonly"])]
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()


def _check_engine(runtime: Runtime, environ: Mapping[str, str]) -> None:
    called = _NAMES[runtime]
    if shutil.which(runtime, path=environ.get("PATH")) is None:
        raise LaunchError(
            f"There is no {runtime} on this machine: install {called} ({_INSTALL[runtime]}), or start the engine without."
        )
    words = ("version", "--format", "{{.Server.Version}}") if runtime == "docker" else ("info",)
    failed = _fails(runtime, *words, environ=environ)
    if failed is None:
        return
    if "permission denied" in failed.casefold():
        raise LaunchError(
            f"You may not use {called} on this machine: add yourself to the group docker as root, and log in again."
        )
    raise LaunchError(f"{called} does not answer ({failed}): start it, or start the engine without.")


def _check_image(runtime: Runtime, image: str, environ: Mapping[str, str]) -> None:
    if _fails(runtime, "image", "inspect", image, environ=environ) is not None:
        raise LaunchError(
            f"The image {image} is not on this machine: fetch it with `{runtime} pull {image}`."
        )


def _fails(runtime: Runtime, *words: str, environ: Mapping[str, str]) -> str | None:
    """What a client says where it fails; None where it does not."""
    program = shutil.which(runtime, path=environ.get("PATH")) or runtime
    try:
        done = subprocess.run(
            [program, *words],
            capture_output=True,
            check=False,
            timeout=ANSWER_SECONDS,
            stdin=subprocess.DEVNULL,
            env=dict(environ),
        )
    except subprocess.TimeoutExpired:
        return f"nothing within {ANSWER_SECONDS} s"
    except OSError as error:
        return f"it cannot be started: {error.strerror}"
    if done.returncode == 0:
        return None
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return " ".join(said[-1:])[:200] or f"exit code {done.returncode}"

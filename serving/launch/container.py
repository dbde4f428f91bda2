"""Run a job in a container of Docker.

The command-line client stays in the foreground and passes SIGTERM on to the engine inside. The command line
has only the names of environment variables, because every user of a machine can read its command lines.
"""

from __future__ import annotations

import csv
import io
import ipaddress
import math
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from m3agent.serving.launch.checkpoint import as_path, cache_folder, hugging_face
from m3agent.serving.launch.job import EngineJob, Start
from m3agent.serving.plan.command import LaunchCommand
from m3agent.serving.plan.memory_model import GIB
from m3agent.serving.plan.recipe import HTTP_HOST, Vendor
from m3agent.util.errors import EnvironmentFault, UsageError

ANSWER_SECONDS = 30
"""Seconds that Docker may take to answer."""

SHARED_GIB = 16
"""The limit of /dev/shm in GiB, without a host cache. Docker's default of 64 MiB is too small for the engines' processes (vLLM's recipe
page for MiniMax-M3).
"""

_CACHE = "HF_HOME"  # names Hugging Face's folder, where downloads go
_HUB = "HF_HUB_CACHE"  # names the folder of its models, if that is elsewhere
_PASSED_ON = ("HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_VISIBLE: Mapping[Vendor, tuple[str, ...]] = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
}


def container_start(
    job: EngineJob,
    *,
    image: str,
    name: str,
    folder: Path,
    environ: Mapping[str, str],
    vendor: Vendor = "nvidia",
    pull: bool = False,
    ready: bool = True,
) -> Start:
    """Return the command that runs the job in a container, which is removed when it ends.

    The job's folder with files, and a checkpoint or a draft in a folder, have the same paths inside and are read-only. Hugging
    Face's cache is writable; it is left out if checkpoint and draft are folders elsewhere. The job's port is open only on
    `job.host` of this machine. A job on several nodes uses this machine's network directly.

    Args:
        pull: Fetch a missing image; the progress is in the log. Otherwise a missing image is an error,
            because it has 10 GiB and more.
        ready: Check Docker and the image, and make the cache; False only returns the command.

    Raises:
        EnvironmentFault: Docker or the image is missing.
        UsageError: The job cannot run in a container.
    """
    if ready:
        _check_engine(environ)
        if not pull and _fails("image", "inspect", image, environ=environ) is not None:
            raise EnvironmentFault(
                f"The image {image} is not on this machine: pull it with `docker pull {image}`."
            )
    argv = _argv_inside(job)
    env, mounts = _what_it_needs(job, folder, environ)
    if ready:
        for variable in {_CACHE, _HUB} & env.keys():
            _make_cache(Path(env[variable]))
    words = ["docker", "run", "--rm", "--init", "--name", name, "--log-driver=none"]
    words += [] if pull else ["--pull=never"]
    words += _machine_options(job, vendor, environ)
    words += [word for mount in mounts for word in ("--mount", mount)]
    words += [word for variable in _passed(env, environ, vendor) for word in ("--env", variable)]
    words += ["--workdir", str(folder)] if job.files else []
    # The entrypoint of vLLM's images is `vllm serve`. NVIDIA's images set up CUDA, then run the command.
    words += ["--entrypoint", argv[0], image, *argv[1:]] if job.engine == "vllm" else [image, *argv]
    return Start(tuple(words), env, ("docker", "rm", "--force", name))


def _passed(env: Mapping[str, str], environ: Mapping[str, str], vendor: Vendor) -> list[str]:
    """Return the variables that the container gets; inside, the chosen GPUs of NVIDIA count from 0."""
    names = dict.fromkeys((*env, *(variable for variable in _PASSED_ON if variable in environ)))
    renumbered = _VISIBLE["nvidia"] if vendor == "nvidia" else ()
    return [variable for variable in names if variable not in renumbered]


def _machine_options(job: EngineJob, vendor: Vendor, environ: Mapping[str, str]) -> list[str]:
    """Return the options for GPUs and network."""
    gpus, chosen = job.gpus // job.nodes, {**environ, **job.env}
    words = gpu_options(gpus, vendor=vendor, environ=chosen, host_cache=job.host_cache) if gpus else []
    return [*words, *(["--network=host"] if job.nodes > 1 else ["--publish", _published(job)])]


def without_chosen_gpus(environ: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables without those that choose GPUs, for a container on another machine."""
    chosen = {variable for variables in _VISIBLE.values() for variable in variables}
    return {name: value for name, value in environ.items() if name not in chosen}


def gpu_options(count: int, *, vendor: Vendor, environ: Mapping[str, str], host_cache: int = 0) -> list[str]:
    """Return the options that let a container use `count` GPUs, with shared memory for a host cache.

    The GPUs are those that CUDA_VISIBLE_DEVICES (for AMD also HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES)
    names, else the first ones.

    Raises:
        UsageError: The variable names fewer GPUs.
    """
    variable = next((known for known in _VISIBLE[vendor] if known in environ), None)
    devices = [str(number) for number in range(count)]
    if variable is not None:
        devices = [device.strip() for device in environ[variable].split(",") if device.strip()]
        if len(devices) < count:
            raise UsageError(
                f"{count} GPUs are needed, and {variable}={environ[variable]} names {len(devices)}: name more, or unset it."
            )
    shared_memory = f"--shm-size={SHARED_GIB + math.ceil(host_cache / GIB)}g"
    # From vLLM's recipe page for MiniMax-M3. The GPUs can only be chosen inside, by the variable.
    if vendor == "amd":
        rocm = ["--device", "/dev/kfd", "--device", "/dev/dri", "--group-add", "video"]
        rocm += ["--cap-add", "SYS_PTRACE", "--security-opt", "seccomp=unconfined"]
        chosen = ["--env", variable] if variable is not None else []
        return [*rocm, "--ipc=host", shared_memory, *chosen]
    # NVIDIA's start-up message for its images asks for these limits
    shared = [shared_memory, "--ulimit", "memlock=-1", "--ulimit", "stack=67108864"]
    return ["--gpus", f'"device={",".join(devices[:count])}"', *shared]  # in quotes: Docker parses it as CSV


def _argv_inside(job: EngineJob) -> tuple[str, ...]:
    """Return the engine's command inside the container, where it must listen on the container's network."""
    if job.argv[0] in ("docker", "podman"):
        raise UsageError(
            f"This recipe's command is {job.argv[0]} itself: use the recipe that runs inside its image."
        )
    if job.argv[0] == "srun":
        raise UsageError(
            "This recipe's command is Slurm's srun, which starts its own containers: use --slurm."
        )
    if job.nodes > 1 or job.engine == "dynamo":
        return (
            job.argv
        )  # several nodes use this machine's network; Dynamo's script reads its address from a variable
    return LaunchCommand.of(job.argv).replacing(("--host", "0.0.0.0")).words  # noqa: S104  # published on job.host only


def _published(job: EngineJob) -> str:
    """Return Docker's `address:port:port`."""
    host = "127.0.0.1" if job.host == "localhost" else job.host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise UsageError(
            f"A container's port needs an address, not a name like {host!r}: use --host 127.0.0.1, or 0.0.0.0 for all."
        ) from None
    shown = f"[{address}]" if address.version == 6 else str(address)
    return f"{shown}:{job.port}:{job.port}"


def _what_it_needs(
    job: EngineJob, folder: Path, environ: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Return the environment variables and the mounts that the job needs."""
    env = dict(job.env)
    if HTTP_HOST in env and job.nodes == 1:
        env[HTTP_HOST] = "0.0.0.0"  # noqa: S104  # published on job.host only
    mounts = [_mount(folder)] if job.files else []
    cache = hugging_face(environ).absolute()
    downloads = False
    for model in filter(None, (job.model, job.draft)):
        checkpoint = as_path(model)
        if checkpoint.is_absolute() and checkpoint.is_dir():
            mounts += [_mount(path) for path in (checkpoint, *_linked(checkpoint))]
            downloads = downloads or checkpoint.is_relative_to(cache)
        else:
            downloads = True
    if not downloads:
        return env, mounts
    places = {_CACHE: cache}
    if environ.get(_HUB) or environ.get("HUGGINGFACE_HUB_CACHE"):
        places[_HUB] = cache_folder(environ).absolute()
    mounts += [_mount(place, writable=True) for place in dict.fromkeys(places.values())]
    return {**env, **{variable: str(place) for variable, place in places.items()}}, mounts


def _make_cache(cache: Path) -> None:
    try:
        cache.mkdir(parents=True, exist_ok=True)  # otherwise the container engine would create it for root
    except OSError as error:
        raise EnvironmentFault(
            f"Hugging Face's cache {cache} cannot be created: {error.strerror}; set HF_HOME to a writable folder."
        ) from None


def _linked(checkpoint: Path) -> Iterator[Path]:
    """Yield the folders elsewhere that the checkpoint's links point into, as in Hugging Face's cache."""
    links = [path for path in checkpoint.iterdir() if path.is_symlink()]
    targets = {Path(os.path.normpath(checkpoint / link.readlink())).parent for link in links}
    yield from sorted(path for path in targets if path.is_dir() and not path.is_relative_to(checkpoint))


def _mount(path: Path, *, writable: bool = False) -> str:
    """Return a bind mount at the same path, as CSV for `--mount`."""
    fields = ["type=bind", f"source={path}", f"target={path}", *([] if writable else ["readonly"])]
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()


def _check_engine(environ: Mapping[str, str]) -> None:
    if shutil.which("docker", path=environ.get("PATH")) is None:
        raise EnvironmentFault(
            "There is no docker on this machine: install Docker (https://docs.docker.com/engine/install), or start the engine "
            "without a container."
        )
    failed = _fails("version", "--format", "{{.Server.Version}}", environ=environ)
    if failed is None:
        return
    if "permission denied" in failed.casefold():
        raise EnvironmentFault(
            "You may not use Docker on this machine: add yourself to the group docker (as root), and log in again."
        )
    raise EnvironmentFault(
        f"Docker does not answer ({failed}): start it, or start the engine without a container."
    )


def _fails(*words: str, environ: Mapping[str, str]) -> str | None:
    """Run a client; return its error message if it fails, else None."""
    program = shutil.which("docker", path=environ.get("PATH")) or "docker"
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
        return f"no answer within {ANSWER_SECONDS} s"
    except OSError as error:
        return f"it cannot be started: {error.strerror}"
    if done.returncode == 0:
        return None
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return " ".join(lines[-1:])[:200] or f"exit code {done.returncode}"

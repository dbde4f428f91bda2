"""What has to be there before a server is started: free GPUs and port, the engine, disk; then its folder and its record."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from m3agent.agent.errors import EnvironmentFault, ServerFault, UsageError
from m3agent.agent.serve_choice import Choice, ServeRequest, barred, choose
from m3agent.serving.http import is_loopback
from m3agent.serving.launch import record as records
from m3agent.serving.launch.checkpoint import lacking_disk
from m3agent.serving.launch.container import container_start
from m3agent.serving.launch.errors import LaunchError
from m3agent.serving.launch.installed import DISTRIBUTIONS, installed_version
from m3agent.serving.launch.job import EngineJob, Start
from m3agent.serving.launch.nodes import as_node
from m3agent.serving.launch.server import Launch
from m3agent.serving.launch.slurm import slurm_start
from m3agent.serving.plan.detect import DetectionError, detect
from m3agent.serving.plan.recipe_json import UNVERIFIED

PORTS_TRIED = 20


def launch(
    asked: ServeRequest, state: Path, environ: Mapping[str, str], say: Callable[[str], None]
) -> tuple[Launch, records.ServerRecord]:
    """All that a server needs before it is started; its folder is made and its record written.

    Raises UsageError, EnvironmentFault, ServerFault: why it is not.
    """
    try:
        with _alone(state):
            return _launch(asked, state, environ, say)
    except OSError as error:
        raise EnvironmentFault(
            f"the server cannot be written down in {state / 'servers'}: {error.strerror}; make room there, or set "
            "M3AGENT_STATE to another folder"
        ) from None


def _launch(
    asked: ServeRequest, state: Path, environ: Mapping[str, str], say: Callable[[str], None]
) -> tuple[Launch, records.ServerRecord]:
    if asked.slurm and is_loopback(asked.host):
        asked = replace(asked, host="0.0.0.0")  # noqa: S104  # on another machine, and it asks for a key
    key = None if is_loopback(asked.host) else _key(environ)
    if asked.here:
        environ = _without_taken(state, environ, say)
        if not asked.node_rank:
            asked = replace(asked, port=_port(asked.host, asked.port))
    choice = choose(asked, environ, key=key, local=asked.here)
    for note in choice.notes:
        say(note)
    if not choice.prepared.recipe.verified:
        say(UNVERIFIED)
    job, plan = choice.prepared.job, choice.plan
    if job.nodes > 1 and asked.node_rank is None and not asked.slurm and job.engine in ("vllm", "sglang"):
        raise UsageError(
            f"the plan takes {job.nodes} nodes: start it under Slurm with --slurm, or on each node with --node-rank 0 to "
            f"{job.nodes - 1} and --master ADDRESS of the first"
        )
    version = None
    if asked.here and not asked.container:
        version = _check_installed(choice, environ)
    if choice.checkpoint is not None and plan is not None and asked.here:
        lacking = lacking_disk(choice.checkpoint, plan.precision, environ)
        if lacking and not choice.prepared.random_weights:
            raise EnvironmentFault(lacking)
    devices = _devices(choice)
    if devices and choice.detected is not None:
        # the driver's numbers, which the engine's library counts otherwise unless told
        numbers = {choice.detected.variable: ",".join(devices), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        job = replace(job, env={**numbers, **job.env})
    folder = records.new_folder(state)
    try:
        start = _start(asked, job, choice, folder, environ)
    except LaunchError as error:
        raise EnvironmentFault(str(error)) from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    if key is not None:
        _private(folder / records.KEY, key)
    for name, text in job.files.items():
        _private(folder / name, text)
    record = records.ServerRecord(
        url=_url(asked, job),
        engine=job.engine,
        pid=os.getpid(),
        born=records.born(os.getpid()),
        phase=records.Phase.LOADING,
        checkpoint=_checkpoint(choice),
        gpus=None if choice.fleet is None else str(choice.fleet),
        devices=devices,
        version=version,
        random_weights=choice.prepared.random_weights,
        argv=job.argv,
        plan=None if plan is None else plan.json(),
    )
    records.write_record(folder, record)
    say(
        f"starting {' '.join(job.argv[:3])} … on {record.gpus or 'its GPUs'}; its log: {folder / records.LOG}"
    )
    return (
        Launch(
            job=job,
            start=start,
            folder=folder,
            key=key,
            context=asked.context if plan is None else plan.max_model_len,
            tokenizer=_tokenizer(choice),
            load_seconds=None if asked.load_minutes is None else asked.load_minutes * 60,
            barred=lambda version: barred(choice, version),
            answers=not asked.node_rank,
        ),
        record,
    )


def _start(
    asked: ServeRequest, job: EngineJob, choice: Choice, folder: Path, environ: Mapping[str, str]
) -> Start:
    """The command that this comes down to.

    Raises LaunchError, ValueError: why there is none.
    """
    if asked.node_rank is not None:
        job = as_node(job, asked.node_rank, asked.master or "")
    if asked.slurm:
        return slurm_start(job, folder=folder, environ=environ, extra=asked.sbatch)
    if asked.container:
        image = asked.image or job.image
        if image is None:
            raise ValueError(f"no image is known for {choice.prepared.recipe.name}: name one with --image")
        return container_start(
            job,
            image=image,
            name=f"m3agent-{folder.name}",
            folder=folder,
            environ=environ,
            vendor=choice.prepared.recipe.vendor,
            pull=asked.pull,
        )
    return Start(_argv(job, environ), job.env)


def _url(asked: ServeRequest, job: EngineJob) -> str:
    """Where it will answer; under Slurm that is found out."""
    host = _reached_at(asked.host)
    if asked.node_rank and asked.master:
        host = asked.master.rpartition(":")[0] or asked.master
    return f"http://{host}:{job.port}/v1"


def _checkpoint(choice: Choice) -> str | None:
    checkpoint = choice.checkpoint
    return None if checkpoint is None else str(checkpoint.folder or checkpoint.name)


def _tokenizer(choice: Choice) -> Path | None:
    """The checkpoint's tokenizer.json if it is on this machine."""
    folder = choice.checkpoint and choice.checkpoint.folder
    path = folder and folder / "tokenizer.json"
    return path if path and path.is_file() else None


def _without_taken(state: Path, environ: Mapping[str, str], say: Callable[[str], None]) -> Mapping[str, str]:
    """An environment in which the GPUs of our other servers cannot be seen: two cannot share their memory.

    Raises ServerFault where none is left.
    """
    others = [record for _, record in records.live_servers(state)]
    taken = {device for record in others for device in record.devices}
    if not taken:
        return environ
    try:
        detected = detect(environ)
    except DetectionError:
        return environ  # it is said where they are needed
    free = [device for device in detected.devices if device not in taken]
    if free:
        if len(free) < len(detected.devices):
            say(f"other servers of ours have GPU {','.join(sorted(taken))}")
        return {**environ, detected.variable: ",".join(free)}
    other = next(record for record in others if record.devices)
    raise ServerFault(
        f"GPU {','.join(detected.devices)} is in use by a server of ours ({other.engine} at {other.url}, {other.phase.value}, "
        f"process {other.pid}): use that one, end it with `m3agent serve stop`, or choose other GPUs with {detected.variable}"
    )


def _devices(choice: Choice) -> tuple[str, ...]:
    """The GPUs of this machine that it will use."""
    if choice.detected is None:
        return ()
    return choice.detected.devices[: choice.prepared.job.gpus]


def _check_installed(choice: Choice, environ: Mapping[str, str]) -> str | None:
    """The engine's version if it can be told. Raises EnvironmentFault where it is not here or must not serve M3."""
    job = choice.prepared.job
    argv = _argv(job, environ)
    if shutil.which(argv[0], path=environ.get("PATH")) is None:
        package = DISTRIBUTIONS[job.engine]
        versions = "" if choice.plan is None else choice.plan.versions
        raise EnvironmentFault(
            f"{argv[0]} is not installed here: install it, for instance `pip install '{package}{versions}'` in an environment "
            "of its own whose bin folder is on PATH"
        )
    version = installed_version(job.engine, argv, environ.get("PATH"))
    if version is not None and (why := barred(choice, version)):
        raise EnvironmentFault(why)
    return version


def _argv(job: EngineJob, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The command with a Python that is here: documents say `python`, many machines have only `python3`."""
    path = environ.get("PATH")
    if (
        job.argv[0] == "python"
        and not shutil.which("python", path=path)
        and shutil.which("python3", path=path)
    ):
        return ("python3", *job.argv[1:])
    return job.argv


def _key(environ: Mapping[str, str]) -> str:
    """The key that the server asks for: the person's own, else a new one."""
    import secrets

    return environ.get("M3AGENT_API_KEY") or secrets.token_urlsafe(32)


def _private(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def _reached_at(host: str) -> str:
    """Where this machine reaches a server that listens there."""
    local = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "localhost": "127.0.0.1"}.get(host, host)  # noqa: S104
    return f"[{local}]" if ":" in local and not local.startswith("[") else local


def _port(host: str, port: int) -> int:
    """The port, if it is free; for 0 one that is.

    Raises EnvironmentFault where it is taken, naming one that is free.
    """
    if (fault := _taken(host, port)) is None:
        return port or _free(host, 0)
    near = next((other for other in range(port + 1, port + PORTS_TRIED) if _taken(host, other) is None), 0)
    instead = f"take another, for instance --port {near}"
    raise EnvironmentFault(f"cannot listen on {host}:{port}: {fault}; {instead}")


def _taken(host: str, port: int) -> str | None:
    """Why nothing can listen there; None if something can."""
    try:
        _free(host, port)
    except (OSError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


def _free(host: str, port: int) -> int:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        trial.bind(address)
        return int(trial.getsockname()[1])


@contextlib.contextmanager
def _alone(state: Path) -> Iterator[None]:
    """One `serve` at a time looks for others and writes itself down."""
    with (records.servers_folder(state) / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

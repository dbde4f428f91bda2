"""Prepare the start of a server: check GPUs, port, engine and disk; then make its folder and its record."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shlex
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from m3agent.cli.serve.options import Choice, ServeRequest, barred, choose, image_of, reachable
from m3agent.serving.client.http import is_loopback
from m3agent.serving.launch import record as records
from m3agent.serving.launch.checkpoint import are_cached, lacking_weights
from m3agent.serving.launch.container import container_start
from m3agent.serving.launch.installed import SHARED, installed_version, lacking_memory, lacking_packages
from m3agent.serving.launch.job import EngineJob, Start
from m3agent.serving.launch.nodes import as_node
from m3agent.serving.launch.server import Launch
from m3agent.serving.launch.slurm import slurm_start
from m3agent.serving.plan.detect import DetectionError, detect
from m3agent.serving.plan.engines import ENGINES
from m3agent.serving.plan.overlay import UNVERIFIED
from m3agent.serving.plan.recipe import LICENCE
from m3agent.util.errors import EnvironmentFault, ServerFault, UsageError
from m3agent.util.private_file import write_file

PORTS_TRIED = 20


def launch(
    asked: ServeRequest, state: Path, environ: Mapping[str, str], say: Callable[[str], None]
) -> tuple[Launch, records.ServerRecord]:
    """Prepare everything that a server needs before its start. Make its folder and write its record.

    Raises:
        UsageError, EnvironmentFault, ServerFault: The server cannot be started; with the reason.
    """
    try:
        with _alone(state):
            return _launch(asked, state, environ, say)
    except OSError as error:
        raise EnvironmentFault(
            f"the server cannot be recorded in {state / 'servers'}: {error.strerror}; make room there, or set "
            "M3AGENT_STATE to another folder"
        ) from None


def _launch(
    asked: ServeRequest, state: Path, environ: Mapping[str, str], say: Callable[[str], None]
) -> tuple[Launch, records.ServerRecord]:
    asked = reachable(asked)
    key = None if is_loopback(asked.host) else _key(environ)
    if not asked.slurm:
        environ = _without_taken(state, environ, say)
        if not asked.node_rank:
            asked = replace(asked, port=_port(asked.host, asked.port))
    choice = choose(asked, environ, key=key, local=not asked.slurm)
    prepared, job, plan = choice.prepared, choice.prepared.job, choice.plan
    for line in _first_lines(choice):
        say(line)
    if asked.by_hand(job):
        raise UsageError(
            f"the plan needs {job.nodes} nodes: start it under Slurm with --slurm, or on each node with "
            f"--node-rank 0 to {job.nodes - 1} and --master ADDRESS of the first"
        )
    version = None
    if not asked.slurm:
        version = None if asked.container else _check_installed(choice, environ)
        job = replace(job, env={**_for_this_machine(asked, choice, environ, say), **job.env})
    devices = _devices(choice)
    folder = records.new_folder(state)
    start = _start(asked, job, choice, folder, environ)
    for name, text in {**job.files, **({} if key is None else {records.KEY: key})}.items():
        write_file(str(folder / name), text.encode())
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
        random_weights=prepared.random_weights,
        argv=job.argv,
        plan=None if plan is None else plan.json(),
    )
    records.write_record(folder, record)
    say(
        f"starting {' '.join(job.argv[:3])} … on {record.gpus or 'its GPUs'}; its log: {folder / records.LOG}"
    )
    launch = Launch(
        job=job,
        start=start,
        folder=folder,
        key=key,
        context=asked.context if plan is None else plan.context,
        tokenizer=_tokenizer(choice),
        load_seconds=None if asked.load_minutes is None else asked.load_minutes * 60,
        barred=lambda version: barred(choice, version),
        answers=not asked.node_rank,
    )
    return launch, record


def _first_lines(choice: Choice) -> Iterator[str]:
    yield from choice.notes
    if not choice.prepared.recipe.verified:
        yield UNVERIFIED
    if not choice.prepared.random_weights:
        yield f"licence of the model: {LICENCE}"


def _for_this_machine(
    asked: ServeRequest, choice: Choice, environ: Mapping[str, str], say: Callable[[str], None]
) -> dict[str, str]:
    """Check that weights and host cache have their place on this machine; return the variables that the engine needs here."""
    job, checkpoint = choice.prepared.job, choice.checkpoint
    if checkpoint is not None and not choice.prepared.random_weights:
        precision = checkpoint.precision if choice.plan is None else choice.plan.precision
        if lacking := lacking_weights(checkpoint, precision, environ, download=asked.download):
            raise EnvironmentFault(lacking)
    shared = None if asked.container else SHARED  # a container gets shared memory of its own
    if no_room := lacking_memory(job.host_cache, shared=shared):
        raise EnvironmentFault(no_room)
    variables: dict[str, str] = {}
    if choice.detected is not None and (devices := _devices(choice)):
        # the driver's numbers; without PCI_BUS_ID order, the engine's library counts the GPUs differently
        variables = {choice.detected.variable: ",".join(devices), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if "HF_HUB_OFFLINE" not in environ and are_cached({job.draft: "", job.model: asked.revision}, environ):
        variables["HF_HUB_OFFLINE"] = "1"
        if checkpoint is not None and checkpoint.folder is not None:
            say(f"weights of {checkpoint.name}: commit {checkpoint.folder.name}, in {checkpoint.folder}")
    return variables


def _start(
    asked: ServeRequest, job: EngineJob, choice: Choice, folder: Path, environ: Mapping[str, str]
) -> Start:
    """Return the command to start: on this machine, in a container, or through Slurm."""
    if asked.node_rank is not None:
        job = as_node(job, asked.node_rank, asked.master or "")
    if asked.slurm:
        return slurm_start(job, folder=folder, environ=environ, extra=asked.sbatch)
    if asked.container:
        return container_start(
            job,
            image=image_of(asked, choice.prepared),
            name=f"m3agent-{folder.name}",
            folder=folder,
            environ=environ,
            vendor=choice.prepared.recipe.vendor,
            pull=asked.pull,
        )
    return Start(_argv(job, environ), job.env)


def _url(asked: ServeRequest, job: EngineJob) -> str:
    """Return the address of the server. Under Slurm the real address is found later."""
    host = _reached_at(asked.host)
    if asked.node_rank and asked.master:
        host = asked.master.rpartition(":")[0] or asked.master
    return f"http://{host}:{job.port}/v1"


def _checkpoint(choice: Choice) -> str | None:
    checkpoint = choice.checkpoint
    return None if checkpoint is None else str(checkpoint.folder or checkpoint.name)


def _tokenizer(choice: Choice) -> Path | None:
    """Return the path of the checkpoint's tokenizer.json, if it is on this machine."""
    folder = choice.checkpoint and choice.checkpoint.folder
    path = folder and folder / "tokenizer.json"
    return path if path and path.is_file() else None


def _without_taken(state: Path, environ: Mapping[str, str], say: Callable[[str], None]) -> Mapping[str, str]:
    """Return an environment that hides the GPUs of m3agent's other servers.

    Two servers cannot share a GPU's memory.
    """
    others = [record for _, record in records.live_servers(state)]
    taken = {device for record in others for device in record.devices}
    if not taken:
        return environ
    try:
        detected = detect(environ)
    except DetectionError:
        return environ  # the error is reported where the GPUs are needed
    free = [device for device in detected.devices if device not in taken]
    if free:
        if len(free) < len(detected.devices):
            say(f"other m3agent servers use GPU {','.join(sorted(taken))}")
        return {**environ, detected.variable: ",".join(free)}
    other = next(record for record in others if record.devices)
    raise ServerFault(
        f"GPU {','.join(detected.devices)} is in use by an m3agent server ({other.engine} at {other.url}, "
        f"{other.phase.value}, process {other.pid}): use that one, end it with `m3agent serve stop`, or "
        f"choose other GPUs with {detected.variable}"
    )


def _devices(choice: Choice) -> tuple[str, ...]:
    """Return the GPUs of this machine that the server will use."""
    if choice.detected is None:
        return ()
    return choice.detected.devices[: choice.prepared.job.gpus]


def _check_installed(choice: Choice, environ: Mapping[str, str]) -> str | None:
    """Return the engine's version, or None if it cannot be determined."""
    job, path = choice.prepared.job, environ.get("PATH")
    argv = _argv(job, environ)
    if shutil.which(argv[0], path=path) is None:
        package = ENGINES[job.engine].package
        versions = "" if choice.plan is None else choice.plan.versions
        raise EnvironmentFault(
            f"{argv[0]} is not installed here: install it, for instance `pip install '{package}{versions}'` "
            "in a separate environment whose bin folder is on PATH"
        )
    version = installed_version(job.engine, argv, path)
    if version is None:
        return None
    if why := barred(choice, version):
        raise EnvironmentFault(why)
    if lacking := lacking_packages(choice.prepared.packages, argv, path):
        raise EnvironmentFault(
            f"{job.engine} {version} is installed without what its command needs: pip install {shlex.join(lacking)} in the same "
            "environment"
        )
    return version


def _argv(job: EngineJob, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command with an existing Python.

    Documents say `python`, but many machines have only `python3`.
    """
    there = [name for name in ("python", "python3") if shutil.which(name, path=environ.get("PATH"))]
    return ("python3", *job.argv[1:]) if job.argv[0] == "python" and there == ["python3"] else job.argv


def _key(environ: Mapping[str, str]) -> str:
    """Return the key that the server asks for: the user's own, else a new random one."""
    return environ.get("M3AGENT_API_KEY") or secrets.token_urlsafe(32)


def _reached_at(host: str) -> str:
    """Return the host name by which this machine reaches a server that listens on `host`."""
    local = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "localhost": "127.0.0.1"}.get(host, host)  # noqa: S104
    return f"[{local}]" if ":" in local and not local.startswith("[") else local


def _port(host: str, port: int) -> int:
    """Return `port` if it is free; for 0, return any free port."""
    if (fault := _taken(host, port)) is None:
        return port or _free(host, 0)
    near = next((other for other in range(port + 1, port + PORTS_TRIED) if _taken(host, other) is None), 0)
    instead = f"take another, for instance --port {near}"
    raise EnvironmentFault(f"cannot listen on {host}:{port}: {fault}; {instead}")


def _taken(host: str, port: int) -> str | None:
    """Return the reason why nothing can listen on the port; None if it is free."""
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
    """Hold a lock: only one `serve` at a time looks for other servers and writes its record."""
    with (records.servers_folder(state) / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

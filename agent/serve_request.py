"""From the options of `m3agent serve` to what is started: GPUs, checkpoint, plan, command, a place for it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from m3agent.agent.errors import EnvironmentFault, ServerFault, UsageError
from m3agent.serving.launch import record as records
from m3agent.serving.launch.checkpoint import Checkpoint, CheckpointError, lacking_disk, read_checkpoint
from m3agent.serving.launch.container import container_start
from m3agent.serving.launch.errors import LaunchError
from m3agent.serving.launch.installed import DISTRIBUTIONS, installed_version
from m3agent.serving.launch.job import Job, Start
from m3agent.serving.launch.nodes import as_node, node_commands
from m3agent.serving.launch.prepare import (
    OptionsError,
    Prepared,
    Wanted,
    is_loopback,
    prepare,
    random_weights,
)
from m3agent.serving.launch.slurm import slurm_start
from m3agent.serving.plan.detect import Detected, DetectionError, detect
from m3agent.serving.plan.gpus import Fleet, parse_gpus
from m3agent.serving.plan.planner import Plan, Wish, longest_context, plans, refusals
from m3agent.serving.plan.recipe import recipe
from m3agent.serving.plan.recipe_json import UNVERIFIED, changes_text
from m3agent.serving.plan.shape import NATIVE_CONTEXT, Precision, Shape
from m3agent.serving.plan.traps import Engine

if TYPE_CHECKING:
    from m3agent.serving.launch.server import Launch

SMALLEST = Shape(dense=1, sparse=1)
"""What a checkpoint of other widths is planned as: nothing is known of its memory."""
DYNAMO_RECIPE = "dynamo-vllm-agg"
PORTS_TRIED = 20


@dataclass(frozen=True)
class ServeRequest:
    """What was asked for, as the options have it. `options`: the engine's own; `sbatch`: Slurm's own."""

    engine: str | None = None
    model: str | None = None
    gpus: str | None = None
    context: int | None = None
    concurrency: int = 1
    typical: int | None = None
    precision: str | None = None
    vision: bool = False
    recipe: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    load_minutes: float | None = None
    options: tuple[str, ...] = ()
    container: bool = False
    image: str | None = None
    pull: bool = False
    slurm: bool = False
    sbatch: tuple[str, ...] = ()
    node_rank: int | None = None
    master: str | None = None

    @property
    def here(self) -> bool:
        """Whether it runs on this machine's GPUs."""
        return not self.slurm


@dataclass(frozen=True)
class _Chosen:
    """What is to be started where. plan: None for a recipe as it is documented; notes: sentences for the person."""

    prepared: Prepared
    plan: Plan | None
    fleet: Fleet | None
    detected: Detected | None
    checkpoint: Checkpoint | None
    notes: tuple[str, ...]


def embedded(asked: ServeRequest, environ: Mapping[str, str]) -> bool:
    """Whether the embedded engine is meant: it was named, or nothing was and there is no GPU here."""
    if asked.engine is not None or asked != replace(ServeRequest(), host=asked.host, port=asked.port):
        return asked.engine == "embedded"
    try:
        detect(environ)
    except DetectionError as error:
        return error.none
    return False


def dry_run(asked: ServeRequest, environ: Mapping[str, str]) -> str:
    """The plan, the reasons and the command, as a shell takes it with all else in comments."""
    from m3agent.agent.plan_command import plan_details
    from m3agent.serving.plan.command import command_line

    chosen = _choose(asked, environ, key=None, local=False)
    job = chosen.prepared.job
    lines = [*(f"m3agent: {note}" for note in chosen.notes)]
    if chosen.plan is not None:
        lines += plan_details(chosen.plan).strip("\n").splitlines()
    if not chosen.prepared.recipe.verified:
        lines.append(UNVERIFIED)
    lines = [f"# {line}" for line in lines]
    lines += ["#", f"# {chosen.prepared.recipe.name}, changed for agent work and this plan:"]
    lines += changes_text(chosen.prepared.changes)
    for name, text in job.files.items():
        lines += ["#", f"# {name}:", *(f"#   {line}".rstrip() for line in text.splitlines())]
    lines += [f"# beside the engine: {package}" for package in chosen.prepared.packages]
    if job.nodes > 1 and job.engine in ("vllm", "sglang"):
        lines += ["#", "# On each node, its address in place of NODE1 and so on (or --slurm):"]
        nodes = [f"NODE{number}" for number in range(1, job.nodes + 1)]
        for one in node_commands(job, nodes):
            lines += [f"# {one.node}:", command_line(one.argv, one.env)]
        return "\n".join(lines) + "\n"
    return "\n".join([*lines, command_line(job.argv, job.env)]) + "\n"


def launch(
    asked: ServeRequest, state: Path, environ: Mapping[str, str], say: Callable[[str], None]
) -> tuple[Launch, records.ServerRecord]:
    """All that a server needs before it is started; its folder is made and its record written.

    Raises UsageError, EnvironmentFault, ServerFault: why it is not.
    """
    with _alone(state):
        return _launch(asked, state, environ, say)


def _launch(
    asked: ServeRequest, state: Path, environ: Mapping[str, str], say: Callable[[str], None]
) -> tuple[Launch, records.ServerRecord]:
    from m3agent.serving.launch.server import Launch

    if asked.slurm and is_loopback(asked.host):
        asked = replace(asked, host="0.0.0.0")  # noqa: S104  # on another machine, and it asks for a key
    key = None if is_loopback(asked.host) else _key(environ)
    if asked.here:
        environ = _without_taken(state, environ, say)
        if not asked.node_rank:
            asked = replace(asked, port=_port(asked.host, asked.port))
    chosen = _choose(asked, environ, key=key, local=asked.here)
    for note in chosen.notes:
        say(note)
    if not chosen.prepared.recipe.verified:
        say(UNVERIFIED)
    job, plan = chosen.prepared.job, chosen.plan
    if job.nodes > 1 and asked.node_rank is None and not asked.slurm and job.engine in ("vllm", "sglang"):
        raise UsageError(
            f"the plan takes {job.nodes} nodes: start it under Slurm with --slurm, or on each node with --node-rank 0 to "
            f"{job.nodes - 1} and --master ADDRESS of the first"
        )
    version = None
    if asked.here and not asked.container:
        version = _check_installed(chosen, environ)
    if chosen.checkpoint is not None and plan is not None and asked.here:
        lacking = lacking_disk(chosen.checkpoint, plan.precision, environ)
        if lacking and not chosen.prepared.random_weights:
            raise EnvironmentFault(lacking)
    devices = _devices(chosen)
    if devices and chosen.detected is not None:
        # the driver's numbers, which the engine's library counts otherwise unless told
        numbers = {chosen.detected.variable: ",".join(devices), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        job = replace(job, env={**numbers, **job.env})
    folder = records.new_folder(state)
    try:
        start = _start(asked, job, chosen, folder, environ)
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
        checkpoint=_checkpoint(chosen),
        gpus=None if chosen.fleet is None else str(chosen.fleet),
        devices=devices,
        version=version,
        random_weights=chosen.prepared.random_weights,
        argv=job.argv,
        plan=None if plan is None else asdict(plan),
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
            tokenizer=_tokenizer(chosen),
            load_seconds=None if asked.load_minutes is None else asked.load_minutes * 60,
            barred=lambda version: _barred(chosen, version),
            answers=not asked.node_rank,
        ),
        record,
    )


def _start(asked: ServeRequest, job: Job, chosen: _Chosen, folder: Path, environ: Mapping[str, str]) -> Start:
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
            raise ValueError(f"no image is known for {chosen.prepared.recipe.name}: name one with --image")
        return container_start(
            job,
            image=image,
            name=f"m3agent-{folder.name}",
            folder=folder,
            environ=environ,
            vendor=chosen.prepared.recipe.vendor,
            pull=asked.pull,
        )
    return Start(_argv(job, environ), job.env)


def _url(asked: ServeRequest, job: Job) -> str:
    """Where it will answer; under Slurm that is found out."""
    host = _reached_at(asked.host)
    if asked.node_rank and asked.master:
        host = asked.master.rpartition(":")[0] or asked.master
    return f"http://{host}:{job.port}/v1"


def _checkpoint(chosen: _Chosen) -> str | None:
    checkpoint = chosen.checkpoint
    return None if checkpoint is None else str(checkpoint.folder or checkpoint.name)


def _tokenizer(chosen: _Chosen) -> Path | None:
    """The checkpoint's tokenizer.json if it is on this machine."""
    folder = chosen.checkpoint and chosen.checkpoint.folder
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


def _choose(asked: ServeRequest, environ: Mapping[str, str], *, key: str | None, local: bool) -> _Chosen:
    """Plan and prepare. local: the GPUs named have to be here."""
    wanted = Wanted(
        host=asked.host,
        port=asked.port,
        model=None,
        key=key,
        options=asked.options,
        context=asked.context,
        vision=asked.vision,
    )
    try:
        checkpoint = (
            None
            if asked.model is None
            else read_checkpoint(asked.model, environ, weights=not random_weights(asked.options))
        )
        if checkpoint is not None:
            wanted = replace(wanted, model=checkpoint.name)
        named = asked.recipe or (DYNAMO_RECIPE if asked.engine == "dynamo" else None)
        if named is not None:
            prepared = prepare(recipe(named), wanted)
            here = detect(environ) if local and prepared.job.argv[0] != "srun" else None
            return _Chosen(prepared, None, None, here, checkpoint, here.notes if here else ())
        detected: Detected | None = None
        notes: tuple[str, ...] = ()
        if asked.gpus is None or local:
            detected = detect(environ)
            notes = detected.notes
        fleet = _fleet(asked, detected)
        plan, more = _plan(asked, fleet, checkpoint, local=asked.gpus is None)
        prepared = prepare(recipe(plan.recipe), wanted, plan)
    except DetectionError as error:
        raise EnvironmentFault(str(error)) from None
    except (CheckpointError, OptionsError, ValueError) as error:
        raise UsageError(str(error)) from None
    if checkpoint is None:
        checkpoint = read_checkpoint(prepared.job.model, environ, weights=False)
    return _Chosen(prepared, plan, fleet, detected, checkpoint, (*notes, *more))


def _fleet(asked: ServeRequest, detected: Detected | None) -> Fleet:
    """The GPUs to plan for: those named, which have to be here if it is known what is."""
    if asked.gpus is None:
        assert detected is not None, "asked for where none are named"
        return detected.fleet
    fleet = parse_gpus(asked.gpus)
    if detected is None:
        return fleet
    here = detected.fleet
    if fleet.nodes > 1 and asked.node_rank is None:
        return fleet  # whose nodes are elsewhere
    if fleet.gpu.name != here.gpu.name or fleet.per_node > here.count:
        raise EnvironmentFault(
            f"this machine has {here}, not {fleet}: leave --gpus out to use what is here, or add --dry-run to see the plan"
        )
    return replace(here, per_node=fleet.per_node, nodes=fleet.nodes)


def _plan(
    asked: ServeRequest, fleet: Fleet, checkpoint: Checkpoint | None, *, local: bool
) -> tuple[Plan, tuple[str, ...]]:
    """The best plan, and what to know about it."""
    from m3agent.agent.plan_command import refusal

    precision = asked.precision and Precision(asked.precision)
    wish = Wish(
        context=NATIVE_CONTEXT if asked.context is None else asked.context,
        concurrency=asked.concurrency,
        typical=asked.typical,
        precision=precision or (None if checkpoint is None else checkpoint.precision),
        engine=None if asked.engine is None else Engine(asked.engine),
        vision=asked.vision,
    )
    notes: list[str] = []
    if checkpoint is not None:
        wish = replace(wish, shape=checkpoint.shape)
        if not checkpoint.whole:
            notes.append(f"{checkpoint.name} has not M3's widths, so its memory is not reckoned")
            wish = replace(wish, shape=SMALLEST)
    found = plans(fleet, wish)
    if not found and asked.context is None and (longest := longest_context(fleet, wish)):
        notes.append(f"{fleet} does not hold {wish.context:,} tokens: the window is {longest:,}")
        wish = replace(wish, context=longest)
        found = plans(fleet, wish)
    if not found:
        fault = EnvironmentFault if local else UsageError
        raise fault(refusal(fleet, wish, refusals(fleet, wish)))
    plan = found[0]
    if checkpoint is not None and not checkpoint.whole:
        plan = replace(plan, kv_tokens=0)
    return plan, tuple(notes)


def _devices(chosen: _Chosen) -> tuple[str, ...]:
    """The GPUs of this machine that it will use."""
    if chosen.detected is None:
        return ()
    return chosen.detected.devices[: chosen.prepared.job.gpus]


def _check_installed(chosen: _Chosen, environ: Mapping[str, str]) -> str | None:
    """The engine's version if it can be told. Raises EnvironmentFault where it is not here or must not serve M3."""
    job = chosen.prepared.job
    argv = _argv(job, environ)
    if shutil.which(argv[0], path=environ.get("PATH")) is None:
        package = DISTRIBUTIONS[job.engine]
        versions = "" if chosen.plan is None else chosen.plan.versions
        raise EnvironmentFault(
            f"{argv[0]} is not installed here: install it, for instance `pip install '{package}{versions}'` in an environment "
            "of its own whose bin folder is on PATH"
        )
    version = installed_version(job.engine, argv, environ.get("PATH"))
    if version is not None and (barred := _barred(chosen, version)):
        raise EnvironmentFault(barred)
    return version


def _barred(chosen: _Chosen, version: str) -> str | None:
    """Why that version of the engine must not serve this plan; None if it may."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    from m3agent.serving.plan.traps import Setup, Severity, met

    plan, fleet = chosen.plan, chosen.fleet
    if plan is None or fleet is None:
        return None
    try:
        number = Version(version).base_version
    except InvalidVersion:
        return None
    setup = Setup(
        engine=plan.engine,
        vendor=fleet.gpu.vendor,
        architecture=fleet.gpu.architecture,
        precision=plan.precision,
        context=plan.max_model_len,
        version=number,
        kv_dtype=plan.kv_cache_dtype,
        rope=plan.rope,
        text_only=plan.text_only,
        encoder_parallel=plan.encoder_parallel,
        attention_backend=plan.attention_backend,
        moe_backend=plan.moe_backend,
        parser=plan.parser,
        nodes=plan.nodes,
        tp=plan.tp,
        dp=plan.dp,
        trust_remote_code=plan.trust_remote_code,
        env=plan.env,
    )
    for trap in met(setup, Severity.REFUSE):
        return f"{plan.engine} {version} is installed: {trap.effect}; {trap.remedy} ({trap.source})"
    if not SpecifierSet(plan.versions, prereleases=True).contains(number):
        return f"{plan.engine} {version} is installed, and M3 needs {plan.versions}: install such a version"
    return None


def _argv(job: Job, environ: Mapping[str, str]) -> tuple[str, ...]:
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

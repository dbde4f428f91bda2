"""Turn the options of `m3agent serve` into what to start: checkpoint, GPUs, plan and command."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from packaging.version import InvalidVersion, Version

from m3agent.serving.client.http import is_loopback
from m3agent.serving.launch.checkpoint import (
    Checkpoint,
    CheckpointError,
    elsewhere,
    is_here,
    lacking_download,
    read_checkpoint,
    read_draft,
)
from m3agent.serving.launch.installed import installed_version
from m3agent.serving.launch.job import EngineJob
from m3agent.serving.launch.kubernetes import NAME, Cluster, check_engine, kubernetes_files
from m3agent.serving.launch.prepare import (
    LaunchRequest,
    PreparedJob,
    image_warnings,
    prepare,
    random_weights,
    why_barred,
)
from m3agent.serving.launch.server_set import (
    FIRST_PORT,
    NAMED,
    Place,
    Router,
    local_places,
    named_places,
    needs_key,
    set_files,
)
from m3agent.serving.plan.command import flag_of
from m3agent.serving.plan.command_setup import misfit
from m3agent.serving.plan.detect import Detected, DetectionError, detect
from m3agent.serving.plan.draft import GQA_DRAFT
from m3agent.serving.plan.gpus import Fleet, UnknownGpu, Vendor, parse_gpus
from m3agent.serving.plan.host_cache import GIGABYTE
from m3agent.serving.plan.kinds import DraftUse, EngineKind, Precision
from m3agent.serving.plan.memory_model import NATIVE_CONTEXT, LayerCounts
from m3agent.serving.plan.plan import Plan, PlanRequest
from m3agent.serving.plan.planner import longest_context, plans, refusals
from m3agent.serving.plan.recipe import CHECKPOINTS, Recipe, recipe
from m3agent.util.errors import EnvironmentFault, UsageError

SMALLEST = LayerCounts(dense=1, sparse=1)
"""The shape for planning a checkpoint with other widths than M3. Nothing is known of its memory."""
DYNAMO_RECIPE = "dynamo-vllm-agg"
_NEEDS = {"master": "node_rank", "sbatch": "slurm", "pull": "container", "name": "kubernetes"}
"""Options that have no effect without another one."""
_SPECULATIVE = ("--speculative-config", "--speculative_config", "-sc", "--speculative-algorithm")


@dataclass(frozen=True)
class ServeRequest(LaunchRequest):
    """The options of `m3agent serve`.

    Most fields have the meaning of the option with their name. `options` are passed on to the engine,
    `sbatch` to Slurm.
    """

    engine: str | None = None
    gpus: str | None = None
    concurrency: int = 1
    typical: int | None = None
    precision: str | None = None
    draft: str = "auto"
    draft_model: str | None = None
    host_cache: int = 0
    recipe: str | None = None
    download: bool = False
    load_minutes: float | None = None
    container: bool = False
    image: str | None = None
    pull: bool = False
    slurm: bool = False
    sbatch: tuple[str, ...] = ()
    node_rank: int | None = None
    master: str | None = None
    servers: str | None = None
    router: Router | None = None
    kubernetes: bool = False
    name: str | None = None

    def gives(self, option: str) -> bool:
        """Return whether an option was given that has no value by default."""
        value = getattr(self, option)
        return value is not None and value is not False and value != ()

    @property
    def in_volume(self) -> bool:
        """Whether the checkpoint is a folder of the cluster's volume."""
        return self.kubernetes and (self.model or "").startswith("/")

    def by_hand(self, job: EngineJob) -> bool:
        """Return whether the user has to start the job on each of several nodes, and this is not the command for one of them."""
        several = job.nodes > 1 and job.engine in ("vllm", "sglang")
        return several and self.node_rank is None and not self.slurm


@dataclass(frozen=True)
class Choice:
    """What to start, and where."""

    prepared: PreparedJob
    plan: Plan | None
    """The plan; None for a recipe that is used as documented."""
    fleet: Fleet | None
    """The GPUs that the plan is for; None without a plan."""
    detected: Detected | None
    """The GPUs of this machine, if it was searched for them."""
    checkpoint: Checkpoint | None
    notes: tuple[str, ...]


def why_embedded(asked: ServeRequest, environ: Mapping[str, str]) -> str | None:
    """Return the reason for using the embedded engine, or None if it is not used.

    It is used if `--engine` names it. It is also used if no option but host and port is given and this
    machine has no GPU.
    """
    if asked.engine is not None or asked != replace(ServeRequest(), host=asked.host, port=asked.port):
        return "--engine names it" if asked.engine == "embedded" else None
    try:
        detect(environ)
    except DetectionError as error:
        return str(error) if error.none else None
    return None


def image_of(asked: ServeRequest, prepared: PreparedJob) -> str:
    """Return the name of the image for a container. Raises UsageError: none is known."""
    image = asked.image or prepared.job.image
    if image is None:
        raise UsageError(f"no image is known for {prepared.recipe.name}: name one with --image")
    return image


def reachable(asked: ServeRequest) -> ServeRequest:
    """Return the options with an address that other machines reach, if the server runs on another one; it asks for a key."""
    if asked.slurm and is_loopback(asked.host):
        return replace(asked, host="0.0.0.0")  # noqa: S104  # with a key
    return asked


def _named(gpus: str) -> Fleet:
    """Return the GPUs that the user names."""
    try:
        return parse_gpus(gpus)
    except UnknownGpu as error:
        raise UsageError(
            f"{error}; for another GPU, m3agent plan --gpu-memory GB prints a command to adapt"
        ) from None


def server_files(asked: ServeRequest, environ: Mapping[str, str]) -> tuple[Choice, dict[str, str]]:
    """Plan several servers behind a router; `asked.gpus` are those of all servers here, or of each machine.

    Returns:
        What each server starts, and the files of the set by name.

    Raises:
        EnvironmentFault: The GPUs cannot be detected, or they do not suffice.
        UsageError: The options are unusable.
    """
    if any(map(asked.gives, ("recipe", "container", "slurm", "node_rank"))):
        raise UsageError(
            "--servers takes a plan and starts processes: leave out --recipe, --container, --slurm and --node-rank"
        )
    if asked.engine not in (None, "vllm"):
        raise UsageError(f"--servers is for vLLM, and --engine names {asked.engine}: leave out --engine")
    given = detect(environ).fleet if asked.gpus is None else _named(asked.gpus)
    places, fleet = _places(asked, given)
    exposed = needs_key(places, asked.host)
    each = replace(
        asked,
        engine="vllm",
        gpus=str(fleet),
        concurrency=-(-asked.concurrency // len(places)),
        host="0.0.0.0" if exposed else "127.0.0.1",  # noqa: S104  # other machines reach it, with a key
    )
    try:
        choice = choose(each, environ, key=None, local=False)
    except UsageError as error:
        if fleet == given:
            raise
        raise UsageError(
            f"{len(places)} servers divide {given}, so each has {fleet}; for each server: {error}"
        ) from None
    if choice.plan is None or not choice.plan.is_one_rank_of(fleet):
        raise UsageError(
            f"each server would be {fleet}, and its best plan does not use them as one rank: name more servers with fewer "
            "GPUs each, or lower --concurrency"
        )
    if asked.router == "llm-d":
        return choice, _cluster_files(asked, choice, environ, replicas=len(places))
    files = set_files(
        choice.prepared.job,
        places,
        asked.router or "vllm-router",
        host=asked.host,
        port=asked.port or FIRST_PORT,
        visible="HIP_VISIBLE_DEVICES" if fleet.gpu.vendor is Vendor.AMD else "CUDA_VISIBLE_DEVICES",
        versions=choice.plan.versions,
        packages=choice.prepared.packages,
    )
    return choice, files


def _places(asked: ServeRequest, given: Fleet) -> tuple[list[Place], Fleet]:
    """Return where the servers run, and the GPUs of each."""
    servers = asked.servers or ""
    if not servers.strip().isdecimal():
        return named_places(servers), given
    if given.nodes > 1:
        raise UsageError(
            f"{given} are {given.nodes} machines, and a number of servers is for one machine: {NAMED}"
        )
    places = local_places(int(servers), given.per_node, asked.port or FIRST_PORT)
    return places, replace(given, per_node=given.per_node // len(places))


def cluster_files(asked: ServeRequest, environ: Mapping[str, str]) -> tuple[Choice, dict[str, str]]:
    """Plan one server in a Kubernetes cluster, or with llm-d as many as fit; `asked.gpus` are all GPUs.

    Returns:
        What it starts, and the files by name.

    Raises:
        EnvironmentFault: The GPUs cannot be detected, or they do not suffice.
        UsageError: The options are unusable.
    """
    if any(map(asked.gives, ("recipe", "slurm", "servers", "node_rank"))):
        raise UsageError(
            "--kubernetes takes a plan and starts nothing here: leave out --recipe, --slurm, --servers and --node-rank"
        )
    if asked.router not in (None, "llm-d"):
        raise UsageError(
            f"--kubernetes has no files for the router {asked.router}: give --router llm-d for several servers, or leave it out for one"
        )
    if asked.engine is not None:
        check_engine(asked.engine)
    if asked.router == "llm-d":
        given = detect(environ).fleet if asked.gpus is None else _named(asked.gpus)
        machine = replace(given, nodes=1)
        each = replace(asked, gpus=str(machine), concurrency=-(-asked.concurrency // given.nodes))
        choice = choose(replace(each, host="127.0.0.1"), environ, key=None, local=False)
        assert choice.plan is not None, "made for a plan only"
        return choice, _cluster_files(asked, choice, environ, replicas=_fitting(given, choice.plan))
    choice = choose(replace(asked, host="0.0.0.0"), environ, key=None, local=False)  # noqa: S104  # other pods reach it, with a key
    assert choice.plan is not None and choice.fleet is not None, "made for a plan only"
    if choice.plan.nodes == 1 and (fit := _fitting(choice.fleet, choice.plan)) > 1:
        note = (
            f"{choice.fleet} are enough for {fit} servers, and the files have one, on {choice.plan.gpus}: --router llm-d writes all "
            "of them, and keeps a session with its server"
        )
        choice = replace(choice, notes=(*choice.notes, note))
    return choice, _cluster_files(asked, choice, environ)


def _fitting(fleet: Fleet, plan: Plan) -> int:
    """Return how many servers on one machine each the GPUs are enough for."""
    return fleet.per_node // plan.count * fleet.nodes


def _cluster_files(
    asked: ServeRequest, choice: Choice, environ: Mapping[str, str], replicas: int = 1
) -> dict[str, str]:
    plan = choice.plan
    assert plan is not None, "made for a plan only"
    amd = plan.vendor is Vendor.AMD
    cluster = Cluster(
        "amd.com/gpu" if amd else "nvidia.com/gpu",
        "amd.com/gpu.product-name" if amd else "nvidia.com/gpu.product",
        plan.fleet.gpu.products,
        weights=plan.memory.weights * plan.count,
        replicas=replicas,
        llm_d=asked.router == "llm-d",
        name=asked.name or NAME,
        mirror=environ.get("HF_ENDPOINT"),
    )
    return kubernetes_files(replace(choice.prepared.job, image=image_of(asked, choice.prepared)), cluster)


def _recipe_choice(
    named: str,
    asked: ServeRequest,
    wanted: LaunchRequest,
    checkpoint: Checkpoint | None,
    environ: Mapping[str, str],
    *,
    local: bool,
) -> Choice:
    """Prepare a recipe as it is documented, without a plan."""
    documented = recipe(named)
    _check_for_recipe(documented, asked)
    if local and documented.no_server is not None:
        raise UsageError(documented.no_server)
    prepared = prepare(documented, wanted)
    here = _detect(asked, environ) if local and prepared.job.argv[0] != "srun" else None
    notes = [*(here.notes if here else ())]
    if asked.gpus is not None or here is not None:
        fleet = _fleet(asked, here)
        own = None if checkpoint is None else checkpoint.precision
        if why := misfit(documented, fleet, prepared.job.argv, prepared.job.env, own):
            raise UsageError(why)
        if unused := fleet.count - documented.gpus:
            notes.append(
                f"{unused} of the {fleet.count} GPUs stay unused: the recipe is for {documented.gpus}"
            )
    if checkpoint is None:
        with contextlib.suppress(CheckpointError):  # a recipe may name a folder of another machine
            checkpoint = read_checkpoint(prepared.job.model, environ, weights=False, revision=asked.revision)
    return Choice(prepared, None, None, here, checkpoint, (*notes, *_left_out(prepared)))


def _check_for_recipe(documented: Recipe, asked: ServeRequest) -> None:
    """Refuse options that a documented command does not take."""
    of_a_plan = {
        "--draft on": asked.draft == "on",
        "--draft-model": asked.draft_model,
        "--host-cache": asked.host_cache,
        "--concurrency": asked.concurrency != 1,
        "--typical": asked.typical,
        "--precision": asked.precision,
    }
    if given := [option for option, value in of_a_plan.items() if value]:
        use = f"--recipe {documented.name}" if asked.recipe else f"--engine {asked.engine}"
        raise UsageError(
            f"{' and '.join(given)} {'are' if len(given) > 1 else 'is'} for a plan, and {use} uses a documented command: leave "
            "out one, or give the engine's own option after --"
        )
    if asked.engine not in (None, documented.engine):
        raise UsageError(f"{documented.name} starts {documented.engine}: leave out --engine {asked.engine}")
    if asked.slurm and documented.engine == "dynamo":
        raise UsageError(
            f"--slurm runs {documented.name} where other machines reach it, and Dynamo's frontend asks for no key: leave out --slurm"
        )


def _left_out(prepared: PreparedJob) -> list[str]:
    """Return sentences about what the engine's image lacks."""
    sentences = []
    for change in prepared.left_out:
        variables = [f"set {name}={value}" for name, value in change.env.items()]
        options = [f"give {' '.join(option)} after --" for option in change.added]
        sentences.append(
            f"{change.what} left out: the engine's images lack {' and '.join(change.packages)}; for an image of your own that has "
            f"it, {' and '.join(variables + options)}"
        )
    return sentences


def _go_together(asked: ServeRequest) -> None:
    """Refuse an option that would have no effect without another one, or beside it."""
    for option, needed in _NEEDS.items():
        if asked.gives(option) and not asked.gives(needed):
            other = needed.replace("_", "-")
            raise UsageError(f"--{option} is for --{other}: give both, or leave out --{option}")
    if asked.engine == "embedded":
        raise UsageError(
            "--engine embedded serves on this machine only: leave out --engine or the other options"
        )
    if asked.slurm and asked.container:
        raise UsageError(
            "--slurm starts no container of m3agent's: leave out --slurm, or --container and --image"
        )
    if asked.slurm and asked.gpus is None and asked.recipe is None:
        raise UsageError(
            "--slurm runs it on other machines: name their GPUs with --gpus, like 8xH200 or 2x8xH100"
        )


def _checkpoint(asked: ServeRequest, environ: Mapping[str, str]) -> Checkpoint | None:
    """Return the checkpoint that --model names; None without --model. Raises UsageError."""
    if asked.model is None:
        return None
    if asked.in_volume:
        return elsewhere(asked.model)
    weights = not random_weights(asked.options)
    return read_checkpoint(asked.model, environ, weights=weights, revision=asked.revision)


def choose(asked: ServeRequest, environ: Mapping[str, str], *, key: str | None, local: bool) -> Choice:
    """Plan and prepare the server.

    Args:
        local: The named GPUs must exist on this machine.

    Raises:
        EnvironmentFault: The GPUs cannot be detected, or they do not suffice.
        UsageError: The options, the checkpoint or the named GPUs are unusable.
    """
    _go_together(asked)
    in_image = asked.container or asked.kubernetes or (asked.servers is not None and asked.router == "llm-d")
    wanted = replace(asked, key=key, environ=environ, in_image=in_image)
    checkpoint = _checkpoint(asked, environ)
    if checkpoint is not None:
        wanted = replace(wanted, model=checkpoint.name)
    named = asked.recipe or (DYNAMO_RECIPE if asked.engine == "dynamo" else None)
    if named is not None:
        return _recipe_choice(named, asked, wanted, checkpoint, environ, local=local)
    here = _detect(asked, environ) if local or asked.gpus is None else None
    fleet = _fleet(asked, here)
    plan, notes = _plan(asked, fleet, checkpoint, _installed(asked, environ) if here else None, environ)
    prepared = prepare(recipe(plan.recipe), wanted, plan)
    if checkpoint is None:
        checkpoint = read_checkpoint(prepared.job.model, environ, weights=False, revision=asked.revision)
    if asked.in_volume:
        notes.append(
            f"{checkpoint.name} is a folder of the cluster's volume: fill it as docs/kubernetes.md says; planned as "
            f"{plan.precision.value}, --precision names another"
        )
    notes = [*(here.notes if here else ()), *_left_out(prepared), *notes, *_of_image(wanted, prepared, plan)]
    return Choice(prepared, plan, fleet, here, checkpoint, tuple(notes))


def _of_image(wanted: ServeRequest, prepared: PreparedJob, plan: Plan) -> list[str]:
    """Return warnings about the engine in the image, if one is used. Raises UsageError: its version must not serve the plan."""
    image = wanted.image or prepared.job.image
    return image_warnings(prepared, plan, image) if wanted.in_image and image is not None else []


def _detect(asked: ServeRequest, environ: Mapping[str, str]) -> Detected:
    try:
        return detect(environ)
    except DetectionError as error:
        if not error.none or asked.gpus is None:
            raise
        raise EnvironmentFault(
            f"this machine cannot serve on {asked.gpus}: neither nvidia-smi nor amd-smi nor rocm-smi lists a GPU; "
            "--dry-run prints the command for a machine that has them"
        ) from None


def _fleet(asked: ServeRequest, detected: Detected | None) -> Fleet:
    """Return the GPUs to plan for. Named GPUs must be present if this machine's GPUs are known."""
    if asked.gpus is None:
        assert detected is not None, "asked for where none are named"
        return detected.fleet
    fleet = _named(asked.gpus)
    if detected is None:
        return fleet
    here = detected.fleet
    if fleet.nodes > 1 and asked.node_rank is None:
        return fleet  # the GPUs of several nodes cannot be checked here
    if fleet.gpu.name != here.gpu.name or fleet.per_node > here.count:
        raise EnvironmentFault(
            f"this machine has {here}, not {fleet}: leave --gpus out to use what is here, or add --dry-run to see the plan"
        )
    return replace(here, per_node=fleet.per_node, nodes=fleet.nodes)


def _installed(asked: ServeRequest, environ: Mapping[str, str]) -> str | None:
    """Return the version of vLLM that this machine would start, as far as known; the plan suits it."""
    if asked.engine not in (None, "vllm") or asked.container or asked.slurm:
        return None
    return base_version(installed_version("vllm", ("vllm", "serve"), environ.get("PATH")))


def base_version(version: str | None) -> str | None:
    """Return a version without its build's marks; None if the text is not a version."""
    try:
        return None if version is None else Version(version).base_version
    except InvalidVersion:
        return None


def _why_no_draft(
    asked: ServeRequest, checkpoint: Checkpoint | None, environ: Mapping[str, str]
) -> str | None:
    """Return why no draft is chosen without being asked for; None if one may be."""
    if random_weights(asked.options):
        return "no draft: with random weights no drafted token is right (--draft on uses it anyway)"
    if checkpoint is not None and not checkpoint.whole:
        return "no draft: the checkpoint does not have M3's sizes"
    if any(flag_of((word,)) in _SPECULATIVE for word in asked.options):
        return "no draft: the options after -- configure one"
    if asked.draft_model is not None and not is_here(asked.draft_model, environ):
        return f"no draft: {asked.draft_model} is not on this machine; --draft on downloads it"
    return None


def _plan(
    asked: ServeRequest,
    fleet: Fleet,
    checkpoint: Checkpoint | None,
    version: str | None,
    environ: Mapping[str, str],
) -> tuple[Plan, list[str]]:
    """Return the best plan, and notes about it for the user."""
    from m3agent.cli.plan import refusal

    wish, notes = _wish(asked, checkpoint, version, environ)
    best = plans(fleet, wish)
    if not best and asked.context is None and (longest := longest_context(fleet, wish)):
        notes.append(f"{fleet} cannot hold {wish.context:,} tokens: the window is {longest:,}")
        wish = replace(wish, context=longest)
        best = plans(fleet, wish)
    if not best:
        fault = EnvironmentFault if asked.gpus is None else UsageError
        raise fault(refusal(fleet, wish, refusals(fleet, wish)))
    return replace(best[0], predicted=checkpoint is None or checkpoint.whole), notes


def _wish(
    asked: ServeRequest, checkpoint: Checkpoint | None, version: str | None, environ: Mapping[str, str]
) -> tuple[PlanRequest, list[str]]:
    """Return what the plan is for, and notes about it for the user."""
    draft, notes = asked.draft_model or GQA_DRAFT.model, []
    if asked.draft == "on" and lacking_download(draft, environ):
        raise UsageError(
            f"the draft {draft} is not on this machine and HF_HUB_OFFLINE forbids the download: unset it, or give the draft's "
            "folder with --draft-model"
        )
    why = _why_no_draft(asked, checkpoint, environ) if asked.draft == "auto" else None
    if why and asked.draft_model:
        notes.append(why)
    checkpoint = checkpoint or Checkpoint("", None)
    if not checkpoint.whole:
        notes.append(f"{checkpoint.name} does not have M3's sizes, so its memory is not predicted")
    wish = PlanRequest(
        context=NATIVE_CONTEXT if asked.context is None else asked.context,
        concurrency=asked.concurrency,
        typical=asked.typical,
        precision=Precision(asked.precision) if asked.precision else checkpoint.precision,
        engine=None if asked.engine is None else EngineKind(asked.engine),
        own=checkpoint.name not in ("", *CHECKPOINTS.values()),
        vision=asked.vision,
        shape=checkpoint.shape if checkpoint.whole else SMALLEST,
        draft_use=DraftUse.OFF if why else DraftUse(asked.draft),
        draft=read_draft(draft, environ) if asked.draft != "off" else GQA_DRAFT,
        draft_here=is_here(draft, environ),
        host_cache=asked.host_cache * GIGABYTE,
        version=version,
    )
    return wish, notes


def barred(choice: Choice, version: str) -> str | None:
    """Return the reason why this version of the engine must not serve the plan; None if it may."""
    plan, setup, number = choice.plan, choice.prepared.setup, base_version(version)
    if plan is None or setup is None or number is None:
        return None
    why = why_barred(plan, setup, number)
    return f"{plan.engine} {version} is installed{why}" if why else None

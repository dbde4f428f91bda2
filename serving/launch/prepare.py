"""Turn a plan or a recipe into a job.

The command is the documented one, then the changes for agent work and the plan, then the user's own options.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from m3agent.serving.client.http import is_loopback
from m3agent.serving.launch.job import EngineJob
from m3agent.serving.plan.command import LaunchCommand, Option, flag_of
from m3agent.serving.plan.command_setup import setup_of
from m3agent.serving.plan.engines import ENGINES
from m3agent.serving.plan.known_issues import Setup, Severity, met
from m3agent.serving.plan.listing import OptionListing, listing, problems, versions
from m3agent.serving.plan.memory_model import KV_HEADS, QUERY_HEADS, possible_tp
from m3agent.serving.plan.overlay import (
    KEY,
    KvCacheDtype,
    RecipeChange,
    applied,
    files_beside,
    overlay,
    packages_beside,
)
from m3agent.serving.plan.plan import Plan
from m3agent.serving.plan.recipe import HTTP_HOST, HTTP_PORT, Recipe
from m3agent.util.errors import UsageError

_MODEL_VARIABLE = "MODEL"  # variable in TensorRT-LLM's guide
_SWITCHES = ("VLLM_", "SGLANG_")
_DUMMY = "dummy"  # vLLM's and SGLang's --load-format for random weights


@dataclass(frozen=True)
class LaunchRequest:
    """What the user wants from the server."""

    host: str = "127.0.0.1"
    port: int = 8000
    model: str | None = None
    """Checkpoint to use instead of the recipe's."""
    key: str | None = None
    """Key that the server requires if other machines can reach it."""
    options: Sequence[str] = ()
    """The user's own options for the engine; they replace ours."""
    context: int | None = None
    """Context window in tokens; None keeps the recipe's."""
    vision: bool = False
    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    in_image: bool = False
    """Whether the engine runs in a container image. Nothing can be installed there."""

    @property
    def revision(self) -> str:
        """The revision of the checkpoint that the user's options name; empty if they name none."""
        return LaunchCommand.of(("options", *self.options)).value("--revision")


@dataclass(frozen=True)
class PreparedJob:
    """A job, its recipe, and the changes between them."""

    job: EngineJob
    recipe: Recipe
    changes: Sequence[RecipeChange] = field(default_factory=tuple)
    setup: Setup | None = None
    """The job as the table of traps reads it; None without a plan."""
    left_out: Sequence[RecipeChange] = ()
    """Changes that were not made, because the engine's image lacks their packages."""

    @property
    def random_weights(self) -> bool:
        """True if the engine makes up random weights."""
        return random_weights(self.job.argv)

    @property
    def packages(self) -> list[str]:
        """Packages that have to be installed beside the engine."""
        return packages_beside(self.changes)


def random_weights(options: Sequence[str]) -> bool:
    """Return whether an engine's options request random weights."""
    words = " ".join(options).replace("=", " ").split()
    return any(pair == ("--load-format", _DUMMY) for pair in itertools.pairwise(words))


def prepare(recipe: Recipe, wanted: LaunchRequest, plan: Plan | None = None) -> PreparedJob:
    """Build the job of a recipe; a plan sets its layout and memory.

    Raises:
        UsageError: The recipe is never started, the recipe or the engine rejects an option, or a trap refuses
            the command.
    """
    if recipe.refused:
        raise UsageError(f"{recipe.name} cannot be started: {recipe.refused}")
    changes, left_out = _changes(recipe, wanted, plan)
    argv, env = applied(recipe, changes)
    model = recipe.checkpoint
    if plan is not None:
        model = plan.checkpoint or model
        env |= plan.env
    model = wanted.model or model
    env |= _for_scripts(env, wanted)
    argv = _with_own(argv, recipe, model, wanted, changed=bool(changes))
    setup = None if plan is None else _allowed(plan, argv, env, wanted.environ)
    job = EngineJob(
        engine=recipe.engine,
        argv=argv,
        env=_filled(env, wanted.key),
        files=_filled(files_beside(recipe, changes, argv, env), wanted.key),
        host=wanted.host,
        port=wanted.port,
        gpus=recipe.gpus,
        image=_image(recipe, plan, setup),
        model=model,
    )
    if plan is not None:
        host_cache, draft = plan.wish.host_cache, plan.draft_model or ""
        job = replace(job, gpus=plan.count, nodes=plan.nodes, host_cache=host_cache, draft=draft)
    return PreparedJob(job, recipe, changes, setup, left_out)


def _changes(
    recipe: Recipe, wanted: LaunchRequest, plan: Plan | None
) -> tuple[list[RecipeChange], list[RecipeChange]]:
    """Return the changes to a recipe, and those that were left out because the engine's image lacks their packages."""
    changes = overlay(
        recipe,
        context=wanted.context if plan is None else plan.context,
        vision=wanted.vision if plan is None else not plan.text_only,
        loopback=is_loopback(wanted.host),
        kv_dtype=None if plan is None else _kv_dtype(plan),
        plan=plan,
    )
    left_out = [change for change in changes if wanted.in_image and _lacks_packages(change, wanted.environ)]
    return [change for change in changes if change not in left_out], left_out


def _for_scripts(env: Mapping[str, str], wanted: LaunchRequest) -> dict[str, str]:
    """Return the values of the variables by which a documented script takes its address and its model."""
    values: dict[str, str] = {}
    if HTTP_HOST in env:
        if not is_loopback(wanted.host):
            raise UsageError(
                f"{wanted.host} is not a loopback address, and Dynamo's frontend asks for no key: serve on 127.0.0.1, and put a "
                "proxy in front of it that asks for one"
            )
        values = {HTTP_HOST: wanted.host, HTTP_PORT: str(wanted.port)}
    if _MODEL_VARIABLE in env and wanted.model:
        values[_MODEL_VARIABLE] = wanted.model
    return values


def _with_own(
    argv: tuple[str, ...], recipe: Recipe, model: str, wanted: LaunchRequest, *, changed: bool
) -> tuple[str, ...]:
    """Return the command with the user's model, options and address, if the recipe starts the engine itself."""
    if not changed:
        if wanted.options or wanted.model or wanted.vision:
            raise UsageError(f"{recipe.name} has no options to set: {recipe.notes}")
        return argv
    argv = tuple(model if word == recipe.checkpoint else word for word in argv)
    argv = with_options(argv, wanted.options, recipe.engine)
    argv = with_options(argv, ("--port", str(wanted.port), "--host", wanted.host), recipe.engine)
    # the installed version may be any of the listed ones, so one that accepts the command is enough
    wrong = [problems(argv, listing(recipe.engine, version)) for version in versions(recipe.engine)]
    if wrong and all(wrong):
        raise UsageError(" ".join(wrong[-1]))
    return argv


def _allowed(plan: Plan, argv: Sequence[str], env: Mapping[str, str], environ: Mapping[str, str]) -> Setup:
    """Return what a command starts; raise UsageError if a trap refuses that."""
    inherited = {name: value for name, value in environ.items() if name.startswith(_SWITCHES)}
    setup = setup_of(argv, {**inherited, **env}, plan.setup)
    for trap in met(setup, Severity.REFUSE):
        raise UsageError(trap.sentence)
    if setup.engine == "vllm":
        _check_split(setup, plan.count)
    return setup


def _check_split(setup: Setup, gpus: int) -> None:
    """Check that vLLM can divide M3 as a command says. Raises UsageError: it cannot, and would end at the start."""
    if not possible_tp(setup.tp):
        raise UsageError(
            f"M3's {QUERY_HEADS} heads, with {KV_HEADS} for keys and values, cannot be divided among {setup.tp} GPUs: give 1, 2, 4, 8 "
            "or 16 with --tensor-parallel-size, or leave it out"
        )
    if (needed := setup.tp * setup.pp * setup.dp) > gpus:
        raise UsageError(
            f"the options after -- divide M3 among {needed} GPUs (tensor {setup.tp}, pipeline {setup.pp}, data {setup.dp}), and the plan "
            f"is for {gpus}: leave them out, or name more GPUs"
        )


def _lacks_packages(change: RecipeChange, environ: Mapping[str, str]) -> bool:
    """Return whether an engine's image lacks what a change needs, unless the user sets the change's variable."""
    return bool(change.packages) and not any(environ.get(name) == value for name, value in change.env.items())


def why_barred(plan: Plan, setup: Setup, version: str) -> str:
    """Return why a version of the engine must not serve a plan, as the end of a clause about it; empty if it may."""
    for trap in met(replace(setup, version=version), Severity.REFUSE):
        return f": {trap.sentence}"
    if not SpecifierSet(plan.versions, prereleases=True).contains(version):
        return f", and M3 needs {plan.versions}: install such a version"
    return ""


def _image(recipe: Recipe, plan: Plan | None, setup: Setup | None) -> str | None:
    """Return the image for a job: that of the newest engine which may serve the plan, otherwise the recipe's.

    The recipes' image for MiniMax M3 has a vLLM from before 0.24 (its page: pushed on 2026-06-12).
    """
    repository = ENGINES[recipe.engine].images.get(recipe.vendor)
    if plan is None or setup is None or repository is None:
        return recipe.image
    may_serve = [version for version in versions(recipe.engine) if not why_barred(plan, setup, version)]
    return f"{repository}:v{max(may_serve, key=Version)}" if may_serve else recipe.image


def image_warnings(prepared: PreparedJob, plan: Plan, image: str) -> list[str]:
    """Return what is known of the engine's version in an image, and not said of the plan; empty if the tag names no version.

    Raises:
        UsageError: That version must not serve the plan.
    """
    repository, _, tag = image.rpartition(":")
    setup, known = prepared.setup, ENGINES[plan.engine]
    version = re.match(r"v?(\d+\.\d+[\d.]*(?:rc\d+)?(?:\.post\d+)?)(?=-|$)", tag)
    repositories = (*known.images.values(), *known.tagged)
    if setup is None or version is None or not repository.endswith(repositories):
        return []
    if why := why_barred(plan, setup, version[1]):
        raise UsageError(f"the image {image} has {known.title} {version[1]}{why}")
    always = met(setup, Severity.WARN)
    there = met(replace(setup, version=version[1]), Severity.WARN)
    return [
        f"{known.title} {version[1]} in the image: {trap.sentence}" for trap in there if trap not in always
    ]


def with_options(argv: Sequence[str], options: Sequence[str], engine: str) -> tuple[str, ...]:
    """Return a command with further options, which replace options with the same meaning.

    Raises:
        UsageError: A word belongs to no option.
    """
    command, more = LaunchCommand.of(argv), LaunchCommand.of(("options", *options))
    if more.positional:
        raise UsageError(
            f"{more.positional[0]!r} after -- is not an option of the engine: give only options there"
        )
    known = listing(engine) if versions(engine) else None
    new = {_meant(option, known) for option in more.options}
    kept = [option for option in command.options if _meant(option, known) not in new]
    return replace(command, options=(*kept, *more.options)).words


def _meant(option: Option, known: OptionListing | None) -> object:
    """Return the setting that an option changes, whichever of its flags is used."""
    flag = flag_of(option)
    return flag if known is None else known.options.get(known.spelt(flag), flag)


def _kv_dtype(plan: Plan) -> KvCacheDtype | None:
    if plan.engine == "trtllm":
        return None
    return "fp8" if plan.fp8 else "auto"


def _filled(texts: Mapping[str, str], key: str | None) -> dict[str, str]:
    """Return the texts with the key in place of its placeholder."""
    return {name: text.replace(KEY, key) if key else text for name, text in texts.items()}

"""From a plan or a recipe to a job: the documented command, what agent work and the plan change in it, and a person's
own options last."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from m3agent.serving.http import is_loopback
from m3agent.serving.launch.job import Job
from m3agent.serving.plan.change import KEY, Change, KvCacheDtype
from m3agent.serving.plan.command import Command, Option, flag_of
from m3agent.serving.plan.listing import Listing, listing, problems, versions
from m3agent.serving.plan.overlay import applied, files_beside, overlay, packages_beside
from m3agent.serving.plan.planner import Plan
from m3agent.serving.plan.recipe import Recipe

_MODEL_VARIABLE = "MODEL"  # of TensorRT-LLM's guide
_DUMMY = "dummy"  # vLLM's and SGLang's --load-format for made-up weights


class OptionsError(ValueError):
    """What was asked for cannot be put into the engine's command: one sentence."""


@dataclass(frozen=True)
class Wanted:
    """How a server is to stand there. `model`: in place of the recipe's checkpoint; `options`: the person's own for
    the engine, which replace ours; `key`: what it asks for where others can reach it.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    model: str | None = None
    key: str | None = None
    options: Sequence[str] = ()
    context: int | None = None
    vision: bool = False
    kv_dtype: KvCacheDtype | None = None


@dataclass(frozen=True)
class Prepared:
    """A job, and the changes that made it from the recipe."""

    job: Job
    recipe: Recipe
    changes: Sequence[Change] = field(default_factory=tuple)

    @property
    def random_weights(self) -> bool:
        """Whether weights are made up."""
        return random_weights(self.job.argv)

    @property
    def packages(self) -> list[str]:
        """What has to be installed beside the engine."""
        return packages_beside(self.changes)


def random_weights(options: Sequence[str]) -> bool:
    """Whether options of an engine ask for made-up weights."""
    words = " ".join(options).replace("=", " ").split()
    return any(pair == ("--load-format", _DUMMY) for pair in itertools.pairwise(words))


def prepare(recipe: Recipe, wanted: Wanted, plan: Plan | None = None) -> Prepared:
    """The job of a recipe, spread as the plan has it where there is one.

    Raises OptionsError for what the recipe or the engine does not take.
    """
    if recipe.refused:
        raise OptionsError(f"{recipe.name} is never started: {recipe.refused}")
    loopback = is_loopback(wanted.host)
    try:
        changes = overlay(
            recipe,
            context=wanted.context if plan is None else plan.max_model_len,
            vision=wanted.vision if plan is None else not plan.text_only,
            loopback=loopback,
            kv_dtype=wanted.kv_dtype if plan is None else _kv_dtype(plan),
            plan=plan,
        )
    except ValueError as error:
        raise OptionsError(str(error)) from None
    argv, env = applied(recipe, changes)
    if plan is not None:
        env |= plan.env
    model = wanted.model or (plan.checkpoint if plan is not None else None) or recipe.checkpoint
    if _MODEL_VARIABLE in env and wanted.model:
        env[_MODEL_VARIABLE] = wanted.model
    if changes:  # the engine's own command: its address and the person's options can be put in
        argv = tuple(model if word == recipe.checkpoint else word for word in argv)
        argv = with_options(argv, wanted.options, recipe.engine)
        argv = with_options(argv, ("--port", str(wanted.port), "--host", wanted.host), recipe.engine)
        _check(argv, recipe)
    elif wanted.options or wanted.model:
        raise OptionsError(f"{recipe.name} has no options to set: {recipe.notes}")
    job = Job(
        recipe.engine,
        tuple(argv),
        _filled(env, wanted.key),
        _filled(files_beside(recipe, changes, argv, env), wanted.key),
        wanted.host,
        wanted.port,
        recipe.gpus if plan is None else plan.count,
        1 if plan is None else plan.nodes,
        recipe.image,
        model,
    )
    return Prepared(job, recipe, changes)


def with_options(argv: Sequence[str], options: Sequence[str], engine: str) -> tuple[str, ...]:
    """A command with further options, which take the place of those that set the same.

    Raises OptionsError for words that belong to no option.
    """
    command, more = Command.of(argv), Command.of(("options", *options))
    if more.positional:
        raise OptionsError(
            f"{more.positional[0]!r} after -- is no option of the engine: only options stand there"
        )
    known = listing(engine) if versions(engine) else None
    new = {_meant(option, known) for option in more.options}
    kept = [option for option in command.options if _meant(option, known) not in new]
    return replace(command, options=(*kept, *more.options)).words


def _meant(option: Option, known: Listing | None) -> object:
    """What an option sets, under whichever of its names."""
    flag = flag_of(option)
    return flag if known is None else known.options.get(known.spelt(flag), flag)


def _check(argv: Sequence[str], recipe: Recipe) -> None:
    """Refuse what no version takes that there is a listing of; the installed one may be any of them."""
    found = [problems(argv, listing(recipe.engine, version)) for version in versions(recipe.engine)]
    if found and all(found):
        raise OptionsError(" ".join(found[-1]))


def _kv_dtype(plan: Plan) -> KvCacheDtype | None:
    if plan.engine == "trtllm":
        return None
    return "fp8" if plan.kv_cache_dtype.startswith("fp8") else "auto"


def _filled(texts: Mapping[str, str], key: str | None) -> dict[str, str]:
    """With the key where its placeholder stands."""
    return {name: text.replace(KEY, key) if key else text for name, text in texts.items()}

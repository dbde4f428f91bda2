"""What agent work changes in a documented recipe: each option and variable with its reason.

An agent sends the same growing conversation again and again, so what a benchmark turns off or leaves out is what makes
its turns fast: the prefix cache, a fast tokeniser, and an account of what was cached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from m3agent.serving.plan import overlay_sglang, overlay_trtllm, overlay_vllm
from m3agent.serving.plan.change import Change, KvCacheDtype, Rule, Wanted
from m3agent.serving.plan.command import Command
from m3agent.serving.plan.recipe import MXFP4, SLURM_SCRIPT, Recipe, slurm_script
from m3agent.serving.plan.shape import LONGEST_CONTEXT

if TYPE_CHECKING:
    from m3agent.serving.plan.planner import Plan

_RULES: Mapping[str, tuple[Rule, ...]] = {
    "vllm": overlay_vllm.RULES,
    "sglang": overlay_sglang.RULES,
    "trtllm": overlay_trtllm.RULES,
}


def overlay(
    recipe: Recipe,
    *,
    context: int | None = None,
    vision: bool = False,
    loopback: bool = True,
    kv_dtype: KvCacheDtype | None = None,
    plan: Plan | None = None,
) -> list[Change]:
    """The changes to a recipe for agent work, in the order in which they are told.

    `context` is the window in tokens, `kv_dtype` the KV cache's type; None leaves what the recipe has. Not `loopback`:
    the server can be reached from other machines and asks for a key. A recipe that starts a container or reads files
    of its own (Docker, Dynamo) is left as it is. Where a recipe has all of it already, only what is kept is told. With
    a `plan` it is spread over the plan's GPUs with the plan's memory.

    Raises:
        ValueError: The window is none that M3 has, or the KV cache's type does not suit the recipe.
    """
    if context is not None and not 1 <= context <= LONGEST_CONTEXT:
        raise ValueError(f"M3 has no window of {context:,} tokens: take 1 to {LONGEST_CONTEXT:,}.")
    command = Command.of(recipe.argv)
    rules = _RULES.get(recipe.engine, ())
    if not rules or command.starts.startswith("docker"):
        if context is not None or kv_dtype is not None:
            raise ValueError(f"{recipe.name} has no options to set: {recipe.notes}")
        return []
    if kv_dtype == "fp8" and (why := _no_fp8(recipe)):
        raise ValueError(f"{recipe.name} cannot have an fp8 KV cache: {why}.")
    wanted = Wanted(recipe, command, context, vision, loopback, kv_dtype, plan)
    return [change for rule in rules for change in rule(wanted)]


def applied(recipe: Recipe, changes: Sequence[Change]) -> tuple[tuple[str, ...], dict[str, str]]:
    """The recipe's command and environment with the changes: what stays keeps its place, what is new comes last."""
    command = Command.of(recipe.argv)
    dropped = {option for change in changes for option in change.dropped}
    changed = {old: new for change in changes for old, new in change.changed}
    kept = [changed.get(option, option) for option in command.options if option not in dropped]
    added = [option for change in changes for option in change.added]
    env: dict[str, str | None] = {**recipe.env}
    for change in changes:
        env |= change.env
    words = Command(command.launcher, command.program, command.positional, (*kept, *added)).words
    return words, {name: value for name, value in env.items() if value is not None}


def files_beside(
    recipe: Recipe, changes: Sequence[Change], argv: Sequence[str], env: Mapping[str, str]
) -> dict[str, str]:
    """What is written beside a recipe's command as it has become with the changes, by name."""
    files = {**recipe.files}
    for change in changes:
        files |= change.files
    if SLURM_SCRIPT in files:
        files[SLURM_SCRIPT] = slurm_script(argv, env)
    return files


def packages_beside(changes: Sequence[Change]) -> list[str]:
    """What the changes want to be installed beside the engine."""
    return sorted({package for change in changes for package in change.packages})


def _no_fp8(recipe: Recipe) -> str | None:
    if recipe.engine == "trtllm":
        return "TensorRT-LLM serves M3 in BF16 only"
    if recipe.checkpoint == MXFP4:
        return "that checkpoint has no calibrated KV scales, so vLLM would take 1.0 and lose accuracy"
    return None

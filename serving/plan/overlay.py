"""Adapt a documented recipe to agent work: each changed option and variable has a reason.

An agent sends the same growing conversation again and again. Benchmarks turn off or leave out what makes an
agent's turns fast: the prefix cache, a fast tokeniser, and a report of the cached tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from m3agent.serving.plan import overlay_sglang, overlay_trtllm, overlay_vllm
from m3agent.serving.plan.change import ChangeRequest, KvCacheDtype, RecipeChange, Rule
from m3agent.serving.plan.command import LaunchCommand
from m3agent.serving.plan.memory_model import LONGEST_CONTEXT
from m3agent.serving.plan.recipe import MSA_FILE, MXFP4, SLURM_SCRIPT, Recipe, slurm_script

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
) -> list[RecipeChange]:
    """Return the changes to a recipe for agent work, in the order in which they are shown.

    A recipe that starts a container or reads its own files (Docker, Dynamo) stays as it is. Where a recipe
    already has all the options, the result names only what is kept on purpose.

    Args:
        recipe: The documented recipe.
        context: Context window in tokens; None keeps the recipe's.
        vision: Whether the server must accept images.
        loopback: False if other machines may reach the server; it then asks for a key.
        kv_dtype: Type of the KV cache; None keeps the recipe's.
        plan: Spread the recipe over this plan's GPUs, with this plan's memory settings; None keeps the
            recipe's.

    Raises:
        ValueError: M3 does not support the context, the recipe does not support the KV cache type, or the
            recipe has no options to set.
    """
    if context is not None and not 1 <= context <= LONGEST_CONTEXT:
        raise ValueError(f"M3 has no window of {context:,} tokens: give 1 to {LONGEST_CONTEXT:,}.")
    command = LaunchCommand.of(recipe.argv)
    rules = _RULES.get(recipe.engine, ())
    if not rules or command.starts.startswith("docker"):
        if context is not None or kv_dtype is not None:
            raise ValueError(f"{recipe.name} has no options to set: {recipe.notes}")
        return []
    if kv_dtype == "fp8" and (why := _no_fp8(recipe)):
        raise ValueError(f"{recipe.name} cannot have an fp8 KV cache: {why}.")
    wanted = ChangeRequest(recipe, command, context, vision, loopback, kv_dtype, plan)
    return [change for rule in rules for change in rule(wanted)]


def applied(recipe: Recipe, changes: Sequence[RecipeChange]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Apply changes to a recipe.

    Returns:
        The command and its environment. Unchanged and changed options keep their places; new options come
            last.
    """
    command = LaunchCommand.of(recipe.argv)
    dropped = {option for change in changes for option in change.dropped}
    changed = {old: new for change in changes for old, new in change.changed}
    kept = [changed.get(option, option) for option in command.options if option not in dropped]
    added = [option for change in changes for option in change.added]
    env: dict[str, str | None] = {**recipe.env}
    for change in changes:
        env |= change.env
    words = LaunchCommand(command.launcher, command.program, command.positional, (*kept, *added)).words
    return words, {name: value for name, value in env.items() if value is not None}


def files_beside(
    recipe: Recipe, changes: Sequence[RecipeChange], argv: Sequence[str], env: Mapping[str, str]
) -> dict[str, str]:
    """Return the files to write beside the changed command, by name.

    Args:
        recipe: The documented recipe.
        changes: The changes that were applied.
        argv: The command with the changes.
        env: The environment with the changes.
    """
    files = {**recipe.files}
    for change in changes:
        files |= change.files
    if SLURM_SCRIPT in files:
        files[SLURM_SCRIPT] = slurm_script(argv, env)
    return files


def packages_beside(changes: Sequence[RecipeChange]) -> list[str]:
    """Return the packages that the changes need beside the engine, sorted."""
    return sorted({package for change in changes for package in change.packages})


def _no_fp8(recipe: Recipe) -> str | None:
    if recipe.engine == "trtllm" and MSA_FILE not in recipe.files:
        return "without its msa kernels TensorRT-LLM serves M3 in BF16 only"
    if recipe.checkpoint == MXFP4:
        return "that checkpoint has no calibrated KV scales, so vLLM would use 1.0 and lose accuracy"
    return None

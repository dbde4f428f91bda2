"""Check whether a documented recipe runs on given GPUs: their number, their vendor, and the table of traps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from m3agent.serving.plan.command import LaunchCommand
from m3agent.serving.plan.command_setup import setup_of
from m3agent.serving.plan.gpus import Fleet
from m3agent.serving.plan.kinds import EngineKind, Precision
from m3agent.serving.plan.known_issues import Setup, Severity, met
from m3agent.serving.plan.memory_model import NATIVE_CONTEXT
from m3agent.serving.plan.recipe import CHECKPOINTS, MSA_FILE, Recipe

_PRECISIONS = {name: precision for precision, name in CHECKPOINTS.items()}
"""Precision of the weights by checkpoint; the others are in BF16."""
_VENDORS = {"nvidia": "NVIDIA", "amd": "AMD"}


def misfit(
    recipe: Recipe,
    fleet: Fleet,
    argv: Sequence[str],
    env: Mapping[str, str],
    precision: Precision | None = None,
) -> str | None:
    """Return why a recipe does not run on these GPUs, in one sentence; None if nothing is known against it.

    Args:
        precision: Precision of the user's own checkpoint; None for the recipe's checkpoint.
    """
    if recipe.vendor != fleet.gpu.vendor:
        return f"{recipe.name} is for {_VENDORS[recipe.vendor]}'s GPUs, not for {fleet}: take another recipe"
    if fleet.count < recipe.gpus:
        return f"{recipe.name} needs {recipe.gpus} GPUs, and {fleet} are {fleet.count}: take more, or another recipe"
    if recipe.only:
        return None  # no engine is started, so no trap can be met
    setup = Setup(
        engine=_engine(recipe),
        vendor=fleet.gpu.vendor,
        architecture=fleet.gpu.architecture,
        gpu=fleet.gpu.name,
        precision=precision or _PRECISIONS.get(recipe.checkpoint, Precision.BF16),
        context=_window(argv),
        nodes=fleet.nodes,
        msa=MSA_FILE in recipe.files,
    )
    if recipe.engine != "dynamo":  # the command names the engine's options
        setup = setup_of(argv, env, setup)
    for trap in met(setup, Severity.REFUSE):
        return f"{recipe.name} cannot be served on {fleet}: {trap.sentence}"
    return None


def _window(argv: Sequence[str]) -> int:
    """Return the context window that a command of vLLM names, otherwise M3's own."""
    given = LaunchCommand.of(argv).option("--max-model-len") or ("", "")
    return int(given[1]) if given[1].isdecimal() else NATIVE_CONTEXT


def _engine(recipe: Recipe) -> EngineKind:
    """Return the engine that computes: Dynamo's recipes name it."""
    if recipe.engine == "dynamo":
        return EngineKind.TRTLLM if "-trtllm-" in recipe.name else EngineKind.VLLM
    return EngineKind(recipe.engine)

"""Rules that adapt a recipe for TensorRT-LLM to agent work."""

from __future__ import annotations

from m3agent.serving.plan.change import ChangeRequest, RecipeChange, Rule, only_here
from m3agent.serving.plan.recipe import MSA_FILE, msa_settings


def _remote_code(wanted: ChangeRequest) -> list[RecipeChange]:
    return wanted.change(
        "remote code",
        "TensorRT-LLM's guide says that it cannot load M3 without this option: the checkpoint's own Python "
        "runs on your machine.",
        "TensorRT-LLM's deployment guide for MiniMax-M3",
        keep=["--trust_remote_code"],
    )


def _fast_tokens(wanted: ChangeRequest) -> list[RecipeChange]:
    return wanted.change(
        "fast tokeniser",
        "Builds after 1.3.0rc20 then keep the tokens of the conversation so far; older ones ignore it.",
        "NVIDIA/TensorRT-LLM#19373",
        env={"TLLM_PREFIX_TOKEN_CACHE": "1"},
    )


def _context(wanted: ChangeRequest) -> list[RecipeChange]:
    if wanted.context is None or MSA_FILE in wanted.recipe.files:
        return []
    return wanted.change(
        "window",
        "The window is what the workload needs; without a limit the capture of CUDA graphs can fail with the triton kernels.",
        "TensorRT-LLM's curated settings for MiniMax-M3",
        ("--max_seq_len", str(wanted.context)),
    )


def _settings(wanted: ChangeRequest) -> list[RecipeChange]:
    """Set the window, the layout and the memory of the recipe for one node, whose settings are in a file."""
    plan = wanted.plan
    if MSA_FILE not in wanted.recipe.files or (plan is None and wanted.context is None):
        return []
    if plan is None:
        text = msa_settings() if wanted.context is None else msa_settings(context=wanted.context)
    else:
        text = msa_settings(
            context=plan.max_model_len,
            batched=plan.max_num_batched_tokens,
            host_cache=0 if plan.host_cache is None else plan.host_cache.bytes,
            draft="" if plan.draft is None else plan.draft.model,
        )
    reason = f"{MSA_FILE} has the window, the tokens of a step, the host cache and the draft that are wanted."
    size = ("--tp_size", str(wanted.recipe.gpus if plan is None else plan.tp))
    there = wanted.command.option("--tp_size")
    changed = () if there is None or there == size else ((there, size),)
    return [RecipeChange("settings", reason, "the plan", changed=changed, files={MSA_FILE: text})]


def _tool_parser(wanted: ChangeRequest) -> list[RecipeChange]:
    return wanted.change(
        "tool parser",
        "Without it, tool calls come back as plain text in M3's markup.",
        "TensorRT-LLM's deployment guide for MiniMax-M3",
        ("--tool_parser", "minimax_m3"),
    )


def _reach(wanted: ChangeRequest) -> list[RecipeChange]:
    if wanted.loopback:
        return only_here(wanted, "its documents let it listen on every network")
    return wanted.change(
        "no key",
        "trtllm-serve has no known option for a key: put a proxy in front of it that asks for one.",
        "TensorRT-LLM's deployment guide for MiniMax-M3",
        keep=["--host"],
    )


RULES: tuple[Rule, ...] = (
    _fast_tokens,
    _context,
    _settings,
    _tool_parser,
    _remote_code,
    _reach,
)

"""Rules that adapt a recipe for TensorRT-LLM to agent work."""

from __future__ import annotations

from m3agent.serving.plan.change import ChangeRequest, RecipeChange, Rule, only_here


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
    if wanted.context is None:
        return []
    return wanted.change(
        "window",
        "The window is what the workload needs; without a limit the capture of CUDA graphs can fail.",
        "TensorRT-LLM's curated settings for MiniMax-M3",
        ("--max_seq_len", str(wanted.context)),
    )


def _reach(wanted: ChangeRequest) -> list[RecipeChange]:
    if wanted.loopback:
        return only_here(wanted, "the guide's command listens on every network")
    return wanted.change(
        "no key",
        "trtllm-serve has no known option for a key: put a proxy in front of it that asks for one.",
        "TensorRT-LLM's deployment guide for MiniMax-M3",
        keep=["--host"],
    )


RULES: tuple[Rule, ...] = (
    _fast_tokens,
    _context,
    _remote_code,
    _reach,
)

"""Rules that adapt a recipe for vLLM to agent work."""

from __future__ import annotations

import json

from m3agent.serving.plan.change import (
    KEY,
    ChangeRequest,
    RecipeChange,
    Rule,
    cached_tokens,
    default_thinking,
    kv_dtype,
    only_here,
    remote_code,
    served_name,
)
from m3agent.serving.plan.draft import DRAFT_METHOD
from m3agent.serving.plan.gpus import Vendor
from m3agent.serving.plan.host_cache import GIGABYTE, transfer_config
from m3agent.serving.plan.memory_model import NATIVE_CONTEXT
from m3agent.serving.plan.window import overrides

ENCODER_FLAGS = ("--mm-encoder-tp-mode", "--mm-encoder-attn-backend", "--mm-processor-cache-type")
"""Options of the vision encoder; `--language-model-only` loads no encoder."""

_VLLM_PAGE = "vLLM's recipe page for MiniMax-M3"
_H200 = "measured for m3agent on H200 with vLLM 0.24"


def _block(wanted: ChangeRequest) -> list[RecipeChange]:
    return wanted.change(
        "block size",
        "M3's sparse attention works on blocks of 128 tokens, and the KV cache needs the same block size.",
        _VLLM_PAGE,
        ("--block-size", "128"),
        keep=["--block-size"],
    )


def _prefix_cache(wanted: ChangeRequest) -> list[RecipeChange]:
    return wanted.change(
        "prefix cache",
        "Each turn sends the conversation again: at a million tokens, the first token comes 120 times sooner "
        "with a cached prefix.",
        _H200,
        ("--enable-prefix-caching",),
        drop=["--no-enable-prefix-caching", "--disable-prefix-caching"],
    )


def _parsers(wanted: ChangeRequest) -> list[RecipeChange]:
    return wanted.change(
        "parsers",
        "Without them, tool calls and reasoning come back as plain text in M3's markup.",
        _VLLM_PAGE,
        ("--tool-call-parser", "minimax_m3"),
        ("--reasoning-parser", "minimax_m3"),
        ("--enable-auto-tool-choice",),
    )


def _thinking(wanted: ChangeRequest) -> list[RecipeChange]:
    return default_thinking(wanted, "vllm-project/vllm#46042 and #50594")


def _cached_tokens(wanted: ChangeRequest) -> list[RecipeChange]:
    return cached_tokens(wanted, "--enable-prompt-tokens-details", "vLLM's options")


def _metrics(wanted: ChangeRequest) -> list[RecipeChange]:
    return wanted.change(
        "metrics",
        "--disable-log-stats leaves /metrics empty; /metrics reports the prefix cache's hit rate.",
        "vLLM's metrics",
        drop=["--disable-log-stats"],
    )


def _fast_tokens(wanted: ChangeRequest) -> list[RecipeChange]:
    return wanted.change(
        "fast tokeniser",
        "The whole conversation is tokenized in each turn; without this option, a turn of 959,000 tokens starts "
        "3.5 times later.",
        _H200,
        env={"VLLM_USE_FASTOKENS": "1"},
        packages=("fastokens>=0.3.2",),
    )


def _text_only(wanted: ChangeRequest) -> list[RecipeChange]:
    if wanted.vision:
        return wanted.change(
            "vision",
            "Images were requested, and they need the encoder; for the longest video, which no agent sends, vLLM would "
            "reserve 37 GiB more, after three minutes of measuring at each start.",
            _H200,
            ("--limit-mm-per-prompt", '{"video":0}'),
            drop=["--language-model-only"],
            keep=["--limit-mm-per-prompt"],
        )
    return wanted.change(
        "text only",
        "The vision encoder is left out, and its memory goes to the KV cache; this option excludes the "
        "encoder's options.",
        _VLLM_PAGE,
        ("--language-model-only",),
        drop=ENCODER_FLAGS,
    )


def _kv_dtype(wanted: ChangeRequest) -> list[RecipeChange]:
    return kv_dtype(
        wanted,
        "fp8",
        "It holds about 1.5 times the tokens, lossless in the tests of the recipe's authors.",
        _VLLM_PAGE,
    )


def _index_dtype(wanted: ChangeRequest) -> list[RecipeChange]:
    if wanted.plan is None or wanted.plan.index_dtype != "fp8":
        return []
    return wanted.change(
        "fp8 index keys",
        "Every GPU stores the index keys whole; in fp8 the cache holds a third more tokens, and each step reads half as "
        "many bytes to choose blocks.",
        "vLLM 0.32, models/minimax_m3/common/indexer.py",
        ("--attention-config", '{"indexer_kv_dtype":"fp8"}'),
    )


def _context(wanted: ChangeRequest) -> list[RecipeChange]:
    context, amd = wanted.context, wanted.recipe.vendor == "amd"
    if context is None:
        return []
    long = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
    window = wanted.change(
        "window",
        "The window is what the workload needs: the engine does not start if one full sequence does not fit.",
        _VLLM_PAGE,
        ("--max-model-len", str(context)),
    )
    if context <= NATIVE_CONTEXT:
        stretched = wanted.command.option("--hf-overrides") is not None
        return window + wanted.change(
            "native positions",
            f"M3 has {NATIVE_CONTEXT:,} positions, and a smaller window needs no extension.",
            _VLLM_PAGE,
            drop=["--hf-overrides"],
            env={long: None} if stretched else {},
        )
    vendor = Vendor.AMD if amd else Vendor.NVIDIA
    override = ("--hf-overrides", json.dumps(overrides(vendor, context), separators=(",", ":")))
    if amd:
        return window + wanted.change(
            "positions past 512K",
            "YaRN must be under text_config: at the top level it never reaches the decoder.",
            _VLLM_PAGE,
            override,
            env={long: "1"},
        )
    return window + wanted.change(
        "positions past 512K",
        "On NVIDIA, vLLM does not pass YaRN to M3's rotary embedding, so positions are extrapolated.",
        f"{_H200}, with prompts of 1,000,200 tokens",
        override,
    )


def _reach(wanted: ChangeRequest) -> list[RecipeChange]:
    if wanted.loopback:
        return only_here(wanted, "vLLM listens on all networks by default")
    return wanted.change(
        "key",
        "Other machines can reach the server, so it asks for a key, which protects only the paths under /v1; the key "
        "is in the environment, because every user of a machine can read its command lines.",
        "vLLM's security guide",
        ("--host", "0.0.0.0"),  # noqa: S104  # that is what was asked for
        drop=["--api-key"],
        env={"VLLM_API_KEY": KEY},
    )


def _parallel(wanted: ChangeRequest) -> list[RecipeChange]:
    plan = wanted.plan
    if plan is None:
        return []
    experts, data = ("--enable-expert-parallel",), ("--data-parallel-size", str(plan.dp))
    return wanted.change(
        "parallelism",
        f"As planned for {plan.gpus}: {'each GPU has some of the experts whole' if plan.ep else 'each GPU has a slice of each expert'}"
        + (
            f"; {plan.dp} copies of the attention, each on {plan.tp} GPUs."
            if plan.dp > 1
            else f"; the attention is divided among {plan.tp}."
        ),
        "the plan",
        ("--tensor-parallel-size", str(plan.tp)),
        *([experts] if plan.ep else []),
        *([data] if plan.dp > 1 else []),
        drop=[*([] if plan.ep else experts), *([] if plan.dp > 1 else data[:1])],
    )


def _memory(wanted: ChangeRequest) -> list[RecipeChange]:
    plan = wanted.plan
    if plan is None:
        return []
    capacity = (
        f"the predicted capacity of the KV cache is {plan.kv_tokens:,} tokens."
        if plan.kv_tokens
        else "the cache's capacity is not predicted for these widths."
    )
    return [
        *wanted.change(
            "memory",
            f"The engine's share of each GPU's memory; {capacity}",
            "the plan",
            ("--gpu-memory-utilization", f"{plan.utilisation:g}"),
        ),
        *wanted.change(
            "tokens of a step",
            "More tokens in a step need more memory for activations, which the KV cache then lacks.",
            "the plan",
            ("--max-num-batched-tokens", str(plan.max_num_batched_tokens)),
        ),
        *wanted.change(
            "sequences of a step",
            "The most sequences that run at once: the plan's own limit, or --concurrency if that is more.",
            "the plan",
            ("--max-num-seqs", str(plan.max_num_seqs)),
        ),
        *wanted.change(
            "CUDA graphs",
            "Graphs are captured for no more sequences than can run, because each takes memory.",
            "the plan",
            ("--cudagraph-capture-sizes", *map(str, plan.cudagraph_capture_sizes)),
        ),
    ]


def _host_cache(wanted: ChangeRequest) -> list[RecipeChange]:
    plan = wanted.plan
    if plan is None or plan.host_cache is None:
        return []
    return wanted.change(
        "host cache",
        f"Blocks that leave the GPUs stay in {plan.host_cache.bytes / GIGABYTE:,.0f} GB of the machine's memory, with their "
        "index keys; a block that cannot be loaded is computed again instead of ending the request.",
        "vLLM, config/kv_transfer.py; Dynamo's recipe for MiniMax M3",
        ("--kv-transfer-config", transfer_config(plan.host_cache.bytes)),
    )


def _draft(wanted: ChangeRequest) -> list[RecipeChange]:
    plan = wanted.plan
    if plan is None or plan.draft is None:
        return []
    config = {
        "method": DRAFT_METHOD,
        "model": plan.draft.model,
        "num_speculative_tokens": plan.draft_tokens,
        "attention_backend": plan.draft_backend,
    }
    return wanted.change(
        "draft",
        f"A small model proposes {plan.draft_tokens} tokens and M3 verifies them in one step, which changes the speed and "
        "not the text.",
        "vLLM's recipe page for MiniMax-M3; InferenceX's agent recipes",
        ("--speculative-config", json.dumps(config, separators=(",", ":"))),
    )


RULES: tuple[Rule, ...] = (
    _block,
    _prefix_cache,
    _parsers,
    _thinking,
    _cached_tokens,
    _metrics,
    _fast_tokens,
    _text_only,
    _kv_dtype,
    _index_dtype,
    _context,
    _parallel,
    _memory,
    _draft,
    _host_cache,
    served_name,
    remote_code,
    _reach,
)

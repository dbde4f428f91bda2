"""Rules that adapt a recipe for SGLang to agent work."""

from __future__ import annotations

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
from m3agent.serving.plan.host_cache import GIGABYTE
from m3agent.serving.plan.memory_model import NATIVE_CONTEXT

_SGLANG = "SGLang 0.5.23's options"


def _names(wanted: ChangeRequest) -> list[RecipeChange]:
    found: list[RecipeChange] = []
    short = wanted.command.option("--tp")
    if short is not None:
        found.append(
            RecipeChange(
                "full name",
                "--tp is an abbreviation; it stops working when another option begins with it.",
                _SGLANG,
                changed=((short, ("--tp-size", *short[1:])),),
            )
        )
    if (gone := wanted.command.option("--enable-moe-ep")) is not None:
        ranks = (short or wanted.command.option("--tp-size") or ("", "1"))[1]
        found.append(
            RecipeChange(
                "expert parallelism",
                "There is no --enable-moe-ep; --ep-size spreads the experts.",
                _SGLANG,
                changed=((gone, ("--ep-size", ranks)),),
            )
        )
    return found


def _parsers(wanted: ChangeRequest) -> list[RecipeChange]:
    return wanted.change(
        "parsers",
        "Both are called minimax-m3; minimax-m3-nom, which one document names, does not exist.",
        _SGLANG,
        ("--tool-call-parser", "minimax-m3"),
        ("--reasoning-parser", "minimax-m3"),
    )


def _prefix_cache(wanted: ChangeRequest) -> list[RecipeChange]:
    return wanted.change(
        "prefix cache",
        "Each turn sends the conversation again; the radix cache, on by default, makes that cheap.",
        _SGLANG,
        drop=["--disable-radix-cache"],
    )


def _thinking(wanted: ChangeRequest) -> list[RecipeChange]:
    return default_thinking(wanted, _SGLANG)


def _cached_tokens(wanted: ChangeRequest) -> list[RecipeChange]:
    return cached_tokens(wanted, "--enable-cache-report", _SGLANG)


def _metrics(wanted: ChangeRequest) -> list[RecipeChange]:
    return wanted.change(
        "metrics",
        "Without it there is no /metrics, which reports the cache's hit rate.",
        _SGLANG,
        ("--enable-metrics",),
    )


def _fast_tokens(wanted: ChangeRequest) -> list[RecipeChange]:
    return wanted.change(
        "fast tokeniser",
        "The whole conversation is tokenized in each turn; without this option that takes seconds "
        "near a million tokens.",
        _SGLANG,
        ("--tokenizer-backend", "fastokens"),
        packages=("fastokens>=0.3.2",),
    )


def _text_only(wanted: ChangeRequest) -> list[RecipeChange]:
    if wanted.vision:
        return wanted.change(
            "vision",
            "Images were requested.",
            _SGLANG,
            ("--enable-multimodal",),
            drop=["--language-model-only"],
        )
    return wanted.change(
        "text only",
        "The vision encoder is left out, and its memory goes to the KV cache.",
        _SGLANG,
        ("--language-model-only",),
        drop=["--enable-multimodal", "--mm-attention-backend"],
    )


def _kv_dtype(wanted: ChangeRequest) -> list[RecipeChange]:
    return kv_dtype(
        wanted,
        "fp8_e4m3",
        "It holds about 1.5 times the tokens; SGLang needs the format's full name and has no plain fp8.",
        _SGLANG,
    )


def _context(wanted: ChangeRequest) -> list[RecipeChange]:
    if wanted.context is None:
        return []
    window = wanted.change(
        "window",
        "The window is what the workload needs, not M3's maximum.",
        _SGLANG,
        ("--context-length", str(wanted.context)),
    )
    if wanted.context <= NATIVE_CONTEXT:
        return window
    return window + wanted.change(
        "positions past 512K",
        "Without it SGLang refuses a window beyond the checkpoint's positions; not tried with M3.",
        "SGLang's environment variables",
        env={"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"},
    )


def _as_planned(wanted: ChangeRequest) -> list[RecipeChange]:
    plan = wanted.plan
    if plan is None:
        return []
    return wanted.change(
        "parallelism and memory",
        f"As planned for {plan.gpus}: the cache is expected to hold {plan.kv_tokens:,} tokens.",
        "the plan",
        ("--tp-size", str(plan.tp)),
        ("--ep-size", str(plan.tp if plan.ep else 1)),
        ("--mem-fraction-static", f"{plan.utilisation:g}"),
        ("--chunked-prefill-size", str(plan.max_num_batched_tokens)),
        ("--max-running-requests", str(plan.max_num_seqs)),
    )


def _host_cache(wanted: ChangeRequest) -> list[RecipeChange]:
    plan = wanted.plan
    if plan is None or plan.host_cache is None:
        return []
    each = max(1, plan.host_cache.bytes // (GIGABYTE * plan.tp))
    return wanted.change(
        "host cache",
        f"Pages that leave the GPUs stay in the machine's memory, {each} GB for each of {plan.tp} ranks; M3's index keys "
        "are kept too. Not tried.",
        _SGLANG,
        ("--enable-hierarchical-cache",),
        ("--hicache-size", str(each)),
    )


def _precision(wanted: ChangeRequest) -> list[RecipeChange]:
    if wanted.plan is None or wanted.plan.precision != "bf16":
        return []
    return wanted.change(
        "precision", "The checkpoint's weights stay in BF16.", "the plan", drop=["--quantization"]
    )


def _reach(wanted: ChangeRequest) -> list[RecipeChange]:
    if wanted.loopback:
        return only_here(wanted, "SGLang does so by default, and this option states it")
    return wanted.change(
        "key",
        "Other machines can reach the server, so it asks for a key; SGLang documents no environment variable for it, "
        "and every user of a machine can read its command lines, so the key is in a private file.",
        _SGLANG,
        ("--host", "0.0.0.0"),  # noqa: S104  # that is what was asked for
        ("--config", "sglang.yaml"),
        drop=["--api-key"],
        files={"sglang.yaml": f"api-key: {KEY}\n"},
    )


RULES: tuple[Rule, ...] = (
    _names,
    _prefix_cache,
    _parsers,
    _thinking,
    _cached_tokens,
    _metrics,
    _fast_tokens,
    _text_only,
    _kv_dtype,
    _context,
    _as_planned,
    _host_cache,
    _precision,
    served_name,
    remote_code,
    _reach,
)

"""What agent work changes in a documented recipe: each option and variable with its reason.

An agent sends the same growing conversation again and again, so what a benchmark turns off or leaves out is what makes
its turns fast: the prefix cache, a fast tokeniser, and an account of what was cached.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from m3agent.serving.plan.command import Command, Option, flag_of
from m3agent.serving.plan.recipe import MXFP4, YARN, Recipe
from m3agent.serving.plan.shape import LONGEST_CONTEXT, NATIVE_CONTEXT

KvCacheDtype = Literal["auto", "fp8"]
"""As options name it: `auto` is the model's own type."""

KEY = "$M3AGENT_API_KEY"
"""Stands where the server's key goes. Whoever starts the server fills it in, in an environment or a private file."""
ENCODER_FLAGS = ("--mm-encoder-tp-mode", "--mm-encoder-attn-backend", "--mm-processor-cache-type")
"""vLLM's options for the vision encoder; with `--language-model-only` there is no encoder."""

_STRETCHED = json.dumps({"text_config": {"max_position_embeddings": LONGEST_CONTEXT}}, separators=(",", ":"))
_VLLM_PAGE = "vLLM's recipe page for MiniMax-M3"
_H200 = "measured by us on H200 with vLLM 0.24"
_SGLANG = "SGLang 0.5.23's options"


@dataclass(frozen=True)
class Change:
    """One change to a recipe, or a choice of the recipe's that is kept on purpose.

    `changed` has pairs of the option as it stood and as it becomes. `env`: None takes a variable away. `files` are
    written beside the command, `packages` installed beside the engine. `reason` is one sentence.
    """

    what: str
    reason: str
    source: str
    added: tuple[Option, ...] = ()
    changed: tuple[tuple[Option, Option], ...] = ()
    dropped: tuple[Option, ...] = ()
    kept: tuple[Option, ...] = ()
    env: Mapping[str, str | None] = field(default_factory=lambda: MappingProxyType({}))
    files: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Wanted:
    """A recipe, taken apart, and what is asked of it."""

    recipe: Recipe
    command: Command
    context: int | None
    vision: bool
    loopback: bool
    kv_dtype: KvCacheDtype | None

    def change(
        self,
        what: str,
        reason: str,
        source: str,
        *give: Option,
        drop: Sequence[str] = (),
        keep: Sequence[str] = (),
        env: Mapping[str, str | None] = MappingProxyType({}),
        files: Mapping[str, str] = MappingProxyType({}),
        packages: tuple[str, ...] = (),
    ) -> list[Change]:
        """What brings `give` and `env` about, takes `drop` away and names `keep`; empty where nothing is left to."""
        there = {flag_of(option): option for option in self.command.options}
        differs = {name: value for name, value in env.items() if self.recipe.env.get(name) != value}
        change = Change(
            what,
            reason,
            source,
            added=tuple(option for option in give if flag_of(option) not in there),
            changed=tuple(
                (there[flag], option)
                for option in give
                if (flag := flag_of(option)) in there and there[flag] != option
            ),
            dropped=tuple(there[flag] for flag in drop if flag in there),
            kept=tuple(there[flag] for flag in keep if flag in there),
            env=MappingProxyType(differs),
            files=MappingProxyType(dict(files)),
            packages=packages,
        )
        effect = change.added or change.changed or change.dropped or change.kept or change.env
        return [change] if effect else []


_Rule = Callable[[_Wanted], list[Change]]


def overlay(
    recipe: Recipe,
    *,
    context: int | None = None,
    vision: bool = False,
    loopback: bool = True,
    kv_dtype: KvCacheDtype | None = None,
) -> list[Change]:
    """The changes to a recipe for agent work, in the order in which they are told.

    `context` is the window in tokens, `kv_dtype` the KV cache's type; None leaves what the recipe has. Not `loopback`:
    the server can be reached from other machines and asks for a key. A recipe that starts a container or reads files
    of its own (Docker, Dynamo) is left as it is. Where a recipe has all of it already, only what is kept is told.

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
    wanted = _Wanted(recipe, command, context, vision, loopback, kv_dtype)
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


def _no_fp8(recipe: Recipe) -> str | None:
    if recipe.engine == "trtllm":
        return "TensorRT-LLM serves M3 in BF16 only"
    if recipe.checkpoint == MXFP4:
        return "that checkpoint has no calibrated KV scales, so vLLM would take 1.0 and lose accuracy"
    return None


# -- vLLM


def _vllm_block(wanted: _Wanted) -> list[Change]:
    return wanted.change(
        "block size",
        "M3's sparse attention works on blocks of 128 tokens, and the KV cache has to be cut in the same way.",
        _VLLM_PAGE,
        ("--block-size", "128"),
        keep=["--block-size"],
    )


def _vllm_prefix_cache(wanted: _Wanted) -> list[Change]:
    return wanted.change(
        "prefix cache",
        "Each turn sends the conversation again: at a million tokens a cached prefix starts to answer 120 times sooner.",
        _H200,
        ("--enable-prefix-caching",),
        drop=["--no-enable-prefix-caching", "--disable-prefix-caching"],
    )


def _vllm_parsers(wanted: _Wanted) -> list[Change]:
    return wanted.change(
        "parsers",
        "Without them tool calls and reasoning come back as plain text in M3's markup.",
        _VLLM_PAGE,
        ("--tool-call-parser", "minimax_m3"),
        ("--reasoning-parser", "minimax_m3"),
        ("--enable-auto-tool-choice",),
    )


def _vllm_cached_tokens(wanted: _Wanted) -> list[Change]:
    return wanted.change(
        "cached tokens",
        "The usage then says how many tokens of a prompt were cached; without it a broken prefix goes unnoticed.",
        "vLLM's options",
        ("--enable-prompt-tokens-details",),
    )


def _vllm_metrics(wanted: _Wanted) -> list[Change]:
    return wanted.change(
        "metrics",
        "--disable-log-stats leaves /metrics empty, and the prefix cache's hit rate is read there.",
        "vLLM's metrics",
        drop=["--disable-log-stats"],
    )


def _vllm_fast_tokens(wanted: _Wanted) -> list[Change]:
    return wanted.change(
        "fast tokeniser",
        "The whole conversation becomes tokens anew each turn: at 959,000 tokens that makes a turn start 3.5 times later.",
        _H200,
        env={"VLLM_USE_FASTOKENS": "1"},
        packages=("fastokens>=0.2",),
    )


def _vllm_text_only(wanted: _Wanted) -> list[Change]:
    if wanted.vision:
        return wanted.change(
            "vision",
            "Images were asked for, which need the encoder.",
            _VLLM_PAGE,
            drop=["--language-model-only"],
        )
    return wanted.change(
        "text only",
        "The vision encoder is left out and its memory goes to the KV cache; the encoder's options exclude this one.",
        _VLLM_PAGE,
        ("--language-model-only",),
        drop=ENCODER_FLAGS,
    )


def _vllm_kv_dtype(wanted: _Wanted) -> list[Change]:
    if wanted.kv_dtype is None:
        return []
    if wanted.kv_dtype == "auto":
        return _plain_kv(wanted)
    return wanted.change(
        "fp8 KV cache",
        "It holds about 1.5 times the tokens, lossless in the tests of the recipe's authors.",
        _VLLM_PAGE,
        ("--kv-cache-dtype", "fp8"),
    )


def _vllm_context(wanted: _Wanted) -> list[Change]:
    context, amd = wanted.context, wanted.recipe.vendor == "amd"
    if context is None:
        return []
    long = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
    window = wanted.change(
        "window",
        "The window is what the work needs: the engine refuses to start where one full sequence does not fit.",
        _VLLM_PAGE,
        ("--max-model-len", str(context)),
    )
    if context <= NATIVE_CONTEXT:
        stretched = wanted.command.option("--hf-overrides") is not None
        return window + wanted.change(
            "native positions",
            f"M3 has {NATIVE_CONTEXT:,} positions of its own, and a smaller window needs no stretching.",
            _VLLM_PAGE,
            drop=["--hf-overrides"],
            env={long: None} if stretched else {},
        )
    if amd:
        return window + wanted.change(
            "positions past 512K",
            "YaRN has to stand under text_config, since one at the top never reaches the decoder.",
            _VLLM_PAGE,
            ("--hf-overrides", YARN),
            env={long: "1"},
        )
    return window + wanted.change(
        "positions past 512K",
        "On NVIDIA vLLM does not hand YaRN to M3's rotary embedding, so the positions are just continued.",
        f"{_H200}, with prompts of 1,000,200 tokens",
        ("--hf-overrides", _STRETCHED),
    )


def _vllm_reach(wanted: _Wanted) -> list[Change]:
    if wanted.loopback:
        return _only_here(wanted, "vLLM listens on every network unless told otherwise")
    return wanted.change(
        "key",
        "Other machines can reach the server, so it asks for a key, which only guards the paths under /v1; it comes from "
        "the environment, since every user of a machine can read its command lines.",
        "vLLM's security guide",
        ("--host", "0.0.0.0"),  # noqa: S104  # that is what was asked for
        drop=["--api-key"],
        env={"VLLM_API_KEY": KEY},
    )


# -- SGLang


def _sglang_names(wanted: _Wanted) -> list[Change]:
    found: list[Change] = []
    short = wanted.command.option("--tp")
    if short is not None:
        found.append(
            Change(
                "full name",
                "--tp is an abbreviation, which ends to work with the first other option that begins so.",
                _SGLANG,
                changed=((short, ("--tp-size", *short[1:])),),
            )
        )
    if (gone := wanted.command.option("--enable-moe-ep")) is not None:
        ranks = (short or wanted.command.option("--tp-size") or ("", "1"))[1]
        found.append(
            Change(
                "expert parallelism",
                "There is no --enable-moe-ep; experts are spread by --ep-size.",
                _SGLANG,
                changed=((gone, ("--ep-size", ranks)),),
            )
        )
    return found


def _sglang_parsers(wanted: _Wanted) -> list[Change]:
    return wanted.change(
        "parsers",
        "Both are called minimax-m3; minimax-m3-nom, which a document has, does not exist.",
        _SGLANG,
        ("--tool-call-parser", "minimax-m3"),
        ("--reasoning-parser", "minimax-m3"),
    )


def _sglang_prefix_cache(wanted: _Wanted) -> list[Change]:
    return wanted.change(
        "prefix cache",
        "Each turn sends the conversation again, and the radix cache, on by default, is what makes that cheap.",
        _SGLANG,
        drop=["--disable-radix-cache"],
    )


def _sglang_cached_tokens(wanted: _Wanted) -> list[Change]:
    return wanted.change(
        "cached tokens",
        "The usage then says how many tokens of a prompt were cached; without it a broken prefix goes unnoticed.",
        _SGLANG,
        ("--enable-cache-report",),
    )


def _sglang_metrics(wanted: _Wanted) -> list[Change]:
    return wanted.change(
        "metrics",
        "Without it there is no /metrics, where the cache's hit rate is read.",
        _SGLANG,
        ("--enable-metrics",),
    )


def _sglang_fast_tokens(wanted: _Wanted) -> list[Change]:
    return wanted.change(
        "fast tokeniser",
        "The whole conversation becomes tokens anew each turn, which near a million tokens takes seconds otherwise.",
        _SGLANG,
        ("--tokenizer-backend", "fastokens"),
        packages=("fastokens>=0.2",),
    )


def _sglang_text_only(wanted: _Wanted) -> list[Change]:
    if wanted.vision:
        return wanted.change(
            "vision",
            "Images were asked for.",
            _SGLANG,
            ("--enable-multimodal",),
            drop=["--language-model-only"],
        )
    return wanted.change(
        "text only",
        "The vision encoder is left out and its memory goes to the KV cache.",
        _SGLANG,
        ("--language-model-only",),
        drop=["--enable-multimodal", "--mm-attention-backend"],
    )


def _sglang_kv_dtype(wanted: _Wanted) -> list[Change]:
    if wanted.kv_dtype is None:
        return []
    if wanted.kv_dtype == "auto":
        return _plain_kv(wanted)
    return wanted.change(
        "fp8 KV cache",
        "It holds about 1.5 times the tokens; SGLang wants the format's whole name and has no plain fp8.",
        _SGLANG,
        ("--kv-cache-dtype", "fp8_e4m3"),
    )


def _sglang_context(wanted: _Wanted) -> list[Change]:
    if wanted.context is None:
        return []
    window = wanted.change(
        "window",
        "The window is what the work needs, not the most that M3 has.",
        _SGLANG,
        ("--context-length", str(wanted.context)),
    )
    if wanted.context <= NATIVE_CONTEXT:
        return window
    return window + wanted.change(
        "positions past 512K",
        "SGLang refuses a window beyond the checkpoint's positions without it; not tried by us with M3.",
        "SGLang's environment variables",
        env={"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"},
    )


def _sglang_reach(wanted: _Wanted) -> list[Change]:
    if wanted.loopback:
        return _only_here(wanted, "SGLang does so by default, and here it is said")
    return wanted.change(
        "key",
        "Other machines can reach the server, so it asks for a key; SGLang documents no variable for it, and every user "
        "of a machine can read its command lines, so the key goes into a private file.",
        _SGLANG,
        ("--host", "0.0.0.0"),  # noqa: S104  # that is what was asked for
        ("--config", "sglang.yaml"),
        drop=["--api-key"],
        files={"sglang.yaml": f"api-key: {KEY}\n"},
    )


# -- TensorRT-LLM


def _trtllm_remote_code(wanted: _Wanted) -> list[Change]:
    return wanted.change(
        "remote code",
        "TensorRT-LLM's guide says that it cannot load M3 without: the checkpoint's own Python runs on your machine.",
        "TensorRT-LLM's deployment guide for MiniMax-M3",
        keep=["--trust_remote_code"],
    )


def _trtllm_fast_tokens(wanted: _Wanted) -> list[Change]:
    return wanted.change(
        "fast tokeniser",
        "Builds after 1.3.0rc20 then keep the tokens of the conversation so far; older ones ignore it.",
        "NVIDIA/TensorRT-LLM#19373",
        env={"TLLM_PREFIX_TOKEN_CACHE": "1"},
    )


def _trtllm_context(wanted: _Wanted) -> list[Change]:
    if wanted.context is None:
        return []
    return wanted.change(
        "window",
        "The window is what the work needs; uncapped, the capture of CUDA graphs can fail.",
        "TensorRT-LLM's curated settings for MiniMax-M3",
        ("--max_seq_len", str(wanted.context)),
    )


def _trtllm_reach(wanted: _Wanted) -> list[Change]:
    if wanted.loopback:
        return _only_here(wanted, "the guide's command listens on every network")
    return wanted.change(
        "no key",
        "We know of no option by which trtllm-serve asks for a key: put something in front of it that does.",
        "TensorRT-LLM's deployment guide for MiniMax-M3",
        keep=["--host"],
    )


# -- all engines


def _plain_kv(wanted: _Wanted) -> list[Change]:
    return wanted.change(
        "KV cache", "The KV cache keeps the type of the model.", "as asked for", drop=["--kv-cache-dtype"]
    )


def _only_here(wanted: _Wanted, why: str) -> list[Change]:
    return wanted.change(
        "loopback",
        f"Only this machine can reach the server, so it needs no key; {why}.",
        "the engine's options",
        ("--host", "127.0.0.1"),
    )


def _remote_code(wanted: _Wanted) -> list[Change]:
    return wanted.change(
        "remote code",
        "The engine has M3's architecture built in, so no Python out of the checkpoint needs to run.",
        "vLLM's recipe page for MiniMax-M3, which does without",
        drop=["--trust-remote-code"],
    )


_RULES: Mapping[str, tuple[_Rule, ...]] = {
    "vllm": (
        _vllm_block,
        _vllm_prefix_cache,
        _vllm_parsers,
        _vllm_cached_tokens,
        _vllm_metrics,
        _vllm_fast_tokens,
        _vllm_text_only,
        _vllm_kv_dtype,
        _vllm_context,
        _remote_code,
        _vllm_reach,
    ),
    "sglang": (
        _sglang_names,
        _sglang_prefix_cache,
        _sglang_parsers,
        _sglang_cached_tokens,
        _sglang_metrics,
        _sglang_fast_tokens,
        _sglang_text_only,
        _sglang_kv_dtype,
        _sglang_context,
        _remote_code,
        _sglang_reach,
    ),
    "trtllm": (_trtllm_fast_tokens, _trtllm_context, _trtllm_remote_code, _trtllm_reach),
}

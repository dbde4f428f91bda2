"""Read a server's setup from its command, so that the table of traps judges what really starts, also of a recipe."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from m3agent.serving.plan.command import LaunchCommand, Option, flag_of, value_of
from m3agent.serving.plan.draft import known_draft
from m3agent.serving.plan.gpus import Fleet
from m3agent.serving.plan.host_cache import HICACHE, NATIVE
from m3agent.serving.plan.kinds import EngineKind, Precision
from m3agent.serving.plan.known_issues import Rope, Setup, Severity, met
from m3agent.serving.plan.listing import OptionListing, listing, versions
from m3agent.serving.plan.memory_model import NATIVE_CONTEXT
from m3agent.serving.plan.recipe import CHECKPOINTS, MSA_FILE, Recipe
from m3agent.util.json_value import mapping


def setup_of(argv: Sequence[str], env: Mapping[str, str], planned: Setup) -> Setup:
    """Return the setup that a command starts.

    Args:
        planned: The setup of the plan. It has what the command does not say.

    Returns:
        The setup; `planned` with `env` for engines without a list of options.
    """
    setup = replace(planned, env=dict(env))
    if not versions(planned.engine):
        return setup
    given = _Given(argv, listing(planned.engine))
    if planned.engine is EngineKind.SGLANG:
        return _sglang(given, setup)
    return _vllm(given, setup)


class _Given:
    """The options of a command, found under each of their names."""

    def __init__(self, argv: Sequence[str], known: OptionListing) -> None:
        self._known = known
        self._options = LaunchCommand.of(argv).options

    def last(self, flag: str) -> Option | None:
        """Return the option that counts: the last one."""
        return next((option for option in reversed(self._options) if self._same(option, flag)), None)

    def text(self, flag: str, otherwise: str | None = None) -> str | None:
        """Return the value of an option."""
        option = self.last(flag)
        return otherwise if option is None else value_of(option)

    def number(self, flag: str, otherwise: int) -> int:
        """Return the value of an option as a number; `otherwise` if it is not given or not a number."""
        value = self.text(flag) or ""
        return int(value) if value.isdecimal() else otherwise

    def switched(self, flag: str, otherwise: bool) -> bool:
        """Return whether a switch is on; its negations begin with `--no-` or `--disable-`."""
        option = self.last(flag)
        return otherwise if option is None else not flag_of(option).startswith(("--no-", "--disable-"))

    def group(self, flag: str) -> dict[str, Any]:
        """Return a group of settings: those in the option's JSON, and those set as `flag.name value`."""
        settings: dict[str, Any] = {}
        for option in self._options:
            base, _, name = self._known.spelt(flag_of(option)).partition(".")
            if self._same((base,), flag):
                value = _read(value_of(option))
                settings |= {name: value} if name else value if isinstance(value, dict) else {}
        return settings

    def _same(self, option: Option, flag: str) -> bool:
        given, known = self._known.spelt(flag_of(option)), self._known.options.get(flag)
        return given == flag or (known is not None and self._known.options.get(given) == known)


def _read(value: str) -> Any:
    """Return a value of JSON; other text stays as it is."""
    try:
        return json.loads(value)
    except ValueError:
        return value


def _vllm(given: _Given, setup: Setup) -> Setup:
    attention = given.group("--attention-config")
    text_only = given.switched("--language-model-only", otherwise=False)
    draft = given.group("--speculative-config")
    transfer = given.group("--kv-transfer-config")
    native = {None: NATIVE, "native": NATIVE}.get(given.text("--kv-offloading-backend"), "LMCache")
    known = known_draft(str(draft.get("model")))
    return replace(
        setup,
        kv_dtype=given.text("--kv-cache-dtype", "auto") or "auto",
        index_dtype=str(attention.get("indexer_kv_dtype", "bf16")),
        rope=_rope(given.group("--hf-overrides")),
        block_size=given.number("--block-size", 0) or None,
        text_only=text_only,
        encoder_parallel=given.text("--mm-encoder-tp-mode") == "data",
        prefix_caching=given.switched("--enable-prefix-caching", otherwise=True),
        attention_backend=given.text("--attention-backend") or attention.get("backend"),
        moe_backend=given.text("--moe-backend") or setup.moe_backend,
        parser=given.text("--tool-call-parser"),
        tp=given.number("--tensor-parallel-size", 1),
        dp=given.number("--data-parallel-size", 1),
        trust_remote_code=given.switched("--trust-remote-code", otherwise=False),
        draft_method=str(draft.get("method", "not named")) if draft else None,
        draft_kv_heads=(setup.draft_kv_heads if known is None else known.kv_heads) if draft else None,
        draft_backend=draft.get("attention_backend"),
        draft_synthetic=draft.get("rejection_sample_method") == "synthetic",
        offload=transfer.get("kv_connector") or (native if given.text("--kv-offloading-size") else None),
        load_failure=transfer.get("kv_load_failure_policy"),
        pp=given.number("--pipeline-parallel-size", 1),
        max_num_seqs=given.number("--max-num-seqs", 0) or None,
        random_weights=given.text("--load-format") == "dummy",
        index_cache=_index_cache(given.group("--hf-overrides")),
        lora=given.switched("--enable-lora", otherwise=False),
    )


def _sglang(given: _Given, setup: Setup) -> Setup:
    return replace(
        setup,
        kv_dtype=given.text("--kv-cache-dtype", "auto") or "auto",
        prefix_caching=given.text("--disable-radix-cache") is None,
        parser=given.text("--tool-call-parser"),
        draft_method=given.text("--speculative-algorithm"),
        offload=HICACHE if given.switched("--enable-hierarchical-cache", otherwise=False) else None,
        hisparse=given.switched("--enable-hisparse", otherwise=False),
        pp=given.number("--pp-size", 1),
        tp=given.number("--tp-size", 1),
        trust_remote_code=given.switched("--trust-remote-code", otherwise=False),
        index_cache=_index_cache(given.group("--json-model-override-args")),
    )


def _index_cache(overrides: Mapping[str, Any]) -> bool:
    """Return whether overrides of the model's config let layers share their choice of blocks."""
    for name, value in overrides.items():
        if isinstance(value, dict) and _index_cache(value):
            return True
        if name == "use_index_cache" and value:
            return True
        if name == "index_topk_freq" and isinstance(value, int) and value > 1:
            return True
    return False


def _rope(overrides: Mapping[str, Any]) -> Rope:
    text = mapping(overrides.get("text_config"))
    if "rope_scaling" in overrides:
        return Rope.YARN_TOP_LEVEL
    if "rope_scaling" in text:
        return Rope.YARN
    return Rope.EXTENDED if "max_position_embeddings" in text else Rope.NATIVE


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
    window = LaunchCommand.of(argv).value("--max-model-len")
    setup = Setup(
        engine=_engine(recipe),
        vendor=fleet.gpu.vendor,
        architecture=fleet.gpu.architecture,
        gpu=fleet.gpu.name,
        precision=precision or _PRECISIONS.get(recipe.checkpoint, Precision.BF16),
        context=int(window) if window.isdecimal() else NATIVE_CONTEXT,
        nodes=fleet.nodes,
        msa=MSA_FILE in recipe.files,
    )
    if recipe.engine != "dynamo":  # the command names the engine's options
        setup = setup_of(argv, env, setup)
    for trap in met(setup, Severity.REFUSE):
        return f"{recipe.name} cannot be served on {fleet}: {trap.sentence}"
    return None


def _engine(recipe: Recipe) -> EngineKind:
    """Return the engine that computes: Dynamo's recipes name it."""
    if recipe.engine == "dynamo":
        return EngineKind.TRTLLM if "-trtllm-" in recipe.name else EngineKind.VLLM
    return EngineKind(recipe.engine)

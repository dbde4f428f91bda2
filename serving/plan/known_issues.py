"""Table of known failures when M3 is served. docs/serving.md shows the table; a test keeps the two equal.

The condition of a row reads a `Setup`. The planner checks the rows before it offers a plan, a launcher before
it starts one. They also work for a command line that a user wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from packaging.version import Version

from m3agent.serving.plan.draft import FEW_STREAMS, GQA_DRAFT, GROUPED_KV_HEADS, draft_backend
from m3agent.serving.plan.gpus import UNDOCUMENTED, Architecture, Vendor
from m3agent.serving.plan.host_cache import FIRST_WITH_DRAFT, NATIVE, RECOMPUTE, SIMPLE, SIMPLE_SWITCH
from m3agent.serving.plan.memory_model import BLOCK, NATIVE_CONTEXT, WRONG_PARAMETERS, Precision


class EngineKind(StrEnum):
    """Programs that serve M3."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"


class Rope(StrEnum):
    """How to configure a window beyond the native one: the field that `--hf-overrides` sets."""

    NATIVE = "native"
    EXTENDED = "text_config.max_position_embeddings"
    YARN = "text_config.rope_scaling"
    YARN_TOP_LEVEL = "rope_scaling"


class Severity(StrEnum):
    """Whether the trap refuses a plan or adds a warning to it."""

    REFUSE = "refuse"
    WARN = "warn"


@dataclass(frozen=True)
class Setup:
    """Configuration of a server before its start.

    Attributes:
        engine: The engine.
        vendor: Manufacturer of the GPUs.
        architecture: Architecture of the GPUs.
        precision: Precision of the weights.
        context: Context window in tokens.
        version: Version of the engine; None means any version at or above the minimum.
        kv_dtype: Type of the KV cache as the engine's option spells it.
        index_dtype: Type of the index keys as the engine's option spells it.
        rope: How positions beyond the native ones are configured.
        block_size: Tokens of one block of the KV cache; None means the engine's default.
        text_only: True if the server accepts no images.
        encoder_parallel: True if the vision encoder runs data-parallel.
        prefix_caching: True if the prefix cache is on.
        attention_backend: Attention backend; None is the engine's choice.
        moe_backend: Backend of the experts; None is the engine's choice.
        parser: Name of the tool call parser.
        nodes: Number of machines.
        tp: Tensor-parallel size.
        dp: Data-parallel size.
        trust_remote_code: True if the checkpoint's own code runs.
        assumed_parameters: Number of parameters that the memory estimate uses.
        draft: Method of speculative decoding; None without it.
        draft_kv_heads: KV heads of the draft; None if unknown.
        draft_backend: Attention backend of the draft; None is the engine's choice.
        draft_synthetic: True if the engine accepts drafted tokens at random.
        offload: What keeps the KV cache in the machine's memory; None without that.
        load_failure: What happens if a block cannot be loaded from there; None is the engine's default.
        hisparse: True if SGLang moves parts of the context that attention does not choose to the machine's memory.
        pp: Pipeline-parallel size.
        sequences: Sequences in one step; None if unknown.
        random_weights: True if the engine makes up random weights.
        msa: True if TensorRT-LLM computes M3's attention with its msa kernels; its default is triton.
        index_cache: True if layers take over the choice of blocks of other layers.
        lora: True if the engine loads LoRA adapters.
        env: Environment variables.
    """

    engine: EngineKind
    vendor: Vendor
    architecture: Architecture
    precision: Precision
    context: int
    version: str | None = None
    kv_dtype: str = "auto"
    index_dtype: str = "bf16"
    rope: Rope = Rope.NATIVE
    block_size: int | None = BLOCK
    text_only: bool = True
    encoder_parallel: bool = False
    prefix_caching: bool = True
    attention_backend: str | None = None
    moe_backend: str | None = None
    parser: str | None = None
    nodes: int = 1
    tp: int = 1
    dp: int = 1
    trust_remote_code: bool = False
    assumed_parameters: float | None = None
    draft: str | None = None
    draft_kv_heads: int | None = None
    draft_backend: str | None = None
    draft_synthetic: bool = False
    offload: str | None = None
    load_failure: str | None = None
    hisparse: bool = False
    pp: int = 1
    sequences: int | None = None
    random_weights: bool = False
    msa: bool = False
    index_cache: bool = False
    lora: bool = False
    env: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def on_vllm(self) -> bool:
        """True if the engine is vLLM; most rows are about vLLM."""
        return self.engine is EngineKind.VLLM

    @property
    def on_trtllm(self) -> bool:
        """True if the engine is TensorRT-LLM."""
        return self.engine is EngineKind.TRTLLM

    @property
    def on_amd(self) -> bool:
        """True if the GPUs are AMD's."""
        return self.vendor is Vendor.AMD

    @property
    def fp8_kv(self) -> bool:
        """True if each number of the keys and values takes one byte."""
        return self.kv_dtype.startswith("fp8")

    @property
    def fp8_index(self) -> bool:
        """True if vLLM keeps each number of the index keys in one byte."""
        return self.on_vllm and self.index_dtype.startswith("fp8")

    def between(self, first: str, end: str) -> bool:
        """Return whether the version is known and lies in the range from `first` to before `end`."""
        return self.version is not None and Version(first) <= Version(self.version) < Version(end)


@dataclass(frozen=True)
class KnownIssue:
    """One row of the table.

    Attributes:
        name: Short name.
        severity: Whether the row refuses a plan or warns.
        applies: Condition on a setup.
        effect: What happens.
        remedy: What to do instead.
        source: Where the information comes from.
    """

    name: str
    severity: Severity
    applies: Callable[[Setup], bool]
    effect: str
    remedy: str
    source: str


LONGEST_MHA = 131_072
"""Longest context in tokens for a draft with multi-head attention; the drafts were trained on 32,768."""
FIRST_FP8_INDEX = "0.32"
"""First version of vLLM with fp8 index keys on all NVIDIA GPUs that have fp8."""

FIRST_NVFP4 = "0.25"
"""First version of vLLM that reads the MXFP8 layers of the NVFP4 checkpoint (vllm-project/vllm#46756)."""
FIRST_UNDOCUMENTED = "0.27.1"
"""First version of vLLM that serves M3 on GPUs without a recipe page (vllm-project/vllm#48603, #48929)."""
_AITER_INDEX = {"VLLM_ROCM_USE_AITER": "1", "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT": "1"}
"""Variables with which vLLM has fp8 index keys on CDNA4."""
_AITER_ATTENTION = "ROCM_AITER_UNIFIED_ATTN"


def index_fp8_works(vendor: Vendor, architecture: Architecture, version: str | None) -> bool:
    """Return whether vLLM can keep the index keys in fp8.

    Args:
        vendor: Manufacturer of the GPUs.
        architecture: Architecture of the GPUs.
        version: Version of vLLM; None means that a version can be chosen.
    """
    if vendor is not Vendor.NVIDIA or architecture in UNDOCUMENTED:
        return False
    if architecture is Architecture.BLACKWELL or version is None:
        return True
    return Version(version) >= Version(FIRST_FP8_INDEX)


def _index_fp8_starts(setup: Setup) -> bool:
    """Return whether vLLM starts with fp8 index keys: on CDNA4 with AITER's indexer, which needs one KV head a rank, too."""
    if setup.architecture is not Architecture.CDNA4:
        return index_fp8_works(setup.vendor, setup.architecture, setup.version)
    return setup.tp in (4, 8) and not setup.between("0", "0.31") and _AITER_INDEX.items() <= setup.env.items()


_REFUSE, _WARN = Severity.REFUSE, Severity.WARN
_SEED = "vLLM's recipe for M3"

TRAPS = (
    KnownIssue(
        "parameters-230b",
        _REFUSE,
        lambda s: s.assumed_parameters is not None and s.assumed_parameters <= WRONG_PARAMETERS,
        "229.9B is the previous generation's count: a plan based on it has half the memory that M3 needs",
        "count 427B parameters, as this planner does",
        "the config's tensors: 427,040,140,160",
    ),
    KnownIssue(
        "vllm-without-m3",
        _REFUSE,
        lambda s: s.on_vllm and s.between("0", "0.24"),
        "vLLM before 0.24.0 does not have the model",
        "install vLLM 0.24.0, or 0.27.1 and later",
        "vLLM 0.22 and 0.23, which lack it",
    ),
    KnownIssue(
        "vllm-0.25-off-blackwell",
        _REFUSE,
        lambda s: s.on_vllm and s.between("0.25", "0.27.1") and s.architecture is not Architecture.BLACKWELL,
        "vLLM 0.25 and 0.26 read the chosen blocks in the wrong layout: wrong text, no error",
        "install vLLM 0.24.0, or 0.27.1 and later",
        "vllm-project/vllm#48603",
    ),
    KnownIssue(
        "others-gpus-too-early",
        _REFUSE,
        lambda s: s.on_vllm and s.architecture in UNDOCUMENTED and s.between("0", FIRST_UNDOCUMENTED),
        "vLLM before 0.27.1 serves M3 on Hopper, the data centre's Blackwell and AMD only",
        "install vLLM 0.27.1 or later",
        "vllm-project/vllm#48603, #48929",
    ),
    KnownIssue(
        "others-gpus",
        _WARN,
        lambda s: s.architecture in UNDOCUMENTED,
        "no recipe page has these GPUs; others report that it works: A100, four RTX PRO 6000, four DGX Spark",
        "test it with m3agent serve check",
        "vllm-project/vllm#48603; vllm-project/recipes#678; eugr/spark-vllm-docker#290",
    ),
    KnownIssue(
        "ampere-fp8-cache",
        _REFUSE,
        lambda s: s.architecture is Architecture.AMPERE and (s.fp8_kv or s.fp8_index),
        "Ampere has no units for fp8: M3's cache there is in bf16",
        "leave out --kv-cache-dtype and indexer_kv_dtype",
        "vllm-project/vllm#48603",
    ),
    KnownIssue(
        "nvfp4-off-blackwell",
        _REFUSE,
        lambda s: (
            s.precision is Precision.NVFP4
            and s.architecture not in (Architecture.BLACKWELL, Architecture.BLACKWELL_RTX)
        ),
        "through Marlin on Hopper: garbage, then illegal memory access; AMD has no kernels for it",
        "take MXFP8",
        "vllm-project/vllm#49070, #49941, #50557, open in 0.33",
    ),
    KnownIssue(
        "nvfp4-too-early",
        _REFUSE,
        lambda s: s.on_vllm and s.precision is Precision.NVFP4 and s.between("0", FIRST_NVFP4),
        "vLLM 0.24 cannot read the layers of the NVFP4 checkpoint that are MXFP8",
        "install vLLM 0.25 or later",
        "vllm-project/vllm#46756",
    ),
    KnownIssue(
        "mxfp8-on-cdna3",
        _WARN,
        lambda s: s.on_vllm and s.precision is Precision.MXFP8 and s.architecture is Architecture.CDNA3,
        "CDNA3 (MI300X, MI325X) has no MXFP8: vLLM loads the weights as BF16, so they take as much memory as BF16",
        "take BF16",
        "vLLM 0.24 to 0.33, VLLM_MXFP8_EMULATION_DEQUANT_AT_LOAD; InferenceX#2580",
    ),
    KnownIssue(
        "sglang-mxfp8-on-hopper",
        _REFUSE,
        lambda s: (
            s.engine is EngineKind.SGLANG
            and s.precision is Precision.MXFP8
            and s.architecture is Architecture.HOPPER
        ),
        "SGLang takes MXFP8 weights on Blackwell and AMD only",
        "take BF16, or vLLM",
        "SGLang 0.5.23, Fp8Config.get_min_capability",
    ),
    KnownIssue(
        "mxfp4-off-cdna4",
        _REFUSE,
        lambda s: s.precision is Precision.MXFP4 and s.architecture is not Architecture.CDNA4,
        "the MXFP4 checkpoint is made for AMD's CDNA4 (MI350X, MI355X) only",
        "take MXFP8",
        _SEED,
    ),
    KnownIssue(
        "mxfp4-fp8-kv",
        _WARN,
        lambda s: s.precision is Precision.MXFP4 and s.fp8_kv,
        "the MXFP4 checkpoint has no calibrated scales for keys and values: vLLM uses 1.0, and its accuracy is not published",
        "leave out --kv-cache-dtype if the cache in bf16 is large enough",
        f"{_SEED}; InferenceX, which runs it",
    ),
    KnownIssue(
        "mxfp4-aiter",
        _WARN,
        lambda s: s.precision is Precision.MXFP4 and s.moe_backend != "aiter",
        "emulated experts are exact but slow; the fast ones (aiter) need aiter 0.1.16.post2, and "
        "their recipe turns prefix caching off",
        "measure both for your workload: agents depend on the prefix cache",
        f"{_SEED}; vllm-project/vllm#46419, #46692",
    ),
    KnownIssue(
        "index-fp8",
        _REFUSE,
        lambda s: s.fp8_index and not _index_fp8_starts(s),
        "vLLM before 0.32 has no fp8 index keys off Blackwell and ends at the start; on AMD only CDNA4 has them, from 0.31, with "
        "AITER's indexer and TP4 or TP8",
        "install vLLM 0.32 or later on NVIDIA; on CDNA4 set VLLM_ROCM_USE_AITER=1 and VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT=1; "
        "otherwise leave out indexer_kv_dtype in --attention-config",
        "vLLM 0.31, 0.32 and 0.33, models/minimax_m3/common/indexer.py; vllm-project/vllm#50856, #52664",
    ),
    KnownIssue(
        "long-without-override",
        _REFUSE,
        lambda s: s.on_vllm and s.context > NATIVE_CONTEXT and s.rope is Rope.NATIVE,
        "the config says 524,288 positions: vLLM refuses a longer window",
        'NVIDIA: --hf-overrides \'{"text_config":{"max_position_embeddings":1048576}}\'; AMD: YaRN under text_config '
        "with VLLM_ALLOW_LONG_MAX_MODEL_LEN=1",
        f"1,000,200 tokens served on four H200; {_SEED}",
    ),
    KnownIssue(
        "yarn-on-nvidia",
        _REFUSE,
        lambda s: s.on_vllm and not s.on_amd and s.rope in (Rope.YARN, Rope.YARN_TOP_LEVEL),
        "vLLM's model for NVIDIA passes on only theta and the partial factor: YaRN has no effect",
        "override text_config.max_position_embeddings; positions are then extrapolated",
        "vLLM 0.33, models/minimax_m3/nvidia/model.py",
    ),
    KnownIssue(
        "yarn-top-level",
        _REFUSE,
        lambda s: s.on_vllm and s.on_amd and s.rope is Rope.YARN_TOP_LEVEL,
        "a top-level override silently misses the decoder's config",
        "put rope_scaling under text_config",
        _SEED,
    ),
    KnownIssue(
        "extrapolated-window",
        _WARN,
        lambda s: s.on_vllm and s.context > NATIVE_CONTEXT and s.rope is Rope.EXTENDED,
        "beyond 524,288 tokens positions are extrapolated; the quality of answers there was not measured",
        "use at most 524,288 if that is enough",
        "vLLM 0.33, models/minimax_m3/nvidia/model.py",
    ),
    KnownIssue(
        "amd-long-switch",
        _REFUSE,
        lambda s: (
            s.on_vllm
            and s.on_amd
            and s.context > NATIVE_CONTEXT
            and s.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") != "1"
        ),
        "vLLM refuses a longer window than the config's",
        "set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1",
        _SEED,
    ),
    KnownIssue(
        "block-size",
        _REFUSE,
        lambda s: s.on_vllm and s.block_size != BLOCK,
        "the cache's blocks must equal those of the sparse attention; otherwise wrong indices, or a crash on AMD",
        "--block-size 128",
        _SEED,
    ),
    KnownIssue(
        "amd-cudagraph",
        _WARN,
        lambda s: s.on_vllm and s.on_amd and s.env.get("VLLM_USE_BREAKABLE_CUDAGRAPH") != "0",
        "M3's decode falls back to eager execution on AMD",
        "set VLLM_USE_BREAKABLE_CUDAGRAPH=0",
        _SEED,
    ),
    KnownIssue(
        "amd-attention",
        _REFUSE,
        lambda s: s.on_vllm and s.on_amd and s.attention_backend not in ("TRITON_ATTN", _AITER_ATTENTION),
        "on AMD, M3's attention exists only for Triton and AITER's unified attention",
        "--attention-backend TRITON_ATTN",
        f"{_SEED}; vllm-project/vllm#52664",
    ),
    KnownIssue(
        "amd-aiter-attention",
        _WARN,
        lambda s: s.on_vllm and s.on_amd and s.attention_backend == _AITER_ATTENTION,
        f"M3 ran with {_AITER_ATTENTION} in one pull request; no recipe uses it",
        "--attention-backend TRITON_ATTN, unless you measure both",
        "vllm-project/vllm#52664",
    ),
    KnownIssue(
        "encoder-and-text-only",
        _REFUSE,
        lambda s: s.on_vllm and s.text_only and s.encoder_parallel,
        "--language-model-only loads no encoder that could run in parallel",
        "leave out one: --mm-encoder-tp-mode with its backend and cache, or --language-model-only",
        _SEED,
    ),
    KnownIssue(
        "vllm-parser",
        _REFUSE,
        lambda s: s.on_vllm and s.parser not in (None, "minimax_m3"),
        "the command line accepts any parser name; calls then stay text, or the first call ends the server",
        "--tool-call-parser minimax_m3 --reasoning-parser minimax_m3",
        "vLLM 0.24 and 0.33, whose options have no choices",
    ),
    KnownIssue(
        "sglang-parser",
        _REFUSE,
        lambda s: s.engine is EngineKind.SGLANG and s.parser not in (None, "auto", "minimax-m3"),
        "minimax-m3-nom, which some documents name, is not a parser of SGLang",
        "--tool-call-parser minimax-m3 --reasoning-parser minimax-m3, or auto for both",
        "SGLang 0.5.23, its options; SGLang's cookbook",
    ),
    KnownIssue(
        "sglang-fp8-name",
        _REFUSE,
        lambda s: s.engine is EngineKind.SGLANG and s.kv_dtype == "fp8",
        "SGLang has no cache type fp8",
        "--kv-cache-dtype fp8_e4m3 (or fp8_e5m2)",
        "SGLang 0.5.23, its options",
    ),
    KnownIssue(
        "trtllm-triton-bf16",
        _REFUSE,
        lambda s: (
            s.on_trtllm and not s.msa and (s.precision not in (Precision.BF16, Precision.MXFP8) or s.fp8_kv)
        ),
        "without its msa kernels TensorRT-LLM serves M3 with weights in BF16 or MXFP8 and a cache in BF16 only",
        "take BF16 or MXFP8; on one node of B200 the recipe trtllm-b200-1x4 with --precision nvfp4; or vLLM",
        "TensorRT-LLM 1.3.0rc20, its guide to M3; InferenceX's script for one B200 node",
    ),
    KnownIssue(
        "trtllm-msa-precision",
        _REFUSE,
        lambda s: s.on_trtllm and s.msa and s.precision in (Precision.MXFP4, Precision.INT4),
        "TensorRT-LLM serves M3 in BF16, in MXFP8, and in MXFP8 with NVFP4 experts",
        "take NVFP4, or vLLM",
        "TensorRT-LLM 1.4.0rc1, its guide to M3",
    ),
    KnownIssue(
        "trtllm-msa-off-blackwell",
        _REFUSE,
        lambda s: s.on_trtllm and s.msa and s.architecture is not Architecture.BLACKWELL,
        "TensorRT-LLM's msa kernels exist for Blackwell (SM100) only",
        "use vLLM",
        "NVIDIA/TensorRT-LLM#18872",
    ),
    KnownIssue(
        "trtllm-no-prefix-reuse",
        _WARN,
        lambda s: s.on_trtllm and not s.msa,
        "without the msa kernels no prefix is reused for M3 (enable_block_reuse: false): each turn of an agent computes the "
        "whole prompt again",
        "use vLLM or SGLang for agents, or the recipe trtllm-b200-1x4",
        "TensorRT-LLM 1.3.0rc20, its guide to M3",
    ),
    KnownIssue(
        "trtllm-reuse-undocumented",
        _WARN,
        lambda s: s.on_trtllm and s.msa,
        "prefix reuse with the msa kernels ran in InferenceX, and the guide still wants it off; the names of its keys differ "
        "by version",
        "test cached against uncached prompts with m3agent serve check",
        "InferenceX's script for one B200 node; TensorRT-LLM 1.4.0rc1, its guide to M3",
    ),
    KnownIssue(
        "index-cache",
        _REFUSE,
        lambda s: s.index_cache,
        "layers that share their choice of blocks (use_index_cache, index_topk_freq above 1) halve the accuracy at long "
        "contexts",
        "leave out use_index_cache and index_topk_freq",
        "sgl-project/sglang#34583; InferenceX#2816, which bars it",
    ),
    KnownIssue(
        "no-prefix-caching",
        _WARN,
        lambda s: s.engine is not EngineKind.TRTLLM and not s.prefix_caching,
        "each turn computes the whole prompt again: 183 s instead of 1.5 s at a million tokens on four H200",
        "--enable-prefix-caching; SGLang: no --disable-radix-cache",
        "measured on four H200, vLLM 0.24",
    ),
    KnownIssue(
        "data-parallel-prefix",
        _WARN,
        lambda s: s.dp > 1,
        "each data-parallel rank has its own prefix cache: a turn on another rank computes the whole prompt again",
        "m3agent sends a session's turns to one rank; let other clients do so (X-data-parallel-rank), or use one rank",
        "vLLM's data parallelism",
    ),
    KnownIssue(
        "data-parallel-million",
        _WARN,
        lambda s: s.on_vllm and s.dp >= 8 and s.context > NATIVE_CONTEXT,
        "vLLM spreads requests over its ranks by load alone: with eight ranks a turn of a million tokens mostly meets a rank "
        "without its prefix, and takes minutes",
        "use TP4 with fewer ranks; or send X-data-parallel-rank, or run each rank as a server behind a router (m3agent serve --servers)",
        "vLLM 0.24 to 0.33, v1/engine/core_client.py",
    ),
    KnownIssue(
        "draft-sglang",
        _REFUSE,
        lambda s: s.engine is EngineKind.SGLANG and s.draft is not None and not s.on_amd,
        "with a draft, SGLang gives wrong text: on Hopper M3 does not see the drafted tokens that it verifies, and text "
        "repeats; on Blackwell its M3 kernels exclude drafts with CUDA graphs",
        "use vLLM for the draft, or --draft off",
        "sgl-project/sglang#40214, #36659, #36866; SGLang 0.5.23",
    ),
    KnownIssue(
        "draft-sglang-amd",
        _WARN,
        lambda s: s.engine is EngineKind.SGLANG and s.draft is not None and s.on_amd,
        "on AMD, SGLang verifies drafts with one candidate a position only, and reports of wrong text are open",
        "use vLLM for the draft, or --speculative-eagle-topk 1",
        "SGLang 0.5.23; sgl-project/sglang#35889, #36659, #36866",
    ),
    KnownIssue(
        "draft-trtllm",
        _REFUSE,
        lambda s: s.on_trtllm and s.draft is not None and not s.msa,
        "in TensorRT-LLM drafts need its msa kernels, which the recipe for two nodes does not use",
        "use vLLM for the draft, or --draft off",
        "NVIDIA/TensorRT-LLM#18872",
    ),
    KnownIssue(
        "draft-mha-long",
        _REFUSE,
        lambda s: (s.draft_kv_heads or 0) > GROUPED_KV_HEADS and s.context > LONGEST_MHA,
        "a draft with multi-head attention has 16 times the keys and values of the one with GQA: 4.3 GB a GPU at a "
        "million tokens (TP4, fp8)",
        f"take {GQA_DRAFT.model}",
        "the drafts' configs; InferenceX's agent recipes, which all use GQA",
    ),
    KnownIssue(
        "draft-mtp",
        _REFUSE,
        lambda s: s.on_vllm and s.draft is not None and "mtp" in s.draft,
        "the released weights of M3 have no layers for multi-token prediction",
        f"use the method eagle3 with {GQA_DRAFT.model}",
        "ggml-org/llama.cpp#24908",
    ),
    KnownIssue(
        "draft-synthetic",
        _REFUSE,
        lambda s: s.draft_synthetic and not s.random_weights,
        "synthetic acceptance takes drafted tokens at random: it measures speed, and the text is wrong",
        "leave out rejection_sample_method, or measure with random weights (--load-format dummy)",
        "vLLM, config/speculative.py",
    ),
    KnownIssue(
        "draft-attention",
        _WARN,
        lambda s: s.on_vllm and s.draft is not None and s.draft_backend != draft_backend(s.vendor),
        "without the right attention backend for the draft the server may end at the start",
        'set "attention_backend" in --speculative-config: FLASH_ATTN on NVIDIA, TRITON_ATTN on AMD',
        "InferenceX#1739, #2423; vLLM's recipe page for M3",
    ),
    KnownIssue(
        "draft-many-streams",
        _WARN,
        lambda s: s.draft is not None and (s.sequences or 0) > FEW_STREAMS,
        "with many sequences at a time a draft gains little: 63% at 4 on MI355X, 42% at 16, 14% at 64",
        "measure both with m3agent serve bench",
        "ROCm/ATOM#1333",
    ),
    KnownIssue(
        "host-cache-draft",
        _REFUSE,
        lambda s: (
            s.on_vllm and s.offload is not None and s.draft is not None and s.between("0", FIRST_WITH_DRAFT)
        ),
        "before vLLM 0.30 the native offload stores keys and values of drafted tokens that M3 rejected, or finds nothing "
        "again",
        "install vLLM 0.30 or later, or leave out the draft or the host cache",
        "vllm-project/vllm#54288, #46971, #52771",
    ),
    KnownIssue(
        "host-cache-simple",
        _REFUSE,
        lambda s: (
            s.on_vllm and (s.offload == SIMPLE or (s.offload is not None and s.env.get(SIMPLE_SWITCH) == "1"))
        ),
        "vLLM's simple offload garbles text under load: a step may read blocks that are not loaded yet",
        f"use {NATIVE}, and unset {SIMPLE_SWITCH}",
        "vllm-project/vllm#47282, open in 0.33",
    ),
    KnownIssue(
        "host-cache-without-prefix",
        _REFUSE,
        lambda s: s.offload is not None and not s.prefix_caching,
        "without prefix caching nothing is found again in the host cache",
        "leave out the option that turns prefix caching off, or --host-cache",
        "vLLM's and SGLang's options",
    ),
    KnownIssue(
        "host-cache-load-failure",
        _WARN,
        lambda s: s.on_vllm and s.offload is not None and s.load_failure != RECOMPUTE,
        "a block that cannot be loaded from the host cache ends the request",
        'set "kv_load_failure_policy": "recompute" in --kv-transfer-config',
        "vLLM, config/kv_transfer.py",
    ),
    KnownIssue(
        "host-cache-trtllm",
        _REFUSE,
        lambda s: s.on_trtllm and s.offload is not None and not s.msa,
        "the recipe for two nodes reuses no prefix, so a host cache would stay empty",
        "use vLLM, or the recipe trtllm-b200-1x4",
        "TensorRT-LLM's guide to M3",
    ),
    KnownIssue(
        "host-cache-pipeline",
        _REFUSE,
        lambda s: s.engine is EngineKind.SGLANG and s.offload is not None and s.pp > 1,
        "SGLang's HiCache keeps M3's index keys only without pipeline parallelism",
        "leave out --pp-size, or --host-cache",
        "sgl-project/sglang#28713",
    ),
    KnownIssue(
        "hisparse",
        _REFUSE,
        lambda s: s.hisparse,
        "--enable-hisparse needs the radix cache off: each turn of an agent computes the whole prompt again",
        "use --host-cache instead",
        "SGLang 0.5.23, its options",
    ),
    KnownIssue(
        "several-nodes",
        _WARN,
        lambda s: s.nodes > 1,
        "several nodes were not measured; the network between them determines the speed",
        "stay within one node if M3 fits",
        "not measured",
    ),
    KnownIssue(
        "kv-copies",
        _WARN,
        lambda s: s.tp > 4,
        "M3 has 4 KV heads: above TP4 they are copied, so a token takes as much memory on each GPU as with TP4",
        "for more concurrent sequences use TP4 with data parallelism",
        "vLLM 0.24, models/minimax_m3/nvidia/model.py",
    ),
    KnownIssue(
        "remote-code",
        _WARN,
        lambda s: s.trust_remote_code,
        "--trust-remote-code runs Python from the checkpoint with all of the server's rights",
        "leave it out: vLLM has the model; if an engine requires it, pin the checkpoint's revision",
        "vLLM 0.24, TensorRT-LLM's guide to M3, which requires it",
    ),
    KnownIssue(
        "lora",
        _REFUSE,
        lambda s: s.on_vllm and s.lora,
        "vLLM 0.24 to 0.33 has no LoRA for M3, and ends at the start",
        "leave out --enable-lora",
        "vLLM 0.24 to 0.33, models/minimax_m3, which lack SupportsLoRA",
    ),
    KnownIssue(
        "split-k-nan",
        _WARN,
        lambda s: s.on_vllm and s.attention_backend == "TRITON_ATTN" and not s.on_amd,
        "Triton's decode can give NaN for the padded rows of a CUDA graph",
        "leave out --attention-backend",
        "vllm-project/vllm#49054",
    ),
    KnownIssue(
        "sglang-cold-start",
        _WARN,
        lambda s: s.engine is EngineKind.SGLANG and s.tp > 1 and s.architecture is Architecture.BLACKWELL,
        "at the first start the ranks compile the msa kernels at the same time and can disturb each other",
        "start it once with --tp-size 1 and --load-format dummy, which fills the cache of kernels",
        "SGLang's cookbook for M3",
    ),
    KnownIssue(
        "sglang-int4-spark",
        _WARN,
        lambda s: s.engine is EngineKind.SGLANG and s.precision is Precision.INT4 and s.nodes > 1,
        "with 4-bit weights on two DGX Spark SGLang gave NUL tokens",
        "use vLLM",
        "sgl-project/sglang#38143",
    ),
    KnownIssue(
        "trtllm-padded-graphs",
        _WARN,
        lambda s: s.on_trtllm and s.msa,
        "the decode kernel can crash if a CUDA graph is padded",
        "take a newer build, or set cuda_graph_config.enable_padding to false",
        "NVIDIA/TensorRT-LLM#18034",
    ),
    KnownIssue(
        "not-measured-engine",
        _WARN,
        lambda s: not s.on_vllm,
        "memory use was measured with vLLM; this engine's own share is an assumption",
        "read the engine's report at start",
        "not measured",
    ),
)
"""All rows. The order has no formal rule: rows that most users may meet come first."""


def met(setup: Setup, severity: Severity | None = None) -> list[KnownIssue]:
    """Return the rows that apply to a setup, of one severity or (None) of both."""
    return [trap for trap in TRAPS if severity in (None, trap.severity) and trap.applies(setup)]


def table() -> str:
    """Return the rows as a Markdown table for docs/serving.md."""
    lines = ["| trap | | what happens | what to do | source |", "|---|---|---|---|---|"]
    lines += [f"| `{t.name}` | {t.severity} | {t.effect} | {t.remedy} | {t.source} |" for t in TRAPS]
    return "\n".join(lines) + "\n"

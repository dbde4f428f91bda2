"""Each row of the table of traps applies to one example and not to a very similar one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from m3agent.serving.plan.gpus import Architecture, Vendor
from m3agent.serving.plan.kinds import EngineKind, Precision
from m3agent.serving.plan.known_issues import TRAPS, Rope, Setup, Severity, met

H200 = Setup(EngineKind.VLLM, Vendor.NVIDIA, Architecture.HOPPER, Precision.MXFP8, 131_072)
B200 = replace(H200, architecture=Architecture.BLACKWELL)
MI355X = replace(
    H200,
    vendor=Vendor.AMD,
    architecture=Architecture.CDNA4,
    attention_backend="TRITON_ATTN",
    env={"VLLM_USE_BREAKABLE_CUDAGRAPH": "0"},
)
MXFP4 = replace(MI355X, precision=Precision.MXFP4, moe_backend="aiter")
LONG = replace(H200, context=1_048_576, rope=Rope.EXTENDED)
AMD_LONG = replace(
    MI355X, context=1_048_576, rope=Rope.YARN, env={**MI355X.env, "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
)
SGLANG = replace(H200, engine=EngineKind.SGLANG, block_size=None)
TRTLLM = replace(B200, engine=EngineKind.TRTLLM, precision=Precision.BF16, block_size=None)
MSA = replace(TRTLLM, precision=Precision.NVFP4, kv_dtype="fp8", msa=True)

# name of the row: (base setup, changes for which it applies, changes for which it does not)
EXAMPLES: dict[str, tuple[Setup, dict[str, Any], dict[str, Any]]] = {
    "parameters-230b": (H200, {"assumed_parameters": 229.9e9}, {"assumed_parameters": 427e9}),
    "vllm-without-m3": (H200, {"version": "0.23.1"}, {"version": "0.24.0"}),
    "vllm-0.25-off-blackwell": (
        H200,
        {"version": "0.26.0"},
        {"version": "0.26.0", "architecture": Architecture.BLACKWELL},
    ),
    "others-gpus-too-early": (
        H200,
        {"architecture": Architecture.AMPERE, "version": "0.24.0"},
        {"architecture": Architecture.AMPERE, "version": "0.27.1"},
    ),
    "others-gpus": (H200, {"architecture": Architecture.BLACKWELL_RTX}, {}),
    "ampere-fp8-cache": (
        H200,
        {"architecture": Architecture.AMPERE, "kv_dtype": "fp8"},
        {"architecture": Architecture.AMPERE},
    ),
    "nvfp4-off-blackwell": (
        H200,
        {"precision": Precision.NVFP4},
        {"precision": Precision.NVFP4, "architecture": Architecture.BLACKWELL},
    ),
    "nvfp4-too-early": (
        B200,
        {"precision": Precision.NVFP4, "version": "0.24.0"},
        {"precision": Precision.NVFP4, "version": "0.25.1"},
    ),
    "mxfp8-on-cdna3": (
        MI355X,
        {"precision": Precision.MXFP8, "architecture": Architecture.CDNA3},
        {"precision": Precision.MXFP8, "architecture": Architecture.CDNA4},
    ),
    "sglang-mxfp8-on-hopper": (
        SGLANG,
        {"precision": Precision.MXFP8},
        {"precision": Precision.MXFP8, "architecture": Architecture.BLACKWELL},
    ),
    "mxfp4-off-cdna4": (MXFP4, {"architecture": Architecture.CDNA3}, {"architecture": Architecture.CDNA4}),
    "mxfp4-fp8-kv": (MXFP4, {"kv_dtype": "fp8"}, {"kv_dtype": "auto"}),
    "mxfp4-aiter": (MXFP4, {"moe_backend": "emulation"}, {"moe_backend": "aiter"}),
    "index-fp8": (
        H200,
        {"index_dtype": "fp8", "version": "0.31.0"},
        {"index_dtype": "fp8", "version": "0.32.0"},
    ),
    "long-without-override": (LONG, {"rope": Rope.NATIVE}, {"rope": Rope.NATIVE, "context": 524_288}),
    "yarn-on-nvidia": (LONG, {"rope": Rope.YARN}, {"rope": Rope.EXTENDED}),
    "yarn-top-level": (AMD_LONG, {"rope": Rope.YARN_TOP_LEVEL}, {"rope": Rope.YARN}),
    "extrapolated-window": (LONG, {}, {"context": 524_288}),
    "amd-long-switch": (AMD_LONG, {"env": MI355X.env}, {"env": AMD_LONG.env}),
    "block-size": (H200, {"block_size": 16}, {"block_size": 128}),
    "amd-cudagraph": (MI355X, {"env": {}}, {"env": MI355X.env}),
    "amd-attention": (
        MI355X,
        {"attention_backend": "ROCM_AITER_FA"},
        {"attention_backend": "ROCM_AITER_UNIFIED_ATTN"},
    ),
    "amd-aiter-attention": (MI355X, {"attention_backend": "ROCM_AITER_UNIFIED_ATTN"}, {}),
    "encoder-and-text-only": (
        H200,
        {"encoder_parallel": True, "text_only": True},
        {"encoder_parallel": True, "text_only": False},
    ),
    "vllm-parser": (H200, {"parser": "minimax_m2"}, {"parser": "minimax_m3"}),
    "sglang-parser": (SGLANG, {"parser": "minimax-m3-nom"}, {"parser": "auto"}),
    "sglang-fp8-name": (SGLANG, {"kv_dtype": "fp8"}, {"kv_dtype": "fp8_e4m3"}),
    "trtllm-triton-bf16": (TRTLLM, {"precision": Precision.NVFP4}, {"precision": Precision.MXFP8}),
    "trtllm-msa-precision": (MSA, {"precision": Precision.INT4}, {"precision": Precision.NVFP4}),
    "trtllm-msa-off-blackwell": (MSA, {"architecture": Architecture.HOPPER}, {}),
    "trtllm-no-prefix-reuse": (TRTLLM, {}, {"msa": True}),
    "trtllm-reuse-undocumented": (MSA, {}, {"msa": False}),
    "index-cache": (H200, {"index_cache": True}, {"index_cache": False}),
    "no-prefix-caching": (H200, {"prefix_caching": False}, {"prefix_caching": True}),
    "data-parallel-prefix": (H200, {"dp": 2}, {"dp": 1}),
    "data-parallel-million": (LONG, {"dp": 8}, {"dp": 4}),
    "draft-sglang": (SGLANG, {"draft_method": "EAGLE3"}, {"draft_method": None}),
    "draft-sglang-amd": (
        SGLANG,
        {"draft_method": "EAGLE3", "vendor": Vendor.AMD},
        {"draft_method": "EAGLE3"},
    ),
    "draft-trtllm": (TRTLLM, {"draft_method": "eagle3"}, {"draft_method": "eagle3", "msa": True}),
    "draft-mha-long": (
        LONG,
        {"draft_method": "eagle3", "draft_kv_heads": 64},
        {"draft_method": "eagle3", "draft_kv_heads": 4},
    ),
    "draft-mtp": (H200, {"draft_method": "minimax_m3_mtp"}, {"draft_method": "eagle3"}),
    "draft-synthetic": (
        H200,
        {"draft_method": "eagle3", "draft_synthetic": True},
        {"draft_method": "eagle3", "draft_synthetic": True, "random_weights": True},
    ),
    "draft-attention": (
        H200,
        {"draft_method": "eagle3"},
        {"draft_method": "eagle3", "draft_backend": "FLASH_ATTN"},
    ),
    "draft-many-streams": (
        H200,
        {"draft_method": "eagle3", "max_num_seqs": 64},
        {"draft_method": "eagle3", "max_num_seqs": 8},
    ),
    "host-cache-draft": (
        H200,
        {"draft_method": "eagle3", "offload": "OffloadingConnector", "version": "0.29.0"},
        {"draft_method": "eagle3", "offload": "OffloadingConnector", "version": "0.30.0"},
    ),
    "host-cache-simple": (
        H200,
        {"offload": "OffloadingConnector", "env": {"VLLM_USE_SIMPLE_KV_OFFLOAD": "1"}},
        {"offload": "OffloadingConnector", "env": {"VLLM_USE_SIMPLE_KV_OFFLOAD": "0"}},
    ),
    "host-cache-without-prefix": (
        H200,
        {"offload": "OffloadingConnector", "prefix_caching": False},
        {"prefix_caching": False},
    ),
    "host-cache-load-failure": (
        H200,
        {"offload": "OffloadingConnector"},
        {"offload": "OffloadingConnector", "load_failure": "recompute"},
    ),
    "host-cache-trtllm": (
        TRTLLM,
        {"offload": "host_cache_size"},
        {"offload": "host_cache_size", "msa": True},
    ),
    "host-cache-pipeline": (SGLANG, {"offload": "HiCache", "pp": 2}, {"offload": "HiCache", "pp": 1}),
    "hisparse": (SGLANG, {"hisparse": True}, {"hisparse": False}),
    "several-nodes": (H200, {"nodes": 2}, {"nodes": 1}),
    "kv-copies": (H200, {"tp": 8}, {"tp": 4}),
    "remote-code": (H200, {"trust_remote_code": True}, {"trust_remote_code": False}),
    "lora": (H200, {"lora": True}, {"lora": False}),
    "split-k-nan": (H200, {"attention_backend": "TRITON_ATTN"}, {"attention_backend": None}),
    "sglang-cold-start": (SGLANG, {"tp": 4, "architecture": Architecture.BLACKWELL}, {"tp": 4}),
    "sglang-int4-spark": (
        SGLANG,
        {"precision": Precision.INT4, "nodes": 2},
        {"precision": Precision.INT4, "nodes": 1},
    ),
    "trtllm-padded-graphs": (MSA, {}, {"msa": False}),
    "h100-window": (replace(H200, gpu="H100-80", tp=8), {"context": 131_073}, {"context": 131_072}),
    "h20-images": (replace(H200, tp=8, text_only=False), {"gpu": "H20-96"}, {"gpu": "H20-141"}),
    "h800-nvl": (H200, {"gpu": "H800-NVL"}, {"gpu": "H200"}),
    "lmcache-h20": (
        replace(H200, gpu="H20-96"),
        {"offload": "LMCacheConnectorV1"},
        {"offload": "OffloadingConnector"},
    ),
    "sparse-sentinels": (H200, {}, {"engine": EngineKind.SGLANG}),
    "vllm-first-tag": (H200, {"parser": "minimax_m3"}, {"parser": "minimax_m2"}),
    "vllm-late-thinking": (H200, {"parser": "minimax_m3"}, {"parser": "minimax_m2"}),
    "sglang-thinking-mode": (SGLANG, {}, {"engine": EngineKind.VLLM}),
    "not-measured-engine": (SGLANG, {}, {"engine": EngineKind.VLLM}),
}


def names(setup: Setup, *severities: Severity | None) -> set[str]:
    return {trap.name for severity in severities or (None,) for trap in met(setup, severity)}


def test_every_row_has_an_example() -> None:
    assert list(EXAMPLES) == [trap.name for trap in TRAPS]


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_row_applies_to_its_example_and_not_to_the_neighbour(name: str) -> None:
    setup, wrong, right = EXAMPLES[name]
    assert name in names(replace(setup, **wrong), *Severity)
    assert name not in names(replace(setup, **right), *Severity)


@pytest.mark.parametrize(
    "setup", [H200, B200, MI355X, MXFP4, AMD_LONG], ids=["h200", "b200", "amd", "mxfp4", "amd-1m"]
)
def test_sound_setups_have_no_traps(setup: Setup) -> None:
    assert names(setup) == set()


@pytest.mark.parametrize("version", ["0.24.0", "0.27.1", "0.33.0", "0.27.1+cu130"])
def test_good_versions_of_vllm(version: str) -> None:
    assert names(replace(H200, version=version)) == set()


def test_the_simple_offload_is_refused_by_name_too() -> None:
    assert "host-cache-simple" in names(replace(H200, offload="SimpleCPUOffloadConnector"))


def test_fp8_index_keys_on_cdna4_need_another_indexer() -> None:
    variables = {**MI355X.env, "VLLM_ROCM_USE_AITER": "1", "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT": "1"}
    starts = replace(MI355X, index_dtype="fp8", tp=8, env=variables)
    assert "index-fp8" not in names(starts)
    for change in (
        {"env": MI355X.env},
        {"tp": 2},
        {"version": "0.30.0"},
        {"architecture": Architecture.CDNA3},
    ):
        assert "index-fp8" in names(replace(starts, **change)), change


def test_fp8_index_keys_need_nvidia_and_off_blackwell_a_version() -> None:
    assert "index-fp8" in names(replace(H200, version="0.24.0", index_dtype="fp8"))
    assert "index-fp8" not in names(replace(H200, index_dtype="fp8"))  # the plan then asks for 0.32
    assert "index-fp8" not in names(replace(B200, version="0.24.0", index_dtype="fp8"))
    assert "index-fp8" in names(replace(MI355X, version="0.33.0", index_dtype="fp8"))


@pytest.mark.parametrize("version", ["0.22.0", "0.25.0", "0.25.1", "0.26.0", "0.27.0"])
def test_bad_versions_of_vllm(version: str) -> None:
    assert met(replace(H200, version=version), Severity.REFUSE)

"""The check for layers that the engine has silently built dense: the checkpoint's config, and arithmetic on the log."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from m3agent.serving.check.check import Check
from m3agent.serving.launch.dense_check import dense_check, facts_of
from m3agent.serving.launch.load_signs import EngineFacts
from m3agent.serving.launch.record import LOG, ServerRecord
from m3agent.serving.plan.memory_model import GIB
from tests.serving.launch.test_checkpoint import folder_of, with_text

SPARSE = {"sparse_attention_freq": [0, 0, 0, *([1] * 57)]}
FP8_TP4 = ("vllm", "serve", "m3", "--tensor-parallel-size", "4", "--kv-cache-dtype", "fp8")
FP8_INDEX = ("--attention-config", '{"indexer_kv_dtype": "fp8"}')


def checked(
    folder: Path, bytes_a_token: float | None = None, argv: tuple[str, ...] = FP8_TP4, engine: str = "vllm"
) -> Check:
    record = ServerRecord(url="http://h/v1", engine=engine, pid=1, checkpoint=str(folder), argv=argv)
    facts = EngineFacts()
    if bytes_a_token is not None:
        facts.cache_gib, facts.kv_tokens = round(bytes_a_token * 1_000_000 / GIB, 2), 1_000_000
    (check,) = dense_check(record, facts, {})
    return check


@pytest.mark.parametrize("config", [{}, {"sparse_attention_freq": []}, {"sparse_attention_freq": [0] * 60}])
def test_a_config_without_sparse_layers_fails_with_cause_and_remedy(tmp_path: Path, config: Any) -> None:
    check = checked(folder_of(tmp_path, with_text(sparse_attention_config=config)), 29_952)
    assert check.ok is False
    assert "no sparse_attention_freq" in check.detail and "config.json again" in check.fix


@pytest.mark.parametrize(
    ("argv", "sparse", "dense"),
    [
        (FP8_TP4, 29_952, 15_360),
        ((*FP8_TP4, *FP8_INDEX), 22_656, 15_360),
        (FP8_TP4[:5], 45_312, 30_720),
        (("vllm", "serve", "m3"), 137_472, 122_880),
    ],
)
def test_the_log_s_arithmetic_tells_dense_from_sparse(
    tmp_path: Path, argv: tuple[str, ...], sparse: int, dense: int
) -> None:
    folder = folder_of(tmp_path, with_text(sparse_attention_config=SPARSE))
    good, bad = checked(folder, sparse, argv), checked(folder, dense, argv)
    assert good.ok and "57 of 60 layers; the cache has index keys" in good.detail
    assert bad.ok is False
    assert f"it takes {sparse:,}, without them {dense:,}" in bad.detail and bad.fix
    draft = checked(folder, sparse + 512, argv)
    assert draft.ok, "a draft's own keys and values are no fault"


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ((), {}),
        ((*FP8_TP4, "--pipeline-parallel-size", "2"), {}),
        (("vllm", "serve", "m3", "--tensor-parallel-size", "3"), {}),
        (FP8_TP4, {"num_key_value_heads": 8}),
    ],
)
def test_without_the_arithmetic_the_config_decides(
    tmp_path: Path, argv: tuple[str, ...], text: dict[str, Any]
) -> None:
    folder = folder_of(tmp_path, with_text(sparse_attention_config=SPARSE, **text))
    check = checked(folder, 15_360, argv)
    assert check.ok and check.detail == "57 of 60 layers, by the config"
    assert checked(folder).ok, "a log that reports no memory"


def test_the_log_of_a_real_engine_passes(tmp_path: Path) -> None:
    """A small model: 4 layers, 2 of them sparse, bf16, one GPU."""
    shutil.copy(Path(__file__).parent / "logs" / "vllm-good-run.log", tmp_path / LOG)
    config = with_text(
        sparse_attention_config={"sparse_attention_freq": [0, 0, 1, 1]}, moe_layer_freq=[0, 0, 1, 1]
    )
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(config))
    record = ServerRecord(
        url="http://h/v1",
        engine="vllm",
        pid=1,
        checkpoint=str(tmp_path / "tiny"),
        argv=("vllm", "serve", "m3"),
    )
    (check,) = dense_check(record, facts_of(tmp_path, "vllm"), {})
    assert check.ok
    assert "2 of 4 layers" in check.detail and "8,703 bytes a token" in check.detail
    assert facts_of(tmp_path / "nowhere", "vllm") == EngineFacts()


def test_what_is_not_on_this_machine_is_not_judged(tmp_path: Path) -> None:
    assert checked(tmp_path / "nowhere").ok is None
    record = ServerRecord(url="http://h/v1", engine="sglang", pid=1, checkpoint=str(tmp_path))
    assert dense_check(record, EngineFacts(), {}) == []

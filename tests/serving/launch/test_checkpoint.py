"""Checkpoints given as folders and as names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from m3agent.serving.launch.checkpoint import (
    CheckpointError,
    are_cached,
    cache_folder,
    lacking_download,
    lacking_weights,
    read_checkpoint,
    read_draft,
)
from m3agent.serving.plan.draft import GQA_DRAFT, MHA_DRAFT
from m3agent.serving.plan.kinds import Precision
from m3agent.serving.plan.memory_model import M3, LayerCounts

CONFIG: dict[str, Any] = {
    "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
    "text_config": {
        "hidden_size": 6144,
        "intermediate_size": 3072,
        "dense_intermediate_size": 12288,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "num_local_experts": 128,
        "max_position_embeddings": 524288,
        "moe_layer_freq": [0, 0, 0, *([1] * 57)],
    },
}


def folder_of(tmp_path: Path, config: object = CONFIG, *files: str) -> Path:
    folder = tmp_path / "m3"
    folder.mkdir()
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    for name in files:
        (folder / name).write_bytes(b"")
    return folder


def with_text(**changes: object) -> dict[str, Any]:
    return {**CONFIG, "text_config": {**CONFIG["text_config"], **changes}}


def test_a_folder_says_what_it_is(tmp_path: Path) -> None:
    found = read_checkpoint(str(folder_of(tmp_path, CONFIG, "model.safetensors")), {})
    assert found.name == str(tmp_path / "m3")
    assert (found.shape, found.precision, found.positions, found.whole) == (M3, Precision.BF16, 524_288, True)
    offline = {"HF_HUB_OFFLINE": "1"}
    assert lacking_weights(found, Precision.BF16, offline, download=False) is None, "nothing is fetched"


@pytest.mark.parametrize(
    ("quantised", "precision"),
    [
        ({"quant_method": "mxfp8"}, Precision.MXFP8),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, Precision.NVFP4),
        ({"quant_method": "quark", "weight": "MXFP4"}, Precision.MXFP4),
        ({"quant_method": "awq"}, None),
    ],
)
def test_its_precision_is_that_of_its_config(
    tmp_path: Path, quantised: object, precision: Precision | None
) -> None:
    folder = folder_of(tmp_path, {**CONFIG, "quantization_config": quantised}, "a.safetensors")
    assert read_checkpoint(str(folder), {}).precision is precision


def test_checkpoint_with_fewer_layers_and_other_widths(tmp_path: Path) -> None:
    config = with_text(moe_layer_freq=[0, 0, 1, 1], hidden_size=1024)
    found = read_checkpoint(str(folder_of(tmp_path, config)), {}, weights=False)
    assert (found.shape, found.whole) == (LayerCounts(dense=2, sparse=2), False)


@pytest.mark.parametrize(
    ("config", "files", "said"),
    [
        (CONFIG, (), "has no weights"),
        ("{", (), "is not JSON"),
        ("[]", (), "is not a JSON object"),
        ({"architectures": ["LlamaForCausalLM"]}, (), "names LlamaForCausalLM, which is not MiniMax M3"),
        ({}, (), "names no architecture"),
    ],
)
def test_faults_of_a_folder_are_reported(
    tmp_path: Path, config: object, files: tuple[str, ...], said: str
) -> None:
    folder = folder_of(tmp_path, config, *files)
    with pytest.raises(CheckpointError, match=said):
        read_checkpoint(str(folder), {})


def test_weights_that_are_lacking_are_counted(tmp_path: Path) -> None:
    index = {"weight_map": {f"layer{number}": f"model-{number}.safetensors" for number in range(5)}}
    folder = folder_of(tmp_path, CONFIG, "model-0.safetensors", "model-3.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"lacks 3 of its 5 weight files \(model-1"):
        read_checkpoint(str(folder), {})
    assert read_checkpoint(str(folder), {}, weights=False).folder == folder


@pytest.mark.parametrize(
    "name",
    [
        "./nowhere",
        "/nowhere/m3",
        "~/nowhere-m3",
        "~no-such-user/m3",
        "minimax",
        "a/b/c",
        "-a/b",
        "a/--trust-remote-code",
        "a b/c",
    ],
)
def test_missing_folder_that_is_not_a_model_name_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match="does not exist: give a folder"):
        read_checkpoint(name, {})


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        read_checkpoint(str(tmp_path), {})


def test_model_name_means_the_download_if_there_is_one(tmp_path: Path) -> None:
    environ = {"HF_HOME": str(tmp_path)}
    assert read_checkpoint("MiniMaxAI/MiniMax-M3", environ).precision is Precision.BF16
    found = read_checkpoint("MiniMaxAI/MiniMax-M3-MXFP8", environ)
    assert (found.folder, found.precision) == (None, Precision.MXFP8)
    assert cache_folder(environ) == tmp_path / "hub"
    assert not are_cached({"MiniMaxAI/MiniMax-M3-MXFP8": "", "": ""}, environ)
    store = tmp_path / "hub" / "models--MiniMaxAI--MiniMax-M3-MXFP8"
    snapshot = store / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(CONFIG))
    (store / "refs").mkdir()
    (store / "refs" / "main").write_text("abc")
    assert read_checkpoint("MiniMaxAI/MiniMax-M3-MXFP8", environ).folder is None, "begun, not whole"
    (snapshot / "model.safetensors").write_bytes(b"")
    found = read_checkpoint("MiniMaxAI/MiniMax-M3-MXFP8", environ)
    assert (found.name, found.folder) == ("MiniMaxAI/MiniMax-M3-MXFP8", snapshot)
    assert are_cached({"MiniMaxAI/MiniMax-M3-MXFP8": "", "": ""}, environ)
    assert not are_cached({"MiniMaxAI/MiniMax-M3-MXFP8": "", "someone/draft": ""}, environ)
    assert not are_cached({str(snapshot): ""}, environ), "a folder is no name"
    (store / "refs" / "main").write_text("newer")
    found = read_checkpoint("MiniMaxAI/MiniMax-M3-MXFP8", environ)
    assert found.folder is None, "an engine would look for the newer one"
    (store / "refs" / "v2").write_text("abc")
    for revision in ("abc", "v2"):
        named = read_checkpoint("MiniMaxAI/MiniMax-M3-MXFP8", environ, revision=revision)
        assert named.folder == snapshot
        assert are_cached({"MiniMaxAI/MiniMax-M3-MXFP8": revision}, environ)
    absent = read_checkpoint("MiniMaxAI/MiniMax-M3-MXFP8", environ, revision="0123abc")
    said = lacking_weights(absent, None, environ, download=False)
    assert said is not None
    assert "not complete on this machine at 0123abc: " in said
    assert "`m3agent serve fetch MiniMaxAI/MiniMax-M3-MXFP8 --revision 0123abc`" in said


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"HF_HUB_CACHE": "~/a", "HF_HOME": "/b"}, "~/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HOME": "~/b"}, "~/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({}, "~/.cache/huggingface/hub"),
    ],
)
def test_the_cache_is_where_huggingface_hub_has_it(environ: dict[str, str], folder: str) -> None:
    assert cache_folder(environ) == Path(folder).expanduser()


def test_weights_that_are_not_here_are_not_downloaded_unasked(tmp_path: Path) -> None:
    environ = {"HF_HUB_CACHE": str(tmp_path)}
    found = read_checkpoint("MiniMaxAI/MiniMax-M3", environ)
    said = lacking_weights(found, Precision.BF16, environ, download=False)
    assert said == (
        "MiniMaxAI/MiniMax-M3 (about 854 GB) is not complete on this machine: get it with `m3agent serve fetch "
        "MiniMaxAI/MiniMax-M3`, or let the engine download it with --download"
    )
    unknown = lacking_weights(found, None, environ, download=False)
    assert unknown is not None
    assert "MiniMax-M3 is not complete" in unknown


def test_too_small_disk_is_reported_before_the_download(tmp_path: Path) -> None:
    environ = {"HF_HUB_CACHE": str(tmp_path / "not" / "yet")}
    found = read_checkpoint("MiniMaxAI/MiniMax-M3", environ)
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    if free >= 854e9:
        pytest.skip("this disk has room for M3")
    said = lacking_weights(found, Precision.BF16, environ, download=True)
    assert said is not None
    assert "take 796 GiB" in said, "854 GB"
    assert f"and {tmp_path} has" in said
    offline = lacking_weights(found, Precision.BF16, {**environ, "HF_HUB_OFFLINE": "1"}, download=True)
    assert offline is not None
    assert "HF_HUB_OFFLINE forbids" in offline


DRAFT: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 6144,
    "intermediate_size": 16384,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
}


def test_a_draft_s_folder_says_what_it_is(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, DRAFT)
    found = read_draft(str(folder), {})
    assert (found.model, found.kv_heads) == (str(folder), 4)
    assert found.weights / 1e9 == pytest.approx(1.16, abs=0.01)
    assert not lacking_download(str(folder), {"HF_HUB_OFFLINE": "1"})


def test_published_drafts_are_known_by_name(tmp_path: Path) -> None:
    environ = {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    assert read_draft(GQA_DRAFT.model, environ) == GQA_DRAFT
    assert read_draft(MHA_DRAFT.model, environ) == MHA_DRAFT
    assert lacking_download(GQA_DRAFT.model, environ)
    assert not lacking_download(GQA_DRAFT.model, {"HF_HUB_CACHE": str(tmp_path)})


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({**DRAFT, "architectures": ["LlamaForCausalLM"]}, "not that of an EAGLE3 draft"),
        ({**DRAFT, "hidden_size": 4096}, "reads states of 4,096 numbers and M3's have 6,144"),
        ({key: value for key, value in DRAFT.items() if key != "num_key_value_heads"}, "lacks one of"),
        ({**DRAFT, "num_key_value_heads": "four"}, "lacks one of"),
    ],
)
def test_another_model_is_no_draft(tmp_path: Path, config: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        read_draft(str(folder_of(tmp_path, config)), {})


@pytest.mark.parametrize(
    ("model", "said"), [("/nowhere/draft", "does not exist"), ("someone/draft", "its size is unknown")]
)
def test_a_draft_that_cannot_be_read_is_refused(tmp_path: Path, model: str, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        read_draft(model, {"HF_HUB_CACHE": str(tmp_path)})


@pytest.mark.parametrize("name", ["MiniMaxAI/MiniMax-M3.1-Flash", "nvidia/MiniMax-M3.1-Flash-NVFP4"])
def test_a_later_model_is_not_planned_as_m3(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="m3agent fix --endpoint URL --model NAME"):
        read_checkpoint(name, {"HF_HOME": str(tmp_path)})
    assert read_checkpoint("nvidia/MiniMax-M3-NVFP4", {"HF_HOME": str(tmp_path)}).precision == "nvfp4"

"""The documented recipes: names, order, and commands that a shell accepts unchanged."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from m3agent.serving.plan.command import LaunchCommand, command_line
from m3agent.serving.plan.overlay import changes_text, overlay, recipe_json, recipe_text
from m3agent.serving.plan.recipe import RECIPES, recipe
from m3agent.util.errors import UsageError
from tests.conftest import others_later, python_program

NAMES = [
    *("vllm-nvidia-tp8", "vllm-nvidia-tp8-ep", "vllm-nvidia-dp8-ep", "vllm-nvidia-blog", "vllm-nvidia-128k"),
    *("vllm-nvidia-mxfp8", "vllm-nvidia-docker", "vllm-amd-tp8", "vllm-amd-tp8-ep", "vllm-amd-dp8-ep"),
    *("vllm-amd-1m", "vllm-amd-mxfp4-aiter", "vllm-amd-mxfp4-emulation", "vllm-amd-docker"),
    *("vllm-cloud-2gpu", "sglang-8gpu", "sglang-cloud-2gpu", "trtllm-gb200-2x4", "trtllm-b200-1x4"),
    *("dynamo-trtllm-disagg", "dynamo-vllm-agg", "vllm-nvidia-nvfp4", "vllm-nvidia-nvfp4-eagle3"),
    *("vllm-nvidia-nvfp4-eagle3-gqa", "vllm-nvidia-h100", "vllm-nvidia-h200-humming"),
    *("vllm-amd-mi300x-mxfp8", "vllm-amd-mi355x-mxfp8", "vllm-amd-mi355x-many", "vllm-amd-mxfp4-tp8"),
    *("vllm-amd-mxfp4-benchmark", "sglang-b200", "sglang-b300", "sglang-h200", "sglang-mi355x"),
    *("sglang-mi300x", "sglang-b200-prefill", "sglang-b200-decode", "sglang-h200-prefill"),
    "sglang-h200-decode",
]
SHELL_WORDS = ("vllm-nvidia-tp8", "vllm-amd-tp8", "sglang-8gpu", "trtllm-gb200-2x4", "dynamo-trtllm-disagg")
"""A recipe of each engine and vendor; those of TensorRT-LLM and Dynamo have variables of the shell."""

P = "--tool-call-parser minimax_m3 --reasoning-parser minimax_m3 --enable-auto-tool-choice"
M = "MiniMaxAI/MiniMax-M3"
AMD = "--attention-backend TRITON_ATTN --mm-encoder-tp-mode data --mm-encoder-attn-backend ROCM_AITER_FA"
PRINTED = {
    "vllm-nvidia-tp8": f"vllm serve {M} --tensor-parallel-size 8 --block-size 128 {P}",
    "vllm-nvidia-tp8-ep": f"vllm serve {M} --tensor-parallel-size 8 --enable-expert-parallel --block-size 128 {P}",
    "vllm-nvidia-dp8-ep": f"vllm serve {M} --data-parallel-size 8 --enable-expert-parallel --block-size 128 {P}",
    "vllm-nvidia-blog": (
        f"vllm serve {M} --tensor-parallel-size 8 --enable-expert-parallel --block-size 128 "
        "--mm-encoder-attn-backend FLASHINFER --mm-processor-cache-type shm --tool-call-parser minimax_m3 "
        "--enable-auto-tool-choice --reasoning-parser minimax_m3 --trust-remote-code"
    ),
    "vllm-nvidia-128k": f"vllm serve {M} --tensor-parallel-size 8 --block-size 128 --max-model-len 131072",
    "vllm-nvidia-mxfp8": f"vllm serve {M}-MXFP8 --tensor-parallel-size 8 --block-size 128 {P}",
    "vllm-nvidia-docker": "docker pull vllm/vllm-openai:minimax-m3",
    "vllm-amd-tp8": f"vllm serve {M} --tensor-parallel-size 8 --block-size 128 {AMD} {P}",
    "vllm-amd-tp8-ep": (
        f"vllm serve {M} --tensor-parallel-size 8 --enable-expert-parallel --block-size 128 {AMD} {P}"
    ),
    "vllm-amd-dp8-ep": (
        f"vllm serve {M} --data-parallel-size 8 --enable-expert-parallel --block-size 128 {AMD} {P}"
    ),
    "vllm-amd-1m": (
        f"vllm serve {M} --block-size 128 --kv-cache-dtype fp8 --tensor-parallel-size 8 --max-model-len 1048576 {AMD} "
        "--tool-call-parser minimax_m3 --enable-auto-tool-choice --reasoning-parser minimax_m3 --hf-overrides "
        '{"text_config":{"rope_scaling":{"rope_type":"yarn","factor":2.0,"original_max_position_embeddings":524288}}}'
    ),
    "vllm-amd-mxfp4-aiter": (
        "vllm serve amd/MiniMax-M3-MXFP4 --tensor-parallel-size 4 --block-size 128 --moe-backend aiter "
        f"--attention-backend TRITON_ATTN --language-model-only --no-enable-prefix-caching {P}"
    ),
    "vllm-amd-mxfp4-emulation": (
        "vllm serve amd/MiniMax-M3-MXFP4 --tensor-parallel-size 8 --block-size 128 --moe-backend emulation "
        f"--attention-backend TRITON_ATTN {P}"
    ),
    "vllm-amd-docker": (
        "docker run --rm -it --device /dev/kfd --device /dev/dri --group-add video --cap-add SYS_PTRACE "
        "--security-opt seccomp=unconfined --ipc=host --shm-size=16g -p 8000:8000 --entrypoint /bin/bash "
        "vllm/vllm-openai-rocm:minimax-m3"
    ),
    "vllm-cloud-2gpu": (
        "python -m vllm.entrypoints.openai.api_server --model ./minimax-m3 --served-model-name minimax-m3 "
        "--tensor-parallel-size 2 --quantization fp8 --enable-expert-parallel --max-model-len 131072 "
        "--kv-cache-dtype fp8_e5m2 --gpu-memory-utilization 0.92 --enable-chunked-prefill --max-num-seqs 16 --port 8000"
    ),
    "sglang-8gpu": (
        f"python -m sglang.launch_server --model-path {M} --dtype bfloat16 --tp-size 8 --ep-size 8 --trust-remote-code "
        "--mem-fraction-static 0.8 --enable-multimodal --quantization mxfp8 --attention-backend flashinfer "
        "--mm-attention-backend flashinfer_cudnn --moe-runner-backend deep_gemm --chunked-prefill-size 8192 "
        "--reasoning-parser minimax-m3 --tool-call-parser minimax-m3-nom"
    ),
    "sglang-cloud-2gpu": (
        "python -m sglang.launch_server --model-path ./minimax-m3 --tp 2 --quantization fp8 --enable-moe-ep "
        "--context-length 131072 --port 30000"
    ),
}
NVFP4 = "vllm serve nvidia/MiniMax-M3-NVFP4 --tensor-parallel-size 8 --trust-remote-code --block-size 128"
SGLANG = "sglang serve --trust-remote-code --model-path {} --reasoning-parser auto --tool-call-parser auto"
APART = "sglang serve --model-path {} --trust-remote-code --reasoning-parser auto --tool-call-parser auto"
FA4 = "--attention-backend fa4 --page-size 128 --moe-runner-backend deep_gemm --chunked-prefill-size 8192"
PRINTED |= {
    "vllm-nvidia-nvfp4": f"{NVFP4} {P}",
    "vllm-nvidia-h100": f"vllm serve {M}-MXFP8 --tensor-parallel-size 8 --block-size 128 --max-model-len 131072 {P}",
    "vllm-amd-mi355x-mxfp8": (
        f"vllm serve {M}-MXFP8 --tensor-parallel-size 8 --block-size 128 --attention-backend TRITON_ATTN {P}"
    ),
    "vllm-amd-mi355x-many": (
        f"vllm serve {M}-MXFP8 --tensor-parallel-size 4 --block-size 128 --language-model-only --moe-backend aiter "
        "--kv-cache-dtype fp8 --max-num-batched-tokens 32768 --attention-backend TRITON_ATTN --linear-backend "
        f"emulation {P}"
    ),
    "sglang-b300": (
        f"{SGLANG.format(M + '-MXFP8')} --tp 4 {FA4} --mem-fraction-static 0.75 --host 0.0.0.0 --port 30000"
    ),
    "sglang-h200": f"{SGLANG.format(M)} --tp 8 --mem-fraction-static 0.75 --host 0.0.0.0 --port 30000",
    "sglang-b200-prefill": (
        f"{APART.format(M + '-MXFP8')} --tp 4 --disaggregation-mode prefill --disaggregation-transfer-backend nixl "
        "--disaggregation-ib-device mlx5_0 --host 0.0.0.0 --port 30000 --disaggregation-bootstrap-port 8998"
    ),
}

# m3agent's own: the scripts read their address from them, so that `serve --host --port` can set it
DYNAMO_ENV = {"HTTP_HOST": "0.0.0.0", "HTTP_PORT": "8000"}
AMD_ENV = {"VLLM_USE_BREAKABLE_CUDAGRAPH": "0"}
AITER = AMD_ENV | {"VLLM_ROCM_USE_AITER": "1"}
FUSED = AITER | {
    "VLLM_ROCM_USE_AITER_FUSION_SHARED_EXPERTS": "1",
    "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION": "INT4",
}
QUICK = {
    "VLLM_ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16": "0",
    "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION_MIN_SIZE_KB": "256",
}
HIGH = {"VLLM_FLOAT32_MATMUL_PRECISION": "high"}
ENV = {
    "vllm-amd-tp8": AMD_ENV,
    "vllm-amd-tp8-ep": AMD_ENV,
    "vllm-amd-dp8-ep": AMD_ENV,
    "vllm-amd-1m": AMD_ENV | {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"},
    "vllm-amd-mxfp4-aiter": AMD_ENV | {"VLLM_ROCM_USE_AITER": "1", "VLLM_ROCM_USE_AITER_MOE": "1"},
    "vllm-amd-mxfp4-emulation": AMD_ENV,
    "trtllm-gb200-2x4": {"MODEL": "/models/MiniMax-M3"},
    "trtllm-b200-1x4": {"MODEL": "/models/MiniMax-M3-NVFP4"},
    "dynamo-trtllm-disagg": DYNAMO_ENV,
    "dynamo-vllm-agg": DYNAMO_ENV,
    "vllm-nvidia-nvfp4": HIGH,
    "vllm-nvidia-nvfp4-eagle3": HIGH,
    "vllm-nvidia-nvfp4-eagle3-gqa": HIGH,
    "vllm-nvidia-h200-humming": {"VLLM_MARLIN_USE_ATOMIC_ADD": "1"},
    "vllm-amd-mi300x-mxfp8": AITER
    | {
        "VLLM_ENGINE_READY_TIMEOUT_S": "3600",
        "VLLM_ROCM_USE_AITER_MHA": "0",
        "TORCH_BLAS_PREFER_HIPBLASLT": "1",
        "NCCL_MIN_NCHANNELS": "112",
        "GPU_MAX_HW_QUEUES": "2",
    },
    "vllm-amd-mi355x-mxfp8": FUSED,
    "vllm-amd-mi355x-many": FUSED | QUICK | {"VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT": "1"},
    "vllm-amd-mxfp4-benchmark": FUSED
    | QUICK
    | {"VLLM_ENGINE_READY_TIMEOUT_S": "3600", "VLLM_ROCM_USE_AITER_MOE": "1"},
    "sglang-mi355x": {"SGLANG_USE_AITER": "1"},
    "sglang-mi300x": {"SGLANG_USE_AITER": "1"},
}


def test_the_names_are_fixed_and_in_order() -> None:
    assert [known.name for known in RECIPES] == NAMES


@pytest.mark.parametrize("name", PRINTED)
def test_a_command_is_what_its_document_prints(name: str) -> None:
    assert " ".join(recipe(name).argv) == PRINTED[name]


@pytest.mark.parametrize("name", NAMES)
def test_the_environment_is_what_the_document_sets(name: str) -> None:
    assert dict(recipe(name).env) == ENV.get(name, {})


def test_tensorrt_is_started_by_slurm() -> None:
    known = recipe("trtllm-gb200-2x4")
    assert known.argv[:11] == (
        *("srun", "-N", "2", "--ntasks", "8", "--ntasks-per-node", "4", "--mpi=pmix", "--gres=gpu:4"),
        "--container-image=nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc20",
        "--container-mounts=/models:/models,/workspace:/workspace,${TRTLLM_DIR}:${TRTLLM_DIR}",
    )
    assert known.argv[-1] == (
        "trtllm-llmapi-launch python3 -m tensorrt_llm.commands.serve $MODEL --trust_remote_code "
        "--reasoning_parser minimax_m3 --tool_parser minimax_m3 --chat_template $MODEL/chat_template.jinja "
        "--host 0.0.0.0 --extra_llm_api_options $EXTRA_LLM_API_FILE"
    )
    for name, data_parallel in (("tep.yaml", "false"), ("dep.yaml", "true")):
        assert "sparse_attention_config:\n  algorithm: minimax_m3\n" in known.files[name]
        assert "kv_cache_config:\n  enable_block_reuse: false\n" in known.files[name]
        assert "tensor_parallel_size: 8\nmoe_expert_parallel_size: 8\n" in known.files[name]
        assert f"enable_attention_dp: {data_parallel}\n" in known.files[name]


def test_tensorrt_on_one_node_has_the_published_settings() -> None:
    known = recipe("trtllm-b200-1x4")
    assert known.argv == (
        "bash",
        "-c",
        "mpirun -n 1 trtllm-serve $MODEL --tp_size 4 --config msa.yaml --chat_template $MODEL/chat_template.jinja",
    )
    attention = (
        "algorithm: minimax_m3, implementation: msa, indexer_kv_dtype: fp8, sparse_disable_index_value: true"
    )
    cache = (
        "enable_block_reuse: true, tokens_per_block: 128, use_kv_cache_manager_v2: true, dtype: fp8, "
        "free_gpu_memory_fraction: 0.94, host_cache_size: 214748364800"
    )
    assert known.files["msa.yaml"].splitlines() == [
        "max_seq_len: 1048576",
        "max_num_tokens: 16384",
        "enable_chunked_prefill: true",
        "moe_config: {backend: TRTLLM}",
        f"sparse_attention_config: {{{attention}}}",
        f"kv_cache_config: {{{cache}}}",
        "scheduler_config: {capacity_scheduler_policy: MAX_UTILIZATION}",
        "trust_remote_code: true",
        "reasoning_parser: minimax_m3",
    ]
    shown = recipe_json("trtllm-b200-1x4", context=524_288)["result"]
    assert shown["files"]["msa.yaml"].startswith("max_seq_len: 524288\n")
    assert "--tool_parser minimax_m3 --host 127.0.0.1" in shown["argv"][-1]


def test_recipe_with_the_wrong_parameter_count_is_refused() -> None:
    refused = {known.name: known.refused for known in RECIPES if known.refused}
    assert set(refused) == {"vllm-cloud-2gpu", "sglang-cloud-2gpu"}
    for name, why in refused.items():
        assert why is not None
        assert "427 billion" in why
        assert recipe_json(name)["result"] is None


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("vllm-nvidia-tp-8", "vllm-nvidia-tp8"),
        ("sglang-8gpus", "sglang-8gpu"),
        ("dynamo-vllm", "dynamo-vllm-agg"),
    ],
)
def test_a_misspelt_name_finds_its_like(name: str, near: str) -> None:
    with pytest.raises(UsageError, match=rf"no recipe '{name}'; did you mean .*{near}"):
        recipe(name)


def test_a_name_like_no_other_points_to_the_list() -> None:
    with pytest.raises(UsageError, match=r"no recipe '\?\?\?'; `m3agent plan --recipe list` names all\.$"):
        recipe("???")


@pytest.mark.parametrize("name", NAMES)
def test_a_command_comes_apart_and_together_again(name: str) -> None:
    argv = recipe(name).argv
    assert LaunchCommand.of(argv).words == argv


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_plain_data(name: str) -> None:
    shown = recipe_json(name)
    assert json.loads(json.dumps(shown)).keys() == shown.keys()
    assert shown["argv"] == list(recipe(name).argv)
    for change in shown["overlay"]:
        assert change["reason"].endswith(".")
        assert change["source"]


@pytest.mark.integration
@pytest.mark.parametrize(
    "name", others_later([name for name in NAMES if not name.endswith("docker")], SHELL_WORDS)
)
def test_a_shell_takes_the_command_as_it_is_printed(name: str, tmp_path: Path) -> None:
    """Each program is replaced by a script that records its arguments and variables."""
    known = recipe(name)
    told = tmp_path / "told"
    echo = python_program("import json, os, sys\n")
    echo += f"open({str(told)!r}, 'w').write(json.dumps([sys.argv[1:], dict(os.environ)]))\n"
    program = tmp_path / known.argv[0]
    program.write_text(echo)
    program.chmod(0o755)
    given = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TRTLLM_DIR": "/t", "EXTRA_LLM_API_FILE": "/f"}
    script = command_line(known.argv, known.env)
    subprocess.run([shutil.which("bash") or "bash", "-c", script], env=given, check=True)
    words, env = json.loads(told.read_text())
    filled = {"${TRTLLM_DIR}": "/t", "$EXTRA_LLM_API_FILE": "/f", "$MODEL": known.env.get("MODEL", "")}
    expected = list(known.argv[1:])
    for variable, value in filled.items():
        expected = [word.replace(variable, value) for word in expected]
    assert words == expected
    assert {key: env[key] for key in known.env} == dict(known.env)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "file"),
    [(known.name, file) for known in RECIPES for file in known.files if file.endswith(".sh")],
)
def test_scripts_are_bash(name: str, file: str) -> None:
    script = recipe_json(name)["files"][file]
    result = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("name", NAMES)
def test_the_text_is_the_documented_command_to_a_shell(name: str) -> None:
    known, text = recipe(name), recipe_text(name)
    code = [line for line in text.splitlines() if not line.startswith("#")]
    assert "\n".join(code) == command_line(known.argv, known.env)
    for change in recipe_json(name)["overlay"]:
        assert change["reason"] in " ".join(text.replace("\n#", "").split())
    assert ("Never planned" in text) == (known.refused is not None)
    for content in recipe_json(name)["files"].values():
        assert all(f"#   {line}".rstrip() in text for line in content.splitlines())


def test_the_text_marks_what_is_added_changed_dropped_and_kept() -> None:
    text = recipe_text("sglang-8gpu")
    for mark in (
        "+ --enable-metrics",
        "~ --tool-call-parser minimax-m3-nom -> --tool-call-parser minimax-m3",
        "- --trust-remote-code",
        "did you mean `minimax-m3`?",
    ):
        assert mark in text
    with_key = overlay(recipe("sglang-8gpu"), loopback=False)
    assert "#   + sglang.yaml: api-key: $M3AGENT_API_KEY" in changes_text(with_key)
    assert "= --block-size 128" in recipe_text("vllm-amd-1m", context=131_072)
    assert "- VLLM_ALLOW_LONG_MAX_MODEL_LEN\n" in recipe_text("vllm-amd-1m", context=131_072)


def test_the_slurm_script_has_the_overlay_too() -> None:
    shown = recipe_json("trtllm-gb200-2x4", context=100_000)
    script = shown["result"]["files"]["serve.sh"]
    assert "--max_seq_len 100000" in script
    assert "export TLLM_PREFIX_TOKEN_CACHE=1" in script
    assert "--max_seq_len" not in shown["files"]["serve.sh"]

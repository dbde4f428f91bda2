"""Documented ways to serve MiniMax M3, by name: each command exactly as its document prints it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from m3agent.serving.plan.command import END_CHILDREN, command_line
from m3agent.serving.plan.memory_model import LONGEST_CONTEXT

Engine = Literal["vllm", "sglang", "trtllm", "dynamo"]
Vendor = Literal["nvidia", "amd"]

BF16 = "MiniMaxAI/MiniMax-M3"
MXFP8 = "MiniMaxAI/MiniMax-M3-MXFP8"
MXFP4 = "amd/MiniMax-M3-MXFP4"
NVFP4 = "nvidia/MiniMax-M3-NVFP4"

LICENCE = f"https://huggingface.co/{BF16}/blob/main/LICENSE"
"""The licence of the weights. Only the file itself says what it permits."""

YARN = '{"text_config":{"rope_scaling":{"rope_type":"yarn","factor":2.0,"original_max_position_embeddings":524288}}}'
"""Value of vLLM's `--hf-overrides` for more than 512K tokens on AMD, from its recipe page."""


@dataclass(frozen=True)
class Recipe:
    """One documented way to serve M3.

    Attributes:
        name: Name on the command line.
        engine: The engine.
        checkpoint: Checkpoint on Hugging Face, or a folder.
        argv: The whole command as printed, with the program.
        gpus: Number of GPUs on all nodes together.
        source: The document.
        vendor: Manufacturer of the GPUs.
        env: Environment of the command.
        files: Text of the files that the command reads, by name.
        image: Container image.
        verified: True if the newest option listing of the engine accepts the command with the overlay's
            changes.
        notes: Remarks for users.
        refused: Why this recipe is never planned; None if it may be.
        only: What the command does, if it starts no server; otherwise empty.
    """

    name: str
    engine: Engine
    checkpoint: str
    argv: tuple[str, ...]
    gpus: int
    source: str
    vendor: Vendor = "nvidia"
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    files: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    image: str | None = None
    verified: bool = False
    notes: str = ""
    refused: str | None = None
    only: str = ""

    @property
    def no_server(self) -> str | None:
        """Why the recipe cannot be served, and what to do instead; None if its command starts a server."""
        if not self.only:
            return None
        return (
            f"{self.name} {self.only} and starts no server: `m3agent serve --container` runs the engine in the image "
            f"{self.image}, with the best plan or with another --recipe"
        )


_VLLM_PAGE = "vLLM's recipe page for MiniMax-M3"
_NVIDIA_BLOG = "NVIDIA's developer blog on MiniMax M3"
_CLOUD_GUIDE = "a GPU cloud's deployment guide for MiniMax M3"
_TRTLLM_GUIDE = "TensorRT-LLM's deployment guide for MiniMax-M3"

_PARSERS = (
    *("--tool-call-parser", "minimax_m3", "--reasoning-parser", "minimax_m3"),
    "--enable-auto-tool-choice",
)
_AMD_BACKENDS = (
    *("--attention-backend", "TRITON_ATTN", "--mm-encoder-tp-mode", "data"),
    *("--mm-encoder-attn-backend", "ROCM_AITER_FA"),
)
_AMD_ENV = {"VLLM_USE_BREAKABLE_CUDAGRAPH": "0"}
_TOO_SMALL = (
    "it counts 230 billion parameters, as the previous generation has; M3 has 427 billion, which in "
    "fp8 (about 444 GB) do not fit two H200 (282 GB)"
)


def _vllm(name: str, checkpoint: str, options: str, *tail: str, gpus: int = 8) -> Recipe:
    """Build a `vllm serve` command of the recipe page for NVIDIA."""
    argv = ("vllm", "serve", checkpoint, *options.split(), *tail)
    image = "vllm/vllm-openai:minimax-m3"
    return Recipe(name, "vllm", checkpoint, argv, gpus, _VLLM_PAGE, image=image, verified=True)


def _amd(
    name: str,
    checkpoint: str,
    options: str,
    *tail: str,
    gpus: int = 8,
    env: Mapping[str, str] = MappingProxyType({}),
    notes: str = "",
) -> Recipe:
    """Build a `vllm serve` command of the recipe page for AMD; the page sets a variable before each."""
    argv = ("vllm", "serve", checkpoint, *options.split(), *tail)
    return Recipe(
        name,
        "vllm",
        checkpoint,
        argv,
        gpus,
        _VLLM_PAGE,
        vendor="amd",
        env=MappingProxyType({**_AMD_ENV, **env}),
        image="vllm/vllm-openai-rocm:minimax-m3",
        verified=True,
        notes=notes,
    )


_TRTLLM_IMAGE = "nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc20"
_TRTLLM_MOUNTS = "--container-mounts=/models:/models,/workspace:/workspace,${TRTLLM_DIR}:${TRTLLM_DIR}"
_TRTLLM_SERVE = (
    "trtllm-llmapi-launch python3 -m tensorrt_llm.commands.serve $MODEL --trust_remote_code "
    "--reasoning_parser minimax_m3 --tool_parser minimax_m3 --chat_template $MODEL/chat_template.jinja "
    "--host 0.0.0.0 --extra_llm_api_options $EXTRA_LLM_API_FILE"
)
_TRTLLM_SRUN = (
    "srun",
    *("-N", "2", "--ntasks", "8", "--ntasks-per-node", "4", "--mpi=pmix", "--gres=gpu:4"),
    f"--container-image={_TRTLLM_IMAGE}",
    _TRTLLM_MOUNTS,
    *("--container-workdir", "/workspace"),
)
_TRTLLM_ARGV = (*_TRTLLM_SRUN, "bash", "-c", _TRTLLM_SERVE)
_TRTLLM_ENV = {"MODEL": "/models/MiniMax-M3"}
_SCRIPT_HEAD = """\
#!/bin/bash
# Both nodes must see the files named here. EXTRA_LLM_API_FILE: tep.yaml for latency, dep.yaml for throughput.
# Add -p, -A and -w to srun as your Slurm needs them.
set -e
: "${TRTLLM_DIR:?must name a checkout of TensorRT-LLM}"
: "${EXTRA_LLM_API_FILE:=/workspace/tep.yaml}"
"""
_TRTLLM_YAML = """\
tensor_parallel_size: 8
moe_expert_parallel_size: 8
enable_attention_dp: {data_parallel}
kv_cache_config:
  enable_block_reuse: false
sparse_attention_config:
  algorithm: minimax_m3
"""

MSA_FILE = "msa.yaml"
"""Name of the file with the settings of TensorRT-LLM for one node."""
_MSA_IMAGE = "nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc23.post1"
_MSA_SERVE = (
    f"mpirun -n 1 trtllm-serve $MODEL --tp_size 4 --config {MSA_FILE} "
    "--chat_template $MODEL/chat_template.jinja"
)


def msa_settings(
    *, context: int = LONGEST_CONTEXT, batched: int = 16_384, host_cache: int = 200 * 2**30, draft: str = ""
) -> str:
    """Return TensorRT-LLM's settings for M3 on one node of B200; the defaults are those that were published.

    Args:
        context: Context window in tokens.
        batched: Tokens of one step.
        host_cache: Bytes of the KV cache in the machine's memory; 0 for none.
        draft: Folder of an EAGLE3 draft; empty without one.
    """
    attention = (
        "algorithm: minimax_m3, implementation: msa, indexer_kv_dtype: fp8, sparse_disable_index_value: true"
    )
    cache = (
        "enable_block_reuse: true, tokens_per_block: 128, use_kv_cache_manager_v2: true, dtype: fp8, "
        f"free_gpu_memory_fraction: 0.94, host_cache_size: {host_cache}"
    )
    lines = [
        f"max_seq_len: {context}",
        f"max_num_tokens: {batched}",
        "enable_chunked_prefill: true",
        "moe_config: {backend: TRTLLM}",
        f"sparse_attention_config: {{{attention}}}",
        f"kv_cache_config: {{{cache}}}",
        "scheduler_config: {capacity_scheduler_policy: MAX_UTILIZATION}",
        "trust_remote_code: true",
        "reasoning_parser: minimax_m3",
    ]
    if draft:
        lines.append(
            f"speculative_config: {{decoding_type: Eagle3, max_draft_len: 3, speculative_model: {draft}}}"
        )
    return "\n".join(lines) + "\n"


SLURM_SCRIPT = "serve.sh"
"""Name of the file that contains `slurm_script`."""


def slurm_script(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """Return a script that starts TensorRT-LLM's `srun` command with the variables that it reads."""
    return f"{_SCRIPT_HEAD}{command_line(argv, env)}\n"


HTTP_HOST, HTTP_PORT = "HTTP_HOST", "HTTP_PORT"
"""Variables of Dynamo's scripts with the address and the port of its frontend."""
_DYNAMO_ENV = MappingProxyType({HTTP_HOST: "0.0.0.0", HTTP_PORT: "8000"})  # noqa: S104  # as in Dynamo's own scripts
_DYNAMO_FRONTEND = f"""\
#!/bin/bash
set -e
{END_CHILDREN}
python3 -m dynamo.frontend {{options}}--http-host "${HTTP_HOST}" --http-port "${HTTP_PORT}" &
"""
_DYNAMO_AGG = (
    _DYNAMO_FRONTEND.format(options="--router-mode kv --router-kv-events --kv-cache-block-size 128 ")
    + """\
python3 -m dynamo.vllm --model nvidia/MiniMax-M3-NVFP4 --served-model-name nvidia/MiniMax-M3-NVFP4 \\
  --trust-remote-code --tensor-parallel-size 4 --block-size 128 --gpu-memory-utilization 0.9 \\
  --max-model-len 1048576 --max-num-seqs 256 --max-num-batched-tokens 16384 --enable-prefix-caching \\
  --kv-cache-dtype fp8 --language-model-only --no-enable-flashinfer-autotune \\
  --attention-config '{"backend":"FLASHINFER","use_trtllm_attention":true,"indexer_kv_dtype":"fp8"}' \\
  --dyn-tool-call-parser minimax_m3 --dyn-reasoning-parser minimax_m3 --reasoning-parser minimax_m3 \\
  --kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq"}'
"""
)
_DYNAMO_DISAGG = (
    _DYNAMO_FRONTEND.format(options="")
    + """\
CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 python3 -m dynamo.trtllm --model-path MiniMaxAI/MiniMax-M3 \\
  --served-model-name MiniMaxAI/MiniMax-M3 --extra-engine-args prefill.yaml --modality text \\
  --disaggregation-mode prefill &
CUDA_VISIBLE_DEVICES=8,9,10,11,12,13,14,15 python3 -m dynamo.trtllm --model-path MiniMaxAI/MiniMax-M3 \\
  --served-model-name MiniMaxAI/MiniMax-M3 --extra-engine-args decode.yaml --modality text \\
  --disaggregation-mode decode --dyn-reasoning-parser minimax-m3 --dyn-tool-call-parser minimax-m3-nom &
wait -n
"""
)
_DYNAMO_YAML = (
    _TRTLLM_YAML.format(data_parallel="false")
    + """\
trust_remote_code: true
disable_overlap_scheduler: {prefill}
cache_transceiver_config:
  backend: DEFAULT
"""
)

_TP8 = "--tensor-parallel-size 8 --block-size 128"
_TP8_EP = "--tensor-parallel-size 8 --enable-expert-parallel --block-size 128"
_DP8_EP = "--data-parallel-size 8 --enable-expert-parallel --block-size 128"

RECIPES: tuple[Recipe, ...] = (
    _vllm("vllm-nvidia-tp8", BF16, _TP8, *_PARSERS),
    _vllm("vllm-nvidia-tp8-ep", BF16, _TP8_EP, *_PARSERS),
    _vllm("vllm-nvidia-dp8-ep", BF16, _DP8_EP, *_PARSERS),
    Recipe(
        "vllm-nvidia-blog",
        "vllm",
        BF16,
        (
            *("vllm", "serve", BF16, *_TP8_EP.split()),
            *("--mm-encoder-attn-backend", "FLASHINFER", "--mm-processor-cache-type", "shm"),
            *("--tool-call-parser", "minimax_m3", "--enable-auto-tool-choice"),
            *("--reasoning-parser", "minimax_m3", "--trust-remote-code"),
        ),
        8,
        _NVIDIA_BLOG,
        verified=True,
    ),
    _vllm("vllm-nvidia-128k", BF16, f"{_TP8} --max-model-len 131072"),
    _vllm("vllm-nvidia-mxfp8", MXFP8, _TP8, *_PARSERS),
    Recipe(
        "vllm-nvidia-docker",
        "vllm",
        BF16,
        ("docker", "pull", "vllm/vllm-openai:minimax-m3"),
        8,
        _VLLM_PAGE,
        image="vllm/vllm-openai:minimax-m3",
        notes="Any of the vllm-nvidia recipes then runs inside the image.",
        only="only pulls an image",
    ),
    _amd("vllm-amd-tp8", BF16, _TP8, *_AMD_BACKENDS, *_PARSERS),
    _amd("vllm-amd-tp8-ep", BF16, _TP8_EP, *_AMD_BACKENDS, *_PARSERS),
    _amd("vllm-amd-dp8-ep", BF16, _DP8_EP, *_AMD_BACKENDS, *_PARSERS),
    _amd(
        "vllm-amd-1m",
        BF16,
        "--block-size 128 --kv-cache-dtype fp8 --tensor-parallel-size 8 --max-model-len 1048576",
        *_AMD_BACKENDS,
        *("--tool-call-parser", "minimax_m3", "--enable-auto-tool-choice"),
        *("--reasoning-parser", "minimax_m3", "--hf-overrides", YARN),
        env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"},
    ),
    _amd(
        "vllm-amd-mxfp4-aiter",
        MXFP4,
        "--tensor-parallel-size 4 --block-size 128 --moe-backend aiter --attention-backend TRITON_ATTN "
        "--language-model-only --no-enable-prefix-caching",
        *_PARSERS,
        gpus=4,
        env={"VLLM_ROCM_USE_AITER": "1", "VLLM_ROCM_USE_AITER_MOE": "1"},
        notes="Needs aiter >= 0.1.16.post2 and an image with vllm-project/vllm#46419.",
    ),
    _amd(
        "vllm-amd-mxfp4-emulation",
        MXFP4,
        "--tensor-parallel-size 8 --block-size 128 --moe-backend emulation --attention-backend TRITON_ATTN",
        *_PARSERS,
        notes="Slower than aiter, and exact; runs on current images.",
    ),
    Recipe(
        "vllm-amd-docker",
        "vllm",
        BF16,
        (
            *("docker", "run", "--rm", "-it", "--device", "/dev/kfd", "--device", "/dev/dri"),
            *("--group-add", "video", "--cap-add", "SYS_PTRACE", "--security-opt", "seccomp=unconfined"),
            *("--ipc=host", "--shm-size=16g", "-p", "8000:8000", "--entrypoint", "/bin/bash"),
            "vllm/vllm-openai-rocm:minimax-m3",
        ),
        8,
        _VLLM_PAGE,
        vendor="amd",
        image="vllm/vllm-openai-rocm:minimax-m3",
        notes="Opens a shell in which any of the vllm-amd recipes then runs.",
        only="only opens a shell in a container",
    ),
    Recipe(
        "vllm-cloud-2gpu",
        "vllm",
        "./minimax-m3",
        (
            *("python", "-m", "vllm.entrypoints.openai.api_server", "--model", "./minimax-m3"),
            *("--served-model-name", "minimax-m3", "--tensor-parallel-size", "2", "--quantization", "fp8"),
            *("--enable-expert-parallel", "--max-model-len", "131072", "--kv-cache-dtype", "fp8_e5m2"),
            *("--gpu-memory-utilization", "0.92", "--enable-chunked-prefill", "--max-num-seqs", "16"),
            *("--port", "8000"),
        ),
        2,
        _CLOUD_GUIDE,
        refused=_TOO_SMALL,
    ),
    Recipe(
        "sglang-8gpu",
        "sglang",
        BF16,
        (
            *("python", "-m", "sglang.launch_server", "--model-path", BF16, "--dtype", "bfloat16"),
            *("--tp-size", "8", "--ep-size", "8", "--trust-remote-code", "--mem-fraction-static", "0.8"),
            *("--enable-multimodal", "--quantization", "mxfp8", "--attention-backend", "flashinfer"),
            *("--mm-attention-backend", "flashinfer_cudnn", "--moe-runner-backend", "deep_gemm"),
            *("--chunked-prefill-size", "8192", "--reasoning-parser", "minimax-m3"),
            *("--tool-call-parser", "minimax-m3-nom"),
        ),
        8,
        _NVIDIA_BLOG,
        verified=True,
        notes="In its source the command ends after the tool call parser.",
    ),
    Recipe(
        "sglang-cloud-2gpu",
        "sglang",
        "./minimax-m3",
        (
            *("python", "-m", "sglang.launch_server", "--model-path", "./minimax-m3", "--tp", "2"),
            *("--quantization", "fp8", "--enable-moe-ep", "--context-length", "131072", "--port", "30000"),
        ),
        2,
        _CLOUD_GUIDE,
        refused=_TOO_SMALL,
    ),
    Recipe(
        "trtllm-gb200-2x4",
        "trtllm",
        BF16,
        _TRTLLM_ARGV,
        8,
        _TRTLLM_GUIDE,
        env=MappingProxyType(_TRTLLM_ENV),
        files=MappingProxyType(
            {
                SLURM_SCRIPT: slurm_script(_TRTLLM_ARGV, _TRTLLM_ENV),
                "tep.yaml": _TRTLLM_YAML.format(data_parallel="false"),
                "dep.yaml": _TRTLLM_YAML.format(data_parallel="true"),
            }
        ),
        image=_TRTLLM_IMAGE,
        notes=(
            "BF16 only, and no prefix reuse: each turn of an agent computes its whole prompt; trtllm-b200-1x4 reuses prefixes. "
            "serve.sh is the command "
            "with its variables set; tep.yaml and dep.yaml have the guide's settings, and NVIDIA's own file for "
            "throughput also caps max_seq_len, without which CUDA graphs may fail to be captured."
        ),
    ),
    Recipe(
        "trtllm-b200-1x4",
        "trtllm",
        NVFP4,
        ("bash", "-c", _MSA_SERVE),
        4,
        "InferenceX's script for agents on one B200 node (minimaxm3_fp4_b200_trt_mtp.sh at 843c625), without its draft",
        env=MappingProxyType({"MODEL": "/models/MiniMax-M3-NVFP4"}),
        files=MappingProxyType({MSA_FILE: msa_settings()}),
        image=_MSA_IMAGE,
        notes=(
            "With the msa kernels prefixes are reused, which the guide of 1.4.0rc1 does not document. TensorRT-LLM refuses "
            "unknown keys, and some differ by version: docs/engines/tensorrt-llm.md. Not tried."
        ),
    ),
    Recipe(
        "dynamo-trtllm-disagg",
        "dynamo",
        BF16,
        ("bash", "disagg.sh"),
        16,
        "Dynamo's launch script for TensorRT-LLM with prefill and decode apart (1.5), with M3's settings",
        env=_DYNAMO_ENV,
        files=MappingProxyType(
            {
                "disagg.sh": _DYNAMO_DISAGG,
                "prefill.yaml": _DYNAMO_YAML.format(prefill="true"),
                "decode.yaml": _DYNAMO_YAML.format(prefill="false"),
            }
        ),
        image="nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:1.5.0",
        notes=(
            "NVIDIA's posts name this setup without a command, and Dynamo's list of known "
            "issues for M3 (1.3.0-minimax-m3-dev.1) says that it does not work; TensorRT-LLM added it later "
            "(NVIDIA/TensorRT-LLM#16017). Not tried. disagg.sh has both workers on one machine. The parsers are Dynamo's own."
        ),
    ),
    Recipe(
        "dynamo-vllm-agg",
        "dynamo",
        NVFP4,
        ("bash", "agg.sh"),
        4,
        "Dynamo's recipe for MiniMax M3 NVFP4 on vLLM, aggregated (1.5.0)",
        env=_DYNAMO_ENV,
        files=MappingProxyType({"agg.sh": _DYNAMO_AGG}),
        image="nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.5.0",
        notes=(
            "One worker of the recipe, which has several on GB200 under Kubernetes; without its speculative decoding, "
            "its KV offloading and the patches to vLLM that the latter needs. Not tried. The parsers are Dynamo's own."
        ),
    ),
)


def recipe(name: str) -> Recipe:
    """Return the recipe with this name.

    Raises:
        ValueError: There is no such recipe; the message names the nearest ones.
    """
    for known in RECIPES:
        if known.name == name:
            return known
    names = [known.name for known in RECIPES]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "`m3agent plan --recipe list` names all."
    raise ValueError(f"There is no recipe {name!r}; {hint}")

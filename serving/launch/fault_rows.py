"""Table of reasons why engines end: a log pattern, the kind of fault, and the sentence for people.

Rows are ordered from specific to vague, and causes stand before their consequences. The first row that
matches counts. `source` names the origin of the text: a source file of the program that writes it, or an
issue that shows it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from m3agent.serving.launch.load_signs import LoadPhase


class FaultKind(StrEnum):
    """Kinds of faults, by their remedy."""

    PORT = "port"
    ADDRESS = "address"
    PROGRAM = "program missing"
    MODULE = "module missing"
    FASTOKENS = "fastokens missing"
    MODEL_MISSING = "model not found"
    GATED = "model gated"
    OFFLINE = "offline"
    NETWORK = "network"
    DISK = "disk full"
    PERMISSION = "permission"
    CHECKPOINT = "checkpoint broken"
    REMOTE_CODE = "remote code"
    MODEL_UNKNOWN = "model unknown to the engine"
    OPTION = "unknown option"
    VALUE = "value of an option"
    PARSER = "unknown parser"
    QUANTISATION = "quantisation"
    POSITIONS = "context beyond the model"
    CONTEXT = "context does not fit"
    CACHE = "no memory for the cache"
    HELD = "memory held by others"
    LOADING = "out of memory while loading"
    PROFILING = "out of memory while profiling"
    CAPTURING = "out of memory while capturing"
    SERVING = "out of memory while serving"
    HOST_MEMORY = "host memory"
    SHARED_MEMORY = "shared memory"
    FILES = "open files"
    DRIVER = "driver"
    NO_GPU = "no GPU"
    ARCHITECTURE = "GPU not supported"
    GPU_FAULT = "GPU fault"
    COMMUNICATION = "communication"
    SLURM = "Slurm"
    DIED = "engine died"
    STOPPED = "stopped"
    LOG = "log unreadable"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class LaunchContext:
    """What the engine was started with.

    Attributes:
        port: Port of the server.
        model: Name or folder of the checkpoint.
        context: Context window in tokens; None means the model's own.
        gpus: Number of GPUs.
        log: File of the log.
    """

    port: int
    model: str
    context: int | None
    gpus: int
    log: Path


Values = dict[str, str]


@dataclass(frozen=True)
class FaultRow:
    """One way to fail.

    Attributes:
        kind: Kind of the fault.
        pattern: Pattern of the log.
        what: Template of what happened. It may use the pattern's groups, the values of `LaunchContext`, and the
            results of `reckon`.
        fix: Template of what to do, with the same values.
        source: Where the text comes from.
        phases: Phases of the engine in which the row counts; None means any.
        reckon: Function that computes further values.
    """

    kind: FaultKind
    pattern: re.Pattern[str]
    what: str
    fix: str
    source: str
    phases: frozenset[LoadPhase] | None = None
    reckon: Callable[[Values], Values] | None = None


_BEFORE_READY = frozenset(LoadPhase) - {LoadPhase.READY}
NAMES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM", "dynamo": "Dynamo"}
SMALLEST_STEP = 128
"""A proposed context window is a multiple of this block size of M3's cache, in tokens."""


def _re(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)


def _nearest(values: Values) -> Values:
    """Return the allowed values nearest to the given one; the engine prints all of them."""
    listed = re.findall(r"[\w.:/+-]+", values["choices"])
    near = difflib.get_close_matches(values["given"].lower(), listed, n=3, cutoff=0.5) or listed[:6]
    return {"nearest": f"use one of {', '.join(near)}" if near else "see the engine's --help"}


def _parser(values: Values) -> Values:
    """Return the engine's name of M3's parser. If there is none, the engine is older than the model."""
    listed = re.findall(r"[\w.-]+", values["choices"])
    ours = [name for name in listed if name.lower().replace("-", "_") == "minimax_m3"]
    return {
        "what_parser": values.get("what_parser", "").lower(),
        "nearest": f"take {ours[0]}" if ours else values["too_old"],
    }


def _tokens(values: Values) -> Values:
    largest = int(values["largest"]) // SMALLEST_STEP * SMALLEST_STEP
    return {
        "asked": f"{int(values['asked']):,}",
        "fits": str(largest),
        "largest": f"{int(values['largest']):,}",
    }


def _without_estimate(values: Values) -> Values:
    """Estimate the largest context window that fits.

    The KV cache grows in proportion to the window, apart from a fixed part of each sequence. So the estimate
    is slightly too low.
    """
    largest = int(int(values["asked"]) * float(values["there"]) / max(float(values["needed"]), 1e-9))
    return _tokens(values | {"largest": str(largest)})


def _positions(values: Values) -> Values:
    return {"asked": f"{int(values['asked']):,}", "most": values["most"], "shown": f"{int(values['most']):,}"}


def _held(values: Values) -> Values:
    return {"held": f"{float(values['total']) - float(values['free']):.1f}"}


def _cuda(values: Values) -> Values:
    found = int(values["found"])
    return {"cuda": f"{found // 1000}.{found % 1000 // 10}"}


def _out_of_memory(
    kind: FaultKind, doing: str, phases: frozenset[LoadPhase], fix: str
) -> tuple[FaultRow, ...]:
    return (
        FaultRow(
            kind,
            _re(
                r"(?:CUDA|HIP) out of memory\. Tried to allocate (?P<wanted>[\d.]+ \w+)\. GPU (?P<gpu>\d+) has a total "
                r"capacity of (?P<size>[\d.]+ \w+) of which (?P<free>[\d.]+ \w+) is free"
            ),
            f"GPU {{gpu}} ran out of memory while {doing}: it needed {{wanted}} more, and {{free}} of "
            f"{{size}} were free",
            fix,
            "torch, c10/cuda/CUDACachingAllocator.cpp; sgl-project/sglang#5285",
            phases,
        ),
        FaultRow(
            kind,
            _re(
                r"(?:CUDA|HIP) out of memory|CUDA error: out of memory|HIP error: out of memory|OutOfMemoryError"
                r"|insufficient GPU memory|cudaErrorMemoryAllocation|not enough GPU memory|Cuda failure (?:\d+ )?'out of memory'"
            ),
            f"A GPU ran out of memory while {doing}",
            fix,
            "torch; vLLM 0.24, v1/worker/gpu_model_runner.py; NVIDIA/TensorRT-LLM#5872; NCCL",
            phases,
        ),
    )


TOO_OLD: Mapping[str, str] = {
    "vllm": "install vLLM 0.24.0, or 0.27.1 and later",
    "sglang": "install SGLang 0.5.23 or later",
    "trtllm": "install TensorRT-LLM 1.3.0rc20 or later",
    "dynamo": "install Dynamo 1.5.0 or later, whose engine has M3",
}
"""What to install if the engine is too old: the first versions known to support M3."""

_PLAN = "m3agent plan says what fits"
_SHM = "/dev/shm"  # noqa: S108  # named, not written to
_VLLM_ARGS = "vLLM 0.24, config/model.py"
_HUB = "huggingface_hub 2.4, utils/_http.py"

_AT_THE_START: tuple[FaultRow, ...] = (
    # --- the command line, which the engine reads first
    FaultRow(
        FaultKind.PARSER,
        _re(
            r"invalid (?P<what_parser>tool call|reasoning) parser: (?P<given>\S+) \(chose from \{ ?(?P<choices>[^}\n]*)"
        ),
        "{name} has no {what_parser} parser {given}",
        "{nearest}",
        "vLLM 0.24, entrypoints/openai/api_server.py",
        reckon=_parser,
    ),
    FaultRow(
        FaultKind.PARSER,
        _re(
            r"(?P<what_parser>[Rr]easoning|[Tt]ool) parser '?(?P<given>[^'\s]+)'? not found\. Available parsers: (?P<choices>.*)"
        ),
        "{name} has no {what_parser} parser {given}",
        "{nearest}",
        "vLLM 0.24, reasoning/abs_reasoning_parsers.py",
        reckon=_parser,
    ),
    FaultRow(
        FaultKind.PARSER,
        _re(
            r"error: argument (?P<option>--[\w-]*parser): invalid choice: '?(?P<given>[^'\s]+)'? \(choose from (?P<choices>[^)\n]*)"
        ),
        "{name} has no parser {given} for {option}",
        "{nearest}",
        "Python's argparse; SGLang 0.5.23, server_args.py",
        reckon=_parser,
    ),
    FaultRow(
        FaultKind.VALUE,
        _re(
            r"error: argument (?P<option>[\w/-]+): invalid choice: '?(?P<given>[^'\n]+?)'? \(choose from (?P<choices>[^)\n]*)"
        ),
        "{name} does not take {given} for {option}",
        "{nearest}",
        "Python's argparse; vLLM 0.24 run with --kv-cache-dtype fp7",
        reckon=_nearest,
    ),
    FaultRow(
        FaultKind.OPTION,
        _re(
            r"error: unrecognized arguments: (?P<given>[^\n]{1,200})|No such option:? '?(?P<click>--?[\w-]+)"
        ),
        "{name} does not know the option {given}{click}",
        "leave it out, or install a version that has it (m3agent plan --recipe list names known commands)",
        "Python's argparse; click, of which trtllm-serve is made",
    ),
    FaultRow(
        FaultKind.VALUE,
        _re(
            r"error: argument (?P<option>[\w/-]+): (?P<said>[^\n]{1,200})|Invalid value for '?(?P<click>--?[\w-]+)'?: (?P<said2>[^\n]{1,200})"
        ),
        "{name} rejects the value of {option}{click}: {said}{said2}",
        "correct it",
        "Python's argparse; click",
    ),
    # --- programs and modules
    FaultRow(
        FaultKind.FASTOKENS,
        _re(
            r"fastokens >= (?P<least>[\d.]+) is required when VLLM_USE_FASTOKENS=1 \(found (?P<found>[^)\n]+)\)"
        ),
        "The package fastokens is version {found} where {name} runs, and {least} is needed",
        "pip install 'fastokens>=0.3.2' there; in an image that lacks it, leave out the fast tokeniser",
        "vLLM 0.24, tokenizers/fastokens.py",
    ),
    FaultRow(
        FaultKind.FASTOKENS,
        _re(r"'?fastokens'? package.{0,30} is required|No module named 'fastokens'"),
        "The package fastokens, which tokenizes long prompts four times as fast, is missing where {name} runs",
        "pip install 'fastokens>=0.3.2' there; in an image that lacks it, leave out the fast tokeniser",
        "vLLM 0.24, tokenizers/fastokens.py; SGLang 0.5.23, utils/hf_transformers/tokenizer.py",
    ),
    FaultRow(
        FaultKind.PROGRAM,
        _re(
            r"No module named '?(?P<module>vllm|sglang|tensorrt_llm|dynamo)(?:\.[\w.]+)?'?$"
            r"|(?P<program>vllm|trtllm-serve|trtllm-llmapi-launch): (?:command )?not found"
        ),
        "{name} is not installed in this environment",
        "install it there, or activate the environment that has it",
        "Python; sh",
    ),
    # --- the checkpoint's location
    FaultRow(
        FaultKind.GATED,
        _re(
            r"GatedRepoError|[Cc]annot access gated repo|trying to access a gated repo|is a gated repository"
        ),
        "{model} is available only to users who accepted its licence",
        "accept it on the model's page at Hugging Face, then log in: hf auth login",
        f"{_HUB}; sgl-project/sglang#14644",
    ),
    FaultRow(
        FaultKind.MODEL_MISSING,
        _re(
            r"Repository Not Found for url: \S*?/(?:api/models/)?(?P<repo>[\w.-]+/[\w.-]+)/(?:revision|resolve|tree)"
        ),
        "Hugging Face has no model {repo}, or it is private",
        "correct the name, or log in with hf auth login",
        _HUB,
    ),
    FaultRow(
        FaultKind.MODEL_MISSING,
        _re(r"Repo id must (?:be in the form|use alphanumeric)[^\n]*: '(?P<path>[^'\n]{1,300})'"),
        "There is no model folder {path}",
        "correct the path, or give the name of a model on Hugging Face",
        "huggingface_hub 2.4, utils/_validators.py; vLLM 0.24 run with /nonexistent/m3",
    ),
    FaultRow(
        FaultKind.MODEL_MISSING,
        _re(
            r"^\S*(?:Error|Exception): (?P<path>\S{1,300}) is not a local folder and is not a valid model identifier"
            r"|RepositoryNotFoundError|Revision Not Found for url"
        ),
        "{model} is neither a folder here nor a model on Hugging Face",
        "correct the name or the path",
        "transformers 5.23, utils/hub.py",
    ),
    FaultRow(
        FaultKind.GATED,
        _re(
            r"Invalid (?:credentials in Authorization header|user token)|(?:401|403) (?:Client Error|Unauthorized|Forbidden)"
        ),
        "Hugging Face refuses the token for {model}",
        "log in again with hf auth login, or correct HF_TOKEN",
        _HUB,
    ),
    FaultRow(
        FaultKind.CHECKPOINT,
        _re(r"Invalid repository ID or local directory specified: '(?P<path>[^'\n]{1,300})'"),
        "{path} is neither a readable model on Hugging Face nor a folder with a config.json",
        "correct the path or the name, or download the checkpoint again",
        "vLLM 0.24, transformers_utils/config.py",
    ),
    FaultRow(
        FaultKind.OFFLINE,
        _re(r"offline mode is enabled|outgoing traffic has been disabled"),
        "{model} is not on this machine, and HF_HUB_OFFLINE forbids the download",
        "unset HF_HUB_OFFLINE, or give the folder that has the checkpoint",
        "huggingface_hub 2.4, _snapshot_download.py",
    ),
    FaultRow(
        FaultKind.NETWORK,
        _re(r"429 Too Many Requests|429 Client Error"),
        "Hugging Face limits requests from this machine",
        "wait some minutes, and log in with hf auth login for a higher limit",
        _HUB,
    ),
    FaultRow(
        FaultKind.NETWORK,
        _re(
            r"LocalEntryNotFoundError|We couldn't connect to|trying to locate the files? on the Hub"
            r"|(?:Temporary failure in name resolution|Name or service not known|Failed to resolve).*(?:hugging|hf\.co)"
            r"|Max retries exceeded with url.*(?:hugging|hf\.co)|(?:hugging|hf\.co).*Max retries exceeded"
        ),
        "{model} is not on this machine, and Hugging Face cannot be reached",
        "check the network and the proxy variables (HTTPS_PROXY), or give the folder that has the checkpoint",
        "huggingface_hub 2.4, _snapshot_download.py; transformers 5.23, utils/hub.py",
    ),
    FaultRow(
        FaultKind.REMOTE_CODE,
        _re(
            r"[Pp]lease pass the argument `?trust_remote_code=True`?|contains custom code which must be executed"
        ),
        "{name} knows {model} only through Python code that comes with the checkpoint",
        "{too_old}, which brings the model itself",
        "transformers 5.23, dynamic_module_utils.py",
    ),
    FaultRow(
        FaultKind.CHECKPOINT,
        _re(
            r"config file at '(?P<file>[^'\n]{1,300})' is not a valid JSON file|JSONDecodeError|"
            r"Can't load tokenizer for '(?P<tokenizer>[^'\n]{1,300})'|Couldn't instantiate the backend tokenizer"
        ),
        "A file of {model} is missing or broken: {file}{tokenizer}",
        "download the checkpoint again (hf download {model}), with tokenizer.json and config.json",
        "transformers 5.23, configuration_utils.py and tokenization_utils_base.py",
        reckon=lambda values: {
            "file": values["file"]
            or (f"the tokenizer in {there}" if (there := values["tokenizer"]) else "its configuration"),
            "tokenizer": "",
        },
    ),
    FaultRow(
        FaultKind.CHECKPOINT,
        _re(
            r"(?:^|\s)(?P<folder>\S{1,300}) does not appear to have a file named (?P<file>[^\s]{1,200}?)\.(?: |$)"
        ),
        "{folder} has no {file}",
        "download the whole checkpoint again, or correct the path",
        "transformers 5.23, utils/hub.py",
    ),
    FaultRow(
        FaultKind.CHECKPOINT,
        _re(r"Cannot find any model weights with `(?P<folder>[^`\n]{1,300})`"),
        "{folder} holds no weights",
        "download the whole checkpoint again, or correct the path",
        "vLLM 0.24, model_executor/model_loader/default_loader.py",
    ),
    FaultRow(
        FaultKind.CHECKPOINT,
        _re(
            r"Error while deserializing header: (?P<said>[^\n]{1,100})|SafetensorError: (?P<said2>[^\n]{1,100})"
        ),
        "A weight file is damaged or incomplete ({said}{said2})",
        "remove it and download it again: hf download {model}",
        "safetensors, src/tensor.rs",
    ),
    FaultRow(
        FaultKind.PERMISSION,
        _re(r"PermissionError: \[Errno 13\] Permission denied: '(?P<path>[^'\n]{1,300})'"),
        "{path} cannot be read or written by this user",
        "change its permissions, or set HF_HOME to your own folder",
        "Python",
    ),
    # --- the model and the engine
    FaultRow(
        FaultKind.MODEL_UNKNOWN,
        _re(r"has model type `(?P<given>[^`\n]{1,100})` but Transformers does not recognize"),
        "{name} here does not know the architecture {given}",
        "{too_old}; if the model is not MiniMax M3, correct --model",
        "transformers 5.23; vLLM 0.24 run with an invented model type",
    ),
    FaultRow(
        FaultKind.MODEL_UNKNOWN,
        _re(
            r"Model architectures \[?'?(?P<given>[\w, ']{1,200}?)'?\]? (?:are not supported|failed to be inspected)"
        ),
        "{name} here does not have the architecture {given}",
        "{too_old}; if the model is not MiniMax M3, correct --model",
        "vLLM 0.24 and SGLang 0.5.23, models/registry.py",
    ),
    FaultRow(
        FaultKind.MODEL_UNKNOWN,
        _re(r"Unknown architecture for \w{1,60}: (?P<given>\w{1,100})"),
        "{name} here does not have the architecture {given}",
        "{too_old}; if the model is not MiniMax M3, correct --model",
        "TensorRT-LLM, _torch/models/modeling_auto.py",
    ),
    FaultRow(
        FaultKind.QUANTISATION,
        _re(
            r"quantization method (?P<given>\w{1,60}) is not supported for the current GPU\. Minimum capability: "
            r"(?P<least>\d+)\. Current capability: (?P<here>\d+)"
        ),
        "These GPUs cannot compute with {given} weights: {given} needs capability {least}, and they have {here}",
        "use weights in MXFP8 or BF16 (--precision)",
        "vLLM 0.24, config/vllm.py",
    ),
    FaultRow(
        FaultKind.QUANTISATION,
        _re(
            r"Unknown quantization method: (?P<given>[^.\n]{1,60})\."
            r"|[Qq]uantization method specified in the model config \((?P<theirs>[^)\n]{1,60})\) does not match"
        ),
        "The requested quantisation does not match the checkpoint or the engine: {given}{theirs}",
        "leave --quantization out: the checkpoint names its quantisation",
        _VLLM_ARGS,
    ),
)

_ANY_TIME: tuple[FaultRow, ...] = (
    # --- the address, which uvicorn binds only after it reported a successful start
    FaultRow(
        FaultKind.PORT,
        _re(
            r"^(?!.*[Rr]etrying).*(?:The server socket has failed to listen|TCPStore|DistNetworkError).*EADDRINUSE"
        ),
        "A port for the engine's internal communication is taken",
        "start it again; if that does not help, stop what is left of an earlier server (m3agent serve stop)",
        "vllm-project/vllm#11617",
    ),
    FaultRow(
        FaultKind.PORT,
        _re(
            r"^(?!.*[Rr]etrying).*(?:\[Errno 98\].*[Aa]ddress already in use"
            r"|[Aa]ddress already in use \(os error 98\)|Failed to bind socket to |Port is already in use\."
            r"|port at \d+ is not available|is used by a process already|port is already allocated)"
        ),
        "Port {port} is taken by another program",
        "stop that program (a server of m3agent: m3agent serve stop) or use another port: --port {next_port}",
        "vllm-project/vllm#7514, #9763; SGLang 0.5.23, utils/network.py; Docker",
    ),
    FaultRow(
        FaultKind.ADDRESS,
        _re(r"\[Errno 99\].*(?:[Cc]annot assign requested address)"),
        "The address to listen on does not belong to this machine",
        "correct --host",
        "Python's socket",
    ),
    FaultRow(
        FaultKind.ADDRESS,
        _re(r"\[Errno 13\].*bind on address.*permission denied"),
        "Port {port} needs administrator rights",
        "use a port from 1024 on: --port 8000",
        "Python's asyncio",
    ),
    FaultRow(
        FaultKind.SLURM,
        _re(r"CANCELLED AT \S+ DUE TO (?P<why>TIME LIMIT|PREEMPTION|NODE FAILURE)"),
        "Slurm ended the job: {why}",
        "ask for more time, or for a partition whose jobs are not preempted",
        "Slurm, slurmstepd/req.c",
    ),
    FaultRow(
        FaultKind.SLURM,
        _re(r"sbatch: error: (?P<said>[^\n]{1,200})"),
        "Slurm rejects the job: {said}",
        "correct the partition, the account or the resources of the job (sinfo shows what exists)",
        "Slurm, sbatch",
    ),
    FaultRow(
        FaultKind.SHARED_MEMORY,
        _re(
            rf"{_SHM}.*No space left|[Ee]rror while creating shared memory segment|insufficient shared memory"
            r"|unable to (?:allocate|resize|write|open).{0,40}shared memory(?!.*Too many open files)|Bus error"
        ),
        f"Shared memory ({_SHM}) is too small for {{gpus}} GPUs' processes; this is the default in containers",
        "start the container with --ipc=host or --shm-size=16g",
        "vllm-project/vllm#14537, MiniMax-AI/MiniMax-01#42; torch",
    ),
    FaultRow(
        FaultKind.DISK,
        _re(
            r"Not enough free disk space to download the file\. The expected file size is: (?P<size>[\d.]+) MB\. "
            r"The target location (?P<folder>\S{1,300}) only has (?P<free>[\d.]+) MB"
        ),
        "A file of {size_gb} GB is to be downloaded, and {folder} has {free_gb} GB free",
        "make room, or set HF_HOME to a larger disk (M3 has 444 GB in MXFP8, 854 GB in BF16)",
        "huggingface_hub 2.4, file_download.py",
        reckon=lambda values: {
            "size_gb": f"{float(values['size']) / 1000:,.1f}",
            "free_gb": f"{float(values['free']) / 1000:,.1f}",
        },
    ),
    FaultRow(
        FaultKind.DISK,
        _re(r"No space left on device|Disk quota exceeded"),
        "A disk is full",
        "make room in the download folder (HF_HOME; M3 has 444 GB in MXFP8, 854 GB in BF16) and in /tmp",
        "Linux, ENOSPC and EDQUOT",
    ),
    # --- memory and the context window
    FaultRow(
        FaultKind.POSITIONS,
        _re(
            r"max_model_len \((?P<asked>\d+)\) is greater than the derived max_model_len "
            r"\([^=\n]{1,60}=(?P<most>\d+)(?:\.0)?[^\n]*To allow overriding"
        ),
        "A window of {asked} tokens was requested, and the checkpoint's config has {shown} positions",
        "take --context {most}, or use m3agent's plan for the longer window, which overrides the config",
        _VLLM_ARGS,
        reckon=_positions,
    ),
    FaultRow(
        FaultKind.POSITIONS,
        _re(
            r"context_length \((?P<asked>\d+)\) is greater than the derived context_length \((?P<most>\d+)\)[^\n]*To allow overriding"
        ),
        "A window of {asked} tokens was requested, and the checkpoint's config has {shown} positions",
        "take --context {most}, or set SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1, which m3agent plan sets",
        "SGLang 0.5.23, configs/model_config.py",
        reckon=_positions,
    ),
    FaultRow(
        FaultKind.CONTEXT,
        _re(
            r"max seq len \((?P<asked>\d+)\), \((?P<needed>[\d.]+) GiB KV cache is needed, which is larger than the available "
            r"KV cache memory \((?P<there>[\d.]+) GiB\)\. Based on the available memory, the estimated maximum model length is "
            r"(?P<largest>\d+)"
        ),
        "A window of {asked} tokens needs {needed} GiB of cache on each GPU and {there} are left: {largest} tokens would fit",
        "take --context {fits}, an fp8 cache (-- --kv-cache-dtype fp8), or more GPUs",
        "vLLM 0.24, v1/core/kv_cache_utils.py; vllm-project/vllm#27508",
        reckon=_tokens,
    ),
    FaultRow(
        FaultKind.CONTEXT,
        _re(
            r"max seq len \((?P<asked>\d+)\), \((?P<needed>[\d.]+) GiB KV cache is needed, which is larger than the available "
            r"KV cache memory \((?P<there>[\d.]+) GiB\)"
        ),
        "A window of {asked} tokens needs {needed} GiB of cache on each GPU and {there} are left: some {largest} tokens fit",
        "take --context {fits}, an fp8 cache (-- --kv-cache-dtype fp8), or more GPUs",
        "vllm-project/vllm#16118",
        reckon=_without_estimate,
    ),
    FaultRow(
        FaultKind.HELD,
        _re(
            r"Free memory on device (?:cuda:(?P<gpu>\d+) )?\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than "
            r"desired GPU memory utilization \((?P<share>[\d.]+), (?P<wanted>[\d.]+) GiB\)"
        ),
        "Other programs hold {held} of the {total} GiB of GPU {gpu}: {free} are free and {wanted} are needed",
        "find them with nvidia-smi or rocm-smi and stop them (a server of m3agent: m3agent serve stop), or name "
        "other GPUs in CUDA_VISIBLE_DEVICES",
        "vLLM 0.24, v1/worker/utils.py, run on a GPU that another server used",
        reckon=lambda values: _held(values) | {"gpu": values["gpu"] or "0"},
    ),
    FaultRow(
        FaultKind.HELD,
        _re(r"The memory capacity is unbalanced"),
        "Other programs hold memory of some of the {gpus} GPUs",
        "find them with nvidia-smi or rocm-smi and stop them (a server of m3agent: m3agent serve stop), or name "
        "other GPUs in CUDA_VISIBLE_DEVICES",
        "SGLang 0.5.23, distributed/bootstrap.py",
    ),
    FaultRow(
        FaultKind.CACHE,
        _re(
            r"component could not be created: KV cache\s+Total GPU memory \(GiB\): (?P<total>[\d.]+)\s+Free GPU memory before "
            r"component creation attempt \(GiB\): (?P<free>[\d.]+)"
        ),
        "The cache does not fit the memory that {name} has left: {free} of {total} GiB were free on a GPU",
        "lower kv_cache_config.free_gpu_memory_fraction, --context or --concurrency",
        "NVIDIA/TensorRT-LLM#5872",
    ),
    FaultRow(
        FaultKind.CACHE,
        _re(
            r"No available memory for the cache blocks|Cannot auto-fit max_model_len"
            r"|Not enough memory\. Please try to increase --mem-fraction-static"
        ),
        "The weights leave no memory for the cache on {gpus} GPUs",
        f"use more GPUs or 8-bit weights: {_PLAN}",
        "vLLM 0.24, v1/core/kv_cache_utils.py; SGLang 0.5.23, model_executor/pool_configurator.py",
    ),
    *_out_of_memory(
        FaultKind.LOADING,
        "weights were loaded",
        frozenset({LoadPhase.STARTING, LoadPhase.DOWNLOADING, LoadPhase.WEIGHTS}),
        f"stop other programs on the GPUs, use more GPUs, or 8-bit weights: {_PLAN}",
    ),
    *_out_of_memory(
        FaultKind.PROFILING,
        "the engine measured the memory of a full batch",
        frozenset({LoadPhase.MEMORY, LoadPhase.COMPILING}),
        f"lower --context or --concurrency, or use more GPUs: {_PLAN}",
    ),
    *_out_of_memory(
        FaultKind.CAPTURING,
        "CUDA graphs were captured",
        frozenset({LoadPhase.GRAPHS}),
        f"lower --context or --concurrency, so that the plan leaves more memory, or use more GPUs: {_PLAN}",
    ),
    *_out_of_memory(
        FaultKind.SERVING,
        "it was serving",
        frozenset({LoadPhase.READY}),
        "start it with a lower --context or --concurrency, so that the plan leaves more memory",
    ),
    FaultRow(
        FaultKind.HOST_MEMORY,
        _re(
            r"DefaultCPUAllocator: can't allocate memory|\[Errno 12\]|Cannot allocate memory|^MemoryError|std::bad_alloc"
            r"|Failed core proc\(s\): \{[^}\n]*: -9\b|died with exit code -9\b|oom-kill|Out of memory: Killed process"
        ),
        "This machine's main memory (not the GPUs') ran out",
        "give the machine or container more memory, or stop other programs; dmesg names the killed process",
        "vLLM 0.24, v1/engine/utils.py and v1/utils.py; Linux; vllm-project/vllm#9753",
    ),
    # --- the GPUs themselves
    FaultRow(
        FaultKind.DRIVER,
        _re(r"NVIDIA driver on your system is too old \(found version (?P<found>\d{4,6})\)"),
        "The NVIDIA driver here supports CUDA up to {cuda}, and {name}'s torch is built for a newer CUDA",
        "install a newer driver (580 or later for CUDA 13), or an engine built for CUDA {cuda}",
        "torch, c10/cuda/CUDAFunctions.cpp; cloud-barista/cb-tumblebug#2544",
        reckon=_cuda,
    ),
    FaultRow(
        FaultKind.DRIVER,
        _re(
            r"driver version is insufficient for CUDA runtime|unsupported display driver|Error 80[34]\b|forward compatibility was attempted"
        ),
        "The NVIDIA driver here does not match the CUDA that {name} is built for",
        "install a newer driver (580 or later for CUDA 13), or an engine built for this driver (nvidia-smi "
        "names its CUDA)",
        "CUDA, errors 35, 803 and 804",
    ),
    FaultRow(
        FaultKind.NO_GPU,
        _re(r"Error 802: system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY"),
        "The GPUs are not ready: on machines with NVSwitch the fabric manager must run",
        "start it: systemctl start nvidia-fabricmanager",
        "CUDA, error 802",
    ),
    FaultRow(
        FaultKind.NO_GPU,
        _re(
            r"could not select device driver .{0,40}\[\[gpu\]\]|failed to inject CDI devices|unresolvable CDI devices"
        ),
        "Docker or Podman cannot give GPUs to containers",
        "install the NVIDIA Container Toolkit: nvidia-ctk runtime configure, and restart the container engine",
        "Docker, daemon/devices.go",
    ),
    FaultRow(
        FaultKind.NO_GPU,
        _re(r"World size \((?P<wanted>\d+)\) is larger than the number of available GPUs \((?P<here>\d+)\)"),
        "{wanted} GPUs are wanted, and the engine sees {here}",
        "give fewer with --gpus, or correct CUDA_VISIBLE_DEVICES",
        "vLLM 0.24, config/parallel.py",
    ),
    FaultRow(
        FaultKind.NO_GPU,
        _re(r"invalid device ordinal"),
        "{gpus} GPUs are wanted, and the engine sees fewer",
        "give fewer with --gpus, or correct CUDA_VISIBLE_DEVICES",
        "CUDA, error 101",
    ),
    FaultRow(
        FaultKind.NO_GPU,
        _re(
            r"No (?:CUDA|HIP) GPUs are available|Found no NVIDIA driver|[Nn]o CUDA-capable device|Failed to infer device type"
            r"|Torch not compiled with CUDA|CUDA unknown error|CUDA driver initialization failed|libcuda\.so\.1: cannot open"
        ),
        "The engine sees no GPU",
        "check with nvidia-smi or rocm-smi; give a container its GPUs (docker's --gpus all)",
        "torch, c10/cuda and torch/cuda/__init__.py; vLLM 0.24, config/device.py",
    ),
    FaultRow(
        FaultKind.ARCHITECTURE,
        _re(
            r"no kernel image is available|is not compatible with the current PyTorch|Value 'sm_(?P<sm>\w+)' is not defined"
        ),
        "{name} here has no kernels for this kind of GPU",
        "install a build for it; M3 runs on Hopper, Blackwell and AMD's CDNA3 and CDNA4",
        "CUDA, error 209; vllm-project/vllm#14452, #30855",
    ),
    FaultRow(
        FaultKind.FILES,
        _re(r"^(?:[\w.]*(?:Error|Exception)\b|unable to open shared memory).*Too many open files"),
        "The engine ran out of file descriptors",
        "raise the limit before you start it: ulimit -n 65536",
        "vLLM 0.24, utils/system_utils.py, which warns of it",
    ),
    FaultRow(
        FaultKind.GPU_FAULT,
        _re(
            r"uncorrectable ECC|Xid .{0,40}(?:48|63|64|74|79|94|95)\b|GPU has fallen off the bus|over nvlink or a hardware error"
        ),
        "A GPU or its link is faulty",
        "find it with dmesg and nvidia-smi -q, and leave that GPU out (CUDA_VISIBLE_DEVICES) until it is repaired",
        "NVIDIA's Xid errors; QwenLM/Qwen3-VL#1961",
    ),
    FaultRow(
        FaultKind.GPU_FAULT,
        _re(
            r"illegal memory access|device-side assert|misaligned address|unspecified launch failure|illegal instruction was encountered"
        ),
        "A kernel of {name} failed on the GPU: a fault of the engine, or an incompatible combination",
        "compare the setup with the known problems in m3agent plan; else report it to {name} with the log {log}",
        "CUDA, errors 700, 710, 715, 716, 719; vllm-project/vllm#49070",
    ),
    FaultRow(
        FaultKind.COMMUNICATION,
        _re(
            r"NCCL error|ncclSystemError|ncclUnhandledCudaError|ncclInternalError|ncclRemoteError|ncclInvalidUsage|DistBackendError"
            r"|Watchdog caught collective operation timeout|DistStoreError|DistNetworkError|gloo.{0,80}(?:Connection|timed out)"
            r"|Timed out after \d+ seconds waiting for clients"
        ),
        "The {gpus} GPUs' processes could not reach each other (NCCL)",
        "start it with NCCL_DEBUG=WARN to see why; on several nodes set NCCL_SOCKET_IFNAME, in containers --ipc=host",
        "torch, ProcessGroupNCCL.cpp; vllm-project/vllm#10626, #4618",
    ),
)

# These patterns also match other messages, so they come last. Faulty requests cause such messages too, so these rows
# only count before the engine is ready.
_LAST_AT_THE_START: tuple[FaultRow, ...] = (
    FaultRow(
        FaultKind.MODULE,
        _re(r"^(?:ModuleNotFoundError|ImportError): No module named '?(?P<module>[\w.]{1,100})"),
        "A Python package is missing where {name} runs: {module}",
        "install {name} again in a new environment; usually the installation was changed by hand",
        "Python",
    ),
    FaultRow(
        FaultKind.MODULE,
        _re(r"^ImportError: (?P<said>[^\n]{1,200})|undefined symbol: (?P<symbol>\w{1,60})"),
        "{name}'s packages are incompatible: {said}{symbol}",
        "install {name} again in a new environment, so that torch has the version that it was built for",
        "Python; the dynamic linker",
    ),
    FaultRow(
        FaultKind.VALUE,
        _re(
            r"validation errors? for (?P<where>\w{1,60})\n(?:\s*[\w.]{0,60}\n)?\s*(?:Value error, )?(?P<said>[^\n]{1,300})"
        ),
        "{name} refuses its settings ({where}): {said}",
        "correct the option named there",
        "pydantic; vLLM 0.24, config",
    ),
)

ROWS: tuple[FaultRow, ...] = (
    *(replace(row, phases=_BEFORE_READY) for row in _AT_THE_START),
    *_ANY_TIME,
    *(replace(row, phases=_BEFORE_READY) for row in _LAST_AT_THE_START),
)

"""The explanation of an engine's log: the fault, its numbers, and what to do."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.serving.launch.engine_faults import ROWS, Fault, explain
from m3agent.serving.launch.engine_log import LogReader
from m3agent.serving.launch.job import EngineJob

LOGS = Path(__file__).parent / "logs"
PAPER = Path(__file__).parents[3] / "docs" / "engines" / "failures.md"
JOB = EngineJob("vllm", (), {}, {}, "127.0.0.1", 8000, 8, model="MiniMaxAI/MiniMax-M3")
FILE = Path("/run/engine.log")

CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    # logs of our runs of vLLM 0.24 and huggingface_hub 2.4
    "vllm-core-killed-run": ("engine died", ("while it was serving", "dmesg", "/run/engine.log")),
    "vllm-memory-held-run": (
        "memory held by others",
        ("101.0 of the 139.8 GiB of GPU 0", "38.77", "125.82", "m3agent serve stop"),
    ),
    "vllm-no-folder-run": ("model not found", ("no model folder /models/nowhere",)),
    "vllm-unknown-model-run": ("model unknown to the engine", ("minimax_m9", "install vLLM 0.24.0")),
    "vllm-choice-run": ("value of an option", ("fp7", "--kv-cache-dtype", "fp8")),
    "hub-gated-run": ("model gated", ("MiniMaxAI/MiniMax-M3", "licence", "hf auth login")),
    "hub-token-run": ("model gated", ("refuses the token", "HF_TOKEN")),
    "hub-missing-run": ("model not found", ("no model MiniMaxAI/MiniMax-M3", "hf auth login")),
    "hub-rate-run": ("network", ("limits requests",)),
    "hub-offline-run": ("offline", ("unset HF_HUB_OFFLINE",)),
    "hub-dns-run": ("network", ("cannot be reached", "HTTPS_PROXY")),
    "uvicorn-port-run": ("port", ("Port 8000",)),
    # logs pasted into issues
    "vllm-port-issue9763": ("port", ("Port 8000", "m3agent serve stop", "--port 8001")),
    "vllm-rendezvous-port-issue11617": ("port", ("internal communication", "start it again")),
    "sglang-gated-pull14644": ("model gated", ("hf auth login",)),
    "sglang-capture-oom-issue5285": (
        "out of memory while capturing",
        ("GPU 7", "448.00 MiB more", "187.75 MiB of 95.00 GiB", "CUDA graphs", "--context"),
    ),
    "trtllm-cache-oom-issue5872": (
        "no memory for the cache",
        ("108.86 of 140.06 GiB", "free_gpu_memory_fraction"),
    ),
    "vllm-memory-held-issue25837": ("memory held by others", ("0.8 of the 4.0 GiB of GPU 0",)),
    "vllm-context-issue16118": (
        "context does not fit",
        ("1,048,576 tokens needs 24.00 GiB", "--context 435584"),
    ),
    "vllm-driver-pull2544": ("driver", ("CUDA up to 12.4", "newer driver")),
    "vllm-architecture-issue14452": ("GPU not supported", ("no kernels for this kind of GPU",)),
    "vllm-nccl-issue4618": ("communication", ("8 GPUs", "NCCL_DEBUG=WARN")),
    "vllm-shm-issue14537": ("shared memory", ("--ipc=host",)),
    "vllm-host-memory-issue9753": ("host memory", ("not the GPUs'",)),
    "sglang-nvlink-issue1961": ("GPU fault", ("its link is faulty",)),
    # logs made from the texts in the source code
    "sglang-port-source": ("port", ("Port 8000",)),
    "hub-disk-source": ("disk full", ("9.9 GB", "has 1.2 GB free", "HF_HOME")),
    "linux-disk-source": ("disk full", ("A disk is full",)),
    "vllm-loading-oom-source": (
        "out of memory while loading",
        ("GPU 3", "weights were loaded", "2.25 GiB more"),
    ),
    "vllm-profiling-oom-source": (
        "out of memory while profiling",
        ("a full batch", "512.00 MiB of 139.80 GiB"),
    ),
    "vllm-sampler-oom-source": (
        "out of memory while profiling",
        ("A GPU ran out of memory", "--concurrency"),
    ),
    "vllm-serving-oom-source": ("out of memory while serving", ("while it was serving", "1.50 GiB more")),
    "sglang-memory-held-source": ("memory held by others", ("some of the 8 GPUs",)),
    "vllm-no-cache-source": (
        "no memory for the cache",
        ("no memory for the cache on 8 GPUs", "m3agent plan"),
    ),
    "sglang-no-cache-source": ("no memory for the cache", ("no memory for the cache",)),
    "vllm-context-source": (
        "context does not fit",
        ("44.25 GiB", "33.19", "786,500 tokens would fit", "--context 786432"),
    ),
    "vllm-positions-source": (
        "context beyond the model",
        ("1,048,576", "524,288 positions", "--context 524288"),
    ),
    "sglang-positions-source": ("context beyond the model", ("524,288 positions", "SGLANG_ALLOW_OVERWRITE")),
    "torch-no-gpu-source": ("no GPU", ("sees no GPU", "nvidia-smi")),
    "vllm-few-gpus-source": ("no GPU", ("8 GPUs are wanted", "sees 4", "--gpus")),
    "cuda-fabric-source": ("no GPU", ("fabric manager",)),
    "argparse-option-source": ("unknown option", ("--enable-moe-ep",)),
    "click-option-source": ("unknown option", ("TensorRT-LLM does not know the option --block-size",)),
    "argparse-value-source": ("value of an option", ("--tp-size", "invalid int value: 'four'")),
    "pydantic-value-source": ("value of an option", ("CacheConfig", "less than or equal to 1")),
    "vllm-parser-source": ("unknown parser", ("no tool call parser minimax-m3; take minimax_m3.",)),
    "vllm-parser-old-source": ("unknown parser", ("reasoning parser minimax_m3; install vLLM 0.24.0",)),
    "sglang-parser-source": ("unknown parser", ("minimax-m3-nom", "take minimax-m3.")),
    "vllm-registry-source": ("model unknown to the engine", ("MiniMaxM3SparseForConditionalGeneration",)),
    "trtllm-registry-source": ("model unknown to the engine", ("MiniMaxM3Sparse", "TensorRT-LLM 1.3.0rc20")),
    "vllm-fastokens-source": ("fastokens missing", ("pip install 'fastokens>=0.3.2'",)),
    "vllm-fastokens-old-source": ("fastokens missing", ("version 0.1.3", "pip install 'fastokens>=0.3.2'")),
    "sglang-fastokens-source": ("fastokens missing", ("pip install 'fastokens>=0.3.2'",)),
    "python-module-source": ("module missing", ("xgrammar",)),
    "python-program-source": ("program missing", ("not installed",)),
    "vllm-core-9-source": ("host memory", ("not the GPUs'", "dmesg")),
    "python-files-source": ("open files", ("ulimit -n",)),
    "transformers-json-source": ("checkpoint broken", ("/models/m3/config.json",)),
    "transformers-tokenizer-source": ("checkpoint broken", ("broken: the tokenizer in /models/m3;",)),
    "transformers-file-source": ("checkpoint broken", ("/models/m3 has no preprocessor_config.json",)),
    "vllm-no-config-source": ("checkpoint broken", ("/models/empty", "config.json")),
    "vllm-no-weights-source": ("checkpoint broken", ("/models/m3 holds no weights",)),
    "safetensors-source": ("checkpoint broken", ("MetadataIncompleteBuffer", "hf download")),
    "vllm-quantisation-source": ("quantisation", ("modelopt_fp4", "capability 100", "they have 90")),
    "vllm-quantisation-name-source": ("quantisation", ("mxfp8", "leave --quantization out")),
    "transformers-remote-code-source": ("remote code", ("Python code that comes with the checkpoint",)),
    "docker-port-source": ("port", ("Port 8000",)),
    "docker-gpus-source": ("no GPU", ("NVIDIA Container Toolkit",)),
    "slurm-time-source": ("Slurm", ("TIME LIMIT", "more time")),
    "slurm-refused-source": ("Slurm", ("invalid partition specified: gpus", "sinfo")),
    "python-permission-source": ("permission", ("/root/.cache/huggingface/hub", "HF_HOME")),
    "cuda-illegal-source": ("GPU fault", ("kernel of vLLM failed", "/run/engine.log")),
    "vllm-unknown-source": (
        "unknown",
        ("exit code 1: RuntimeError: The stars are not right", "/run/engine.log"),
    ),
}
PROGRESS_ONLY = {
    "vllm-good-run",
    "vllm-shards-issue38820",
    "vllm-two-workers-issue142-567",
    "sglang-good-issue12726",
    "sglang-two-ranks-pull17157",
    "sglang-0.5.23-source",
    "trtllm-good-issue8961",
    "trtllm-weights-pull5291",
    "dynamo-vllm-issue1405",
}


def table() -> str:
    """Return all rows as Markdown, with an ellipsis for each part that varies."""
    lines = ["| kind | what is said | what to do | known from |", "|---|---|---|---|"]
    for row in dict.fromkeys((row.kind, row.what, row.fix, row.source) for row in ROWS):
        cells = [re.sub(r"(?:\{\w+\})+", "…", cell) for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def engine_of(name: str) -> str:
    """Return the engine of a log by its name. Libraries write the same in every engine."""
    if name.startswith("click"):
        return "trtllm"
    first = name.partition("-")[0]
    return first if first in ("vllm", "sglang", "trtllm", "dynamo") else "vllm"


def log(name: str) -> str:
    """Return a log without the line with its command's exit code."""
    return re.sub(r"\nexit \d+\n$", "\n", (LOGS / f"{name}.log").read_text(encoding="utf-8"))


def explained(text: str | bytes, exit_code: int | None = 1, engine: str = "vllm") -> Fault:
    reader = LogReader(engine)
    reader.feed(text.encode(errors="replace") if isinstance(text, str) else text)
    return explain(replace(JOB, engine=engine), reader, exit_code, FILE)


def test_every_log_has_its_case_and_its_origin() -> None:
    names = {path.stem for path in LOGS.glob("*.log")}
    assert names == set(CASES) | PROGRESS_ONLY
    told = (LOGS / "README.md").read_text()
    assert all(re.search(r"-(run|source|issue[\d-]+|pull\d+)$", name) for name in names)
    pasted = re.findall(r"(?:issue|pull)([\d-]+)$", "\n".join(sorted(names)), re.MULTILINE)
    assert all(f"#{number}" in told for numbers in pasted for number in numbers.split("-"))


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_log_becomes_one_sentence_with_its_numbers(name: str) -> None:
    kind, parts = CASES[name]
    fault = explained(log(name), engine=engine_of(name))
    assert fault.kind == kind, fault
    assert all(part in fault.sentence for part in parts), fault.sentence
    assert "\n" not in fault.sentence
    assert fault.sentence.endswith(".")
    assert not re.search(r"[{}]|\.\.|: ;|  |None", fault.sentence), fault.sentence
    assert len(fault.sentence) < 400


def test_every_row_is_hit_by_a_log() -> None:
    """A row that matches no log may have a wrong pattern, or a row above it may hide it."""
    said = [(LogReader(engine_of(name)), log(name)) for name in CASES]
    for reader, text in said:
        reader.feed(text.encode())
    texts = [
        "\n".join(line.message for line in (*reader.errors, *reader.tail) if not line.harmless)
        for reader, _ in said
    ]
    idle = [row.what for row in ROWS if not any(row.pattern.search(text) for text in texts)]
    assert set(idle) <= {
        "The address to listen on does not belong to this machine",
        "Port {port} needs administrator rights",
        "{model} is neither a folder here nor a model on Hugging Face",
        "The NVIDIA driver here does not match the CUDA that {name} is built for",
        "{gpus} GPUs are wanted, and the engine sees fewer",
        "{name}'s packages are incompatible: {said}{symbol}",
        "{name} has no {what_parser} parser {given}",
    }


@pytest.mark.parametrize(
    ("message", "kind", "part"),
    [
        ("OSError: [Errno 99] Cannot assign requested address", "address", "--host"),
        (
            "ERROR:    [Errno 13] error while attempting to bind on address ('0.0.0.0', 80): permission denied",
            "address",
            "--port 8000",
        ),
        (
            "OSError: acme/none is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
            "model not found",
            "neither a folder",
        ),
        (
            "RuntimeError: Error 803: system has unsupported display driver / cuda driver combination",
            "driver",
            "newer driver",
        ),
        (
            "RuntimeError: The NVIDIA driver on your system is too old (found version 12020).",
            "driver",
            "supports CUDA up to 12.2,",
        ),
        ("RuntimeError: CUDA error: invalid device ordinal", "no GPU", "8 GPUs"),
        ("ImportError: /opt/x.so: undefined symbol: _ZN3c104cuda", "module missing", "are incompatible"),
        (
            "KeyError: \"Reasoning parser 'x' not found. Available parsers: minimax_m3\"",
            "unknown parser",
            "minimax_m3",
        ),
    ],
)
def test_rarer_texts_of_the_sources(message: str, kind: str, part: str) -> None:
    fault = explained(f"Traceback (most recent call last):\n{message}\n")
    assert fault.kind == kind, fault
    assert part in fault.sentence


def test_the_paper_lists_every_row() -> None:
    assert table() in PAPER.read_text(), "put the output of table() into docs/engines/failures.md"


def test_the_cause_goes_before_what_follows_from_it() -> None:
    """The first GPU's process runs out of memory. The others only report that it has ended."""
    text = (
        "[rank1]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited\n"
        * 3
        + "(Worker_TP0 pid=9) ERROR 11-22 01:26:16 [multiproc_executor.py:898] torch.OutOfMemoryError: CUDA out of memory. "
        "Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 0.50 GiB is free.\n"
        + log("vllm-unknown-source")
    )
    assert explained(text).kind == "out of memory while loading"


def test_the_source_of_a_python_warning_is_no_reason() -> None:
    warning = "/usr/lib/python3.12/multiprocessing/resource_tracker.py:254: UserWarning: There appear to be leaked objects"
    sentence = explained(f"{warning}\n  warnings.warn('resource_tracker: There appear to be %d '\n").sentence
    assert "There appear to be leaked objects" in sentence


def test_a_reason_that_begins_below_its_exception_is_told() -> None:
    """As Python's multiprocessing writes it, seen with vLLM 0.24 on an H200."""
    text = (
        "(APIServer pid=1071)     raise RuntimeError('''\n"
        "(APIServer pid=1071) RuntimeError: \n"
        "(APIServer pid=1071)         An attempt has been made to start a new process before the\n"
        "(APIServer pid=1071)         current process has finished its bootstrapping phase.\n"
        "(APIServer pid=984) Traceback (most recent call last):\n"
        "(APIServer pid=984) RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    sentence = explained(text).sentence
    assert "RuntimeError: An attempt has been made to start a new process before the" in sentence


@pytest.mark.parametrize(
    "after", ["INFO 11-29 08:57:16 [cuda.py:45] loaded", "ERROR 11-29 08:57:16 [cuda.py:45] lost", ""]
)
def test_an_exception_without_a_reason_stands_alone(after: str) -> None:
    reader = LogReader("vllm")
    reader.feed(f"ValueError: \n{after}\n".encode())
    assert reader.errors[0].message.strip() == "ValueError:"


def test_harmless_messages_explain_nothing() -> None:
    """Each start of vLLM warns of too many open files and of a missing module."""
    text = log("vllm-good-run").partition("(APIServer pid=2336) INFO:     Started")[0]
    assert "Too many open files" in text
    assert "No module named" in text
    assert explained(text).kind == "unknown"
    assert explained(text, 0).kind == "stopped"


def test_requests_that_are_refused_do_not_explain_the_end() -> None:
    served = (
        "(APIServer pid=1) INFO:     Application startup complete.\n"
        + "(APIServer pid=1) pydantic_core._pydantic_core.ValidationError: 1 validation error for ChatRequest\n"
        + "(APIServer pid=1)   Value error, no messages\n"
        + '(APIServer pid=1) INFO:     127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 401 Unauthorized\n'
        + "(APIServer pid=1) json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)\n"
    )
    assert (
        explained(served + log("vllm-serving-oom-source").partition("\n")[2]).kind
        == "out of memory while serving"
    )
    assert explained(served).kind not in ("value of an option", "model gated", "checkpoint broken")


def test_a_flood_of_consequences_does_not_push_the_cause_out() -> None:
    reader = LogReader("vllm")
    reader.feed(log("vllm-serving-oom-source").encode())
    for number in range(3000):
        reader.feed(
            f"(APIServer pid=1984) ERROR 11-22 01:28:22 [serving.py:{number}] EngineDeadError: request {number}\n"
            f"Traceback (most recent call last):\n  File x, line {number}\n".encode()
        )
    assert explain(JOB, reader, 1, FILE).kind == "out of memory while serving"


@pytest.mark.parametrize("code", [-9, 137])
def test_kill_without_message_means_host_memory(code: int) -> None:
    text = log("vllm-good-run").partition("(EngineCore pid=2465) INFO 11-22 01:27:08")[0]
    assert explained(text, code).kind == "host memory"
    assert explained("", code).kind == "host memory"


@pytest.mark.parametrize(
    ("code", "kind", "part"),
    [
        (127, "program missing", "not installed"),
        (-7, "shared memory", "--ipc=host"),
        (139, "GPU fault", "signal 11"),
        (143, "stopped", "signal 15"),
        (-2, "stopped", "signal 2"),
        (3, "unknown", "exit code 3 and wrote nothing to /run/engine.log"),
        (None, "unknown", "unexpectedly"),
    ],
)
def test_an_empty_log_leaves_the_exit_code(code: int | None, kind: str, part: str) -> None:
    fault = explained("", code)
    assert fault.kind == kind
    assert part in fault.sentence


def test_sglang_kill_is_explained_by_the_childs_fault() -> None:
    assert explained(log("sglang-no-cache-source"), -9, "sglang").kind == "no memory for the cache"


def test_a_log_that_is_not_text() -> None:
    fault = explained(bytes(range(128, 256)) * 4000)
    assert (fault.kind, "is not text" in fault.sentence) == ("log unreadable", True)


def test_terminal_controls_do_not_reach_the_sentence() -> None:
    fault = explained("\x1b[31mRuntimeError: \x1b[1mred\x07\x1b]0;title\x07 hat\x1b[0m\n")
    assert "RuntimeError: red hat" in fault.sentence
    assert fault.sentence.isprintable()


@given(
    st.binary(max_size=600),
    st.sampled_from(["vllm", "sglang", "trtllm", "dynamo", "other"]),
    st.none() | st.integers(-70, 300),
)
def test_every_log_gets_one_complete_sentence(data: bytes, engine: str, code: int | None) -> None:
    reader = LogReader(engine)
    reader.feed(data)
    fault = explain(replace(JOB, engine=engine), reader, code, FILE)
    assert fault.sentence.endswith(".")
    assert fault.sentence.isprintable()


PIECES = sorted({line for name in CASES for line in log(name).splitlines() if len(line) < 400})


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=30), max_size=30), st.integers(-20, 200))
def test_any_mixture_of_lines_gives_one_clean_sentence(lines: list[str], code: int) -> None:
    fault = explained("\n".join(lines), code)
    assert fault.sentence.endswith(".")
    assert "\n" not in fault.sentence


@given(st.integers(0, 10**25).map(str), st.text("0123456789.", min_size=1, max_size=8))
def test_malformed_numbers_are_harmless(whole: str, odd: str) -> None:
    texts = [
        f"max seq len ({whole}), ({odd} GiB KV cache is needed, which is larger than the available KV cache memory ({odd} GiB)",
        f"Free memory on device cuda:0 ({odd}/{odd} GiB) on startup is less than desired GPU memory utilization ({odd}, {odd} GiB)",
        f"Not enough free disk space to download the file. The expected file size is: {odd} MB. The target location /x only has {odd} MB",
    ]
    assert all(explained(text).sentence.endswith(".") for text in texts)

"""Patterns of an engine's log that show its progress: bars, and lines that start a phase or report a fact.

Each pattern names the source file that writes the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

_MOST_BACKENDS = 8


class LoadPhase(IntEnum):
    """Phases of an engine until it answers, in this order. Some engines skip some phases."""

    STARTING = 0
    DOWNLOADING = 1
    WEIGHTS = 2
    MEMORY = 3
    COMPILING = 4
    GRAPHS = 5
    READY = 6

    @property
    def words(self) -> str:
        """Name of the phase for people."""
        return _WORDS[self]


_WORDS = {
    LoadPhase.STARTING: "starting",
    LoadPhase.DOWNLOADING: "downloading",
    LoadPhase.WEIGHTS: "loading weights",
    LoadPhase.MEMORY: "measuring memory",
    LoadPhase.COMPILING: "compiling kernels",
    LoadPhase.GRAPHS: "capturing CUDA graphs",
    LoadPhase.READY: "ready",
}


@dataclass(frozen=True)
class LoadProgress:
    """How far an engine is.

    Within a phase `done` and `total` never fall. `total` grows when the engine starts a further part of the
    phase.

    Attributes:
        phase: The phase.
        done: Finished parts (files, shards, graphs).
        total: Number of parts; 0 if the engine does not report it.
        detail: What the engine works on.
    """

    phase: LoadPhase
    done: int = 0
    total: int = 0
    detail: str = ""


@dataclass
class EngineFacts:
    """What an engine reported about itself; None if it did not. GiB are of one GPU."""

    version: str | None = None
    kv_tokens: int | None = None
    """KV cache capacity of one rank, in tokens."""
    max_concurrency: float | None = None
    """Number of sequences as long as the window that fit at the same time."""
    weights_gib: float | None = None
    load_seconds: float | None = None
    cache_gib: float | None = None
    graph_gib: float | None = None
    backends: list[str] = field(default_factory=list[str])
    """Backends that the engine chose for attention and experts, in its own words."""


@dataclass(frozen=True)
class Bar:
    """A progress bar (tqdm) that counts, identified by the words before it."""

    phase: LoadPhase
    name: str
    detail: str


# vLLM's own format of bars ("12% Completed | 5/40 [", model_loader/weight_utils.py) and tqdm's format. The pattern
# includes the bracket after the times, which ends a bar, so an incomplete bar does not match.
BAR = re.compile(
    r"(?P<what>Fetching \d{1,6} files|Loading (?:[\w-]+ )?(?:checkpoint )?(?:shards|weights)(?: in parallel)?"
    r"|Loading safetensors using [\w ]{1,60}?|Multi-thread loading (?:pt checkpoint )?shards"
    r"|Capturing CUDA graphs(?: \([^()]{1,80}\))?|Capturing batches(?: \([^()]{1,80}\))?"
    r"|Capturing prefill shape(?: \([^()]{1,80}\))?|DeepGEMM warmup)"
    r": {1,4}\d{1,3}%(?: Completed )?\|(?:[ #1-9\u2588-\u258f\ufffd]{0,400}\|)? ?"
    r"(?P<done>\d{1,7})/(?P<total>\d{1,7}) \[[^\[\]]{0,80}\]"
)

ANY_BAR = re.compile(r"\d%(?: Completed )?\|.{0,600}\[[^\[\]]{0,80}\]$")
"""Matches every bar, also bars that are not counted.

The reader drops such lines, because they would fill its memory.
"""


def bar_of(what: str) -> Bar:
    """Return the bar that has these words before it; `what` is the group of `BAR`."""
    if what.startswith("Fetching"):
        return Bar(LoadPhase.DOWNLOADING, "files", "files")
    if what.startswith("Capturing"):
        name = re.sub(r" \((?:bs|num_tokens)=.*", "", what).removeprefix("Capturing ")
        inside = re.search(r"\(([^()]+)\)", name)
        return Bar(LoadPhase.GRAPHS, name, inside[1] if inside else "")
    if what == "DeepGEMM warmup":
        return Bar(LoadPhase.COMPILING, what, "DeepGEMM")
    return Bar(LoadPhase.WEIGHTS, what, "parts" if "weights" in what else "shards")


Take = Callable[[EngineFacts, re.Match[str]], None]


@dataclass(frozen=True)
class Sign:
    """A line that starts a phase or reports a fact.

    Attributes:
        pattern: Pattern of the message.
        phase: Phase that the line starts; None if it only reports a fact.
        detail: Detail of the progress.
        take: Function that stores the fact.
    """

    pattern: re.Pattern[str]
    phase: LoadPhase | None = None
    detail: str = ""
    take: Take | None = None


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _version(facts: EngineFacts, found: re.Match[str]) -> None:
    facts.version = found[1]


def _tokens(facts: EngineFacts, found: re.Match[str]) -> None:
    facts.kv_tokens = _number(found[1])


def _concurrency(facts: EngineFacts, found: re.Match[str]) -> None:
    facts.max_concurrency = float(found[1])


def _loaded(facts: EngineFacts, found: re.Match[str]) -> None:
    groups = found.groupdict()
    facts.weights_gib = float(groups["gib"])
    if groups.get("seconds"):
        facts.load_seconds = float(groups["seconds"])


def _cache(facts: EngineFacts, found: re.Match[str]) -> None:
    facts.cache_gib = float(found[1])


def _backend(facts: EngineFacts, found: re.Match[str]) -> None:
    chosen = found[1].strip()
    if chosen not in facts.backends and len(facts.backends) < _MOST_BACKENDS:
        facts.backends.append(chosen)


_LOAD, _MEMORY, _COMPILE, _GRAPHS = (
    LoadPhase.WEIGHTS,
    LoadPhase.MEMORY,
    LoadPhase.COMPILING,
    LoadPhase.GRAPHS,
)
_GIB = r"(?P<gib>\d{1,6}(?:\.\d{1,4})?)"
SIGNS = (
    Sign(
        re.compile(r"^Slurm: PENDING"), LoadPhase.STARTING, "waiting in Slurm's queue"
    ),  # slurm.py, submit.sh
    # vLLM: entrypoints/openai/api_server.py, v1/engine/core.py
    Sign(re.compile(r"\u2588\s+version (\d\S{0,40})$"), take=_version),
    Sign(re.compile(r"Initializing a V1 LLM engine \(v([^)\s]{1,40})\)"), take=_version),
    Sign(re.compile(r"^(?:TensorRT[- ]LLM) version: (\d\S{0,40})"), take=_version),
    # vLLM: v1/worker/gpu_model_runner.py; SGLang: model_executor/model_runner.py
    Sign(
        re.compile(r"^Starting to load model |^Load weight begin\b|^(?:Prefetching|Finished prefetching) "),
        _LOAD,
    ),
    Sign(
        re.compile(
            rf"^Model loading took {_GIB} GiB(?: memory)? and (?P<seconds>\d{{1,6}}(?:\.\d{{1,8}})?) seconds"
        ),
        _MEMORY,
        "",
        _loaded,
    ),
    Sign(
        re.compile(
            rf"^Load weight end\.(?: elapsed=(?P<seconds>\d{{1,6}}\.\d{{1,4}}) s,)?.{{0,300}}?mem usage={_GIB} GB"
        ),
        _MEMORY,
        "",
        _loaded,
    ),
    # TensorRT-LLM: _torch/pyexecutor/_util.py
    Sign(
        re.compile(rf"^Memory used after loading model weights \(inside torch\).{{0,60}}: {_GIB} GiB"),
        _MEMORY,
        "",
        _loaded,
    ),
    Sign(re.compile(r"^Peak memory during memory usage profiling"), _MEMORY),
    # vLLM: v1/worker/gpu_worker.py, v1/core/kv_cache_utils.py
    Sign(re.compile(r"^Available KV cache memory: (\d{1,6}(?:\.\d{1,4})?) GiB"), _MEMORY, "", _cache),
    Sign(re.compile(r"^GPU KV cache size: (\d[\d,]{0,20}) tokens"), _MEMORY, "cache allocated", _tokens),
    Sign(
        re.compile(r"^Maximum concurrency for [\d,]{1,20} tokens per request: (\d{1,9}(?:\.\d{1,4})?)x"),
        take=_concurrency,
    ),
    # SGLang: mem_cache/memory_pool.py, managers/scheduler.py
    Sign(
        re.compile(r"^KV Cache is allocated\..{0,60}#tokens: (\d{1,15})"), _MEMORY, "cache allocated", _tokens
    ),
    Sign(re.compile(r"^max_total_num_tokens=(\d{1,15}),"), take=_tokens),
    # TensorRT-LLM: cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp
    Sign(
        re.compile(r"^\[MemUsageChange\] Allocated (\d{1,6}(?:\.\d{1,4})?) GiB for max tokens in paged KV"),
        take=_cache,
    ),
    Sign(
        re.compile(
            r"^\[MemUsageChange\] Allocated [\d.]{1,12} GiB for max tokens in paged KV cache \((\d{1,15})\)"
        ),
        _MEMORY,
        "cache allocated",
        _tokens,
    ),
    # vLLM: compilation/backends.py and monitor.py, model_executor/warmup; flashinfer and TensorRT-LLM: autotuner.py
    Sign(
        re.compile(r"for vLLM's torch\.compile|^Dynamo bytecode transform|^Compiling a graph for"),
        _COMPILE,
        "torch.compile",
    ),
    Sign(
        re.compile(r"\[Autotuner\]:? Autotuning process starts|^Running autotuner warmup"),
        _COMPILE,
        "autotuning",
    ),
    Sign(re.compile(r"^Warming up (.{1,60}?)(?: kernels| attention)?\.$"), _COMPILE, "warming up kernels"),
    # SGLang: model_executor/model_runner_components/cuda_graph_setup.py; before 0.5.5 model_runner.py
    Sign(re.compile(r"^Capture (?:[\w -]{1,40} )?(?:cuda|CUDA) graph begin\b"), _GRAPHS),
    # Chosen backends. vLLM: platforms/cuda.py, models/minimax_m3; SGLang: arg_groups
    Sign(re.compile(r"^(MiniMax M3 [\w ]{1,40}:? selected .{1,200})"), take=_backend),
    Sign(re.compile(r"^Using (\w{1,60} attention backend|[\w ]{1,60} MoE backend) out of"), take=_backend),
    Sign(
        re.compile(
            r"^Attention backend not (?:explicitly specified|set)\. Use (\w{1,60}) backend by default"
        ),
        take=_backend,
    ),
)
# vLLM: gpu_model_runner.py reports the number of graphs before it captures them
GRAPHS_AHEAD = re.compile(r"^Profiling CUDA graph memory: ((?:\w{1,20}=\d{1,6} \(largest=\d{1,9}\)(?:, )?)+)")
GRAPHS_TOOK = re.compile(r"^Graph capturing finished in \d{1,6} secs, took (\d{1,6}(?:\.\d{1,4})?) GiB")
SGLANG_TOOK = re.compile(r"^Capture ([\w -]{1,40}) end\..{0,1000}?mem usage=(\d{1,6}(?:\.\d{1,4})?) GB")
# SGLang up to 0.5.5 and TensorRT-LLM (_torch/pyexecutor/model_engine.py)
GRAPH_SIZES = re.compile(r"^Capture cuda graph (?:bs|num tokens) \[([\d, ]{1,4000})\]")
TRT_GRAPHS = re.compile(r"^Creating CUDA graph instances for (\d{1,6}) batch sizes")
TRT_GRAPH = re.compile(r"^Run generation-only CUDA graph warmup (?:\(\w{1,20}\) )?for (batch size=.{1,80})$")

READY_WHEN = {
    # uvicorn reports its start before SGLang has warmed up (entrypoints/http_server.py).
    "sglang": re.compile(r"^The server is fired up and ready to roll!"),
    # Dynamo's frontend starts before its workers, so the workers' lines count (dynamo/vllm/main.py,
    # dynamo/sglang/register.py).
    "dynamo": re.compile(r"^worker for .{1,200} has been initialized|^Successfully registered LLM"),
}
READY_ELSE = re.compile(r"^Application startup complete|^The server is fired up and ready to roll!")
"""Ready line of vLLM and trtllm-serve, which is uvicorn's own; also used if the engine is unknown."""

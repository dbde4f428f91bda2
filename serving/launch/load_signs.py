"""Patterns of an engine's log that show its progress: bars, and lines that start a phase or report a fact (`serving/facts/signs.toml`).

Each pattern names the source file that writes the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from m3agent.serving.facts.table import Row, rows


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
    """

    phase: LoadPhase
    done: int = 0
    """Finished parts (files, shards, graphs)."""
    total: int = 0
    """Number of parts; 0 if the engine does not report it."""
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


_MOST_BACKENDS = 8


def _phase(name: object) -> LoadPhase:
    phase = LoadPhase.__members__.get(str(name).upper())
    if phase is None:
        raise ValueError(f"there is no phase {name}; there are {', '.join(LoadPhase.__members__).lower()}")
    return phase


def _facts(pattern: re.Pattern[str]) -> re.Pattern[str]:
    for name in pattern.groupindex:
        if name != "backends" and name not in _READ:
            raise ValueError(f"there is no fact {name}; there are backends, {', '.join(_READ)}")
    return pattern


PhaseName = Annotated[LoadPhase, BeforeValidator(_phase)]
"""A phase by its name."""


@dataclass(frozen=True, kw_only=True)
class Sign(Row):
    """A line that starts a phase or reports a fact."""

    pattern: Annotated[re.Pattern[str], AfterValidator(_facts)]
    """Pattern of the message; the names of its groups are the facts."""
    phase: PhaseName | None = None
    """Phase that the line starts; None if it only reports a fact."""
    detail: str = ""

    def take(self, facts: EngineFacts, match: re.Match[str]) -> None:
        """Store the facts that a line reports."""
        for name, text in match.groupdict().items():
            if name == "backends":
                chosen = text.strip()
                if chosen not in facts.backends and len(facts.backends) < _MOST_BACKENDS:
                    facts.backends.append(chosen)
            elif text:
                setattr(facts, name, _READ[name](text))


_READ: Mapping[str, Callable[[str], object]] = {
    "version": str,
    "kv_tokens": lambda said: int(said.replace(",", "")),
    "max_concurrency": float,
    "weights_gib": float,
    "load_seconds": float,
    "cache_gib": float,
}
SIGNS = rows(Sign, "signs")
# vLLM: gpu_model_runner.py reports the number of graphs before it captures them
GRAPHS_AHEAD = re.compile(r"^Profiling CUDA graph memory: ((?:\w{1,20}=\d{1,6} \(largest=\d{1,9}\)(?:, )?)+)")
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

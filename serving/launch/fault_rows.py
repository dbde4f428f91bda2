"""Why engines end (`serving/facts/faults.toml`): a log pattern, the kind of fault, and the sentence for people."""

from __future__ import annotations

import difflib
import re
import signal
import string
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator

from m3agent.serving.facts.table import Row, rows
from m3agent.serving.launch.load_signs import LoadPhase, PhaseName


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
    """What the engine was started with."""

    port: int
    model: str
    context: int | None
    """Context window in tokens; None means the model's own."""
    gpus: int
    log: Path


SMALLEST_STEP = 128
"""A proposed context window is a multiple of this block size of M3's cache, in tokens."""


Values = dict[str, str]


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
    return {"held": f"{float(values['total']) - float(values['free']):.1f}", "gpu": values["gpu"] or "0"}


def _cuda(values: Values) -> Values:
    found = int(values["found"])
    return {"cuda": f"{found // 1000}.{found % 1000 // 10}"}


def _file(values: Values) -> Values:
    tokenizer = values["tokenizer"]
    return {
        "file": values["file"] or (f"the tokenizer in {tokenizer}" if tokenizer else "its configuration"),
        "tokenizer": "",
    }


def _sizes(values: Values) -> Values:
    return {f"{name}_gb": f"{float(values[name]) / 1000:,.1f}" for name in ("size", "free")}


_RECKON: Mapping[str, Callable[[Values], Values]] = {
    "": lambda _: {},
    "nearest": _nearest,
    "parser": _parser,
    "tokens": _tokens,
    "without_estimate": _without_estimate,
    "positions": _positions,
    "held": _held,
    "cuda": _cuda,
    "file": _file,
    "sizes": _sizes,
}
"""Functions that compute further values for a sentence, by the name that a row gives."""


def _known(name: str) -> str:
    if name not in _RECKON:
        raise ValueError(f"there is no function {name}; there are {', '.join(filter(None, _RECKON))}")
    return name


_RECKONED = ("nearest", "asked", "fits", "largest", "most", "shown", "held", "cuda", "size_gb", "free_gb")
_ASKED = ("name", "too_old", "port", "next_port", "model", "gpus", "log")
_END_VALUES = ("name", "log_file", "number", "how", "when")


def checked(template: str, values: Collection[str]) -> str:
    """Return a template that names nothing but these values.

    Raises:
        ValueError: It names something else.
    """
    for _, name, _, _ in string.Formatter().parse(template):
        if name is not None and name not in values:
            raise ValueError(f"{{{name}}} is no value; the values are {', '.join(values)}")
    return template


@dataclass(frozen=True, kw_only=True)
class FaultRow(Row):
    """One way to fail."""

    kind: FaultKind
    pattern: Annotated[re.Pattern[str], BeforeValidator("(?m){}".format)]
    what: str
    """Template of what happened; it may name the pattern's groups, the values of `LaunchContext`, and the results of `reckon`."""
    fix: str
    until_ready: bool = False
    """True if the row counts only before the engine is ready."""
    phases: frozenset[PhaseName] = frozenset(LoadPhase)
    reckon: Annotated[str, AfterValidator(_known)] = ""
    """Name of the function that computes further values."""

    def __post_init__(self) -> None:
        for template in (self.what, self.fix):
            checked(template, (*_ASKED, *_RECKONED, *self.pattern.groupindex))

    def counts_in(self, phase: LoadPhase) -> bool:
        """Return whether the row counts in a phase of the engine."""
        return phase in self.phases and not (self.until_ready and phase is LoadPhase.READY)

    def sentence(self, values: Values, shorten: Callable[[str], str]) -> str:
        """Return the sentence for people.

        Raises:
            ValueError, OverflowError: The log's text looks like a number but is not one.
        """
        values = values | _RECKON[self.reckon](values)
        values = {name: shorten(value) for name, value in values.items()}
        return f"{self.what.format_map(values)}; {self.fix.format_map(values)}."


def _signals(names: Sequence[str]) -> Sequence[str]:
    for name in names:
        if name not in signal.Signals.__members__:
            raise ValueError(f"there is no signal {name}")
    return names


@dataclass(frozen=True, kw_only=True)
class EndRow(Row):
    """What the end of an engine tells that wrote no error."""

    kind: FaultKind
    statuses: tuple[int, ...] = ()
    signals: Annotated[tuple[str, ...], AfterValidator(_signals)] = ()
    log: Literal["", "dying", "empty", "garbled"] = ""
    """What the log must be."""
    said: Annotated[str, AfterValidator(lambda said: checked(said, _END_VALUES))]

    def fits(self, exit_code: int | None, number: int | None) -> bool:
        """Return whether the row applies to an exit status, and to the number of the signal that it tells."""
        signals = [signal.Signals[name] for name in self.signals]
        return not (self.statuses or signals) or exit_code in self.statuses or number in signals


ROWS = rows(FaultRow, "faults")
"""All rows, from specific to vague. The first one that matches counts."""
ENDS = rows(EndRow, "ends")

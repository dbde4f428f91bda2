"""Options of a bench, and the steps that they lead to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

SHORTEST = 2048
"""Length in tokens of the shortest prompt.

It is sixteen blocks of M3's cache, so an incomplete block is a small part.
"""

ROOM = 1024
"""Tokens that stay free in the context window for a further turn; the turn itself has about 250."""

NEARLY = 0.95
"""Share of the wanted length down to which a prompt may be shortened so that it fits with its answer."""

# Tokens at which the quadratic part of a prefill equals the linear part. Fitted to the measured cold TTFT of M3 on four
# H200: 0.61 s at 8,192 tokens, 10.7 s at 131,072, 183 s at 1,000,000 (docs/serving-bench.md).
_QUADRATIC_FROM = 570_000


@dataclass(frozen=True)
class Options:
    """Options of a bench. Raises ValueError: a value is out of its range."""

    lengths: tuple[int, ...] = (8192, 32_768, 131_072, 524_288, 1_000_000)
    """Lengths of the prompts in tokens, with the template."""
    rounds: int = 3
    output_tokens: int = 64
    concurrency: tuple[int, ...] = (1, 2, 4, 8)
    """Numbers of simultaneous streams, each with its own prompt."""
    stream_prompt: int = 4096
    stream_output: int = 128
    agents: int = 4
    """Number of agents that share a prefix; fewer than two skip this measurement."""
    shared_prefix: int = 131_072
    seed: int = 0
    max_seconds: float | None = None
    """Seconds after which no measurement begins; None means no limit."""
    timeout: float = 900

    def __post_init__(self) -> None:
        for length in (*self.lengths, self.stream_prompt, self.shared_prefix):
            if length < SHORTEST:
                raise ValueError(
                    f"a prompt of {length:,} tokens is too short to measure: {SHORTEST:,} at least"
                )
        for name in ("rounds", "output_tokens", "stream_output"):
            if getattr(self, name) < (1 if name == "rounds" else 2):
                raise ValueError(f"{name} is too small: {getattr(self, name)}")
        if any(streams < 1 for streams in self.concurrency):
            raise ValueError("concurrency is a number of streams, 1 at least")
        if self.timeout <= 0 or (self.max_seconds is not None and self.max_seconds <= 0):
            raise ValueError("a limit of time is a number of seconds above zero")


StepKind: TypeAlias = Literal["length", "streams", "agents"]


@dataclass(frozen=True)
class BenchStep:
    """One measurement.

    A measurement is a prompt, first cold and then with a further turn; or simultaneous streams; or agents
    that share a prefix.
    """

    kind: StepKind
    tokens: int
    """Tokens of the prompt, or of the shared prefix."""
    streams: int
    round: int
    """Number of the repetition, from 1."""

    def __str__(self) -> str:
        what = {
            "length": f"{self.tokens:,} tokens, cold and cached",
            "streams": f"{self.streams} at a time, {self.tokens:,} tokens each",
            "agents": f"{self.streams} agents that share {self.tokens:,} tokens",
        }
        return what[self.kind]

    @property
    def work(self) -> float:
        """Rough duration relative to other steps.

        It grows with the tokens to compute; tokens at the end of long prompts count more.
        """
        prompts = self.streams if self.kind == "streams" else 1
        return prompts * self.tokens * (1 + self.tokens / _QUADRATIC_FROM)


def steps(options: Options, window: int | None) -> tuple[list[BenchStep], list[str]]:
    """Return all steps, quick ones first, and what the server's context window excludes.

    A time limit then costs as few measurements as possible.

    Returns:
        The steps, and a sentence for each excluded measurement.
    """
    groups: list[tuple[StepKind, int, int]] = []
    left_out: list[str] = []
    for length in sorted(set(options.lengths)):
        fitting = _fitting(length, options.output_tokens, window)
        if fitting is None:
            left_out.append(
                f"{length:,} tokens: the server's window of {window:,} must also hold the answer and a further turn"
            )
        else:
            groups.append(("length", fitting, 1))
    stream_prompt = _shortened(options.stream_prompt, options.stream_output, window)
    for streams in sorted(set(options.concurrency)):
        if stream_prompt is not None:
            groups.append(("streams", stream_prompt, streams))
    shared = _shortened(options.shared_prefix, options.output_tokens, window)
    if options.agents > 1 and shared is not None:
        groups.append(("agents", shared, options.agents))
    if stream_prompt is None or shared is None:
        left_out.append(f"streams and agents: the window of {window:,} tokens is too small")
    groups = list(dict.fromkeys(groups))
    planned = [[BenchStep(*group, number) for number in range(1, options.rounds + 1)] for group in groups]
    planned.sort(key=lambda rounds: sum(step.work for step in rounds))
    return [step for rounds in planned for step in rounds], left_out


def unmeasured(rest: list[BenchStep], rounds: int) -> Iterator[str]:
    """Yield a phrase for each group of steps that were not measured."""
    for step in dict.fromkeys(BenchStep(step.kind, step.tokens, step.streams, 0) for step in rest):
        missing = sum(
            (other.kind, other.tokens, other.streams) == (step.kind, step.tokens, step.streams)
            for other in rest
        )
        yield str(step) if missing == rounds else f"{step} ({missing} of {rounds} rounds)"


def _fitting(length: int, output: int, window: int | None) -> int | None:
    """Return the length, shortened slightly if that makes it fit; None if it does not fit."""
    shortened = _shortened(length, output, window)
    return shortened if shortened is not None and shortened >= NEARLY * length else None


def _shortened(length: int, output: int, window: int | None) -> int | None:
    """Return the length, or the longest that the window allows; None if that is too short to measure."""
    most = length if window is None else min(length, window - ROOM - output)
    return most if most >= SHORTEST else None

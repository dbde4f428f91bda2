"""Strict parser for metrics in Prometheus' text format 0.0.4.

The parser rejects a page in another format. The format:
https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[ \t]*[a-zA-Z_][a-zA-Z0-9_]*[ \t]*=[ \t]*"(?:[^"\\]|\\.)*"[ \t]*'
_PARTS = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"')
_SAMPLE = re.compile(
    rf"({_NAME})(?:[ \t]*\{{((?:{_LABEL}(?:,{_LABEL})*,?)?[ \t]*)\}}[ \t]*|[ \t]+)([^ \t{{]+)(?:[ \t]+-?[0-9]+)?"
)
# Go's ParseFloat accepts these words; Python's float would also accept "1_000".
_VALUE = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|inf|nan)", re.IGNORECASE
)
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}


@dataclass(frozen=True)
class Sample:
    """One value of one series."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse_metrics(page: str) -> list[Sample]:
    """Parse a page; return its samples in order, without timestamps.

    Raises:
        ValueError: A line is neither a sample nor a comment; the message has the line's number.
    """
    samples: list[Sample] = []
    for number, line in enumerate(page.split("\n"), start=1):
        text = line.strip(" \t\r")
        if not text or text.startswith("#"):
            continue
        match = _SAMPLE.fullmatch(text)
        if match is None or not _VALUE.fullmatch(match[3]):
            raise ValueError(f"line {number} is not a metric: {text[:80]!r}")
        samples.append(Sample(match[1], dict(_labels(match[2] or "")), float(match[3])))
    return samples


def values(samples: Iterable[Sample], name: str) -> list[float]:
    """Return the values of all series with this name."""
    return [sample.value for sample in samples if sample.name == name]


def total(samples: Iterable[Sample], name: str) -> float | None:
    """Return the sum over all series with this name; None if there is no such series."""
    found = values(samples, name)
    return sum(found) if found else None


def _labels(text: str) -> Iterable[tuple[str, str]]:
    for match in _PARTS.finditer(text):
        yield match[1], _ESCAPE.sub(lambda escape: _ESCAPED.get(escape[1], escape[0]), match[2])

"""Read the model usage that another agent reports in a file.

The file has a JSON object: either the names of `AttemptUsage`, or an ATIF trajectory, of which `final_metrics` counts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from m3agent.agent.util.plain_file import read_inside
from m3agent.evals.data.results import AttemptUsage

MOST_BYTES = 256 << 20
"""Largest file that is read. Trajectories hold whole conversations."""
METRICS = "final_metrics"
MOST = 1e15
"""Largest number that is believed."""
_NAMES = {
    "turns": "total_steps",
    "prompt_tokens": "total_prompt_tokens",
    "cached_tokens": "total_cached_tokens",
    "completion_tokens": "total_completion_tokens",
    "cost": "total_cost_usd",
}
"""Names in ATIF's `final_metrics` (ATIF 1.8), by our names."""


def read_usage(path: Path) -> AttemptUsage:
    """Return the usage; what the file does not say is unknown. A file that cannot be used says nothing."""
    try:
        value = json.loads(read_inside(str(path.parent), str(path), MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return AttemptUsage()
    if not isinstance(value, dict):
        return AttemptUsage()
    metrics = value.get(METRICS)
    found = (
        {name: metrics.get(other) for name, other in _NAMES.items()} if isinstance(metrics, dict) else value
    )
    counts = {name: _number(found.get(name)) for name in AttemptUsage.model_fields}
    cost = counts.pop("cost")
    return AttemptUsage(
        **{name: None if count is None else int(count) for name, count in counts.items()}, cost=cost
    )


def _number(value: Any) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST
    return value if usable else None

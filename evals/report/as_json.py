"""Convert a run's report to JSON: the dataclasses of `model.py` and `compare.py` with their field names."""

from __future__ import annotations

from pydantic import TypeAdapter

from m3agent.evals.report.compare import RunComparison
from m3agent.evals.report.model import RunReport


def as_json(report: RunReport, comparison: RunComparison | None) -> bytes:
    """Return a JSON object with `complete`, the report's fields and `comparison`. Unknown values are null."""
    value = {
        "complete": report.complete,
        **TypeAdapter(RunReport).dump_python(report, mode="json"),
        "comparison": TypeAdapter(RunComparison | None).dump_python(comparison, mode="json"),
    }
    return _JSON.dump_json(value, indent=2) + b"\n"


_JSON = TypeAdapter(dict[str, object])

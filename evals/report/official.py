"""Export a run in the formats of SWE-bench's own tools: the report and the predictions.

Names and meanings are those of swebench 5.0.2 (swebench/harness/reporting.py, schema 2). That package
supports one prediction per instance, so both files contain only the first attempt at each instance.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from m3agent.evals.data.results import AttemptRecord, RunConfig, Verdict

ATTEMPT = 1
"""Number of the attempt that the files contain."""


def predictions(config: RunConfig, patches: Mapping[str, bytes]) -> tuple[str, tuple[str, ...]]:
    """Return the predictions as JSON lines, sorted by instance id, and the ids of patches that are not UTF-8.

    JSON contains only text. Bytes that are not UTF-8 are replaced, and such a patch may not apply.
    """
    lines: list[str] = []
    damaged: list[str] = []
    for ident, patch in sorted(patches.items()):
        text = patch.decode(errors="replace")
        if text.encode() != patch:
            damaged.append(ident)
        row = {"instance_id": ident, "model_name_or_path": config.agent, "model_patch": text}
        lines.append(json.dumps(row) + "\n")
    return "".join(lines), tuple(damaged)


def submitted(results: Iterable[AttemptRecord]) -> list[AttemptRecord]:
    """Return the first attempts that have a result.

    Attempts with the verdict `infra` are still to be made and left out.
    """
    return sorted(
        (result for result in results if result.attempt == ATTEMPT and result.verdict is not Verdict.INFRA),
        key=lambda result: result.instance_id,
    )


def official_report(config: RunConfig, results: Iterable[AttemptRecord]) -> str:
    """Return the run report as JSON.

    The official verdict decides if there is one, else the strict verdict (`asked_official` counts both
    cases). The official tools also guess infrastructure failures from logs. Those labels change no score and
    are not computed here.
    """
    sent = submitted(results)
    ids: dict[str, set[str]] = {name: set() for name in ("resolved", "unresolved", "empty_patch", "error")}
    for result in sent:
        ids[_outcome(result)].add(result.instance_id)
    everything = set(config.instances)
    submitted_ids = {result.instance_id for result in sent}
    completed = ids["resolved"] | ids["unresolved"]
    report: dict[str, Any] = {
        "total_instances": len(everything),
        "submitted_instances": len(submitted_ids),
        "completed_instances": len(completed),
        "resolved_instances": len(ids["resolved"]),
        "unresolved_instances": len(ids["unresolved"]),
        "infra_failure_instances": 0,
        "ambiguous_failure_instances": 0,
        "empty_patch_instances": len(ids["empty_patch"]),
        "error_instances": len(ids["error"]),
        "completed_ids": sorted(completed),
        "incomplete_ids": sorted(everything - submitted_ids),
        "empty_patch_ids": sorted(ids["empty_patch"]),
        "submitted_ids": sorted(submitted_ids),
        "resolved_ids": sorted(ids["resolved"]),
        "unresolved_ids": sorted(ids["unresolved"]),
        "infra_failure_ids": [],
        "ambiguous_failure_ids": [],
        "failure_reasons": {},
        "error_ids": sorted(ids["error"]),
        "schema_version": 2,
    }
    return json.dumps(report, indent=4) + "\n"


def asked_official(results: Iterable[AttemptRecord]) -> tuple[int, int]:
    """Return how many non-empty submitted patches have an official verdict, and how many have none."""
    graded = [result for result in submitted(results) if result.patch_bytes]
    asked = sum(result.official is not None and result.official.resolved is not None for result in graded)
    return asked, len(graded) - asked


def _outcome(result: AttemptRecord) -> str:
    """Return an attempt's category in the official report.

    It is empty patch, resolved, unresolved, or error (the patch was not graded).
    """
    if not result.patch_bytes:
        return "empty_patch"
    if result.official is not None and result.official.resolved is not None:
        return "resolved" if result.official.resolved else "unresolved"
    if result.verdict is Verdict.RESOLVED:
        return "resolved"
    return "unresolved" if result.verdict is Verdict.UNRESOLVED else "error"

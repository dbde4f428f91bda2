"""A run as the files that SWE-bench's own tools write and read: the report, and the predictions.

Names and meaning are those of swebench 5.0.2 (swebench/harness/reporting.py, schema 2). It knows one prediction for an
instance, so both files are about one attempt at each instance: the first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from m3agent.evals.results import Result, RunConfig, Verdict

ATTEMPT = 1
"""The attempt that the files are about."""


def predictions(config: RunConfig, patches: Mapping[str, bytes]) -> tuple[str, tuple[str, ...]]:
    """One JSON line for each instance with a result, by id, and the instances whose patch is no UTF-8.

    JSON holds text only: what is no UTF-8 in a patch is replaced, and such a patch may not apply.
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


def submitted(results: Iterable[Result]) -> list[Result]:
    """First attempts that came to a result: the official tools know no attempt that is still to be made."""
    return sorted(
        (result for result in results if result.attempt == ATTEMPT and result.verdict is not Verdict.INFRA),
        key=lambda result: result.instance_id,
    )


def official_report(config: RunConfig, results: Iterable[Result]) -> str:
    """The run report as JSON.

    An attempt is resolved as the official rules say where they were asked, else as ours do (`asked_official` tells). Its
    labels for infrastructure failures are guesses from logs that change no score; they are not made here.
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


def asked_official(results: Iterable[Result]) -> tuple[int, int]:
    """Of how many submitted patches that are not empty the official rules gave an answer, and of how many not."""
    graded = [result for result in submitted(results) if result.patch_bytes]
    asked = sum(result.official is not None and result.official.resolved is not None for result in graded)
    return asked, len(graded) - asked


def _outcome(result: Result) -> str:
    """Where the official report puts an attempt: no patch, graded one way or the other, or no grading came of it."""
    if not result.patch_bytes:
        return "empty_patch"
    if result.official is not None and result.official.resolved is not None:
        return "resolved" if result.official.resolved else "unresolved"
    if result.verdict is Verdict.RESOLVED:
        return "resolved"
    return "unresolved" if result.verdict is Verdict.UNRESOLVED else "error"

"""The tables of docs/serving.md equal the planner's results."""

from __future__ import annotations

from pathlib import Path

from m3agent.serving.plan import known_issues
from m3agent.serving.plan.gpus import GPUS, Fleet
from m3agent.serving.plan.memory_model import Precision
from m3agent.serving.plan.planner import PlanRequest, plans, smallest

DOCS = Path(__file__).parents[3] / "docs" / "serving.md"
CONTEXTS = (131_072, 524_288, 1_048_576)


def cell(gpu: str, context: int, precision: Precision) -> str:
    wish = PlanRequest(context=context, precision=precision)
    fleet = smallest(Fleet(GPUS[gpu], 1), wish)
    if fleet is None:
        return "-"
    plan = plans(fleet, wish)[0]
    count = f"{fleet.nodes}x{fleet.per_node}" if fleet.nodes > 1 else str(fleet.per_node)
    return f"{count}{' fp8' if plan.kv_cache_dtype == 'fp8' else ''}{' tight' if plan.tight else ''}"


def where() -> str:
    """Return the table of which GPUs fit which model and context, as Markdown."""
    lines = ["| GPU | weights | 128K | 512K | 1M |", "|---|---|---|---|---|"]
    lines += [
        f"| {gpu} | {precision} | {' | '.join(cell(gpu, context, precision) for context in CONTEXTS)} |"
        for gpu in GPUS
        for precision in (Precision.MXFP8, Precision.BF16)
    ]
    return "\n".join(lines) + "\n"


def test_table_of_gpus_is_current() -> None:
    assert where() in DOCS.read_text(), "put the output of where() into docs/serving.md"


def test_every_gpu_has_its_memory_and_source() -> None:
    text = DOCS.read_text()
    for gpu in GPUS.values():
        measured = "measured" if gpu.measured else "not measured"
        row = f"| {gpu.name} | {gpu.architecture} | {gpu.usable_bytes / 2**30:.1f} | {measured} | {gpu.source} |"
        assert row in text, row


def test_the_traps_are_those_of_the_code() -> None:
    assert known_issues.table() in DOCS.read_text(), (
        "put the output of known_issues.table() into docs/serving.md"
    )

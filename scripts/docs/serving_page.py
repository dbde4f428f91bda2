"""Generate the tables of docs/serving.md from the planner: `make docs-pages`."""

from __future__ import annotations

from m3agent.serving.plan import known_issues
from m3agent.serving.plan.gpus import ARCHITECTURES, DOCUMENTED, GPUS, Fleet
from m3agent.serving.plan.kinds import Precision
from m3agent.serving.plan.memory_model import GIB
from m3agent.serving.plan.plan import PlanRequest
from m3agent.serving.plan.planner import plans, smallest
from scripts.docs.settings_page import ROOT, renewed

PAGE = ROOT / "docs" / "serving.md"
CONTEXTS = (131_072, 524_288, 1_048_576)


def page() -> str:
    """Return the page with its tables as the planner has them."""
    text = PAGE.read_text()
    for part, made in (("fleets", fleets()), ("GPUs", gpus()), ("traps", known_issues.table())):
        text = renewed(text, made, part)
    return text


def fleets() -> str:
    """Return the table of which GPUs fit which model and context, as Markdown."""
    lines = ["| GPU | weights | 128K | 512K | 1M |", "|---|---|---|---|---|"]
    lines += [
        f"| {gpu} | {precision} | {' | '.join(_cell(gpu, context, precision) for context in CONTEXTS)} |"
        for gpu in GPUS
        for precision in _precisions(gpu)
    ]
    return "\n".join(lines) + "\n"


def _precisions(gpu: str) -> tuple[Precision, ...]:
    """Return the precisions to show: MXFP8 and BF16, or those that others served on a GPU without a recipe page."""
    known = GPUS[gpu]
    return (
        (Precision.MXFP8, Precision.BF16)
        if known in DOCUMENTED
        else ARCHITECTURES[known.architecture].precisions
    )


def gpus() -> str:
    """Return the table of each GPU's memory and the source of that number, as Markdown."""
    lines = ["| GPU | architecture | GiB | | where that comes from |", "|---|---|---|---|---|"]
    for gpu in GPUS.values():
        measured = "measured" if gpu.measured else "not measured"
        lines.append(
            f"| {gpu.name} | {gpu.architecture} | {gpu.usable_bytes / GIB:.1f} | {measured} | {gpu.source} |"
        )
    return "\n".join(lines) + "\n"


def _cell(gpu: str, context: int, precision: Precision) -> str:
    wish = PlanRequest(context=context, precision=precision)
    fleet = smallest(Fleet(GPUS[gpu], 1), wish)
    if fleet is None:
        return "-"
    plan = plans(fleet, wish)[0]
    count = f"{fleet.nodes}x{fleet.per_node}" if fleet.nodes > 1 else str(fleet.per_node)
    words = {
        "fp8": plan.kv_dtype == "fp8",
        "index": plan.index_dtype == "fp8",
        "tight": plan.tight,
    }
    return " ".join([count, *(word for word, true in words.items() if true)])


if __name__ == "__main__":
    PAGE.write_text(page())

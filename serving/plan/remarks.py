"""Say why a plan has its place, what to know before its start, and what would make it better (`serving/facts/remarks.toml`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, PlainValidator

from m3agent.serving.facts.table import Condition, Row, checked, filled, rows
from m3agent.serving.plan.draft import Draft
from m3agent.serving.plan.gpus import GIVEN, Architecture, Gpu
from m3agent.serving.plan.host_cache import GIGABYTE, HostCache
from m3agent.serving.plan.kinds import EngineKind, Precision
from m3agent.serving.plan.memory_model import BLOCK, GpuMemory, KvDtype, gib, kv_bytes_per_token
from m3agent.serving.plan.plan import Plan, PlanRequest, Profile
from m3agent.serving.plan.recipe import CHECKPOINTS

ERROR = 0.03
"""Relative error assumed for the predicted KV cache capacity; the three measured runs are within 0.2%."""

_FLAGS = (
    "enough",
    "msa",
    "fp8",
    "fp8_index",
    "draft",
    "drafting",
    "draft_here",
    "tight",
    "narrow",
    "gpu_known",
    "vision",
)
_SETTINGS: dict[str, Any] = dict.fromkeys(_FLAGS, bool) | {
    "host": Literal["idle", "small", "used"],
    "unused": int,
    "gpu": Literal["measured", "given", "documented"],
    "engine": EngineKind,
    "architecture": Architecture,
    "precision": Precision,
    "checkpoint": Literal["documented", "own", "none"],
}
"""The settings that conditions may name, with the types of their values."""
_KINDS = {
    "plan": Plan,
    "wish": PlanRequest,
    "room": GpuMemory,
    "host": HostCache,
    "gpu": Gpu,
    "draft": Draft,
    "usual": Profile,
}
_VALUES = (
    *(*_KINDS, "precision", "weights", "over", "other", "cache"),
    *("spare_tokens", "spare", "unfit", "wider", "draft_weights", "draft_token", "draft_fp8", "draft_tokens"),
    *("host_gb", "host_sequences", "host_least", "unused", "error", "safe"),
)
_Wanted = Annotated[Condition, PlainValidator(lambda wanted: Condition(wanted, _SETTINGS))]


@dataclass(frozen=True, kw_only=True)
class Remark(Row):
    """A sentence about the plans to which it applies."""

    what: Literal["reason", "warning", "advice"]
    when: tuple[_Wanted, ...] = ()
    """Groups of settings for which the row applies; one of them is enough, and none means always."""
    said: Annotated[str, AfterValidator(lambda said: checked(said, _VALUES, _KINDS))]


REMARKS = rows(Remark, "remarks")


def remarks(plan: Plan, drafting: Plan | None, usual: Profile) -> dict[str, list[str]]:
    """Return the sentences about a plan, by kind.

    Args:
        drafting: The best plan of this kind with a draft; None if none fits.
        usual: The memory settings with a reserve.
    """
    settings, values = _settings(plan, drafting), _values(plan, drafting, usual)
    said: dict[str, list[str]] = {"reason": [], "warning": [], "advice": []}
    for row in REMARKS:
        if not row.when or any(condition.holds(settings) for condition in row.when):
            said[row.what].append(filled("remarks", row.said, values))
    return said


def _settings(plan: Plan, drafting: Plan | None) -> dict[str, object]:
    wish, gpu, host = plan.wish, plan.fleet.gpu, plan.host_cache
    use = ""
    if host is not None:
        use = "small" if host.sequences <= plan.sequences else "used"
        use = "idle" if wish.concurrency < host.pays_from else use
    return {
        "enough": plan.enough,
        "msa": plan.msa,
        "fp8": plan.fp8,
        "fp8_index": plan.index_dtype == KvDtype.FP8,
        "draft": plan.draft is not None,
        "drafting": drafting is not None,
        "draft_here": wish.draft_here,
        "tight": plan.tight,
        "host": use,
        "unused": plan.fleet.count - plan.count,
        "narrow": plan.room.tokens < wish.context * (1 + ERROR),
        "gpu": {True: "measured", False: "given" if gpu.source == GIVEN else "documented"}[gpu.measured],
        "gpu_known": gpu.known,
        "precision": plan.precision,
        "engine": plan.engine,
        "architecture": plan.architecture,
        "checkpoint": "own" if wish.own else "documented" if plan.precision in CHECKPOINTS else "none",
        "vision": wish.vision,
    }


def _values(plan: Plan, drafting: Plan | None, usual: Profile) -> dict[str, object]:
    room, wish = plan.room, plan.wish
    kv = KvDtype.FP8 if plan.fp8 else KvDtype.BF16
    with_draft = drafting or plan
    draft = with_draft.draft or wish.draft
    host = plan.host_cache or HostCache(0, 0, 0, 0, 0)
    over = "GPU" if plan.tp == 1 else f"{plan.tp} GPUs"
    return {
        "plan": plan,
        "wish": wish,
        "room": room,
        "host": host,
        "gpu": plan.fleet.gpu,
        "draft": draft,
        "usual": usual,
        "precision": plan.precision.upper(),
        "weights": gib(room.weights),
        "over": f"{plan.count} GPUs for the experts, over {over} for the rest" if plan.dp > 1 else over,
        "other": gib(room.other),
        "cache": gib(room.kv),
        "spare_tokens": room.tokens - wish.context,
        "spare": gib(room.kv - room.token * wish.context),
        "unfit": "the workload does not fit" if plan.enough else "fewer sequences fit",
        "wider": kv_bytes_per_token(wish.shape, plan.tp, kv),
        "draft_weights": gib(draft.weight_bytes(plan.tp)),
        "draft_token": draft.token_bytes(plan.tp, kv),
        "draft_fp8": "an fp8 cache and " if with_draft.fp8 != plan.fp8 else "",
        "draft_tokens": with_draft.room.tokens,
        "host_gb": host.bytes / GIGABYTE,
        "host_sequences": host.tokens // wish.sequence,
        "host_least": math.ceil((plan.sequences + 1) * wish.sequence * host.token / plan.nodes / GIGABYTE),
        "unused": plan.fleet.count - plan.count,
        "error": ERROR,
        "safe": int(room.tokens / (1 + ERROR)) // BLOCK * BLOCK,
    }

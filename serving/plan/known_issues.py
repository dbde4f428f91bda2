"""Known failures when M3 is served (`serving/facts/issues.toml`). docs/serving.md shows the table; a test keeps the two equal.

The condition of a row reads a `Setup`. The planner checks the rows before it offers a plan, a launcher before
it starts one. They also work for a command line that a user wrote.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, get_type_hints

from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import AfterValidator, PlainValidator

from m3agent.serving.errors import TableError
from m3agent.serving.facts.table import Condition, Row, pip_versions, read, rows, table_error, unknown
from m3agent.serving.plan.gpus import GPUS, Architecture, Vendor
from m3agent.serving.plan.kinds import EngineKind, Precision
from m3agent.serving.plan.memory_model import BLOCK, NATIVE_CONTEXT


class Rope(StrEnum):
    """How to configure a window beyond the native one: the field that `--hf-overrides` sets."""

    NATIVE = "native"
    EXTENDED = "text_config.max_position_embeddings"
    YARN = "text_config.rope_scaling"
    YARN_TOP_LEVEL = "rope_scaling"


class Severity(StrEnum):
    """Whether the trap refuses a plan, adds a warning to it, or is only told in docs/serving.md because m3agent deals with it."""

    REFUSE = "refuse"
    WARN = "warn"
    NOTE = "note"


@dataclass(frozen=True)
class Setup:
    """Configuration of a server before its start."""

    engine: EngineKind
    vendor: Vendor
    architecture: Architecture
    precision: Precision
    context: int
    version: str | None = None
    """Version of the engine; None means any version at or above the minimum."""
    kv_dtype: str = "auto"
    """Type of the KV cache as the engine's option spells it."""
    index_dtype: str = "bf16"
    """Type of the index keys as the engine's option spells it."""
    rope: Rope = Rope.NATIVE
    """How positions beyond the native ones are configured."""
    block_size: int | None = BLOCK
    """Tokens of one block of the KV cache; None means the engine's default."""
    text_only: bool = True
    encoder_parallel: bool = False
    prefix_caching: bool = True
    attention_backend: str | None = None
    moe_backend: str | None = None
    parser: str | None = None
    nodes: int = 1
    tp: int = 1
    dp: int = 1
    trust_remote_code: bool = False
    assumed_parameters: float | None = None
    """Number of parameters that the memory estimate uses."""
    draft_method: str | None = None
    """Method of speculative decoding; None without it."""
    draft_kv_heads: int | None = None
    draft_backend: str | None = None
    draft_synthetic: bool = False
    """True if the engine accepts drafted tokens at random."""
    offload: str | None = None
    """What keeps the KV cache in the machine's memory; None without that."""
    load_failure: str | None = None
    """What happens if a block cannot be loaded from there; None is the engine's default."""
    hisparse: bool = False
    """True if SGLang moves parts of the context that attention does not choose to the machine's memory."""
    pp: int = 1
    max_num_seqs: int | None = None
    """Sequences in one step; None if unknown."""
    random_weights: bool = False
    msa: bool = False
    """True if TensorRT-LLM computes M3's attention with its msa kernels; its default is triton."""
    index_cache: bool = False
    """True if layers take over the choice of blocks of other layers."""
    lora: bool = False
    gpu: str = ""
    env: Mapping[str, str] = field(default_factory=dict[str, str])


def _gpu_name(name: str) -> str:
    if name not in GPUS:
        raise ValueError(unknown("GPU", name, GPUS))
    return name


_SETTINGS = get_type_hints(Setup) | {"gpu": Annotated[str, AfterValidator(_gpu_name)]}
_EXAMPLES = _SETTINGS | {"unlisted_gpu": str}
"""The settings of an example: it may name a GPU that gpus.toml lacks."""
Wanted = Annotated[Condition, PlainValidator(lambda wanted: Condition(wanted, _SETTINGS))]
"""Settings that a `Setup` may have."""


@dataclass(frozen=True, kw_only=True)
class KnownIssue(Row):
    """One row of the table."""

    name: str
    severity: Severity
    when: tuple[Wanted, ...]
    """Groups of settings for which the row applies; one of them is enough."""
    effect: str
    remedy: str
    example: Mapping[str, Any]
    """A setup to which the row applies, by the settings in which it differs from vLLM with MXFP8 weights on H200."""
    unlike: Mapping[str, Any]
    """Changes of the example with which the row does not apply."""

    def check(self) -> None:
        """Check the row with its example. Raises ValueError, which begins with the field's name."""
        if not applies(self.when, example_setup("example", self.example)):
            raise ValueError(
                "example: the row does not apply to it; correct the example (a row with `versions` needs a `version` there), or `when`"
            )
        if applies(self.when, example_setup("unlike", {**self.example, **self.unlike})):
            raise ValueError("unlike: with these changes the row still applies; correct them, or `when`")

    @property
    def sentence(self) -> str:
        """What happens, what to do instead, and the source."""
        return f"{self.effect}; {self.remedy} ({self.source})"


@dataclass(frozen=True, kw_only=True)
class VersionRow(Row):
    """The versions of an engine that may serve a plan."""

    when: tuple[Wanted, ...]
    """Groups of settings for which the row applies; one of them is enough."""
    versions: Annotated[str, AfterValidator(pip_versions)]


def applies(when: Sequence[Condition], setup: Setup) -> bool:
    """Return whether a setup has all settings of one of the groups."""
    settings = vars(setup)
    return any(condition.holds(settings) for condition in when)


def example_setup(field: str, settings: Mapping[str, Any]) -> Setup:
    """Return the setup that an example names. A GPU that is not in the table has what the H200 has.

    Raises:
        ValueError: There is no such setting, or it cannot have that value; the message begins with `field`.
    """
    known = {}
    for name, value in settings.items():
        if name not in _EXAMPLES:
            raise ValueError(f"{field}: {unknown('setting', name, _EXAMPLES)}")
        try:
            known["gpu" if name == "unlisted_gpu" else name] = read(_EXAMPLES[name], value)
        except ValueError as error:
            raise ValueError(f"{field}, {name}: {error}") from None
    gpu = GPUS.get(known.get("gpu", ""), GPUS["H200"])
    base = Setup(
        EngineKind.VLLM, gpu.vendor, gpu.architecture, Precision.MXFP8, _EXAMPLE_CONTEXT, gpu=gpu.name
    )
    return replace(base, **known)


_EXAMPLE_CONTEXT = 131_072
VERSIONS = rows(VersionRow, "versions")
TRAPS = rows(KnownIssue, "issues")
"""All rows, in the order of the file."""


@cache
def _of(severity: Severity | None, engine: EngineKind) -> list[tuple[KnownIssue, list[Condition]]]:
    """Return the rows of a severity that may apply to an engine, each with its groups for it. Planning asks for them often."""
    traps = []
    for trap in TRAPS:
        groups = [
            group
            for group in trap.when
            if all(fits(engine) for name, fits in group.tests if name == "engine")
        ]
        wanted = (Severity.REFUSE, Severity.WARN) if severity is None else (severity,)
        if groups and trap.severity in wanted:
            traps.append((trap, groups))
    return traps


def met(setup: Setup, severity: Severity | None = None) -> list[KnownIssue]:
    """Return the rows that apply to a setup, of one severity or (None) all that concern a plan."""
    settings, traps = vars(setup), []
    for trap, groups in _of(severity, setup.engine):
        for condition in groups:
            if condition.holds(settings):
                traps.append(trap)
                break
    return traps


def warned_versions(setup: Setup, allowed: str) -> list[tuple[str, KnownIssue]]:
    """Return the warnings that apply with some of the allowed versions of the engine only (PEP 440), with their ranges."""
    settings = vars(setup)
    return [
        (group.versions, trap)
        for trap, groups in _of(Severity.WARN, setup.engine)
        for group in groups
        if group.versions and any(map(group.holds, _with_versions(settings, allowed, group.versions)))
    ]


def _with_versions(settings: Mapping[str, Any], allowed: str, versions: str) -> Iterator[Mapping[str, Any]]:
    """Yield settings with each version that is allowed, at the bounds of both ranges and between them."""
    for version in _around((allowed, versions)):
        if version in SpecifierSet(allowed):
            yield {**settings, "version": str(version)}


def needed_versions(setup: Setup) -> str:
    """Return the versions of the engine that may serve a setup (PEP 440). Raises TableError: no row applies."""
    for row in VERSIONS:
        if applies(row.when, setup):
            return row.versions
    raise table_error("versions", f"no row applies to every plan of {setup.engine}")


def check_versions() -> None:
    """Compare the versions that versions.toml allows with those that issues.toml refuses.

    For each row with a range that refuses a setup, the setup of its example is read at the bounds of both rows, just before them,
    and at each minor version between them.

    Raises:
        TableError: A version is both allowed and refused, or neither.
    """
    for trap in TRAPS:
        ranges = [condition.versions for condition in trap.when if condition.versions]
        if trap.severity is Severity.REFUSE and ranges:
            _check_versions(trap, ranges, example_setup("example", {**trap.example, "version": None}))


def _check_versions(trap: KnownIssue, ranges: Sequence[str], setup: Setup) -> None:
    if _refusing(setup):
        return  # whatever the version, so it is never planned
    allowed = needed_versions(setup)
    refusing = {
        version: _refusing(replace(setup, version=str(version))) for version in _around((allowed, *ranges))
    }
    near = " and ".join(dict.fromkeys(name for names in refusing.values() for name in names)) or trap.name
    for version, names in refusing.items():
        if (version in SpecifierSet(allowed)) is bool(names):
            what = f"leaves out {version}, which no row refuses; the nearest is {near}"
            if names:
                what = f"allows {version}, which {names[0]} refuses"
            raise TableError(
                f"serving/facts/versions.toml and issues.toml: versions = {allowed!r} {what}: correct one row"
            )


def _refusing(setup: Setup) -> list[str]:
    return [row.name for row in TRAPS if row.severity is Severity.REFUSE and applies(row.when, setup)]


def _around(ranges: Sequence[str]) -> list[Version]:
    """Return the bounds of ranges, the versions just before them, and each minor version between them."""
    parts = [Version(part.version.removesuffix(".*")) for text in ranges for part in SpecifierSet(text)]
    before = [Version(f"{part.major}.{part.minor}.{part.micro - 1}") for part in parts if part.micro]
    minors = range(min(part.minor for part in parts), max(part.minor for part in parts))
    return sorted({*parts, *before, *(Version(f"{parts[0].major}.{minor}.0") for minor in minors)})


def table() -> str:
    """Return the rows as a Markdown table for docs/serving.md."""
    lines = ["| trap | | what happens | what to do | source |", "|---|---|---|---|---|"]
    lines += [f"| `{t.name}` | {t.severity} | {t.effect} | {t.remedy} | {t.source} |" for t in TRAPS]
    return "\n".join(lines) + "\n"


def overrides(vendor: Vendor, context: int) -> dict[str, object]:
    """Return the value of `--hf-overrides` for a context window.

    The setting belongs under `text_config`, because a setting at the top level never reaches the decoder. On
    AMD it is YaRN, as in vLLM's recipe page. On NVIDIA vLLM does not pass YaRN to M3's rotary embedding
    (0.33, models/minimax_m3/nvidia/model.py), so the positions simply continue. Four H200 served 1,000,200
    tokens this way.

    Returns:
        The overrides; empty if M3's own positions are enough.
    """
    if context <= NATIVE_CONTEXT:
        return {}
    if vendor is Vendor.NVIDIA:
        return {"text_config": {"max_position_embeddings": context}}
    scaling = {
        "rope_type": "yarn",
        "factor": float(math.ceil(context / NATIVE_CONTEXT)),
        "original_max_position_embeddings": NATIVE_CONTEXT,
    }
    return {"text_config": {"rope_scaling": scaling}}

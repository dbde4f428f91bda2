"""The table of traps: each row applies to its example, and sound setups have no traps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from m3agent.serving.errors import TableError
from m3agent.serving.facts.table import parse_rows
from m3agent.serving.plan import known_issues, recipe
from m3agent.serving.plan.gpus import Architecture, Vendor
from m3agent.serving.plan.kinds import EngineKind, Precision
from m3agent.serving.plan.known_issues import (
    TRAPS,
    VERSIONS,
    KnownIssue,
    Rope,
    Setup,
    Severity,
    VersionRow,
    check_versions,
    example_setup,
    met,
    needed_versions,
    warned_versions,
)
from tests.serving.issue_rows import add_issue

H200 = Setup(EngineKind.VLLM, Vendor.NVIDIA, Architecture.HOPPER, Precision.MXFP8, 131_072)
B200 = replace(H200, architecture=Architecture.BLACKWELL)
MI355X = replace(
    H200,
    vendor=Vendor.AMD,
    architecture=Architecture.CDNA4,
    attention_backend="TRITON_ATTN",
    env={"VLLM_USE_BREAKABLE_CUDAGRAPH": "0"},
)
MXFP4 = replace(MI355X, precision=Precision.MXFP4, moe_backend="aiter")
LONG = replace(H200, context=1_048_576, rope=Rope.EXTENDED)
AMD_LONG = replace(
    MI355X, context=1_048_576, rope=Rope.YARN, env={**MI355X.env, "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
)


def names(setup: Setup, *severities: Severity | None) -> set[str]:
    return {trap.name for severity in severities or (None,) for trap in met(setup, severity)}


@pytest.mark.parametrize("trap", TRAPS, ids=[trap.name for trap in TRAPS])
def test_a_row_applies_to_its_example_and_not_to_the_neighbour(trap: KnownIssue) -> None:
    assert trap.name in names(example_setup("example", trap.example), *Severity)
    assert trap.name not in names(example_setup("unlike", {**trap.example, **trap.unlike}), *Severity)


@pytest.mark.parametrize(
    "setup", [H200, B200, MI355X, MXFP4, AMD_LONG], ids=["h200", "b200", "amd", "mxfp4", "amd-1m"]
)
def test_sound_setups_have_no_traps(setup: Setup) -> None:
    assert names(setup) == set()


def test_the_simple_offload_is_refused_by_name_too() -> None:
    assert "host-cache-simple" in names(replace(H200, offload="SimpleCPUOffloadConnector"))


def test_fp8_index_keys_on_cdna4_need_another_indexer() -> None:
    variables = {**MI355X.env, "VLLM_ROCM_USE_AITER": "1", "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT": "1"}
    starts = replace(MI355X, index_dtype="fp8", tp=8, env=variables)
    assert "index-fp8" not in names(starts)
    for change in (
        {"env": MI355X.env},
        {"tp": 2},
        {"version": "0.30.0"},
        {"architecture": Architecture.CDNA3},
    ):
        assert "index-fp8" in names(replace(starts, **change)), change


def test_fp8_index_keys_need_nvidia_and_off_blackwell_a_version() -> None:
    assert "index-fp8" in names(replace(H200, version="0.24.0", index_dtype="fp8"))
    assert "index-fp8" not in names(replace(H200, index_dtype="fp8"))  # the plan then asks for 0.32
    assert "index-fp8" not in names(replace(B200, version="0.24.0", index_dtype="fp8"))
    assert "index-fp8" in names(replace(MI355X, version="0.33.0", index_dtype="fp8"))


@pytest.mark.parametrize(
    ("allowed", "warned"),
    [(">=0.24,!=0.25.*", True), (">=0.32", True), (">=0.34", False), ("==0.33.0", True), ("==0.31.0", False)],
)
def test_a_warning_of_some_versions_is_told_if_one_of_them_is_allowed(
    allowed: str, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    warning = add_issue(monkeypatch, Severity.WARN, ">=0.32,<0.34")
    assert warned_versions(H200, allowed) == [(">=0.32,<0.34", warning)] * warned
    assert warned_versions(B200, allowed) == []


OLD = """
[[issue]]
name = "%s"
severity = "refuse"
when = [{ engine = "vllm", versions = "%s" }]
example = { version = "%s" }
unlike = { version = "0.33.0" }
effect = "wrong text"
remedy = "install another"
source = "a test"
date = 2026-11-30
"""


@pytest.mark.parametrize(
    ("allowed", "refused", "says"),
    [
        (">=0.24,!=0.25.*,!=0.26.*,!=0.27.0", ">=0.25,<0.27.1", None),
        (
            ">=0.24,!=0.25.*,!=0.26.*,!=0.27.0",
            ">=0.25,<0.27",
            "leaves out 0.27.0, which no row refuses; .* middle: ",
        ),
        (">=0.24,!=0.25.*,!=0.26.*,!=0.27.0", ">=0.25,<0.27.3", "allows 0.27.2, which middle refuses: "),
        (">=0.24,!=0.25.*,!=0.27.0", ">=0.25,<0.27.1", "allows 0.26.0, which middle refuses: "),
        (">=0.23,!=0.25.*,!=0.26.*,!=0.27.0", ">=0.25,<0.27.1", "allows 0.23, which first refuses: "),
    ],
)
def test_a_range_that_is_changed_in_one_table_only_is_named_with_both_rows(
    allowed: str, refused: str, says: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    issues = OLD % ("first", "<0.24", "0.22.0") + OLD % ("middle", refused, "0.25.0")
    versions = f'[[version]]\nwhen = [{{ engine = "vllm" }}]\nversions = "{allowed}"\nsource = "a test"\ndate = 2026-11-30\n'
    monkeypatch.setattr(known_issues, "TRAPS", parse_rows(KnownIssue, "issues", issues))
    monkeypatch.setattr(known_issues, "VERSIONS", parse_rows(VersionRow, "versions", versions))
    if says is None:
        check_versions()
        return
    with pytest.raises(
        TableError, match=rf"^serving/facts/versions.toml and issues.toml: versions = .* {says}"
    ):
        check_versions()


def test_a_table_without_a_row_for_every_plan_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_issues, "VERSIONS", VERSIONS[:-1])
    with pytest.raises(
        TableError, match=r"^serving/facts/versions.toml: no row applies to every plan of trtllm; "
    ):
        needed_versions(replace(B200, engine=EngineKind.TRTLLM))
    monkeypatch.setattr(recipe, "RECIPES", ())
    with pytest.raises(
        TableError, match=r"^serving/facts/recipes.toml: no row has `plans` for vllm with mxfp8 on "
    ):
        recipe.nearest_recipe(H200)

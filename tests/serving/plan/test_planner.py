"""Plans and refusals: set-ups known to fit get a plan, and no plan exceeds the memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m3agent.serving.launch.prepare import LaunchRequest, prepare
from m3agent.serving.plan.draft import GQA_DRAFT, MHA_DRAFT, Draft
from m3agent.serving.plan.gpus import GPUS, Fleet, Gpu, parse_gpus
from m3agent.serving.plan.kinds import DraftUse, EngineKind, Precision
from m3agent.serving.plan.known_issues import Rope, Severity
from m3agent.serving.plan.memory_model import (
    BLOCK,
    GIB,
    HEAD,
    HIDDEN,
    KvDtype,
    kv_bytes_per_token,
    possible_tp,
)
from m3agent.serving.plan.memory_model import M3 as SHAPE
from m3agent.serving.plan.plan import HardwarePrices, Plan, PlanRequest
from m3agent.serving.plan.planner import longest_context, plans, refusals, smallest
from m3agent.serving.plan.recipe import recipe
from m3agent.util.errors import UsageError
from tests.serving.issue_rows import add_issue

MILLION = PlanRequest(context=1_048_576)
GPU = st.sampled_from(sorted(GPUS)).map(GPUS.__getitem__)
WISH = st.builds(
    PlanRequest,
    context=st.integers(1, 8192).map(lambda blocks: blocks * BLOCK),
    concurrency=st.sampled_from([1, 2, 8, 64]),
    precision=st.sampled_from([None, *Precision]),
    engine=st.sampled_from([None, *EngineKind]),
    vision=st.booleans(),
    draft_use=st.sampled_from(DraftUse),
)


def best(spec: str, wish: PlanRequest) -> Plan:
    return plans(parse_gpus(spec), wish)[0]


def test_a_million_tokens_on_four_h200_with_fp8_index_keys() -> None:
    plan = best("4xH200", MILLION)
    assert (plan.kv_dtype, plan.index_dtype, plan.versions) == ("fp8", "fp8", ">=0.32")
    assert (plan.utilisation, plan.batch.tokens, plan.tight) == (0.92, 8192, False)
    assert plan.kv_tokens == pytest.approx(1_089_000, rel=0.003)
    assert any("22,656 bytes a GPU instead of 29,952" in reason for reason in plan.reasons)


@pytest.mark.parametrize("version", ["0.24.0", "0.31.0"])
def test_a_version_without_fp8_index_keys_gets_a_plan_without_them(version: str) -> None:
    for found in plans(parse_gpus("4xH200"), replace(MILLION, version=version)):
        assert found.index_dtype == "bf16"
    assert best("8xH100", MILLION).index_dtype == "fp8"
    assert plans(parse_gpus("8xH100"), replace(MILLION, version=version)) == []


def test_fp8_index_keys_are_never_planned_on_amd() -> None:
    assert {plan.index_dtype for plan in plans(parse_gpus("8xMI355X"), MILLION)} == {"bf16"}


def test_a_million_tokens_on_four_h200() -> None:
    plan = best("4xH200", replace(MILLION, version="0.24.0"))
    assert (plan.engine, plan.precision, plan.tp, plan.dp) == (EngineKind.VLLM, Precision.MXFP8, 4, 1)
    assert (plan.kv_dtype, plan.text_only, plan.rope) == ("fp8", True, Rope.EXTENDED)
    assert (plan.utilisation, plan.batch.tokens, plan.block_size) == (0.965, 4096, 128)
    assert plan.hf_overrides == {"text_config": {"max_position_embeddings": 1_048_576}}
    assert plan.recipe == "vllm-nvidia-mxfp8"
    assert plan.kv_tokens == pytest.approx(1_075_456, rel=0.002)
    assert plan.memory.kv_spare / GIB == pytest.approx(0.75, abs=0.1)
    assert any("the cache has room for 26,112 more (0.7 GiB a GPU)" in reason for reason in plan.reasons)
    assert " a GPU over 4 GPUs; with " in plan.reasons[0]
    assert plan.warnings[0].startswith("narrow margin:")


@pytest.mark.parametrize(
    ("gpus", "wish", "why"),
    [
        ("8xH200", PlanRequest(), "it uses 8 GPUs, not 4, so its cache holds 1,762,432 tokens, not 545,408"),
        ("4xH200", PlanRequest(), "its KV cache is in bf16, not in fp8"),
        ("8xMI300X", PlanRequest(), "it has fewer copies of the attention (1, not 2)"),
        ("8xH200", PlanRequest(concurrency=30), "it holds more of the sequences that were asked for"),
    ],
)
def test_the_first_plan_says_what_it_has_before_the_next(gpus: str, wish: PlanRequest, why: str) -> None:
    first, second, *_ = plans(parse_gpus(gpus), wish)
    assert first.reasons[0] == f"better than the next plan: {why}"
    assert not second.reasons[0].startswith("better")


def test_half_a_million_on_four_h200_needs_no_tricks() -> None:
    plan = best("4xH200", PlanRequest())
    assert (plan.kv_dtype, plan.utilisation, plan.rope) == ("auto", 0.92, Rope.NATIVE)
    assert not plan.hf_overrides
    assert not plan.tight


def test_two_h200_are_refused_with_the_numbers() -> None:
    fleet = parse_gpus("2xH200")
    assert plans(fleet, PlanRequest()) == []
    refused = {refusal.precision: refusal for refusal in refusals(fleet, PlanRequest())}
    assert set(refused) == {Precision.MXFP8, Precision.BF16}
    eight = refused[Precision.MXFP8]
    assert eight.tp == 2
    assert eight.weights / GIB == pytest.approx(206.0, abs=0.5)
    assert eight.allowed < eight.weights
    assert eight.kv_tokens == 0
    assert "206.0 GiB" in eight.reason
    assert str(smallest(fleet, PlanRequest())) == "4xH200"
    assert longest_context(fleet, PlanRequest()) == 0


def test_a_context_too_long_says_what_would_fit() -> None:
    fleet, wish = parse_gpus("8xH100"), replace(MILLION, version="0.24.0")
    longest = longest_context(fleet, wish)
    assert 524_288 < longest < 1_048_576
    assert plans(fleet, replace(wish, context=longest))
    assert not plans(fleet, replace(wish, context=longest + BLOCK))
    (eight,) = [r for r in refusals(fleet, wish) if r.precision is Precision.MXFP8]
    assert 0 < eight.kv_tokens < 1_048_576
    assert eight.lacking > 0


def test_copies_of_heads_lose_to_ranks_where_many_work() -> None:
    many = PlanRequest(context=524_288, typical=131_072, concurrency=24)
    assert (best("8xH200", many).tp, best("8xH200", many).dp) == (4, 2)
    assert (best("8xH200", PlanRequest()).tp, best("8xH200", PlanRequest()).dp) == (8, 1)


def test_if_no_plan_holds_all_sequences_the_first_holds_the_most() -> None:
    found = plans(parse_gpus("8xH200"), PlanRequest(context=831_104, concurrency=10))
    assert found[0].sequences == max(plan.sequences for plan in found) == 8
    assert any("it holds 8 of the 10 sequences" in reason for reason in found[0].reasons)


DRAFTED = PlanRequest(draft_use=DraftUse.AUTO, draft_here=True)


def test_a_draft_is_planned_for_few_sequences_with_its_memory() -> None:
    without, plan = best("8xH200", PlanRequest()), best("8xH200", DRAFTED)
    assert plan.draft == GQA_DRAFT
    assert (plan.batch.drafted, plan.draft_backend) == (3, "FLASH_ATTN")
    assert plan.batch.graphs == (4, 8, 16, 32)
    assert plan.memory.weights - without.memory.weights == GQA_DRAFT.weight_bytes(8)
    assert without.kv_tokens * 0.95 < plan.kv_tokens < without.kv_tokens
    assert any(reason.startswith("a draft proposes 3 tokens") for reason in plan.reasons)
    assert best("4xMI355X", DRAFTED).draft_backend == "TRITON_ATTN"


def test_a_draft_is_not_planned_where_it_does_not_pay_or_anything_gets_worse() -> None:
    assert best("8xH200", replace(DRAFTED, concurrency=32, typical=16_384)).draft is None
    assert best("8xH200", replace(DRAFTED, context=131_072, concurrency=12)).draft == GQA_DRAFT
    fleet = parse_gpus("4xH200")
    longest = longest_context(fleet, PlanRequest())
    assert longest_context(fleet, DRAFTED) == longest
    assert plans(fleet, replace(DRAFTED, context=longest))[0].draft is None
    (plan, *_) = plans(fleet, DRAFTED)
    assert (plan.draft, plan.kv_dtype) == (None, "auto")
    assert plan.reasons[-1].endswith("a draft fits with an fp8 cache (--draft on)")
    (plan, *_) = plans(fleet, replace(DRAFTED, draft_use=DraftUse.ON))
    assert (plan.draft, plan.kv_dtype) == (GQA_DRAFT, "fp8")


def test_a_draft_that_would_have_to_be_downloaded_is_only_advised() -> None:
    wish = replace(DRAFTED, draft_here=False)
    plan = best("8xH200", wish)
    assert (plan.draft, plan.kv_tokens) == (None, best("8xH200", PlanRequest()).kv_tokens)
    (advice,) = plan.advice
    assert advice.startswith(
        "a draft pays here: --draft on uses Inferact/MiniMax-M3-EAGLE3-GQA, a third party's model"
    )
    assert f"{best('8xH200', DRAFTED).kv_tokens:,} tokens of cache are left" in advice
    assert "uses an fp8 cache and Inferact" in best("4xH200", wish).advice[0]
    assert best("8xH200", DRAFTED).advice == best("8xH200", PlanRequest()).advice == ()
    assert best("8xH200", replace(wish, concurrency=32, typical=16_384)).advice == ()
    assert best("8xH200", replace(wish, draft_use=DraftUse.ON)).draft == GQA_DRAFT


def test_a_draft_that_is_asked_for_is_refused_where_it_is_broken() -> None:
    wish = PlanRequest(draft_use=DraftUse.ON, engine=EngineKind.SGLANG)
    assert plans(parse_gpus("8xB200"), wish) == []
    refused = refusals(parse_gpus("8xB200"), wish)
    assert {refusal.trap for refusal in refused} == {"draft-sglang"}
    assert "text repeats" in refused[0].reason
    for plan in plans(parse_gpus("8xB200"), replace(DRAFTED, engine=EngineKind.SGLANG)):
        assert plan.draft is None
    wish = PlanRequest(context=524_288, draft_use=DraftUse.ON, draft=MHA_DRAFT)
    assert {refusal.trap for refusal in refusals(parse_gpus("8xH200"), wish)} == {"draft-mha-long"}
    assert plans(parse_gpus("8xH200"), replace(wish, context=131_072))


@pytest.mark.parametrize(
    ("draft", "tp", "kv", "expected"),
    [
        (MHA_DRAFT, 4, KvDtype.BF16, 8_192),
        (MHA_DRAFT, 8, KvDtype.FP8, 2_048),
        (GQA_DRAFT, 4, KvDtype.BF16, 512),
        (GQA_DRAFT, 8, KvDtype.FP8, 256),
    ],
)
def test_bytes_of_a_token_of_a_draft(draft: Draft, tp: int, kv: KvDtype, expected: int) -> None:
    assert draft.token_bytes(tp, kv) == expected


@pytest.mark.parametrize(
    ("inner", "tokens", "weights", "activations"),
    [(27_648, 8_192, 1.72, 1.35), (27_648, 2_048, 1.72, 0.34), (8_192, 8_192, 1.05, 0.54)],
)
def test_memory_of_a_draft_is_what_vllm_took_on_an_h200(
    inner: int, tokens: int, weights: float, activations: float
) -> None:
    count = 3 * HIDDEN * HIDDEN + 2 * HIDDEN * 72 * HEAD + 64 * HEAD * HIDDEN + 3 * HIDDEN * inner
    draft = Draft("here", weights=2 * count, inner=inner)
    assert draft.weight_bytes(1) / 2**30 == pytest.approx(weights, abs=0.01)
    assert draft.activation_bytes(tokens, 1) / 2**30 == pytest.approx(activations, abs=0.015)


@pytest.mark.parametrize(
    ("spec", "wish", "token"),
    [
        ("4xH200", PlanRequest(), 181_248),
        ("4xH200", replace(MILLION, version="0.24.0"), 119_808),
        ("4xH200", MILLION, 90_624),
        ("8xH200", PlanRequest(), 362_496),
    ],
)
def test_what_a_host_cache_holds(spec: str, wish: PlanRequest, token: int) -> None:
    plan = best(spec, replace(wish, host_cache=400 * 10**9))
    assert plan.host_cache is not None
    assert plan.host_cache.token == token
    assert plan.host_cache.tokens == 400 * 10**9 // token
    assert plan.host_cache.pays_from == plan.sequences + 1
    assert plan.host_cache.sequences == max(plan.sequences, plan.host_cache.tokens // wish.context)
    assert any(f"it pays from {plan.sequences + 1} sequences" in reason for reason in plan.reasons)


def test_a_host_cache_that_gains_nothing_is_said_to() -> None:
    wish = PlanRequest(context=524_288, typical=131_072, host_cache=400 * 10**9, concurrency=4)
    assert any("leave out --host-cache" in warning for warning in best("4xH200", wish).warnings)
    more = replace(wish, concurrency=40)
    assert not any("leave out --host-cache" in warning for warning in best("4xH200", more).warnings)
    plan = best("4xH200", replace(more, host_cache=10**9))
    (small,) = [warning for warning in plan.warnings if "so it gains nothing" in warning]
    least = int(small.split("--host-cache ")[1].split()[0])
    for size, gains in ((least - 1, False), (least, True)):
        plan = best("4xH200", replace(more, host_cache=size * 10**9))
        assert any("so it gains nothing" in warning for warning in plan.warnings) is not gains


def test_a_draft_beside_a_host_cache_needs_a_version_that_has_both() -> None:
    wish = replace(DRAFTED, host_cache=400 * 10**9)
    assert (best("8xH200", wish).draft, best("8xH200", wish).versions) == (GQA_DRAFT, ">=0.30")
    assert best("8xH200", replace(wish, version="0.29.0")).draft is None
    assert best("8xH200", replace(wish, version="0.30.0")).draft == GQA_DRAFT
    with pytest.raises(UsageError, match="1 GB or more"):
        PlanRequest(host_cache=-1)


def test_amd_gets_what_amd_needs() -> None:
    plan = best("4xMI355X", MILLION)
    assert plan.recipe == "vllm-amd-1m"
    assert plan.attention_backend == "TRITON_ATTN"
    assert plan.env == AITER | {"VLLM_ROCM_USE_AITER": "1", "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
    assert plan.rope is Rope.YARN
    assert plan.hf_overrides == {
        "text_config": {
            "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 524_288}
        }
    }


def test_mxfp4_keeps_its_cache_in_16_bits() -> None:
    found = plans(parse_gpus("4xMI355X"), PlanRequest(precision=Precision.MXFP4))
    assert found
    assert {plan.kv_dtype for plan in found} == {"auto"}
    assert {plan.checkpoint for plan in found} == {"amd/MiniMax-M3-MXFP4"}
    (refused,) = refusals(parse_gpus("4xH200"), PlanRequest(precision=Precision.MXFP4))
    assert refused.trap == "mxfp4-off-cdna4"


def test_nvfp4_is_refused_on_hopper_and_planned_on_blackwell() -> None:
    wish = PlanRequest(precision=Precision.NVFP4)
    (refused,) = refusals(parse_gpus("8xH200"), wish)
    assert refused.trap == "nvfp4-off-blackwell"
    assert plans(parse_gpus("8xH200"), wish) == []
    assert plans(parse_gpus("4xB300"), wish)


def test_other_engines_come_after_the_measured_one() -> None:
    engines = [plan.engine for plan in plans(parse_gpus("2x8xGB200"), PlanRequest()) if not plan.tight]
    assert engines == sorted(engines, key=list(EngineKind).index)
    assert set(engines) == set(EngineKind)
    tensorrt, wider = plans(parse_gpus("2x4xGB200"), PlanRequest(engine=EngineKind.TRTLLM))
    assert (tensorrt.recipe, tensorrt.precision, tensorrt.nodes) == ("trtllm-gb200-2x4", "mxfp8", 2)
    assert (wider.precision, wider.kv_dtype) == ("bf16", tensorrt.kv_dtype)
    assert any("no prefix is reused" in warning for warning in tensorrt.warnings)
    wish = PlanRequest(engine=EngineKind.SGLANG, precision=Precision.MXFP8)
    wide, sglang, *_ = plans(parse_gpus("8xB200"), wish)
    assert (wide.tp, sglang.tp) == (8, 4), "four B200 are SGLang's validated node"
    assert (sglang.recipe, sglang.parser) == ("sglang-8gpu", "minimax-m3")
    narrow, *_ = plans(parse_gpus("4xB200"), replace(wish, concurrency=4))
    assert narrow.kv_dtype == "fp8_e4m3"
    assert {refusal.trap for refusal in refusals(parse_gpus("8xH200"), wish)} == {"sglang-mxfp8-on-hopper"}


def test_mxfp8_takes_as_much_memory_as_bf16_on_cdna3() -> None:
    mxfp8, bf16 = (
        plans(parse_gpus("8xMI300X"), PlanRequest(precision=precision))[0]
        for precision in (Precision.MXFP8, Precision.BF16)
    )
    assert mxfp8.kv_tokens == bf16.kv_tokens
    assert any("loads the weights as BF16" in warning for warning in mxfp8.warnings)
    for gpus in ("4xMI300X", "2xMI325X"):
        assert plans(parse_gpus(gpus), PlanRequest(precision=Precision.MXFP8)) == []


@pytest.mark.parametrize(
    ("gpus", "precision", "tp", "nodes"),
    [("8xA100", "mxfp8", 8, 1), ("4xRTXPRO6000", "nvfp4", 4, 1), ("4xGB10", "nvfp4", 4, 4)],
)
def test_gpus_on_which_only_others_served_it(gpus: str, precision: str, tp: int, nodes: int) -> None:
    plan, *_ = plans(parse_gpus(gpus), PlanRequest(context=131_072))
    assert (plan.precision, plan.tp, plan.nodes, plan.versions) == (precision, tp, nodes, ">=0.27.1")
    assert any("no recipe page" in warning for warning in plan.warnings)


def test_a_plan_needs_the_newest_version_of_what_it_uses() -> None:
    wish = PlanRequest(context=131_072, host_cache=10**11, draft_use=DraftUse.ON)
    plan, *_ = plans(parse_gpus("4xRTXPRO6000"), wish)
    assert (plan.draft is not None, plan.versions) == (True, ">=0.30")


def test_nvfp4_needs_a_vllm_that_reads_its_other_layers() -> None:
    plan, *_ = plans(parse_gpus("4xB200"), PlanRequest(precision=Precision.NVFP4, engine=EngineKind.VLLM))
    assert plan.versions == ">=0.25"


def test_tensorrt_keeps_prefixes_on_one_node_of_b200_in_nvfp4() -> None:
    wish = replace(MILLION, engine=EngineKind.TRTLLM, precision=Precision.NVFP4)
    (plan,) = plans(parse_gpus("4xB200"), wish)
    assert (plan.recipe, plan.tp, plan.versions) == ("trtllm-b200-1x4", 4, ">=1.3.0rc23.post1")
    assert (plan.kv_dtype, plan.index_dtype, plan.setup.msa) == ("fp8", "fp8", True)
    assert not any("no prefix is reused" in warning for warning in plan.warnings)
    job = prepare(recipe(plan.recipe), LaunchRequest(), plan).job
    assert "host_cache_size: 0}" in job.files["msa.yaml"]
    assert "max_num_tokens: 8192" in job.files["msa.yaml"]
    (wide, _) = plans(parse_gpus("8xB200"), replace(wish, host_cache=400 * 10**9, draft_use=DraftUse.ON))
    job = prepare(recipe(wide.recipe), LaunchRequest(model="/models/m3"), wide).job
    assert f"--tp_size {wide.tp} " in job.argv[-1]
    assert job.env["MODEL"] == "/models/m3"
    assert "host_cache_size: 400000000000}" in job.files["msa.yaml"]
    assert "speculative_config: {decoding_type: Eagle3, max_draft_len: 3" in job.files["msa.yaml"]
    for gpus, precision in (
        ("4xB300", Precision.NVFP4),
        ("4xB200", Precision.MXFP8),
        ("8xH200", Precision.NVFP4),
    ):
        assert plans(parse_gpus(gpus), replace(wish, precision=precision)) == []


def test_versions_leave_out_the_broken_ones_off_blackwell() -> None:
    assert "!=0.26.*" in best("4xH200", PlanRequest()).versions
    assert best("4xB200", PlanRequest()).versions == ">=0.24"


def test_memory_that_others_hold_is_not_planned_with() -> None:
    fleet = parse_gpus("4xH200")
    free = fleet.gpu.usable_bytes - 8 * GIB
    held = replace(fleet, free_bytes=free)
    plan = plans(held, PlanRequest(context=131_072))[0]
    assert plan.memory.allowed <= free
    assert plan.utilisation < 0.965
    assert plans(held, replace(MILLION, version="0.24.0")) == []


def test_costs() -> None:
    cost, h200 = best("4xH200", PlanRequest(context=131_072)).cost, GPUS["H200"]
    hour = 4 * (h200.on_demand or 0)
    assert cost.dollars_per_hour == pytest.approx(hour)
    assert cost.spot_dollars_per_hour == pytest.approx(4 * (h200.spot or 0))
    assert cost.tokens_per_second == pytest.approx(1 / 0.0092)
    assert cost.dollars_per_million == pytest.approx(hour * 0.0092 / 3600 * 1e6)
    assert cost.breakeven_tokens_per_second == pytest.approx(
        hour / cost.hosted_dollars_per_million / 3600 * 1e6
    )
    assert cost.stream_tokens_per_second == cost.tokens_per_second
    assert best("4xH200", MILLION).cost.tokens_per_second == pytest.approx(74, abs=3)
    eight = best("8xH200", PlanRequest(context=131_072)).cost
    assert (eight.tokens_per_second, eight.stream_tokens_per_second) == (None, cost.tokens_per_second)
    assert plans(parse_gpus("4xX100", 180), PlanRequest())[0].cost.dollars_per_hour is None
    given_ = plans(parse_gpus("4xB200"), PlanRequest(), HardwarePrices(5.0, 1000.0))[0].cost
    assert given_.dollars_per_million == pytest.approx(20 / 3.6)
    assert given_.price_source == given_.throughput_source == "given"
    spot = plans(Fleet(replace(h200, spot_prices="an auction"), 4), PlanRequest())[0].cost
    assert spot.price_source == f"on demand, {h200.prices}; spot, an auction"


def test_memory_that_was_not_measured_has_its_source() -> None:
    gpu = replace(GPUS["H200"], measured=False, source="a data sheet")
    warnings = plans(Fleet(gpu, 4), PlanRequest())[0].warnings
    assert "the memory of the H200 was not measured by us: a data sheet" in warnings


@pytest.mark.parametrize(("version", "told"), [(None, True), ("0.31.0", False), ("0.33.0", True)])
def test_a_plan_tells_the_warnings_of_versions_that_may_serve_it(
    version: str | None, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_issue(monkeypatch, Severity.WARN, ">=0.32,<0.34")
    warnings = best("4xH200", PlanRequest(version=version)).warnings
    assert ("with vLLM >=0.32,<0.34: answers are slow; wait (a test)" in warnings) is told


@pytest.mark.parametrize(
    ("context", "concurrency", "typical", "said"),
    [
        (0, 1, None, "out of range"),
        (2_000_000, 1, None, "2,000,000 tokens is out of range"),
        (1024, 1, 2048, "not within"),
        (1024, 0, None, "0 sequences"),
    ],
)
def test_invalid_plan_requests(context: int, concurrency: int, typical: int | None, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        PlanRequest(context, concurrency, typical)


@settings(max_examples=25)
@given(GPU, st.integers(1, 16), st.integers(1, 2), WISH, st.none() | st.floats(0, 1))
def test_no_plan_exceeds_memory(
    gpu: Gpu, per_node: int, nodes: int, wish: PlanRequest, free: float | None
) -> None:
    fleet = Fleet(gpu, per_node, nodes)
    if free is not None:
        fleet = replace(fleet, free_bytes=int(free * fleet.gpu.usable_bytes))
    for plan in plans(fleet, wish):
        memory = plan.memory
        assert memory.weights + memory.other + memory.kv == memory.allowed <= memory.total
        assert memory.outside_spare >= 0
        assert fleet.free_bytes is None or memory.allowed <= fleet.free_bytes
        kv = KvDtype.BF16 if plan.kv_dtype == "auto" else KvDtype.FP8
        index = KvDtype(plan.index_dtype)
        token = kv_bytes_per_token(SHAPE, plan.tp, kv, index)
        token += 0 if plan.draft is None else plan.draft.token_bytes(plan.tp, kv)
        assert plan.kv_tokens * token <= memory.kv
        assert (plan.draft is not None) or wish.draft_use is not DraftUse.ON
        assert plan.kv_tokens >= wish.context == plan.context
        assert plan.count <= fleet.count
        assert possible_tp(plan.tp)
        assert plan.sequences <= plan.concurrency + 0.01
    shown = {plan.precision for plan in plans(fleet, wish)}
    assert shown.isdisjoint(refusal.precision for refusal in refusals(fleet, wish))


@settings(max_examples=15)
@given(GPU, st.integers(1, 15), st.integers(1, 3), WISH)
def test_more_gpus_never_allow_less(gpu: Gpu, per_node: int, nodes: int, wish: PlanRequest) -> None:
    fleet = Fleet(gpu, per_node, nodes)
    for larger in (replace(fleet, per_node=per_node + 1), replace(fleet, nodes=nodes + 1)):
        assert longest_context(larger, wish) >= longest_context(fleet, wish)
        most = max((plan.sequences for plan in plans(fleet, wish)), default=0)
        assert max((plan.sequences for plan in plans(larger, wish)), default=0) >= most


@settings(max_examples=30)
@given(GPU, st.integers(1, 16), WISH)
def test_the_first_plan_holds_what_is_wanted_if_any_does(gpu: Gpu, count: int, wish: PlanRequest) -> None:
    found = plans(Fleet(gpu, count), wish)
    if any(plan.sequences >= wish.concurrency for plan in found):
        assert found[0].sequences >= wish.concurrency


AITER = {
    "VLLM_USE_BREAKABLE_CUDAGRAPH": "0",
    "VLLM_ROCM_USE_AITER_MOE": "1",
    "VLLM_ROCM_USE_AITER_FUSION_SHARED_EXPERTS": "1",
}


@pytest.mark.parametrize(
    ("gpus", "precision", "more"),
    [
        ("4xMI355X", Precision.MXFP8, {"VLLM_ROCM_USE_AITER": "1"}),
        ("8xMI325X", Precision.MXFP8, {"VLLM_ROCM_USE_AITER": "1", "VLLM_ROCM_USE_AITER_MHA": "0"}),
        ("8xMI300X", Precision.BF16, {}),
    ],
)
def test_vllm_on_amd_has_the_environment_of_its_recipe_page(
    gpus: str, precision: Precision, more: dict[str, str]
) -> None:
    plan = plans(parse_gpus(gpus), PlanRequest(precision=precision))[0]
    assert plan.env == AITER | more


@pytest.mark.parametrize(
    ("gpus", "recipe"),
    [("8xMI355X", "sglang-mi355x"), ("8xMI300X", "sglang-mi300x"), ("4xB200", "sglang-8gpu")],
)
def test_sglang_is_planned_as_its_cookbook_has_it(gpus: str, recipe: str) -> None:
    wish = PlanRequest(engine=EngineKind.SGLANG, precision=Precision.MXFP8)
    plan = plans(parse_gpus(gpus), wish)[0]
    assert (plan.recipe, plan.env) == (recipe, {})
    assert plans(parse_gpus("8xMI300X"), replace(wish, precision=Precision.BF16)) == []


@pytest.mark.parametrize(
    ("gpus", "context", "said"),
    [
        ("16xH100", 524_288, "2 servers of 8xH100-80 behind a router use 16 GPUs and hold 2 sequences"),
        (
            "16xH100",
            1_048_576,
            "2 servers of 8xH100-80 behind a router use 16 GPUs and hold 2 sequences, with little",
        ),
        ("8xH200", 524_288, ""),
        ("8xA100", 524_288, ""),
    ],
)
def test_gpus_of_which_a_half_is_enough_are_advised_as_several_servers(
    gpus: str, context: int, said: str
) -> None:
    advice = [
        one for one in plans(parse_gpus(gpus), PlanRequest(context=context))[0].advice if "servers" in one
    ]
    assert len(advice) == bool(said)
    assert all(one.startswith(said) for one in advice)


@pytest.mark.parametrize(("own", "said"), [(True, True), (False, False)])
def test_only_a_checkpoint_of_ones_own_may_have_other_layers_in_4_bits(own: bool, said: bool) -> None:
    warnings = best("4xB200", PlanRequest(precision=Precision.NVFP4, own=own)).warnings
    assert any("another NVFP4 checkpoint may have other layers" in warning for warning in warnings) is said

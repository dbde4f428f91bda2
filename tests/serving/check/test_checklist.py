"""The checklist against servers that each lack one thing, and what it reads from the engines' own pages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from m3agent.serving.check import checklist as module
from m3agent.serving.check.check import Check
from m3agent.serving.check.checklist import (
    checklist,
    chunked_check,
    headroom_check,
    hit_rate_check,
    kv_dtype_check,
    version_check,
    workload_check,
)
from m3agent.serving.check.engine_state import EngineState, parse_metrics, read_state
from m3agent.serving.check.prefix_probe import Findings
from m3agent.serving.client.endpoint import Endpoint, Flavour, probe
from m3agent.serving.plan.plan import PlanRequest
from tests.servers.engine import Answer, EngineServer
from tests.servers.forced import ForcedServer

PAGE = (Path(__file__).parent / "vllm-0.24-metrics.txt").read_text()
VLLM = EngineState(
    metrics=True,
    kv_tokens=(4_979_456,),
    kv_dtype="auto",
    block_size=128,
    usage=0.0,
    preemptions=0.0,
    asked=0.0,
    prefix_caching=True,
)
SGLANG_PAGE = """\
# TYPE sglang:token_usage gauge
sglang:token_usage{model_name="m3",tp_rank="0"} 0.28
sglang:cache_hit_rate{model_name="m3"} 0.4
sglang:num_retracted_requests_total{model_name="m3"} 2.0
sglang:prompt_tokens_total{model_name="m3"} 2000000.0
sglang:cached_tokens_total{cache_source="device",model_name="m3"} 1500000.0
sglang:cached_tokens_total{cache_source="host",model_name="m3"} 300000.0
"""
SGLANG_SETTINGS: dict[str, Any] = {
    "max_total_num_tokens": 700_000,
    "dp_size": 2,
    "kv_cache_dtype": "fp8_e4m3",
    "page_size": 128,
    "chunked_prefill_size": 8192,
    "disable_radix_cache": False,
}


def endpoint(flavour: Flavour = "vllm", version: str | None = "0.24.0", **more: Any) -> Endpoint:
    fields: dict[str, Any] = {"max_model_len": 131_072, "local": False, **more}
    return Endpoint(
        url="http://gpu:8000/v1",
        model="m3",
        flavour=flavour,
        version=version,
        reasoning_field="reasoning",
        **fields,
    )


class Targets(EngineServer):
    """A fake Prometheus that only serves its list of targets."""

    def __init__(self, targets: Sequence[dict[str, Any]] | None) -> None:
        super().__init__()
        self.targets = targets

    def get(self, path: str, headers: dict[str, str]) -> Answer:
        if path != "/api/v1/targets?state=active":
            return None
        return json.dumps({"data": {"activeTargets": self.targets}} if self.targets is not None else ["what"])


async def checked(
    server: ForcedServer,
    *,
    work: PlanRequest | None = None,
    prometheus: str | None = None,
    key: str | None = None,
) -> dict[str, Check]:
    at = await probe(server.url, api_key=key, model=None)
    found = await checklist(
        at, api_key=key, workload=work, prometheus=prometheus, findings=Findings(True, True, 0.2)
    )
    return {check.name: check for check in found}


def test_a_real_page_of_vllm() -> None:
    assert read_state("vllm", parse_metrics(PAGE), {}) == VLLM
    older = PAGE.replace('kv_cache_size_tokens="4979456",', "")
    assert read_state("vllm", parse_metrics(older), {}).kv_tokens == (38902 * 128,)
    busy = PAGE.replace('_queries_total{engine="0",model_name="/models/tiny"} 0.0', "_queries_total{} 4e6")
    busy = busy.replace(
        'prefix_cache_hits_total{engine="0",model_name="/models/tiny"} 0.0', "prefix_cache_hits_total 3e6"
    )
    assert read_state("vllm", parse_metrics(busy), {}).hit_rate == 0.75
    settings = {"vllm_config": "model='m3', enable_prefix_caching=True, enable_chunked_prefill=False, x"}
    assert read_state("vllm", [], settings) == EngineState(chunked_prefill=False)


def test_two_ranks_of_vllm_keep_caches_of_their_own() -> None:
    line = next(line for line in PAGE.splitlines() if line.startswith("vllm:cache_config_info"))
    other = line.replace('engine="0"', 'engine="1"')
    usages = ("0.2", "0.7")
    page = [line, other, *(f'vllm:kv_cache_usage_perc{{engine="{n}"}} {u}' for n, u in enumerate(usages))]
    state = read_state("vllm", parse_metrics("\n".join(page)), {})
    assert (state.kv_tokens, state.usage) == ((4_979_456, 4_979_456), 0.7)


def test_pages_of_sglang_and_trtllm() -> None:
    assert read_state("sglang", parse_metrics(SGLANG_PAGE), SGLANG_SETTINGS) == EngineState(
        metrics=True,
        kv_tokens=(700_000, 700_000),
        kv_dtype="fp8_e4m3",
        block_size=128,
        usage=0.28,
        preemptions=2.0,
        hit_rate=0.9,
        asked=2e6,
        prefix_caching=True,
        chunked_prefill=True,
    )
    page = (
        "trtllm_kv_cache_max_blocks 100\ntrtllm_kv_cache_tokens_per_block 32\ntrtllm_kv_cache_utilization 0.5"
    )
    assert read_state("trtllm", parse_metrics(page), {}) == EngineState(
        metrics=True, kv_tokens=(3200,), usage=0.5
    )
    assert read_state("embedded", [], {}) == EngineState()


@pytest.mark.integration
async def test_a_server_with_all_that_is_wanted() -> None:
    with ForcedServer(
        metrics=PAGE, settings={"vllm_config": "enable_chunked_prefill=True"}, key="k"
    ) as server:
        target = {"scrapeUrl": f"http://localhost:{server.host.partition(':')[2]}/metrics", "health": "up"}
        with Targets([{"scrapeUrl": "http://else:1/metrics"}, target]) as prometheus:
            found = await checked(
                server, work=PlanRequest(context=131_072, concurrency=8), prometheus=prometheus.host, key="k"
            )
    assert [check for check in found.values() if check.ok is False] == []
    unknown = {name for name, check in found.items() if check.ok is None}
    assert unknown <= {"8-bit cache", "hit rate", "version"}
    assert found["workload"].detail == "the cache holds 4,979,456 tokens: 37 sequences of 131,072 at a time"
    assert found["scraped"].ok
    assert found["metrics"].detail == f"http://{server.host}/metrics"


@pytest.mark.integration
async def test_a_server_that_says_nothing_of_itself() -> None:
    with ForcedServer(missing=("/metrics",), version="?") as server:
        found = await checked(server)
    assert found["metrics"].ok is False and "--disable-log-stats" in found["metrics"].fix
    for name in ("version", "workload", "8-bit cache", "headroom", "chunked prefill", "hit rate", "scraped"):
        assert found[name].ok is None, name
    with ForcedServer(flavour="sglang", missing=("/metrics",), settings=SGLANG_SETTINGS) as server:
        found = await checked(server)
    assert found["metrics"].fix == "--enable-metrics"
    assert found["8-bit cache"].ok and found["chunked prefill"].ok


async def test_a_hosted_api_shows_nothing_of_itself() -> None:
    with ForcedServer() as server:
        hosted = Endpoint(server.url, "m3", "openrouter", None, None, "reasoning", False)
        (check,) = await checklist(hosted, api_key=None, workload=None)
        assert server.paths == []
    assert check.ok is None and "is not vLLM, SGLang or TensorRT-LLM" in check.detail


@pytest.mark.parametrize(
    ("tokens", "work", "ok", "words"),
    [
        ((1_000_000,), PlanRequest(context=131_072, concurrency=7), True, "7 sequences of 131,072 at a time"),
        (
            (1_000_000,),
            PlanRequest(context=131_072, concurrency=8),
            False,
            "7 sequences of 131,072 at a time, not 8",
        ),
        (
            (1_000_000,),
            PlanRequest(context=131_072, concurrency=30, typical=32_768),
            True,
            "30 sequences of 32,768",
        ),
        # each rank holds 7.6 sequences: fractions on two ranks do not add up to one more
        ((1_000_000, 1_000_000), PlanRequest(context=131_072, concurrency=15), False, "14 sequences"),
        (
            (100_000, 100_000),
            PlanRequest(context=131_072),
            False,
            "holds 100,000 tokens, one sequence may have 131,072",
        ),
        (
            (1_000_000,),
            PlanRequest(context=262_144),
            False,
            "the window has 131,072 tokens, the workload needs 262,144",
        ),
        ((), PlanRequest(context=131_072), None, "not known"),
        ((1_000_000,), None, None, "the cache holds 1,000,000 tokens; give --context"),
    ],
)
def test_window_and_cache_for_the_work(
    tokens: tuple[int, ...], work: PlanRequest | None, ok: bool | None, words: str
) -> None:
    check = workload_check(endpoint(), EngineState(kv_tokens=tokens), work)
    assert check.ok is ok and words in check.detail
    assert ("m3agent plan" in check.fix) == (ok is False)


def test_8_bit_cache_is_proposed_if_the_work_does_not_fit() -> None:
    work = PlanRequest(context=131_072, concurrency=8)
    tight = EngineState(kv_tokens=(1_000_000,), kv_dtype="auto")
    check = kv_dtype_check(endpoint(), tight, work)
    assert (check.ok, check.fix) == (False, "--kv-cache-dtype fp8")
    assert kv_dtype_check(endpoint("sglang"), tight, work).fix == "--kv-cache-dtype fp8_e4m3"
    assert kv_dtype_check(endpoint(), EngineState(kv_tokens=(2_000_000,), kv_dtype="auto"), work).ok is None
    assert kv_dtype_check(endpoint(), EngineState(kv_dtype="fp8_e5m2"), None).ok


@pytest.mark.parametrize(
    ("state", "ok", "words"),
    [
        (EngineState(usage=0.5, preemptions=0.0), True, "50% of the cache in use, 0 preemptions so far"),
        (EngineState(usage=0.95, preemptions=0.0), False, "95% of the cache in use"),
        (EngineState(usage=0.1, preemptions=3.0), False, "3 preemptions so far"),
        (EngineState(usage=0.1), True, "10% of the cache in use"),
        (EngineState(), None, "not known"),
    ],
)
def test_headroom(state: EngineState, ok: bool | None, words: str) -> None:
    check = headroom_check(state)
    assert check.ok is ok and words in check.detail and bool(check.fix) == (ok is False)


@pytest.mark.parametrize(
    ("state", "ok", "words"),
    [
        (EngineState(hit_rate=0.93, asked=5e6), True, "93% of prompts' tokens, of 5,000,000"),
        (EngineState(hit_rate=0.2, asked=5e6), False, "20% of prompts' tokens, of 5,000,000: agents' turns"),
        (EngineState(hit_rate=0.2, asked=5e4), None, "too few to tell"),
        (EngineState(prefix_caching=False, hit_rate=0.0, asked=5e6), False, "prefix caching is off"),
        (EngineState(), None, "not known"),
    ],
)
def test_the_hit_rate_so_far(state: EngineState, ok: bool | None, words: str) -> None:
    check = hit_rate_check(state)
    assert check.ok is ok and words in check.detail


def test_prefill_in_one_piece() -> None:
    check = chunked_check(endpoint(), EngineState(chunked_prefill=False))
    assert (check.ok, check.fix) == (False, "--enable-chunked-prefill")
    assert chunked_check(endpoint(), EngineState(chunked_prefill=True)).ok
    assert "vLLM does it by default" in chunked_check(endpoint(), EngineState()).detail


@pytest.mark.parametrize(
    ("flavour", "version", "block", "ok", "words"),
    [
        ("vllm", "0.24.0", 128, True, "vllm 0.24.0: no known problem"),
        ("vllm", "0.23.1", 128, False, "vLLM before 0.24.0 does not have the model"),
        ("vllm", "0.26.0", 128, None, "except on blackwell: vLLM 0.25 and 0.26 read the chosen blocks"),
        ("vllm", "0.27.1", 128, True, "no known problem"),
        ("vllm", "0.24.0", 16, False, "cache's blocks must equal those of the sparse attention"),
        ("vllm", "dev-of-mine", 128, None, "cannot be compared"),
        ("vllm", None, 128, None, "not known"),
        ("sglang", "0.5.23", None, True, "sglang 0.5.23: no known problem"),
    ],
)
async def test_versions_against_the_table_of_traps(
    flavour: Flavour, version: str | None, block: int | None, ok: bool | None, words: str
) -> None:
    check = await version_check(endpoint(flavour, version), EngineState(block_size=block))
    assert check.ok is ok and words in check.detail
    assert bool(check.fix) == (
        ": no known problem" not in check.detail and "not known" not in words and "compared" not in words
    )


@pytest.mark.integration
async def test_the_gpus_of_this_machine_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '0, GPU-1, NVIDIA H200, 143771, 0, Disabled'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    check = await version_check(endpoint(version="0.26.0", local=True), EngineState())
    assert check.ok is False and "wrong text, no error" in check.detail


@pytest.mark.integration
@pytest.mark.parametrize(
    ("targets", "ok", "words"),
    [
        ([{"scrapeUrl": "http://gpu:9/metrics", "health": "up"}], False, "is not among the 1 targets"),
        ([], False, "is not among the 0 targets"),
        (None, None, "is not a Prometheus"),
    ],
)
async def test_metrics_that_nobody_reads(
    targets: list[dict[str, Any]] | None, ok: bool | None, words: str
) -> None:
    with ForcedServer(metrics=PAGE) as server, Targets(targets) as prometheus:
        check = (await checked(server, prometheus=prometheus.host))["scraped"]
        assert check.ok is ok and words in check.detail
        assert ("m3agent serve scrape" in check.fix) == (ok is False)


@pytest.mark.integration
async def test_unreadable_target_and_unreachable_prometheus() -> None:
    with ForcedServer(metrics=PAGE) as server:
        target = {"scrapeUrl": f"http://{server.host}/metrics", "health": "down", "lastError": "refused"}
        with Targets([target]) as prometheus:
            check = (await checked(server, prometheus=f"http://{prometheus.host}/"))["scraped"]
            gone = prometheus.host
        assert check.ok is False and "is a target with health down: refused" in check.detail
        check = (await checked(server, prometheus=gone))["scraped"]
        assert check.ok is None and "no Prometheus answers" in check.detail


@pytest.mark.integration
@pytest.mark.parametrize(
    ("everywhere", "key", "ok", "words"),
    [
        (False, None, True, "reachable from this machine only"),
        (True, None, False, "anyone who can reach it can use it"),
        (True, "k", True, "needed"),
    ],
)
async def test_a_key_is_needed_from_elsewhere(
    everywhere: bool, key: Literal["k"] | None, ok: bool, words: str
) -> None:
    if module._own_address() is None:
        pytest.skip("this machine has no address towards others")
    with ForcedServer(metrics=PAGE, everywhere=everywhere, key=key) as server:
        check = (await checked(server, key=key))["key"]
    assert check.ok is ok and words in check.detail
    assert ("--api-key" in check.fix) == (not ok)

"""Check what a server needs before work depends on it: window, cache capacity, headroom, metrics, a key."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from packaging.version import InvalidVersion, Version

from m3agent.serving.check.check import Check
from m3agent.serving.check.engine_state import EngineState, engine_state, metrics_url
from m3agent.serving.check.prefix_probe import Findings, examine, examined_checks
from m3agent.serving.client.endpoint import Endpoint, get
from m3agent.serving.client.http import is_local, open_client
from m3agent.serving.errors import EndpointRefused, ModelServerError
from m3agent.serving.plan.detect import DetectionError, detect
from m3agent.serving.plan.engines import remedy
from m3agent.serving.plan.gpus import DOCUMENTED, Gpu
from m3agent.serving.plan.kinds import EngineKind, Precision
from m3agent.serving.plan.known_issues import KnownIssue, Setup, Severity, met
from m3agent.serving.plan.memory_model import NATIVE_CONTEXT
from m3agent.serving.plan.plan import PlanRequest

FULL = 0.9
"""Share of the KV cache in use from which there is no headroom: the next long sequence evicts another."""

LOW_HIT_RATE = 0.5
"""Hit rate below which agents' turns compute prompts again.

Within a session 0.9 and more is usual, apart from its first turn (docs/benchmarks.md).
"""

_TELLING = 1_000_000  # prompt tokens below which the hit rate mostly reflects first turns, not the work
_SECONDS = 5.0
_FP8_GAIN = "about 1.5 times as many tokens"
_ELSEWHERE = ("192.0.2.1", 9)  # reserved for documentation (RFC 5737); the route to it shows our own address


async def checklist(
    endpoint: Endpoint,
    *,
    api_key: str | None,
    workload: PlanRequest | None,
    prometheus: str | None = None,
    findings: Findings | None = None,
) -> list[Check]:
    """Check a running server; never raise because of the server's answers.

    Args:
        workload: Context window, concurrency and length of sequences that the work needs; None skips the
            comparison.
        findings: Results of an examination; None makes the function examine the server.

    Returns:
        The checks. For a server that is not vLLM, SGLang or TensorRT-LLM, one check that says so.
    """
    if endpoint.flavour not in tuple(EngineKind):
        # A hosted API shows none of these settings, and its list of models may be public.
        detail = f"not checked: {endpoint.host} is not vLLM, SGLang or TensorRT-LLM"
        return [Check("settings", None, detail)]
    state, open_to = await asyncio.gather(
        engine_state(endpoint, api_key=api_key), asyncio.to_thread(_own_address)
    )
    examined = findings or await examine(endpoint, api_key=api_key)
    return [
        await version_check(endpoint, state),
        workload_check(endpoint, state, workload),
        kv_dtype_check(endpoint, state, workload),
        headroom_check(state),
        chunked_check(endpoint, state),
        *examined_checks(endpoint, examined),
        hit_rate_check(state),
        _metrics_check(endpoint, state),
        await scraped_check(endpoint, metrics_url(endpoint), prometheus),
        await _key_check(endpoint, api_key, open_to),
    ]


async def version_check(endpoint: Endpoint, state: EngineState) -> Check:
    """Check the engine's version and block size against the table of traps.

    The check uses this machine's GPUs if the server runs here, otherwise all known GPUs.
    """
    name, version = "version", endpoint.version
    if version is None:
        return Check(name, None, "not known")
    try:
        Version(version)
    except InvalidVersion:
        return Check(name, None, f"{version} cannot be compared with versions of {endpoint.flavour}")
    here = await asyncio.to_thread(_gpus_here) if endpoint.local else []
    gpus = here or DOCUMENTED
    engine = EngineKind(endpoint.flavour)
    hits = [_met(engine, version, state.block_size, gpu) for gpu in gpus]
    traps = {trap.name: trap for there in hits for trap in there}
    spared = {
        trap.name: sorted(
            {gpu.architecture for gpu, there in zip(gpus, hits, strict=True) if trap not in there}
        )
        for trap in traps.values()
    }
    trap = min(traps.values(), key=lambda trap: bool(spared[trap.name]), default=None)  # everywhere first
    if trap is None:
        return Check(name, True, f"{engine} {version}: no known problem")
    elsewhere = spared[trap.name]
    but = f", except on {', '.join(elsewhere)}" if elsewhere else ""
    detail = f"{engine} {version}{but}: {trap.effect} ({trap.source})"
    return Check(name, None if elsewhere else False, detail, trap.remedy)


def workload_check(endpoint: Endpoint, state: EngineState, workload: PlanRequest | None) -> Check:
    """Check whether context window and KV cache hold the work."""
    name, length = "workload", endpoint.max_model_len
    held = f"the cache holds {sum(state.kv_tokens):,} tokens" if state.kv_tokens else "cache unknown"
    if workload is None:
        return Check(name, None, f"{held}; give --context and --concurrency to compare")
    plan = f"m3agent plan --context {workload.context} --concurrency {workload.concurrency} says what fits"
    if length is not None and length < workload.context:
        detail = f"the window has {length:,} tokens, the workload needs {workload.context:,}"
        return Check(name, False, detail, f"start it with a window of {workload.context}; {plan}")
    if not state.kv_tokens:
        return Check(name, None, "the cache's capacity is not known")
    if min(state.kv_tokens) < workload.context:
        detail = f"the cache of a rank holds {min(state.kv_tokens):,} tokens, one sequence may have {workload.context:,}"
        return Check(name, False, detail, plan)
    # Count whole sequences on each rank, because a sequence cannot be spread over two ranks.
    room = sum(tokens // workload.sequence for tokens in state.kv_tokens)
    detail = f"{held}: {room} sequences of {workload.sequence:,} at a time"
    if room < workload.concurrency:
        return Check(name, False, f"{detail}, not {workload.concurrency}", plan)
    return Check(name, True, detail)


def kv_dtype_check(endpoint: Endpoint, state: EngineState, workload: PlanRequest | None) -> Check:
    """Check whether the KV cache uses 8 bits; 16 bits are fine if the work fits."""
    name, dtype = "8-bit cache", state.kv_dtype
    if dtype is None:
        return Check(name, None, "not known")
    if dtype.startswith("fp8"):
        return Check(name, True, dtype)
    fits = workload_check(endpoint, state, workload).ok
    option = remedy(endpoint.flavour, "fp8_cache")
    if fits is False:
        return Check(name, False, f"no ({dtype}): 8 bits would hold {_FP8_GAIN}", option)
    return Check(
        name, None, f"no ({dtype}){', and the workload fits' if fits else f': 8 bits would hold {_FP8_GAIN}'}"
    )


def headroom_check(state: EngineState) -> Check:
    """Check whether the KV cache has free capacity now, and has never evicted a sequence."""
    name = "headroom"
    if state.usage is None:
        return Check(name, None, "not known")
    used = f"{state.usage:.0%} of the cache in use"
    thrown = state.preemptions
    told = "" if thrown is None else f", {thrown:,.0f} preemptions so far"
    if state.usage >= FULL or thrown:
        fix = "fewer sequences at a time (--max-num-seqs), an 8-bit cache, or more GPUs"
        return Check(name, False, used + told, fix)
    return Check(name, True, used + told)


def chunked_check(endpoint: Endpoint, state: EngineState) -> Check:
    """Check whether the server splits long prompts, so that other answers continue meanwhile."""
    name = "chunked prefill"
    if state.chunked_prefill is None:
        usual = "; vLLM does it by default" if endpoint.flavour == "vllm" else ""
        return Check(name, None, f"the server does not say{usual}")
    if state.chunked_prefill:
        return Check(name, True, "on")
    fix = remedy(endpoint.flavour, "chunked_prefill")
    return Check(name, False, "off: one long prompt delays all other answers", fix)


def hit_rate_check(state: EngineState) -> Check:
    """Check the share of prompt tokens that came from the cache since the server started."""
    name = "hit rate"
    if state.prefix_caching is False:
        return Check(name, False, "prefix caching is off", "start it with prefix caching")
    if state.hit_rate is None:
        return Check(name, None, "not known, or no requests so far")
    detail = f"{state.hit_rate:.0%} of prompts' tokens" + (f", of {state.asked:,.0f}" if state.asked else "")
    if state.asked is None or state.asked < _TELLING:
        return Check(name, None, f"{detail}: too few to tell")
    if state.hit_rate < LOW_HIT_RATE:
        fix = "check whether the cache is full, and whether all turns of a session go to one rank"
        return Check(name, False, f"{detail}: agents' turns should hit more often", fix)
    return Check(name, True, detail)


def _metrics_check(endpoint: Endpoint, state: EngineState) -> Check:
    if state.metrics:
        return Check("metrics", True, metrics_url(endpoint))
    option = remedy(endpoint.flavour, "metrics")
    return Check("metrics", False, f"no metrics at {metrics_url(endpoint)}", option)


async def _key_check(endpoint: Endpoint, api_key: str | None, own_address: str | None) -> Check:
    """Check whether a request from another machine needs a key."""
    name, base = "key", endpoint.url
    if endpoint.local:
        if own_address is None:
            return Check(name, True, "this machine has no address that other machines could reach")
        parts = urlsplit(endpoint.url)
        base = f"{parts.scheme}://{own_address}:{parts.port or (443 if parts.scheme == 'https' else 80)}/v1"
    try:
        async with open_client(base, None, connect=_SECONDS, read=_SECONDS) as client:
            await get(client, f"{base}/models", None)
    except EndpointRefused as error:
        if error.status in (401, 403):
            return Check(name, True, "needed")
        return Check(name, None, f"not known: without a key it answers {error.status}")
    except ModelServerError:
        reached = "this machine only" if endpoint.local else "here only with a key"
        return Check(name, True, f"reachable from {reached}")
    where = urlsplit(base).netloc
    fix = "start it with --api-key, or let it listen on 127.0.0.1 only"
    sent = "" if api_key is None else " although a key is sent"
    return Check(name, False, f"none is needed at {where}{sent}: anyone who can reach it can use it", fix)


def _met(engine: EngineKind, version: str, block_size: int | None, gpu: Gpu) -> list[KnownIssue]:
    """Return the traps that apply because of the version or the block size, whatever the other options are."""
    plain = Setup(engine, gpu.vendor, gpu.architecture, Precision.MXFP8, NATIVE_CONTEXT)
    known = replace(plain, version=version, block_size=block_size or plain.block_size)
    anyway = met(plain, Severity.REFUSE)
    return [trap for trap in met(known, Severity.REFUSE) if trap not in anyway]


def _gpus_here() -> list[Gpu]:
    try:
        return [detect(os.environ).fleet.gpu]
    except DetectionError:
        return []


def _own_address() -> str | None:
    """Return this machine's address towards other machines, or None; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)
        except OSError:
            return None
        address = str(probe.getsockname()[0])
    return None if address.startswith("127.") else address


_NAME = "scraped"


async def scraped_check(endpoint: Endpoint, page: str, prometheus: str | None) -> Check:
    """Check whether the metrics at `page` are a target of `prometheus`, and whether the last read succeeded."""
    if prometheus is None:
        return Check(
            _NAME, None, "unknown whether anything reads the metrics: name a Prometheus with --prometheus"
        )
    address = prometheus.rstrip("/")
    address = address if "://" in address else f"http://{address}"
    try:
        async with open_client(address, None, connect=_SECONDS, read=2 * _SECONDS) as client:
            answer = json.loads(await get(client, f"{address}/api/v1/targets?state=active", None))
        targets = answer["data"]["activeTargets"]
        ours = [target for target in targets if _is_of(str(target["scrapeUrl"]), page)]
    except ModelServerError:
        return Check(_NAME, None, f"no Prometheus answers at {prometheus}")
    except (ValueError, KeyError, TypeError):
        return Check(_NAME, None, f"the server at {prometheus} is not a Prometheus")
    if not ours:
        fix = "add the output of `m3agent serve scrape` to its configuration"
        return Check(_NAME, False, f"{page} is not among the {len(targets)} targets of {prometheus}", fix)
    return _health(ours[0], page)


def _health(target: dict[str, Any], page: str) -> Check:
    if target.get("health") == "up":
        return Check(_NAME, True, f"last read at {str(target.get('lastScrape', ''))[:19]}")
    why = str(target.get("lastError") or "not read yet")
    return Check(
        _NAME,
        False,
        f"{page} is a target with health {target.get('health')}: {why}",
        "see its list of targets",
    )


def _is_of(url: str, page: str) -> bool:
    """Return whether two addresses are the same page; all names of this machine count as equal."""
    one, other = urlsplit(url), urlsplit(page)
    same_host = one.hostname == other.hostname or (is_local(url) and is_local(page))
    return same_host and one.port == other.port and one.path == other.path

"""What a server has to have before work depends on it: window and cache for the work, headroom, metrics, a key."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import replace
from urllib.parse import urlsplit

from packaging.version import InvalidVersion, Version

from m3agent.serving.check.check import Check
from m3agent.serving.check.engine_state import EngineState, engine_state, metrics_url
from m3agent.serving.check.examined import examined_checks
from m3agent.serving.check.scraped import scraped_check
from m3agent.serving.endpoint import Endpoint, get
from m3agent.serving.errors import EndpointRefused, ModelServerError
from m3agent.serving.examine import Findings, examine
from m3agent.serving.http import open_client
from m3agent.serving.plan.detect import DetectionError, detect
from m3agent.serving.plan.gpus import GPUS, Gpu
from m3agent.serving.plan.planner import Wish
from m3agent.serving.plan.shape import NATIVE_CONTEXT, Precision
from m3agent.serving.plan.traps import Engine, Setup, Severity, Trap, met

FULL = 0.9
"""Share of the cache in use from which there is no headroom: the next long sequence throws another out."""

LOW_HIT_RATE = 0.5
"""Below this agents' turns pay for prompts again: within a session 0.9 and more is usual, each session's first turn
apart (docs/benchmarks.md)."""

_TELLING = 1_000_000  # tokens asked for, below which the rate says more of first turns than of the work
_SECONDS = 5.0
_FP8_GAIN = "about 1.5 times as many tokens"
_FP8_OPTIONS = {"vllm": "--kv-cache-dtype fp8", "sglang": "--kv-cache-dtype fp8_e4m3"}
_ELSEWHERE = ("192.0.2.1", 9)  # an address of documentation (RFC 5737): the route to it tells our own address


async def checklist(
    endpoint: Endpoint,
    *,
    api_key: str | None,
    workload: Wish | None,
    prometheus: str | None = None,
    findings: Findings | None = None,
) -> list[Check]:
    """Look at a running server; never raises for what it does or does not do.

    `workload`: the window that the work needs, how many sequences at a time and of which length; None: not compared.
    `prometheus`: the address of one, which is asked whether it reads the server's metrics. `findings`: what an
    examination found, made here if there was none.
    """
    state, open_to = await asyncio.gather(
        engine_state(endpoint, api_key=api_key), asyncio.to_thread(_own_address)
    )
    found = findings or await examine(endpoint, api_key=api_key)
    return [
        await version_check(endpoint, state),
        workload_check(endpoint, state, workload),
        kv_dtype_check(endpoint, state, workload),
        headroom_check(state),
        chunked_check(endpoint, state),
        *examined_checks(endpoint, found),
        hit_rate_check(state),
        _metrics_check(endpoint, state),
        await scraped_check(endpoint, metrics_url(endpoint), prometheus),
        await _key_check(endpoint, api_key, open_to),
    ]


async def version_check(endpoint: Endpoint, state: EngineState) -> Check:
    """The engine's version and block size against the table of traps, on this machine's GPUs if the server is here,
    else on all GPUs that there are."""
    name, version = "version", endpoint.version
    if endpoint.flavour not in tuple(Engine) or version is None:
        return Check(name, None, "not known")
    try:
        Version(version)
    except InvalidVersion:
        return Check(name, None, f"{version} cannot be compared with versions of {endpoint.flavour}")
    here = await asyncio.to_thread(_gpus_here) if endpoint.local else []
    gpus = here or list(GPUS.values())
    engine = Engine(endpoint.flavour)
    hits = [_met(engine, version, state.block_size, gpu) for gpu in gpus]
    everywhere = [trap for trap in hits[0] if all(trap in others for others in hits)]
    somewhere = {trap.name: trap for others in hits for trap in others if trap not in everywhere}
    if everywhere:
        trap = everywhere[0]
        return Check(name, False, f"{engine} {version}: {trap.effect} ({trap.source})", trap.remedy)
    if somewhere:
        trap = next(iter(somewhere.values()))
        spared = sorted(
            {gpu.architecture for gpu, others in zip(gpus, hits, strict=True) if trap not in others}
        )
        detail = f"{engine} {version}, except on {', '.join(spared)}: {trap.effect} ({trap.source})"
        return Check(name, None, detail, trap.remedy)
    return Check(name, True, f"{engine} {version}: no trap is known")


def workload_check(endpoint: Endpoint, state: EngineState, workload: Wish | None) -> Check:
    """Whether window and cache hold the work."""
    name, length = "workload", endpoint.max_model_len
    held = f"the cache holds {sum(state.kv_tokens):,} tokens" if state.kv_tokens else "cache unknown"
    if workload is None:
        return Check(name, None, f"{held}; say --context and --concurrency to have them compared")
    plan = f"m3agent plan --context {workload.context} --concurrency {workload.concurrency} says what does"
    if length is not None and length < workload.context:
        detail = f"the window has {length:,} tokens, the work needs {workload.context:,}"
        return Check(name, False, detail, f"start it with a window of {workload.context}; {plan}")
    if not state.kv_tokens:
        return Check(name, None, "how much the cache holds is not known")
    if min(state.kv_tokens) < workload.context:
        detail = f"the cache of a rank holds {min(state.kv_tokens):,} tokens, one sequence may have {workload.context:,}"
        return Check(name, False, detail, plan)
    # Whole sequences on each rank: none is spread over two.
    room = sum(tokens // workload.sequence for tokens in state.kv_tokens)
    detail = f"{held}: {room} sequences of {workload.sequence:,} at a time"
    if room < workload.concurrency:
        return Check(name, False, f"{detail}, not {workload.concurrency}", plan)
    return Check(name, True, detail)


def kv_dtype_check(endpoint: Endpoint, state: EngineState, workload: Wish | None) -> Check:
    """Whether keys and values are kept in 8 bits; 16 are well where the work fits."""
    name, dtype = "8-bit cache", state.kv_dtype
    if dtype is None:
        return Check(name, None, "not known")
    if dtype.startswith("fp8"):
        return Check(name, True, dtype)
    fits = workload_check(endpoint, state, workload).ok
    option = _FP8_OPTIONS.get(endpoint.flavour, "")
    if fits is False:
        return Check(name, False, f"no ({dtype}): 8 bits would hold {_FP8_GAIN}", option)
    return Check(
        name, None, f"no ({dtype}){', and the work fits' if fits else f': 8 bits would hold {_FP8_GAIN}'}"
    )


def headroom_check(state: EngineState) -> Check:
    """Whether the cache has room now, and always had."""
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
    """Whether long prompts are read in pieces, so that others' answers go on meanwhile."""
    name = "chunked prefill"
    if state.chunked_prefill is None:
        usual = "; vLLM does unless told not to" if endpoint.flavour == "vllm" else ""
        return Check(name, None, f"the server does not say{usual}")
    if state.chunked_prefill:
        return Check(name, True, "on")
    fix = {"vllm": "--enable-chunked-prefill", "sglang": "--chunked-prefill-size 8192"}.get(
        endpoint.flavour, ""
    )
    return Check(name, False, "off: one long prompt holds up everybody's answers", fix)


def hit_rate_check(state: EngineState) -> Check:
    """How much of the prompts the cache has had since the server started."""
    name = "hit rate"
    if state.prefix_caching is False:
        return Check(name, False, "prefix caching is off", "start it with prefix caching")
    if state.hit_rate is None:
        return Check(name, None, "not known, or nothing was asked so far")
    detail = f"{state.hit_rate:.0%} of prompts' tokens" + (f", of {state.asked:,.0f}" if state.asked else "")
    if state.asked is None or state.asked < _TELLING:
        return Check(name, None, f"{detail}: too few to tell")
    if state.hit_rate < LOW_HIT_RATE:
        fix = "look whether the cache is full, and whether a session's turns go to one rank"
        return Check(name, False, f"{detail}: agents' turns should find more", fix)
    return Check(name, True, detail)


def _metrics_check(endpoint: Endpoint, state: EngineState) -> Check:
    if state.metrics:
        return Check("metrics", True, metrics_url(endpoint))
    option = {"sglang": "--enable-metrics", "vllm": "leave --disable-log-stats out"}.get(endpoint.flavour, "")
    return Check("metrics", False, f"there are none at {metrics_url(endpoint)}", option)


async def _key_check(endpoint: Endpoint, api_key: str | None, own_address: str | None) -> Check:
    """Whether whoever reaches the server from another machine needs a key."""
    name, base = "key", endpoint.url
    if endpoint.local:
        if own_address is None:
            return Check(name, True, "this machine has no address that others could reach")
        parts = urlsplit(endpoint.url)
        base = f"{parts.scheme}://{own_address}:{parts.port or (443 if parts.scheme == 'https' else 80)}/v1"
    try:
        async with open_client(base, None, connect=_SECONDS, read=_SECONDS) as client:
            await get(client, f"{base}/models", None)
    except EndpointRefused as error:
        if error.status in (401, 403):
            return Check(name, True, "needed")
        return Check(name, None, f"not known: it answers {error.status} without one")
    except ModelServerError:
        reached = "this machine only" if endpoint.local else "here with a key only"
        return Check(name, True, f"reached from {reached}")
    where = urlsplit(base).netloc
    fix = "start it with --api-key, or let it listen on 127.0.0.1 only"
    sent = "" if api_key is None else " although one is sent"
    return Check(name, False, f"none is needed at {where}{sent}: anybody who reaches it may use it", fix)


def _met(engine: Engine, version: str, block_size: int | None, gpu: Gpu) -> list[Trap]:
    """The traps that hold because of the version or the block size, whatever the rest of the command is."""
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
    """This machine's address towards others; nothing is sent for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)
        except OSError:
            return None
        address = str(probe.getsockname()[0])
    return None if address.startswith("127.") else address

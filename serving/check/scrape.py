"""The configuration with which a Prometheus reads a server's metrics, and the alerts that agent work wants.

https://prometheus.io/docs/prometheus/latest/configuration/configuration/#scrape_config and …/alerting_rules/.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import urlsplit

from m3agent.serving.check.checklist import FULL, LOW_HIT_RATE
from m3agent.serving.check.engine_state import metrics_url
from m3agent.serving.endpoint import Endpoint, Flavour

JOB = "m3agent"

# For each engine: share of the cache in use; sequences thrown out so far; tokens that the cache had, and asked for.
_SERIES: dict[Flavour, tuple[str, str, str, str]] = {
    "vllm": (
        "vllm:kv_cache_usage_perc",
        "vllm:num_preemptions_total",
        "vllm:prefix_cache_hits_total",
        "vllm:prefix_cache_queries_total",
    ),
    "sglang": (
        "sglang:token_usage",
        "sglang:num_retracted_requests_total",
        "sglang:cached_tokens_total",
        "sglang:prompt_tokens_total",
    ),
}


def scrape_config(
    endpoint: Endpoint, *, credentials_file: str | None = None, labels: Mapping[str, str] | None = None
) -> str:
    """YAML with one job of `scrape_configs`; `credentials_file` holds the key as Prometheus' machine has it, for servers
    whose metrics need one (vLLM's and SGLang's do not)."""
    page = urlsplit(metrics_url(endpoint))
    shown = {"engine": endpoint.flavour, "model": endpoint.model, **(labels or {})}
    lines = ["scrape_configs:", f"  - job_name: {JOB}"]
    if page.scheme != "http":
        lines.append(f"    scheme: {page.scheme}")
    lines += [f"    metrics_path: {_text(page.path)}", "    scrape_interval: 15s"]
    if credentials_file is not None:
        lines += [
            "    authorization:",
            "      type: Bearer",
            f"      credentials_file: {_text(credentials_file)}",
        ]
    lines += [
        "    static_configs:",
        f"      - targets: [{_text(page.netloc.rpartition('@')[2])}]",
        "        labels:",
    ]
    lines += [f"          {name}: {_text(value)}" for name, value in shown.items()]
    return "\n".join(lines) + "\n"


def alert_rules(endpoint: Endpoint) -> str:
    """YAML with a group of rules: server down, cache full, sequences thrown out, prefixes not found again.

    For engines whose series are not known the first rule only.
    """
    rules = [_rule("M3ServerDown", f'up{{job="{JOB}"}} == 0', "1m", "The model server does not answer.")]
    if (series := _SERIES.get(endpoint.flavour)) is not None:
        usage, thrown, hits, asked = (f'{name}{{job="{JOB}"}}' for name in series)
        rate, flow = (f"sum by (instance) (rate({name}[15m]))" for name in (hits, asked))
        rules += [
            _rule(
                "M3CacheFull",
                f"{usage} > {FULL}",
                "5m",
                "The cache is nearly full: sequences will be thrown out.",
            ),
            _rule(
                "M3Preemptions",
                f"increase({thrown}[10m]) > 0",
                "0m",
                "Sequences were thrown out for want of cache; each pays for its prompt again.",
            ),
            _rule(
                "M3PrefixesLost",
                # Idle servers have no rate, and a few first turns are no fall.
                f"{rate} / {flow} < {LOW_HIT_RATE} and {flow} > 1000",
                "15m",
                "Turns do not find their prefixes in the cache: a rewritten history, a full cache, or a wrong rank.",
            ),
        ]
    return "".join(["groups:\n", f"  - name: {JOB}\n", "    rules:\n", *rules])


def _rule(name: str, expression: str, holds: str, summary: str) -> str:
    return (
        f"      - alert: {name}\n"
        f"        expr: {_text(expression)}\n"
        f"        for: {holds}\n"
        f"        annotations:\n"
        f"          summary: {_text(summary)}\n"
    )


def _text(value: str) -> str:
    """A string of JSON is one of YAML, whatever is in it."""
    return json.dumps(value, ensure_ascii=False)

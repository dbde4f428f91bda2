"""Print Prometheus' configuration for a server's metrics, and alerts for agent work.

https://prometheus.io/docs/prometheus/latest/configuration/configuration/#scrape_config and …/alerting_rules/.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import urlsplit

from m3agent.serving.check.checklist import FULL, LOW_HIT_RATE
from m3agent.serving.check.engine_state import metrics_url
from m3agent.serving.client.endpoint import Endpoint
from m3agent.serving.plan.engines import ENGINES

JOB = "m3agent"


def scrape_config(
    endpoint: Endpoint, *, credentials_file: str | None = None, labels: Mapping[str, str] | None = None
) -> str:
    """Return YAML with one job of `scrape_configs`.

    Args:
        endpoint: The server.
        credentials_file: File with the key on Prometheus' machine, for servers that require one for metrics
            (vLLM and SGLang do not).
        labels: Further labels of the target.
    """
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
    """Return YAML with a group of rules: server down, cache full, sequences evicted, prefixes lost.

    For engines with unknown series the group has only the first rule.
    """
    rules = [_rule("M3ServerDown", f'up{{job="{JOB}"}} == 0', "1m", "The model server does not answer.")]
    if endpoint.flavour in ENGINES and (series := ENGINES[endpoint.flavour].metrics_series):
        usage, thrown, hits, asked = (f'{name}{{job="{JOB}"}}' for name in series)
        rate, flow = (f"sum by (instance) (rate({name}[15m]))" for name in (hits, asked))
        rules += [
            _rule(
                "M3CacheFull",
                f"{usage} > {FULL}",
                "5m",
                "The KV cache is nearly full: sequences will be preempted.",
            ),
            _rule(
                "M3Preemptions",
                f"increase({thrown}[10m]) > 0",
                "0m",
                "Sequences were preempted because the KV cache was full; each prompt is computed again.",
            ),
            _rule(
                "M3PrefixesLost",
                # An idle server has no rate, and a few first turns are not a problem.
                f"{rate} / {flow} < {LOW_HIT_RATE} and {flow} > 1000",
                "15m",
                "Turns miss the prefix cache: a rewritten history, a full cache, or a wrong rank.",
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
    """Quote a string for YAML; every JSON string is also a YAML string."""
    return json.dumps(value, ensure_ascii=False)

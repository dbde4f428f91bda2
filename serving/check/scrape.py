"""Print Prometheus' configuration for a server's metrics, alerts for agent work, and a dashboard for Grafana.

https://prometheus.io/docs/prometheus/latest/configuration/configuration/#scrape_config and …/alerting_rules/;
https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from m3agent.serving.check.checklist import FULL, LOW_HIT_RATE
from m3agent.serving.check.engine_state import metrics_url
from m3agent.serving.client.endpoint import Endpoint
from m3agent.serving.facts.table import Row, rows
from m3agent.serving.plan.engines import ENGINES
from m3agent.util.yaml_text import yaml_text

JOB = "m3agent"


@dataclass(frozen=True, kw_only=True)
class PanelRow(Row):
    """A graph of the dashboard."""

    name: str
    engine: Literal["all", "vllm", "sglang", "trtllm", "dynamo"]
    unit: str
    queries: tuple[str, ...]
    said: str
    """What it shows, and what to do about it."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its engine and its name: two engines may have a panel of one name."""
        return (f"{self.engine}: {self.name}",)


PANELS = rows(PanelRow, "panels")
_WIDTH, _HEIGHT = 8, 7
_COLUMNS = 3


def scrape_config(endpoint: Endpoint, *, credentials_file: str | None = None) -> str:
    """Return YAML with one job of `scrape_configs`.

    `credentials_file` is on Prometheus' machine, for servers that require a key for metrics (vLLM and SGLang do not).
    """
    page = urlsplit(metrics_url(endpoint))
    shown = {"engine": endpoint.flavour, "model": endpoint.model}
    job: dict[str, Any] = {"job_name": JOB, "metrics_path": page.path, "scrape_interval": "15s"}
    if page.scheme != "http":
        job["scheme"] = page.scheme
    if credentials_file is not None:
        job["authorization"] = {"type": "Bearer", "credentials_file": credentials_file}
    job["static_configs"] = [{"targets": [page.netloc.rpartition("@")[2]], "labels": shown}]
    return yaml_text({"scrape_configs": [job]})


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
    return yaml_text({"groups": [{"name": JOB, "rules": rules}]})


def _rule(name: str, expression: str, holds: str, summary: str) -> dict[str, object]:
    return {"alert": name, "expr": expression, "for": holds, "annotations": {"summary": summary}}


def dashboard(endpoint: Endpoint) -> str:
    """Return a dashboard for Grafana as JSON; it asks for the Prometheus when it is imported.

    For engines with unknown series it shows only whether the server answers.
    """
    shown = [panel for panel in PANELS if panel.engine in ("all", endpoint.flavour)]
    source = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    board = {
        "title": "MiniMax M3",
        "uid": "m3agent",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [source]},
        "panels": [_panel(number, panel) for number, panel in enumerate(shown)],
    }
    return json.dumps(board, indent=2) + "\n"


def _panel(number: int, panel: PanelRow) -> dict[str, object]:
    row, column = divmod(number, _COLUMNS)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.name,
        "description": panel.said,
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [{"refId": "ABC"[at], "expr": query} for at, query in enumerate(panel.queries)],
    }

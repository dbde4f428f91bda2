"""The configuration printed for Prometheus is correct YAML."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from m3agent.serving.check.engine_state import parse_metrics
from m3agent.serving.check.scrape import JOB, PANELS, alert_rules, dashboard, scrape_config
from m3agent.serving.client.endpoint import Endpoint, Flavour


def endpoint(url: str = "http://gpu:8000/v1", flavour: Flavour = "vllm", model: str = "m3") -> Endpoint:
    return Endpoint(url, model, flavour, "0.24.0", 131_072, "reasoning", False)


def job(text: str) -> dict[str, Any]:
    (found,) = yaml.safe_load(text)["scrape_configs"]
    assert isinstance(found, dict)
    return found


def test_a_job() -> None:
    assert job(scrape_config(endpoint())) == {
        "job_name": "m3agent",
        "metrics_path": "/metrics",
        "scrape_interval": "15s",
        "static_configs": [{"targets": ["gpu:8000"], "labels": {"engine": "vllm", "model": "m3"}}],
    }


def test_a_key_stays_in_its_file_and_others_see_no_password() -> None:
    found = job(scrape_config(endpoint("https://me:secret@gpu/v1"), credentials_file="/etc/key: #1"))
    assert found["scheme"] == "https"
    assert found["authorization"] == {"type": "Bearer", "credentials_file": "/etc/key: #1"}
    assert found["static_configs"][0]["targets"] == ["gpu"]
    assert "secret" not in str(found)


@pytest.mark.parametrize("model", ['a"b', "no: yes", "日本 🙂", "- x\n- y", "{}", "\\"])
def test_any_name_of_a_model(model: str) -> None:
    assert job(scrape_config(endpoint(model=model)))["static_configs"][0]["labels"]["model"] == model


def test_the_page_of_trtllm_is_another() -> None:
    assert job(scrape_config(endpoint(flavour="trtllm")))["metrics_path"] == "/prometheus/metrics"


@pytest.mark.parametrize(("flavour", "count"), [("vllm", 4), ("sglang", 4), ("trtllm", 1)])
def test_alerts(flavour: Flavour, count: int) -> None:
    (group,) = yaml.safe_load(alert_rules(endpoint(flavour=flavour)))["groups"]
    rules = {rule["alert"]: rule for rule in group["rules"]}
    assert len(rules) == count
    assert rules["M3ServerDown"]["expr"] == 'up{job="m3agent"} == 0'
    for rule in rules.values():
        assert rule.keys() == {"alert", "expr", "for", "annotations"}
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert count == 1 or rule["alert"] == "M3ServerDown" or f"{flavour}:" in rule["expr"]


@pytest.mark.parametrize(("flavour", "count"), [("vllm", 10), ("sglang", 4), ("trtllm", 1)])
def test_a_dashboard_shows_the_metrics_of_its_engine(flavour: Flavour, count: int) -> None:
    board = json.loads(dashboard(endpoint(flavour=flavour)))
    panels = board["panels"]
    assert len(panels) == count
    assert len({panel["id"] for panel in panels}) == count
    places = [panel["gridPos"] for panel in panels]
    assert len({(place["x"], place["y"]) for place in places}) == count
    assert all(place["x"] + place["w"] <= 24 for place in places)
    (source,) = board["templating"]["list"]
    assert {panel["datasource"]["uid"] for panel in panels} == {f"${{{source['name']}}}"}
    assert all(panel["description"] and panel["targets"] for panel in panels)


def test_the_dashboard_asks_for_metrics_that_the_engine_has() -> None:
    page = (Path(__file__).parent / "vllm-0.24-metrics.txt").read_text()
    known = {sample.name for sample in parse_metrics(page)}
    for panel in PANELS[1:]:
        for query in panel.queries:
            names = re.findall(rf"({panel.engine}:\w+)(\{{[^}}]*\}})", query)
            assert names, query
            assert {selector for _, selector in names} == {f'{{job="{JOB}"}}'}
            assert panel.engine != "vllm" or {name for name, _ in names} <= known

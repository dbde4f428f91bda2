"""The values for llm-d's router: its chart knows them, and what it makes of them fits the objects of the servers.

`schemas/llm-d-router.json` has the names that the chart and the router read. The chart itself is rendered where `helm` and a
folder with the chart are (a copy of the router's repository: `llm-d/llm-d-router`, at the version of the file):

    LLM_D_CHARTS=llm-d-router/config/charts pytest tests/serving/launch/test_chart.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from m3agent.serving.launch.kubernetes import PORT, Cluster, kubernetes_files, steps
from tests.serving.launch.test_kubernetes import CLUSTER, JOB, objects, valid

KNOWN = json.loads((Path(__file__).parent / "schemas" / "llm-d-router.json").read_text())
CHARTS = Path(os.environ.get("LLM_D_CHARTS", "/nonexistent"))
LLM_D = replace(CLUSTER, llm_d=True, replicas=2)


def leaves(tree: dict[str, Any], *above: str) -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, *above, key)
        else:
            yield ".".join((*above, key))


def unknown(tree: dict[str, Any], known: list[str]) -> list[str]:
    return [leaf for leaf in leaves(tree) if not any(f"{leaf}.".startswith(f"{name}.") for name in known)]


def test_the_router_knows_every_name_of_its_values() -> None:
    values = yaml.safe_load(kubernetes_files(JOB, LLM_D)["values.yaml"])
    assert list(values) == ["router"]
    assert unknown(values["router"], KNOWN["values"]) == []
    assert unknown({"epp": {"replica": 1}}, KNOWN["values"]) == ["epp.replica"]
    (picker,) = values["router"]["epp"]["pluginsCustomConfig"].values()
    for plugin in yaml.safe_load(picker)["plugins"]:
        assert unknown(plugin.get("parameters", {}), KNOWN["plugins"][plugin["type"]]) == []
    told = " ".join(steps(kubernetes_files(JOB, LLM_D), Path("m3"), None))
    assert f"llm-d-router-standalone --version {KNOWN['version']} " in told


@pytest.mark.integration
@pytest.mark.skipif(not CHARTS.is_dir(), reason="LLM_D_CHARTS names no folder with llm-d's charts")
@pytest.mark.skipif(not shutil.which("helm"), reason="no helm on the PATH")
@pytest.mark.parametrize("name", ["m3-blue", "m3-green"])
@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "amd.com/gpu"])
def test_the_chart_makes_a_router_that_fits_the_servers(tmp_path: Path, name: str, resource: str) -> None:
    cluster = replace(LLM_D, name=name, resource=resource)
    router, ours = rendered(tmp_path, cluster), objects(kubernetes_files(JOB, cluster))
    labels = router["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for rule in ours["NetworkPolicy"]["spec"]["ingress"]:
        assert rule["from"][0]["podSelector"]["matchLabels"].items() <= labels.items()
    pod = router["Deployment"]["spec"]["template"]["spec"]
    proxy, picker = pod["containers"]
    options = " ".join(picker["args"])
    servers = ours["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert f"--endpoint-selector app={servers['app']} --endpoint-target-ports {PORT} " in options
    assert "InferencePool" not in router
    service = router["Service"]
    (http,) = [port for port in service["spec"]["ports"] if port["name"] == "http"]
    assert (service["metadata"]["name"], http["port"]) == (f"{name}-epp", 80)
    assert http["targetPort"] in [port["containerPort"] for port in proxy["ports"]]
    assert service["spec"]["selector"].items() <= labels.items()
    maps = {volume["configMap"]["name"] for volume in pod["volumes"]}
    assert maps == {f"{name}-epp", f"{name}-envoy"} == router["ConfigMap"].keys()


def rendered(folder: Path, cluster: Cluster) -> dict[str, dict[str, Any]]:
    """The chart's objects by kind, each compared with its schema; its ConfigMaps by name."""
    charts = shutil.copytree(CHARTS, folder / "charts")
    (folder / "values.yaml").write_text(kubernetes_files(JOB, cluster)["values.yaml"])
    chart, values = str(charts / "llm-d-router-standalone"), str(folder / "values.yaml")
    environment = {**os.environ, "HOME": str(folder)}

    def helm(*words: str) -> str:
        return subprocess.run(
            ["helm", *words], env=environment, check=True, capture_output=True, text=True
        ).stdout

    helm("dependency", "update", chart)
    helm("lint", chart, "-f", values)
    made: dict[str, dict[str, Any]] = {"ConfigMap": {}}
    for content in filter(None, yaml.safe_load_all(helm("template", cluster.name, chart, "-f", values))):
        kind = valid(content)["kind"]
        if kind == "ConfigMap":
            made[kind][content["metadata"]["name"]] = content
        else:
            made[kind] = content
    return made

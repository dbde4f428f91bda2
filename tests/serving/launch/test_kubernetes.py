"""Files for Kubernetes: every object fits the schemas of its API, and says what the server needs.

`schemas/kubernetes.json` has the schemas of the kinds that are written; its `source` says where they come from. The pods of a
LeaderWorkerSet have Kubernetes' own schema.
"""

from __future__ import annotations

import json
import math
import pkgutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml  # type: ignore[import-untyped]

from m3agent.serving.check import scrape
from m3agent.serving.errors import TableError
from m3agent.serving.launch.job import EngineJob
from m3agent.serving.launch.kubernetes import NAME, PORT, Cluster, kubernetes_files, steps
from m3agent.serving.launch.prepare import LaunchRequest, prepare
from m3agent.serving.plan.gpus import Vendor, parse_gpus
from m3agent.serving.plan.kinds import EngineKind
from m3agent.serving.plan.listing import listing, problems
from m3agent.serving.plan.memory_model import GIB
from m3agent.serving.plan.plan import PlanRequest
from m3agent.serving.plan.planner import plans
from m3agent.serving.plan.recipe import recipe
from m3agent.util.errors import UsageError

SCHEMAS = json.loads((Path(__file__).parent / "schemas" / "kubernetes.json").read_text())
ARGV = ("vllm", "serve", "org/m3", "--block-size", "128", "--port", "9", "--host", "127.0.0.1")
JOB = EngineJob(
    "vllm",
    ARGV,
    {"SWITCH": "1", "VLLM_API_KEY": "$M3AGENT_API_KEY"},
    {},
    "0.0.0.0",
    9,
    8,
    image="image:1",
    model="org/m3",
)
CLUSTER = Cluster("nvidia.com/gpu", "nvidia.com/gpu.product", ("NVIDIA-H200",), weights=400 * GIB)


def objects(files: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The objects by kind, each compared with its schema."""
    found: dict[str, dict[str, Any]] = {}
    for name, text in files.items():
        if name == "values.yaml":
            continue
        for one in yaml.safe_load_all(text):
            assert one["kind"] not in found
            found[one["kind"]] = valid(one)
    return found


def valid(content: dict[str, Any]) -> dict[str, Any]:
    schema = {**SCHEMAS["kinds"][content["kind"]], "definitions": SCHEMAS["definitions"]}
    jsonschema.Draft202012Validator(schema).validate(content)
    return content


def planned(gpus: str, wish: PlanRequest, host: str = "0.0.0.0") -> EngineJob:
    plan = plans(parse_gpus(gpus), wish)[0]
    wanted = LaunchRequest(host=host, in_image=True)
    job = prepare(recipe(plan.recipe), wanted, plan).job
    return replace(job, image=job.image or "image:1")


@pytest.mark.parametrize("gpus", ["8xH200", "2x8xH100", "4xB300", "8xMI355X", "4x1xGB10", "8xA100"])
@pytest.mark.parametrize("host_cache", [0, 400_000_000_000])
def test_the_objects_of_plans_fit_their_schemas(gpus: str, host_cache: int) -> None:
    fleet = parse_gpus(gpus)
    resource = "amd.com/gpu" if fleet.gpu.vendor is Vendor.AMD else "nvidia.com/gpu"
    job = planned(gpus, PlanRequest(host_cache=host_cache))
    found = objects(kubernetes_files(job, Cluster(resource, "label", fleet.gpu.products, 400 * GIB)))
    kind = "LeaderWorkerSet" if job.nodes > 1 else "Deployment"
    rest = ("PersistentVolumeClaim", "Job", "Service", "PodDisruptionBudget", "NetworkPolicy", "PodMonitor")
    assert set(found) == {*rest, kind}
    spec = found[kind]["spec"]
    pods = [spec["template"]] if job.nodes == 1 else list(pods_of(spec).values())
    for pod in pods:
        (container,) = pod["spec"]["containers"]
        count = job.gpus // job.nodes
        (shared,) = [one["emptyDir"]["sizeLimit"] for one in pod["spec"]["volumes"] if "emptyDir" in one]
        size = 16 + math.ceil(host_cache / GIB)
        assert shared == f"{size}Gi"
        each = {resource: str(count)}
        more = {"cpu": str(4 * count), "memory": f"{8 * count + size}Gi"}
        assert container["resources"] == {"limits": each, "requests": each | more}
        assert ("affinity" in pod["spec"]) is bool(fleet.gpu.products)
        words = [
            *container["command"],
            *(word.replace("$(LWS_WORKER_INDEX)", "1") for word in container["args"]),
        ]
        assert problems(words, listing("vllm")) == []


def pods_of(spec: dict[str, Any]) -> dict[str, Any]:
    return {name: spec["leaderWorkerTemplate"][f"{name}Template"] for name in ("leader", "worker")}


def test_a_table_that_is_not_toml_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pkgutil, "get_data", lambda *_: b"heads = ")
    with pytest.raises(TableError, match=r"^serving/launch/kubernetes.toml: it is not TOML \("):
        kubernetes_files(JOB, CLUSTER)


def test_a_schema_refuses_what_the_api_does_not_have() -> None:
    text = kubernetes_files(JOB, CLUSTER)["servers.yaml"]
    for wrong in (
        text.replace("failureThreshold", "failures"),
        text.replace("maxSurge: 0", "maxSurge: {}"),
        text.replace("kind: Deployment", "kind: Service"),
    ):
        with pytest.raises(jsonschema.ValidationError):
            objects({"servers.yaml": wrong})


def test_a_server_never_downloads_and_has_the_key_from_a_secret() -> None:
    found = objects(kubernetes_files(JOB, CLUSTER))
    (server,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    env = {one["name"]: one.get("value", one.get("valueFrom")) for one in server["env"]}
    assert env["VLLM_API_KEY"] == {"secretKeyRef": {"name": CLUSTER.secret, "key": "key"}}
    assert (env["HF_HUB_OFFLINE"], env["SWITCH"]) == ("1", "1")
    assert server["args"][-6:-2] == ["--port", str(PORT), "--host", "0.0.0.0"]
    (download,) = found["Job"]["spec"]["template"]["spec"]["containers"]
    assert download["command"][-1] == "hf download org/m3"
    volume = {"name": "weights", "mountPath": env["HF_HOME"]}
    assert volume in server["volumeMounts"]
    assert volume in download["volumeMounts"]
    assert found["PersistentVolumeClaim"]["spec"]["resources"]["requests"]["storage"] == "480Gi"


def test_a_slow_start_is_awaited_and_a_hanging_server_is_started_again() -> None:
    files = kubernetes_files(JOB, CLUSTER)
    found = objects(files)
    (server,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    seconds = {
        kind: server[f"{kind}Probe"]["periodSeconds"] * server[f"{kind}Probe"]["failureThreshold"]
        for kind in ("startup", "readiness", "liveness")
    }
    assert seconds == {"startup": 3600, "readiness": 15, "liveness": 180}
    assert found["Deployment"]["spec"]["progressDeadlineSeconds"] > seconds["startup"]
    assert "60 minutes to start: enough if it reads the weights with 144 MB/s" in files["servers.yaml"]


def test_only_the_first_of_several_machines_answers() -> None:
    job = replace(JOB, nodes=2, gpus=16, draft="org/draft")
    found = objects(kubernetes_files(job, CLUSTER))
    pods = pods_of(found["LeaderWorkerSet"]["spec"])
    labels = found["Service"]["spec"]["selector"]
    assert [labels.items() <= pod["metadata"]["labels"].items() for pod in pods.values()] == [True, False]
    leader, worker = (pod["spec"]["containers"][0] for pod in pods.values())
    assert "--headless" in worker["args"]
    assert "--headless" not in leader["args"]
    assert "startupProbe" in leader
    assert "startupProbe" not in worker
    assert "VLLM_HOST_IP" in [one["name"] for one in worker["env"]]
    assert found["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]["size"] == 2
    download = found["Job"]["spec"]["template"]["spec"]["containers"][0]["command"][-1]
    assert download == "hf download org/m3 && hf download org/draft"


def test_a_name_is_no_part_of_the_shells_program() -> None:
    found = objects(kubernetes_files(replace(JOB, model="org/m3; curl x | sh"), CLUSTER))
    download = found["Job"]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert download[-1] == "hf download 'org/m3; curl x | sh'"


def test_llm_d_reads_the_blocks_that_the_servers_report() -> None:
    job = planned("4xH200", PlanRequest(), "127.0.0.1")
    files = kubernetes_files(job, replace(CLUSTER, replicas=3, llm_d=True))
    deployment = objects(files)["Deployment"]
    (server,) = deployment["spec"]["template"]["spec"]["containers"]
    args = server["args"]
    events = json.loads(args[args.index("--kv-events-config") + 1])
    router = yaml.safe_load(files["values.yaml"])["router"]
    picker = yaml.safe_load(*router["epp"]["pluginsCustomConfig"].values())
    parameters = {one["type"]: one["parameters"] for one in picker["plugins"] if "parameters" in one}
    producer = parameters["precise-prefix-cache-producer"]
    discovery = producer["kvEventsConfig"]
    assert picker["apiVersion"] == "llm-d.ai/v1alpha1"
    assert events["endpoint"] == f"tcp://*:{discovery['podDiscoveryConfig']['socketPort']}"
    assert discovery["discoverPods"] is True
    assert events["topic"].startswith(discovery["topicFilter"])
    served = args[args.index("--served-model-name") + 1]
    assert events["topic"].endswith(f":{PORT}@{served}")
    assert parameters["token-producer"]["modelName"] == served
    assert parameters["token-producer"]["vllm"]["url"] == f"http://{NAME}:{PORT}"
    assert producer["tokenProcessorConfig"] == {"blockSizeTokens": int(args[args.index("--block-size") + 1])}
    names = {one["type"] for one in picker["plugins"]}
    assert {one["pluginRef"] for one in picker["schedulingProfiles"][0]["plugins"]} < names
    assert router["modelServers"]["matchLabels"].items() <= deployment["metadata"]["labels"].items()
    assert deployment["spec"]["replicas"] == 3
    assert "secretKeyRef" not in files["servers.yaml"]


def test_only_llm_ds_router_reaches_its_servers() -> None:
    found = objects(kubernetes_files(JOB, replace(CLUSTER, llm_d=True, name="m3-b")))
    served, events = found["NetworkPolicy"]["spec"]["ingress"]
    router = {"podSelector": {"matchLabels": {"llm-d-router-standalone": "m3-b-epp"}}}
    assert (served["from"][0], events) == (router, {"from": [router], "ports": [{"port": 5556}]})
    assert found["Service"]["spec"]["sessionAffinity"] == "None"


def test_all_objects_have_the_given_name() -> None:
    job = replace(JOB, draft="org/draft")
    for cluster in (CLUSTER, replace(CLUSTER, llm_d=True, replicas=2)):
        files = kubernetes_files(job, replace(cluster, name="m3-b"))
        assert {one["metadata"]["name"] for one in objects(files).values()} == {"m3-b", "m3-b-weights"}
        assert NAME not in "".join(files.values())


def test_the_steps_name_what_the_files_have() -> None:
    for cluster, nodes in ((CLUSTER, 1), (CLUSTER, 2), (replace(CLUSTER, llm_d=True), 1)):
        files = kubernetes_files(replace(JOB, nodes=nodes, gpus=8 * nodes), cluster)
        found = objects(files)
        told = steps(files, Path("a folder"), None)
        applied = [line for line in told if line.startswith("kubectl apply")]
        assert applied == [f"kubectl apply -f 'a folder'/{name}.yaml" for name in ("weights", "servers")]
        assert ("secretKeyRef" in files["servers.yaml"]) is any(
            f"generic {NAME}-key " in line for line in told
        )
        assert any(f"job/{found['Job']['metadata']['name']} " in line for line in told)
        kind = "leaderworkerset" if "LeaderWorkerSet" in found else "deployment"
        assert any(f"{kind}/{NAME} " in line for line in told)
        assert any("helm install" in line for line in told) is cluster.llm_d


def test_an_answer_in_progress_ends_before_its_pod() -> None:
    pod = objects(kubernetes_files(JOB, CLUSTER))["Deployment"]["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    args = server["args"]
    drain = int(args[args.index("--shutdown-timeout") + 1])
    before = int(server["lifecycle"]["preStop"]["exec"]["command"][1])
    assert before + drain < pod["terminationGracePeriodSeconds"]
    own = kubernetes_files(replace(JOB, argv=(*ARGV, "--shutdown-timeout", "7")), CLUSTER)
    args = objects(own)["Deployment"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args.count("--shutdown-timeout") == 1 and "7" in args


def test_the_job_runs_where_the_servers_do_and_reads_from_the_mirror() -> None:
    found = objects(kubernetes_files(JOB, replace(CLUSTER, mirror="http://mirror")))
    download = found["Job"]["spec"]["template"]["spec"]
    server = found["Deployment"]["spec"]["template"]["spec"]
    for field in ("tolerations", "affinity", "securityContext", "imagePullSecrets"):
        assert download[field] == server[field]
    assert {"name": "HF_ENDPOINT", "value": "http://mirror"} in download["containers"][0]["env"]


def test_a_folder_of_the_volume_is_awaited() -> None:
    found = objects(kubernetes_files(replace(JOB, model="/models/m3"), CLUSTER))
    (download,) = found["Job"]["spec"]["template"]["spec"]["containers"]
    assert download["command"][-1] == "until [ -e /models/m3.complete ]; do sleep 5; done"


@pytest.mark.parametrize(
    ("engine", "resource", "restricted"),
    [("vllm", "nvidia.com/gpu", True), ("sglang", "nvidia.com/gpu", False), ("vllm", "amd.com/gpu", False)],
)
def test_pods_are_restricted_where_the_image_has_a_user(engine: str, resource: str, restricted: bool) -> None:
    found = objects(kubernetes_files(replace(JOB, engine=engine), replace(CLUSTER, resource=resource)))
    for kind in ("Job", "Deployment"):
        pod = found[kind]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        context = pod.get("securityContext", {})
        assert context.get("runAsNonRoot", False) is restricted
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert (container["securityContext"]["capabilities"]["drop"] == ["ALL"]) is restricted


def test_pods_run_where_the_gpu_has_the_planned_name() -> None:
    pod = objects(kubernetes_files(JOB, CLUSTER))["Deployment"]["spec"]["template"]["spec"]
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"] == [
        {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-H200"]}
    ]
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    unknown = kubernetes_files(JOB, replace(CLUSTER, products=()))["servers.yaml"]
    assert "nodeAffinity:" not in unknown


def test_the_metrics_are_read_from_the_pod_that_answers_under_the_name_of_the_alerts() -> None:
    found = objects(kubernetes_files(replace(JOB, nodes=2, gpus=16), CLUSTER))
    monitor = found["PodMonitor"]["spec"]
    labels = monitor["selector"]["matchLabels"].items()
    pods = pods_of(found["LeaderWorkerSet"]["spec"])
    assert [labels <= pod["metadata"]["labels"].items() for pod in pods.values()] == [True, False]
    (page,) = monitor["podMetricsEndpoints"]
    assert page["port"] in [port["name"] for port in pods["leader"]["spec"]["containers"][0]["ports"]]
    assert page["relabelings"] == [{"targetLabel": "job", "replacement": scrape.JOB}]


def test_the_network_lets_in_the_namespace_and_prometheus_and_lets_out_nothing() -> None:
    found = objects(kubernetes_files(replace(JOB, nodes=2, gpus=16), CLUSTER))
    spec = found["NetworkPolicy"]["spec"]
    for pod in pods_of(found["LeaderWorkerSet"]["spec"]).values():
        assert spec["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    same, others = spec["ingress"]
    assert same == {"from": [{"podSelector": spec["podSelector"]}]}
    assert others["ports"] == [{"port": PORT}]
    peers = [rule.get("to") for rule in spec["egress"]]
    assert peers == [same["from"], None]
    assert {port["port"] for port in spec["egress"][1]["ports"]} == {53}


@pytest.mark.parametrize("words", [("--revision", "abc"), ("--revision=abc",)])
def test_the_job_downloads_the_revision_that_the_server_reads(words: tuple[str, ...]) -> None:
    assert "No revision is named" in kubernetes_files(JOB, CLUSTER)["weights.yaml"]
    files = kubernetes_files(replace(JOB, argv=(*ARGV, *words)), CLUSTER)
    assert "No revision is named" not in files["weights.yaml"]
    found = objects(files)
    download = found["Job"]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert download[-1] == "hf download org/m3 --revision abc"
    (server,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert " ".join(words) in " ".join(server["args"])


def test_only_servers_behind_llm_d_are_scaled() -> None:
    assert "autoscaling.yaml" not in kubernetes_files(JOB, replace(CLUSTER, llm_d=True))
    found = objects(kubernetes_files(JOB, replace(CLUSTER, replicas=2, llm_d=True)))
    target, deployment = found["ScaledObject"]["spec"]["scaleTargetRef"], found["Deployment"]
    assert (target["apiVersion"], target["kind"]) == (deployment["apiVersion"], deployment["kind"])
    assert target["name"] == deployment["metadata"]["name"]
    assert found["ScaledObject"]["spec"]["maxReplicaCount"] == deployment["spec"]["replicas"] == 2
    (trigger,) = found["ScaledObject"]["spec"]["triggers"]
    assert 'namespace="NAMESPACE"' in trigger["metadata"]["query"]
    assert trigger["metadata"]["ignoreNullValues"] == "false"


def test_sglang_gets_its_key_as_an_option() -> None:
    found = objects(kubernetes_files(planned("4xB200", PlanRequest(engine=EngineKind.SGLANG)), CLUSTER))
    (server,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert server["args"][server["args"].index("--api-key") + 1] == "$(M3AGENT_API_KEY)"
    assert "--config" not in server["args"]
    assert "M3AGENT_API_KEY" in [one["name"] for one in server["env"]]


@pytest.mark.parametrize(
    ("job", "cluster"),
    [
        (replace(JOB, engine="trtllm"), CLUSTER),
        (replace(JOB, model="/data/m3"), CLUSTER),
        (replace(JOB, model="/models/../data"), CLUSTER),
        (JOB, replace(CLUSTER, name="M3")),
        (replace(JOB, draft="/models/draft"), CLUSTER),
        (replace(JOB, engine="sglang"), replace(CLUSTER, llm_d=True)),
        (replace(JOB, nodes=2), replace(CLUSTER, llm_d=True)),
    ],
)
def test_what_cannot_run_there_is_refused(job: EngineJob, cluster: Cluster) -> None:
    with pytest.raises(UsageError, match=r"leave out|take the files|name a (checkpoint|draft)|give --name"):
        kubernetes_files(job, cluster)

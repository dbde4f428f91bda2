"""Files for Kubernetes: a volume with the weights, one server on one machine or on several, and its scaling.

A server on one machine is a Deployment. One on several machines is a LeaderWorkerSet (kubernetes-sigs/lws), whose first pod
answers HTTP. Nothing is started here, and no cluster is needed. Not tried in a cluster with GPUs.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from m3agent.serving.launch.container import SHARED_GIB
from m3agent.serving.launch.job import EngineJob
from m3agent.serving.launch.nodes import MASTER_PORT, node_argv
from m3agent.serving.plan.command import LaunchCommand
from m3agent.serving.plan.memory_model import BLOCK, GIB
from m3agent.serving.plan.overlay import KEY
from m3agent.util.errors import UsageError
from m3agent.util.yaml_text import yaml_text

NAME = "minimax-m3"
"""Name of all objects."""
PORT = 8000
"""Port of a server."""
SECRET = "minimax-m3-key"  # noqa: S105  # the name of the secret
"""Name of the secret with the server's key, in its field `key`."""
TOKEN_SECRET = "hugging-face"  # noqa: S105  # the name of the secret
"""Name of the secret with a token of Hugging Face, in its field `token`; it may be missing."""
_EVENTS_PORT = 5556
"""Port of a server's KV events, as in llm-d's guide."""
_CACHE = "/models"
_VOLUME = {"name": "weights", "persistentVolumeClaim": {"claimName": f"{NAME}-weights"}}
_CACHE_VARIABLE = {"name": "HF_HOME", "value": _CACHE}
_LOAD_MINUTES = 60
"""Minutes until a server that does not answer is started again; weights may come from a slow volume."""
_MOST_TIMES = 4
"""The scaler adds servers up to this multiple."""
_SPARE = 1.2
"""Size of the volume for the weights, as a multiple of the weights: an interrupted download leaves parts."""

Object = dict[str, Any]


@dataclass(frozen=True)
class Cluster:
    """What the files depend on, beside the job."""

    resource: str
    """Name by which the cluster counts the GPUs: nvidia.com/gpu or amd.com/gpu."""
    weights: int
    replicas: int = 1
    llm_d: bool = False
    """True if llm-d's router is in front of the servers. They then ask for no key, because its tokenizing requests have none."""


def kubernetes_files(job: EngineJob, cluster: Cluster) -> dict[str, str]:
    """Return the files, by name.

    Raises:
        UsageError: The job cannot run in this way.
    """
    if job.engine not in ("vllm", "sglang"):
        raise UsageError(
            f"--kubernetes is for vLLM and SGLang, not for {job.engine}: for Dynamo and TensorRT-LLM take the files of Dynamo's "
            "recipes/minimax-m3"
        )
    if cluster.llm_d and (job.engine != "vllm" or job.nodes > 1):
        raise UsageError("llm-d's files are for vLLM on one machine: leave out --router, or take fewer GPUs")
    for folder in filter(None, (job.model, job.draft)):
        if PurePosixPath(folder).is_absolute():
            raise UsageError(f"{folder} is a folder of this machine: name a checkpoint on Hugging Face")
    served = _served(job)
    servers = _servers(job, cluster, served)
    files = {
        "weights.yaml": yaml_text(*_weights(job, cluster), head=_WEIGHTS_HEAD),
        "servers.yaml": yaml_text(
            servers,
            _service(),
            _disruption(),
            head=_LLM_D_HEAD if cluster.llm_d else _HEAD,
        ),
    }
    if job.engine == "vllm":
        files["autoscaling.yaml"] = yaml_text(_scaler(servers, cluster, served), head=_SCALER_HEAD)
    if cluster.llm_d:
        files["values.yaml"] = yaml_text(_router(served), head=_VALUES_HEAD)
    return files


_WEIGHTS_HEAD = f"""\
The volume for the weights, and a job that downloads them once. Servers never download:
kubectl apply -f weights.yaml && kubectl wait --for=condition=complete job/{NAME}-weights --timeout=12h
Every node needs the volume, so its storage class must offer ReadWriteMany; for one server on one node ReadWriteOnce is enough.
The secret {TOKEN_SECRET} is optional: kubectl create secret generic {TOKEN_SECRET} --from-literal=token=HF_TOKEN"""
_HEAD = f"""\
Servers of MiniMax M3. Create the key that clients send first:
kubectl create secret generic {SECRET} --from-literal=key=KEY
Requests to the service reach one server after another only by the client's address. With more than one server, use
`m3agent serve --kubernetes FOLDER --router llm-d`, which keeps a session with its server."""
_LLM_D_HEAD = "Servers of MiniMax M3 for llm-d. They ask for no key: only llm-d's router may reach them."
_SCALER_HEAD = """\
Scaling by the length of the queue. It needs KEDA, and a Prometheus that reads the servers' metrics: set serverAddress.
A server that is removed loses its prefixes, so servers are removed only after half an hour without a queue."""
_VALUES_HEAD = """\
Values for the chart of llm-d's router (guides/precise-prefix-cache-routing of llm-d): layer them on its base.values.yaml.
blockSizeTokens must equal the servers' --block-size."""


def _served(job: EngineJob) -> str:
    """Return the name by which requests name the model."""
    option = LaunchCommand.of(job.argv).option("--served-model-name")
    return option[1] if option and len(option) > 1 else job.model


def _object(api: str, kind: str, spec: Object, name: str = NAME) -> Object:
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": name, "labels": {"app": NAME}},
        "spec": spec,
    }


def _weights(job: EngineJob, cluster: Cluster) -> list[Object]:
    size = f"{math.ceil(cluster.weights * _SPARE / GIB)}Gi"
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": size}}}
    downloads = " && ".join(
        f"hf download {shlex.quote(model)}" for model in filter(None, (job.model, job.draft))
    )
    container = {
        "name": "download",
        "image": job.image,
        "command": ["sh", "-c", downloads],
        "env": [_CACHE_VARIABLE, _from_secret("HF_TOKEN", TOKEN_SECRET, "token", optional=True)],
        "volumeMounts": [{"name": "weights", "mountPath": _CACHE}],
    }
    pod = {"restartPolicy": "OnFailure", "containers": [container], "volumes": [_VOLUME]}
    spec = {"backoffLimit": 10, "template": {"metadata": {"labels": {"job": f"{NAME}-weights"}}, "spec": pod}}
    return [
        _object("v1", "PersistentVolumeClaim", claim, f"{NAME}-weights"),
        _object("batch/v1", "Job", spec, f"{NAME}-weights"),
    ]


def _servers(job: EngineJob, cluster: Cluster, served: str) -> Object:
    """Return the Deployment, or the LeaderWorkerSet for several machines."""
    if job.nodes == 1:
        pod = _pod(job, job.argv, cluster, served)
        spec = {
            "replicas": cluster.replicas,
            # All GPUs may be in use, so a new server cannot start before an old one has ended.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "selector": {"matchLabels": {"app": NAME}},
            "template": _template(pod),
        }
        return _object("apps/v1", "Deployment", spec)
    leader, worker = (
        _pod(
            job,
            node_argv(job, "$(LWS_WORKER_INDEX)", "$(LWS_LEADER_ADDRESS)", MASTER_PORT, first=first),
            cluster,
            served,
            answers=first,
        )
        for first in (True, False)
    )
    template = {
        "size": job.nodes,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": _template(leader),
        "workerTemplate": _template(worker, answers=False),
    }
    spec = {"replicas": cluster.replicas, "leaderWorkerTemplate": template}
    return _object("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", spec)


def _template(pod: Object, *, answers: bool = True) -> Object:
    labels = {"app": NAME, "answers": "yes"} if answers else {"app": NAME}
    return {"metadata": {"labels": labels}, "spec": pod}


def _pod(
    job: EngineJob, argv: tuple[str, ...], cluster: Cluster, served: str, *, answers: bool = True
) -> Object:
    """Return the pod of a server, or of one of its machines."""
    command = LaunchCommand.of(argv).replacing(("--port", str(PORT)), ("--host", "0.0.0.0"))  # noqa: S104  # other pods reach it
    if job.engine == "sglang":  # it reads no key from the environment, and its private file is not here
        command = command.replacing(("--api-key", "$(M3AGENT_API_KEY)"), drop=["--config"])
    if cluster.llm_d:
        command = command.replacing(_events(served))
    gpus = {cluster.resource: str(job.gpus // job.nodes)}
    container: Object = {
        "name": "server",
        "image": job.image,
        "command": list(command.program),
        "args": [*command.positional, *sum(command.options, ())],
        "env": _variables(job, cluster),
        "resources": {"limits": gpus, "requests": gpus},
        "volumeMounts": [
            {"name": "weights", "mountPath": _CACHE},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108  # the engines' processes share memory there
        ],
    }
    if answers:
        container["ports"] = [{"name": "http", "containerPort": PORT}]
        container |= _PROBES
    shared = f"{SHARED_GIB + math.ceil(job.host_cache / GIB)}Gi"
    return {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 60,
        "tolerations": [{"key": cluster.resource, "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [container],
        "volumes": [_VOLUME, {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": shared}}],
    }


def _probe(period: int, failures: int, timeout: int = 5) -> Object:
    check = {"path": "/health", "port": "http"}
    return {
        "httpGet": check,
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }


_PROBES = {
    "startupProbe": _probe(10, _LOAD_MINUTES * 6),
    "readinessProbe": _probe(5, 3),
    "livenessProbe": _probe(
        10, 18, timeout=10
    ),  # three minutes, as `m3agent serve` waits for an engine that hangs
}


def _events(served: str) -> tuple[str, str]:
    """Return the option that reports to llm-d which blocks a server has."""
    topic = f"kv@$(POD_IP):{PORT}@{served}"
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{_EVENTS_PORT}",
        "topic": topic,
    }
    return "--kv-events-config", json.dumps(config, separators=(",", ":"))


def _variables(job: EngineJob, cluster: Cluster) -> list[Object]:
    values = {**job.env, "HF_HUB_OFFLINE": "1"}
    keys = [name for name, value in job.env.items() if value == KEY]
    keys += ["M3AGENT_API_KEY"] if job.engine == "sglang" else []
    found = [_CACHE_VARIABLE, *([_from_field("POD_IP", "status.podIP")] if cluster.llm_d else [])]
    found += [_from_field("VLLM_HOST_IP", "status.podIP")] if job.nodes > 1 and job.engine == "vllm" else []
    found += [{"name": name, "value": value} for name, value in values.items() if name not in keys]
    return found + ([] if cluster.llm_d else [_from_secret(name, SECRET, "key") for name in keys])


def _from_field(name: str, path: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _from_secret(name: str, secret: str, key: str, *, optional: bool = False) -> Object:
    reference: Mapping[str, object] = {"name": secret, "key": key, **({"optional": True} if optional else {})}
    return {"name": name, "valueFrom": {"secretKeyRef": reference}}


def _service() -> Object:
    spec = {
        "selector": {"app": NAME, "answers": "yes"},
        "ports": [{"name": "http", "port": PORT, "targetPort": "http"}],
        "sessionAffinity": "ClientIP",
    }
    return _object("v1", "Service", spec)


def _disruption() -> Object:
    """Return what lets maintenance of the cluster end one server at a time."""
    return _object(
        "policy/v1", "PodDisruptionBudget", {"maxUnavailable": 1, "selector": {"matchLabels": {"app": NAME}}}
    )


def _scaler(servers: Object, cluster: Cluster, served: str) -> Object:
    query = f'sum(vllm:num_requests_waiting{{model_name="{served}"}})'
    trigger = {
        "serverAddress": "http://prometheus-operated.monitoring.svc:9090",
        "query": query,
        "threshold": "2",
    }
    slowly = {"scaleDown": {"stabilizationWindowSeconds": 1800}}
    spec = {
        "scaleTargetRef": {"apiVersion": servers["apiVersion"], "kind": servers["kind"], "name": NAME},
        "minReplicaCount": cluster.replicas,
        "maxReplicaCount": cluster.replicas * _MOST_TIMES,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": slowly}},
        "triggers": [{"type": "prometheus", "metadata": trigger}],
    }
    return _object("keda.sh/v1alpha1", "ScaledObject", spec)


def _router(served: str) -> Object:
    """Return the values of llm-d's router, in the form of its guide at 8052f22."""
    producer = "precise-prefix-cache-producer"
    source = "endpoint-notification-source"
    events = {"topicFilter": "kv@", "discoverPods": True, "podDiscoveryConfig": {"socketPort": _EVENTS_PORT}}
    plugins = {
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": [
            {
                "type": "token-producer",
                "parameters": {"modelName": served, "vllm": {"url": f"http://{NAME}:{PORT}"}},
            },
            {"type": source},
            {
                "type": producer,
                "parameters": {
                    "tokenProcessorConfig": {"blockSizeTokens": BLOCK},
                    "speculativeIndexing": True,
                    "kvEventsConfig": events,
                },
            },
            {"type": "prefix-cache-scorer", "parameters": {"prefixMatchInfoProducerName": producer}},
            {"type": "queue-scorer"},
            {"type": "max-score-picker"},
        ],
        "dataLayer": {"sources": [{"pluginRef": source, "extractors": [{"pluginRef": producer}]}]},
        "schedulingProfiles": [
            {
                "name": "default",
                "plugins": [
                    {"pluginRef": "prefix-cache-scorer", "weight": 10},
                    {"pluginRef": "queue-scorer", "weight": 1},
                    {"pluginRef": "max-score-picker"},
                ],
            }
        ],
    }
    file = f"{NAME}-plugins.yaml"
    picker = {"replicas": 1, "pluginsConfigFile": file, "pluginsCustomConfig": {file: yaml_text(plugins)}}
    servers = {"type": "vllm", "targetPorts": [{"number": PORT}], "matchLabels": {"app": NAME}}
    return {"router": {"epp": picker, "modelServers": servers}}

"""Files for Kubernetes: a volume with the weights, one server on one machine or on several, its metrics and its network.

A server on one machine is a Deployment. One on several machines is a LeaderWorkerSet (kubernetes-sigs/lws), whose first pod
answers HTTP. Objects that do not depend on the engine's command are in kubernetes.toml. Nothing is started here, and no cluster
is needed. Not tried in a cluster with GPUs.
"""

from __future__ import annotations

import json
import math
import pkgutil
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from string import Template
from typing import Any

from m3agent.serving.errors import TableError
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
_EVENTS_PORT = 5556
"""Port of a server's KV events, as in llm-d's guide."""
_CACHE, _OFFLINE = {"HF_HOME": "/models"}, {"HF_HUB_OFFLINE": "1"}
_MOST_TIMES = 4
"""The scaler adds servers up to this multiple."""
_CPUS, _MEMORY_GIB = 4, 8
"""What a server asks for with each GPU, beside its shared memory (assumed: a process a GPU, and one that answers)."""
_SPARE = 1.2
"""Size of the volume for the weights, as a multiple of the weights: an interrupted download leaves parts."""


@dataclass(frozen=True)
class Cluster:
    """What the files depend on, beside the job."""

    resource: str
    """Name by which the cluster counts the GPUs: nvidia.com/gpu or amd.com/gpu."""
    product_label: str
    """Label of the nodes with the GPU's name."""
    products: tuple[str, ...]
    """Values of that label on nodes that may run a server; empty if unknown."""
    weights: int
    replicas: int = 1
    llm_d: bool = False
    """True if llm-d's router is in front of the servers. They then ask for no key, because its tokenizing requests have none."""


def kubernetes_files(job: EngineJob, cluster: Cluster) -> dict[str, str]:
    """Return the files, by name. Raises UsageError: the job cannot run in this way."""
    _check(job, cluster)
    option = LaunchCommand.of(job.argv).option("--served-model-name")
    served = option[1] if option and len(option) > 1 else job.model
    each, shared = job.gpus // job.nodes, SHARED_GIB + math.ceil(job.host_cache / GIB)
    gpus = {cluster.resource: str(each)}
    values = {
        "storage": f"{math.ceil(cluster.weights * _SPARE / GIB)}Gi",
        "image": job.image,
        "download": _download(job),
        "replicas": cluster.replicas,
        "nodes": job.nodes,
        "resource": cluster.resource,
        "gpus": gpus,
        "requests": {**gpus, "cpu": str(_CPUS * each), "memory": f"{_MEMORY_GIB * each + shared}Gi"},
        "shared": f"{shared}Gi",
        "product_label": cluster.product_label,
        "products": list(cluster.products),
        "variables": _variables(job, cluster),
        "most": cluster.replicas * _MOST_TIMES,
        "model": served,
        "block": BLOCK,
    }
    templates = _templates()
    heads = templates["heads"]

    def made(name: str, **more: object) -> Any:
        return _filled(templates[name], {**values, **more})

    def pod(argv: tuple[str, ...], *, answers: bool = True) -> object:
        command = _command(job, argv, served if cluster.llm_d else None)
        args = [*command.positional, *sum(command.options, ())]
        container = made("container", program=list(command.program), args=args)
        spec = made("pod", container={**container, **(templates["answers"] if answers else {})})
        return {**spec, **(made("placed") if cluster.products else {})}

    if job.nodes == 1:
        servers = made("deployment", pod=pod(job.argv))
    else:
        rank, leader = "$(LWS_WORKER_INDEX)", "$(LWS_LEADER_ADDRESS)"
        pods = [
            pod(node_argv(job, rank, leader, MASTER_PORT, first=first), answers=first)
            for first in (True, False)
        ]
        servers = made("group", leader=pods[0], worker=pods[1])
    files = {
        "weights.yaml": yaml_text(made("claim"), made("download"), head=heads["weights"]),
        "servers.yaml": yaml_text(
            *(servers, made("service"), made("disruption"), made("network")),
            head=_filled(heads["llm_d" if cluster.llm_d else "servers"], values),
        ),
        "monitoring.yaml": yaml_text(made("monitor"), head=heads["monitor"]),
    }
    if cluster.llm_d:
        files["autoscaling.yaml"] = yaml_text(made("scaler"), head=heads["scaler"])
        router = made("values", plugins=yaml_text(made("router")))
        files["values.yaml"] = yaml_text(router, head=heads["values"])
    return files


def _download(job: EngineJob) -> str:
    """Return the shell command that downloads the weights: the revision that the engine reads, if its command names one."""
    revision = LaunchCommand.of(job.argv).option("--revision") or ()
    words = [["hf", "download", job.model, *(["--revision", revision[-1]] if revision[1:] else [])]]
    words += [["hf", "download", job.draft]] if job.draft else []
    return " && ".join(map(shlex.join, words))


def _templates() -> dict[str, Any]:
    try:
        return tomllib.loads((pkgutil.get_data("m3agent.serving.launch", "kubernetes.toml") or b"").decode())
    except ValueError as error:
        raise TableError(
            f"serving/launch/kubernetes.toml: it is not TOML ({error}); correct it there, or install m3agent again to get the "
            "original"
        ) from None


def _check(job: EngineJob, cluster: Cluster) -> None:
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


def _filled(value: Any, values: Mapping[str, object]) -> Any:
    """Return a template with its values; a text that is only `$name` becomes the value itself."""
    match value:
        case str():
            return (
                values[value[1:]]
                if value[:1] == "$" and value[1:] in values
                else Template(value).safe_substitute(values)
            )
        case dict():
            return {key: _filled(inner, values) for key, inner in value.items()}
        case list():
            return [_filled(inner, values) for inner in value]
    return value


def _command(job: EngineJob, argv: tuple[str, ...], events_of: str | None) -> LaunchCommand:
    """Return the command in a pod; with the name of a model, it reports to llm-d which blocks a server has."""
    command = LaunchCommand.of(argv).replacing(("--port", str(PORT)), ("--host", "0.0.0.0"))  # noqa: S104  # other pods reach it
    if job.engine == "sglang":  # it reads no key from the environment, and its private file is not here
        command = command.replacing(("--api-key", "$(M3AGENT_API_KEY)"), drop=["--config"])
    if events_of is None:
        return command
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{_EVENTS_PORT}",
        "topic": f"kv@$(POD_IP):{PORT}@{events_of}",
    }
    return command.replacing(("--kv-events-config", json.dumps(config, separators=(",", ":"))))


def _variables(job: EngineJob, cluster: Cluster) -> list[object]:
    keys = [name for name, value in job.env.items() if value == KEY]
    keys += ["M3AGENT_API_KEY"] if job.engine == "sglang" else []
    addressed = ["POD_IP"] if cluster.llm_d else []
    addressed += ["VLLM_HOST_IP"] if job.nodes > 1 and job.engine == "vllm" else []
    plain = {name: value for name, value in job.env.items() if name not in keys}
    secret = [] if cluster.llm_d else keys
    return [
        *({"name": name, "value": value} for name, value in (_CACHE | plain | _OFFLINE).items()),
        *(_from(name, fieldRef={"fieldPath": "status.podIP"}) for name in addressed),
        *(_from(name, secretKeyRef={"name": SECRET, "key": "key"}) for name in secret),
    ]


def _from(name: str, **source: object) -> object:
    return {"name": name, "valueFrom": source}

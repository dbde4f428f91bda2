"""Files for Kubernetes: a volume with the weights, one server on one machine or on several, its metrics and its network.

A server on one machine is a Deployment. One on several machines is a LeaderWorkerSet (kubernetes-sigs/lws), whose first pod
answers HTTP. Objects that do not depend on the engine's command are in kubernetes.toml. Nothing is started here, and no cluster
is needed. Not tried in a cluster with GPUs.
"""

from __future__ import annotations

import json
import math
import pkgutil
import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from string import Template
from typing import Any

from m3agent.serving.facts.table import file_error
from m3agent.serving.launch.container import SHARED_GIB
from m3agent.serving.launch.job import EngineJob
from m3agent.serving.launch.nodes import MASTER_PORT, node_argv
from m3agent.serving.plan.command import LaunchCommand
from m3agent.serving.plan.memory_model import BLOCK, GIB
from m3agent.serving.plan.overlay import KEY
from m3agent.util.errors import UsageError
from m3agent.util.yaml_text import yaml_text

NAME = "minimax-m3"
"""Name of all objects, if the user gives no other."""
PORT = 8000
"""Port of a server."""
VOLUME = PurePosixPath("/models")
"""Where the volume with the weights is in a pod."""
_EVENTS_PORT = 5556
"""Port of a server's KV events, as in llm-d's guide."""
_CACHE, _OFFLINE = {"HF_HOME": str(VOLUME)}, {"HF_HUB_OFFLINE": "1"}
_NAMES = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
"""Names of a Service, with room for what the names of pods add."""
_NOT_READING = 600
"""Seconds of a start in which the engine does other work than read the weights (assumed; measured: under five minutes)."""
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
    name: str = NAME
    mirror: str | None = None
    """HF_ENDPOINT of the job that downloads the weights."""

    @property
    def secret(self) -> str:
        """Name of the secret with the servers' key, in its field `key`."""
        return f"{self.name}-key"


def kubernetes_files(job: EngineJob, cluster: Cluster) -> dict[str, str]:
    """Return the files, by name. Raises UsageError: the job cannot run in this way."""
    _check(job, cluster)
    maker = _Maker(job, cluster)
    objects = (maker.servers(), maker.made("service"), maker.made("disruption"), maker.network())
    about = ["llm_d" if cluster.llm_d else "servers", *(["group"] if job.nodes > 1 else []), "pods"]
    download = maker.made("download")
    pod = download["spec"]["template"]["spec"]
    pod |= maker.placed
    pod["containers"][0] |= maker.restricted("container")
    files = {
        "weights.yaml": yaml_text(maker.made("claim"), download, head=maker.head("weights")),
        "servers.yaml": yaml_text(*objects, head=maker.head(*about)),
        "monitoring.yaml": yaml_text(maker.made("monitor"), head=maker.head("monitor")),
    }
    if cluster.llm_d:
        router = maker.made("values", plugins=yaml_text(maker.made("router")))
        files["values.yaml"] = yaml_text(router, head=maker.head("values"))
    if cluster.replicas > 1:
        files["autoscaling.yaml"] = yaml_text(maker.made("scaler"), head=maker.head("scaler"))
    return files


def steps(files: Mapping[str, str], folder: Path, name: str | None) -> list[str]:
    """Return the commands that apply the files of a folder, in their order."""
    have = {
        "llm-d" if "values.yaml" in files else "key",
        "group" if "kind: LeaderWorkerSet" in files["servers.yaml"] else "deployment",
    }
    values = {"folder": shlex.quote(str(folder)), "name": name or NAME}
    return [
        _filled(step["line"], values) for step in _templates()["steps"] if step.get("when") in {None, *have}
    ]


def _values(job: EngineJob, cluster: Cluster, templates: Mapping[str, Any]) -> dict[str, object]:
    """Return what the templates are filled with."""
    command = LaunchCommand.of(job.argv)
    served, *_ = [*command.value("--served-model-name").split(), job.model]
    each, shared = job.gpus // job.nodes, SHARED_GIB + math.ceil(job.host_cache / GIB)
    gpus = {cluster.resource: str(each)}
    probe = templates["answers"]["startupProbe"]
    start = probe["periodSeconds"] * probe["failureThreshold"]
    return {
        "name": cluster.name,
        "storage": f"{math.ceil(cluster.weights * _SPARE / GIB)}Gi",
        "image": job.image,
        "download": _download(job),
        "revision": templates["revisions"]["named" if command.value("--revision") else "main"],
        "replicas": cluster.replicas,
        "nodes": job.nodes,
        "resource": cluster.resource,
        "gpus": gpus,
        "requests": {**gpus, "cpu": str(_CPUS * each), "memory": f"{_MEMORY_GIB * each + shared}Gi"},
        "shared": f"{shared}Gi",
        "product_label": cluster.product_label,
        "products": list(cluster.products),
        "variables": _variables(job, cluster),
        "sources": [
            *templates["sources"],
            *_named({"HF_ENDPOINT": cluster.mirror} if cluster.mirror else {}),
        ],
        # a router's pod has one address: with affinity all its requests for tokens would go to one server
        "affinity": "None" if cluster.llm_d else "ClientIP",
        "clients": _filled(
            templates["clients"]["router" if cluster.llm_d else "any"], {"name": cluster.name}
        ),
        "start": start // 60,
        "speed": math.ceil(cluster.weights / (start - _NOT_READING) / 1e6),
        "model": served,
        "block": BLOCK,
    }


class _Maker:
    """Makes the objects of one job from their templates."""

    def __init__(self, job: EngineJob, cluster: Cluster) -> None:
        self._job = job
        self._cluster = cluster
        self._templates = _templates()
        self._values = _values(job, cluster, self._templates)

    def made(self, name: str, **more: object) -> Any:
        """Return a template with its values."""
        return _filled(self._templates[name], {**self._values, **more})

    def head(self, *names: str) -> str:
        """Return the comment at the head of a file."""
        return "\n".join(_filled(self._templates["heads"][name], self._values) for name in names)

    def servers(self) -> Any:
        """Return the Deployment, or for several machines the LeaderWorkerSet."""
        job = self._job
        if job.nodes == 1:
            return self.made("deployment", pod=self._pod(job.argv))
        rank, leader = "$(LWS_WORKER_INDEX)", "$(LWS_LEADER_ADDRESS)"
        first, others = (
            self._pod(node_argv(job, rank, leader, MASTER_PORT, first=answers), answers=answers)
            for answers in (True, False)
        )
        return self.made("group", leader=first, worker=others)

    def _pod(self, argv: tuple[str, ...], *, answers: bool = True) -> object:
        events_of = str(self._values["model"]) if self._cluster.llm_d else None
        command = _command(self._job, argv, self._templates["drain_seconds"], events_of)
        args = [*command.positional, *sum(command.options, ())]
        container = self.made("container", program=list(command.program), args=args)
        container |= self.restricted("container")
        container |= self._templates["answers"] if answers else {}
        return self.made("pod", container=container) | self.placed

    @property
    def placed(self) -> dict[str, Any]:
        """On which nodes a pod runs, and as which user."""
        placed = self.made("placed") if self._cluster.products else {}
        return placed | self.restricted("pod")

    def restricted(self, part: str) -> dict[str, Any]:
        """Return the security context of a pod or container; images for AMD and of SGLang run as root only."""
        able = self._job.engine == "vllm" and self._cluster.resource == "nvidia.com/gpu"
        parts: dict[str, dict[str, Any]] = self._templates["restricted" if able else "rooted"]
        return parts.get(part, {})

    def network(self) -> Any:
        """Return the NetworkPolicy: pods of a group reach each other, and llm-d's router reads the servers' events."""
        policy = self.made("network")
        rules = policy["spec"]
        if self._job.nodes == 1:
            rules["ingress"], rules["egress"] = rules["ingress"][1:], rules["egress"][1:]
        if self._cluster.llm_d:
            rules["ingress"].append(self.made("events"))
        return policy


def _download(job: EngineJob) -> str:
    """Return the shell command that fills the volume.

    It downloads a checkpoint: the revision that the engine reads, if its command names one. If the checkpoint is a folder of the
    volume, the command waits until a person has filled it and left a file beside it.
    """
    value = LaunchCommand.of(job.argv).value("--revision")
    revision = ["--revision", value] if value else []
    commands = [
        f"until [ -e {shlex.quote(job.model + '.complete')} ]; do sleep 5; done"
        if PurePosixPath(job.model).is_absolute()
        else shlex.join(["hf", "download", job.model, *revision])
    ]
    commands += [shlex.join(["hf", "download", job.draft])] if job.draft else []
    return " && ".join(commands)


def _templates() -> dict[str, Any]:
    try:
        return tomllib.loads((pkgutil.get_data("m3agent.serving.launch", "kubernetes.toml") or b"").decode())
    except ValueError as error:
        raise file_error("serving/launch/kubernetes.toml", f"it is not TOML ({error})") from None


def check_engine(engine: str) -> None:
    """Raise UsageError if there are no files for an engine."""
    if engine not in ("vllm", "sglang"):
        raise UsageError(
            f"--kubernetes is for vLLM and SGLang, not for {engine}: for Dynamo and TensorRT-LLM take the files of Dynamo's own "
            "recipes/minimax-m3 (github.com/ai-dynamo/dynamo), or leave out --engine"
        )


def _check(job: EngineJob, cluster: Cluster) -> None:
    check_engine(job.engine)
    if cluster.llm_d and (job.engine != "vllm" or job.nodes > 1):
        raise UsageError("llm-d's files are for vLLM on one machine: leave out --router, or take fewer GPUs")
    if not _NAMES.fullmatch(cluster.name):
        raise UsageError(
            f"{cluster.name} cannot be the name of a Kubernetes Service: give --name up to 40 small letters, digits and hyphens, "
            "with a letter first"
        )
    if PurePosixPath(job.draft).is_absolute():
        raise UsageError(f"{job.draft} is a folder of this machine: name a draft on Hugging Face")
    folder = PurePosixPath(job.model)
    if folder.is_absolute() and (VOLUME not in folder.parents or ".." in folder.parts):
        raise UsageError(
            f"{folder} is not in the volume of the weights: name a checkpoint on Hugging Face, or a folder that is there, like "
            f"{VOLUME}/m3"
        )


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


def _command(job: EngineJob, argv: tuple[str, ...], drain: int, events_of: str | None) -> LaunchCommand:
    """Return the command in a pod; with the name of a model, it reports to llm-d which blocks a server has.

    Args:
        drain: Seconds for the answers in progress when the pod ends. SGLang waits for them without an option.
    """
    command = LaunchCommand.of(argv).replacing(("--port", str(PORT)), ("--host", "0.0.0.0"))  # noqa: S104  # other pods reach it
    if job.engine == "sglang":  # it reads no key from the environment, and its private file is not here
        command = command.replacing(("--api-key", "$(M3AGENT_API_KEY)"), drop=["--config"])
    elif command.option("--shutdown-timeout") is None:
        command = command.replacing(("--shutdown-timeout", str(drain)))
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
        *_named(_CACHE | plain | _OFFLINE),
        *(_from(name, fieldRef={"fieldPath": "status.podIP"}) for name in addressed),
        *(_from(name, secretKeyRef={"name": cluster.secret, "key": "key"}) for name in secret),
    ]


def _named(variables: Mapping[str, str]) -> list[object]:
    return [{"name": name, "value": value} for name, value in variables.items()]


def _from(name: str, **source: object) -> object:
    return {"name": name, "valueFrom": source}

"""Commands that run one engine on several nodes, if no scheduler such as Slurm starts it.

vLLM from 0.24 on and SGLang connect their nodes through one address of the first node, and only that node
answers HTTP. vLLM can also use a Ray cluster. Dynamo has its own files for several nodes, and Slurm starts
TensorRT-LLM.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from m3agent.serving.launch.job import EngineJob
from m3agent.serving.plan.command import LaunchCommand, Option

MASTER_PORT = 29501
"""Default port where the nodes connect; also vLLM's own default (vLLM 0.24, config/parallel.py)."""

RAY_PORT = 6379
"""Ray's default port for the head of a cluster."""

_ADDRESS = re.compile(
    r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<name>\w[\w.-]*))(?::(?P<port>[1-9][0-9]{0,4}))?", re.ASCII
)

Executor = Literal["engine", "ray"]
"""Who spreads the work over the nodes: the engine itself, or a Ray cluster (vLLM only)."""


@dataclass(frozen=True)
class NodeCommand:
    """A command to run on one node."""

    node: str
    argv: tuple[str, ...]
    env: Mapping[str, str]


def node_commands(
    job: EngineJob, addresses: Sequence[str], *, executor: Executor = "engine", port: int = MASTER_PORT
) -> list[NodeCommand]:
    """Return the commands to run on the nodes, in this order.

    Each command stays in the foreground, except `ray start` on the first node.

    Args:
        addresses: One address for each node, by which the other nodes reach it. Requests go to the first.

    Raises:
        ValueError: The job cannot be spread in this way, or the addresses do not match its nodes.
    """
    if len(addresses) != job.nodes:
        raise ValueError(
            f"The engine needs {job.nodes} nodes: name {job.nodes} addresses, not {len(addresses)}."
        )
    if len(set(addresses)) != job.nodes:
        raise ValueError(
            f"The engine needs {job.nodes} different nodes, and one address is given twice: name another."
        )
    if executor == "ray":
        return _ray_commands(job, addresses)
    master = f"{_bracketed(addresses[0])}:{port}"
    ranked = [as_node(job, rank, master) for rank in range(job.nodes)]
    return [
        NodeCommand(address, node.argv, _addressed(node, address))
        for address, node in zip(addresses, ranked, strict=True)
    ]


def as_node(job: EngineJob, rank: int, master: str) -> EngineJob:
    """Return the job of one node.

    Only node 0 answers HTTP requests. vLLM's other nodes serve nothing; SGLang's answer only /health.

    Args:
        master: The first node's address, or `address:port`.

    Raises:
        ValueError: The job cannot be spread in this way, or `rank` or `master` is invalid.
    """
    _check(job)
    if not 0 <= rank < job.nodes:
        raise ValueError(f"There is no node {rank}: the {job.nodes} nodes are 0 to {job.nodes - 1}.")
    if not master:
        raise ValueError("--master is missing: --node-rank needs the address of the first node.")
    host, port = _host_and_port(master)
    return replace(job, argv=node_argv(job, str(rank), host, port, first=rank == 0))


def node_argv(job: EngineJob, rank: str, host: str, port: int, *, first: bool) -> tuple[str, ...]:
    """Return the command of one node.

    Args:
        rank: Number of the node; may be a shell variable.
        host: Address of the first node; may be a shell variable.

    Raises:
        ValueError: The engine cannot spread this job over nodes.
    """
    _check(job)
    count = ("--nnodes", str(job.nodes))
    options: list[Option] = [count, ("--node-rank", rank)]
    drop: list[str] = []
    if job.engine == "vllm":
        options += [("--master-addr", host), ("--master-port", str(port))]
        drop = ["-n", "-r", "--distributed-executor-backend", "--headless"]
        if not first:
            options.append(("--headless",))
            # vLLM rejects it together with --headless (vLLM 0.24, entrypoints/cli/serve.py).
            drop.append("--api-server-count")
    else:
        options.append(("--dist-init-addr", f"{_bracketed(host)}:{port}"))
        drop = ["--nccl-init-addr"]
    return LaunchCommand.of(job.argv).replacing(*options, drop=drop).words


def _check(job: EngineJob) -> None:
    """Raise ValueError unless the engine itself spreads this job over its nodes."""
    if job.engine == "trtllm":
        raise ValueError("Only Slurm can start TensorRT-LLM on several nodes: use --slurm.")
    if job.engine not in ("vllm", "sglang"):
        raise ValueError(
            f"{job.engine} has its own launch files for several nodes; `m3agent plan --recipe` prints them."
        )
    if job.nodes < 2:
        raise ValueError("The plan has one node, which needs no number: leave out --node-rank and --master.")
    if job.gpus % job.nodes:
        raise ValueError(
            f"{job.gpus} GPUs cannot be divided evenly among {job.nodes} nodes; the engine needs the same "
            "number on each."
        )


def _ray_commands(job: EngineJob, addresses: Sequence[str]) -> list[NodeCommand]:
    """Return the commands that start a Ray cluster of the nodes, then vLLM on the first node."""
    if job.engine != "vllm":
        raise ValueError(f"Ray can spread only vLLM, not {job.engine}.")
    _check(job)
    head, each = addresses[0], ("--num-gpus", str(job.gpus // job.nodes))
    words = ("ray", "start", "--head", "--node-ip-address", head, "--port", str(RAY_PORT), *each)
    found = [NodeCommand(head, words, MappingProxyType({}))]
    for address in addresses[1:]:
        words = (
            *("ray", "start", "--block", "--address", f"{_bracketed(head)}:{RAY_PORT}"),
            *("--node-ip-address", address, *each),
        )
        found.append(NodeCommand(address, words, _addressed(job, address)))
    # vLLM rejects its own node numbers together with Ray (vLLM 0.24, config/parallel.py).
    ours = ("--nnodes", "-n", "--node-rank", "-r", "--master-addr", "--master-port", "--headless")
    serve = LaunchCommand.of(job.argv).replacing(("--distributed-executor-backend", "ray"), drop=ours).words
    return [*found, NodeCommand(head, serve, _addressed(job, head))]


def _addressed(job: EngineJob, address: str) -> Mapping[str, str]:
    """Return the job's variables; for vLLM with the address by which the others reach this node.

    vLLM guesses the address if the variable is missing.
    """
    numeric = job.engine == "vllm" and _is_ip(address)
    return {**job.env, "VLLM_HOST_IP": address} if numeric else dict(job.env)


def _host_and_port(master: str) -> tuple[str, int]:
    if _is_ip(master):
        return master, MASTER_PORT
    found = _ADDRESS.fullmatch(master)
    if (
        found is None
        or (found["v6"] and not _is_ip(found["v6"]))
        or int(found["port"] or 1) not in range(1, 65536)
    ):
        raise ValueError(
            f"{master!r} is not an address of the first node: write it like 10.0.0.1 or node1:29501."
        )
    return found["v6"] or found["name"], int(found["port"] or MASTER_PORT)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_ip(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True

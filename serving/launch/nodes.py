"""Commands that run one engine on several nodes, if no scheduler such as Slurm starts it.

vLLM from 0.24 on and SGLang connect their nodes through one address of the first node, and only that node
answers HTTP. Dynamo has its own files for several nodes, and Slurm starts
TensorRT-LLM.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import replace

from m3agent.serving.launch.job import EngineJob
from m3agent.serving.plan.command import LaunchCommand, Option
from m3agent.util.errors import UsageError

MASTER_PORT = 29501
"""Default port where the nodes connect; also vLLM's own default (vLLM 0.24, config/parallel.py)."""

_ADDRESS = re.compile(
    r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<name>\w[\w.-]*))(?::(?P<port>[1-9][0-9]{0,4}))?", re.ASCII
)


def as_node(job: EngineJob, rank: int, master: str) -> EngineJob:
    """Return the job of one node.

    Only node 0 answers HTTP requests. vLLM's other nodes serve nothing; SGLang's answer only /health.

    Args:
        master: The first node's address, or `address:port`.

    Raises:
        UsageError: The job cannot be spread in this way, or `rank` or `master` is invalid.
    """
    _check(job)
    if not 0 <= rank < job.nodes:
        raise UsageError(f"There is no node {rank}: the {job.nodes} nodes are 0 to {job.nodes - 1}.")
    if not master:
        raise UsageError("--master is missing: --node-rank needs the address of the first node.")
    host, port = _host_and_port(master)
    return replace(job, argv=node_argv(job, str(rank), host, port, first=rank == 0))


def node_argv(job: EngineJob, rank: str, host: str, port: int, *, first: bool) -> tuple[str, ...]:
    """Return the command of one node.

    Args:
        rank: Number of the node; may be a shell variable.
        host: Address of the first node; may be a shell variable.

    Raises:
        UsageError: The engine cannot spread this job over nodes.
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
        bracketed = f"[{host}]" if ":" in host else host
        options.append(("--dist-init-addr", f"{bracketed}:{port}"))
        drop = ["--nccl-init-addr"]
    return LaunchCommand.of(job.argv).replacing(*options, drop=drop).words


def _check(job: EngineJob) -> None:
    """Raise UsageError unless the engine itself spreads this job over its nodes."""
    if job.engine == "trtllm":
        raise UsageError("Only Slurm can start TensorRT-LLM on several nodes: use --slurm.")
    if job.engine not in ("vllm", "sglang"):
        raise UsageError(
            f"{job.engine} has its own launch files for several nodes; `m3agent plan --recipe` prints them."
        )
    if job.nodes < 2:
        raise UsageError("The plan has one node, which needs no number: leave out --node-rank and --master.")
    if job.gpus % job.nodes:
        raise UsageError(
            f"{job.gpus} GPUs cannot be divided evenly among {job.nodes} nodes; the engine needs the same "
            "number on each."
        )


def _host_and_port(master: str) -> tuple[str, int]:
    if _is_ip(master):
        return master, MASTER_PORT
    address = _ADDRESS.fullmatch(master)
    if (
        address is None
        or (address["v6"] and not _is_ip(address["v6"]))
        or int(address["port"] or 1) not in range(1, 65536)
    ):
        raise UsageError(
            f"{master!r} is not an address of the first node: write it like 10.0.0.1 or node1:29501."
        )
    return address["v6"] or address["name"], int(address["port"] or MASTER_PORT)


def _is_ip(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True

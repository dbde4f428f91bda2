"""Make attempts on a Ray cluster.

Each attempt is an actor on a node, which sends the attempt's folder back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import tarfile
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from m3agent import __version__
from m3agent.agent.settings.settings import state_dir
from m3agent.evals.data.instance import DataError, Instance
from m3agent.evals.data.results import AttemptRecord, Verdict
from m3agent.evals.run.attempt import not_made
from m3agent.evals.run.child import GRACE_SECONDS
from m3agent.evals.run.cluster.node import FinishedAttempt, News, Worker, fault, is_local, parcel, unpack
from m3agent.evals.run.parts import AttemptListener, Make, PartsOf
from m3agent.serving.client.retry import api_policy
from m3agent.util.errors import EnvironmentFault, M3AgentError, UsageError, reason_of
from m3agent.util.sanitize import last_line, printable_line

SCHEME = "ray"
KNOCK_SECONDS = 10.0
READY_SECONDS = 120.0
"""How long to wait for a node's check, in seconds; the first process on a node takes a while to start."""
STOP_SECONDS = GRACE_SECONDS + 30
"""Time between asking an attempt to stop and killing its process, in seconds."""
CALLS_AT_ONCE = 4
"""Concurrent method calls of an actor: `work`, `news` and `stop`, and one to spare."""


@contextlib.contextmanager
def connected(address: str, parts_of: PartsOf, say: Callable[[str], None]) -> Iterator[Make]:
    """Connect to a cluster and check that its nodes can make attempts; yield what makes them there.

    Raises:
        UsageError: The address is malformed, or the package ray is not installed.
        EnvironmentFault: The cluster does not answer, or a node lacks what attempts need.
    """
    _knock(address)
    try:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray
    except ImportError:
        raise UsageError(
            "--cluster needs the package ray: install m3agent[ray] as docs/install.md says."
        ) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exception has the same text
            # A head under load sometimes fails to start the process that serves a client; the next one starts.
            retrying = api_policy(ConnectionAbortedError, lambda error: ray.shutdown())
            retrying(ray.init, address, logging_level=logging.ERROR, log_to_driver=False)
    except Exception as error:  # noqa: BLE001  # Ray raises what it likes: RuntimeError, ConnectionError, gRPC's own
        raise EnvironmentFault(
            f"the cluster {address} cannot be used: {printable_line(error, 300)}."
        ) from None
    try:
        nodes = _ready(ray)
        say(f"cluster of {nodes} {'nodes' if nodes > 1 else 'node'} at {address}")
        yield RayCluster(ray, parts_of).make
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Check that something listens at the address: Ray itself would retry for half a minute."""
    try:
        parts = urlsplit(address)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        scheme, host, port = "", None, None
    if scheme != SCHEME or not host or not port:
        raise UsageError(
            f"--cluster takes the address of a Ray cluster, like {SCHEME}://head:10001, not {printable_line(address)}."
        )
    try:
        socket.create_connection((host, port), KNOCK_SECONDS).close()
    except OSError as error:
        raise EnvironmentFault(
            f"there is no Ray cluster at {address} ({reason_of(error)}): start its head with "
            f"`ray start --head --ray-client-server-port {port}`."
        ) from None


def _ready(ray: Any) -> int:
    """Return the number of nodes."""
    from ray.exceptions import LocalRayletDiedError, NodeDiedError, TaskUnschedulableError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node for node in ray.nodes() if node["Alive"]]
    asked = ray.remote(fault)

    def ask(node: dict[str, Any]) -> Any:
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        return asked.options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(__version__)

    answers = [ask(node) for node in nodes]
    faults, gone = [], 0
    for node, answer in zip(nodes, answers, strict=True):
        try:
            problem = ray.get(answer, timeout=READY_SECONDS)
        except (TaskUnschedulableError, NodeDiedError, LocalRayletDiedError):
            gone += 1  # the cluster has not noticed yet
            continue
        except Exception as error:  # noqa: BLE001  # from the node's own Python, or from Ray
            problem = _why(error)
        if problem:
            faults.append(f"node {node['NodeManagerAddress']}: {problem}")
    if faults:
        raise EnvironmentFault(f"the cluster cannot make attempts: {'; '.join(faults)}.")
    if gone == len(nodes):
        raise EnvironmentFault("the cluster has no live node.")
    return len(nodes) - gone


class RayCluster:
    """Make attempts on a cluster's nodes. `ray` is the package, already connected."""

    def __init__(self, ray: Any, parts_of: PartsOf) -> None:
        self._ray = ray
        self._parts_of = parts_of
        self._actor = ray.remote(Worker)
        self._state = state_dir(os.environ)

    async def make(
        self, instance: Instance, number: int, folder: Path, listener: AttemptListener
    ) -> tuple[AttemptRecord, bytes]:
        """Make an attempt on a node; see `parts.Make`."""
        started = datetime.now(UTC)
        try:
            made = await self._made(instance, number, listener)
            await asyncio.to_thread(unpack, made.files, folder)
        except DataError as error:
            return not_made(instance, number, Verdict.INVALID, str(error), started), b""
        except (OSError, tarfile.TarError, M3AgentError) as error:
            return not_made(instance, number, Verdict.INFRA, str(error), started), b""
        except Exception as error:  # noqa: BLE001  # Ray's own kinds: the node is gone, its process ended, ...
            why = f"its node failed: {_why(error)}"
            return not_made(instance, number, Verdict.INFRA, why, started), b""
        return made.result, made.patch

    async def _made(self, instance: Instance, number: int, listener: AttemptListener) -> FinishedAttempt:
        sent = None
        # not kept for the next attempt: hundreds of repositories would fill the cluster's memory
        if is_local(instance.task):
            sent = await asyncio.to_thread(parcel, instance.task, self._state)
        worker = self._actor.options(
            num_cpus=1, max_restarts=0, max_concurrency=CALLS_AT_ONCE, scheduling_strategy="SPREAD"
        ).remote(instance, number, self._parts_of, sent)
        work = asyncio.wrap_future(worker.work.remote().future())
        follow = asyncio.create_task(_follow(worker, listener))
        try:
            made: FinishedAttempt | None = await asyncio.shield(work)
            if made is None:
                raise EnvironmentFault("it was stopped on its node")
            await follow
            return made
        except asyncio.CancelledError:
            worker.stop.remote()
            await asyncio.wait([work], timeout=STOP_SECONDS)
            raise
        finally:
            self._ray.kill(worker)
            await asyncio.wait([follow], timeout=STOP_SECONDS)


async def _follow(worker: Any, listener: AttemptListener) -> None:
    """Forward an attempt's events until the attempt or its node ends.

    Do not cancel it: Ray's client breaks then.
    """
    heard = 0
    with contextlib.suppress(Exception):
        while True:
            news: list[News] = await asyncio.wrap_future(worker.news.remote(heard).future())
            heard += len(news)
            for kind, what in news:
                match kind:
                    case "phase":
                        listener.phase(what)
                    case "say":
                        listener.say(what)
                    case "warm":
                        listener.warm()
                    case _:
                        return


def _why(error: BaseException) -> str:
    """Return the last line that is not empty: Ray puts the other machine's traceback before it."""
    return printable_line(last_line(str(error)) or type(error).__name__, 300)

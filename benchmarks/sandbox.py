"""Measure sandboxes: ours against `docker exec`, the Docker SDK, mini-swe-agent and SWE-ReX, in one interleaved run.

    make bench-sandbox [ARGS="--quick"]
    python -m benchmarks.sandbox [--repeat 20] [--quick] [--rows NAME ...] [--without NAME ...] [--peers DIR] [--json FILE]

Every contestant has one sandbox from the same image. Each round takes one sample from each in turn, so that other load
on the machine affects all equally. Ours is hardened as always. The others run with their defaults: as root, with a
network. The two peers are installed into a virtual environment (`--peers` keeps it for the next run). SWE-ReX's server
is mounted into its container; otherwise SWE-ReX would install it at each start.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.common import write_json
from benchmarks.peers import Absent, python_with
from benchmarks.sandbox_report import OURS, Row, Target, bars, table

from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.backends.factory import Backend, SandboxSpec, new_sandbox
from m3agent.sandbox.backends.image import find_image
from m3agent.sandbox.backends.sandbox import Sandbox, SandboxLimits
from m3agent.sandbox.errors import SandboxError
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.base import CallContext
from m3agent.tools.code_exec import CodeExecArguments
from m3agent.tools.code_exec import run as code_exec

BWRAP, CLI, SDK, MINI, REX = "m3agent (bwrap)", "docker exec", "Docker SDK", "mini-swe-agent", "SWE-ReX"
REX_EXECUTE = "SWE-ReX execute"
PINNED = ("mini-swe-agent==2.4.6", "swe-rex==1.4.0")
LABEL = "m3agent.benchmark"
DATA = b"x" * 4096
FILE = "/tmp/bench.txt"
TREE = "setsid sleep 1000 & (sleep 1000 & sleep 1000) & sleep 1000"
LIMITS = SandboxLimits(memory=512 << 20)
TARGETS = (
    Target("shell call", CLI, 15, 20),
    Target("shell call", SDK, 10, 15),
    Target("file_write, 4 KiB", SDK, 40, 50),
    Target("32 sandboxes at once", SDK, 15, 25),
)


# -- contestants ---------------------------------------------------------------------------------------------------


class Ours:
    """Our sandbox on one backend."""

    def __init__(self, backend: Backend, workspace: Workspace, scratch: Path) -> None:
        self.name = OURS if backend == "docker" else BWRAP
        self.sandbox = ours(backend, workspace)
        self.context = CallContext(self.sandbox, scratch / f"{backend}.log")

    async def open(self) -> None:
        await self.sandbox.__aenter__()

    async def close(self) -> None:
        await self.sandbox.close()

    async def shell(self) -> None:
        done = await self.sandbox.exec(["sh", "-c", "true"])
        assert done.exit == 0, done

    async def code(self) -> None:
        done = await code_exec(self.context, CodeExecArguments.model_validate({"code": "print(1)"}))
        assert done.exit_code == 0, done

    async def write(self) -> None:
        await self.sandbox.write("bench.txt", DATA)

    async def read(self) -> None:
        assert await self.sandbox.read("bench.txt") == DATA

    async def left(self) -> int:
        """Return the number of processes left after a call that timed out."""
        done = await self.sandbox.exec(["sh", "-c", TREE], timeout=1)
        assert done.timed_out
        count = await self.sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/comm | grep -c sleep; true"])
        return int(count.stdout)


class Plain:
    """A plain container of the same image, used through the command line or the SDK."""

    def __init__(self, name: str, api: Any, image: str, binds: Sequence[str]) -> None:
        self.name = name
        self.api = api
        self.image, self.binds = image, binds
        self.id = ""

    async def open(self) -> None:
        self.id = await asyncio.to_thread(start_plain, self.api, self.image, self.binds)

    async def close(self) -> None:
        if self.id:
            await asyncio.to_thread(self.api.remove_container, self.id, force=True)

    async def shell(self) -> None:
        self._exec("sh", "-c", "true")

    async def code(self) -> None:
        assert self._exec("python3", "-c", "print(1)") == b"1\n"

    async def write(self) -> None:
        if self.name == SDK:
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w") as archive:
                info = tarfile.TarInfo("bench.txt")
                info.size = len(DATA)
                archive.addfile(info, io.BytesIO(DATA))
            assert self.api.put_archive(self.id, "/tmp", buffer.getvalue())
        else:
            self._exec("sh", "-c", f"cat > {FILE}", stdin=DATA)

    async def read(self) -> None:
        if self.name == SDK:
            stream, _ = self.api.get_archive(self.id, FILE)
            with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
                file = archive.extractfile("bench.txt")
                assert file is not None and file.read() == DATA
        else:
            assert self._exec("cat", FILE) == DATA

    async def left(self) -> int:
        """Return the number of processes left after the caller stops waiting. Neither interface has a time limit."""
        if self.name == SDK:
            job = self.api.exec_create(self.id, ["sh", "-c", TREE])["Id"]
            stream = self.api.exec_start(job, socket=True)
            await asyncio.sleep(1)
            stream.close()
        else:
            argv = ["docker", "exec", self.id, "sh", "-c", TREE]
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(argv, timeout=1, capture_output=True, check=False)  # noqa: ASYNC221
        return await left_in(self.api, self.id)

    def _exec(self, *argv: str, stdin: bytes | None = None) -> bytes:
        if self.name == SDK:
            job = self.api.exec_create(self.id, list(argv))["Id"]
            output: bytes = self.api.exec_start(job)
            assert self.api.exec_inspect(job)["ExitCode"] == 0
            return output
        options = [] if stdin is None else ["-i"]
        done = subprocess.run(
            ["docker", "exec", *options, self.id, *argv], input=stdin, capture_output=True, check=False
        )
        assert done.returncode == 0, done
        return done.stdout


class Peer:
    """A peer in a separate process and virtual environment (see `benchmarks/sandbox_peer.py`)."""

    def __init__(
        self, name: str, kind: str, python: Path, image: str, arguments: Sequence[str], api: Any
    ) -> None:
        self.name, self.kind, self.api = name, kind, api
        self.command = [
            str(python),
            str(Path(__file__).with_name("sandbox_peer.py")),
            kind,
            image,
            PEER_PACKAGES,
            *arguments,
        ]
        self.container = ""

    async def open(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *self.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "MSWEA_SILENT_STARTUP": "1"},
        )
        self.started_ms = await self.ask("start")

    async def close(self) -> None:
        with contextlib.suppress(Absent):
            await self.ask("stop")
        assert self.process.stdin
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), 30)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()

    async def ask(self, order: str) -> float:
        """Send an order, and return the milliseconds that the peer took."""
        assert self.process.stdin and self.process.stdout
        try:
            self.process.stdin.write(f"{order}\n".encode())
            line = await asyncio.wait_for(self.process.stdout.readline(), 120)
        except (OSError, TimeoutError) as error:
            raise Absent(f"{order}: {type(error).__name__}") from None
        answer = json.loads(line) if line else {"error": "it ended"}
        if "error" in answer:
            raise Absent(str(answer["error"]))
        self.container = answer.get("container") or self.container
        return float(answer["ms"])

    async def left(self) -> int:
        await self.ask("timeout")
        return await left_in(self.api, self.container)


PEER_PACKAGES = "/opt/m3agent/peers"
"""Mount point of a peer's packages. Each image that m3agent makes has the folder above it."""


def ours(backend: Backend, workspace: Workspace) -> Sandbox:
    return new_sandbox(backend, SandboxSpec(backend, limits=LIMITS), workspace, lambda _: None)


def start_plain(api: Any, image: str, binds: Sequence[str]) -> str:
    """Start a container without any hardening, and return its id."""
    config = api.create_host_config(auto_remove=True, binds=list(binds))
    container = api.create_container(
        image, ["sleep", "3600"], entrypoint=[], labels={LABEL: str(os.getpid())}, host_config=config
    )
    api.start(container["Id"])
    return str(container["Id"])


async def left_in(api: Any, container: str) -> int:
    """Count the sleeping processes in a container shortly after they should have ended."""
    await asyncio.sleep(1.5)
    top = await asyncio.to_thread(api.top, container, "-eo pid,args")
    return sum(line[-1].startswith("sleep 1000") for line in top["Processes"])


# -- installing the peers -------------------------------------------------------------------------------------------


def peer_server(folder: Path) -> list[str]:
    """Return mount options that add SWE-ReX's server to the image: its packages and its command."""
    packages = next(folder.glob("lib/python3*/site-packages"))
    command = packages / "bin" / "swerex-remote"
    command.parent.mkdir(exist_ok=True)
    command.write_text('#!/bin/sh\nexec python3 -m swerex.server "$@"\n')
    command.chmod(0o755)
    return ["-v", f"{packages}:{PEER_PACKAGES}:ro"]


# -- measuring ------------------------------------------------------------------------------------------------------


async def timed(call: Callable[[], Awaitable[object]]) -> float:
    """Return the milliseconds that a call takes."""
    started = time.perf_counter()
    await call()
    return 1000 * (time.perf_counter() - started)


async def interleaved(
    calls: dict[str, Callable[[], Awaitable[float]]], rounds: int
) -> dict[str, list[float] | str]:
    """Take samples from each in turn; the first does not count. Replace the samples of one that fails by the reason."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    out: dict[str, str] = {}
    for number in range(rounds + 1):
        for name, call in calls.items():
            if name in out:
                continue
            try:
                took = await call()
            except (Absent, SandboxError, AssertionError, OSError) as error:
                out[name] = f"{type(error).__name__}: {error}"[:120]
                continue
            if number:
                samples[name].append(took)
    return {**samples, **out}


async def call_rows(contestants: Sequence[Contestant], rounds: int, wanted: set[str]) -> list[Row]:
    """Measure the rows that need one call per sample."""
    titles = {
        "shell": "shell call",
        "code": "code_exec, print(1)",
        "write": "file_write, 4 KiB",
        "read": "file_read, 4 KiB",
    }
    rows = []
    for key, title in titles.items():
        if key not in wanted:
            continue
        calls: dict[str, Callable[[], Awaitable[float]]] = {}
        for one in contestants:
            calls[one.name] = call_of(one, key)
            if isinstance(one, Peer) and one.kind == "swerex" and key == "shell":
                calls[REX_EXECUTE] = call_of(one, "execute")
        rows.append(Row(title, "ms", await interleaved(calls, rounds)))
    return rows


def call_of(one: Contestant, key: str) -> Callable[[], Awaitable[float]]:
    if isinstance(one, Peer):
        return lambda: one.ask(key)
    return lambda: timed(getattr(one, key))


async def left_row(contestants: Sequence[Contestant]) -> Row:
    """Count the processes that outlive a call that timed out. Measure this row last, because the processes stay."""
    samples: dict[str, list[float] | str] = {}
    for one in contestants:
        try:
            samples[one.name] = [float(await one.left())]
        except (Absent, SandboxError) as error:
            samples[one.name] = f"{type(error).__name__}: {error}"[:120]
    return Row("left of 4 processes after a timeout", "processes", samples)


async def ready_row(
    contestants: Sequence[Contestant],
    workspace: Workspace,
    api: Any,
    plain: tuple[str, Sequence[str]],
    rounds: int,
) -> Row:
    """Measure the time from nothing to the end of a first command."""
    calls: dict[str, Callable[[], Awaitable[float]]] = {}

    def cold(backend: Backend) -> Callable[[], Awaitable[float]]:
        async def call() -> float:
            started = time.perf_counter()
            async with ours(backend, workspace) as sandbox:
                await sandbox.exec(["true"])
                return 1000 * (time.perf_counter() - started)

        return call

    async def run_cli() -> float:
        started = time.perf_counter()
        binds = [part for bind in plain[1] for part in ("-v", bind)]
        command = ["docker", "run", "-d", "--rm", "--label", LABEL, *binds, plain[0], "sleep", "3600"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: ASYNC221
        container = done.stdout.strip()
        subprocess.run(["docker", "exec", container, "true"], check=True)  # noqa: ASYNC221
        took = 1000 * (time.perf_counter() - started)
        api.remove_container(container, force=True)
        return took

    async def run_sdk() -> float:
        started = time.perf_counter()
        container = start_plain(api, *plain)
        api.exec_start(api.exec_create(container, ["true"])["Id"])
        took = 1000 * (time.perf_counter() - started)
        api.remove_container(container, force=True)
        return took

    def run_peer(peer: Peer) -> Callable[[], Awaitable[float]]:
        async def call() -> float:
            again = Peer.__new__(Peer)
            again.__dict__.update(peer.__dict__)
            await again.open()
            await again.close()
            return again.started_ms

        return call

    for one in contestants:
        if isinstance(one, Ours):
            calls[one.name] = cold("docker" if one.name == OURS else "bwrap")
        elif isinstance(one, Peer):
            calls[one.name] = run_peer(one)
        else:
            calls[one.name] = run_sdk if one.name == SDK else run_cli
    return Row("sandbox ready", "ms", await interleaved(calls, rounds))


@contextlib.asynccontextmanager
async def many(backend: Backend, workspace: Workspace, count: int) -> AsyncIterator[list[Sandbox]]:
    """Run `count` sandboxes, started four at a time."""
    gate = asyncio.Semaphore(4)
    async with contextlib.AsyncExitStack() as stack:

        async def start() -> Sandbox:
            async with gate:
                sandbox = await ours(backend, workspace).__aenter__()
                stack.push_async_callback(sandbox.close)
                return sandbox

        yield list(await asyncio.gather(*(start() for _ in range(count))))


async def rate_of_ours(sandboxes: Sequence[Sandbox], seconds: float) -> float:
    """Return shell calls per second. Each sandbox runs one call after the other."""
    end = time.perf_counter() + seconds

    async def calls(sandbox: Sandbox) -> int:
        made = 0
        while time.perf_counter() < end:
            await sandbox.exec(["sh", "-c", "true"])
            made += 1
        return made

    started = time.perf_counter()
    made = await asyncio.gather(*map(calls, sandboxes))
    return sum(made) / (time.perf_counter() - started)


def rate_of_sdk(containers: Sequence[str], seconds: float) -> float:
    """Return shell calls per second through the SDK, with a thread and a client for each container."""
    end = time.perf_counter() + seconds

    def calls(container: str) -> int:
        made = 0
        with contextlib.closing(connect()) as api:
            while time.perf_counter() < end:
                api.exec_start(api.exec_create(container, ["sh", "-c", "true"])["Id"])
                made += 1
        return made

    started = time.perf_counter()
    with ThreadPoolExecutor(len(containers)) as pool:
        made = sum(pool.map(calls, containers))
    return made / (time.perf_counter() - started)


async def parallel_row(
    count: int,
    backends: Sequence[Backend],
    workspace: Workspace,
    api: Any,
    plain: tuple[str, Sequence[str]],
    seconds: float,
    rounds: int,
) -> Row:
    """Measure shell calls per second of `count` sandboxes that all work at once."""
    names = [OURS if backend == "docker" else BWRAP for backend in backends]
    samples: dict[str, list[float]] = {name: [] for name in (*names, SDK)}
    async with contextlib.AsyncExitStack() as stack:
        sandboxes = {}
        for backend in backends:
            name = OURS if backend == "docker" else BWRAP
            sandboxes[name] = await stack.enter_async_context(many(backend, workspace, count))
        containers: list[str] = []

        async def remove() -> None:
            for container in containers:
                await asyncio.to_thread(api.remove_container, container, force=True)

        stack.push_async_callback(remove)
        for _ in range(count):
            containers.append(await asyncio.to_thread(start_plain, api, *plain))
        for _ in range(rounds):
            for name, each in sandboxes.items():
                samples[name].append(await rate_of_ours(each, seconds))
            samples[SDK].append(await asyncio.to_thread(rate_of_sdk, containers, seconds))
    title = f"{count} sandboxes at once" if count > 1 else "1 sandbox"
    return Row(title, "calls/s", samples, more_is_better=True)


# -- main -----------------------------------------------------------------------------------------------------------


Contestant = Ours | Plain | Peer
PEERS = {MINI: "mini", REX: "swerex"}
"""The programs of the peers, by their names."""


async def peers_of(
    wanted: Mapping[str, str], folder: Path, plain: tuple[str, list[str]], api: Any
) -> list[Peer]:
    """Return the peers, which are installed in a folder. Raises Absent."""
    if not wanted:
        return []
    python = await asyncio.to_thread(python_with, folder, PINNED)
    image, binds = plain
    mounts = [part for bind in binds for part in ("-v", bind)]
    more = {REX: peer_server(folder)} if REX in wanted else {}
    return [
        Peer(name, program, python, image, [*mounts, *more.get(name, []), "--label", LABEL], api)
        for name, program in wanted.items()
    ]


async def run(options: argparse.Namespace, scratch: Path) -> tuple[list[Row], dict[str, Any]]:
    """Return every requested row, and the conditions of the measurement."""
    tree = scratch / "tree"
    tree.mkdir()
    (tree / "a.txt").write_text("a\n")
    workspace = Workspace.from_folder(TreeStore(scratch / "trees.git"), tree, ["a.txt"])
    api = await asyncio.to_thread(connect)
    image = await asyncio.to_thread(find_image, api, None, lambda text: print(text, file=sys.stderr))
    plain = (image.name, [f"{folder}:{folder}:ro" for folder in image.binds])
    backends: list[Backend] = ["docker"] if BWRAP in options.without else ["docker", "bwrap"]
    contestants: list[Contestant] = [Ours(backend, workspace, scratch) for backend in backends]
    contestants += [Plain(CLI, api, *plain), Plain(SDK, api, *plain)]
    absent: dict[str, str] = {}
    wanted = {name: program for name, program in PEERS.items() if name not in options.without}
    try:
        contestants += await peers_of(wanted, options.peers or scratch / "peers", plain, api)
    except Absent as error:
        absent = dict.fromkeys(wanted, str(error))
    before = os.getloadavg()[0]
    rows: list[Row] = []
    async with contextlib.AsyncExitStack() as stack:
        there: list[Contestant] = []
        for one in contestants:
            stack.push_async_callback(one.close)
            try:
                await one.open()
            except (Absent, SandboxError) as error:
                absent[one.name] = f"{type(error).__name__}: {error}"[:120]
            else:
                there.append(one)
        rows += await call_rows(there, options.repeat, options.rows)
        if "ready" in options.rows:
            rows.append(await ready_row(there, workspace, api, plain, max(2, options.repeat // 4)))
        if "left" in options.rows:
            rows.append(await left_row(there))
    for count in options.parallel if "parallel" in options.rows else ():
        rows.append(
            await parallel_row(count, backends, workspace, api, plain, options.seconds, options.bursts)
        )
    rows = [
        Row(r.title, r.unit, {**r.samples, **absent}, r.more_is_better) if r.unit != "calls/s" else r
        for r in rows
    ]
    version = api.version()
    api.close()
    machine = {
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "engine": version["Version"],
        "image": image.name,
        "load_before": round(before, 2),
        "load_after": round(os.getloadavg()[0], 2),
        "peers": list(PINNED),
    }
    return rows, machine


ROWS = ("shell", "code", "write", "read", "ready", "left", "parallel")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--repeat", type=int, default=20, help="samples of each call")
    parser.add_argument(
        "--quick", action="store_true", help="few samples, and 1 and 8 sandboxes at once only"
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    parser.add_argument("--without", nargs="+", choices=(BWRAP, MINI, REX), default=())
    parser.add_argument("--parallel", type=int, nargs="+", default=[1, 8, 32], metavar="N")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each burst of parallel calls")
    parser.add_argument("--bursts", type=int, default=3)
    parser.add_argument("--peers", type=Path, metavar="DIR", help="keep the peers' virtual environment here")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    options.rows = set(options.rows)
    if options.quick:
        options.repeat, options.parallel, options.seconds, options.bursts = 5, [1, 8], 1.5, 1
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="m3agent-bench-") as scratch:
            rows, machine = asyncio.run(run(options, Path(scratch)))
    except SandboxError as error:
        print(error, file=sys.stderr)
        return 1
    print(
        f"{machine['cores']} cores, engine {machine['engine']}, Python {machine['python']}, load "
        f"{machine['load_before']} to {machine['load_after']}; {time.monotonic() - started:.0f} s\n"
    )
    print(table(rows, TARGETS))
    for row in rows:
        print("\n" + bars(row))
    if options.json:
        found = [
            {
                "title": r.title,
                "unit": r.unit,
                "samples": r.samples,
                "medians": r.medians(),
                "ratios": r.ratios(),
            }
            for r in rows
        ]
        targets = [
            {**vars(t), "measured": t.verdict(rows)[0], "verdict": t.verdict(rows)[1]} for t in TARGETS
        ]
        write_json(options.json, {"machine": machine, "rows": found, "targets": targets})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""A machine for sandboxes that is this process: the supervisor's protocol over a transport in memory.

Everything above the stream is the product's own: `Channel`, `Sandbox`, `Workspace`. `tests/sandbox/backends/test_contract.py`
holds it to what is promised of a sandbox, beside the real machines.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from m3agent.sandbox.backends.pytest_bundle import BYTECODE, PROBE
from m3agent.sandbox.backends.sandbox import BESIDE, Folders, Sandbox, SandboxLimits
from m3agent.sandbox.errors import SandboxDied
from m3agent.sandbox.protocol.channel import Channel
from m3agent.sandbox.protocol.supervisor import FRAME, Refused
from m3agent.sandbox.store.workspace import Workspace
from tests.fakes.files import MemoryFiles
from tests.fakes.trees import memory_workspace


@dataclass(frozen=True)
class Command:
    """A command as a script gets it; `files` is the work tree, which it may change."""

    argv: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    stdin: bytes
    files: MemoryFiles


@dataclass(frozen=True)
class Done:
    """What a command did."""

    exit: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    seconds: float = 0.0
    timed_out: bool = False


PYTHON = "3.12.4"
"""The version of Python that a machine in memory claims to have."""

Script = Callable[[Command], Awaitable[Done | None]]
"""What commands do; None where there is no such program."""


async def no_programs(_: Command) -> None:
    """The script of a machine on which no program is installed."""


class MemoryMachine:
    """A `Machine` whose supervisor is in this process. What commands do is up to the script."""

    name = "memory"
    isolated = True

    def __init__(self, script: Script = no_programs) -> None:
        self.limits = SandboxLimits()
        self.environment: dict[str, str] = {}
        self.image_id = "memory"
        self.folders = Folders()
        self.files = MemoryFiles()
        self._script = script
        self._supervisor: MemorySupervisor | None = None

    async def start(self) -> Channel:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        self._supervisor = MemorySupervisor(protocol, self.files, self._script)
        writer = asyncio.StreamWriter(self._supervisor, protocol, reader, asyncio.get_running_loop())
        return Channel(reader, writer, multiplexed=False, why_dead=self._why_dead)

    async def destroy(self) -> None:
        if self._supervisor is not None:
            self._supervisor.close()

    def job_limits(self) -> dict[str, int]:
        return {}

    async def _why_dead(self) -> SandboxDied:
        return SandboxDied("the machine in memory was destroyed")


class MemorySupervisor(asyncio.Transport):
    """The other end of a channel: answers its frames from files in memory."""

    def __init__(self, protocol: asyncio.StreamReaderProtocol, files: MemoryFiles, script: Script) -> None:
        super().__init__()
        self._protocol = protocol
        self._files = files
        self._script = script
        self._inbox = bytearray()
        self._source: int | None = None
        self._jobs: dict[int, asyncio.Task[None]] = {}
        self._closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._inbox += data
        if self._source is None and len(self._inbox) >= 8:
            self._source = int(self._inbox[:8]) + 8
        if self._source and len(self._inbox) >= self._source:
            del self._inbox[: self._source]
            self._source = 0
            self._send({"ev": "hello"})
        while self._source == 0 and len(self._inbox) >= FRAME.size:
            n_header, n_payload = FRAME.unpack_from(self._inbox)
            middle = FRAME.size + n_header
            if len(self._inbox) < middle + n_payload:
                return
            header = json.loads(self._inbox[FRAME.size : middle])
            payload = bytes(self._inbox[middle : middle + n_payload])
            del self._inbox[: middle + n_payload]
            self._handle(header, payload)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            for job in self._jobs.values():
                job.cancel()
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def _send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        if not self._closing:
            raw = json.dumps(header).encode()
            self._protocol.data_received(FRAME.pack(len(raw), len(payload)) + raw + payload)

    def _handle(self, header: dict[str, Any], payload: bytes) -> None:
        if header["op"] == "exec":
            self._jobs[header["id"]] = asyncio.create_task(self._run(header, payload))
            return
        answer = b""
        more: dict[str, Any] = {}
        try:
            match header["op"]:
                case "alive":
                    return
                case "ping":
                    pass
                case "read":
                    answer = self._files.read(header["path"])[: header["limit"]]
                case "write":
                    self._files.write(header["path"], payload)
                case "put":
                    self._put(header, payload)
                case "delete":
                    for path in header["paths"]:
                        self._files.delete(path)
                case "scan":
                    more["changed"], more["deleted"] = self._files.scan(set(header["skip"]), header["most"])
                case "touched":
                    more["paths"] = []
                case "kill":
                    self._jobs[header["job"]].cancel()
                case other:
                    raise Refused("unknown-op", f"unknown operation {other!r}")
        except Refused as error:
            self._send({"id": header["id"], "ev": "error", "code": error.code, "text": str(error)})
        else:
            self._send({"id": header["id"], "ev": "ok", **more}, answer)

    def _put(self, header: dict[str, Any], payload: bytes) -> None:
        for path, mode, size, sha in header["files"]:
            content, payload = payload[:size], payload[size:]
            if header["into"] is None:
                self._files.lay(path, mode, sha, content)

    async def _run(self, header: dict[str, Any], payload: bytes) -> None:
        ident, argv = header["id"], header["argv"]
        command = Command(argv, header["cwd"], header["env"], payload, self._files)
        there = command.cwd.startswith("/") or self._files.is_folder(command.cwd)
        done = await self._do(command) if there else None
        if done is None:
            what = argv[0] if there else command.cwd
            text = f"{what}: No such file or directory"
            self._send({"id": ident, "ev": "error", "code": "exec", "text": text})
            return
        self._send({"id": ident, "ev": "started", "pid": 2, "warm": False})
        for stream, data in ((1, done.stdout), (2, done.stderr)):
            if data:
                self._send({"id": ident, "ev": "out", "fd": stream}, data)
        end = {"exit": done.exit, "timed_out": done.timed_out, "seconds": done.seconds, "oom": False}
        self._send({"id": ident, "ev": "exit", "total": [len(done.stdout), len(done.stderr)], **end})

    async def _do(self, command: Command) -> Done | None:
        """What a command did: one of the sandbox's own, else one of the script's."""
        match command.argv:
            case ["python3", "-c", program, *_] if program == PROBE:
                return Done(stdout=f"{BYTECODE} {PYTHON}\npython pytest\n\n".encode())
            case ["sh", "-c", program] if BESIDE in program:
                return Done()
            case ["python3", "-c", program, path] if "os.readlink" in program:
                return Done(stdout=self._files.target(path))
        return await self._script(command)


def memory_sandbox(workspace: Workspace, script: Script = no_programs) -> Sandbox:
    """A sandbox in memory over a workspace; enter it to start it."""
    return Sandbox(MemoryMachine(script), workspace)


def sandbox_over(folder: Path, files: Mapping[str, str | bytes], script: Script = no_programs) -> Sandbox:
    """A sandbox in memory over these files, whose trees are in memory as well."""
    return memory_sandbox(memory_workspace(folder, files), script)

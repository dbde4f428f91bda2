"""The contract of a sandbox, and the part of it that every backend shares.

A backend is a `Machine`: it starts the supervisor somewhere and hands over a channel to it. All else (commands,
files, checkpoints, the patch) is the same everywhere and lives in `Sandbox`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from m3agent.sandbox.channel import Channel, Header, Request
from m3agent.sandbox.errors import DiskFull, FileProblem, PathEscapes, SandboxError, SandboxTimeout
from m3agent.sandbox.git import SKIP_FOLDERS
from m3agent.sandbox.toolbox import BYTECODE, PROBE, WANTED_MODULES, modules_archive
from m3agent.sandbox.workspace import MOST_BYTES, MOST_FILES, Patch, TreeId, Workspace, inside_git

ROOT = "/ws"
"""Where the work tree is inside every sandbox."""
TOOLBOX = "/opt/m3agent"
"""Where what the image lacks (pytest) is laid down inside the sandbox."""

KEEP = 32 << 10  # bytes kept of the head and of the tail of each output stream
GRACE = 1.0  # seconds between SIGTERM and SIGKILL when a command is over its time
SLACK = 5.0  # seconds the supervisor may be late before the host kills the whole sandbox
PUT_BATCH = 8 << 20  # bytes of files sent in one frame
START_TIMEOUT = 60.0  # seconds from the start of the machine to the supervisor's greeting


@dataclass(frozen=True)
class Limits:
    """What a sandbox may use. memory and disk in bytes; disk is the work tree's, in memory (tmpfs).

    The sandbox's file systems together stay below 60 % of the memory, else filling them would get the supervisor
    killed instead of the job (measured).
    """

    memory: int = 4 << 30
    cpus: float = 2.0
    pids: int = 256

    @property
    def disk(self) -> int:
        """Bytes of the work tree's file system."""
        return self.memory * 2 // 5

    @property
    def scratch(self) -> int:
        """Bytes of /tmp."""
        return self.memory // 8

    @property
    def inodes(self) -> int:
        """Files the work tree may hold: one per 8 KiB."""
        return self.disk // 8192


@dataclass(frozen=True)
class ExecResult:
    """What one command did.

    exit: its exit status; negative is the signal that ended it.
    stdout, stderr: head and tail of each (at most 64 KiB); `omitted` bytes are missing between them.
    total_bytes: all it wrote to both. digest: SHA-256 over the whole output (the first 50 MiB of it).
    oom: the kernel killed something for memory while it ran. job: the id of a background command.
    """

    exit: int
    stdout: bytes
    stderr: bytes
    total_bytes: int
    timed_out: bool
    seconds: float
    digest: str = ""
    omitted: tuple[int, int] = (0, 0)
    oom: bool = False
    job: int | None = None


class Machine(Protocol):
    """A way to get a supervisor running in isolation."""

    name: str
    limits: Limits

    async def start(self) -> Channel:
        """Start it; raises EngineUnavailable, ImageMissing or SandboxDied."""
        ...

    async def destroy(self) -> None:
        """End it with everything in it; safe to call twice and after it died."""
        ...

    def job_limits(self) -> dict[str, int]:
        """Resource limits (RLIMIT_ names) that each command gets, where there is no control group."""
        ...


@dataclass
class _Output:
    """Head and tail of a stream, and the digest of all of it."""

    keep: int
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    seen: int = 0
    sha: Any = field(default_factory=hashlib.sha256)

    def add(self, data: bytes) -> None:
        self.sha.update(data)
        self.seen += len(data)
        room = self.keep - len(self.head)
        self.head += data[:room]
        self.tail = (self.tail + data[max(0, room) :])[-self.keep :]

    def kept(self) -> bytes:
        return bytes(self.head + self.tail)


class Sandbox:
    """An isolated machine with the work tree in it. Use as an asynchronous context manager."""

    def __init__(self, machine: Machine, workspace: Workspace) -> None:
        self.machine = machine
        self.workspace = workspace
        self.tree: TreeId = workspace.base
        self.left_out: dict[str, str] = {}
        """Changed files that cannot be part of a patch: path and reason."""
        self._channel: Channel | None = None
        self._env: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _start(self) -> None:
        self._channel = await self.machine.start()
        await self._channel.boot(START_TIMEOUT)
        await self._lay(self.tree, set())
        python_path = [ROOT]
        if any(path.startswith("src/") for path in self.workspace.entries(self.tree)):
            python_path.append(f"{ROOT}/src")
        self._env = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/tmp/home",  # noqa: S108 - inside the sandbox
            "USER": "m3agent",
            "LOGNAME": "m3agent",
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "PYTHONPATH": ":".join(python_path),
            "PYTHONDONTWRITEBYTECODE": "1",  # stale bytecode of an edited file would lie about it
            "PYTHONHASHSEED": "0",
            "PYTHONUNBUFFERED": "1",  # what was printed before a timeout is not lost
            "PIP_NO_INDEX": "1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
        }
        await self._equip(python_path)

    async def _equip(self, python_path: list[str]) -> None:
        """Lay down what the image lacks to run tests, and a git history of one commit where there is git."""
        # an empty folder and no PYTHONPATH keep the work tree from being asked for modules
        clean = {"PYTHONPATH": ""}
        probe = await self.exec(["python3", "-c", PROBE, *WANTED_MODULES], cwd=TOOLBOX, env=clean)
        if probe.exit != 0:
            raise SandboxError(f"python3 in the sandbox does not work: {_last_line(probe.stderr)}")
        bytecode, *missing = probe.stdout.decode().split()
        if missing:
            unpack = f"import sys,tarfile; tarfile.open(fileobj=sys.stdin.buffer, mode='r|').extractall({TOOLBOX!r})"
            compiled = bytecode == BYTECODE
            archive = await asyncio.to_thread(modules_archive, tuple(missing), compiled=compiled)
            argv = ["python3", "-W", "ignore", "-c", unpack]
            done = await self.exec(argv, cwd=TOOLBOX, stdin=archive, env=clean)
            if done.exit != 0:
                raise SandboxError(f"cannot lay down pytest in the sandbox: {_last_line(done.stderr)}")
            self._env["PYTHONPATH"] = ":".join([*python_path, TOOLBOX])
        history = (
            "mkdir -p $HOME; command -v git >/dev/null || exit 0; git init -q . && git add -A . "
            "&& git -c user.name=m3agent -c user.email=m3agent@localhost -c commit.gpgsign=false "
            "commit -q --allow-empty --no-verify -m base"
        )
        await self.exec(["sh", "-c", history])

    @property
    def channel(self) -> Channel:
        """The open channel to the supervisor."""
        if self._channel is None:
            raise SandboxError("the sandbox is not open")
        return self._channel

    async def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout: float = 60.0,
        background: bool = False,
        log: Path | None = None,
        keep: int = KEEP,
    ) -> ExecResult:
        """Run a command; returns when its main process ends, with everything it started killed.

        `timeout` is in seconds: SIGTERM, a second's grace, then SIGKILL to the whole tree. `background` returns at
        once and leaves it running until `kill` or the end. `log` gets the whole output (its first 50 MiB); `keep`
        bytes of the head and of the tail of each stream are returned.

        Raises:
            SandboxDied, OutOfMemory: the sandbox went away under it.
            SandboxTimeout: the supervisor itself stopped answering; the sandbox has been destroyed.
            DiskFull: the host could not write the log.
        """
        request = self.channel.open_request(
            "exec",
            stdin,
            argv=list(argv),
            cwd=cwd,
            env={**self._env, **(env or {})},
            timeout=None if background else timeout,
            grace=GRACE,
            background=background,
            limits=self.machine.job_limits(),
        )
        if background:
            header, _ = await request.next()
            text = header.get("text", "").encode()
            return ExecResult(127 if text else 0, b"", text, 0, False, 0.0, job=request.id)
        with request:
            try:
                async with asyncio.timeout(timeout + GRACE + SLACK):
                    await self.channel.drain()
                    return await self._collect(request, log, keep)
            except TimeoutError:
                await self.close()
                raise SandboxTimeout(
                    f"the sandbox stopped answering {timeout:.0f} s into a command"
                ) from None
            except asyncio.CancelledError:
                if not self.channel.dead:
                    self.channel.open_request("kill", job=request.id)
                raise

    async def _collect(self, request: Request, log: Path | None, keep: int) -> ExecResult:
        streams = {1: _Output(keep), 2: _Output(keep)}
        file = None if log is None else await asyncio.to_thread(log.open, "wb")
        try:
            while True:
                header, payload = await request.next()
                if header["ev"] == "out":
                    streams[header["fd"]].add(payload)
                    if file is not None:
                        file.write(payload)
                elif header["ev"] == "error":
                    return ExecResult(127, b"", header["text"].encode(), 0, False, 0.0, digest=header["code"])
                elif header["ev"] == "exit":
                    return _result(header, streams)
        except OSError as error:
            raise DiskFull(f"cannot write {log}: {error.strerror}; make room and try again") from None
        finally:
            if file is not None:
                file.close()

    async def kill(self, job: int) -> None:
        """End a background command and everything it started."""
        await self._ask("kill", job=job)

    async def ping(self) -> None:
        """Return if the supervisor answers; raises SandboxDied or SandboxTimeout if not."""
        await self._ask("ping")

    async def read(self, path: str, *, limit: int = 64 << 20) -> bytes:
        """The content of a file of the work tree, at most `limit` bytes of it.

        Raises:
            FileProblem: missing, a folder, or not a plain file. PathEscapes: outside the work tree.
        """
        return (await self._ask("read", path=path, limit=limit))[1]

    async def write(self, path: str, content: bytes) -> None:
        """Write a file of the work tree: whole or not at all; missing folders are made.

        Raises:
            FileProblem, PathEscapes: as for `read`. DiskFull: no room; the old content is still there.
        """
        await self._ask("write", content, path=path)

    async def checkpoint(self) -> TreeId:
        """The state of the work tree now, as a git tree id (ignored new files are not part of it)."""
        header, _ = await self._ask("scan", skip=list(SKIP_FOLDERS), most=MOST_BYTES)
        if not header["changed"] and not header["deleted"]:
            return self.tree
        tracked = set(await asyncio.to_thread(self.workspace.entries, self.tree))
        found = {path: (mode, sha) for path, mode, sha, _ in header["changed"] if not inside_git(path)}
        wanted = await asyncio.to_thread(self.workspace.wanted, list(found), tracked)
        new = [path for path in wanted if path not in tracked]
        if len(new) > MOST_FILES:
            self.left_out[f"{len(new) - MOST_FILES} new files"] = f"more than {MOST_FILES} new files"
            wanted = [path for path in wanted if path in tracked or path in set(sorted(new)[:MOST_FILES])]
        changed = []
        for path in wanted:
            mode, sha = found[path]
            if sha is None:
                self.left_out[path] = f"larger than {MOST_BYTES >> 20} MiB"
                continue
            content = await self._read_entry(path, mode)
            if content is not None:
                changed.append((path, mode, content))
        self.tree = await asyncio.to_thread(
            self.workspace.commit_changes, self.tree, changed, header["deleted"]
        )
        return self.tree

    async def rollback(self, tree: TreeId) -> None:
        """Put the work tree back to a state; new ignored files stay."""
        await self.checkpoint()
        gone = set(self.workspace.entries(self.tree)) - set(self.workspace.entries(tree))
        await self._ask("delete", paths=sorted(gone))
        changed = {path for _, path in self.workspace.store.changed_paths(self.tree, tree)}
        keep = set(self.workspace.entries(tree)) - changed
        await self._lay(tree, keep)
        self.tree = tree

    async def patch(self) -> Patch:
        """What has changed since the base.

        Raises:
            PathEscapes: the change is one that is never handed over (see `Workspace.patch`).
        """
        return await asyncio.to_thread(self.workspace.patch, await self.checkpoint())

    async def close(self) -> None:
        """End the sandbox with everything in it; safe to call twice."""
        if self._channel is not None:
            await self._channel.close()
        await self.machine.destroy()

    async def _read_entry(self, path: str, mode: int) -> bytes | None:
        """A changed file's content, or None if it vanished since the scan."""
        if mode == 0o120000:
            read = "import os,sys; sys.stdout.buffer.write(os.fsencode(os.readlink(sys.argv[1])))"
            done = await self.exec(["python3", "-c", read, path])
            return done.stdout if done.exit == 0 else None
        try:
            return await self.read(path)
        except FileProblem:
            return None

    async def _lay(self, tree: TreeId, keep: set[str]) -> None:
        """Put the files of a state into the work tree, but those in `keep`."""
        entries = [e for p, e in self.workspace.entries(tree).items() if p not in keep]
        for start in range(0, len(entries), 500):
            batch = entries[start : start + 500]
            blobs = await asyncio.to_thread(self.workspace.store.get_blobs, [e.sha for e in batch])
            files: list[tuple[str, int, int]] = []
            payload = bytearray()
            for entry, blob in zip(batch, blobs, strict=True):
                if files and len(payload) + len(blob) > PUT_BATCH:
                    await self._ask("put", bytes(payload), files=files)
                    files, payload = [], bytearray()
                files.append((entry.path, entry.mode, len(blob)))
                payload += blob
            if files:
                await self._ask("put", bytes(payload), files=files)

    async def _ask(self, op: str, payload: bytes = b"", **fields: Any) -> tuple[Header, bytes]:
        header, answer = await self.channel.ask(op, payload, **fields)
        if header["ev"] == "error":
            raise _typed(header["code"], header["text"], str(fields.get("path", "")))
        return header, answer


def _result(header: Header, streams: Mapping[int, _Output]) -> ExecResult:
    out, err = streams[1], streams[2]
    totals = header["total"]
    digest = hashlib.sha256(
        f"{header['exit']} {out.sha.hexdigest()} {err.sha.hexdigest()}".encode()
    ).hexdigest()
    return ExecResult(
        exit=header["exit"],
        stdout=out.kept(),
        stderr=err.kept(),
        total_bytes=sum(totals),
        timed_out=header["timed_out"],
        seconds=header["seconds"],
        digest=digest,
        omitted=(totals[0] - len(out.kept()), totals[1] - len(err.kept())),
        oom=header["oom"],
    )


def _typed(code: str, text: str, path: str) -> SandboxError:
    """The supervisor's refusal as one of the package's errors."""
    if code in {"ENOSPC", "EDQUOT"}:
        return DiskFull(f"no room for {path or 'the work tree'}: the sandbox's disk is full")
    if code in {"escape", "ELOOP"}:
        return PathEscapes(
            text if code == "escape" else f"{path}: passes through a link that was put in the way"
        )
    named = path and path not in text
    return FileProblem(f"{path}: {text[:1].lower()}{text[1:]}" if named else text)


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no message"

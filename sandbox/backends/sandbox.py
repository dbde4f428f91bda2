"""Define the contract of a sandbox, and implement the part that all backends share.

A backend is a `Machine`: it starts the supervisor in isolation and returns a channel to it. Everything else
(commands, files, checkpoints, the patch) is the same for all backends and is in `Sandbox`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import posixpath
from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from m3agent.sandbox.backends.image import DEFAULT_PATH
from m3agent.sandbox.backends.launchers import FOLDER as LAUNCHERS
from m3agent.sandbox.backends.launchers import IF_MISSING, launcher_files
from m3agent.sandbox.backends.pytest_bundle import BYTECODE, PROBE, WANTED_MODULES, missing_files
from m3agent.sandbox.errors import DiskFull, FileProblem, PathEscapes, SandboxError, SandboxTimeout
from m3agent.sandbox.network.network import Network, lend_certificates
from m3agent.sandbox.protocol.channel import Channel, ChannelRequest, Header
from m3agent.sandbox.store.git import SKIP_FOLDERS
from m3agent.sandbox.store.workspace import (
    LARGEST_FILE,
    MOST_BYTES,
    MOST_FILES,
    TOO_LARGE,
    Patch,
    TreeId,
    Workspace,
    inside_git,
)
from m3agent.util.counted import first_of

ROOT = "/ws"
"""Path of the work tree inside every sandbox."""
BESIDE = "/opt/m3agent-beside.tar"
"""Archive in which an image may keep files for the work tree that are not part of the work.

They come from building the image: for example metadata and compiled modules. Changes to them are never part
of a patch.
"""
SUITES = "/opt/m3agent-suites"
"""Folder in which an image may keep the dependencies of test suites, such as `node_modules`, for the work tree.

For each suite, it has `NAME.tar`. If the suite's folders contain no file of the repository, it also has `NAME.folders`, a
line with a JSON array of their paths, and `NAME.exclude`, their patterns for git. Such folders are never part of a patch.
"""
EQUIPPED = "M3AGENT_EQUIPPED"
"""Environment variable that an image sets if it contains everything that running tests needs.

The probe for modules cannot always see that: some of them may be in the work tree, which is not there yet at
that time.
"""
TOOLBOX = "/opt/m3agent"
"""Folder inside the sandbox for the modules (pytest) and commands (`python`, `pip`) that the image lacks."""
TEMPORARY = "/tmp"  # noqa: S108 - inside the sandbox
"""Folder inside the sandbox for temporary files and for the home of its user."""
BASE_MESSAGE = (
    "base of the work: this copy has no earlier history",
    "The repository's other commits, authors, branches and tags are not in this sandbox.",
)
"""Subject and body of the only commit in the work tree; `git log` shows them."""

KEEP = 32 << 10  # bytes kept of the head, and of the tail, of each output stream
GRACE = 1.0  # seconds between SIGTERM and SIGKILL after a command's timeout
SLACK = 30.0
"""Seconds that the supervisor may be late before the host kills the whole sandbox.

Far above what it allows itself to end a fork bomb (`SETTLE` several times over), because hundreds of busy processes
leave it little time on a loaded machine. If it dies, the host sees that at once.
"""
PUT_BATCH = 1 << 20  # bytes of files sent in one frame; more only if a single file is larger
PUT_AHEAD = 8  # number of such frames sent before the first is answered
PUT_TIMEOUT = 120.0  # seconds for writing the files of one frame
FEW_INODES = 4096  # files that the toolbox and /dev/shm may each hold
BYTES_PER_INODE = 8192  # bytes of a file system per file that it may hold
BLOCK = 4096  # bytes that a tmpfs takes for each part of a file
INODE_COST = 1024  # bytes of kernel memory that an empty file takes in a tmpfs: its inode and its name
LAY_TIMEOUT = 120.0  # seconds to lay an image's files into the work tree and to commit it
FULL = "the disk is full"
NO_SPACE = b": No space left on device"
NO_ROOM = "no room for the repository's dependencies in the work tree: give the sandbox more memory (setting `memory`)"
NO_COPIES = (
    "the sandbox has no room for git's copies of the files, so commands there find no git repository: give it more memory "
    "(setting `memory`)"
)
START_TIMEOUT = 60.0  # seconds from the start of the machine to the supervisor's first frame


@dataclass(frozen=True)
class SandboxLimits:
    """Resources that a sandbox may use.

    All its file systems together, full of files and with every inode used, stay below 60 % of the memory.
    Otherwise filling them would kill the supervisor instead of the job (measured).
    """

    memory: int = 4 << 30
    """Bytes of memory, including the file systems, which are in memory (tmpfs)."""
    cpus: float = 2.0
    pids: int = 256
    """Number of processes and threads."""

    @property
    def toolbox(self) -> int:
        """Bytes of the file system for the modules and commands that the image lacks; they take half of it."""
        return 32 << 20

    @property
    def shared(self) -> int:
        """Bytes of /dev/shm; System V's shared memory gets the same amount again."""
        return min(64 << 20, self.memory // 64)

    @property
    def disk(self) -> int:
        """Bytes of the work tree's file system."""
        return self._room * 4 // 5

    @property
    def scratch(self) -> int:
        """Bytes of /tmp."""
        return self._room // 5

    @property
    def inodes(self) -> int:
        """Number of files that the work tree may hold, one per 8 KiB; /tmp may hold the same number."""
        return self.disk // BYTES_PER_INODE

    @staticmethod
    def memory_for(sizes: Iterable[int]) -> int:
        """Return the bytes of memory of a sandbox with room for files of these sizes, and for git's copies of them."""
        disk = 2 * sum(max(BYTES_PER_INODE, -(-size // BLOCK) * BLOCK) for size in sizes)
        limits = SandboxLimits()
        return limits.memory * disk // limits.disk + (1 << 30)

    @property
    def _room(self) -> int:
        others = self.toolbox + 2 * self.shared + 2 * FEW_INODES * INODE_COST
        inodes = 1 + 2 * INODE_COST / BYTES_PER_INODE
        return max(16 << 20, int((self.memory * 59 // 100 - others) / inodes))


@dataclass(frozen=True)
class Folders:
    """Absolute paths of a sandbox's folders."""

    work_tree: str = ROOT
    """The repository."""
    toolbox: str = TOOLBOX
    """The modules (pytest) and commands (`python`, `pip`) that the sandbox lacks."""
    temporary: str = TEMPORARY
    """Temporary files and the home of the user."""


@dataclass(frozen=True)
class ExecResult:
    """Result of one command."""

    exit: int
    """Exit status; a negative number is the signal that ended the command."""
    stdout: bytes
    """Head and tail of the standard output; at most 64 KiB with the default `keep`."""
    stderr: bytes
    """The same for the standard error."""
    total_bytes: int
    """Bytes written to both streams."""
    timed_out: bool
    """Whether the timeout ended the command."""
    seconds: float
    digest: str = ""
    """SHA-256 over exit status and output (the output's first 50 MiB); for a command that did not start, the
    error code.
    """
    omitted: tuple[int, int] = (0, 0)
    """Bytes missing between head and tail of stdout and of stderr."""
    oom: bool = False
    """Whether the kernel killed a process for lack of memory during the command."""
    job: int | None = None
    """Id of a background command."""


class Machine(Protocol):
    """A way to run a supervisor in isolation."""

    name: str
    limits: SandboxLimits
    environment: dict[str, str]
    """Variables that commands get in addition to our own: those of the image, known once it has started."""
    image_id: str
    """Text that changes if other programs are installed: known once the machine has started."""
    folders: Folders
    """Paths of its folders: known once the machine has started."""
    isolated: bool
    """Whether commands are isolated from this machine. If not, they also have its network and its user's home."""

    async def start(self) -> Channel:
        """Start the machine.

        Raises:
            EngineUnavailable: There is no usable engine.
            ImageMissing: The image is missing or unusable.
            SandboxDied: The machine ended while it started.
        """
        ...

    async def destroy(self) -> None:
        """Stop the machine and everything in it; safe to call twice, and after the machine died."""
        ...

    def job_limits(self) -> dict[str, int]:
        """Return resource limits (RLIMIT_ names) for each command, if there is no control group."""
        ...


@dataclass
class _Output:
    """Head and tail of a stream, and the digest of the whole stream."""

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
    """An isolated machine with the work tree in it; use it as an asynchronous context manager."""

    def __init__(
        self,
        machine: Machine,
        workspace: Workspace,
        network: Network | None = None,
        python_folders: tuple[str, ...] = (),
        declared: Mapping[str, str] | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.machine = machine
        self.workspace = workspace
        self.tree = workspace.base
        """The last known state of the work tree."""
        self.network = network
        """The network through which commands reach listed hosts; None if there is no network."""
        self.python_folders = python_folders
        """Folders of the work tree from which Python imports, besides its root and `src`."""
        self._declared = declared or {}
        self._say = say
        self.left_out: dict[str, str] = {}
        """Changed files that cannot be part of a patch: path to reason."""
        self.python = ""
        """Version of the python3 that commands run, such as `3.12.4`; empty until the sandbox has started."""
        self.typed_env: dict[str, str] = {}
        """Variables for `exec` if a person or a model wrote the command: then `pip` is m3agent's (see `launchers`)."""
        self._channel: Channel | None = None
        self._background: dict[int, asyncio.Task[ExecResult]] = {}
        self._env: dict[str, str] = {}
        self._beside: set[str] = set()
        self._beside_folders: tuple[str, ...] = ()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def boot(self) -> None:
        """Start the machine and everything that does not depend on the work tree."""
        self._channel = await self.machine.start()
        await self._channel.boot(START_TIMEOUT)
        own = self.machine.environment
        path = own.get("PATH") or DEFAULT_PATH
        launchers = f"{self.folders.toolbox}/{LAUNCHERS}"
        self.typed_env = {"PATH": f"{launchers}:{path}"}
        self._env = {
            **own,
            # Programs in the sandbox can write to this folder. So they must not replace what m3agent itself runs.
            "PATH": path if EQUIPPED in own else f"{path}:{launchers}",
            "HOME": f"{self.folders.temporary}/home",
            "USER": "m3agent",
            "LOGNAME": "m3agent",
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "PYTHONPATH": "",
            "PYTHONDONTWRITEBYTECODE": "1",  # stale bytecode would not match an edited file
            "PYTHONHASHSEED": "0",
            "PYTHONUNBUFFERED": "1",  # output before a timeout is not lost
            "PIP_NO_INDEX": "1",
            "PIP_BREAK_SYSTEM_PACKAGES": "1",  # otherwise advice on virtual environments hides the real reason
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            **self._declared,
        }
        if not self.machine.isolated:
            self.typed_env = {}
            del self._env["PIP_NO_INDEX"], self._env["PIP_BREAK_SYSTEM_PACKAGES"]
            self._env |= {name: own[name] for name in ("HOME", "USER", "LOGNAME") if name in own}
        if self.network is not None:
            await self._connect(self.network)
        await self._equip()

    async def _start(self) -> None:
        await self.boot()
        try:
            size = await self._lay(self.tree, set(), alone=True)
        except DiskFull:
            raise await asyncio.to_thread(self._too_small) from None
        work_tree = self.folders.work_tree
        inner = [f"{work_tree}/{folder}" for folder in self.python_folders]
        python_path = [work_tree, *inner, self._env["PYTHONPATH"]]
        if any(path.startswith("src/") for path in self.workspace.entries(self.tree)):
            python_path.insert(1, f"{work_tree}/src")
        self._env["PYTHONPATH"] = ":".join(filter(None, python_path))
        # Compressing takes longer than the rest of the start. Space is short only if the tree is large.
        compression = 0 if size < self.machine.limits.disk // 8 else 1
        settings = f"-c gc.auto=0 -c commit.gpgsign=false -c core.looseCompression={compression}"
        # Without showRoot, `git log --stat` would list every file as new.
        subject, body = BASE_MESSAGE
        history = (
            f"for archive in {BESIDE} {SUITES}/*.tar; do "
            'if [ -f "$archive" ]; then echo there; errors=$(tar -x -k -f "$archive" 2>&1); '
            f'case "$errors" in *": No space left on device"*|*": Wrote only "*) echo {FULL};; esac; fi; done; '
            f"cat {SUITES}/*.folders 2>/dev/null; "
            # A wheel of the project may have brought a `.git` with hooks.
            "rm -rf .git; mkdir -p $HOME; command -v git >/dev/null || exit 0; git init -q --template= . && "
            f"{{ [ ! -d {SUITES} ] || {{ mkdir -p .git/info; cat {SUITES}/*.exclude > .git/info/exclude; }} 2>/dev/null; true; }} && "
            "printf '[log]\\n\\tshowRoot = false\\n' >> .git/config && "
            f"git {settings} add -A . && git {settings} -c user.name=m3agent -c user.email=m3agent@localhost "
            f'commit -q --allow-empty --no-verify -m "{subject}" -m "{body}"'
        )
        done = await self.exec(["sh", "-c", history], timeout=LAY_TIMEOUT)
        lines = done.stdout.decode(errors="replace").splitlines()
        if FULL in lines:
            raise DiskFull(NO_ROOM)
        if NO_SPACE in done.stderr:
            self._say(NO_COPIES)
            await self.exec(["rm", "-rf", ".git"])
        paths = self.workspace.entries(self.tree)
        self._beside_folders = tuple(
            folder for folder in _folders(lines) if not any(path.startswith(f"{folder}/") for path in paths)
        )
        if "there" in lines or not self.machine.isolated:
            self._beside = {path for path, *_ in (await self._scan())["changed"]}

    async def _scan(self) -> Header:
        """Return which files of the work tree changed since the last scan."""
        skip = [*SKIP_FOLDERS, *(f"/{folder}" for folder in self._beside_folders)]
        return (await self._ask("scan", skip=skip, most=MOST_BYTES))[0]

    async def _connect(self, network: Network) -> None:
        """Open the network before any command runs, so that no other program can occupy the proxy's port."""
        self._env |= await network.open(self.channel)
        del self._env["PIP_NO_INDEX"]

        async def run(argv: list[str], stdin: bytes) -> int:
            return (await self.exec(argv, cwd=self.folders.toolbox, stdin=stdin)).exit

        self._env |= await lend_certificates(run, f"{self.folders.toolbox}/certificates.pem")

    async def _equip(self) -> None:
        """Write the modules and commands for running tests that the image lacks into the sandbox."""
        names = (" ".join(IF_MISSING), " ".join(WANTED_MODULES))
        probe = await self.exec(["python3", "-c", PROBE, *names], cwd=self.folders.toolbox)
        if probe.exit != 0:
            raise SandboxError(f"python3 in the sandbox does not work: {_last_line(probe.stderr)}")
        interpreter, commands, modules = (line.split() for line in probe.stdout.decode().splitlines()[-3:])
        bytecode, self.python = interpreter
        files = launcher_files(commands if self.machine.isolated else [*commands, "pip", "pip3"])
        if modules and EQUIPPED not in self._env:
            compiled = bytecode == BYTECODE
            files += await asyncio.to_thread(missing_files, self.python, modules, compiled=compiled)
            self._env["PYTHONPATH"] = self.folders.toolbox
        await self._put(files, self.folders.toolbox)

    @property
    def folders(self) -> Folders:
        """The absolute paths of the folders in the sandbox."""
        return self.machine.folders

    @property
    def has_network(self) -> bool:
        """Whether commands can reach other machines."""
        return self.network is not None or not self.machine.isolated

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables of each command."""
        return self._env

    @property
    def channel(self) -> Channel:
        """The open channel to the supervisor."""
        if self._channel is None:
            raise SandboxError("the sandbox is not open")
        return self._channel

    @property
    def seccomp(self) -> bool:
        """Whether the supervisor's own system call filter is active; it supports x86_64 and aarch64."""
        return bool(self.channel.hello.get("seccomp"))

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
        feed: AsyncIterable[bytes] | None = None,
        sink: Callable[[int, bytes], object] | None = None,
        file: str | None = None,
        warm: bool = False,
    ) -> ExecResult:
        """Run a command; return when its main process has ended and all its other processes are killed.

        The supervisor runs a limited number of commands at once. The time that a command waits for its turn
        does not count.

        Args:
            argv: Program and arguments.
            cwd: Working directory, relative to the work tree.
            env: Variables in addition to the sandbox's own.
            stdin: Start of the standard input.
            timeout: Seconds until SIGTERM; a second later all processes of the command get SIGKILL.
            background: Return at once; the command runs until `kill` or the end of the sandbox.
            log: File that receives the whole output (its first 50 MiB).
            keep: Bytes returned of the head and of the tail of each stream.
            feed: Standard input that follows `stdin`.
            sink: Callback for each piece of output: the stream's number (1 or 2) and the bytes; at most 50
                MiB in all.
            file: Absolute path outside the work tree that receives `stdin` as its content; the command then
                has no input.
            warm: The command is a Python interpreter and `file` its program. The supervisor may then start
                the interpreter of the next such request ahead of its program (see `Spare` in the supervisor).

        Raises:
            SandboxDied: The sandbox ended during the command.
            OutOfMemory: The sandbox was killed for lack of memory.
            SandboxTimeout: The supervisor itself stopped answering; the sandbox has been destroyed.
            DiskFull: The host could not write the log.
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
            more=feed is not None,
            limits=self.machine.job_limits(),
            file=file,
            warm=warm,
        )
        if background:
            header = await self._turn(request)
            if header["ev"] == "error":
                return _not_run(header)
            self._background[request.id] = asyncio.create_task(self._collect(request, log, keep, sink))
            return ExecResult(0, b"", b"", 0, False, 0.0, job=request.id)
        with request:
            feeding = None if feed is None else asyncio.create_task(self._feed(request.id, feed))
            try:
                async with asyncio.timeout(None) as clock:
                    await self.channel.drain()
                    header = await self._turn(request)
                    if header["ev"] == "error":
                        return _not_run(header)
                    clock.reschedule(asyncio.get_running_loop().time() + timeout + GRACE + SLACK)
                    return await self._collect(request, log, keep, sink)
            except TimeoutError:
                await self.close()
                raise SandboxTimeout(
                    f"the sandbox stopped answering {timeout:.0f} s into a command"
                ) from None
            except asyncio.CancelledError:
                if not self.channel.dead:
                    self.channel.tell("kill", job=request.id)
                raise
            finally:
                if feeding is not None:
                    feeding.cancel()
                    await asyncio.gather(feeding, return_exceptions=True)

    async def _turn(self, request: ChannelRequest) -> Header:
        """Wait until a command has started or failed to start; return that answer.

        Raises:
            SandboxTimeout: The supervisor does not answer; the sandbox has been closed.
        """
        while True:
            try:
                async with asyncio.timeout(GRACE + SLACK):
                    return (await request.next())[0]
            except TimeoutError:
                try:
                    await self.ping()  # if it answers, other commands have their turn
                except SandboxTimeout:
                    await self.close()
                    raise

    async def _feed(self, job: int, feed: AsyncIterable[bytes]) -> None:
        """Forward a command's further input until the input or the command ends."""
        async for data in feed:
            with self.channel.open_request("input", data, job=job) as request:
                await self.channel.drain()
                await request.next()  # answered once the child has read the data, so the child sets the pace
        with self.channel.open_request("input", job=job, end=True):
            await self.channel.drain()

    async def _collect(
        self,
        request: ChannelRequest,
        log: Path | None,
        keep: int,
        sink: Callable[[int, bytes], object] | None,
    ) -> ExecResult:
        streams = {1: _Output(keep), 2: _Output(keep)}
        try:
            # closing the file writes again what could not be written before
            with contextlib.nullcontext() if log is None else await asyncio.to_thread(log.open, "wb") as file:
                while True:
                    header, payload = await request.next()
                    if header["ev"] == "out":
                        streams[header["fd"]].add(payload)
                        if file is not None:
                            file.write(payload)
                            file.flush()  # others may read the log while the command runs
                        if sink is not None:
                            sink(header["fd"], payload)
                    elif header["ev"] == "exit":
                        return _result(header, streams)
        except OSError as error:
            raise DiskFull(f"cannot write {log}: {error.strerror}; make room and try again") from None
        finally:
            self.channel.forget(request.id)

    async def kill(self, job: int) -> ExecResult | None:
        """Kill a background command and all its processes; return its result, or None for an unknown id."""
        await self._ask("kill", job=job)
        following = self._background.pop(job, None)
        return None if following is None else await following

    async def ping(self) -> None:
        """Return if the supervisor answers.

        Raises:
            SandboxDied: The sandbox ended.
            SandboxTimeout: There was no answer in time.
        """
        await self._ask("ping")

    async def read(self, path: str, *, limit: int = 64 << 20) -> bytes:
        """Return the first `limit` bytes of a file of the work tree.

        Raises:
            FileProblem: The file is missing, a folder, or not a plain file.
            PathEscapes: The path leaves the work tree.
        """
        return (await self._ask("read", path=path, limit=limit))[1]

    async def write(self, path: str, content: bytes) -> None:
        """Write a file of the work tree atomically; create missing folders.

        Raises:
            FileProblem: The target is not a regular file.
            PathEscapes: The path leaves the work tree.
            DiskFull: There is no space; the old content is unchanged.
        """
        await self._ask("write", content, path=path)

    async def checkpoint(self) -> TreeId:
        """Record the current state of the work tree; return its git tree id.

        New files that git ignores are not part of it.
        """
        header = await self._scan()
        if not header["changed"] and not header["deleted"]:
            return self.tree
        tracked = set(await asyncio.to_thread(self.workspace.entries, self.tree))
        found = {
            path: (mode, sha)
            for path, mode, sha, _ in header["changed"]
            if not inside_git(path) and path not in self._beside
        }
        wanted = await asyncio.to_thread(self.workspace.wanted, list(found), tracked)
        new = [path for path in wanted if path not in tracked]
        if len(new) > MOST_FILES:
            self.left_out[f"{len(new) - MOST_FILES} new files"] = f"more than {MOST_FILES} new files"
            first = set(sorted(new)[:MOST_FILES])
            wanted = [path for path in wanted if path in tracked or path in first]
        changed = await self._changed({path: found[path] for path in wanted})
        deleted = [path for path in header["deleted"] if self.workspace.submodule_of(path) is None]
        self.tree = await asyncio.to_thread(self.workspace.commit_changes, self.tree, changed, deleted)
        return self.tree

    async def _changed(self, found: Mapping[str, tuple[int, str | None]]) -> list[tuple[str, int, bytes]]:
        """Return path, mode and content of changed files, given by path with mode and hash; note those that no state has."""
        changed = []
        for path, (mode, sha) in found.items():
            if (place := self.workspace.submodule_of(path)) is not None:
                self.left_out[path] = f"in the submodule {place}"
                continue
            if sha is None:
                self.left_out[path] = f"larger than {MOST_BYTES >> 20} MiB"
                continue
            content = await self._read_entry(path, mode)
            if content is not None:
                changed.append((path, mode, content))
        return changed

    async def touched(self) -> set[str]:
        """Return the recorded files of the work tree that a program wrote or removed, even if it restored them.

        Files are recorded at the start, and when a checkpoint is made.
        """
        return set((await self._ask("touched"))[0]["paths"])

    async def is_left_out(self, path: str) -> bool:
        """Return whether changes to a file of the work tree never become part of a checkpoint.

        That is so for new files that git ignores and for files that belong to the image.
        """
        path = posixpath.normpath(path)
        tracked = set(await asyncio.to_thread(self.workspace.entries, self.tree))
        if path in tracked:
            return False
        inside = any(path == folder or path.startswith(f"{folder}/") for folder in self._beside_folders)
        if inside or path in self._beside:
            return True
        return not await asyncio.to_thread(self.workspace.wanted, [path], tracked)

    async def rollback(self, tree: TreeId) -> None:
        """Restore a state of the work tree; new ignored files stay."""
        await self.checkpoint()
        gone = set(self.workspace.entries(self.tree)) - set(self.workspace.entries(tree))
        await self._ask("delete", paths=sorted(gone))
        changed = {path for _, path in self.workspace.store.changed_paths(self.tree, tree)}
        keep = set(self.workspace.entries(tree)) - changed
        await self._lay(tree, keep)
        self.tree = tree

    async def patch(self) -> Patch:
        """Return the changes since the base.

        Raises:
            PathEscapes: A change must never be handed over (see `Workspace.patch`).
        """
        return await asyncio.to_thread(self.workspace.patch, await self.checkpoint())

    async def close(self) -> None:
        """Stop the sandbox and everything in it; safe to call twice."""
        if self.network is not None:
            await self.network.close()
        if self._channel is not None:
            await self._channel.close()
        await self.machine.destroy()
        for following in self._background.values():
            following.cancel()
        await asyncio.gather(*self._background.values(), return_exceptions=True)

    async def _read_entry(self, path: str, mode: int) -> bytes | None:
        """Return a changed file's content, or None if it is no longer what the scan found."""
        if mode == 0o120000:
            read = "import os,sys; sys.stdout.buffer.write(os.fsencode(os.readlink(sys.argv[1])))"
            done = await self.exec(["python3", "-c", read, path])
            return done.stdout if done.exit == 0 else None
        try:
            return await self.read(path)
        except (FileProblem, PathEscapes):  # gone or replaced; the next scan reports what it is
            return None

    def _too_small(self) -> DiskFull:
        entries = self.workspace.store.list_tree(self.tree)
        memory = SandboxLimits.memory_for(self.workspace.store.sizes([entry.sha for entry in entries]))
        return DiskFull(
            f"the sandbox has no room for the work tree of {len(entries):,} files: give it {-(-memory >> 30)} GiB of memory "
            "(setting `memory`)"
        )

    async def _lay(self, tree: TreeId, keep: set[str], *, alone: bool = False) -> int:
        """Write the files of a state into the work tree, except those in `keep`; return their bytes.

        With `alone`, no command runs that could change them.
        """
        entries = [e for p, e in self.workspace.entries(tree).items() if p not in keep]
        store, left_out = self.workspace.store, set[str]()

        def files() -> Iterator[tuple[str, int, str, bytes]]:
            blobs = store.each_blob_up_to([e.sha for e in entries], LARGEST_FILE)
            for e, blob in zip(entries, blobs, strict=True):
                if blob is None:
                    left_out.add(e.path)
                else:
                    yield e.path, e.mode, e.sha, blob

        size = await self._put(files(), alone=alone)
        if new := left_out - store.left_out:
            store.left_out |= new
            self._say(f"not copied into sandboxes, because {TOO_LARGE}: {first_of(sorted(new), 5)}")
        return size

    async def _put(
        self, files: Iterable[tuple[str, int, str, bytes]], into: str | None = None, *, alone: bool = False
    ) -> int:
        """Write files into the folder `into`, or into the work tree; return their size in bytes.

        Several frames are in flight at once, so that reading here, the transfer and writing there overlap.

        Args:
            files: For each file: path, git's mode, git's id, content.
            into: Absolute path of a folder inside the sandbox; None for the work tree.
            alone: Whether no command runs that could change them.
        """
        frames = _put_frames(files)
        sent: deque[ChannelRequest] = deque()
        size = 0
        frame = await asyncio.to_thread(next, frames, None)
        while frame is not None or sent:
            if frame is not None:
                size += len(frame[1])
                sent.append(
                    self.channel.open_request("put", frame[1], files=frame[0], into=into, alone=alone)
                )
                _, frame = await asyncio.gather(self.channel.drain(), asyncio.to_thread(next, frames, None))
            if frame is None or len(sent) >= PUT_AHEAD:
                with sent.popleft() as request:
                    try:
                        async with asyncio.timeout(PUT_TIMEOUT):
                            header, _ = await request.next()
                    except TimeoutError:
                        raise SandboxTimeout(
                            f"the sandbox did not write its files within {PUT_TIMEOUT:.0f} s"
                        ) from None
                if header["ev"] == "error":
                    raise _typed(header["code"], header["text"], "")
        return size

    async def _ask(self, op: str, payload: bytes = b"", **fields: Any) -> tuple[Header, bytes]:
        header, answer = await self.channel.ask(op, payload, **fields)
        if header["ev"] == "error":
            raise _typed(header["code"], header["text"], str(fields.get("path", "")))
        return header, answer


def _put_frames(
    files: Iterable[tuple[str, int, str, bytes]],
) -> Iterator[tuple[list[tuple[str, int, int, str]], bytes]]:
    """Yield batches of files: the list for a `put` request, and the concatenated contents."""
    batch: list[tuple[str, int, int, str]] = []
    contents: list[bytes] = []
    size = 0
    for path, mode, sha, content in files:
        if batch and (size + len(content) > PUT_BATCH or len(batch) >= 500):
            yield batch, b"".join(contents)
            batch, contents, size = [], [], 0
        batch.append((path, mode, len(content), sha))
        contents.append(content)
        size += len(content)
    if batch:
        yield batch, b"".join(contents)


def _not_run(header: Header) -> ExecResult:
    """Return the result of a command that could not start, with the exit status that a shell would give."""
    code = 126 if header["code"] == "exec-refused" else 127
    return ExecResult(code, b"", header["text"].encode(), 0, False, 0.0, digest=header["code"])


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
    """Convert an error of the supervisor to one of this package's errors."""
    if code in {"ENOSPC", "EDQUOT"}:
        return DiskFull(f"no room for {path or 'the work tree'}: the sandbox's disk is full")
    if code in {"escape", "ELOOP"}:
        return PathEscapes(
            text if code == "escape" else f"{path}: passes through a link that was placed in its way"
        )
    named = path and path not in text
    return FileProblem(f"{path}: {text[:1].lower()}{text[1:]}" if named else text)


def _folders(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the paths in those lines that are JSON arrays."""
    found: list[str] = []
    for line in lines:
        if line.startswith("["):
            with contextlib.suppress(ValueError, RecursionError):
                found += [path for path in json.loads(line) if isinstance(path, str)]
    return tuple(found)


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no message"

"""Build an image: install into a container that has nothing of this machine, then commit the container.

Packages may run code during their installation (source distributions, build steps). Therefore the container has no mounts
except the skeleton's /usr, limits on memory, processes, disk and time, no network but a proxy, and as few
capabilities as possible. Builds share no cache, so one repository's build cannot plant anything in another's.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import tarfile
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from m3agent.sandbox.backends.container_files import TooLarge, archive_of
from m3agent.sandbox.backends.docker_machine import LABEL, DockerMachine, ensure_reaper, our_labels
from m3agent.sandbox.backends.engine import socket_of
from m3agent.sandbox.backends.image import SKELETON_LABEL, Image
from m3agent.sandbox.backends.sandbox import START_TIMEOUT, SandboxLimits
from m3agent.sandbox.errors import EngineFailed, EnvironmentBuildFailed, SandboxError
from m3agent.sandbox.images.indexes import Indexes
from m3agent.sandbox.network.network import Network
from m3agent.sandbox.network.proxy import Caps, NetworkRequest, Proxy, Refusals
from m3agent.sandbox.network.upstream import Upstream
from m3agent.sandbox.store.git import TreeEntry, TreeStore
from m3agent.sandbox.store.workspace import LARGEST_FILE

BUILD_SECONDS = 1800.0
MOST_DISK = 12 << 30
"""Most bytes that a build may write. The largest common dependency, torch with its libraries, takes half of that."""
MOST_FILES = 4 << 20
"""Most bytes of files that a build may hand back, packed as a tar."""
MOST_IN_MEMORY = 64 << 20
"""Most bytes of a tree's tar that are kept in memory; a larger tar is a file."""
MEMORY = 4 << 30
PIDS = 512
SCRATCH = {"/tmp": f"rw,exec,nosuid,nodev,size={MEMORY * 3 // 5},mode=1777"}  # noqa: S108 - inside the container
LOOK = 0.25  # seconds between two checks of a running build
SIZE_EVERY = 5.0  # seconds between two checks of its size on the disk
TELL_AFTER, TELL_EVERY = 10.0, 120.0
"""Seconds to the first message that a build still runs, and most seconds between two: each pause is twice as long as the last."""
INSTALLING = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETGID", "SETUID")
"""Capabilities that dpkg and pip need as root.

They unpack files of other owners with their modes (the first four), and apt downloads as a user of its own (the last two).
"""
ENV = "/usr/bin/env"
"""Starts a command with variables that do not become part of the image, as those of the container would."""
NOTICE = "notice: "
CAUSE = re.compile("(?:error:|ERROR:|\u00d7)\\s*")  # start of an error of uv or pip
# start of the cause that uv gives for its error
DEEPER = re.compile("(?:\u2570\u2500\u25b6|Caused by:|cause:)\\s*")
UNREACHED = re.compile(
    r"could not (?:resolve host|transfer)|unable to access '|cannot connect to|failed to connect to|tunnel failed"
    r"|curl error \d+ while downloading|getaddrinfo (?:EAI_AGAIN|ENOTFOUND)"
    r"|name or service not known|temporary failure in name resolution|network is unreachable",
    re.IGNORECASE,
)
"""What git, Maven, Bundler, Composer, npm, Cargo and Go print about a server that they do not reach. Their last lines do not say it."""

NETWORK_LIMITS = SandboxLimits(memory=256 << 20, cpus=1.0, pids=16)
CAPS = Caps(bytes=16 << 30, requests=100_000)
"""More than a sandbox may move: the largest common dependency, torch with its libraries, has several GiB."""
REFUSALS = Refusals(
    "is not allowed for a build: it reaches the ports 80 and 443 of public hosts, and the indexes that you configured",
    "a build reaches such an address only if your own configuration of pip, uv or apt names the host",
)
MOST_TOLD = 5  # refused hosts that people are told of


@dataclass(frozen=True)
class Build:
    """A command to run in a container, and the configuration of the image that is made from the container."""

    what: str
    """Names the build in messages, as in "the repository's environment"."""
    base: Image
    command: tuple[str, ...]
    """Installs everything. An exit status other than 0 is a failure."""
    user: str
    folder: str
    image_env: Mapping[str, str]
    image_command: str
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of the command, besides those of the base image. They do not become part of the new image."""
    capabilities: tuple[str, ...] = ()
    """Linux capabilities that the command keeps."""
    indexes: Indexes | None = None
    """Where packages come from; the command can reach these hosts and all public ones, and nothing else. None: no network."""
    scratch: bool = True
    """Whether /tmp is not part of the image."""
    seconds: float | None = None
    """Most seconds that it may take; None for `BUILD_SECONDS`."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Further labels of the image."""


def build_image(
    api: Any,
    build: Build,
    tag: str | None,
    archives: Iterable[bytes | IO[bytes]],
    *,
    log: Path,
    say: Callable[[str], None],
    stop: threading.Event,
) -> str:
    """Build an image, tag it and return its id. Blocking; takes minutes.

    Args:
        tag: The image's name. Without one, it is a step of another image: it has no labels, and its output is appended
            to the log.
        archives: Tars that are unpacked at the container's root before the command starts.
        stop: Ends the build early; nothing of it remains.

    Raises:
        EnvironmentBuildFailed: The build failed, or took too long or too much disk.
    """
    if tag is not None:
        log.unlink(missing_ok=True)
    with _ended(api, build, archives, log, say, stop) as container:
        return _commit(api, container, build, tag)


def build_files(
    api: Any,
    build: Build,
    archives: Iterable[bytes | IO[bytes]],
    folder: str,
    *,
    log: Path,
    say: Callable[[str], None],
    stop: threading.Event,
) -> dict[str, bytes]:
    """Run a build's command and return the files that it leaves directly in a folder, by name; no image is made. Blocking.

    The command makes the folder. The other arguments are those of `build_image`.

    Raises:
        EnvironmentBuildFailed: The build failed, or the files have more than `MOST_FILES` bytes.
    """
    with _ended(api, build, archives, log, say, stop) as container:
        try:
            with archive_of(api, container, folder, MOST_FILES) as archive:
                files = ((entry.name, archive.extractfile(entry)) for entry in archive if entry.isreg())
                return {name.partition("/")[2]: file.read() for name, file in files if file is not None}
        except TooLarge:
            raise EnvironmentBuildFailed(
                f"{build.what} left more than {MOST_FILES >> 20} MiB of files"
            ) from None


@contextlib.contextmanager
def _ended(
    api: Any,
    build: Build,
    archives: Iterable[bytes | IO[bytes]],
    log: Path,
    say: Callable[[str], None],
    stop: threading.Event,
) -> Iterator[str]:
    """Run a build's command to its end; yield the container, and remove it afterwards."""
    with engine_failures(build.what), contextlib.ExitStack() as stack:
        network = "none"
        if build.indexes is not None:
            network = stack.enter_context(_build_network(build.indexes, say))
        container = _create(api, build, network)
        stack.callback(remove_container, api, container)
        for archive in archives:
            api.put_archive(container, "/", archive)
        if problem := _run(api, build, container, log, say, stop):
            raise EnvironmentBuildFailed(f"{build.what} could not be built: {problem}; the log is {log}")
        yield container


def _create(api: Any, build: Build, network: str) -> str:
    """Create the container of a build without starting it; return its id."""
    ensure_reaper(socket_of(api))
    variables = [f"{name}={value}" for name, value in build.env.items()]
    host_config = api.create_host_config(
        network_mode=network,
        cap_drop=["ALL"],
        cap_add=list(build.capabilities),
        security_opt=["no-new-privileges"],
        pids_limit=PIDS,
        mem_limit=MEMORY,
        memswap_limit=MEMORY,
        log_config={"Type": "none", "Config": {}},
        ulimits=[{"Name": "core", "Soft": 0, "Hard": 0}],
        binds=build.base.mounts,
        tmpfs=SCRATCH if build.scratch else {},
    )
    container: str = api.create_container(
        build.base.name,
        command=[*((ENV, *variables) if variables else ()), *build.command],
        entrypoint=[],
        user=build.user,
        working_dir=build.folder,
        environment={"PATH": build.base.path},
        labels=our_labels(),
        host_config=host_config,
    )["Id"]
    return container


def _commit(api: Any, container: str, build: Build, tag: str | None) -> str:
    """Commit a build's container as an image; return its id."""
    repository, _, name = (tag or "").partition(":")
    # The image would inherit the container's owner labels, so they are set to empty values, which name no owner.
    labels = {**dict.fromkeys(our_labels(), ""), **build.labels}
    if tag is not None:
        labels |= {LABEL: "1", f"{LABEL}.environment": name}
    if build.base.binds:
        labels[SKELETON_LABEL] = "1"
    conf = {
        "Labels": labels,
        "Env": [f"{key}={value}" for key, value in build.image_env.items()],
        "Cmd": [build.image_command],
    }
    ident: str = api.commit(container, repository=repository or None, tag=name or None, conf=conf)["Id"]
    return ident


def _run(
    api: Any, build: Build, container: str, log: Path, say: Callable[[str], None], stop: threading.Event
) -> str | None:
    """Run a build's container until it ends. Return why the build failed; None if it succeeded."""
    lines = _Lines(log, api.attach(container, stdout=True, stderr=True, stream=True))
    api.start(container)
    reader = threading.Thread(target=lines.read, daemon=True, name="m3agent-build-log")
    reader.start()
    started = told = measured = time.monotonic()
    pause = TELL_AFTER
    most = BUILD_SECONDS if build.seconds is None else build.seconds
    while reader.is_alive():
        reader.join(LOOK)
        now = time.monotonic()
        if stop.is_set():
            return "interrupted"
        if now - started > most:
            return f"it took more than {BUILD_SECONDS / 60:.0f} minutes"
        if now - told > pause:
            told, pause = now, min(2 * pause, TELL_EVERY)
            say(f"still building the environment ({now - started:.0f} s): {lines.last}")
        if now - measured > SIZE_EVERY:
            measured = now
            found = api.containers(all=True, size=True, filters={"id": container})
            if found and (found[0].get("SizeRw") or 0) > MOST_DISK:
                return f"it takes more than {MOST_DISK >> 30} GiB of disk"
    status = int(api.wait(container, timeout=60)["StatusCode"])
    for notice in lines.notices:
        say(notice)
    return lines.reason if status != 0 else None


class _Lines:
    """The output of a build: written to the log, with its notices and the reason of a failure picked out."""

    def __init__(self, log: Path, stream: Iterator[bytes]) -> None:
        self._log = log
        self._stream = stream
        self.last = "starting"
        self.notices: list[str] = []
        self._end = "the build container ended without a message"
        self._cause = ""
        self._unreached = ""

    @property
    def reason(self) -> str:
        """Why the build failed, if it did."""
        if self._unreached:
            return f"a server was not reached: {self._unreached} (the last line is: {self._end})"
        return self._end

    def read(self) -> None:
        rest = b""
        with self._log.open("ab") as file:
            for data in self._stream:
                file.write(data)
                file.flush()
                *whole, rest = (rest + data).split(b"\n")
                for line in whole:
                    self._take(line.decode(errors="replace").strip())
                rest = rest[-4096:]

    def _take(self, line: str) -> None:
        if not line:
            return
        if line.startswith(NOTICE):
            self.notices.append(line.removeprefix(NOTICE))
        if match := CAUSE.match(line):
            self._cause = line[match.end() :]
        elif (match := DEEPER.match(line)) and len(self._cause) < 300:
            self._cause += f": {line[match.end() :]}"
        if not self._unreached and (match := UNREACHED.search(line)):
            self._unreached = line[match.start() if match.start() > 100 else 0 :][:300]
        self.last = line[:100]
        self._end = f"{line[:200]} ({self._cause[:300]})" if self._cause else line[:200]


@contextlib.contextmanager
def _build_network(indexes: Indexes, say: Callable[[str], None]) -> Iterator[str]:
    """Open a network for a build: only the proxy, as in a sandbox with `--allow-net`. Yield the network mode of its container.

    A container without a network runs the supervisor, whose tunnel leads to the proxy on the host. The build's container shares
    the network namespace of that container. So it needs no python3 of its own, and it has no route to the host, to the engine's
    bridge or to any other address. `say` receives a note for each of the first hosts that were refused.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True, name="m3agent-build-network")
    thread.start()
    opened = _opened(indexes, _teller(say))
    try:
        try:
            mode = asyncio.run_coroutine_threadsafe(opened.__aenter__(), loop).result()
        except SandboxError as error:
            raise EnvironmentBuildFailed(f"a build's network did not start: {error}") from None
        try:
            yield mode
        finally:
            asyncio.run_coroutine_threadsafe(opened.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextlib.asynccontextmanager
async def _opened(indexes: Indexes, tell: Callable[[NetworkRequest], None]) -> AsyncIterator[str]:
    machine = DockerMachine(None, NETWORK_LIMITS, lambda _: None)
    upstream = Upstream({name: value for name, value in indexes.proxies.items() if name.islower()})
    proxy = Proxy(indexes.hosts, log=tell, caps=CAPS, refusals=REFUSALS, upstream=upstream)
    network = Network(proxy)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(machine.destroy)
        channel = await machine.start()
        stack.push_async_callback(channel.close)
        await channel.boot(START_TIMEOUT)
        await network.open(channel)
        stack.push_async_callback(network.close)
        yield f"container:{machine.container}"


def _teller(say: Callable[[str], None]) -> Callable[[NetworkRequest], None]:
    told: set[str] = set()

    def tell(request: NetworkRequest) -> None:
        if request.verdict == "refused" and request.host not in told and len(told) < MOST_TOLD:
            told.add(request.host)
            say(f"network of the build: refused: {request.reason}")

    return tell


def remove_container(api: Any, container: str) -> None:
    """Remove a container, running or not. It is no error if the container does not exist."""
    from docker.errors import NotFound

    with contextlib.suppress(NotFound):
        api.remove_container(container, force=True, v=True)


ENGINES_FAULT = re.compile(r"no such (?:container|image)|no space left", re.IGNORECASE)
"""Reasons of the engine that do not lie in what it builds: something else removed a container or an image, or its disk is full."""


@contextlib.contextmanager
def engine_failures(what: str) -> Iterator[None]:
    """Convert the engine's errors while it builds `what` to `EnvironmentBuildFailed`, or to `EngineFailed` if it is to blame."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        yield
    except (DockerException, RequestException) as error:
        reason = str(getattr(error, "explanation", None) or error).strip()
        by_engine = not isinstance(error, DockerException) or ENGINES_FAULT.search(reason)
        kind = EngineFailed if by_engine else EnvironmentBuildFailed
        raise kind(f"the engine cannot build {what}: {reason}") from None


def files_as_tar(
    files: Mapping[str, bytes], folder: str = "/", *, folders: Collection[str] = (), owner: int = 0
) -> bytes:
    """Return a tar for a container's root with these files, by name below `folder`, after these empty folders."""
    named = {f"{folder}/{name.lstrip('/')}": content for name, content in files.items()}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in (*folders, *named):
            info = tarfile.TarInfo(name.strip("/"))
            info.mode, info.uid, info.gid = 0o755, owner, owner
            content = named.get(name, b"")
            info.type = tarfile.REGTYPE if name in named else tarfile.DIRTYPE
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def packed(
    store: TreeStore, files: Mapping[str, TreeEntry], folders: Iterable[str] = (), owner: int = 0
) -> IO[bytes]:
    """Return a tar with files of a tree by name, after these folders. The caller closes it.

    Files that are too large for a sandbox are left out, and are not read.
    """
    buffer = cast("IO[bytes]", tempfile.SpooledTemporaryFile(MOST_IN_MEMORY))  # noqa: SIM115 - the caller closes it
    blobs = store.each_blob_up_to([entry.sha for entry in files.values()], LARGEST_FILE)
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for folder in folders:
            info = tarfile.TarInfo(folder)
            info.type, info.mode, info.uid, info.gid = tarfile.DIRTYPE, 0o755, owner, owner
            archive.addfile(info)
        for (name, entry), blob in zip(files.items(), blobs, strict=True):
            if blob is not None:
                add_entry(archive, name, entry.mode, blob, owner)
    buffer.seek(0)
    return buffer


def add_entry(archive: tarfile.TarFile, name: str, mode: int, content: bytes, owner: int = 0) -> None:
    """Add a file or a symbolic link with git's mode to a tar."""
    info = tarfile.TarInfo(name)
    info.uid = info.gid = owner
    if mode & 0o170000 == 0o120000:
        info.type, info.linkname = tarfile.SYMTYPE, content.decode(errors="surrogateescape")
        archive.addfile(info)
        return
    info.size, info.mode = len(content), mode & 0o777
    archive.addfile(info, io.BytesIO(content))

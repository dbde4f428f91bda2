"""Builds an environment image: a container with a network and nothing of this machine, then a commit of what it made.

What is installed may run code while it is installed (source distributions do). It gets the names of what to install,
the addresses of indexes without passwords, and certificates; no mounts but the skeleton's /usr, no capabilities, an
unprivileged user, limits on memory, processes, disk and time. Nothing is cached between builds, so that one
repository's build cannot plant anything in another's.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
import shutil
import tarfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from m3agent.sandbox import env_script
from m3agent.sandbox.declared.found import Project
from m3agent.sandbox.docker_machine import LABEL, USER, ensure_reaper, our_labels
from m3agent.sandbox.engine import socket_of
from m3agent.sandbox.errors import SandboxError
from m3agent.sandbox.image import SKELETON_LABEL, Image
from m3agent.sandbox.indexes import Indexes

FOLDER = "/opt/m3agent-env"
"""Where an environment lies in its image: a virtual environment."""
WORK = "/opt/m3agent-build"
BUILD_SECONDS = 1800.0
MOST_DISK = (
    12 << 30
)  # bytes a build may write: the largest usual dependency (torch with its libraries) takes six
MEMORY = 4 << 30
PIDS = 512
LOOK = 0.25  # seconds between two looks at a running build
SIZE_EVERY = 5.0  # seconds between two looks at what it has written
TELL_EVERY = 10.0  # seconds between two words to the person who waits
NOTICE = "notice: "
CAUSE = re.compile("(?:error:|ERROR:|\u00d7)\\s*")  # how uv and pip begin what went wrong
DEEPER = re.compile("(?:\u2570\u2500\u25b6|Caused by:|cause:)\\s*")  # and uv the reason below it


class EnvironmentFailed(SandboxError):
    """The repository's environment could not be built; the sentence says why and where the log is."""


@dataclass(frozen=True)
class Job:
    """What to build: requirement and constraint lines, minor versions of Python that will do (best first; empty:
    any), the project's own metadata, the latest upload date that counts, and where packages come from."""

    requirements: tuple[str, ...]
    constraints: tuple[str, ...]
    pythons: tuple[str, ...] = ()
    project: Project | None = None
    exclude_newer: str | None = None
    indexes: Indexes = field(default_factory=Indexes)


@contextlib.contextmanager
def engine_failures(what: str) -> Iterator[None]:
    """The engine's own errors while it builds `what`, as `EnvironmentFailed`."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        yield
    except (DockerException, RequestException) as error:
        reason = str(getattr(error, "explanation", None) or error).strip()
        raise EnvironmentFailed(f"the engine cannot build {what}: {reason}") from None


@engine_failures("the repository's environment")
def build_environment(
    api: Any,
    job: Job,
    base: Image,
    tag: str,
    *,
    log: Path,
    say: Callable[[str], None],
    stop: threading.Event,
) -> None:
    """Build the image and tag it. Blocking; minutes. `stop` ends it early, with nothing left.

    Raises:
        EnvironmentFailed: it did not work, took too long or too much disk; the log has all that was said.
    """
    container = _create(api, base)
    try:
        api.put_archive(container, "/", _archive(job))
        status, said = follow_build(api, container, log, say, stop)
        if status != 0:
            raise EnvironmentFailed(
                f"the repository's environment could not be built: {said}; the log is {log}"
            )
        _commit(api, container, base, tag)
    finally:
        remove_container(api, container)


def _create(api: Any, base: Image) -> str:
    """The container that a build runs in, not started; its id."""
    ensure_reaper(socket_of(api))
    host_config = api.create_host_config(
        network_mode="bridge",
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        pids_limit=PIDS,
        mem_limit=MEMORY,
        memswap_limit=MEMORY,
        log_config={"Type": "none", "Config": {}},
        ulimits=[{"Name": "core", "Soft": 0, "Hard": 0}],
        binds=[f"{folder}:{folder}:ro" for folder in base.binds if Path(folder).exists()],
        tmpfs={"/tmp": f"rw,exec,nosuid,nodev,size={MEMORY * 3 // 5},mode=1777"},  # noqa: S108 - inside the container
    )
    container: str = api.create_container(
        base.name,
        command=["python3", "-I", "-S", f"{WORK}/env_script.py"],
        entrypoint=[],
        user=USER,
        working_dir="/",
        environment={"PATH": base.path},
        labels=our_labels(),
        host_config=host_config,
    )["Id"]
    return container


def _commit(api: Any, container: str, base: Image, tag: str) -> None:
    """Make an image of what a build has installed."""
    more = {SKELETON_LABEL: "1"} if base.binds else {}
    env = {"PATH": f"{FOLDER}/bin:{base.path}", "VIRTUAL_ENV": FOLDER}
    commit_environment(api, container, tag, env=env, command="python3", labels=more)


def commit_environment(
    api: Any, container: str, tag: str, *, env: Mapping[str, str], command: str, labels: Mapping[str, str]
) -> None:
    """Make an environment image of a container: with our labels, these more, these variables and this command."""
    repository, _, name = tag.partition(":")
    # the container's own labels would be taken over; empty ones are nobody's
    ours = {**dict.fromkeys(our_labels(), ""), LABEL: "1", f"{LABEL}.environment": name}
    conf = {
        "Labels": {**ours, **labels},
        "Env": [f"{key}={value}" for key, value in env.items()],
        "Cmd": [command],
    }
    api.commit(container, repository=repository, tag=name, conf=conf)


def remove_container(api: Any, container: str) -> None:
    """Remove a container, running or not; one that is gone is fine."""
    from docker.errors import NotFound

    with contextlib.suppress(NotFound):
        api.remove_container(container, force=True, v=True)


def follow_build(
    api: Any, container: str, log: Path, say: Callable[[str], None], stop: threading.Event
) -> tuple[int, str]:
    """Run a build's container to its end, within the limits of time and disk; its exit status and the reason for a
    failure."""
    started = told = measured = time.monotonic()
    lines = _Lines(log, api.attach(container, stdout=True, stderr=True, stream=True))
    api.start(container)
    reader = threading.Thread(target=lines.read, daemon=True, name="m3agent-build-log")
    reader.start()
    while reader.is_alive():
        reader.join(LOOK)
        now = time.monotonic()
        if stop.is_set():
            return 1, "interrupted"
        if now - started > BUILD_SECONDS:
            return 1, f"it took more than {BUILD_SECONDS / 60:.0f} minutes"
        if now - told > TELL_EVERY:
            told = now
            say(f"still building the environment ({now - started:.0f} s): {lines.last}")
        if now - measured > SIZE_EVERY:
            measured = now
            found = api.containers(all=True, size=True, filters={"id": container})
            if found and (found[0].get("SizeRw") or 0) > MOST_DISK:
                return 1, f"it takes more than {MOST_DISK >> 30} GiB of disk"
    status = int(api.wait(container, timeout=60)["StatusCode"])
    for notice in lines.notices:
        say(notice)
    return status, lines.reason


class _Lines:
    """What a build says: into the log, and of it what people are told."""

    def __init__(self, log: Path, stream: Iterator[bytes]) -> None:
        self._log = log
        self._stream = stream
        self.last = "starting"
        self.reason = "the build container ended without a word"
        self.notices: list[str] = []
        self._cause = ""

    def read(self) -> None:
        rest = b""
        with self._log.open("wb") as file:
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
        self.last = line[:100]
        self.reason = f"{line[:200]} ({self._cause[:300]})" if self._cause else line[:200]


def _archive(job: Job) -> bytes:
    """The files a build works from, as a tar for the container's root."""
    files: dict[str, bytes] = {
        "requirements.txt": "".join(f"{line}\n" for line in job.requirements).encode(),
        "constraints.txt": "".join(f"{line}\n" for line in job.constraints).encode(),
        "env_script.py": Path(env_script.__file__).read_bytes(),
        "job.json": json.dumps(
            {
                "folder": FOLDER,
                "pythons": job.pythons,
                "project": asdict(job.project) if job.project else None,
                "exclude_newer": job.exclude_newer,
                "env": job.indexes.environment(f"{WORK}/certificates.pem"),
            }
        ).encode(),
    }
    if job.indexes.certificates is not None:
        files["certificates.pem"] = job.indexes.certificates.read_bytes()
    files |= installers()
    return files_as_tar(files, WORK, folders=(WORK, FOLDER), owner=1000)


def files_as_tar(
    files: Mapping[str, bytes], folder: str = "/", *, folders: Collection[str] = (), owner: int = 0
) -> bytes:
    """Files by name below `folder`, as a tar for a container's root, with these folders made before them."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:

        def add(name: str, content: bytes | None) -> None:
            info = tarfile.TarInfo(name.strip("/"))
            info.mode, info.uid, info.gid = 0o755, owner, owner
            if content is None:
                info.type = tarfile.DIRTYPE
            else:
                info.size = len(content)
            archive.addfile(info, None if content is None else io.BytesIO(content))

        for name in folders:
            add(name, None)
        for name, content in files.items():
            add(f"{folder}/{name.lstrip('/')}", content)
    return buffer.getvalue()


def installers() -> dict[str, bytes]:
    """What a build installs with, by name: this machine's uv, if it has one, and a wheel of pip."""
    uv = shutil.which("uv")
    wheels = {wheel.name: wheel.read_bytes() for wheel in _pip_wheels()}
    return wheels if uv is None else {**wheels, "uv": Path(uv).read_bytes()}


def _pip_wheels() -> list[Path]:
    """The pip that this machine's Python would start a virtual environment with, for an image that has none."""
    spec = importlib.util.find_spec("ensurepip")
    folders = [Path(spec.origin).parent / "_bundled"] if spec is not None and spec.origin else []
    folders.append(Path("/usr/share/python-wheels"))
    found = [wheel for folder in folders for wheel in sorted(folder.glob("pip-*.whl"))]
    return found[:1]

"""A base image: a Debian with a Python of the wanted minor version, compilers and git.

It is Python's official image if a registry provides it. Otherwise debootstrap builds it from Debian's packages; each
release of Debian has one Python. If no release has the wanted version, the nearest version is used, and a note says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import IO, Any

from m3agent.sandbox.backends.docker_machine import LABEL
from m3agent.sandbox.backends.image import Image, local_image, pull
from m3agent.sandbox.errors import EnvironmentBuildFailed
from m3agent.sandbox.images.image_build import LOOK
from m3agent.sandbox.images.kept import REPOSITORY, folder, one_at_a_time, touch

RECIPE = 1  # part of the name of every base that is made here
DEFAULT_PYTHON = "3.11"
DEBIAN = {"3.9": "bullseye", "3.11": "bookworm", "3.13": "trixie"}
"""Python versions, each with the Debian release that has it. Debian's mirrors still have these releases."""
RELEASED = {
    "3.6": date(2016, 12, 23),
    "3.7": date(2018, 6, 27),
    "3.8": date(2019, 10, 14),
    "3.9": date(2020, 10, 5),
    "3.10": date(2021, 10, 4),
    "3.11": date(2022, 10, 24),
    "3.12": date(2023, 10, 2),
    "3.13": date(2024, 10, 7),
    "3.14": date(2025, 10, 7),
}
"""Days on which Python's minor versions were released (PEP 494 and its followers)."""
PACKAGES = (
    *("ca-certificates", "g++", "gcc", "git", "libffi-dev", "make", "patch", "procps"),
    *("python3", "python3-dev", "python3-venv"),
)
NEEDLESS = (
    "./var/cache/apt/archives/*.deb",
    "./usr/share/doc/*",
    "./usr/share/man/*",
    "./var/lib/apt/lists/*",
)

Say = Callable[[str], None]
LOCKS = Path("/run/m3agent")
"""Folder of the locks of base images, whatever the state folder: a machine never makes the same base twice at once."""
_not_pulled: set[str] = set()
"""Images that this process could not pull from any registry. It does not try them again."""


@dataclass(frozen=True)
class BaseImage:
    """A base image and the minor version of the Python in it."""

    image: Image
    python: str


def base_image(api: Any, python: str | None, *, state: Path, say: Say, stop: threading.Event) -> BaseImage:
    """Return the base for a minor version of Python; pull or build it if it is not here. Blocking; takes minutes.

    Raises:
        EnvironmentBuildFailed: This machine can neither pull nor build the base; the message says what to do.
    """
    wanted = python or DEFAULT_PYTHON
    name = f"python:{wanted}-bookworm"
    if image := local_image(api, name):
        return BaseImage(image, wanted)
    there = nearest(wanted)
    tag = _tag(there)
    if there == wanted and (image := local_image(api, tag)):
        touch(state, tag)
        return BaseImage(image, wanted)
    if name not in _not_pulled:
        if pull(name, say) and (image := local_image(api, name)):
            return BaseImage(image, wanted)
        _not_pulled.add(name)
    if there != wanted:
        say(f"Python {wanted} is not available here: using {there}")
    with one_at_a_time(LOCKS if os.access(LOCKS.parent, os.W_OK) else state, tag, say, stop):
        if local_image(api, tag) is None:
            _bootstrap(api, there, tag, state, say, stop)
    touch(state, tag)
    return BaseImage(just_built(api, tag), there)


def just_built(api: Any, tag: str) -> Image:
    """Return an image that was built a moment ago.

    Raises:
        EnvironmentBuildFailed: Another program removed it.
    """
    image = local_image(api, tag)
    if image is None:
        raise EnvironmentBuildFailed(
            f"image {tag} was removed just after it was built: run the command again, and remove no images meanwhile"
        )
    return image


def nearest(wanted: str) -> str:
    """Return the closest Python that Debian has: the newest that is not newer than `wanted`, else the oldest."""
    having = sorted(DEBIAN, key=_number)
    older = [minor for minor in having if _number(minor) <= _number(wanted)]
    return older[-1] if older else having[0]


def _number(minor: str) -> tuple[int, ...]:
    return tuple(int(part) for part in minor.split("."))


def _tag(python: str) -> str:
    made_from = json.dumps([RECIPE, DEBIAN[python], PACKAGES, NEEDLESS, platform.machine()])
    return f"{REPOSITORY}:base-{python}-{hashlib.sha256(made_from.encode()).hexdigest()[:12]}"


def _bootstrap(api: Any, python: str, tag: str, state: Path, say: Say, stop: threading.Event) -> None:
    release = DEBIAN[python]
    log = folder(state) / f"{tag.partition(':')[2]}.log"
    with tempfile.TemporaryDirectory(dir=folder(state), prefix="base-") as scratch, log.open("wb") as output:
        root = Path(scratch, "root")
        program, env = _debootstrap(Path(scratch), output, stop)
        if program is None:
            raise EnvironmentBuildFailed(
                f"no registry has python:{python}-bookworm, and only root can make a base image with "
                "debootstrap: pull that image, or install debootstrap and run this as root"
            )
        say(f"making a base image with Python {python} (Debian {release}), once (one or two minutes)")
        argv = [program, "--variant=minbase", f"--include={','.join(PACKAGES)}", release, str(root)]
        if _run(argv, output, stop, env):
            last = (log.read_text("utf-8", "replace").strip().splitlines() or ["no message"])[-1]
            raise EnvironmentBuildFailed(
                f"debootstrap could not make a base of Debian {release}: {last}; the log is {log}"
            )
        with _packed(root) as stream:
            repository, _, name = tag.partition(":")
            labels = f"LABEL {LABEL}=1 {LABEL}.environment={name}"
            api.import_image(src=stream, repository=repository, tag=name, changes=[labels])


def _debootstrap(
    scratch: Path, log: IO[bytes], stop: threading.Event
) -> tuple[str | None, Mapping[str, str]]:
    """Return the path of debootstrap and its environment variables.

    If this machine lacks the program, it is downloaded from the package index but not installed. The path is None if
    that is impossible too, or if this process is not root.
    """
    if os.geteuid() != 0:
        return None, {}
    if found := shutil.which("debootstrap"):
        return found, {}
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return None, {}
    lists, place = scratch / "lists", scratch / "debootstrap"
    (lists / "partial").mkdir(parents=True)
    # separate package lists: those of this machine may be empty, and must not be changed
    apt = ["apt-get", "-q", "-o", f"Dir::State::Lists={lists}", "-o", "APT::Sandbox::User=root"]
    for argv in ([*apt, "update"], [*apt, "download", "debootstrap"]):
        if _run(argv, log, stop, {}, cwd=scratch):
            return None, {}
    packages = list(scratch.glob("debootstrap_*.deb"))
    if not packages or _run(["dpkg", "-x", str(packages[0]), str(place)], log, stop, {}):
        return None, {}
    share = place / "usr" / "share" / "debootstrap"
    return str(place / "usr" / "sbin" / "debootstrap"), {"DEBOOTSTRAP_DIR": str(share)}


def _run(
    argv: Sequence[str],
    log: IO[bytes],
    stop: threading.Event,
    env: Mapping[str, str],
    cwd: Path | None = None,
) -> int:
    """Run a program and return its exit status; its output goes to the log. `stop` ends it and all its processes."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={**os.environ, **env},
        cwd=cwd,
    )
    while True:
        try:
            return process.wait(LOOK)
        except subprocess.TimeoutExpired:
            if not stop.is_set():
                continue
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise EnvironmentBuildFailed("interrupted while a base image was made") from None


@contextlib.contextmanager
def _packed(root: Path) -> Iterator[IO[bytes]]:
    """Yield the folder as a tar, without files that no instance needs."""
    leave_out = [f"--exclude={pattern}" for pattern in NEEDLESS]
    with subprocess.Popen(["tar", "-c", "-C", str(root), *leave_out, "."], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process.stdout
    if process.returncode:
        raise EnvironmentBuildFailed("the base image could not be packed")

"""A base image: a Debian or Ubuntu with a Python of the wanted minor version, compilers and git.

It is Python's official image if a registry provides it. Otherwise debootstrap builds it from the packages of a release that
has this Python. `base_image` uses the nearest Python of Debian if that is impossible, and a note says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import IO, Any

from m3agent.sandbox.backends.docker_machine import LABEL
from m3agent.sandbox.backends.image import REPOSITORY, Image, local_image, pull
from m3agent.sandbox.errors import EnvironmentBuildFailed
from m3agent.sandbox.images.image_build import LOOK
from m3agent.sandbox.images.kept import Say, folder, one_at_a_time, touch


@dataclass(frozen=True)
class Distribution:
    """A distribution that debootstrap can install."""

    name: str
    options: tuple[str, ...] = ()
    script: str | None = None
    """Which of debootstrap's scripts installs it; None for the one that has the name of the release.

    Older debootstraps have none for the latest releases.
    """
    keys: tuple[str, str, str] | None = None
    """Debian's package with the keys that sign it, the suite of Debian with this package, and the name of the file.

    None if every Debian has the keys.
    """
    updates: bool = False
    """Whether later versions of packages are in a suite of their own, which debootstrap cannot use as well."""


@dataclass(frozen=True)
class Release:
    """A release of a distribution; none of them gets another Python any more."""

    suite: str
    distribution: Distribution
    released: date
    """The day on which its Python's minor version was released (PEP 494 and its followers)."""
    packages: tuple[str, ...] = ()
    """Packages with the Python, if that is not the release's own one."""
    official: str = "bookworm"
    """The suite of Python's official image."""


RECIPE = 1  # part of the name of every base that is made here
DEFAULT_PYTHON = "3.11"
DEBIAN = Distribution("Debian")
UBUNTU = Distribution(
    "Ubuntu",
    ("--components=main,universe", "--force-check-gpg"),
    "gutsy",
    ("ubuntu-keyring", "trixie", "ubuntu-archive-keyring.gpg"),
    updates=True,
)
BASES: Mapping[str, Release] = {
    "3.5": Release("xenial", UBUNTU, date(2015, 9, 13), official="buster"),
    "3.6": Release("bionic", UBUNTU, date(2016, 12, 23), official="bullseye"),
    "3.7": Release("bionic", UBUNTU, date(2018, 6, 27), ("python3.7", "python3.7-dev", "python3.7-venv")),
    "3.8": Release("focal", UBUNTU, date(2019, 10, 14)),
    "3.9": Release("bullseye", DEBIAN, date(2020, 10, 5)),
    "3.10": Release("jammy", UBUNTU, date(2021, 10, 4)),
    "3.11": Release("bookworm", DEBIAN, date(2022, 10, 24)),
    "3.12": Release("noble", UBUNTU, date(2023, 10, 2)),
    "3.13": Release("trixie", DEBIAN, date(2024, 10, 7)),
    "3.14": Release("resolute", UBUNTU, date(2025, 10, 7)),
}
"""Minor versions of Python, each with the release that has it. The mirrors still have all of them."""
RELEASED = {python: release.released for python, release in BASES.items()}
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
WITH_UPDATES = r"""
sed -n 's/^\(deb [^ ]* [^ ]*\)/\1-updates/p' /etc/apt/sources.list >> /etc/apt/sources.list
export DEBIAN_FRONTEND=noninteractive
apt-get -q update
apt-get -q -y --no-install-recommends install "$@"
"""
"""Shell script that runs in a new base; it installs packages in their latest versions."""

LOCKS = Path("/run/m3agent")
"""Folder of the locks of base images, whatever the state folder: a machine never makes the same base twice at once."""
MIRROR = re.compile(r'^DEF_MIRROR="([^"]+)"', re.MULTILINE)
"""Address of Debian's packages, as debootstrap itself names it."""
KEYRINGS = Path("/usr/share/keyrings")
"""Folder of the keys that distributions sign their releases with."""
_not_pulled: set[str] = set()
"""Images that this process could not pull from any registry. It does not try them again."""


@dataclass(frozen=True)
class BaseImage:
    """A base image and the minor version of the Python in it."""

    image: Image
    python: str


def base_image(api: Any, python: str | None, *, state: Path, say: Say, stop: threading.Event) -> BaseImage:
    """Return the base for a minor version of Python, or the nearest that can be made; pull or build it if it is not here.

    Blocking; takes minutes.

    Raises:
        EnvironmentBuildFailed: This machine can neither pull nor build the base; the message says what to do.
    """
    wanted = python or DEFAULT_PYTHON
    there = nearest(wanted)
    try:
        return exact_base(api, wanted, state=state, say=say, stop=stop)
    except EnvironmentBuildFailed as error:
        if stop.is_set() or there == wanted:
            raise
        say(f"Python {wanted} is not available here: using {there} ({error})")
    return exact_base(api, there, state=state, say=say, stop=stop)


def exact_base(api: Any, python: str, *, state: Path, say: Say, stop: threading.Event) -> BaseImage:
    """Return the base for a minor version of Python; pull or build it if it is not here. Blocking; takes minutes.

    Raises:
        EnvironmentBuildFailed: This machine can neither pull nor build the base; the message says what to do.
    """
    if base := base_here(api, python, state=state):
        return base
    if stop.is_set():
        raise EnvironmentBuildFailed(f"no image with Python {python} is on this machine")
    name = _official(python)
    if name not in _not_pulled:
        if pull(name, say) and (image := local_image(api, name)):
            return BaseImage(image, python)
        _not_pulled.add(name)
    if python not in BASES:
        raise EnvironmentBuildFailed(
            f"no registry has {name}, and no release of Debian or Ubuntu is known that has this Python"
        )
    tag = _tag(python)
    with one_at_a_time(LOCKS if os.access(LOCKS.parent, os.W_OK) else state, tag, say, stop):
        if local_image(api, tag) is None:
            _bootstrap(api, python, tag, state, say, stop)
    touch(state, tag, api)
    return BaseImage(just_built(api, tag), python)


def base_here(api: Any, python: str, *, state: Path) -> BaseImage | None:
    """Return the base for a minor version of Python; None if it is not on this machine."""
    if image := local_image(api, _official(python)):
        return BaseImage(image, python)
    if python in BASES and (image := local_image(api, tag := _tag(python))):
        touch(state, tag, api)
        return BaseImage(image, python)
    return None


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
    having = sorted((minor for minor, base in BASES.items() if base.distribution is DEBIAN), key=_number)
    older = [minor for minor in having if _number(minor) <= _number(wanted)]
    return older[-1] if older else having[0]


def best_base(pythons: Collection[str]) -> str | None:
    """Return which of these Pythons a base should have, best first; None if any will do, or if none can be had.

    Debian comes before Ubuntu: toolchains are named as Debian names their packages.
    """
    having = [python for python in pythons if python in BASES]
    first = [python for python in having if BASES[python].distribution is DEBIAN]
    return next(iter(first or having), None)


def _number(minor: str) -> tuple[int, ...]:
    return tuple(int(part) for part in minor.split("."))


def _official(python: str) -> str:
    """Return the name of Python's official image."""
    return f"python:{python}-{BASES[python].official if python in BASES else Release.official}"


def _packages(release: Release) -> tuple[str, ...]:
    return (*PACKAGES, *release.packages)


def _tag(python: str) -> str:
    release = BASES[python]
    made_from = json.dumps([RECIPE, release.suite, _packages(release), NEEDLESS, platform.machine()])
    return f"{REPOSITORY}:base-{python}-{hashlib.sha256(made_from.encode()).hexdigest()[:12]}"


def _bootstrap(api: Any, python: str, tag: str, state: Path, say: Say, stop: threading.Event) -> None:
    release = BASES[python]
    called = f"{release.distribution.name} {release.suite}"
    log = folder(state) / f"{tag.partition(':')[2]}.log"
    with tempfile.TemporaryDirectory(dir=folder(state), prefix="base-") as scratch, log.open("wb") as output:
        root = Path(scratch, "root")
        program, env = _debootstrap(Path(scratch), output, stop)
        if program is None:
            raise EnvironmentBuildFailed(
                f"no registry has {_official(python)}, and only root can make a base image with "
                "debootstrap: pull that image, or install debootstrap and run this as root"
            )
        say(f"making a base image with Python {python} ({called}), once (one or two minutes)")
        options = _options(release, program, Path(scratch), output, stop)
        argv = [program, "--variant=minbase", *options, release.suite, str(root)]
        if release.distribution.script is not None:  # the empty word stands for the usual mirror
            share = Path(env.get("DEBOOTSTRAP_DIR", "/usr/share/debootstrap"))
            argv += ["", str(share / "scripts" / release.distribution.script)]
        with_updates = ["chroot", str(root), "sh", "-ec", WITH_UPDATES, "sh", *_packages(release)]
        if _run(argv, output, stop, env) or (
            release.distribution.updates and _run(with_updates, output, stop, {})
        ):
            last = (log.read_text("utf-8", "replace").strip().splitlines() or ["no message"])[-1]
            raise EnvironmentBuildFailed(
                f"debootstrap could not make a base of {called}: {last}; the log is {log}"
            )
        with _packed(root) as stream:
            repository, _, name = tag.partition(":")
            labels = f"LABEL {LABEL}=1 {LABEL}.environment={name}"
            api.import_image(src=stream, repository=repository, tag=name, changes=[labels])


def _options(
    release: Release, program: str, scratch: Path, log: IO[bytes], stop: threading.Event
) -> list[str]:
    """Return debootstrap's options for a release. The keys are put into the folder `scratch` if they are not here.

    Raises:
        EnvironmentBuildFailed: The keys that sign the release cannot be had.
    """
    distribution = release.distribution
    first = ("ca-certificates",) if distribution.updates else _packages(release)
    options = [*distribution.options, f"--include={','.join(first)}"]
    if distribution.keys is None:
        return options
    package, suite, name = distribution.keys
    keyring = KEYRINGS / name
    mirror = MIRROR.search(Path(program).read_text("utf-8"))
    if not keyring.exists() and mirror is not None:
        sources = scratch / "keys.list"
        trusted = KEYRINGS / "debian-archive-keyring.gpg"
        sources.write_text(f"deb [signed-by={trusted}] {mirror[1]} {suite} main\n", "utf-8")
        apt = ["-o", f"Dir::Etc::SourceList={sources}", "-o", "Dir::Etc::SourceParts=-"]
        place = _downloaded(package, scratch / "keys", log, stop, apt)
        keyring = scratch if place is None else place / keyring.relative_to("/")
    if not keyring.is_file():
        raise EnvironmentBuildFailed(
            f"the keys that sign {distribution.name}'s releases are not here: install {package}"
        )
    return [*options, f"--keyring={keyring}"]


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
    place = _downloaded("debootstrap", scratch / "debootstrap", log, stop)
    if place is None:
        return None, {}
    share = place / "usr" / "share" / "debootstrap"
    return str(place / "usr" / "sbin" / "debootstrap"), {"DEBOOTSTRAP_DIR": str(share)}


def _downloaded(
    package: str, scratch: Path, log: IO[bytes], stop: threading.Event, options: Sequence[str] = ()
) -> Path | None:
    """Return the folder with the files of a package, which is not installed; None if it cannot be downloaded.

    `scratch` is a folder to create, `options` are further ones of apt.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return None
    lists, place = scratch / "lists", scratch / "files"
    (lists / "partial").mkdir(parents=True)
    # separate package lists: those of this machine may be empty, and must not be changed
    apt = ["apt-get", "-q", "-o", f"Dir::State::Lists={lists}", "-o", "APT::Sandbox::User=root", *options]
    for argv in ([*apt, "update"], [*apt, "download", package]):
        if _run(argv, log, stop, {}, cwd=scratch):
            return None
    packages = list(scratch.glob(f"{package}_*.deb"))
    if not packages or _run(["dpkg", "-x", str(packages[0]), str(place)], log, stop, {}):
        return None
    return place


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

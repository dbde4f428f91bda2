"""Images with other Pythons than this machine's, from the packages of Debian's and Ubuntu's releases.

An image has nothing but Python, a shell and a few commands. Its packages are unpacked, not installed, which takes seconds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.images.debian import BASES, UBUNTU
from m3agent.sandbox.images.debian import Release as Base
from tests.conftest import alone, docker_here

REPOSITORY = "m3agent-test-python"
COMMANDS = ("coreutils", "dash")
PYTHON3 = ("python3-minimal", "libpython3-stdlib")
FIRST = "/opt/first"
"""First folder on the image's PATH."""


@dataclass(frozen=True)
class Release:
    """A release with a Python.

    Attributes:
        suite: Its name.
        packages: The packages with the Python.
        command: Path of the Python, if `python3` of the release is another one.
        ubuntu: Whether it is Ubuntu's.
    """

    suite: str
    packages: tuple[str, ...] = PYTHON3
    command: str = ""
    ubuntu: bool = False


def _release(python: str, base: Base) -> Release:
    own = (f"python{python}-minimal", f"libpython{python}-stdlib") if base.packages else ()
    command = f"/usr/bin/python{python}" if own else ""
    return Release(base.suite, (*PYTHON3, *own), command, ubuntu=base.distribution is UBUNTU)


RELEASES = {
    **{python: _release(python, base) for python, base in BASES.items()},
    "newest": Release("sid"),
    "pypy": Release("bullseye", (*PYTHON3, "pypy3"), "/usr/bin/pypy3"),
}


def python_image(name: str) -> str:
    """Return the name of an image with the Python of a row of `RELEASES`; make it if it is not here.

    The test is skipped where images cannot be made: without Docker, without apt, or without a connection to Ubuntu's archive.
    """
    if not docker_here() or shutil.which("apt-get") is None or os.geteuid() != 0:
        pytest.skip("images with other Pythons need Docker, apt-get and root")
    image = f"{REPOSITORY}:{name}"
    with alone("python-images"):
        api = connect()
        try:
            if not api.images(image):
                with tempfile.TemporaryDirectory() as scratch:
                    _make(image, RELEASES[name], Path(scratch))
        finally:
            api.close()
    return image


def _make(image: str, release: Release, scratch: Path) -> None:
    root = scratch / "root"
    options = _ubuntu(scratch / "keys") if release.ubuntu else ""
    source = (
        f"deb {options} {release.suite} main universe\ndeb {options} {release.suite}-updates main universe"
        if release.ubuntu
        else f"deb {_debian()} {release.suite} main"
    )
    _unpack(source, (*COMMANDS, *release.packages), scratch / "apt", root)
    for folder in (
        "bin",
        "lib",
        "lib64",
        "sbin",
    ):  # new releases have these links in a package that is not unpacked
        if not (root / folder).exists():
            (root / folder).symlink_to(f"usr/{folder}")
    for folder in ("tmp", "proc", "sys", "dev", FIRST[1:]):
        (root / folder).mkdir(parents=True, exist_ok=True)
    if not (root / "bin/sh").exists():
        (root / "bin/sh").symlink_to("dash")
    if release.command:
        (root / FIRST[1:] / "python3").symlink_to(release.command)
    path = f"ENV PATH={FIRST}:/usr/local/bin:/usr/bin:/bin"
    with subprocess.Popen(["tar", "-c", "-C", str(root), "."], stdout=subprocess.PIPE) as archive:
        subprocess.run(
            ["docker", "import", "--change", path, "-", image],
            stdin=archive.stdout,
            check=True,
            capture_output=True,
        )


def _unpack(source: str, packages: Sequence[str], apt: Path, root: Path) -> None:
    """Unpack packages and what they need into a folder. Nothing of them is executed."""
    (apt / "lists/partial").mkdir(parents=True)
    (apt / "cache/archives/partial").mkdir(parents=True)
    (apt / "status").touch()
    (apt / "sources.list").write_text(f"{source}\n")
    options = {
        "Dir::Etc::sourcelist": apt / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
        "APT::Install-Recommends": "no",
        "APT::Sandbox::User": "root",
    }
    command = [
        "apt-get",
        "-q",
        "-y",
        *(word for name, value in options.items() for word in ("-o", f"{name}={value}")),
    ]
    for words in (["update", "--error-on=any"], ["install", "--download-only", *packages]):
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        if done.returncode and "ubuntu" in source:
            pytest.skip(
                f"Ubuntu's archive has no packages for this machine: {done.stderr.strip().splitlines()[-1]}"
            )
        done.check_returncode()
    root.mkdir()
    for archive in sorted((apt / "cache/archives").glob("*.deb")):
        subprocess.run(["dpkg", "-x", str(archive), str(root)], check=True)


def _debian() -> str:
    """Return the address from which apt gets Debian's packages on this machine."""
    done = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)"], capture_output=True, text=True, check=True
    )
    return next(line for line in done.stdout.splitlines() if line.rstrip("/").endswith("/debian"))


def _ubuntu(folder: Path) -> str:
    """Return the options and the address of Ubuntu's archive: the keys and debootstrap, which knows it, are Debian packages."""
    packages = folder / "root"
    _unpack(f"deb {_debian()} trixie main", ("debootstrap", "ubuntu-keyring"), folder / "apt", packages)
    script = (packages / "usr/share/debootstrap/scripts/gutsy").read_text()
    address = next(
        word
        for line in script.splitlines()
        if "default_mirror" in line
        for word in line.split()
        if "://" in word
    )
    return f"[signed-by={packages}/usr/share/keyrings/ubuntu-archive-keyring.gpg] {address}"

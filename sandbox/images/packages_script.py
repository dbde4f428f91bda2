"""Install compilers or other packages with apt; runs as root inside a build container.

Output and exit status are those of `env_script.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from m3agent.sandbox.images import env_script

APT = ("apt-get", "-q", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=2")
RUSTS = ("", "-web")
"""Ends of the names of Debian's packages of Rust: the release's own, and the newer one for browsers."""
SECURITY = "deb {0}-security {1}-security main\n"
BACKPORTS = "deb {0} {1}-backports main\n"
ARCHIVE = re.compile(r"https?://\S+/debian(?=/?\s)")
"""Address of Debian's packages in a list of sources; the security updates lie beside them."""
SOURCES = Path("/etc/apt/sources.list.d")


def version_of(text: str) -> tuple[int, ...]:
    """Return the numbers at the start of a version."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()


def apt(*arguments: str) -> bool:
    """Run apt-get with its output in the log; return whether it succeeded."""
    return env_script.run([*APT, *arguments], dict(os.environ))


def source_line(name: str, line: str, sources: str, release: dict[str, str]) -> str | None:
    """Return the line for a part of Debian's archive, such as `security`; None if the list of sources has that part."""
    archive = ARCHIVE.search(sources)
    if release.get("ID") != "debian" or "-" + name in sources or archive is None:
        return None
    return line.format(archive[0], release.get("VERSION_CODENAME", "stable"))


def own_list(name: str) -> Path:
    """Return the path of m3agent's list for a part of Debian's archive."""
    return SOURCES / ("m3agent-" + name + ".list")


def add_source(name: str, line: str) -> str:
    """Let apt see a part of Debian's archive; an image of debootstrap lacks them all. Return the release's code name."""
    release: dict[str, str] = dict(
        re.findall(r'^(\w+)="?([^"\n]*)', Path("/etc/os-release").read_text("utf-8"), re.MULTILINE)
    )
    files = [Path("/etc/apt/sources.list"), *SOURCES.glob("*")]
    sources = "\n".join(file.read_text("utf-8") for file in files if file.is_file())
    added = source_line(name, line, sources, release)
    if added is not None:
        SOURCES.mkdir(parents=True, exist_ok=True)
        own_list(name).write_text(added, "utf-8")
    return release.get("VERSION_CODENAME", "stable")


def candidates(packages: list[str], *options: str) -> dict[str, str]:
    """Return the versions of packages that apt would install with these options, without epochs."""
    done = subprocess.run(["apt-cache", *options, "policy", *packages], stdout=subprocess.PIPE, check=False)
    return candidates_in(done.stdout.decode())


def candidates_in(policy: str) -> dict[str, str]:
    """Return the versions in the output of apt-cache policy, by package."""
    return dict(re.findall(r"^(\S+):\n.*\n  Candidate: (?:\d+:)?(\d\S*)", policy, re.MULTILINE))


def compilers_of_rust(there: dict[str, str]) -> list[str]:
    """Return the packages of the newest Rust, given the versions of cargo's packages; none if there is none."""
    newest = max(there, key=lambda name: version_of(there[name]), default=None)
    return [] if newest is None else [newest, newest.replace("cargo", "rustc")]


def install_newer(asked: dict[str, str]) -> None:
    """Install packages from Debian's backports whose release has older versions than these. What fails is left to others.

    What is too old there as well stays out: a newer Go refuses a module for a still newer one, and an old Go tries.
    """
    there = candidates(list(asked))
    older = [name for name in asked if version_of(there.get(name, "")) < version_of(asked[name])]
    if not older:
        return
    backports = add_source("backports", BACKPORTS) + "-backports"
    if apt("update"):
        there = candidates(older, "-t", backports)
        newer = [name for name in older if may_suffice(there.get(name, ""), asked[name])]
        if newer:
            apt("install", "-y", "--no-install-recommends", "-t", backports, "--", *newer)
    else:  # later commands must be able to update
        with contextlib.suppress(FileNotFoundError):
            own_list("backports").unlink()


def may_suffice(there: str, asked: str) -> bool:
    """Return whether a package is new enough as far as its version tells: that of `golang` has two numbers."""
    numbers = version_of(there)
    return bool(numbers) and numbers >= version_of(asked)[: len(numbers)]


def install_compilers(rust: bool) -> None:
    """Install compilers, with the newest Rust on demand."""
    packages = ["gcc", "g++", "libc6-dev", "make", "pkg-config"]
    if (shutil.which("python3") or "").startswith("/usr/bin/"):
        packages.append("python3-dev")
    if rust and shutil.which("cargo") is None:
        packages += compilers_of_rust(candidates(["cargo" + end for end in RUSTS]))
    if not install(packages):
        env_script.fail("apt-get cannot install the compilers")


def install_named(packages: list[str]) -> None:
    """Install those of the packages that can be installed."""
    if install(packages):
        return
    there = [name for name in packages if install([name])]
    for name in packages:
        if name not in there:
            env_script.say("notice: without " + name + ", which cannot be installed here")
    if not there:
        env_script.fail("apt-get can install none of them")


def install(packages: list[str]) -> bool:
    """Install packages; return whether all are there."""
    return apt("install", "-y", "--no-install-recommends", "--", *packages)


def main() -> None:
    """Install what `job.json` names."""
    job = json.loads((env_script.HERE / "job.json").read_text("utf-8"))
    os.environ.update(job["env"], DEBIAN_FRONTEND="noninteractive")
    if shutil.which("apt-get") is None:
        env_script.fail("the image has no apt-get to install packages with")
    add_source("security", SECURITY)
    if not apt("update"):
        env_script.fail("apt-get cannot read the lists of Debian's packages")
    install_newer(job.get("newer", {}))
    if "packages" in job:
        install_named(job["packages"])
    else:
        install_compilers(job["rust"])
    apt("clean")
    shutil.rmtree("/var/lib/apt/lists", ignore_errors=True)
    shutil.rmtree(str(env_script.HERE))

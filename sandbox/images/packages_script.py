"""Install compilers or other packages with apt; runs as root inside a build container.

Output and exit status are those of `env_script.py`.
"""

from __future__ import annotations

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
ARCHIVE = re.compile(r"https?://\S+/debian(?=/?\s)")
"""Address of Debian's packages in a list of sources; the security updates lie beside them."""
SOURCES = Path("/etc/apt/sources.list.d")


def version_of(text: str) -> tuple[int, ...]:
    """Return the numbers at the start of a version."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()


def newest_rust(policy: str) -> tuple[str, str]:
    """Return the end of the package's name and the version of the newest Rust in the output of apt-cache policy."""
    found = [("", "")]
    for end, candidate in re.findall(r"^cargo([\w.-]*):\n.*\n  Candidate: (\d\S*)", policy, re.MULTILINE):
        found.append((end, candidate))
    return max(found, key=lambda one: version_of(one[1]))


def apt(*arguments: str) -> bool:
    """Run apt-get with its output in the log; return whether it succeeded."""
    return env_script.run([*APT, *arguments], dict(os.environ))


def updates_of(sources: str, release: dict[str, str]) -> str | None:
    """Return the line for Debian's security updates that a list of sources lacks; None if it lacks nothing."""
    archive = ARCHIVE.search(sources)
    if release.get("ID") != "debian" or "-security" in sources or archive is None:
        return None
    return SECURITY.format(archive[0], release.get("VERSION_CODENAME", "stable"))


def add_updates() -> None:
    """Let apt see Debian's security updates, which have newer compilers; an image of debootstrap lacks them."""
    release = dict(
        re.findall(r'^(\w+)="?([^"\n]*)', Path("/etc/os-release").read_text("utf-8"), re.MULTILINE)
    )
    files = [Path("/etc/apt/sources.list"), *SOURCES.glob("*")]
    line = updates_of("\n".join(file.read_text("utf-8") for file in files if file.is_file()), release)
    if line is not None:
        SOURCES.mkdir(parents=True, exist_ok=True)
        (SOURCES / "m3agent-security.list").write_text(line, "utf-8")


def install_compilers(rust: bool) -> None:
    """Install compilers, with the newest Rust on demand."""
    packages = ["gcc", "g++", "libc6-dev", "make", "pkg-config"]
    if (shutil.which("python3") or "").startswith("/usr/bin/"):
        packages.append("python3-dev")
    if rust and shutil.which("cargo") is None:
        names = ["cargo" + end for end in RUSTS]
        policy = subprocess.run(
            ["apt-cache", "policy", *names], stdout=subprocess.PIPE, check=False
        ).stdout.decode()
        end, version = newest_rust(policy)
        packages += ["cargo" + end, "rustc" + end] if version else []
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
    add_updates()
    if not apt("update"):
        env_script.fail("apt-get cannot read the lists of Debian's packages")
    if "packages" in job:
        install_named(job["packages"])
    else:
        install_compilers(job["rust"])
    apt("clean")
    shutil.rmtree("/var/lib/apt/lists", ignore_errors=True)
    shutil.rmtree(str(env_script.HERE))

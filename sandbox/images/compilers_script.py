"""Install compilers or other packages with apt; runs as root inside a build container.

Uses only the standard library and Python 3.8+. The argument `rust`, if it is there, asks for the newest Rust too. After the
argument `packages`, names of packages follow, which are installed instead of compilers. Output and exit status are those of
`env_script.py`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

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


def say(line: str) -> None:
    """Print one line for the log."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def run(*argv: str) -> bool:
    """Run a program with its output in the log; return whether it succeeded."""
    say("$ " + " ".join(argv))
    env = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    return subprocess.call(argv, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT) == 0


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


def compilers(rust: bool) -> bool:
    """Install compilers; return whether they are there."""
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
        say("apt-get cannot install the compilers")
        return False
    return True


def named(packages: list[str]) -> bool:
    """Install those of the packages that can be installed; return whether any is there."""
    if install(packages):
        return True
    there = [name for name in packages if install([name])]
    for name in packages:
        if name not in there:
            say("notice: without " + name + ", which cannot be installed here")
    if not there:
        say("apt-get can install none of them")
    return bool(there)


def install(packages: list[str]) -> bool:
    """Install packages; return whether all are there."""
    return run(*APT, "install", "-y", "--no-install-recommends", "--", *packages)


def main() -> int:
    """Install what is wanted; return the exit status."""
    if shutil.which("apt-get") is None:
        say("the image has no apt-get to install packages with")
        return 1
    add_updates()
    if not run(*APT, "update"):
        say("apt-get cannot read the lists of Debian's packages")
        return 1
    wanted = sys.argv[1:]
    if not (named(wanted[1:]) if wanted[:1] == ["packages"] else compilers("rust" in wanted)):
        return 1
    run(*APT, "clean")
    shutil.rmtree("/var/lib/apt/lists", ignore_errors=True)
    shutil.rmtree(str(Path(__file__).parent))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The command `pip` inside a sandbox: pip for the sandbox's python3, with an answer if there is no network.

Uses only the standard library and, if it is there, `packaging`. Without a network, a request for packages that are not
installed is answered at once. Everything else goes to the real pip.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

try:
    from importlib import metadata
except ImportError:  # Python before 3.8: then pip answers itself
    metadata = None  # type: ignore[assignment]

FETCHES = ("install", "download", "wheel")  # commands of pip that may download
NO_NETWORK = "this sandbox has no network, so pip cannot download anything"
ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
# Options of those commands that take the next argument as their value. That argument is not a requirement.
VALUED = {
    "-c", "--constraint", "-e", "--editable", "-t", "--target", "-d", "--dest", "-w", "--wheel-dir", "-b", "--build",
    "-i", "--index-url", "--extra-index-url", "--prefix", "--root", "--src", "--platform", "--python-version",
    "--implementation", "--abi", "--progress-bar", "--timeout", "--retries", "--proxy", "--cert", "--client-cert",
    "--no-binary", "--only-binary", "--log", "--upgrade-strategy", "-C", "--config-settings", "--cache-dir",
    "--trusted-host", "--python", "--report", "--global-option", "--exists-action", "--keyring-provider",
    "--use-feature", "--use-deprecated", "--root-user-action",
}  # fmt: skip
OWN_SOURCES = ("-f", "--find-links", "-h", "--help")  # with these, pip needs no index
MOST_LISTED = 200  # installed packages named in an answer


def main(arguments: list[str]) -> int:
    """Answer, or run the real pip; return the exit status."""
    command = next((word for word in arguments if not word.startswith("-")), "")
    offline = bool(os.environ.get("PIP_NO_INDEX"))
    if not offline or command not in FETCHES:
        return run_pip(arguments)
    rest = arguments[arguments.index(command) + 1 :]
    needs_index = not any(word.partition("=")[0] in OWN_SOURCES for word in rest)
    lacking = missing(requirements(rest)) if needs_index else []
    if lacking:
        print_error(f"{NO_NETWORK}. Not installed: {', '.join(lacking)}")
        print_error(f"Installed: {installed()}")
        return 1
    status = run_pip(arguments)
    if status:
        print_error(f"note: {NO_NETWORK}. `pip list` shows what is installed.")
    return status


def requirements(words: list[str]) -> Iterator[str]:
    """Yield the packages that arguments ask an index for; not local folders and files."""
    words = list(words)
    while words:
        word = words.pop(0)
        if word in ("-r", "--requirement") and words:
            yield from from_file(words.pop(0))
        elif word.startswith("--requirement="):
            yield from from_file(word.partition("=")[2])
        elif word in VALUED and words:
            words.pop(0)
        elif not word.startswith("-") and not is_local(word):
            yield word


def from_file(path: str) -> Iterator[str]:
    """Yield the packages of a requirements file; pip itself reports a file that cannot be read."""
    try:
        lines = Path(path).read_text("utf-8", "replace").replace("\\\n", " ").splitlines()
    except OSError:
        return
    for line in lines:
        text = (" " + line).partition(" #")[0].partition(" --")[0].strip()
        if text and not text.startswith("-") and not is_local(text):
            yield text


def is_local(word: str) -> bool:
    """Return whether pip takes an argument for a path of this machine."""
    path = word.partition("[")[0].partition(";")[0].strip()
    if "://" in word or " @ " in word:
        return word.startswith("file:")
    return path.startswith(".") or "/" in path or path.lower().endswith(ARCHIVES)


def missing(wanted: Iterator[str]) -> list[str]:
    """Return the requirements that no installed package satisfies."""
    try:
        from packaging.requirements import InvalidRequirement, Requirement
    except ImportError:
        return []  # pip itself finds out
    if metadata is None:
        return []
    lacking = []
    for text in wanted:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            if "://" in text:
                lacking.append(text)
            continue  # pip itself explains what is wrong with it
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        try:
            have = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            lacking.append(text)
            continue
        if not requirement.specifier.contains(have, prereleases=True):
            lacking.append(f"{text} ({have} is installed)")
    return lacking


def packages() -> list[tuple[str, str]]:
    """Return name and version of everything that python3 can import, by name."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions() if metadata is not None else ():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(name, distribution.version)
    return sorted(found.items(), key=lambda item: item[0].lower())


def installed() -> str:
    """Return the installed packages in one line."""
    found = [f"{name} {version}" for name, version in packages()]
    more = len(found) - MOST_LISTED
    return ", ".join(found[:MOST_LISTED]) + (f", and {more} more" if more > 0 else "")


def run_pip(arguments: list[str]) -> int:
    """Run the real pip for this interpreter; answer what is possible if there is none."""
    pip = find_pip()
    if pip is not None:
        return subprocess.call([*pip, *arguments])
    if arguments[:1] in (["list"], ["freeze"]):
        separator = "==" if arguments[0] == "freeze" else " "
        for item in packages():
            sys.stdout.write(separator.join(item) + "\n")
        return 0
    print_error("pip is not installed here; only `pip list` and `pip freeze` work")
    return 1


def find_pip() -> list[str] | None:
    """Return the command of pip: this interpreter's, otherwise another one's on PATH that works for this one."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    own = Path(__file__).parent
    for folder in os.environ.get("PATH", os.defpath).split(":"):
        pip = Path(folder, "pip")
        if pip.parent != own and os.access(pip, os.X_OK):
            return [str(pip), "--python", sys.executable]
    return None


def print_error(line: str) -> None:
    """Print a line to standard error."""
    sys.stderr.write(f"pip: {line}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

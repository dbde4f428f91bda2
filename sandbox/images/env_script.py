"""Create the virtual environment of an environment image; runs inside a build container.

Uses only the standard library and Python 3.8+. Runs as a file beside `job.json`, `requirements.txt`,
`optional.txt` and `constraints.txt`. It prints plain lines to standard output; after a failure, the last line is the reason.
Exit status 0: done; 1: failed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(__file__).absolute().parent
SCRATCH = Path("/tmp")  # noqa: S108 - the container's own
SCRIPT = """\
#!{python}
import sys
from {module} import {first}
sys.exit({object}())
"""


def say(line: str) -> None:
    """Print one line for the log."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def fail(reason: str) -> NoReturn:
    """Print the reason and exit with status 1."""
    say(reason)
    sys.exit(1)


def run(argv: list[str], env: dict[str, str]) -> bool:
    """Run a program with its output in the log; return whether it succeeded."""
    say("$ " + " ".join(argv))
    return subprocess.call(argv, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT) == 0


def output(argv: list[str], env: dict[str, str]) -> str | None:
    """Return the standard output of a program, or None if it cannot start or fails."""
    try:
        done = subprocess.run(
            argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def environment(given: dict[str, str]) -> dict[str, str]:
    """Return the variables of all programs that a build runs: those given and our own; make the home folder."""
    env = dict(given, PATH=os.environ.get("PATH", os.defpath))
    env.update(HOME=str(SCRATCH / "home"), TMPDIR=str(SCRATCH), NO_COLOR="1")
    env.update(
        UV_CACHE_DIR=str(SCRATCH / "uv-cache"), UV_LINK_MODE="copy", UV_NO_PROGRESS="1", UV_NO_CONFIG="1"
    )
    env.update(
        PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_CACHE_DIR="1", PIP_RETRIES="1", PIP_DEFAULT_TIMEOUT="20"
    )
    Path(env["HOME"]).mkdir(exist_ok=True)
    return env


def find_uv(env: dict[str, str]) -> str:
    """Return the path of uv: the host's, the image's, or one installed with an available pip."""
    for given in (str(HERE / "uv"), "uv"):
        if output([given, "--version"], env) is not None:
            return given
    target = SCRATCH / "uv"
    pips = [[sys.executable, "-m", "pip"]]
    pips += [[sys.executable, str(wheel / "pip")] for wheel in HERE.glob("pip-*.whl")]
    for pip in pips:
        if output([*pip, "--version"], env) is not None:
            options = ["--quiet", "--target", str(target), "--only-binary", ":all:"]
            installed = str(target / "bin" / "uv")
            if run([*pip, "install", *options, "uv"], env) and output([installed, "--version"], env):
                return installed
            fail("no package index has uv, which installs the dependencies")
    fail("neither uv nor pip was found to install with: install uv on this machine")


def find_python(uv: str, job: dict[str, Any], env: dict[str, str]) -> str:
    """Return the Python to build on.

    That is the image's own if the repository accepts it, otherwise one that uv installs. If uv cannot install
    one, it is the image's own after all, with a notice.
    """
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if not job["pythons"] or own in job["pythons"]:
        return sys.executable
    wish = job["pythons"][0]
    env = dict(env, UV_PYTHON_INSTALL_DIR=job["folder"] + "/python", UV_PYTHON_PREFERENCE="only-managed")
    if run([uv, "python", "install", "--no-bin", wish], env):
        found = output([uv, "python", "find", wish], env)
        if found is not None:
            return found
    say(f"notice: Python {wish} is not available here: using {own}")
    return sys.executable


def describe_project(packages: Path, folder: Path, project: dict[str, Any]) -> None:
    """Write the project's metadata and commands; its code stays in the work tree, which is on PYTHONPATH."""
    name, version = (project[key].replace("-", "_").replace("/", "_") for key in ("name", "version"))
    info = packages / f"{name}-{version}.dist-info"
    info.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(metadata, "utf-8")
    (info / "INSTALLER").write_text("m3agent\n", "utf-8")
    lines = []
    for group, points in sorted(project["entry_points"].items()):
        lines += [f"[{group}]\n", *(f"{key} = {value}\n" for key, value in sorted(points.items()))]
    (info / "entry_points.txt").write_text("".join(lines), "utf-8")
    for command, target in project["entry_points"].get("console_scripts", {}).items():
        module, _, attribute = target.split("[")[0].strip().partition(":")
        script = folder / "bin" / Path(command).name
        if attribute and not script.exists():
            first = attribute.split(".")[0]
            python = folder / "bin" / "python3"
            script.write_text(
                SCRIPT.format(python=python, module=module, first=first, object=attribute), "utf-8"
            )
            script.chmod(0o755)


def install(uv: str, job: dict[str, Any], env: dict[str, str]) -> bool:
    """Install the requirements; return whether those that are not optional are there.

    If not all can be installed together, as many of the optional ones as possible are. If that does not help, the
    constraints are left out: a lock file may name versions that the indexes do not have.
    """
    sure, optional, constraints = (
        HERE / (name + ".txt") for name in ("requirements", "optional", "constraints")
    )
    command = [uv, "pip", "install", "--python", job["folder"] + "/bin/python3"]
    if job["exclude_newer"]:
        command += ["--exclude-newer", job["exclude_newer"]]
    bounds = ["--constraints", str(constraints)]
    for more in [bounds, []] if constraints.stat().st_size else [[]]:
        if not more and constraints.stat().st_size:
            say("notice: without the locked versions, which cannot be installed here")
        first = [*command, *more, "--compile-bytecode", "--requirements", str(sure)]
        if run([*first, "--requirements", str(optional)], env):
            return True
        if optional.stat().st_size and run(first, env):
            install_possible([*command, *more], optional.read_text("utf-8").splitlines(), env)
            return True
    return False


def install_possible(command: list[str], lines: list[str], env: dict[str, str]) -> None:
    """Install as many requirements as possible: halve a list that cannot be installed, down to one line."""
    middle = len(lines) // 2
    for half in (lines[:middle], lines[middle:]):
        part = HERE / "part.txt"
        part.write_text("".join(line + "\n" for line in half), "utf-8")
        if not half or run([*command, "--requirements", str(part)], env):
            continue
        if len(half) > 1:
            install_possible(command, half, env)
        else:
            say("notice: without " + half[0].split(" --hash")[0] + ", which cannot be installed here")


def main() -> None:
    """Build the environment that `job.json` describes."""
    job = json.loads((HERE / "job.json").read_text("utf-8"))
    folder = job["folder"]
    env = environment(job["env"])
    uv = find_uv(env)
    python = find_python(uv, job, env)
    env["UV_PYTHON_DOWNLOADS"] = "never"
    if not run([uv, "venv", "--quiet", "--allow-existing", "--python", python, folder], env):
        fail("the virtual environment could not be made")
    if not install(uv, job, env):
        fail("the dependencies could not be installed")
    packages = next(Path(folder, "lib").glob("python*/site-packages"))
    if job["project"]:
        describe_project(packages, Path(folder), job["project"])
    if job["import_folders"]:
        (packages / "m3agent-project.pth").write_text(
            "".join(line + "\n" for line in job["import_folders"]), "utf-8"
        )
    for file in HERE.iterdir():  # these files are not part of the image
        file.unlink()
    say("done")


if __name__ == "__main__":
    main()

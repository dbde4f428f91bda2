"""Create the virtual environment of an environment image; runs inside a build container.

Uses only the standard library, like all programs for build containers, whose settings are in `job.json`. Here,
`requirements.txt`, `optional.txt` and `constraints.txt` lie beside it. With the argument `python`, it only installs the Python
that the job names. It prints plain lines to standard output; after a failure, the last line is the reason. Exit status 0: done;
1: failed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(__file__).absolute().parents[3]
"""The folder with `job.json` and all files of a build. The programs lie below it, in the folders of their package."""
SCRATCH = Path("/tmp")  # noqa: S108 - the container's own
PIPS: dict[tuple[int, ...], tuple[str, str]] = {(3, 5): ("20.3.4", "50.3.2"), (3, 6): ("21.3.1", "59.6.0")}
"""The last versions of pip and setuptools for old Pythons."""
UVS_OLDEST = (3, 6)
"""The oldest Python for which uv can install packages."""
UVS_OLDEST_TO_COMPILE = (3, 7)
"""The oldest Python for which uv can compile them."""
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
        return subprocess.check_output(argv, env=env, stderr=subprocess.DEVNULL).decode().strip()
    except (OSError, subprocess.CalledProcessError):
        return None


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
    for pip in find_pips(env):
        if output([*pip, "--version"], env) is not None:
            uv = downloaded_uv(pip, env)
            if output([uv, "--version"], env) is not None:
                return uv
            fail("no package index has uv, which installs the dependencies")
    fail("neither uv nor pip was found to install with: install uv on this machine")


def downloaded_uv(pip: list[str], env: dict[str, str]) -> str:
    """Download uv and return where it should be. It says which Python it needs, but it is a program that uses none."""
    folder = SCRATCH / "uv"
    options = ["--quiet", "--only-binary", ":all:", "--no-deps", "--python-version", "3.11"]
    run([*pip, "download", *options, "--dest", str(folder), "uv"], env)
    for wheel in folder.glob("uv-*.whl"):
        with zipfile.ZipFile(str(wheel)) as archive:
            for name in archive.namelist():
                if name.endswith(".data/scripts/uv"):
                    (folder / "uv").write_bytes(archive.read(name))
                    (folder / "uv").chmod(0o755)
    return str(folder / "uv")


def find_pips(env: dict[str, str]) -> Iterator[list[str]]:
    """Yield the commands with which pip may be called; the last is that of a new virtual environment."""
    yield [sys.executable, "-m", "pip"]
    for wheel in HERE.glob("pip-*.whl"):
        yield [sys.executable, str(wheel / "pip")]
    folder = SCRATCH / "pip"
    if make_with_pip(sys.executable, str(folder), env):
        yield [str(folder / "bin" / "python3"), "-m", "pip"]


def make_with_pip(python: str, folder: str, env: dict[str, str]) -> bool:
    """Make a virtual environment with the latest pip for its Python; return whether that succeeded."""
    if not run([python, "-m", "venv", folder], env):
        return False
    pip = [folder + "/bin/python3", "-m", "pip", "install", "--quiet", "--upgrade"]
    versions = PIPS.get(version_of(python, env))
    env = {name: value for name, value in env.items() if name != "PIP_NO_CACHE_DIR"}  # pip 9 stumbles over it
    if versions is None:
        return run([*pip, "pip"], env)
    # an old pip does not know which version of a package its Python can use
    return run([*pip, "pip==" + versions[0]], env) and run([*pip, "setuptools==" + versions[1]], env)


def version_of(python: str, env: dict[str, str]) -> tuple[int, ...]:
    """Return the major and minor version of a Python; empty if it does not run."""
    said = output([python, "-c", "import sys; print(sys.version_info[0], sys.version_info[1])"], env)
    return tuple(map(int, (said or "").split()))


def uvs_pythons(job: dict[str, Any], env: dict[str, str]) -> dict[str, str]:
    """Return the variables with which uv knows only the Pythons that it installs into the environment's folder."""
    return dict(env, UV_PYTHON_INSTALL_DIR=job["folder"] + "/python", UV_PYTHON_PREFERENCE="only-managed")


def find_python(uv: str, job: dict[str, Any], env: dict[str, str]) -> str:
    """Return the Python to build on: the image's own if the repository accepts none or another one of the image's."""
    own = "{}.{}".format(*sys.version_info)
    if not job["pythons"] or own in job["pythons"]:
        return sys.executable
    env = dict(uvs_pythons(job, env), UV_PYTHON_DOWNLOADS="never")
    for wish in job["pythons"]:
        found = shutil.which("python" + wish, path=env["PATH"]) or output([uv, "python", "find", wish], env)
        if found:
            return found
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


def make_environment(uv: str, job: dict[str, Any], env: dict[str, str]) -> list[str]:
    """Make the virtual environment; return the command that installs packages into it."""
    folder = job["folder"]
    python = find_python(uv, job, env)
    env = dict(env, UV_PYTHON_DOWNLOADS="never")
    if version_of(python, env) < UVS_OLDEST:
        if not make_with_pip(python, folder, env):
            fail("the virtual environment could not be made")
        return [folder + "/bin/python3", "-m", "pip", "install"]
    if not run([uv, "venv", "--quiet", "--allow-existing", "--python", python, folder], env):
        fail("the virtual environment could not be made")
    command = [uv, "pip", "install", "--python", folder + "/bin/python3"]
    if version_of(python, env) >= UVS_OLDEST_TO_COMPILE:
        command.append("--compile-bytecode")
    never = [name + " ; python_version < '0'" for name in job.get("not_of_index", ())]
    lines = [*never, *job.get("overrides", ())]
    if lines:
        overrides = HERE / "overrides.txt"
        overrides.write_text("".join(line + "\n" for line in lines), "utf-8")
        command += ["--override", str(overrides)]
    return [*command, "--exclude-newer", job["exclude_newer"]] if job["exclude_newer"] else command


def install(command: list[str], env: dict[str, str]) -> bool:
    """Install the requirements with this command; return whether those that are not optional are there.

    If not all can be installed together, as many of the optional ones as possible are. If that does not help, the
    constraints are left out: a lock file may name versions that the indexes do not have.
    """
    sure, optional, constraints = (
        HERE / (name + ".txt") for name in ("requirements", "optional", "constraints")
    )
    bounds = ["-c", str(constraints)]
    for more in [bounds, []] if constraints.stat().st_size else [[]]:
        if not more and constraints.stat().st_size:
            say("notice: without the locked versions, which cannot be installed here")
        first = [*command, *more, "-r", str(sure)]
        if run([*first, "-r", str(optional)], env):
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
        if not half or run([*command, "-r", str(part)], env):
            continue
        if len(half) > 1:
            install_possible(command, half, env)
        else:
            say("notice: without " + half[0].split(" --hash")[0] + ", which cannot be installed here")


def main() -> None:
    """Build the environment that `job.json` describes."""
    job = json.loads((HERE / "job.json").read_text("utf-8"))
    env = environment(job["env"])
    uv = find_uv(env)
    if sys.argv[1:] == ["python"]:
        if not run([uv, "python", "install", "--no-bin", job["pythons"][0]], uvs_pythons(job, env)):
            fail("uv could not install Python " + job["pythons"][0])
    else:
        command = make_environment(uv, job, env)
        env["UV_PYTHON_DOWNLOADS"] = "never"
        if not install(command, env):
            fail("the dependencies could not be installed")
        describe(job)
    finish()


def finish() -> None:
    """Remove the inputs of the build, which are not part of the image."""
    for file in HERE.iterdir():
        shutil.rmtree(str(file)) if file.is_dir() else file.unlink()
    say("done")


def describe(job: dict[str, Any]) -> None:
    """Write what says where the project's code is."""
    packages = next(Path(job["folder"], "lib").glob("python*/site-packages"))
    for project in filter(None, [job["project"], *job.get("members", ())]):
        describe_project(packages, Path(job["folder"]), project)
    if job["import_folders"]:
        (packages / "m3agent-project.pth").write_text(
            "".join(line + "\n" for line in job["import_folders"]), "utf-8"
        )

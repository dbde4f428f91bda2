"""Turn a task into the layers of its image, and build a layer: a script that root runs in a container of the layer below.

The layout is the one that official evaluation scripts expect: a virtual environment that `conda activate testbed` selects,
and the work tree at /testbed. So one image serves both ways of grading. The work tree itself is at the path that m3agent's
sandboxes use, and /testbed is a link to it.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import IO

from m3agent.evals.data.instance import TESTBED, Environment, Task
from m3agent.sandbox.backends.image import Image
from m3agent.sandbox.backends.sandbox import BESIDE, EQUIPPED, ROOT
from m3agent.sandbox.images.debian import RELEASED
from m3agent.sandbox.images.env_script import PIPS
from m3agent.sandbox.images.image_build import INSTALLING, Build, build_files, build_image, files_as_tar
from m3agent.sandbox.images.indexes import indexes_here
from m3agent.sandbox.images.installers import installers
from m3agent.sandbox.images.layers import Builder

WORK = "/opt/m3agent-layer"
"""Folder of a layer's script and files while the script runs. It is not part of the image."""


@dataclass(frozen=True)
class Layer:
    """The inputs of a layer. A hash of them and of the layer below is the key of the layer's image."""

    name: str
    script: str
    """A bash script, run in `WORK`."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files in `WORK`, by name."""
    commit: str = ""
    """Id of the work tree's commit; empty without a work tree."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that the image sets from this layer on."""


def build_layer(
    builder: Builder, layer: Layer, below: Image, tag: str, *, work_tree: Path | None, log: Path
) -> None:
    """Build the layer's image and tag it. Blocking; takes minutes.

    Args:
        work_tree: A checkout to copy to the place of a sandbox's work tree.

    Raises:
        EnvironmentBuildFailed: A command failed, or the build exceeded its time or its disk space. The log has the output.
    """
    with _inputs(layer, below, work_tree) as (build, archives):
        build_image(builder.api, build, tag, archives, log=log, say=builder.say, stop=builder.stop)


def files_of(builder: Builder, layer: Layer, below: Image, folder: str, *, log: Path) -> dict[str, bytes]:
    """Run the layer's script, and return the files that it leaves in a folder, by name. Blocking.

    Raises:
        EnvironmentBuildFailed: As for `build_layer`, or the files are too large.
    """
    with _inputs(layer, below, None) as (build, archives):
        return build_files(builder.api, build, archives, folder, log=log, say=builder.say, stop=builder.stop)


@contextlib.contextmanager
def _inputs(
    layer: Layer, below: Image, work_tree: Path | None
) -> Iterator[tuple[Build, list[bytes | IO[bytes]]]]:
    """Yield the layer's build, and the archives of its files and of the work tree."""
    indexes = indexes_here()
    files = {**installers(), **layer.files, "layer.sh": layer.script.encode()}
    if indexes.certificates is not None:
        files["certificates.pem"] = indexes.certificates.read_bytes()
    build = Build(
        what=f"the {layer.name}",
        base=below,
        command=("/bin/bash", f"{WORK}/layer.sh"),
        user="0:0",
        folder=WORK,
        env=indexes.environment(f"{WORK}/certificates.pem"),
        capabilities=INSTALLING,
        indexes=indexes,
        image_env={**below.env, **layer.env},
        image_command="/bin/bash",
    )
    archives: list[bytes | IO[bytes]] = [files_as_tar(files, WORK, folders=[WORK])]
    with contextlib.ExitStack() as stack:
        if work_tree is not None:
            archives.append(stack.enter_context(_packed(work_tree)))
        yield build, archives


@contextlib.contextmanager
def _packed(work_tree: Path) -> Iterator[IO[bytes]]:
    """Return a folder as a tar, in which its path is `ROOT`."""
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            archive.add(work_tree, arcname=ROOT.lstrip("/"))
        file.seek(0)
        yield file


CONDA = "/opt/miniconda3"
VENV = f"{CONDA}/envs/testbed"
PIP, SETUPTOOLS = "24.0", "68.0.0"
"""Versions in the virtual environment. They are from mid 2023 and can build both old and new packages (tested).

`PIPS` has the last ones for Pythons that they do not support.
"""
STEPS = ("requirements.txt", "packages.txt")
"""Files of requirements, installed in this order as in official builds: the second may replace versions of the first."""
RESOLVED = "/opt/m3agent-resolved"
"""Folder of the result of a resolution."""
EDITABLE_SINCE = "2023-07-01"
"""Since this date, setuptools supports editable installs. Older releases are not used, even for older instances."""
RIPE = timedelta(days=365)
"""Time after a Python release until most packages have wheels for it. Packages are not resolved as of an earlier date."""
EXACT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^]]*\])?\s*===?\s*[^*\s]+\s*$")
"""A requirement of one exact version. It counts even if that version is newer than the row."""
EVER = "2999-01-01"
TRACKED = "tracked"
"""File with the paths of the files that are in the checkout, one a line."""
PLAIN_PIP = re.compile(
    r"""\s*(?:python3?\s+-m\s+)?pip3?\s+install\s+((?:[^;&|<>`$()'"]|'[^']*'|"[^"$`]*")+)"""
)
"""A command that only installs packages. uv can do the same as of a date."""


def python_layer(environment: Environment, python: str) -> Layer:
    """Return the layer with the system packages and the virtual environment, without the packages."""
    apt = ""
    if environment.system_packages:
        names = shlex.join(environment.system_packages)
        apt = f"apt-get update -q\napt-get install -q -y --no-install-recommends {names}\n"
    version = tuple(map(int, python.split(".")))
    pip, setuptools = PIPS.get(version, (PIP, SETUPTOOLS))
    pinned = f"setuptools=={setuptools}" if version < (3, 12) else "setuptools"
    script = f"""\
{_head(None)}
export DEBIAN_FRONTEND=noninteractive
{apt}"$(command -v python{python} || command -v python3)" -m venv {VENV}
mkdir -p {CONDA}/bin
cat > {CONDA}/bin/activate <<'EOF'
{ACTIVATE}EOF
. {CONDA}/bin/activate
env -u PIP_NO_CACHE_DIR python -m pip install -q pip=={pip} # pip 9 stumbles over the variable
python -m pip install -q {pinned} wheel
"""
    env = {
        "PATH": f"{VENV}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "VIRTUAL_ENV": VENV,
        "PIP_RETRIES": "0",  # evaluation scripts install again, without a network
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    return Layer("virtual environment", script, env=env)


def resolution(environment: Environment, era: date) -> Layer:
    """Return the script that resolves the packages as of the date. It leaves a file for each of `STEPS` in `RESOLVED`.

    It leaves none if the packages cannot be resolved, or if one of them has no wheel: what builds it depends on the date.
    """
    files = _requirements(environment)
    newest = _newest(era, _exact(environment))
    script = f"""\
{_head(None)}
mkdir {RESOLVED}
. {CONDA}/bin/activate
find_uv
resolve() {{
    # uv prefers the versions in its output file, as an installation prefers those that are there
    "$UV" pip freeze > installed
    for step in {" ".join(STEPS)}; do
        ! grep -q '^-' $step || return # such as an index, which the result would not name
        cat resolved-* installed 2>/dev/null | awk -F '[= ]' '!seen[$1]++' > lock
        "$UV" pip compile -q --no-header --no-annotate {newest} -o lock $step || return
        "$UV" pip install -q --dry-run --no-build --no-deps -r lock || return
        mv lock resolved-$step
    done
    for step in {" ".join(STEPS)}; do mv resolved-$step {RESOLVED}/$step; done
}}
resolve || echo "not resolved as of {era}"
"""
    return Layer("packages", script, files)


def packages_layer(
    environment: Environment, era: date | None, resolved: Mapping[str, bytes] | None = None
) -> Layer:
    """Return the layer with all packages that do not depend on the commit.

    Args:
        resolved: What `resolution` found. It takes the place of the date, so instances of different dates share the layer.
    """
    head = _head(None) if resolved else _head(era, _exact(environment))
    script = f"""\
{head}
. {CONDA}/bin/activate
find_uv
for step in {" ".join(STEPS)}; do
    [ ! -s $step ] || in_era $step -r $step || python -m pip install -r $step
done
"""
    return Layer("packages", script, resolved or _requirements(environment))


def _requirements(environment: Environment) -> dict[str, bytes]:
    """Return the files of requirements, by the names in `STEPS`."""
    first, second = [*environment.requirements], [*environment.pip_packages]
    if not any(re.match(r"pytest\b(?!-)", line.strip(), re.IGNORECASE) for line in (*first, *second)):
        first.append("pytest")
    named = dict(zip(STEPS, (first, second), strict=True))
    return {name: "".join(f"{line}\n" for line in lines).encode() for name, lines in named.items()}


def _exact(environment: Environment) -> list[str]:
    """Return the packages of which the environment names an exact version."""
    lines = (*environment.requirements, *environment.pip_packages)
    return sorted({match[1] for line in lines if (match := EXACT.match(line))})


def instance_layer(task: Task, era: date | None, commit: str) -> Layer:
    """Return the layer with the work tree at its commit and the project installed."""
    environment = task.environment
    variables = "".join(
        f"export {name}={shlex.quote(value)}\n" for name, value in environment.variables.items()
    )
    files = shlex.join(environment.requirements_files)
    if files:
        files = (
            f'for file in {files}; do [ -f "$file" ] || continue; '
            'in_era "$file" -r "$file" || python -m pip install -r "$file"; break; done\n'
        )
    commands = files + "".join(
        f"{in_era(line)}\n" for line in (*environment.pre_install, environment.install or "") if line.strip()
    )
    script = f"""\
{_head(era)}
chown -R 0:0 {ROOT}
ln -s {ROOT} {TESTBED}
git config --system --add safe.directory '*'
. {CONDA}/bin/activate
{variables}find_uv
cd {TESTBED}
{commands}{KEEP}
"""
    return Layer("image", script, commit=commit, env={**environment.variables, EQUIPPED: "1"})


def prebuilt_layer(path: str, folder: str = TESTBED, tracked: Sequence[str] | None = None) -> Layer:
    """Return the layer that moves a prebuilt image's work tree to the path that m3agent's sandboxes use.

    Args:
        folder: The folder of the work tree in the image. A link takes its place.
        tracked: Paths of the files that are in the checkout; None for those that git has in the image.
    """
    script = f"""\
{_head(None)}
git config --system --add safe.directory '*' || true
if [ {folder} != {ROOT} ] && [ ! -L {folder} ]; then
    rm -rf {ROOT}
    cp -a {folder} {ROOT}
    rm -rf {folder}
    ln -s {ROOT} {folder}
fi
[ -e {TESTBED} ] || ln -s {ROOT} {TESTBED}
cd {TESTBED}
{KEEP if tracked is None else KEEP_OTHERS}
"""
    files = (
        {}
        if tracked is None
        else {TRACKED: "".join(f"{path}\n" for path in tracked).encode(errors="surrogateescape")}
    )
    folders = [f"{VENV}/bin", f"{CONDA}/bin", "/usr/local/bin", "/usr/bin", "/bin", *path.split(":")]
    return Layer("image", script, files, env={"PATH": ":".join(dict.fromkeys(filter(None, folders)))})


def era_of(task: Task, python: str) -> date | None:
    """Return the date as of which packages are resolved; None for today, if the task has no date.

    It is the task's date, or a later one if most packages had no wheels for this Python then (`RIPE`).
    """
    if task.environment.exclude_newer is not None:
        return _day(task.environment.exclude_newer)
    if task.created_at is None:
        return None
    released = RELEASED.get(python)
    return _day(task.created_at) if released is None else max(_day(task.created_at), released + RIPE)


def in_era(line: str) -> str:
    """Return a shell line that installs packages as of the date, and falls back to the original line.

    A line that does more than install packages stays as it is.
    """
    if match := PLAIN_PIP.fullmatch(line):
        return f"in_era {shlex.quote(line.strip())} {match[1].strip()} || {{ {line}; }}"
    return line


def _day(moment: datetime) -> date:
    return (moment.astimezone(UTC) if moment.tzinfo else moment).date()


def _newest(era: date | None, exact: Sequence[str]) -> str:
    """Return uv's options for packages as of a date; the arguments are those of `_head`."""
    if era is None:
        return ""
    young = {"setuptools": max(str(era), EDITABLE_SINCE), **dict.fromkeys(exact, EVER)}
    return f"--exclude-newer {era}" + "".join(
        f" --exclude-newer-package {name}={day}" for name, day in young.items()
    )


def _head(era: date | None, exact: Sequence[str] = ()) -> str:
    """Return the beginning of every script, with the shell function `in_era WHAT ARGUMENTS…`.

    `in_era` installs packages with uv as of the date. If that fails, it prints a notice and installs current versions. It
    fails if uv fails again.

    Args:
        exact: Packages with an exact version, which may be newer than the date.
    """
    newest = _newest(era, exact)
    return f"""\
set -eo pipefail
trap 'rm -rf {WORK}' EXIT
export HOME=/root NO_COLOR=1 UV_NO_CACHE=1 UV_LINK_MODE=copy UV_NO_PROGRESS=1 UV_NO_CONFIG=1 PIP_NO_CACHE_DIR=1
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_RETRIES=2 UV_PYTHON_DOWNLOADS=never
export UV_COMPILE_BYTECODE=1 # else packages would be compiled during the tests, and their warnings would appear there
find_uv() {{
    UV={WORK}/uv
    [ -x "$UV" ] && "$UV" --version >/dev/null 2>&1 && return
    # uv cannot compile for older Pythons
    python -c 'import sys; sys.exit(sys.version_info < (3, 7))' || unset UV_COMPILE_BYTECODE
    # uv says which Python it needs, but uses none
    python -m pip download -q --only-binary :all: --no-deps --python-version 3.11 -d {WORK}/lib uv &&
        python -m zipfile -e {WORK}/lib/uv-*.whl {WORK}/lib &&
        UV=$(ls {WORK}/lib/uv-*.data/scripts/uv) && chmod +x "$UV" || UV=false
}}
in_era() {{
    local what="$1"; shift
    echo "\\$ uv pip install $*"
    "$UV" pip install {newest} "$@" && return
    echo "notice: not installed as of {era or "today"}, but as it is found today: $what"
    "$UV" pip install "$@"
}}"""


ACTIVATE = f"""\
# stands in for conda's: evaluation scripts call `conda activate testbed`
conda() {{ :; }}
export PATH="{VENV}/bin:$PATH" VIRTUAL_ENV="{VENV}"
"""
KEEP = f"""\
git -c user.name=m3agent -c user.email=m3agent@localhost -c gc.auto=0 commit -q -a -m set-up --no-verify || true
find . -name __pycache__ -type d -prune -exec rm -rf {{}} +
git ls-files -z --others | tar -c --null -T - -f {BESIDE}
chmod -R a+rX {ROOT} && chmod a+r {BESIDE}
echo done"""
"""End of the script of a work tree: commit its changes, and store new files for m3agent's sandboxes."""
KEEP_OTHERS = f"""\
find . -name __pycache__ -type d -prune -exec rm -rf {{}} +
find . -path ./.git -prune -o \\( -type f -o -type l \\) -print | cut -c 3- > {WORK}/all
grep -vxF -f {WORK}/{TRACKED} {WORK}/all > {WORK}/others || true
tar -c -T {WORK}/others -f {BESIDE}
chmod -R a+rX {ROOT} && chmod a+r {BESIDE}
echo done"""
"""Like `KEEP`, for a work tree that need not be git's: store the files that are not in the checkout."""

"""Compare how long environments of instances take to build and to grade: m3agent and the builder of swebench 4.1.0.

    python -m benchmarks.eval_builds ROWS [ROWS ...] --clone OWNER/NAME=FOLDER [--clone ...] [--workers 2]
                                     [--undated] [--peers-dir DIR] [--json FILE]

ROWS are files of `m3agent eval create`. Both build the same instances from the same specification: Python's version, the
requirements, the install command. All environment images of m3agent are removed first, except base images; so use a machine
on which nothing else needs them. What is not measured: base images.

m3agent installs packages as of each instance's date, and swebench as of today. With `--undated` the instances have no date, so
both install the same.

The official base image loads Ubuntu and conda from the network. Here its place is taken by Debian with the same Python
versions, by a `conda` that makes virtual environments, and by the clones, which git finds in the place of their address. All
three make the official builder faster than it is.

A row of the table is a stage: environments from nothing, the same again, grading of the reference patches by the strict rules
(ours) and by `run_evaluation` (swebench). Rows and images of the official builder have the same names as the harness gives them.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.common import git, parser_of, say, write_json
from benchmarks.peers import python_with

from m3agent.agent.settings.settings import state_dir
from m3agent.evals.data.instance import Instance
from m3agent.evals.data.load import load
from m3agent.evals.data.results import Verdict
from m3agent.evals.environments.environments import Environments
from m3agent.evals.grade.grader import Grader
from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.images.debian import base_image
from m3agent.util.concurrency import some_at_a_time

PINNED = "swebench==4.1.0"
BASE = "sweb.base.py.x86_64:latest"
"""The name under which swebench 4.1.0 looks for its base image."""
ACTIVATE = """\
conda() {
  case $1 in
    create) python3 -m venv "/opt/miniconda3/envs/$3" ;;
    activate) . "/opt/miniconda3/envs/$2/bin/activate"; CONDA_DEFAULT_ENV=$2 ;;
  esac
}
"""
"""The stand-in for conda. All instances of one table have the Python of the base image."""
TRUST = Path("/etc/ssl/certs/ca-certificates.crt")


def specification(row: dict[str, Any]) -> dict[str, Any]:
    """Return what swebench keeps for an instance in its table."""
    environment = row["environment"]
    requirements = [line for line in (environment["requirements_txt"] or "").splitlines() if line.strip()]
    install = environment["install"]
    for name, value in (environment["env"] or {}).items():
        install = f"{name}={value} {install}"
    return {
        "python": environment["python_used"],
        "packages": "",
        "pip_packages": [f"'{each}'" for each in [*requirements, *environment["pip_packages"]]],
        "pre_install": environment["pre_install"],
        "install": install,
        "test_cmd": environment["test_cmd"],
    }


def undated(instance: Instance) -> Instance:
    """Return the instance without the dates as of which packages are installed."""
    task = instance.task
    environment = task.environment.model_copy(update={"exclude_newer": None})
    task = task.model_copy(update={"created_at": None, "environment": environment})
    return instance.model_copy(update={"task": task})


def make_base(base: str, clones: dict[str, Path]) -> None:
    """Make the image that stands for the official base image."""
    pip = [
        f"{name}={os.environ[name]}"
        for name in ("PIP_INDEX_URL", "PIP_DEFAULT_TIMEOUT")
        if name in os.environ
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for repository, clone in clones.items():
            git(folder, "clone", "--quiet", "--bare", str(clone), str(folder / "clones" / repository))
        (folder / "activate").write_text(ACTIVATE)
        shutil.copy(TRUST, folder / "trust.crt")
        (folder / "Dockerfile").write_text(
            f"FROM {base}\n"
            "RUN apt-get update && apt-get install -y git build-essential python3-venv python3-dev\n"
            "COPY activate /opt/miniconda3/bin/activate\n"
            "COPY activate /opt/miniconda3/etc/profile.d/conda.sh\n"
            f"COPY trust.crt {TRUST}\n"
            "COPY clones /clones\n"
            "RUN git config --system url./clones/.insteadOf https://github.com/ && git config --system safe.directory '*'\n"
            f"ENV PIP_CERT={TRUST} {' '.join(pip)}\n"
        )
        subprocess.run(
            ["docker", "build", "--quiet", "--tag", BASE, str(folder)],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "DOCKER_BUILDKIT": "0"},
        )


def official(rows: Sequence[dict[str, Any]], python: Path, workers: int, run: str) -> dict[str, Any]:
    """Build and grade once with swebench's own functions."""
    with tempfile.TemporaryDirectory() as folder:
        request = {
            "rows": rows,
            "specs": {row["instance_id"]: specification(row) for row in rows},
            "workers": workers,
            "id": run,
        }
        (Path(folder) / "request.json").write_text(json.dumps(request))
        done = subprocess.run(
            [python, Path(__file__).with_name("eval_builds_child.py"), "request.json"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"swebench failed: {done.stderr[-3000:]}")
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result


def remove_images(*repositories: str) -> None:
    """Remove the images of these repositories that are no base images."""
    with closing(connect()) as api:
        for tag in (tag for image in api.images() for tag in image["RepoTags"] or ()):
            repository, _, name = tag.rpartition(":")
            if repository.startswith(repositories) and not name.startswith("base-") and tag != BASE:
                api.remove_image(tag, force=True)


async def ours(instances: Sequence[Instance], workers: int) -> dict[str, Any]:
    """Build all images twice, and grade the reference patches."""
    state = state_dir(os.environ)
    seconds: dict[str, float] = {}
    names: dict[str, str] = {}

    async def build(instance: Instance) -> None:
        names[instance.id] = await Environments(state, say).image(instance.task)

    async def grade(instance: Instance) -> bool:
        patch, image = instance.answer.reference, names[instance.id]
        with tempfile.TemporaryDirectory() as folder:
            found = await Grader(state, say).strict(instance, patch, image, Path(folder))
        return found.verdict is Verdict.RESOLVED

    for stage in ("environments", "again"):
        began = time.monotonic()
        await some_at_a_time(workers, build, instances)
        seconds[stage] = time.monotonic() - began
    began = time.monotonic()
    resolved = await some_at_a_time(workers, grade, instances)
    seconds["grading"] = time.monotonic() - began
    return {
        "seconds": seconds,
        "resolved": sorted(each.id for each, good in zip(instances, resolved, strict=True) if good),
        "layers": _layers(names.values()),
    }


def _layers(names: Iterable[str]) -> int:
    """Return the number of different layers of these images above their base images."""
    with closing(connect()) as api:
        histories = [api.history(name) for name in names]
    return len({one["Id"] for history in histories for one in history if one["Id"] != "<missing>"})


def main() -> None:
    """Measure both, and print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("rows", nargs="+", type=Path)
    parser.add_argument("--clone", action="append", default=[], metavar="OWNER/NAME=FOLDER")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument("--peers-dir", type=Path, default=cache / "m3agent-benchmarks", metavar="DIR")
    parser.add_argument("--undated", action="store_true", help="install today's packages, as swebench does")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    instances = [instance for file in options.rows for instance in load(str(file))]
    if options.undated:
        instances = list(map(undated, instances))
    rows = [json.loads(line) for file in options.rows for line in file.read_text().splitlines()]
    [python_version] = {row["environment"]["python_used"] for row in rows}
    python = python_with(options.peers_dir / "swebench-4", [PINNED])
    with closing(connect()) as api:
        base = base_image(api, python_version, state=state_dir(os.environ), say=say, stop=threading.Event())
    make_base(base.image.name, dict(each.split("=", 1) for each in options.clone))
    remove_images("m3agent-env", "sweb.")
    found = {"m3agent": asyncio.run(ours(instances, options.workers))}
    first = official(rows, python, options.workers, "first")
    second = official(rows, python, options.workers, "second")
    stages = first["seconds"]
    found["swebench"] = {
        **first,
        "seconds": {
            "environments": stages["environments"] + stages["instances"],
            "again": second["seconds"]["environments"] + second["seconds"]["instances"],
            "grading": stages["grading"],
        },
    }
    print("| stage | m3agent s | swebench 4.1.0 s | ratio |\n|---|---:|---:|---:|")
    for stage in ("environments", "again", "grading"):
        one, other = (found[name]["seconds"][stage] for name in ("m3agent", "swebench"))
        print(f"| {stage} | {one:.1f} | {other:.1f} | {one / other:.2f} |")
    for name, result in found.items():
        print(f"{name}: {len(result['resolved'])} of {len(instances)} reference patches are resolved")
    print(f"m3agent: {found['m3agent']['layers']} layers for {len(instances)} instances")
    write_json(options.json, found)


if __name__ == "__main__":
    main()

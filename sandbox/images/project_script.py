"""Build the project itself and keep what only its build makes; runs inside a build container.

The folder `tree` has the repository's files. What is kept goes into the archive that `job.json` names: version files that the
job lists, and extension modules. Output and exit status are those of `env_script.py`.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from m3agent.sandbox.images import env_script

TREE = env_script.HERE / "tree"
WHEELS = env_script.SCRATCH / "wheels"
MODULES = (".so", ".pyd")
BY_THEMSELVES = {"sitecustomize", "usercustomize", "conftest"}
"""Modules that Python or pytest imports by itself; none is kept, and no module that looks like a test."""


def make_repository(env: dict[str, str], tag: str | None) -> None:
    """Make the tree a git repository with one commit: some backends ask git for files and version."""
    own = ["-c", "user.name=m3agent", "-c", "user.email=m3agent@localhost", "-c", "gc.auto=0"]
    git = ["git", "-C", str(TREE), *own]
    steps = [["init", "-q", "--template="], ["add", "-A", "."]]
    steps.append(["commit", "-q", "--allow-empty", "--no-verify", "-m", "base"])
    if tag is not None:
        steps.append(["tag", "--no-sign", tag])
    if shutil.which("git", path=env["PATH"]) is not None:
        all(env_script.run([*git, *step], env) for step in steps)


def built_files() -> dict[str, bytes]:
    """Return the files of the wheel by path, without its metadata."""
    files: dict[str, bytes] = {}
    for path in WHEELS.glob("*.whl"):
        with zipfile.ZipFile(path) as wheel:
            for name in wheel.namelist():
                parts = name.split("/")
                if parts[0].endswith(".data") and parts[1:2] in (["purelib"], ["platlib"]):
                    parts = parts[2:]
                if parts[-1] and not parts[0].endswith((".data", ".dist-info")):
                    files["/".join(parts)] = wheel.read(name)
    return files


def places(tracked: list[str], built: dict[str, bytes]) -> dict[str, str]:
    """Return the path in the tree for each path in the wheel, as the wheel's other files show it.

    For example, `src/` precedes all paths if the wheel's `pkg/__init__.py` is the tree's `src/pkg/__init__.py`.
    """
    by_end: dict[str, list[str]] = {}
    for path in tracked:
        by_end.setdefault(path.rpartition("/")[2], []).append(path)
    prefixes: dict[str, str] = {}  # first folder or file in the wheel -> what precedes it in the tree
    for name in sorted(built, key=lambda name: (name.count("/"), name)):
        first = name.split("/")[0]
        matching = [p for p in by_end.get(name.rpartition("/")[2], []) if p == name or p.endswith("/" + name)]
        if first not in prefixes and matching:
            path = min(matching, key=lambda path: (path.count("/"), path))
            prefixes[first] = path[: -len(name)]
    common = next(iter(prefixes.values()), "")
    return {name: prefixes.get(name.split("/")[0], common) + name for name in built}


def kept_files(job: dict[str, Any]) -> dict[str, bytes]:
    """Return the files to keep by path in the tree: listed version files and extension modules."""
    kept: dict[str, bytes] = {}
    for path in job["version_files"]:
        made = TREE / path
        if made.is_file():
            kept[path] = made.read_bytes()
    built = built_files()
    for name, path in places(job["tracked"], built).items():
        stem = name.rpartition("/")[2].split(".")[0].lower()
        module = name.endswith(MODULES) and stem not in BY_THEMSELVES and not stem.startswith("test_")
        if path not in job["tracked"] and ((module and job["extensions"]) or path in job["version_files"]):
            kept.setdefault(path, built[name])
    return kept


def rust_problem(wanted: str, has: str | None) -> str | None:
    """Return why cargo cannot build the project, from its oldest version and cargo's output; None if it can."""
    if has is None:
        return "the project's build needs Rust, and the image has none"
    numbers = [[int(n) for n in re.findall(r"\d+", text)[:2]] for text in (wanted, has)]
    if numbers[0] <= numbers[1]:
        return None
    return (
        "the project's build needs Rust " + wanted + ", and the image has only " + " ".join(has.split()[1:2])
    )


def environment(job: dict[str, Any]) -> dict[str, str]:
    """Return the variables of the build."""
    env = env_script.environment(job["env"])
    version, cache = job["version"], Path(job["cache"])
    # each of these tells one or several backends the version that they would otherwise ask git for
    for name in ("SETUPTOOLS_SCM_PRETEND_VERSION", "VCS_VERSIONING_PRETEND_VERSION", "PBR_VERSION"):
        env[name] = version
    for name in ("POETRY_DYNAMIC_VERSIONING_BYPASS", "UV_DYNAMIC_VERSIONING_BYPASS", "PDM_BUILD_SCM_VERSION"):
        env[name] = version
    env.update(UV_CACHE_DIR=str(cache / "packages"), CARGO_HOME=str(cache / "cargo"))
    env["PATH"] += ":" + str(cache)
    return env


def build(job: dict[str, Any], env: dict[str, str]) -> bool:
    """Build the wheel; return whether that succeeded. A notice says whether Rust is missing or too old."""
    uv = env_script.find_uv(env)
    if env_script.SCRATCH in Path(uv).parents:  # it was downloaded
        shutil.copy(uv, str(Path(job["cache"], "uv")))
    env["UV_PYTHON_DOWNLOADS"] = "never"
    make_repository(env, job["tag"])
    command = [uv, "build", "--wheel", "--out-dir", str(WHEELS), "--python", job["python"]]
    if job["exclude_newer"]:
        command += ["--exclude-newer", job["exclude_newer"]]
    if job["again"]:
        command.append("--offline")
        env["CARGO_NET_OFFLINE"] = "true"
    done = env_script.run([*command, str(TREE)], env)
    if not done and job["rust"] is not None:
        problem = rust_problem(job["rust"], env_script.output(["cargo", "--version"], env))
        if problem is not None:
            env_script.say("notice: " + problem)
    return done


def main() -> None:
    """Build the wheel, then write the archive of what is kept."""
    job = json.loads((env_script.HERE / "job.json").read_text("utf-8"))
    job["tracked"] = [
        str(Path(folder, name).relative_to(TREE)) for folder, _, names in os.walk(str(TREE)) for name in names
    ]
    done = build(job, environment(job))
    kept = kept_files(job)
    if not done and not kept and not job["again"]:
        env_script.fail("its build failed")
    if not done and not kept:
        env_script.say("notice: the changed project's own build failed; what it makes is missing")
    elif not done:
        env_script.say("notice: the project's own build failed; only its version file is there")
    with tarfile.open(job["archive"], "w") as archive:
        for path, content in sorted(kept.items()):
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(content), 0o755 if path.endswith(MODULES) else 0o644
            archive.addfile(info, io.BytesIO(content))
            env_script.say("kept " + path)
    env_script.finish()

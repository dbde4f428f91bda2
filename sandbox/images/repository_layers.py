"""Describe the layers that a repository needs: what it declares for Python, what its own build makes, and what a suite needs.

The builds of the first two get names of packages and addresses of indexes without passwords. All run as an unprivileged user.

The project's build has a layer of its own, so a change of the code does not install the dependencies again. The build code
runs like that of any source distribution: in a build container, never on this machine. Its results are laid into every
sandbox that starts from the image, and are never part of a patch (see `BESIDE`). The image also keeps the downloaded build
requirements. With them, another tree of the repository can be built without a network: a model wrote parts of that tree.

A suite has at most two steps. In the first, its commands have the network of a build. In the second, its offline commands run
without one: these may run code of the dependencies. In both, the container has only the suite's input files, in the folders
that they have in the repository. Folders for the work tree are kept as an archive (`SUITES`), which each sandbox unpacks.
"""

from __future__ import annotations

import json
import platform
import posixpath
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from m3agent.sandbox.backends.docker_machine import LABEL
from m3agent.sandbox.backends.image import DEFAULT_PATH, Image
from m3agent.sandbox.backends.sandbox import BESIDE, ROOT, SUITES
from m3agent.sandbox.declared.declared import Declared, acceptable_pythons
from m3agent.sandbox.declared.preparation import SuiteNeeds
from m3agent.sandbox.images import env_script, project_script, suite_script
from m3agent.sandbox.images.image_build import packed
from m3agent.sandbox.images.indexes import Indexes
from m3agent.sandbox.images.installers import installers
from m3agent.sandbox.images.layers import OWNER, WORK, Builder, Layer, Step, digest
from m3agent.sandbox.images.toolchains import FOLDER
from m3agent.sandbox.store.git import TreeEntry
from m3agent.sandbox.store.workspace import Workspace

ENVIRONMENT_RECIPE = 1  # part of every hash; increase it if the same declarations must give another image
PROJECT_RECIPE = 2  # the same for the project's own build
SUITE_RECIPE = 1  # the same for the dependencies of a suite
NO_INDEXES = asdict(Indexes())
"""Part of every hash in place of the user's settings, which do not decide what an image contains."""
CACHE = "/opt/m3agent-cache"
"""Folder with the downloaded build requirements in the image."""
MADE_FROM = f"{LABEL}.project"
"""Label of a built project's image: what it was made from."""
CAREFUL = {
    "CI": "1",
    "COMPOSER_NO_INTERACTION": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "YARN_ENABLE_SCRIPTS": "false",
    "npm_config_audit": "false",
    "npm_config_fund": "false",
    "npm_config_ignore_scripts": "true",
    "npm_config_update_notifier": "false",
}
"""Variables of commands with a network: nothing is asked, and no script of a dependency runs."""
SWITCHED_OFF = {
    "GOPROXY": "off",
    "GOSUMDB": "off",
    "CARGO_NET_OFFLINE": "true",
    "npm_config_offline": "true",
    "HEX_OFFLINE": "1",
    "COMPOSER_DISABLE_NETWORK": "1",
}
"""Variables that switch the network of a tool off. Commands with a network do not get them."""
PLAIN = re.compile(r"[^\x00-\x1f\x7f]+")


def environment_layer(builder: Builder, declared: Declared, below: Image, exclude_newer: str | None) -> Layer:
    """Return the layer with a virtual environment that has what a repository declares."""
    made_from: dict[str, Any] = {
        "requirements": declared.requirements,
        "constraints": declared.constraints,
        "optional": declared.optional,
        "pythons": acceptable_pythons(declared),
        "project": asdict(declared.project) if declared.project else None,
        "django_settings": declared.django_settings,
        "test_options": declared.test_options,
        "import_folders": declared.import_folders,
        "exclude_newer": exclude_newer,
    }
    if declared.not_of_index:  # the names of other images stay
        made_from["members"] = [asdict(member) for member in declared.members]
        made_from["not_of_index"] = declared.not_of_index
    if declared.overrides:
        made_from["overrides"] = declared.overrides

    def steps() -> list[Step]:
        lists = {
            "requirements": [line for line in declared.requirements if line not in declared.optional],
            "optional": declared.optional,
            "constraints": declared.constraints,
        }
        files = {
            f"{name}.txt": "".join(f"{line}\n" for line in lines).encode() for name, lines in lists.items()
        }
        imported = [f"{ROOT}/{path}" for path in declared.import_folders]
        job = {**made_from, "folder": FOLDER, "import_folders": imported, "env": builder.env}
        return [Step(env_script, job, files={**files, **installers()}, folders=(FOLDER,))]

    env = {"PATH": f"{FOLDER}/bin:{below.path}", "VIRTUAL_ENV": FOLDER}
    if declared.django_settings is not None:
        env["DJANGO_SETTINGS_MODULE"] = declared.django_settings
    if declared.test_options:
        env["PYTEST_ADDOPTS"] = shlex.join(declared.test_options)
    count = len(declared.requirements)
    dependencies = f"{count} declared {'dependency' if count == 1 else 'dependencies'}"
    note = f"building the repository's environment once ({dependencies}; this may take minutes)"
    return Layer(
        _key(below, ENVIRONMENT_RECIPE, made_from),
        "the repository's environment",
        steps,
        env,
        before=(*declared.notices, *builder.indexes.left_out, note),
        after="environment ready",
    )


def project_layer(
    builder: Builder, job: Mapping[str, Any], workspace: Workspace, below: Image, *, again: bool = False
) -> Layer:
    """Return the layer with the files that only the project's own build makes.

    Args:
        job: What to build: `inputs`, a hash of the files that decide the result; `version_files`, paths of the generated
            version files to keep; `extensions`, whether compiled extension modules are kept; `version`, which the build
            backend is told; `tag`, the repository's last tag or None; `rust`, the oldest version of Rust that it accepts,
            None if it needs no Rust, empty for any version; `exclude_newer`, as for `environment_layer`.
        again: `below` is the image of such a build of another tree. The build then has no network. If it fails, the image
            has none of the files, so that those of the other tree are not taken for this tree's.
    """

    def steps() -> list[Step]:
        more = {"python": "python3", "archive": BESIDE, "cache": CACHE, "again": again, "env": builder.env}
        return [
            Step(
                project_script,
                {**job, **more},
                files={BESIDE: b"", **installers()},
                folders=(f"{WORK}/tree", CACHE),
                inputs=lambda: _packed(workspace, f"{WORK}/tree"),
                network=not again,
            )
        ]

    named = ", ".join(job["version_files"])
    made = filter(None, (named, "its extension modules" if job["extensions"] else ""))
    once = "anew, without a network," if again else "once"
    return Layer(
        _key(below, PROJECT_RECIPE, job),
        "the project itself",
        steps,
        labels={MADE_FROM: json.dumps(job)},
        before=(f"building the project {once} for {' and '.join(made)}",),
        after="project built",
    )


def suite_job(suite: SuiteNeeds, entries: Mapping[str, TreeEntry]) -> dict[str, Any]:
    """Return what to install for a suite: its commands, the files that they see, and the folders that are kept."""
    needs = suite.preparation
    root = suite.root if needs.root is None else needs.root
    # a link out of the root, such as npm's to `../shared`, may need what lies there
    folders = (posixpath.normpath(posixpath.join(root, path)) for path in needs.keep)
    keep = [path for path in folders if usable_folder(path)]
    inputs = sorted(set(needs.inputs) & entries.keys())
    return {
        "suite": suite.name,
        "root": root,
        "commands": needs.commands,
        "offline_commands": needs.offline_commands,
        "inputs": [(path, entries[path].sha) for path in inputs if entries[path].mode & 0o170000 == 0o100000],
        "keep": keep,
        # these contain no file of the repository
        "untracked": [path for path in keep if not any(other.startswith(f"{path}/") for other in entries)],
        "env": dict(needs.env),
    }


def suite_layer(
    builder: Builder, suite: SuiteNeeds, job: Mapping[str, Any], workspace: Workspace, below: Image
) -> Layer:
    """Return the layer with the dependencies of a suite; `job` is that of `suite_job`."""
    made_from = dict(job)
    if below.binds:
        made_from["tools"] = _host_programs([*job["commands"], *job["offline_commands"]])
    key = _key(below, SUITE_RECIPE, made_from)
    registries = builder.indexes.registries

    def steps() -> list[Step]:
        runs = [(job["commands"], True)] if job["commands"] else []
        if job["offline_commands"] or not runs:
            runs.append((job["offline_commands"], False))
        made, folders = [], _suite_folders(job)
        for number, (commands, network) in enumerate(runs, 1):
            env, files = dict(job["env"]), dict[str, bytes]()
            if network:
                env = {name: value for name, value in env.items() if SWITCHED_OFF.get(name) != value}
                env |= {**CAREFUL, **builder.env, **registries.variables}
                files |= {f"home/{path}": text.encode() for path, text in registries.files.items()}
            if number == 1:
                files |= _inputs(job, workspace)
            settings = {
                "commands": commands,
                "root": job["root"],
                "tree": ROOT,
                "suites": SUITES,
                "name": key,
                "keep": [path for path in job["keep"] if not path.startswith("/")],
                "untracked": job["untracked"],
                "last": number == len(runs),
                "env": env,
            }
            made.append(Step(suite_script, settings, files=files, folders=folders, network=network))
        return made

    notes = [f"{suite.name}: {notice}" for notice in (*suite.preparation.notices, *registries.left_out)]
    notes.append(f"preparing the environment of {suite.label} once (this may take minutes)")
    what, after = f"the environment of {suite.name}", f"environment of {suite.label} ready"
    return Layer(key, what, steps, job["env"], before=tuple(notes), after=after)


def usable_folder(path: str) -> bool:
    """Return whether a folder can be kept: a plain path without `..` and control characters."""
    parts = path.removeprefix("/").split("/")
    return PLAIN.fullmatch(path) is not None and not {"", ".", ".."} & set(parts) and parts[0] != ".git"


def _inputs(job: Mapping[str, Any], workspace: Workspace) -> dict[str, bytes]:
    """Return a suite's input files by absolute path."""
    blobs = workspace.store.get_blobs([sha for _, sha in job["inputs"]])
    return {f"{ROOT}/{path}": blob for (path, _), blob in zip(job["inputs"], blobs, strict=True)}


def _suite_folders(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the folders that a suite's commands may fill, the outer ones first."""
    paths = [*(path for path, _ in job["inputs"]), f"{job['root']}/x"]
    inside = sorted(_folders(paths))
    absolute = sorted(path for path in job["keep"] if path.startswith("/"))
    return (SUITES, ROOT, *(f"{ROOT}/{folder}" for folder in inside), *absolute)


def _packed(workspace: Workspace, place: str) -> IO[bytes]:
    """Return the files of the base tree, below the folder `place`, as a tar for the container's root."""
    entries = workspace.entries(workspace.base)
    files = {f"{place}/{path}".strip("/"): entry for path, entry in entries.items()}
    folders = sorted(_folders(entries))
    return packed(workspace.store, files, (f"{place}/{folder}".strip("/") for folder in folders), OWNER)


def _folders(paths: Iterable[str]) -> set[str]:
    """Return the folders in which relative paths lie."""
    return {str(parent) for path in paths for parent in Path(path).parents} - {".", "/"}


def _key(below: Image, recipe: int, made_from: Mapping[str, Any]) -> str:
    """Return the hash of everything that goes into a layer."""
    more = {"indexes": NO_INDEXES, "recipe": recipe, "base": below.ident, "machine": platform.machine()}
    if below.binds:
        more["python"] = _host_python()
    return digest({**made_from, **more})


def _host_programs(commands: Sequence[Sequence[str]]) -> list[tuple[str, int, int]]:
    """Return the programs of commands with size and time of change: the skeleton image borrows this machine's."""
    found = (shutil.which(argv[0], path=DEFAULT_PATH) for argv in commands)
    times = {path: Path(path).stat() for path in found if path is not None}
    return sorted((path, info.st_size, info.st_mtime_ns) for path, info in times.items())


def _host_python() -> str:
    """Return the version of this machine's Python, which the skeleton image borrows."""
    done = subprocess.run(["/usr/bin/python3", "-V"], capture_output=True, check=False, text=True, timeout=60)
    return done.stdout.strip()

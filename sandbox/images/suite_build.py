"""Install the dependencies of a test suite into a layer of the environment image.

A build has at most two steps. In the first, the suite's commands have the network of a build. In the second, its offline
commands run without a network: these may run code of the dependencies. In both, the container has only the suite's input
files, in the folders that they have in the repository. Folders for the work tree are kept as an archive (`SUITES`), which
each sandbox unpacks.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from m3agent.sandbox.backends.docker_machine import USER
from m3agent.sandbox.backends.image import Image
from m3agent.sandbox.backends.sandbox import ROOT, SUITES
from m3agent.sandbox.images import env_script, suite_script
from m3agent.sandbox.images.env_build import WORK
from m3agent.sandbox.images.image_build import Build, build_image, files_as_tar
from m3agent.sandbox.images.indexes import Indexes
from m3agent.sandbox.portable_source import portable_files
from m3agent.sandbox.store.workspace import Workspace

OWNER = 1000
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


@dataclass(frozen=True)
class SuiteJob:
    """What to install.

    Attributes:
        suite: Name of the suite, for messages.
        root: Folder in which the commands run, relative to the repository's root.
        commands: Commands with a network.
        offline_commands: Commands without a network, which run after them.
        inputs: Path and git's id of each file that the commands see.
        keep: Folders that they make: paths relative to the repository's root, or absolute ones.
        untracked: Those of `keep` that contain no file of the repository.
        env: Variables of every command in the image.
        indexes: Where packages come from.
    """

    suite: str
    root: str
    commands: tuple[tuple[str, ...], ...]
    offline_commands: tuple[tuple[str, ...], ...]
    inputs: tuple[tuple[str, str], ...]
    keep: tuple[str, ...]
    untracked: tuple[str, ...]
    env: Mapping[str, str]
    indexes: Indexes = field(default_factory=Indexes)

    @property
    def what(self) -> str:
        """The build's name in messages."""
        return f"the environment of {self.suite}"


def usable_folder(path: str) -> bool:
    """Return whether a folder can be kept: a plain path without `..` and control characters."""
    parts = path.removeprefix("/").split("/")
    return PLAIN.fullmatch(path) is not None and not {"", ".", ".."} & set(parts) and parts[0] != ".git"


def build_suite(
    api: Any,
    job: SuiteJob,
    workspace: Workspace,
    base: Image,
    tag: str,
    *,
    log: Path,
    say: Callable[[str], None],
    stop: threading.Event,
) -> None:
    """Build the image and tag it. Blocking; takes minutes. Other arguments and errors are those of `build_image`."""
    name = tag.partition(":")[2]
    steps = [(job.commands, True)] if job.commands else []
    if job.offline_commands or not steps:
        steps.append((job.offline_commands, False))
    log.unlink(missing_ok=True)
    below = base
    for number, (commands, network) in enumerate(steps, 1):
        last = number == len(steps)
        build = Build(
            what=job.what,
            base=below,
            command=("python3", "-I", "-S", f"{WORK}/suite_script.py"),
            user=USER,
            folder="/",
            image_env={**base.env, **job.env},
            image_command="python3",
            indexes=job.indexes if network else None,
        )
        files = _files(job, name, commands, network=network, last=last)
        archives = [files_as_tar(files, folders=_folders(job), owner=OWNER)]
        if number == 1:
            archives.append(_inputs(job, workspace))
        made = build_image(api, build, tag if last else None, archives, log=log, say=say, stop=stop)
        if not last:
            below = Image(made, base.binds, base.env, made)


def _files(
    job: SuiteJob, name: str, commands: tuple[tuple[str, ...], ...], *, network: bool, last: bool
) -> dict[str, bytes]:
    """Return the program of a step and its settings, by absolute path."""
    certificates = f"{WORK}/certificates.pem"
    env = dict(job.env)
    if network:
        env = {key: value for key, value in env.items() if SWITCHED_OFF.get(key) != value}
        env |= {**CAREFUL, **job.indexes.environment(certificates), **job.indexes.registries.variables}
    settings = {
        "commands": commands,
        "root": job.root,
        "tree": ROOT,
        "suites": SUITES,
        "name": name,
        "keep": [path for path in job.keep if not path.startswith("/")],
        "untracked": job.untracked,
        "last": last,
        "env": env,
    }
    files = portable_files(env_script, suite_script)
    files["job.json"] = json.dumps(settings).encode()
    if network:
        files |= {f"home/{path}": text.encode() for path, text in job.indexes.registries.files.items()}
        if job.indexes.certificates is not None:
            files["certificates.pem"] = job.indexes.certificates.read_bytes()
    return {f"{WORK}/{path}": content for path, content in files.items()}


def _folders(job: SuiteJob) -> list[str]:
    """Return the folders of a build's container that its user owns, the outer ones first."""
    outer = {parent for path in job.indexes.registries.files for parent in Path(WORK, "home", path).parents}
    homes = sorted(str(path) for path in outer if str(path).startswith(f"{WORK}/"))
    absolute = sorted(path for path in job.keep if path.startswith("/"))
    return [WORK, *homes, SUITES, ROOT, *absolute]


def _inputs(job: SuiteJob, workspace: Workspace) -> bytes:
    """Return the input files as a tar for the container's root."""
    paths = [path for path, _ in job.inputs]
    folders = {str(parent) for path in [*paths, f"{job.root}/x"] for parent in Path(path).parents}
    inside = sorted(f"{ROOT}/{folder}" for folder in folders - {".", "/"})
    blobs = workspace.store.get_blobs([sha for _, sha in job.inputs])
    files = dict(zip(paths, blobs, strict=True))
    return files_as_tar(files, ROOT, folders=inside, owner=OWNER)

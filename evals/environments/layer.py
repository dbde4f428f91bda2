"""One layer of an image: a script run as root in a container over the layer below, and a commit of what it made.

Installing runs code (source distributions, build steps of the instance). It gets a network and certificates; no mounts, the
capabilities that installing needs and no others, limits on memory, processes, disk and time, and none of this machine's
caches.
"""

from __future__ import annotations

import contextlib
import os
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from m3agent.sandbox.base import ROOT
from m3agent.sandbox.docker_machine import ensure_reaper, our_labels
from m3agent.sandbox.engine import socket_of
from m3agent.sandbox.env_build import (
    MEMORY,
    PIDS,
    EnvironmentFailed,
    commit_environment,
    engine_failures,
    files_as_tar,
    follow_build,
    installers,
    remove_container,
)
from m3agent.sandbox.image import Image
from m3agent.sandbox.indexes import find_indexes

WORK = "/opt/m3agent-layer"
"""Where a layer's script and files are while it runs; nothing of it stays."""
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETGID", "SETUID")
"""What dpkg and pip need as root."""


@dataclass(frozen=True)
class Layer:
    """What a layer is made of: the key of its image is a hash of this and of the layer below.

    script: for bash, run in `WORK`; files: beside it, by name; commit: of the work tree that is there, if there is one;
    env: variables that the image sets from this layer on.
    """

    name: str
    script: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    commit: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


@engine_failures("the instance's environment")
def build_layer(
    api: Any,
    layer: Layer,
    below: Image,
    tag: str,
    *,
    work_tree: Path | None,
    log: Path,
    say: Callable[[str], None],
    stop: threading.Event,
) -> None:
    """Build the layer's image and tag it. Blocking; minutes. `stop` ends it early, with nothing left.

    work_tree: a checkout to put where sandboxes have theirs.

    Raises:
        EnvironmentFailed: it did not work, took too long or too much disk; the log has all that was said.
    """
    ensure_reaper(socket_of(api))
    indexes = find_indexes(os.environ, Path.home())
    files = {**installers(), **layer.files, "layer.sh": layer.script.encode()}
    if indexes.certificates is not None:
        files["certificates.pem"] = indexes.certificates.read_bytes()
    container: str = api.create_container(
        below.name,
        command=["/bin/bash", f"{WORK}/layer.sh"],
        entrypoint=[],
        user="0:0",
        working_dir=WORK,
        environment={"PATH": below.path, **below.env, **indexes.environment(f"{WORK}/certificates.pem")},
        labels=our_labels(),
        host_config=api.create_host_config(
            network_mode="bridge",
            cap_drop=["ALL"],
            cap_add=list(CAPABILITIES),
            security_opt=["no-new-privileges"],
            pids_limit=PIDS,
            mem_limit=MEMORY,
            memswap_limit=MEMORY,
            log_config={"Type": "none", "Config": {}},
            ulimits=[{"Name": "core", "Soft": 0, "Hard": 0}],
            tmpfs={"/tmp": f"rw,exec,nosuid,nodev,size={MEMORY // 2},mode=1777"},  # noqa: S108 - inside the container
        ),
    )["Id"]
    try:
        api.put_archive(container, "/", files_as_tar(files, WORK, folders=[WORK]))
        if work_tree is not None:
            with _packed(work_tree) as stream:
                api.put_archive(container, "/", stream)
        status, said = follow_build(api, container, log, say, stop)
        if status != 0:
            raise EnvironmentFailed(f"the {layer.name} could not be built: {said}; the log is {log}")
        commit_environment(
            api, container, tag, env={**below.env, **layer.env}, command="/bin/bash", labels={}
        )
    finally:
        remove_container(api, container)


@contextlib.contextmanager
def _packed(work_tree: Path) -> Iterator[IO[bytes]]:
    """A folder as a tar, in which it is `ROOT`."""
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            archive.add(work_tree, arcname=ROOT.lstrip("/"))
        file.seek(0)
        yield file

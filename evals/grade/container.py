"""Run a script in a fresh container of an instance's image, as official runners do: as root, without a network."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from m3agent.sandbox.backends.container_files import archive_of
from m3agent.sandbox.backends.docker_machine import ensure_reaper, our_labels
from m3agent.sandbox.backends.engine import connect, socket_of
from m3agent.sandbox.images.image_build import engine_failures, files_as_tar, remove_container
from m3agent.util.threads import stoppable

MOST_FILES = 256 << 20
"""Limit for the files that come back from a container, in bytes."""


@dataclass
class ContainerRun:
    """The results of a script."""

    output: str
    files: Mapping[str, bytes]
    """Files that it left, by path; missing ones are left out."""
    timed_out: bool
    """Whether it exceeded its time limit."""
    seconds: float = 0.0
    """How long it ran."""


async def run_in_container(
    image: str, files: Mapping[str, bytes], script: str, timeout: float, wanted: Sequence[str] = ()
) -> ContainerRun:
    """Run a bash script in a fresh container.

    Args:
        timeout: Time limit, in seconds.
        wanted: Paths of files that come back.

    Raises:
        EnvironmentBuildFailed: The container engine failed.
    """
    return await stoppable(lambda stop: _run(image, files, script, timeout, wanted, stop))


@engine_failures("an evaluation's container")
def _run(
    image: str,
    files: Mapping[str, bytes],
    script: str,
    timeout: float,
    wanted: Sequence[str],
    stop: threading.Event,
) -> ContainerRun:
    with contextlib.closing(connect()) as api:
        ensure_reaper(socket_of(api))
        container: str = api.create_container(
            image,
            command=["/bin/bash", script],
            entrypoint=[],
            user="0:0",
            working_dir="/",
            labels=our_labels(),
            host_config=api.create_host_config(
                network_mode="none",
                mem_limit=4 << 30,
                pids_limit=1024,
                log_config={"Type": "none", "Config": {}},
            ),
        )["Id"]
        try:
            api.put_archive(container, "/", files_as_tar(files))
            run = _follow(api, container, timeout, stop)
            run.files = {
                path: content for path in wanted if (content := _file(api, container, path)) is not None
            }
            return run
        finally:
            remove_container(api, container)


def _follow(api: Any, container: str, timeout: float, stop: threading.Event) -> ContainerRun:
    pieces: list[bytes] = []
    stream = api.attach(container, stdout=True, stderr=True, stream=True)
    reader = threading.Thread(target=lambda: pieces.extend(stream), daemon=True, name="m3agent-official-log")
    started = time.monotonic()
    api.start(container)
    reader.start()
    while reader.is_alive() and time.monotonic() < started + timeout and not stop.is_set():
        reader.join(0.2)
    output = b"".join(pieces).decode("utf-8", "replace")
    return ContainerRun(output, {}, reader.is_alive(), round(time.monotonic() - started, 3))


def _file(api: Any, container: str, path: str) -> bytes | None:
    from docker.errors import NotFound

    with (
        contextlib.suppress(NotFound, ValueError),
        archive_of(api, container, path, MOST_FILES) as archive,
    ):
        member = archive.next()
        content = archive.extractfile(member) if member is not None and member.isreg() else None
        return content.read() if content is not None else None
    return None

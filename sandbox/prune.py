"""Makes room: removes environment images beyond a budget, and what dead processes of ours have left in the engine.

Only what carries our label is ever looked at.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from m3agent.sandbox.docker_machine import LABEL, PROCESS_LABEL, describe_process, socket_of
from m3agent.sandbox.environment import REPOSITORY, folder


@dataclass(frozen=True)
class EnvironmentImage:
    """An environment image: its name, id, size in bytes (shared layers counted in full), time of last use."""

    name: str
    ident: str
    size: int
    used: float


@dataclass
class Pruned:
    """What was removed."""

    images: list[str]
    containers: int
    volumes: int
    freed: int


def environment_images(api: Any, state: Path) -> list[EnvironmentImage]:
    """Ours that are here, the least recently used first."""
    images = []
    for listed in api.images(filters={"label": [f"{LABEL}.environment"]}):
        for name in listed.get("RepoTags") or []:
            if not name.startswith(f"{REPOSITORY}:"):
                continue
            used = folder(state) / f"{name.partition(':')[2]}.used"
            when = used.stat().st_mtime if used.exists() else float(listed["Created"])
            images.append(EnvironmentImage(name, listed["Id"], int(listed["Size"]), when))
    return sorted(images, key=lambda image: image.used)


def prune(api: Any, state: Path, *, keep_bytes: int, say: Callable[[str], None]) -> Pruned:
    """Remove environment images until the rest fits into `keep_bytes`, then orphaned containers and volumes.

    An image that a container uses is kept, and said.
    """
    done = Pruned([], 0, 0, 0)
    images = environment_images(api, state)
    total = sum(image.size for image in images)
    for image in images:
        if total <= keep_bytes:
            break
        if why := _remove(api, state, image):
            say(f"{image.name} is kept: {why}")
            continue
        total -= image.size
        done.freed += image.size
        done.images.append(image.name)
    local = socket_of(api) is not None
    for container in api.containers(all=True, filters={"label": [PROCESS_LABEL]}):
        owner, running = container["Labels"].get(PROCESS_LABEL, ""), container["State"] == "running"
        if is_orphan(owner, other_boots=local and not running):
            done.containers += _removed(partial(api.remove_container, container["Id"], force=True, v=True))
    for volume in api.volumes(filters={"label": [PROCESS_LABEL]}).get("Volumes") or []:
        if is_orphan((volume.get("Labels") or {}).get(PROCESS_LABEL, ""), other_boots=local):
            done.volumes += _removed(partial(api.remove_volume, volume["Name"], force=True))
    return done


def make_room(api: Any, state: Path, most_bytes: int, *, keep: Collection[str] = ()) -> list[str]:
    """Remove environment images, the least recently used first, until all of the engine's images fit; returns those gone.

    most_bytes: shared layers counted once. Images in `keep`, those in use and those that others rest on stay.
    """
    gone: list[str] = []
    for image in environment_images(api, state):
        if int(api.df().get("LayersSize") or 0) <= most_bytes:
            break
        if image.name not in keep and not _remove(api, state, image):
            gone.append(image.name)
    return gone


def _remove(api: Any, state: Path, image: EnvironmentImage) -> str:
    """Remove an image and what we keep beside it; why not, if it cannot be."""
    from docker.errors import APIError

    try:
        api.remove_image(image.name)
    except APIError as error:
        return str(error.explanation or error).strip()
    for suffix in ("used", "log", "lock"):
        (folder(state) / f"{image.name.partition(':')[2]}.{suffix}").unlink(missing_ok=True)
    return ""


def is_orphan(process: str, *, other_boots: bool) -> bool:
    """Whether the process that a label describes is gone for sure.

    Of another process namespace nothing is sure. Another boot is this machine's past, if `other_boots` says that it
    cannot be another machine's present.
    """
    ours = (describe_process(os.getpid()) or "").split()
    theirs = process.split()
    if len(ours) != 4 or len(theirs) != 4 or not theirs[2].isdigit():
        return False
    if theirs[0] != ours[0]:
        return other_boots
    return theirs[1] == ours[1] and describe_process(int(theirs[2])) != process


def _removed(remove: Callable[[], object]) -> int:
    from docker.errors import APIError

    try:
        remove()
    except APIError:
        return 0  # gone meanwhile, or in use
    return 1

"""Free disk space: remove environment images beyond a budget, and remains of dead m3agent processes.

It considers only objects in the engine that have m3agent's label.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from m3agent.sandbox.backends.docker_machine import LABEL, PROCESS_LABEL, describe_process
from m3agent.sandbox.backends.engine import socket_of
from m3agent.sandbox.backends.image import REPOSITORY
from m3agent.sandbox.images.kept import folder

BUSY = "a disk usage operation is already running"
"""What Docker answers (status 500) if it is asked for the sizes twice at the same time."""

OTHERS_SECONDS = 3600.0
"""How long an image stays after an m3agent with another state folder used it. Between two sandboxes, most sessions take less."""
SAME_SECONDS = 60.0
"""Difference up to which the engine's time and the state folder's are of the same use. Their clocks may differ."""


@dataclass(frozen=True)
class EnvironmentImage:
    """An environment image."""

    name: str
    ident: str
    size: int
    """Bytes; layers shared with other images are counted in full."""
    used: float
    """Time of last use, in seconds since the epoch."""
    is_others: bool = False
    """Whether an m3agent with another state folder used it less than `OTHERS_SECONDS` ago, and this one not since."""


@dataclass
class Pruned:
    """What was removed: names of images, number of containers and of volumes, and bytes of the images."""

    images: list[str]
    containers: int
    volumes: int
    freed: int


def environment_images(api: Any, state: Path) -> list[EnvironmentImage]:
    """Return m3agent's environment images in this engine, least recently used first."""
    images, now = [], _engine_time(api)
    for listed in api.images(filters={"label": [f"{LABEL}.environment"]}):
        names = [name for name in listed.get("RepoTags") or [] if name.startswith(f"{REPOSITORY}:")]
        named = _named_at(api, listed["Id"]) if names else 0.0
        for name in names:
            used = folder(state) / f"{name.partition(':')[2]}.used"
            here = used.stat().st_mtime if used.exists() else 0.0
            is_others = named > max(here + SAME_SECONDS, now - OTHERS_SECONDS)
            last = max(here, named) or float(listed["Created"])
            images.append(EnvironmentImage(name, listed["Id"], int(listed["Size"]), last, is_others))
    return sorted(images, key=lambda image: image.used)


def _engine_time(api: Any) -> float:
    """Return the time by the engine's clock, which notes the use of images; by this machine's if it does not tell."""
    from docker.errors import APIError

    try:
        return datetime.fromisoformat(api.info()["SystemTime"]).timestamp()
    except (APIError, KeyError, TypeError, ValueError):
        return time.time()


def _named_at(api: Any, ident: str) -> float:
    """Return when an image last got a name, which each use gives it (`kept.touch`); 0 if the engine does not know it."""
    from docker.errors import APIError

    try:
        named = datetime.fromisoformat(api.inspect_image(ident)["Metadata"]["LastTagTime"])
    except (APIError, KeyError, TypeError, ValueError):
        return 0.0
    return max(0.0, named.timestamp())


def prune(api: Any, state: Path, *, keep_bytes: int, say: Callable[[str], None]) -> Pruned:
    """Remove environment images until the others fit into `keep_bytes`; remove orphans.

    Orphans are containers and volumes of dead m3agent processes. An image that a container uses is kept, and one that an
    m3agent with another state folder has just used, because it may start its next sandbox from it; `say` then receives a line.
    """
    done = Pruned([], 0, 0, 0)
    images = environment_images(api, state)
    total, others = sum(image.size for image in images), 0
    for image in images:
        if total <= keep_bytes:
            break
        if image.is_others:
            others += 1
            continue
        if why := _remove(api, state, image):
            say(f"{image.name} is kept: {why}")
            continue
        total -= image.size
        done.freed += image.size
        done.images.append(image.name)
    if others:
        say(f"images kept: {others}, which an m3agent with another state folder used in the last hour")
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
    """Remove environment images, least recently used first, until all images of the engine fit; return their names.

    Images in use, images that others build on, and those that `keep` names stay. Shared layers are counted once.
    """
    gone: list[str] = []
    if _fits(api, most_bytes):  # mostly so, and to list the images asks the engine about each
        return gone
    for image in environment_images(api, state):
        if image.name in keep or image.is_others or _remove(api, state, image):
            continue
        gone.append(image.name)
        if _fits(api, most_bytes):
            break
    return gone


def _fits(api: Any, most_bytes: int) -> bool:
    """Return whether all layers fit, or the engine counts for another process, which then makes room itself."""
    from docker.errors import APIError

    try:
        return int(api.df().get("LayersSize") or 0) <= most_bytes
    except APIError as error:
        if BUSY not in str(error.explanation):
            raise
        return True


def _remove(api: Any, state: Path, image: EnvironmentImage) -> str:
    """Remove an image and the files about it; return "", or the reason if it cannot be removed."""
    from docker.errors import APIError

    try:
        api.remove_image(image.name)
    except APIError as error:
        return str(error.explanation or error).strip()
    for suffix in ("used", "log", "lock", "collected"):
        (folder(state) / f"{image.name.partition(':')[2]}.{suffix}").unlink(missing_ok=True)
    return ""


def is_orphan(process: str, *, other_boots: bool) -> bool:
    """Return whether the process that a label describes has certainly ended.

    This is never certain for a process of another process namespace. A process of another boot has ended if
    it ran on this machine.

    Args:
        other_boots: Whether another boot id can only mean an earlier boot of this machine, not another
            machine.
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
        return 0  # already removed, or in use
    return 1

"""Find or make the image from which a Docker sandbox starts.

In this order: the image that the user names; `python:3.12-slim`, if it is here or a registry has it; else a skeleton
of empty folders (imported in 70 ms) over which the host's own `/usr` is laid read-only, so that its python3 and
git run inside. The skeleton needs a Linux host with an engine on the same machine and python3 under /usr.
"""

from __future__ import annotations

import io
import tarfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.errors import EngineUnavailable, ImageMissing

DEFAULT_IMAGE = "python:3.12-slim"
SKELETON = "m3agent-skeleton:2"
REPOSITORY = "m3agent-env"
"""The name of all environment images; the tag is a hash."""
SKELETON_LABEL = "m3agent.skeleton"
"""Label of images that were built on the skeleton. They need the host's folders, too."""
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SKELETON_FOLDERS = ("dev", "etc", "opt/m3agent", "proc", "root", "run", "sys", "tmp", "usr", "var/tmp", "ws")
HOST_FOLDERS = ("/usr", "/etc/alternatives")
HOST_CONFIGURATIONS = (
    "java-*-openjdk",
    "maven/m2.conf",
    "maven/logging",
    "php/*/cli/conf.d",
    "php/*/mods-available",
)
"""Parts of the host's /etc without which toolchains under /usr do not start. None holds a password: Maven's is elsewhere."""
PULL_TIMEOUT = 180  # seconds to pull an image; after that, the skeleton is used instead of the default image
ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nm3agent:x:1000:1000:m3agent:/tmp/home:/bin/sh\n",
    "group": "root:x:0:\nm3agent:x:1000:\n",
    "hosts": "127.0.0.1 localhost\n",
}
"""Files of the skeleton's /etc: the names of two users and of this machine."""


@dataclass(frozen=True)
class Image:
    """An image to start from."""

    name: str
    binds: tuple[str, ...] = ()
    """The host's folders that must be mounted with it, read-only."""
    env: Mapping[str, str] = field(default_factory=dict)
    ident: str = ""
    """The engine's id of it, which is a hash of its content."""

    @property
    def path(self) -> str:
        """The PATH for programs in it."""
        return self.env.get("PATH") or DEFAULT_PATH

    @property
    def mounts(self) -> list[str]:
        """Its `binds` as the engine takes them, those that exist."""
        return [f"{folder}:{folder}:ro" for folder in self.binds if Path(folder).exists()]


def usr_links() -> list[tuple[str, str]]:
    """Return name and target of the host's top-level links into /usr, such as /bin and /lib64."""
    names = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
    return [(name, str(Path("/", name).readlink())) for name in names if Path("/", name).is_symlink()]


def host_python_usable() -> bool:
    """Return whether a sandbox can use the host's python3: it is in /usr/bin, and /bin is a link into /usr."""
    return Path("/usr/bin/python3").exists() and any(name == "bin" for name, _ in usr_links())


def host_folders() -> tuple[str, ...]:
    """Return the paths of the host that are mounted read-only over the skeleton."""
    found = (path for pattern in HOST_CONFIGURATIONS for path in sorted(Path("/etc").glob(pattern)))
    return (*HOST_FOLDERS, *map(str, found))


def installed_on_host() -> str:
    """Return a text that changes if this machine's programs or Python packages change: times of their folders."""
    folders = [Path("/usr/bin"), Path("/usr/local/bin")]
    for lib in (Path("/usr/lib"), Path("/usr/local/lib")):
        folders += sorted(lib.glob("python3*/*-packages"))
    folders.append(Path("/usr/lib/python3/dist-packages"))
    return " ".join(f"{folder}@{folder.stat().st_mtime_ns}" for folder in folders if folder.is_dir())


def skeleton_archive() -> bytes:
    """Return the skeleton image's only layer: empty folders, the links into /usr, and the files of /etc."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for folder in SKELETON_FOLDERS:
            info = tarfile.TarInfo(folder)
            # a tmpfs gets the mode of the folder on which the engine mounts it
            info.type, info.mode = tarfile.DIRTYPE, 0o1777 if folder.endswith("tmp") else 0o755
            archive.addfile(info)
        for name, target in usr_links():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target.lstrip("/")
            archive.addfile(info)
        for name, text in ETC.items():
            info = tarfile.TarInfo(f"etc/{name}")
            info.size, info.mode = len(text), 0o644
            archive.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


def find_image(api: Any, wanted: str | None, say: Callable[[str], None]) -> Image:
    """Return the image to use. May take minutes if the image is pulled; `say` receives notes for the user.

    Raises:
        ImageMissing: The wanted image is not here, or this machine can make no image.
    """
    if wanted is not None:
        if image := local_image(api, wanted):
            return image
        if wanted.startswith(f"{REPOSITORY}:"):
            raise ImageMissing(
                f"the image {wanted} was removed while it was in use: run the command again, and m3agent builds it anew"
            )
        raise ImageMissing(f"image {wanted} is not on this machine: pull or build it, or leave out --image")
    if image := local_image(api, DEFAULT_IMAGE) or local_image(api, SKELETON):
        return image
    if pull(DEFAULT_IMAGE, say) and (image := local_image(api, DEFAULT_IMAGE)):
        return image
    if not host_python_usable():
        raise ImageMissing(
            f"no registry has {DEFAULT_IMAGE}, and this host has no /usr/bin/python3 for "
            "a sandbox: install python3, or name a local image with --image"
        )
    say(f"no registry has {DEFAULT_IMAGE}: using a skeleton image over this host's read-only /usr")
    # Podman ignores the separate argument for the tag, so the name contains the tag.
    api.import_image_from_data(skeleton_archive(), repository=SKELETON)
    return local_image(api, SKELETON) or Image(SKELETON, host_folders())


def local_image(api: Any, name: str) -> Image | None:
    """Return the image with this name; None if it is not on this machine."""
    from docker.errors import ImageNotFound

    try:
        found = api.inspect_image(name)
    except ImageNotFound:
        return None
    config = found.get("Config") or {}
    env = dict(line.split("=", 1) for line in config.get("Env") or [] if "=" in line)
    bare = name == SKELETON or SKELETON_LABEL in (config.get("Labels") or {})
    return Image(name, host_folders() if bare else (), env, found["Id"])


def pull(name: str, say: Callable[[str], None]) -> bool:
    """Pull an image. Return False if no registry provides it in time."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    done: list[bool] = []

    def fetch() -> None:
        try:
            client = connect(PULL_TIMEOUT)
            for line in client.pull(name, stream=True, decode=True):
                if "error" in line:
                    return
        except (EngineUnavailable, DockerException, RequestException):
            return
        done.append(True)

    say(f"looking for {name} in a registry")
    thread = threading.Thread(
        target=fetch, daemon=True
    )  # a daemon, so that a registry that hangs does not delay the end of the process
    thread.start()
    thread.join(PULL_TIMEOUT)
    return bool(done)

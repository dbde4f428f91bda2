"""Run a small shell script in an image, to find out what is installed in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from m3agent.sandbox.backends.docker_machine import USER, our_labels
from m3agent.sandbox.backends.image import Image, installed_on_host
from m3agent.sandbox.images.image_build import engine_failures, remove_container
from m3agent.sandbox.images.kept import folder


def kept_probe(
    api: Any, image: Image, script: str, arguments: Sequence[str], what: str, state: Path
) -> list[str]:
    """Return the lines that a script prints in an image, which are kept. Otherwise like `probe`.

    Args:
        state: Folder in which they are kept. Several programs may use it.
    """
    made_from = [image.ident, installed_on_host() if image.binds else "", script, arguments]
    digest = hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:16]
    kept = folder(state) / f"probe-{digest}.json"
    try:
        lines = [str(line) for line in json.loads(kept.read_text("utf-8"))]
    except (OSError, ValueError, TypeError):
        lines = probe(api, image, script, arguments, what)
        kept.write_text(json.dumps(lines), "utf-8")
    return lines


def probe(api: Any, image: Image, script: str, arguments: Sequence[str], what: str) -> list[str]:
    """Return the lines that a script prints, in a container without a network. Blocking; takes half a second.

    Args:
        api: The engine's client.
        image: The image.
        script: The shell script.
        arguments: Its arguments.
        what: Names the search in messages.

    Raises:
        EnvironmentBuildFailed: The engine failed.
    """
    with engine_failures(what):
        container = api.create_container(
            image.name,
            command=["sh", "-c", script, "sh", *arguments],
            entrypoint=[],
            user=USER,
            environment={"PATH": image.path},
            network_disabled=True,
            labels=our_labels(),
            host_config=api.create_host_config(
                network_mode="none",
                cap_drop=["ALL"],
                binds=[f"{path}:{path}:ro" for path in image.binds if Path(path).exists()],
            ),
        )["Id"]
        try:
            api.start(container)
            api.wait(container, timeout=60)
            lines: list[str] = (
                api.logs(container, stdout=True, stderr=False).decode(errors="replace").splitlines()
            )
        finally:
            remove_container(api, container)
    return lines

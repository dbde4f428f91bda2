"""Read which image a repository provides for development: devcontainer.json, otherwise a Dockerfile.

Only settings that define the image are used. Settings that would run something on the host, mount part of it
or weaken the sandbox are ignored, with a notice.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from m3agent.sandbox.declared.types import Files, ScanResult, table

DOCKERFILES = ("Dockerfile", "Containerfile")
PLACES = (".devcontainer/devcontainer.json", ".devcontainer.json")
FOLLOWED = {"image", "build", "dockerFile", "context"}
HARMLESS = {
    *("$schema", "name", "customizations", "settings", "extensions", "shutdownAction", "hostRequirements"),
    *(
        "forwardPorts",
        "portsAttributes",
        "otherPortsAttributes",
        "userEnvProbe",
        "waitFor",
        "workspaceFolder",
    ),
}
"""Keys about editors and similar matters, which are ignored without a notice."""
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/|,(?=(?>\s+|//[^\n]*|/\*.*?\*/)*+[\]}])', re.DOTALL)
"""Tokens of JSON with comments: strings, both kinds of comment, commas before a closing bracket."""


@dataclass(frozen=True)
class Container:
    """An image by name, or the parts to build one from."""

    source: str
    """File that names the image, relative to the repository's root, like all paths here."""
    image: str | None = None
    """Name of the image, if it is not built."""
    dockerfile: str | None = None
    """Path of the Dockerfile."""
    context: str = "."
    """Path of the build context; `.` is the root."""
    target: str | None = None
    """Build stage."""
    args: dict[str, str] = field(default_factory=dict)
    """Build arguments."""


MayBuild = Callable[[Container, str], bool]
"""Returns whether the user agrees to the build of a Dockerfile, from its container and its text."""


def read_containers(files: Files, found: ScanResult) -> list[Container]:
    """Return the images that the repository provides, best first."""
    containers = []
    nested = sorted(p for p in files.paths if re.fullmatch(r"\.devcontainer/[^/]+/devcontainer\.json", p))
    place = next((path for path in PLACES if path in files.paths), None)
    if place is None and len(nested) == 1:
        place = nested[0]
    elif place is None and nested:
        found.notice(".devcontainer", f"there are {len(nested)} of them: none is used")
    if place is not None and (container := _devcontainer(files, place, found)) is not None:
        containers.append(container)
    containers += [Container(path, dockerfile=path) for path in DOCKERFILES if path in files.paths][:1]
    return containers


def without_comments(text: str) -> str:
    """Convert JSON with comments and trailing commas to plain JSON; strings stay unchanged."""
    return TOKEN.sub(lambda match: match[0] if match[0].startswith('"') else " ", text)


def _devcontainer(files: Files, place: str, found: ScanResult) -> Container | None:
    text = files.text(place, found)
    if text is None:
        return None
    try:
        config: Any = json.loads(without_comments(text))
    except (ValueError, RecursionError) as error:
        found.notice(place, f"not valid JSON ({error}): not read")
        return None
    if not isinstance(config, dict):
        found.notice(place, "not a JSON object: not read")
        return None
    build = table(config, "build")
    ignored = {key for key in config if key not in FOLLOWED | HARMLESS}
    ignored |= {f"build.{key}" for key in build if key not in {"dockerfile", "context", "target", "args"}}
    if ignored:
        found.notice(place, f"ignored: {', '.join(sorted(ignored))}")
    folder = posixpath.dirname(place)
    dockerfile = build.get("dockerfile") or config.get("dockerFile")
    image = config.get("image")
    if isinstance(dockerfile, str):
        path = posixpath.normpath(posixpath.join(folder, dockerfile))
        context = posixpath.normpath(
            posixpath.join(folder, str(build.get("context") or config.get("context") or "."))
        )
        if path not in files.paths:
            found.notice(place, f"names the Dockerfile {dockerfile}, which is not a file of the repository")
            return None
        if context.startswith(("..", "/")):
            found.notice(place, f"its context {context} is outside the repository")
            return None
        target = build.get("target")
        args = {str(k): v for k, v in table(build, "args").items() if isinstance(v, str)}
        named = [path, context, *args.values(), target if isinstance(target, str) else ""]
        if any("${" in value for value in named):
            found.notice(place, "uses variables of the host: ignored")
            return None
        return Container(place, None, path, context, target if isinstance(target, str) else None, args)
    if isinstance(image, str):
        if not re.fullmatch(r"[a-z0-9][\w.:/@-]*", image):
            found.notice(place, f"'{image[:80]}' is not the name of an image")
            return None
        return Container(place, image=image)
    found.notice(place, "names neither an image nor a Dockerfile")
    return None

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

from m3agent.sandbox.declared.types import Files, ScanResult, texts_at
from m3agent.util.json_value import mapping

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
    config = _configuration(files, place, found)
    if config is None:
        return None
    build = mapping(config, "build")
    ignored = {key for key in config if key not in FOLLOWED | HARMLESS}
    ignored |= {f"build.{key}" for key in build if key not in {"dockerfile", "context", "target", "args"}}
    if ignored:
        found.notice(place, f"ignored: {', '.join(sorted(ignored))}")
    dockerfile = build.get("dockerfile") or config.get("dockerFile")
    image = config.get("image")
    if isinstance(dockerfile, str):
        context = build.get("context") or config.get("context") or "."
        container, problem = _to_build(files, place, dockerfile, str(context), build)
    elif isinstance(image, str):
        container = Container(place, image=image)
        fits = re.fullmatch(r"[a-z0-9][\w.:/@-]*", image)
        problem = "" if fits else f"'{image[:80]}' is not the name of an image"
    else:
        container, problem = None, "names neither an image nor a Dockerfile"
    if problem:
        found.notice(place, problem)
        return None
    return container


def _configuration(files: Files, place: str, found: ScanResult) -> dict[str, Any] | None:
    """Return the settings in a devcontainer.json; None if they cannot be read."""
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
    return config


def _to_build(
    files: Files, place: str, dockerfile: str, context: str, build: dict[str, Any]
) -> tuple[Container, str]:
    """Return the image to build from a Dockerfile, and why it cannot be used; empty if it can."""
    folder = posixpath.dirname(place)
    path, context = (posixpath.normpath(posixpath.join(folder, name)) for name in (dockerfile, context))
    target = next(texts_at(build, "target"), None)
    args = {str(key): value for key, value in mapping(build, "args").items() if isinstance(value, str)}
    problems = {
        f"names the Dockerfile {dockerfile}, which is not a file of the repository": path not in files.paths,
        f"its context {context} is outside the repository": context.startswith(("..", "/")),
        "uses variables of the host: ignored": "${"
        in " ".join([path, context, target or "", *args.values()]),
    }
    problem = next((text for text, holds in problems.items() if holds), "")
    return Container(place, None, path, context, target, args), problem

"""Find the registries that the user configured for npm, Go, Cargo, Bundler, Composer, Maven and Hex.

Builds get addresses only, in variables and in small files for the tools' home folder. No secret is passed on: an address
with a user name or password is left out, and keys are never read.
"""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from m3agent.sandbox.network.network import VARIABLES
from m3agent.sandbox.network.proxy import PORT

ADDRESS = re.compile(r"https?://[^\s\"'<>|,$]+")
NPM_SCOPE = re.compile(r"@[\w.~-]+:registry")
NPM_DEFAULT = re.compile(r"'registry', \{\s*default: ['`](https?://[^'`]+)")
"""In npm's own source: the address of its default registry."""
NPM_SOURCES = (
    "node_modules/@npmcli/config/lib/definitions/definitions.js",
    "lib/utils/config/definitions.js",
)
GO_NAMES = ("GOPROXY", "GOSUMDB", "GONOSUMDB", "GONOPROXY", "GOPRIVATE")
BUNDLE_MIRROR = re.compile(r'^(BUNDLE_MIRROR__\w+):\s*"?([^"\s]+)"?\s*$', re.MULTILINE)
MIRROR = re.compile(r"<mirror>(.*?)</mirror>", re.DOTALL)
JAVA_PROXY = " ".join(
    f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort={PORT}" for scheme in ("http", "https")
)

Take = Callable[..., bool]
"""Returns whether builds may get all of some addresses, and adds them to the registries if so."""


@dataclass
class Registries:
    """Registries of package managers, for builds."""

    variables: dict[str, str] = field(default_factory=dict)
    """Variables of the package managers."""
    files: dict[str, str] = field(default_factory=dict)
    """Their configuration, by path in the home folder."""
    addresses: list[str] = field(default_factory=list)
    """The registries that the user named."""
    left_out: list[str] = field(default_factory=list)
    """Settings that were not passed on, with reasons."""


def find_registries(
    env: Mapping[str, str], home: Path, system: Path, may_pass: Callable[[str, list[str]], bool]
) -> Registries:
    """Read the user's settings.

    Args:
        env: The environment, which overrides files.
        home: The user's home folder.
        system: The folder `/etc`.
        may_pass: Returns whether a build may get an address; if not, it adds the reason to the list.
    """
    proxies = {"YARN_HTTP_PROXY": VARIABLES["http_proxy"], "YARN_HTTPS_PROXY": VARIABLES["https_proxy"]}
    found = Registries({"JAVA_TOOL_OPTIONS": JAVA_PROXY, **proxies})

    def take(*urls: str) -> bool:
        usable = all(may_pass(url, found.left_out) for url in urls)
        found.addresses += urls if usable else ()
        return usable

    _npm(found, env, home, system, take)
    _go(found, env, home, take)
    _cargo(found, env, home, take)
    _bundler(found, env, home, take)
    _composer(found, env, home, take)
    _maven(found, home, take)
    if (mirror := env.get("HEX_MIRROR")) and take(mirror):
        found.variables["HEX_MIRROR"] = mirror
    return found


def default_npm_registry() -> str | None:
    """Return the registry that this machine's npm uses without any configuration; None without npm."""
    program = shutil.which("npm")
    if program is None:
        return None
    root = Path(program).resolve().parents[1]
    for source in NPM_SOURCES:
        if found := NPM_DEFAULT.search(_text(root / source)):
            return found[1]
    return None


def _npm(found: Registries, env: Mapping[str, str], home: Path, system: Path, take: Take) -> None:
    own = {name.lower(): value for name, value in env.items() if name.lower().startswith("npm_config_")}
    files = [own.get("npm_config_globalconfig"), str(system / "npmrc"), own.get("npm_config_userconfig")]
    settings: dict[str, str] = {}
    for path in [*filter(None, files), str(home / ".npmrc")]:
        settings |= dict(_settings(_text(Path(path))))
    settings["registry"] = own.get("npm_config_registry") or settings.get("registry", "")
    lines = []
    for name, value in settings.items():
        if (name == "registry" or NPM_SCOPE.fullmatch(name)) and ADDRESS.fullmatch(value) and take(value):
            lines.append(f"{name}={value}\n")
            if name == "registry":
                found.variables |= {"npm_config_registry": value, "YARN_NPM_REGISTRY_SERVER": value}
    if lines:
        found.files[".npmrc"] = "".join(lines)


def _go(found: Registries, env: Mapping[str, str], home: Path, take: Take) -> None:
    file = Path(env.get("GOENV") or home / ".config/go/env")
    settings = {**dict(_settings(_text(file))), **{name: env[name] for name in GO_NAMES if env.get(name)}}
    for name in GO_NAMES:
        value = settings.get(name, "")
        if value and (name, value) != ("GOPROXY", "off") and take(*ADDRESS.findall(value)):
            found.variables[name] = value


def _cargo(found: Registries, env: Mapping[str, str], home: Path, take: Take) -> None:
    folder = Path(env.get("CARGO_HOME") or home / ".cargo")
    sources = _toml(folder / "config.toml").get("source", {})
    lines: list[str] = []
    for name, source in sources.items() if isinstance(sources, dict) else ():
        if not isinstance(source, dict):
            continue
        address, replaced = source.get("registry"), source.get("replace-with")
        lines.append(f"[source.{json.dumps(name)}]\n")
        if isinstance(replaced, str):
            lines.append(f"replace-with = {json.dumps(replaced)}\n")
        if isinstance(address, str):
            if not take(address.removeprefix("sparse+")):
                return
            lines.append(f"registry = {json.dumps(address)}\n")
    if lines:
        found.files[".cargo/config.toml"] = "".join(lines)


def _bundler(found: Registries, env: Mapping[str, str], home: Path, take: Take) -> None:
    mirrors = dict(BUNDLE_MIRROR.findall(_text(home / ".bundle/config")))
    mirrors |= {name: value for name, value in env.items() if name.startswith("BUNDLE_MIRROR__")}
    for name, url in mirrors.items():
        if ADDRESS.fullmatch(url) and take(url):
            found.variables[name] = url


def _composer(found: Registries, env: Mapping[str, str], home: Path, take: Take) -> None:
    own = env.get("COMPOSER_HOME")
    folders = [Path(own)] if own else [home / ".config/composer", home / ".composer"]
    for folder in folders:
        try:
            config = json.loads(_text(folder / "config.json") or "{}")
        except (ValueError, RecursionError):
            continue
        repositories = config.get("repositories") if isinstance(config, dict) else None
        entries = list(repositories.values() if isinstance(repositories, dict) else repositories or ())
        # only these two keys, because others may hold passwords
        chosen = [
            {"type": entry["type"], "url": entry["url"]}
            for entry in entries
            if isinstance(entry, dict) and isinstance(entry.get("url"), str) and "type" in entry
        ]
        chosen = [entry for entry in chosen if take(entry["url"])]
        if chosen:
            found.files[".config/composer/config.json"] = json.dumps({"repositories": chosen})
            return


def _maven(found: Registries, home: Path, take: Take) -> None:
    mirrors = []
    for text in MIRROR.findall(_text(home / ".m2/settings.xml")):
        parts = {name: _element(text, name) for name in ("id", "mirrorOf", "url")}
        if parts["url"] and take(parts["url"]):
            inside = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in parts.items())
            mirrors.append(f"<mirror>{inside}</mirror>")
    if mirrors:
        found.files[".m2/settings.xml"] = f"<settings><mirrors>{''.join(mirrors)}</mirrors></settings>"


def _element(text: str, name: str) -> str:
    match = re.search(rf"<{name}>\s*([^<]*?)\s*</{name}>", text)
    return unescape(match[1]) if match else ""


def _settings(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values of lines `name=value`."""
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        if separator and not name.lstrip().startswith(("#", ";")):
            yield name.strip(), value.strip().strip("\"'")


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError:
        return {}  # cargo itself will report the error


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""

"""Find the package indexes and registries that the user configured: for pip, uv and apt, and for npm, Go, Cargo, Bundler,
Composer, Maven and Hex. Builds may reach all, and use all but apt's.

Builds get addresses only, in variables and in small files for the tools' home folder. No secret is passed on: an address
with a user name or password is left out, and keys are never read.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import ssl
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.sax.saxutils import escape

from m3agent.sandbox.declared.types import values_at
from m3agent.sandbox.images.installers import default_index_hosts
from m3agent.sandbox.network.allow_list import DEFAULT_PORTS, EVERY_HOST, AllowedHost, split_authority
from m3agent.sandbox.network.network import VARIABLES
from m3agent.sandbox.network.proxy import PORT
from m3agent.sandbox.network.upstream import PROXY_VARIABLES
from m3agent.util.json_value import json_object, mapping, mappings, strings

CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
TOLD_CERTIFICATES = (
    *CERTIFICATE_VARIABLES,
    *("GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO", "NODE_EXTRA_CA_CERTS", "npm_config_cafile"),
)
"""Variables that tell programs in a build where the certificates are."""
SYSTEM_CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)
LOOPBACK = {"localhost", "127.0.0.1", "::1"}
MIRROR = re.compile(r"^(?:deb|URIs:).*?(https?://[^\s/]+)", re.MULTILINE)
"""Address in a list of apt's sources, in either format."""
UV_VARIABLES = {
    "default": ("UV_DEFAULT_INDEX", "UV_INDEX_URL"),
    "extra": ("UV_INDEX", "UV_EXTRA_INDEX_URL"),
    "strategy": ("UV_INDEX_STRATEGY",),
}
PIP_VARIABLES = {"default": ("PIP_INDEX_URL",), "extra": ("PIP_EXTRA_INDEX_URL",)}
STRATEGIES = {"first-index", "first-match", "unsafe-first-match", "unsafe-best-match"}

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
MAVEN_MIRROR = re.compile(r"<mirror>(.*?)</mirror>", re.DOTALL)
JAVA_PROXY = " ".join(
    f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort={PORT}" for scheme in ("http", "https")
)

Take = Callable[..., bool]
"""Returns whether builds may get all of some addresses, and adds them to the registries if so."""


@dataclass
class Registries:
    """Registries of package managers, for builds."""

    variables: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """Their configuration, by path in the home folder."""
    addresses: list[str] = field(default_factory=list)
    """The registries that the user named."""
    left_out: list[str] = field(default_factory=list)
    """Settings that were not passed on, with reasons."""


@dataclass
class Indexes:
    """Settings for the installers in a build container."""

    default: str | None = None
    """Address of the main index."""
    extra: list[str] = field(default_factory=list)
    """Addresses of further indexes."""
    strategy: str | None = None
    """uv's rule for several indexes."""
    mirrors: list[str] = field(default_factory=list)
    """Addresses from which apt gets packages on this machine."""
    proxies: dict[str, str] = field(default_factory=dict)
    certificates: Path | None = None
    """File on this machine with the trusted certificate authorities."""
    registries: Registries = field(default_factory=Registries)
    """Registries of other package managers than uv, pip and apt."""
    left_out: list[str] = field(default_factory=list)
    """Settings that were not passed on, with reasons."""

    def environment(self, certificates_at: str) -> dict[str, str]:
        """Return variables for a build's programs; `certificates_at` is the certificates' path in the container."""
        env = dict(VARIABLES)
        if self.default is not None:
            env |= {"UV_DEFAULT_INDEX": self.default, "PIP_INDEX_URL": self.default}
        elif hosts := default_index_hosts():  # old pips have another default, which nobody serves any more
            env["PIP_INDEX_URL"] = f"https://{hosts[0]}/simple"
        if self.extra:
            env |= {"UV_INDEX": " ".join(self.extra), "PIP_EXTRA_INDEX_URL": " ".join(self.extra)}
        if self.strategy is not None:
            env["UV_INDEX_STRATEGY"] = self.strategy
        if self.certificates is not None:
            env |= dict.fromkeys(TOLD_CERTIFICATES, certificates_at)
        return env

    @property
    def hosts(self) -> tuple[AllowedHost, ...]:
        """The hosts that a build may reach: every public one, and those that the user named, wherever they are."""
        default = [self.default] if self.default else [f"https://{host}" for host in default_index_hosts()]
        registries = self.registries.addresses
        if "npm_config_registry" not in self.registries.variables and (npm := default_npm_registry()):
            registries = [*registries, npm]
        named = (_named_host(url) for url in (*default, *self.extra, *self.mirrors, *registries))
        return (EVERY_HOST, *filter(None, named))


def indexes_here() -> Indexes:
    """Read the settings of this process's user, who may have no home folder."""
    try:
        home = Path.home()
    except RuntimeError:
        home = Path("/nonexistent")
    return find_indexes(os.environ, home)


def find_indexes(env: Mapping[str, str], home: Path, system: Path = Path("/etc")) -> Indexes:
    """Read the settings of uv, pip and apt: the environment overrides files, and uv's settings override pip's."""
    found = Indexes(mirrors=_mirrors(system / "apt"))
    uv = _merged(_uv_file, (system / "uv/uv.toml", _config(env, home) / "uv/uv.toml"), UV_VARIABLES, env)
    pip_files = [system / "pip.conf", home / ".pip/pip.conf", _config(env, home) / "pip/pip.conf"]
    pip_files += [Path(env["PIP_CONFIG_FILE"])] if env.get("PIP_CONFIG_FILE") else []
    pip = _merged(_pip_file, pip_files, PIP_VARIABLES, env)
    # pip's rule for several indexes: the best version of all
    chosen = uv if {"default", "extra"} & uv.keys() else {**pip, "strategy": "unsafe-best-match"}

    def usable(urls: Iterable[str]) -> list[str]:
        return [url for url in map(_address, urls) if _usable(url, found.left_out)]

    found.default = next(iter(usable(chosen.get("default", "").split()[:1])), None)
    found.extra = usable(chosen.get("extra", "").split())
    if found.extra and chosen.get("strategy") in STRATEGIES:
        found.strategy = chosen["strategy"]
    for name in PROXY_VARIABLES:
        value = env.get(name) or env.get(name.lower())
        if value and (name == "NO_PROXY" or _usable(value, found.left_out)):
            found.proxies |= {name: value, name.lower(): value}
    found.registries = find_registries(env, home, system, _usable)
    files = [env.get(name) for name in CERTIFICATE_VARIABLES]
    files += [pip.get("cert"), ssl.get_default_verify_paths().cafile, *SYSTEM_CERTIFICATES]
    found.certificates = next((Path(name) for name in files if name and Path(name).is_file()), None)
    return found


def _usable(url: str, left_out: list[str]) -> bool:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.username is not None or parts.password is not None:
        left_out.append(f"{parts.hostname}: its address holds a password, and no build gets passwords")
    elif parts.scheme not in {"http", "https"}:
        left_out.append(f"{url}: not used, because a build cannot see a folder of this machine")
    elif parts.hostname in LOOPBACK:
        left_out.append(f"{url}: on this machine's loopback, which a container cannot reach")
    else:
        return True
    return False


def _named_host(url: str) -> AllowedHost | None:
    """Return the entry for the host of an address; None for this machine's loopback, which builds never reach."""
    try:
        host, port = split_authority(urlsplit(url).netloc)
    except ValueError:
        return None
    ports = DEFAULT_PORTS if port is None else frozenset({port})
    return None if host in LOOPBACK else AllowedHost(host, below=False, ports=ports, anywhere=True)


def _mirrors(folder: Path) -> list[str]:
    """Return the addresses in apt's lists of sources."""
    lists = [folder / "sources.list", *sorted(folder.glob("sources.list.d/*"))]
    found = [
        url for path in lists if path.is_file() for url in MIRROR.findall(path.read_text("utf-8", "replace"))
    ]
    return list(dict.fromkeys(found))


def _address(index: str) -> str:
    """Remove the name that uv permits before an index's address (`name=https://…`)."""
    name, separator, url = index.partition("=")
    return url if separator and "/" not in name and ":" not in name else index


def _config(env: Mapping[str, str], home: Path) -> Path:
    chosen = Path(env.get("XDG_CONFIG_HOME", ""))
    return chosen if chosen.is_absolute() else home / ".config"


def _merged(
    read: Callable[[Path], dict[str, str]],
    paths: Iterable[Path],
    variables: Mapping[str, tuple[str, ...]],
    env: Mapping[str, str],
) -> dict[str, str]:
    """Return the settings of several files and of variables; a later file wins over others, and a variable over all."""
    merged = {key: value for path in paths for key, value in read(path).items() if value}
    own = {key: " ".join(filter(None, map(env.get, names))) for key, names in variables.items()}
    return merged | {key: value for key, value in own.items() if value}


def _pip_file(path: Path) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError, OSError):
        return {}  # pip itself will report the error
    both: dict[str, str] = {}
    for section in ("global", "install"):
        both |= dict(parser.items(section)) if parser.has_section(section) else {}
    names = {"index-url": "default", "extra-index-url": "extra", "cert": "cert"}
    plain = {key.replace("_", "-"): value.strip() for key, value in both.items()}
    return {names[key]: value for key, value in plain.items() if key in names}


def _uv_file(path: Path) -> dict[str, str]:
    whole = _toml(path)  # uv itself will report an error
    whole |= mapping(whole, "pip")
    indexes = [index for index in whole.get("index", []) if isinstance(mapping(index).get("url"), str)]
    defaults = [index["url"] for index in indexes if index.get("default")] + [whole.get("index-url")]
    extras = [index["url"] for index in indexes if not index.get("default")]
    return {
        "default": next(iter(strings(defaults)), ""),
        "extra": " ".join([*extras, *strings(whole.get("extra-index-url"))]),
        "strategy": str(whole.get("index-strategy") or ""),
    }


def find_registries(
    env: Mapping[str, str], home: Path, system: Path, may_pass: Callable[[str, list[str]], bool]
) -> Registries:
    """Read the user's settings.

    Args:
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
    lines: list[str] = []
    for name, source in mapping(_toml(folder / "config.toml"), "source").items():
        address, replaced = mapping(source).get("registry"), mapping(source).get("replace-with")
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
        config = json_object(_text(folder / "config.json"))
        # only these two keys, because others may hold passwords
        chosen = [
            {"type": entry["type"], "url": entry["url"]}
            for entry in mappings([*values_at(config, "repositories.*")])
            if isinstance(entry.get("url"), str) and "type" in entry and take(entry["url"])
        ]
        if chosen:
            found.files[".config/composer/config.json"] = json.dumps({"repositories": chosen})
            return


def _maven(found: Registries, home: Path, take: Take) -> None:
    mirrors = []
    for text in MAVEN_MIRROR.findall(_text(home / ".m2/settings.xml")):
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

"""Find the package indexes that the user configured for pip, uv and apt: builds use those of pip and uv, and may reach all.

Registries of other package managers: see `registries`.

No secret is passed on: an address with a user name or password is left out.
"""

from __future__ import annotations

import configparser
import os
import re
import ssl
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from m3agent.sandbox.images.installers import default_index_hosts
from m3agent.sandbox.images.registries import Registries, default_npm_registry, find_registries
from m3agent.sandbox.network.allow_list import DEFAULT_PORTS, EVERY_HOST, AllowedHost, split_authority
from m3agent.sandbox.network.network import VARIABLES
from m3agent.sandbox.network.upstream import PROXY_VARIABLES

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
STRATEGIES = {"first-index", "first-match", "unsafe-first-match", "unsafe-best-match"}


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
    """This machine's proxy variables."""
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
    uv = _merged(_uv_file, (system / "uv/uv.toml", _config(env, home) / "uv/uv.toml"))
    pip_files = [system / "pip.conf", home / ".pip/pip.conf", _config(env, home) / "pip/pip.conf"]
    pip_files += [Path(env["PIP_CONFIG_FILE"])] if env.get("PIP_CONFIG_FILE") else []
    pip = _merged(_pip_file, pip_files)
    default = env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL") or uv.get("default")
    extra = f"{env.get('UV_INDEX', '')} {env.get('UV_EXTRA_INDEX_URL', '')}".strip() or uv.get("extra", "")
    strategy = env.get("UV_INDEX_STRATEGY") or uv.get("strategy")
    if not default and not extra:
        default = env.get("PIP_INDEX_URL") or pip.get("index-url")
        extra = env.get("PIP_EXTRA_INDEX_URL") or pip.get("extra-index-url", "")
        strategy = "unsafe-best-match"  # pip's rule: the best version of all indexes
    if default and _usable(_address(default), found.left_out):
        found.default = _address(default)
    found.extra = [_address(url) for url in extra.split() if _usable(_address(url), found.left_out)]
    if found.extra and strategy in STRATEGIES:
        found.strategy = strategy
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


def _merged(read: Callable[[Path], dict[str, str]], paths: Iterable[Path]) -> dict[str, str]:
    """Return the settings of several files; a later one wins."""
    return {key: value for path in paths for key, value in read(path).items() if value}


def _pip_file(path: Path) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError, OSError):
        return {}  # pip itself will report the error
    both: dict[str, str] = {}
    for section in ("global", "install"):
        both |= dict(parser.items(section)) if parser.has_section(section) else {}
    return {key.replace("_", "-"): value.strip() for key, value in both.items()}


def _uv_file(path: Path) -> dict[str, str]:
    try:
        whole = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}  # uv itself will report the error
    whole = {**whole, **(whole["pip"] if isinstance(whole.get("pip"), dict) else {})}
    indexes = [i for i in whole.get("index", []) if isinstance(i, dict) and isinstance(i.get("url"), str)]
    defaults = [i["url"] for i in indexes if i.get("default")] + [whole.get("index-url")]
    extras = [i["url"] for i in indexes if not i.get("default")] + (whole.get("extra-index-url") or [])
    return {
        "default": next((url for url in defaults if isinstance(url, str)), ""),
        "extra": " ".join(url for url in extras if isinstance(url, str)),
        "strategy": str(whole.get("index-strategy") or ""),
    }

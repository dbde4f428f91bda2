"""Settings from five layers (flags, environment, the repository's file, the user's file, defaults) and their origin."""

import difflib
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError

from m3agent.agent.errors import UsageError
from m3agent.agent.folders import config_path, state_path
from m3agent.sandbox.allow_list import parse_hosts
from m3agent.serving.http import is_local
from m3agent.serving.prices import server_price


def _bytes(size: object) -> float:
    # It comes with the sandboxes, which most commands that read settings do not need.
    from m3agent.sandbox.open import parse_bytes

    return parse_bytes(str(size))


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return value


REPOSITORY_MAY_SET: Mapping[str, Callable[[object], float] | None] = {
    "model": None,
    "thinking": None,
    "context_budget": _number,
    "max_turns": _number,
    "max_minutes": _number,
    "max_tokens": _number,
    "max_cost": _number,
    "memory": _bytes,
    "cpus": _number,
}
"""What a repository's own file may set, and for a limit how to measure it: it counts only where it is smaller than what
the user's file or the default says. The file is written by strangers: it never says where its content goes, with which
key, what runs outside the sandbox, or what the sandbox is made of, and it never raises what a run may use or cost."""

_PREFIX = "M3AGENT_"
_OTHER_VARIABLES = frozenset({"M3AGENT_STATE"})
_NOT_A_FLAG = frozenset({"api_key"})  # a key on a command line is seen by everybody on the machine
_DEFAULT = "default"


def _check_endpoint(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError("it should be an address like http://host:8000/v1")
    if parts.username is not None or parts.password is not None:
        raise ValueError("it must hold no user name or password; put the key into M3AGENT_API_KEY")
    return url


def _check_github_api(url: str) -> str:
    _check_endpoint(url)
    parts = urlsplit(url)
    if parts.scheme != "https" and not is_local(url):
        raise ValueError("it should be an https address, since tokens are sent there")
    if parts.query or parts.fragment:
        raise ValueError("it should be an address like https://github.example.com/api/v3")
    return url.rstrip("/")


def _check_engine(name: object) -> object:
    if name != "embedded":
        raise ValueError(
            "a fix starts the engine 'embedded' only; start another with `m3agent serve --engine`, which it then finds, "
            "or give --endpoint"
        )
    return name


def _check_text(text: str) -> str:
    if not text.strip() or text.startswith("-"):
        raise ValueError("it should be a name, not empty and not beginning with '-'")
    return text


def _check_memory(size: str) -> str:
    if not re.fullmatch(r"[1-9][0-9]*[kmg]", size, re.IGNORECASE):
        raise ValueError("it should be a whole number with k, m or g behind it, like 4g")
    return size


def _check_server_price(price: str) -> str:
    server_price(price)
    return price


def _check_hosts(hosts: str) -> str:
    parse_hosts(hosts)
    return hosts


MOST_ATTEMPTS = 64
RERUNS, MOST_RERUNS = 3, 20
"""How often what a verdict rests on runs again; see `m3agent.agent.flaky` for what each is good for."""
Text = Annotated[str, AfterValidator(_check_text)]
Count = Annotated[int, Field(ge=1)]
Amount = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Settings(BaseModel):
    """All settings of one run, complete and checked. Times are in minutes, counts in tokens or turns."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    endpoint: Annotated[str, AfterValidator(_check_endpoint)] | None = None
    engine: Annotated[Literal["embedded"], BeforeValidator(_check_engine)] | None = None
    model: Text | None = None
    api_key: SecretStr | None = None
    thinking: Literal["enabled", "disabled", "adaptive"] = "adaptive"
    image: Text | None = None
    environment: Literal["auto", "off"] = "auto"
    sandbox: Literal["docker", "bwrap"] | None = None
    allow_net: Annotated[str, AfterValidator(_check_hosts)] | None = None
    context_budget: Count | None = None
    attempts: Annotated[int, Field(ge=1, le=MOST_ATTEMPTS)] = 1
    max_turns: Count = 100
    max_minutes: Amount = 60.0
    max_tokens: Count | None = None
    max_cost: Amount | None = None
    server_price: Annotated[str, AfterValidator(_check_server_price)] | None = None
    seed: Annotated[int, Field(ge=0)] | None = None
    candidates: Count | None = None
    reruns: Annotated[int, Field(ge=0, le=MOST_RERUNS)] = RERUNS
    memory: Annotated[str, AfterValidator(_check_memory)] = "4g"
    cpus: Amount = 2.0
    yes: bool = False
    github_api: Annotated[str, AfterValidator(_check_github_api)] = "https://api.github.com"
    tokenizer: Text | None = None
    prefix: Literal["plain", "frozen"] = "plain"
    instructions: bool = True
    mcp: bool = True

    @property
    def key(self) -> str | None:
        """The endpoint's key as it is sent."""
        return None if self.api_key is None else self.api_key.get_secret_value()


@dataclass(frozen=True)
class LoadedSettings:
    """The settings in force, and for each by name where it came from."""

    settings: Settings
    origins: Mapping[str, str]

    def show(self) -> list[tuple[str, object, str]]:
        """Every setting as (name, value, origin), in the order of declaration; the key is never among the values."""
        rows: list[tuple[str, object, str]] = []
        for name in Settings.model_fields:
            value = getattr(self.settings, name)
            rows.append((name, "(hidden)" if isinstance(value, SecretStr) else value, self.origins[name]))
        return rows

    def table(self) -> str:
        """`show` as aligned columns for people."""
        rows = [("setting", "value", "from")]
        rows += [(name, _plain(value), origin) for name, value, origin in self.show()]
        names, values = (max(len(row[column]) for row in rows) for column in (0, 1))
        return "".join(f"{name:<{names}}  {value:<{values}}  {origin}\n" for name, value, origin in rows)

    def json(self) -> str:
        """`show` as one JSON object: name to `value` and `origin`."""
        rows = {name: {"value": value, "origin": origin} for name, value, origin in self.show()}
        return json.dumps(rows, indent=2) + "\n"


def load_settings(repo_dir: Path, flags: Mapping[str, object], env: Mapping[str, str]) -> LoadedSettings:
    """Merge the layers for the repository at `repo_dir`; a flag that is None was not given. A limit in the repository's
    file counts only where it is smaller than that of the user's file or the default.

    Raises `UsageError` for an unknown name, a value that does not fit, a file that is not TOML, or a repository's
    file that sets what it may not.
    """
    user = _from_user(env)
    repository = _tighter(_from_repository(repo_dir), user)
    layers = [_from_flags(flags), _from_environment(env), repository, user]
    values: dict[str, object] = {}
    origins = dict.fromkeys(Settings.model_fields, _DEFAULT)
    for layer in layers:
        # An endpoint and an engine answer the same question: the stronger layer's answer hides the weaker's.
        if "endpoint" in values or "engine" in values:
            layer.pop("endpoint", None)
            layer.pop("engine", None)
        elif "endpoint" in layer and "engine" in layer:
            raise UsageError(
                f"Both endpoint ({layer['endpoint'][1]}) and engine ({layer['engine'][1]}) are set: give one of them."
            )
        for name, (value, origin) in layer.items():
            if name not in values:
                values[name], origins[name] = value, origin
    return LoadedSettings(Settings.model_validate(values), origins)


def config_file(env: Mapping[str, str]) -> Path | None:
    """Where the user's file belongs, whether it exists or not; None when there is no home folder."""
    path = config_path(env)
    return Path(path) if path else None


def state_dir(env: Mapping[str, str]) -> Path:
    """The folder for sessions and caches; see `folders.state_path`."""
    return Path(state_path(env))


_Layer = dict[str, tuple[Any, str]]
"""A layer's settings: name to (value, origin)."""


def _from_flags(flags: Mapping[str, object]) -> _Layer:
    layer: _Layer = {}
    for name, value in flags.items():
        if value is not None:
            origin = "--" + name.replace("_", "-")
            if name in _NOT_A_FLAG:
                raise UsageError(f"{origin} is not a flag: set M3AGENT_API_KEY instead.")
            layer[name] = _checked(name, value, origin, origin, strict=False), origin
    return layer


def _from_environment(env: Mapping[str, str]) -> _Layer:
    layer: _Layer = {}
    if key := env.get("OPENAI_API_KEY"):
        layer["api_key"] = SecretStr(key), "OPENAI_API_KEY"
    for variable, value in sorted(env.items()):
        if variable.startswith(_PREFIX) and variable not in _OTHER_VARIABLES and value:
            name = variable.removeprefix(_PREFIX).lower()
            if variable != variable.upper() or name not in Settings.model_fields:
                known = [_PREFIX + field.upper() for field in Settings.model_fields]
                raise UsageError(f"The variable {variable} is not a setting{_nearest(variable, known)}.")
            layer[name] = _checked(name, value, variable, f"The variable {variable}", strict=False), variable
    return layer


def _from_repository(repo_dir: Path) -> _Layer:
    for folder in _up_to_git_root(repo_dir.absolute()):
        own = folder / ".m3agent.toml"
        if own.is_file():
            return _from_file(own, _parse(own, _read(own)), trusted=False)
        shared = folder / "pyproject.toml"
        # Another project's pyproject.toml may be broken, even be what is to be fixed: then it is not about us.
        if shared.is_file() and "m3agent" in (text := _read(shared)):
            tool = _parse(shared, text).get("tool")
            table = tool.get("m3agent") if isinstance(tool, dict) else None
            if table is not None:
                if not isinstance(table, dict):
                    raise UsageError(f"In {shared}, tool.m3agent is not a table: write [tool.m3agent].")
                return _from_file(shared, table, trusted=False)
    return {}


def _from_user(env: Mapping[str, str]) -> _Layer:
    path = config_file(env)
    return _from_file(path, _parse(path, _read(path)), trusted=True) if path and path.is_file() else {}


def _tighter(repository: _Layer, user: _Layer) -> _Layer:
    """The repository's settings less its limits that are no smaller than the user's; None is no limit at all."""
    layer: _Layer = {}
    for name, (value, origin) in repository.items():
        measure = REPOSITORY_MAY_SET[name]
        limit = user[name][0] if name in user else Settings.model_fields[name].default
        if measure is None or limit is None or measure(value) < measure(limit):
            layer[name] = value, origin
    return layer


def _up_to_git_root(folder: Path) -> list[Path]:
    """`folder` and its parents up to the one that holds `.git`; `folder` alone when none does."""
    chain: list[Path] = []
    for parent in (folder, *folder.parents):
        chain.append(parent)
        if (parent / ".git").exists():
            return chain
    return [folder]


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise UsageError(f"The settings file {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"The settings file {path} is not UTF-8 text: save it as UTF-8.") from None


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"The settings file {path} is not valid TOML: {str(error).rstrip('.')}.") from None


def _from_file(path: Path, table: dict[str, Any], *, trusted: bool) -> _Layer:
    layer: _Layer = {}
    for name, value in table.items():
        place = f"{path}{_line(path, name)}"
        if name not in Settings.model_fields:
            known = list(Settings.model_fields if trusted else REPOSITORY_MAY_SET)
            raise UsageError(f"{place}: {name} is not a setting{_nearest(name, known)}.")
        if not trusted and name not in REPOSITORY_MAY_SET:
            raise UsageError(
                f"{place}: a repository's own file may not set {name}: remove it there, "
                "and use a flag, the environment or your own settings file."
            )
        layer[name] = _checked(name, value, name, place, strict=True), str(path)
    return layer


def _line(path: Path, name: str) -> str:
    """`:N` for the line that sets `name`, or nothing where it is written in some other way."""
    assignment = re.compile(rf"\s*[\"']?{re.escape(name)}[\"']?\s*=|\s*\[.*\b{re.escape(name)}\b.*\]")
    for number, line in enumerate(_read(path).splitlines(), start=1):
        if assignment.match(line):
            return f":{number}"
    return ""


def _checked(name: str, value: object, what: str, place: str, *, strict: bool) -> object:
    """`value` as the field `name` takes it; a complaint begins with `place` and calls the setting `what`."""
    try:
        return getattr(Settings.model_validate({name: value}, strict=strict), name)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        reason = first["msg"].removeprefix("Value error, ")
        secret = name == "api_key" or (name in ("endpoint", "github_api") and "@" in str(value))
        shown = " what it is" if secret else f" {value!r}"
        prefix = place if what in place else f"{place}: {what}"
        raise UsageError(f"{prefix} cannot be{shown}: {reason[0].lower()}{reason[1:]}.") from None


def _nearest(name: str, known: list[str]) -> str:
    found = difflib.get_close_matches(name.replace("-", "_"), known, n=1)
    return f" (did you mean {found[0]}?)" if found else f"; known are {', '.join(sorted(known))}"


def _plain(value: object) -> str:
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

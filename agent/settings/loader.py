"""Load the settings from five layers: flags, environment, the repository's file, the user's file, defaults."""

import contextlib
import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError, create_model

from m3agent.agent.settings.server_key import OPENAI, ServerKey
from m3agent.agent.settings.settings import AUTO_BUDGET, SETTINGS, Setting, Settings, config_file
from m3agent.sandbox.declared.toml_text import parse_toml
from m3agent.util.errors import UsageError
from m3agent.util.json_value import value_at
from m3agent.util.plain_file import read_first, read_inside
from m3agent.util.sanitize import printable_line, printable_text
from m3agent.util.table import wrapped

_PREFIX = "M3AGENT_"
DETACHED = "M3AGENT_DETACHED"
"""Names the session of `fix --detach`, for the process that carries it out."""
OTHER_VARIABLES = frozenset({"M3AGENT_STATE", "M3AGENT_EQUIPPED", "M3AGENT_BUNDLE", DETACHED})
"""Variables that are not settings: the state folder, a mark of environment images, and the file that adapters install."""
_DEFAULT = "default"
IGNORED = frozenset(name for name, setting in SETTINGS.items() if setting.repository == "ignored")
"""Settings that a repository's own file may name without effect."""
MOST_BYTES = 4 << 20  # largest settings file that is read; a pyproject.toml holds more than settings
MOST_SHOWN = 160  # most characters of a wrong value in an error message
ALIGNED = 10  # characters of a value that the column of origins leaves room for
LARGEST = 2**53
"""The largest whole number of a setting: programs that read `config show --json` can represent it exactly."""


@dataclass(frozen=True)
class LoadedSettings:
    """The settings in force."""

    settings: Settings
    origins: Mapping[str, str]
    """For each setting, by name, where its value came from."""

    def show(self) -> list[tuple[str, object, str]]:
        """Return every setting as (name, value, origin), in the order of declaration, with secrets hidden."""
        rows: list[tuple[str, object, str]] = []
        for name, setting in SETTINGS.items():
            value = getattr(self.settings, name)
            if setting.secret and value is not None:
                value = "(hidden)"
            elif name == "context_budget" and value == AUTO_BUDGET:
                value = "auto"
            rows.append((name, value, self.origins[name]))
        return rows

    def table(self, width: int = 0) -> str:
        """Return `show` as aligned columns for people, with what applies where nothing is set."""
        rows = [("setting", "value", "from")]
        for name, value, origin in self.show():
            unset = SETTINGS[name].if_unset.replace("`", "") if value is None else ""
            rows.append((name, _plain(value), f"{origin}: {unset}" if unset else origin))
        names = max(len(name) for name, _, _ in rows)
        values = max(
            len(value) for _, value, _ in rows if len(value) <= ALIGNED
        )  # a long one moves its origin only
        lines: list[str] = []
        for name, value, origin in rows:
            head = f"{name:<{names}}  {value:<{values}}  "
            first, *below = wrapped(origin, width - len(head))
            lines += [f"{head}{first}\n", *(f"{'':<{len(head)}}{line}\n" for line in below)]
        return printable_text("".join(lines))  # values may come from a repository

    def json(self) -> str:
        """Return `show` as one JSON object: name to `value` and `origin`."""
        rows = {name: {"value": value, "origin": origin} for name, value, origin in self.show()}
        return json.dumps(rows, indent=2) + "\n"


def load_settings(
    repo_dir: Path, flags: Mapping[str, object], env: Mapping[str, str], wrong: list[UsageError] | None = None
) -> LoadedSettings:
    """Merge the layers for the repository at `repo_dir`.

    The repository's file only tightens: its limit is used if it is lower than the one in the user's file or the
    default, its choice if the user's file has none.

    Args:
        repo_dir: The folder in which the search for the repository's file starts; the search goes upwards.
        flags: Values by setting name. None means that the flag was not given.
        wrong: Receives the errors of files and variables, whose other settings then count. None raises the first one.

    Raises:
        UsageError: A name is unknown, a value is invalid, a file is not TOML, or a repository's file sets a
            forbidden setting.
    """
    user: _Layer = {}
    repository: _Layer = {}
    with _collected(wrong):
        user = _from_user(env, wrong)
    environment = _from_environment(env, wrong)
    with _collected(wrong):
        repository = _tighter(_from_repository(repo_dir, wrong), user)
    keys = _keys(environment, user, env)
    layers = [_from_flags(flags), environment, repository, user]
    values: dict[str, Any] = {}
    origins = dict.fromkeys(SETTINGS, _DEFAULT)
    for layer in layers:
        # An endpoint and an engine exclude each other: either one hides both in layers of lower priority.
        if "endpoint" in values or "engine" in values:
            layer.pop("endpoint", None)
            layer.pop("engine", None)
        elif "endpoint" in layer and "engine" in layer:
            with _collected(wrong):
                raise UsageError(
                    f"Both endpoint ({layer['endpoint'][1]}) and engine ({layer['engine'][1]}) are set: give one of them."
                )
        for name, (value, origin) in layer.items():
            if name not in values:
                values[name], origins[name] = value, origin
    if keys:
        used = (key for key in keys if "endpoint" in values and key.belongs_to(values["endpoint"]))
        values["api_key"], origins["api_key"] = keys, next(used, keys[0]).place
    return LoadedSettings(Settings(**values), origins)


def settings_of(values: Mapping[str, object]) -> Settings:
    """Return the settings for these values by name, for instance from a session's log.

    None stands for the default.

    Raises:
        UsageError: A value is invalid.
    """
    checked: dict[str, Any] = {
        name: _checked(SETTINGS[name], value, name, name, strict=False)
        for name, value in values.items()
        if value is not None
    }
    return Settings(**checked)


TESTS = "tests"
"""The table of a repository's own file that is no setting: how its tests run."""
TEST_REPORTS = ("junit", "tap")
_Layer = dict[str, tuple[Any, str]]
"""A layer's settings: name to (value, origin)."""


def _from_flags(flags: Mapping[str, object]) -> _Layer:
    layer: _Layer = {}
    for name, value in flags.items():
        if name not in SETTINGS:
            raise UsageError(f"{name} is not a setting{_nearest(name, list(SETTINGS))}.")
        if value is not None:
            setting = SETTINGS[name]
            origin = setting.option
            if setting.secret:
                raise UsageError(f"{origin} is not a flag: set {setting.variable} instead.")
            layer[name] = _checked(setting, value, origin, origin, strict=False), origin
    return layer


@contextlib.contextmanager
def _collected(wrong: list[UsageError] | None) -> Iterator[None]:
    """Append an error to `wrong`; raise it if `wrong` is None."""
    try:
        yield
    except UsageError as error:
        if wrong is None:
            raise
        wrong.append(error)


def _from_environment(env: Mapping[str, str], wrong: list[UsageError] | None) -> _Layer:
    layer: _Layer = {}
    known = {setting.variable: name for name, setting in SETTINGS.items()}
    for variable, value in sorted(env.items()):
        if variable.startswith(_PREFIX) and variable not in OTHER_VARIABLES and value:
            with _collected(wrong):
                if variable not in known:
                    raise UsageError(
                        f"The variable {variable} is not a setting{_nearest(variable, list(known))}."
                    )
                name, place = known[variable], f"The variable {variable}"
                layer[name] = _checked(SETTINGS[name], value, variable, place, strict=False), variable
    return layer


def _keys(environment: _Layer, user: _Layer, env: Mapping[str, str]) -> tuple[ServerKey, ...]:
    """Return all keys that the user configured, the preferred one first, each with its server.

    A key and an endpoint of the same layer belong together. A key without an endpoint in its layer belongs to the
    endpoint of the other layer. A flag names a server for one command only: it gives a key no server.
    """
    found: list[ServerKey] = []
    for layer, other in ((environment, user), (user, environment)):
        if "api_key" in layer:
            [key], place = layer["api_key"]
            server = layer.get("endpoint", other.get("endpoint", (None, "")))[0]
            found.append(replace(key, place=place, server=server))
    if text := env.get("OPENAI_API_KEY"):
        openai = ServerKey(text, "OPENAI_API_KEY", env.get("OPENAI_BASE_URL") or OPENAI)
        found.insert(int("api_key" in environment), openai)
    return tuple(found)


def _from_repository(repo_dir: Path, wrong: list[UsageError] | None) -> _Layer:
    folders = _up_to_git_root(repo_dir.absolute())
    for folder in folders:
        own = folder / ".m3agent.toml"
        if own.is_file():
            text = _read(own, folders[-1])
            return _from_file(own, text, _parse(own, text), wrong, trusted=False)
        shared = folder / "pyproject.toml"
        # A pyproject.toml without "m3agent" is not parsed: it may be broken, and be the very file to fix.
        if "m3agent" in (text := _shared_text(shared, folders[-1])):
            table = value_at(_parse(shared, text), "tool", "m3agent")
            if table is not None:
                if not isinstance(table, dict):
                    raise UsageError(f"In {shared}, tool.m3agent is not a table: write [tool.m3agent].")
                return _from_file(shared, text, table, wrong, trusted=False)
    return {}


def _from_user(env: Mapping[str, str], wrong: list[UsageError] | None) -> _Layer:
    path = config_file(env)
    if path is None or not path.is_file():
        return {}
    text = _read(path)
    return _from_file(path, text, _parse(path, text), wrong, trusted=True)


def _tighter(repository: _Layer, user: _Layer) -> _Layer:
    """Return the repository's layer without what the user chose, and without limits that are not lower than the user's.

    None means no limit.
    """
    layer: _Layer = {}
    for name, (value, origin) in repository.items():
        setting = SETTINGS[name]
        limit = user[name][0] if name in user else setting.default
        if setting.repository == "lower":
            counts = limit is None or setting.measure(value) < setting.measure(limit)
        else:
            counts = name not in user
        if counts:
            layer[name] = value, origin
    return layer


def _up_to_git_root(folder: Path) -> list[Path]:
    """Return `folder` and its parents, up to the one that holds `.git`; `folder` alone if none does."""
    chain: list[Path] = []
    for parent in (folder, *folder.parents):
        chain.append(parent)
        if (parent / ".git").exists():
            return chain
    return [folder]


def _shared_text(path: Path, root: Path) -> str:
    """Return the text of a project's file; "" if it does not mention m3agent, or cannot be read."""
    try:
        data = read_inside(str(root), str(path), MOST_BYTES)
    except OSError:
        return ""
    return _decoded(path, data) if b"m3agent" in data else ""


def _read(path: Path, root: Path | None = None) -> str:
    """Return the text of a settings file. If `root` is given, the file must be inside it."""
    try:
        name = str(path)
        data = read_first(name, MOST_BYTES) if root is None else read_inside(str(root), name, MOST_BYTES)
    except OSError as error:
        raise UsageError(f"The settings file {path} cannot be read: {error.strerror}.") from None
    return _decoded(path, data)


def _decoded(path: Path, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"The settings file {path} is not UTF-8 text: save it as UTF-8.") from None


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        return parse_toml(text)
    except ValueError as error:
        raise UsageError(f"The settings file {path} is not valid TOML: {error}.") from None


def _from_file(
    path: Path, text: str, table: dict[str, Any], wrong: list[UsageError] | None, *, trusted: bool
) -> _Layer:
    layer: _Layer = {}
    for name, value in table.items():
        with _collected(wrong):
            place = f"{path}{_line(text, name)}"
            if name == TESTS and not trusted:
                _check_tests(value, place)
            elif trusted or name not in IGNORED:
                layer[name] = _from_line(name, value, place, trusted=trusted), str(path)
    return layer


def _from_line(name: str, value: object, place: str, *, trusted: bool) -> object:
    """Return the value of a setting in a file. Raises UsageError if the file may not set it so."""
    allowed = [each for each, setting in SETTINGS.items() if trusted or setting.repository != "no"]
    if name not in SETTINGS:
        raise UsageError(f"{place}: {name} is not a setting{_nearest(name, allowed)}.")
    if name not in allowed:
        raise UsageError(
            f"{place}: a repository's own file may not set {name}: remove it there, "
            "and use a flag, the environment or your own settings file."
        )
    if (name, value) == ("sandbox", "here"):
        raise UsageError(
            f"{place}: a file may not set sandbox to here, which turns isolation off: "
            "use --sandbox here or the variable M3AGENT_SANDBOX."
        )
    return _checked(SETTINGS[name], value, name, place, strict=True)


def _check_tests(table: object, place: str) -> None:
    """Check the table that names the repository's test command; `m3agent.tools.runners.command` reads it."""
    from m3agent.tools.runners.variables import fault_of

    tests = table if isinstance(table, dict) else {}
    if "leave_out" in tests:
        _check_left_out(tests["leave_out"], place)
    if fault := fault_of(tests.get("env", {})):
        raise UsageError(f"{place}: env of {TESTS} {fault}.")
    if tests and tests.keys() <= {"leave_out", "env"}:
        return
    command = tests.get("command")
    words = command if isinstance(command, list) else [command]
    if not words or not all(isinstance(word, str) and word for word in words):
        raise UsageError(f"{place}: {TESTS} needs a command: a text, or a list of words.")
    if tests.get("report") not in TEST_REPORTS:
        raise UsageError(f"{place}: the report of {TESTS} must be one of {', '.join(TEST_REPORTS)}.")
    if others := sorted(tests.keys() - {"command", "report", "file", "leave_out", "env"}):
        raise UsageError(
            f"{place}: {TESTS} has no {others[0]}; it may have command, report, file, leave_out and env."
        )


def _check_left_out(names: object, place: str) -> None:
    """Check the names of the test runners and suites that do not run."""
    from m3agent.tools.runners.suites import RUNNERS  # few repositories need it, and it is slow to import

    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError(
            f'{place}: leave_out of {TESTS} must be a list of test runners, like ["jest", "go:tools"].'
        )
    for name in names:
        if (runner := name.partition(":")[0]) not in RUNNERS:
            raise UsageError(
                f"{place}: leave_out of {TESTS}: {runner} is no test runner{_nearest(runner, [*RUNNERS])}."
            )


def _line(text: str, name: str) -> str:
    """Return `:N` for the line of a file that sets `name`; "" if no line does in a recognized form."""
    assignment = re.compile(rf"\s*[\"']?{re.escape(name)}[\"']?\s*=|\s*\[.*\b{re.escape(name)}\b.*\]")
    for number, line in enumerate(text.splitlines(), start=1):
        if assignment.match(line):
            return f":{number}"
    return ""


def _checked(setting: Setting, value: object, what: str, place: str, *, strict: bool) -> object:
    """Return `value` converted to the setting's type and checked.

    Args:
        what: What an error message calls the setting.
        place: Where the value stands; begins the error message.
        strict: Do not convert between types (as from text to number).

    Raises:
        UsageError: The value is invalid.
    """
    given, check = value, setting.check or (lambda value: value)
    try:
        if setting.read is not None and isinstance(value, str):
            value = setting.read(value)
        if setting.choices:  # the check comes first: its message says more than a list of the choices
            return _validated(setting, check(value), strict=strict)
        return check(_validated(setting, value, strict=strict))
    except ValueError as error:
        reason = _reason(error)
        hidden = setting.secret or (setting.address and "@" in str(given))
        shown = " what it is" if hidden else f" {_shown(given)}"
        prefix = place if what in place else f"{place}: {what}"
        raise UsageError(f"{prefix} cannot be{shown}: {reason[0].lower()}{reason[1:]}.") from None


def _shown(value: object) -> str:
    """Return a value for an error message."""
    try:
        return printable_line(repr(value), MOST_SHOWN)
    except ValueError:  # Python refuses to write integers with more than 4,300 digits
        return "that number"


def _validated(setting: Setting, value: object, *, strict: bool) -> object:
    """Return `value` with the setting's type and within its bounds.

    Raises:
        ValidationError: pydantic's error, a ValueError.
    """
    return _model(setting).model_validate({"value": value}, strict=strict).model_dump()["value"]


@cache
def _model(setting: Setting) -> type[BaseModel]:
    """Return a model with one field, `value`, that accepts what the setting accepts."""
    finite = False if setting.type is float else None
    at_most = LARGEST if setting.at_most is None and setting.type in (int, float) else setting.at_most
    rules = Field(ge=setting.at_least, gt=setting.above, le=at_most, allow_inf_nan=finite)
    return create_model("Model", value=(setting.type, rules))


def _reason(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        said = error.errors(include_url=False, include_context=False)[0]["msg"]
        return said.partition(", unable to parse string as ")[0]  # what follows says the same again
    return str(error)


def _nearest(name: str, known: list[str]) -> str:
    found = difflib.get_close_matches(name.replace("-", "_"), known, n=1)
    return f" (did you mean {found[0]}?)" if found else f"; known names are {', '.join(sorted(known))}"


def _plain(value: object) -> str:
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

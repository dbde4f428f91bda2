"""Read a card's configuration and the adapters, which are TOML files.

An adapter says how a kind of agent is installed and called. There is a file for each in the folder `adapters`; a card may also
describe an agent itself, with the same fields.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, Field, ValidationError, field_validator

from m3agent.evals.data.results import Record
from m3agent.evals.run.other_agent import PLACEHOLDER, check_placeholders
from m3agent.util.errors import UsageError
from m3agent.util.sanitize import printable_line, quoted

ADAPTERS = Path(__file__).parent / "adapters"
PLACEHOLDERS = frozenset(
    ["repo", "issue", "image", "output", "usage", "endpoint", "origin", "model", "key", "seed"]
)
"""`origin` is `endpoint` without `/v1`; `key` is a stand-in for the server's key."""
VERSION_SECONDS = 60.0
"""How long an agent may take to say its version."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ +-]{0,59}")
VARIABLE = re.compile(r"(?!(?:HOME|PATH)$)[A-Za-z_][A-Za-z0-9_]*")
"""Names of variables that an adapter may set."""
NOT_KEPT = "(not kept)"
"""Stands for a value that may be secret."""
MOST_MINUTES, MOST_TOKENS, MOST_DOLLARS = 1e5, 10**15, 1e9
"""Largest budgets of an attempt."""

Model = TypeVar("Model", bound=BaseModel)


def _without_null(text: str) -> str:
    if "\0" in text:
        raise ValueError("it should be a text without null characters")
    return text


Text = Annotated[str, AfterValidator(_without_null)]


class Adapter(Record):
    """How a kind of agent is called."""

    name: Text
    """Name of the agent, which is also the name of its run folder."""
    install: Text = ""
    """A command that installs it, for people."""
    interface: Text = "chat"
    """Which of the server's interfaces it speaks: chat, responses or messages."""
    version: tuple[Text, ...] = ()
    """A command that prints its version; empty if the name says it."""
    command: tuple[Text, ...]
    """The command, with placeholders. It is started in the checkout; no shell runs it."""
    variables: dict[Text, Text] = Field(default_factory=dict[str, str])
    """Environment variables besides PATH and HOME, with placeholders."""
    files: dict[Text, Text] = Field(default_factory=dict[str, str])
    """Files in its empty home folder, with placeholders."""
    public: bool = False
    """Whether the card keeps all variables and files, because nothing in them is secret."""

    def kept(self) -> Adapter:
        """Return the adapter as a card keeps it.

        What has no placeholder may be secret, if the adapter does not say otherwise. Of such a file, a hash is kept, so that who
        repeats the card knows whether it is the same.
        """
        if self.public:
            return self
        variables = {name: _kept(text, NOT_KEPT) for name, text in self.variables.items()}
        files = {
            name: _kept(text, f"{NOT_KEPT}, sha256 {hashlib.sha256(text.encode()).hexdigest()}")
            for name, text in self.files.items()
        }
        return self.model_copy(update={"variables": variables, "files": files})

    def settings(self) -> dict[str, str]:
        """Return what a run must not change when it is resumed, besides the command: of an agent of the card's own."""
        kept = self.kept()
        if (ADAPTERS / f"{self.name}.toml").exists() or not (kept.files or kept.variables):
            return {}
        return {"files and variables": json.dumps([kept.files, kept.variables], sort_keys=True)}


class Server(Record):
    """The model server behind all agents."""

    endpoint: Text
    """Its address, such as `http://127.0.0.1:8000/v1`."""
    model: Text
    key: Text = ""
    """Name of the environment variable with its key; empty if it wants none."""
    price: Text | None = None
    """Price of a server of your own, as `--server-price` takes it."""

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, url: str) -> str:
        with contextlib.suppress(ValueError):
            parts = urlsplit(url)
            if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
                return url
        raise ValueError("it should be an address like http://host:8000/v1")


class Budget(Record):
    """What each attempt may use. The proxy enforces tokens and dollars."""

    minutes: float = Field(default=60.0, gt=0, le=MOST_MINUTES)
    """Most minutes of the agent."""
    tokens: int | None = Field(default=None, gt=0, le=MOST_TOKENS)
    """Most prompt and completion tokens; none by default."""
    dollars: float | None = Field(default=None, gt=0, le=MOST_DOLLARS)
    """Highest cost in dollars; none by default. The server's prices must be known."""


class CardConfig(Record):
    """What a card compares."""

    data: Text
    """The instances: a file, a folder or a data set. A path is relative to the configuration's folder."""
    ids: tuple[Text, ...] = ()
    """Only these instances; all if empty."""
    validation: Text = ""
    """Output of `eval validate -o`: flaky tests and invalid instances are left out."""
    attempts: int = Field(default=1, ge=1, le=1000)
    """Attempts of each agent at each instance."""
    seed: int = Field(default=1, ge=0, le=2**31)
    """Value of `{seed}` in the first attempts; each further attempt has the next one."""
    server: Server
    budget: Budget = Budget()
    agents: tuple[str | Adapter, ...] = Field(min_length=1)

    def kept(self) -> CardConfig:
        """Return the configuration without what may be secret: a password in the endpoint, variables and files."""
        parts = urlsplit(self.server.endpoint)
        endpoint = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        server = self.server.model_copy(update={"endpoint": endpoint})
        agents = [agent if isinstance(agent, str) else agent.kept() for agent in self.agents]
        return self.model_copy(update={"server": server, "agents": tuple(agents)})


def read_config(path: Path) -> CardConfig:
    """Return a card's configuration.

    Raises:
        UsageError: The file cannot be read, or a field of it is wrong.
    """
    config = _read(path, CardConfig)
    names = [agent if isinstance(agent, str) else agent.name for agent in config.agents]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"{path}: agents names {twice[0]} twice: each agent needs a name of its own.")
    return config


def adapters_of(config: CardConfig, path: Path) -> list[Adapter]:
    """Return the adapters of a card, in its order.

    Raises:
        UsageError: An adapter is unknown or malformed, or its program is not installed.
    """
    adapters: list[Adapter] = []
    for agent in config.agents:
        if isinstance(agent, str) and agent not in known_adapters():
            known = ", ".join(known_adapters())
            raise UsageError(
                f"{path}: agents names {agent!r}, which has no adapter. Adapters: {known}. "
                "For another agent, write its name and command as a table."
            )
        where = ADAPTERS / f"{agent}.toml" if isinstance(agent, str) else path
        adapter = _read(where, Adapter) if isinstance(agent, str) else agent
        check_adapter(adapter, where)
        adapters.append(adapter)
    return adapters


def known_adapters() -> list[str]:
    """Return the names of the adapters that m3agent brings."""
    return sorted(file.stem for file in ADAPTERS.glob("*.toml"))


def check_adapter(adapter: Adapter, where: Path) -> None:
    """Refuse an adapter that cannot work.

    Raises:
        UsageError: A name cannot be used, a placeholder is unknown, the issue is missing, or the program is not installed.
    """
    if not NAME.fullmatch(adapter.name):
        raise UsageError(
            f"{where}: the agent's name {adapter.name!r} cannot be a folder's name: use letters and digits."
        )
    texts = (*adapter.command, *adapter.variables.values()) if adapter.command else ()
    check_placeholders(texts, PLACEHOLDERS, f"{where}: the command of {adapter.name}")
    if wrong := [name for name in adapter.variables if not VARIABLE.fullmatch(name)]:
        raise UsageError(
            f"{where}: {adapter.name} sets {wrong[0]!r}, which is not the name of a variable besides HOME and PATH."
        )
    if wrong := [name for name in adapter.files if not _is_below_home(name)]:
        raise UsageError(
            f"{where}: {adapter.name} writes {wrong[0]!r}, which is not a path in its home folder."
        )
    for program in (adapter.command[0], *adapter.version[:1]):
        if shutil.which(program) is None:
            how = f": {adapter.install}" if adapter.install else ": give its path, or put it on PATH"
            raise UsageError(f"{where}: {adapter.name} needs the program {program}, which is not here{how}.")


def _kept(text: str, otherwise: str) -> str:
    return text if PLACEHOLDER.search(text) else otherwise


def _is_below_home(file: str) -> bool:
    path = Path(file)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def version_of(adapter: Adapter) -> str:
    """Return an agent's name with its version; only the name if it says none."""
    if not adapter.version:
        return adapter.name
    try:
        printed = subprocess.run(
            adapter.version,
            capture_output=True,
            timeout=VERSION_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        ).stdout.decode(errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return adapter.name
    number = re.search(r"\d+(?:\.\d+)+(?:[\w.+-]*\w)?", printed)
    return f"{adapter.name} {printable_line(number[0], 40)}" if number else adapter.name


def key_of(server: Server, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the server's key.

    Raises:
        UsageError: The variable is not set.
    """
    if not server.key:
        return None
    if not environ.get(server.key):
        raise UsageError(f"The server's key should be in the variable {server.key}, which is not set here.")
    return environ[server.key]


def _read(path: Path, model: type[Model]) -> Model:
    try:
        return model.model_validate(tomllib.loads(path.read_text("utf-8")))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}.") from None
    except ValidationError as error:
        # of what may be a name or a table, the errors inside the table tell more
        most_precise = max(error.errors(include_url=False), key=lambda each: len(each["loc"]))
        place = ".".join(map(str, most_precise["loc"]))
        raise UsageError(f"{path}: {place}: {most_precise['msg'].removeprefix('Value error, ')}.") from None
    except (ValueError, RecursionError):
        why = "a number or a nesting in it is too large, or its path has a null character"
        raise UsageError(f"{quoted(str(path))} cannot be read: {why}.") from None

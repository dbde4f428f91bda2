"""Decide which MCP servers a fix may use.

They come from the user's file, from the repository's file (once the user trusts its text), and from an
editor.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from m3agent.agent.repo.repository import Repository
from m3agent.agent.settings.settings import Settings, config_file
from m3agent.tools.mcp.server import CALL_SECONDS, McpServer
from m3agent.util.errors import UsageError
from m3agent.util.plain_file import read_first, read_inside
from m3agent.util.trust import Trust

USER_FILE, PROJECT_FILE = "mcp.json", ".mcp.json"
"""The first lies beside the user's settings file, the second at the top of a repository. Other agents use the
same format.
"""
TRUSTED = "mcp-trusted"
"""A folder in the state folder. It holds an empty file for each text of a repository's file that the user
trusts.
"""
MOST_BYTES = 1 << 20
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class _Entry(BaseModel):
    """A server's entry in a file. Unknown keys, which other programs use, are ignored."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["stdio", "http", "streamable-http", "sse"] | None = None
    command: str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    timeout: Annotated[float, Field(gt=0, le=86_400_000)] = 1000 * CALL_SECONDS
    """In milliseconds, as in other programs."""
    disabled: bool = False
    include_tools: Annotated[list[str] | None, Field(alias="includeTools")] = None


def project_file(repository: Repository) -> Path | None:
    """Return the path of the repository's file, or None if the repository has no such file."""
    path = repository.root and repository.root / PROJECT_FILE
    return path if path is not None and path.is_file() else None


def files(repository: Repository, state: Path, env: Mapping[str, str]) -> list[tuple[Path, bool]]:
    """Return the files that exist, the user's before the repository's, and for each whether it is used."""
    settings = config_file(env)
    mine = settings and settings.with_name(USER_FILE)
    found = [(mine, True)] if mine is not None and mine.is_file() else []
    own = project_file(repository)
    return found if own is None else [*found, (own, trust_in(own, state).given)]


def configured(
    repository: Repository,
    settings: Settings,
    state: Path,
    env: Mapping[str, str],
    say: Callable[[str], None],
    passed_on: Iterable[McpServer] = (),
) -> tuple[McpServer, ...]:
    """Return the servers of both files and of the editor, sorted by name; none if the settings turn MCP off.

    If several servers have the same name, the editor's server is used, else the repository's, else the
    user's. A repository's file that is not trusted is not read.

    Raises:
        UsageError: A file that is used is invalid.
    """
    if not settings.mcp:
        return ()
    found: dict[str, McpServer] = {}
    for path, used in files(repository, state, env):
        if used:
            found |= {server.name: server for server in read(path, env)}
        else:
            say(
                f"{PROJECT_FILE} of the repository is not used: see `m3agent mcp list`, then `m3agent mcp trust`"
            )
    found |= {server.name: server for server in passed_on}
    return tuple(found[name] for name in sorted(found))


def read(path: Path, env: Mapping[str, str] | None) -> list[McpServer]:
    """Return the servers that a file names and does not disable.

    Args:
        env: Variables that the file may refer to. None leaves references in the texts unchanged.

    Raises:
        UsageError: The file is invalid, or a variable is missing.
    """
    text = _text(path)
    try:
        named = json.loads(text)["mcpServers"]
        entries = {str(name): entry for name, entry in named.items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise UsageError(
            f'{path}: this is not a list of MCP servers; it should be {{"mcpServers": {{...}}}}'
        ) from None
    return [
        server for name, entry in entries.items() if (server := _server(path, name, entry, env)) is not None
    ]


def _entry(value: object, where: str) -> _Entry:
    try:
        return _Entry.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "it"
        raise UsageError(f"{where} cannot be read: {place}: {first['msg'].lower()}.") from None


def _server(path: Path, name: str, entry: object, env: Mapping[str, str] | None) -> McpServer | None:
    where = f"{path}: the MCP server {name!r}"
    given = _entry(entry, where)
    if given.disabled:
        return None
    if (given.command is None) == (given.url is None) or given.command == "":
        raise UsageError(f"{where} needs either a command or a url.")

    def filled(text: str) -> str:
        return text if env is None else _VARIABLE.sub(partial(_value, env=env, where=where), text)

    folder = path.parent if path.name == PROJECT_FILE else None
    if given.cwd is not None:
        folder = (folder or Path.home()) / filled(given.cwd)
    url = filled(given.url or "")
    if url and env is not None and not re.match(r"https?://[^/]", url):
        raise UsageError(f"{where} has an invalid url: it should begin with http:// or https://.")
    return McpServer(
        name,
        command=(filled(given.command), *map(filled, given.args)) if given.command else (),
        env={key: filled(value) for key, value in given.env.items()},
        folder=folder,
        url=url,
        headers={key: filled(value) for key, value in given.headers.items()},
        sse=given.type == "sse",
        only=None if given.include_tools is None else frozenset(given.include_tools),
        seconds=given.timeout / 1000,
    )


def _value(match: re.Match[str], env: Mapping[str, str], where: str) -> str:
    """Return the value of the variable that a text refers to, or what the text has for a missing one."""
    value: str | None = env.get(match[1]) or match[2]
    if value is None:
        raise UsageError(f"{where} needs the variable {match[1]}, which is not set.")
    return value


def trust_in(path: Path, state: Path) -> Trust:
    """Return the user's decision about a repository's file with exactly its current text. Raises UsageError: it cannot be read."""
    return Trust(state / TRUSTED, str(path.resolve()), _text(path))


def _text(path: Path) -> str:
    try:
        if path.name == PROJECT_FILE:
            data = read_inside(str(path.parent), str(path), MOST_BYTES)
        else:  # the user's own file may be a link to any place
            data = read_first(str(path), MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    if len(data) > MOST_BYTES:
        raise UsageError(f"{path} is too large to be a list of MCP servers.")
    return data.decode(errors="surrogateescape")


def from_editor(servers: Iterable[Any]) -> list[McpServer]:
    """Convert the servers that an editor names in `session/new`, as the protocol's SDK represents them.

    Servers of unknown kinds are left out.
    """
    found = []
    for server in servers:
        if getattr(server, "command", None):
            env = {variable.name: variable.value for variable in server.env}
            found.append(McpServer(server.name, command=(server.command, *server.args), env=env))
        elif getattr(server, "url", None):
            headers = {header.name: header.value for header in server.headers}
            found.append(McpServer(server.name, url=server.url, headers=headers, sse=server.type == "sse"))
    return found

"""`m3agent mcp`: list, check and trust the MCP servers that a fix would use, and be one for other agents."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from m3agent.cli.common import AsJson, Repo, check_folder, print_json, run, say, settings_in, state_folder
from m3agent.util.errors import UsageError
from m3agent.util.sanitize import print_note, print_text, printable_line
from m3agent.util.table import columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from m3agent.agent.repo.repository import Repository
    from m3agent.tools.mcp.server import McpServer

PATH = 4096  # most characters of a path

mcp_app = typer.Typer(help="Use tools of other programs (Model Context Protocol).", no_args_is_help=True)


@mcp_app.command("list")
def mcp_list(repo: Repo = Path(), as_json: AsJson = False) -> None:
    """List the servers in your file and in the repository's, and what each would start or reach. Start nothing."""
    servers = [
        {"server": server.name, "file": str(path), "used": used, "starts": _starts(server)}
        for path, used, server in _named(_repository(repo))
    ]
    if as_json:
        print_json(servers)
    elif servers:
        rows = [
            (
                printable_line(row["server"], 40),
                "yes" if row["used"] else "not trusted",
                printable_line(row["starts"], 90),
                printable_line(row["file"]),
            )
            for row in servers
        ]
        print_text(columns([("SERVER", "USED", "STARTS", "FILE"), *rows]), end="")
    else:
        print_note(
            "no MCP server is configured: name one in ~/.config/m3agent/mcp.json, or in .mcp.json at the top of the "
            "repository"
        )


@mcp_app.command("check")
def mcp_check(repo: Repo = Path()) -> None:
    """Start the servers that a fix would use, and print their tools as the model would see them.

    Exit codes: 0 all answer; 1 one does not, or a tool is left out; 2 wrong use.
    """
    from m3agent.agent.mcp.config import configured

    said: list[str] = []
    settings = settings_in(repo, {"mcp": True})
    servers = configured(_repository(repo), settings, state_folder(), os.environ, say)
    schemas = run(_offered(list(servers), said))
    rows = [(printable_line(one["name"]), printable_line(one["description"], 100)) for one in schemas]
    if rows:
        print_text(columns([("TOOL", "DESCRIPTION"), *rows]), end="")
    for sentence in said:
        say(sentence)
    raise typer.Exit(1 if said else 0)


@mcp_app.command("trust")
def mcp_trust(repo: Repo = Path()) -> None:
    """Let fixes use the servers in the repository's .mcp.json. If the file changes, trust it again."""
    from m3agent.agent.mcp.config import read, trust_in

    path = _project_file(repo)
    servers = read(path, None)
    trust_in(path, state_folder()).give()
    print_note(printable_line(f"trusted in its present form: {path}", PATH))
    for server in servers:
        print_note(f"  {printable_line(server.name)}: {printable_line(_starts(server), 300)}")


@mcp_app.command("distrust")
def mcp_distrust(repo: Repo = Path()) -> None:
    """Stop trusting the repository's .mcp.json."""
    from m3agent.agent.mcp.config import trust_in

    path = _project_file(repo)
    was = trust_in(path, state_folder()).withdraw()
    print_note(printable_line(f"{'no longer trusted' if was else 'was not trusted'}: {path}", PATH))


@mcp_app.command("serve")
def mcp_serve(repo: Repo = Path()) -> None:
    """Serve other agents over standard input and output: they can verify patches and read verdicts.

    An agent starts this command; it is not for a terminal. Exit codes: 0 the agent disconnected; 2 wrong use.
    """
    import sys

    from m3agent.agent.mcp.toolset import is_installed

    if not is_installed():
        raise UsageError("m3agent mcp serve needs m3agent[mcp]: install it as docs/install.md says.")
    from m3agent.agent.mcp_server import serve

    check_folder(repo)
    if sys.stdin is not None and sys.stdin.isatty():
        say("waiting for messages of an agent (docs/agents.md); Ctrl-D ends it")
    run(serve(repo.resolve(), state_folder()))


def _repository(repo: Path) -> Repository:
    from m3agent.agent.repo.repository import open_repository

    return open_repository(repo)


def _project_file(repo: Path) -> Path:
    from m3agent.agent.mcp.config import PROJECT_FILE, project_file

    repository = _repository(repo)
    path = project_file(repository)
    if path is None:
        raise UsageError(f"{repository.root or repository.git_dir} has no {PROJECT_FILE}.")
    return path


def _named(repository: Repository) -> Iterator[tuple[Path, bool, McpServer]]:
    """Yield each server of each configuration file: the file, whether the server is used, and the server."""
    from m3agent.agent.mcp.config import files, read

    # highest precedence first
    for path, used in reversed(files(repository, state_folder(), os.environ)):
        yield from ((path, used, server) for server in read(path, None))


def _starts(server: McpServer) -> str:
    import shlex

    return shlex.join(server.command) if server.command else server.url


async def _offered(servers: list[McpServer], said: list[str]) -> list[dict[str, Any]]:
    import contextlib
    import tempfile

    from m3agent.agent.mcp.toolset import start_servers, yes

    with tempfile.TemporaryDirectory() as logs:
        async with contextlib.AsyncExitStack() as stack:
            tools = await start_servers(servers, None, yes, Path(logs), stack, said.append)
            return [schema["function"] for schema in tools.schemas]

"""`m3agent serve status`, `stop` and `logs`: look after m3agent's servers. Also start a server in the background."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from m3agent.cli.apart import start_apart
from m3agent.cli.common import AsJson, argument, option, print_bytes, print_json, say, state_folder
from m3agent.cli.serve.app import serve_app
from m3agent.util.errors import ServerFault
from m3agent.util.sanitize import columns_of, print_note, print_text, printable_line
from m3agent.util.table import fitting, wrapped

if TYPE_CHECKING:
    from m3agent.serving.launch.record import ServerRecord

STOP_SECONDS = 120.0
"""Longest wait for the end of an engine. It is killed after 30 s; then the processes that it left have to end."""
FREE_SECONDS = 20.0
"""Longest wait until the driver has freed the memory of an ended process."""
CONSOLE = "serve.log"
COLUMNS = ("ENGINE", "URL", "STATE", "FOR", "MODEL", "WINDOW", "CACHE", "GPUS", "PID")
DROPPED = ("FOR", "PID", "CACHE", "WINDOW", "GPUS", "MODEL")
"""Columns that a narrow terminal does not get, the least important first."""
LINES = 40


@serve_app.command()
def status(as_json: AsJson = False) -> None:
    """List the servers that m3agent runs on this machine. Exit code 4: none is running."""
    from m3agent.serving.launch.record import live_servers

    servers = live_servers(state_folder())
    if as_json:
        told = [{**record.model_dump(mode="json"), "folder": str(folder)} for folder, record in servers]
        print_json(told)
    elif servers:
        width = columns_of(sys.stdout)
        table, left_out = status_table([record for _, record in servers], width)
        print_text(table, end="")
        for _, record in servers:
            for remark in _remarks(record):
                print_text("\n".join(wrapped(f"{record.url}: {remark}", width - 1)))
        if left_out:
            say(f"too narrow for {', '.join(left_out)}: `m3agent serve status --json` has them")
    else:
        say("no m3agent server is running here (`m3agent serve` starts one)")
    raise typer.Exit(0 if servers else 4)


@serve_app.command()
def stop(url: Annotated[str | None, argument("Which server, if several are running.", "URL")] = None) -> None:
    """Stop a server that m3agent runs and all its processes, and say whether the GPUs' memory is free again."""
    from m3agent.serving.launch.record import alive, live_servers

    servers = live_servers(state_folder())
    chosen = [
        record for _, record in servers if url is None or url.rstrip("/") in (record.url, record.url[:-3])
    ]
    if len(chosen) != 1:
        names = ", ".join(record.url for _, record in servers)
        why = f"{len(chosen)} servers match" if chosen else "no such m3agent server is running here"
        raise ServerFault(f"{why}; name one of {names}" if names else "no m3agent server is running here")
    record = chosen[0]
    os.kill(record.pid, signal.SIGTERM)
    until = time.monotonic() + STOP_SECONDS
    while alive(record.pid, record.born):
        if time.monotonic() > until:
            raise ServerFault(
                f"process {record.pid}, which manages the server at {record.url}, did not end within "
                f"{STOP_SECONDS:.0f} s; `kill -9 {record.pid}` ends it, and its engine with it"
            )
        time.sleep(0.1)
    print_note(f"ended the {record.engine} server at {record.url}{_memory(record)}")


@serve_app.command()
def logs(
    follow: Annotated[bool, option("--follow", "-f", "Follow the log as it grows.")] = False,
    lines: Annotated[int, option("--lines", "-n", "How many of the last lines.", "N", min=0)] = LINES,
    last: Annotated[bool, option("--last", "The log of the run before the last restart.")] = False,
) -> None:
    """Print the engine's log: of the running server, else of the last one."""
    from m3agent.serving.launch.record import LAST_LOG, LOG, last_folder, live_servers

    state = state_folder()
    running = [folder for folder, _ in live_servers(state) if (folder / LOG).exists()]
    folder = running[0] if running else last_folder(state)
    path = None if folder is None else folder / (LAST_LOG if last else LOG)
    if path is None or not path.exists():
        if any(record.engine == "embedded" for _, record in live_servers(state)):
            raise ServerFault("there is no log: the embedded engine, which runs here, writes none")
        if last and folder is not None:
            raise ServerFault("there is no log of an earlier run: the engine was not restarted")
        raise ServerFault("there is no log: no server that writes one was started here with `m3agent serve`")
    say(str(path))
    _print_end(path, lines, follow=follow)


def detached(argv: Sequence[str], state: Path) -> int:
    """Start `serve` in the background, and print its output until it serves; return the exit code."""
    from m3agent.serving.launch.record import Phase, live_servers, servers_folder

    def serves(pid: int) -> bool:
        return any(record.pid == pid and record.phase is Phase.READY for _, record in live_servers(state))

    told = "it continues in the background: `m3agent serve status`, `m3agent serve stop`"
    return start_apart(argv, servers_folder(state) / CONSOLE, serves, told) or 0


def status_table(records: Sequence[ServerRecord], width: int) -> tuple[str, list[str]]:
    """Return the table of servers, and the heads of the columns that were left out.

    Args:
        width: Columns of the terminal; 0 for no terminal, which gets all of the table.
    """
    return fitting([COLUMNS, *map(_row, records)], width, DROPPED)


def _remarks(record: ServerRecord) -> Iterator[str]:
    """Yield what a person should know about a server beside its row."""
    for check in record.checks:
        if check.get("ok") is False:
            yield printable_line(f"{check.get('name')} failed: {check.get('detail')}", 500)
    if draft := (record.plan or {}).get("draft"):
        yield printable_line(f"drafts tokens with {draft.get('model')}", 500)
    if record.random_weights:
        yield "its weights are random, so it answers nonsense"
    if record.restarts:
        times = "once" if record.restarts == 1 else f"{record.restarts} times"
        yield f"started again {times} after a crash"


def _row(record: ServerRecord) -> tuple[str, ...]:
    from m3agent.agent.report import text

    return (
        record.engine,
        record.url,
        record.phase.value,
        text.duration(time.time() - record.since) if record.since else "",
        printable_line(record.model or ""),
        f"{record.max_model_len:,}" if record.max_model_len else "",
        f"{record.kv_tokens:,}" if record.kv_tokens else "",
        record.gpus or "",
        str(record.pid),
    )


def _memory(record: ServerRecord) -> str:
    """Say whether the memory of the server's GPUs is free again."""
    from m3agent.serving.plan.detect import HELD, DetectionError, detect
    from m3agent.serving.plan.memory_model import gib

    if not record.devices:
        return ""
    until = time.monotonic() + FREE_SECONDS
    while True:
        try:
            detected = detect({**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(record.devices)})
        except DetectionError as error:
            return f"; whether its GPUs are free is unknown: {error}"
        held = [
            f"GPU {device} {gib(used)}"
            for device, used in zip(detected.devices, detected.used, strict=True)
            if used >= HELD
        ]
        if not held:
            return f"; the memory of GPU {','.join(record.devices)} is free"
        if time.monotonic() > until:
            return f"; still in use: {', '.join(held)}; `nvidia-smi` or `amd-smi process` shows why"
        time.sleep(0.5)


def _print_end(path: Path, lines: int, *, follow: bool) -> None:
    """Print the last lines of a file and, with `follow`, new ones. The file may be truncated meanwhile."""
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            at = max(0, size - 400 * (lines + 1))
            file.seek(at)
            data = file.read()
            while at and data.count(b"\n") <= lines:
                at = max(0, at - (1 << 16))
                file.seek(at)
                data = file.read()
        print_bytes(b"".join(data.splitlines(keepends=True)[-lines:] if lines else []))
        seen = at + len(data)
        while follow:
            time.sleep(0.3)
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(0 if size < seen else seen)
                data = file.read()
                seen = file.tell()
            print_bytes(data)

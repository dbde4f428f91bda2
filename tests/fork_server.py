"""A process that has imported m3agent and forks one child for each command line.

Importing what `m3agent fix` needs takes about a second of processor time, and the tests run hundreds of commands.
A fork takes milliseconds, and the child still has its own pid, signals and exit status. Only `tests.command_line`
talks to the server.

The first argument is the file descriptor of a socket. Each request is one message on it: JSON with `module`,
`arguments`, `cwd` and `env`, and four descriptors: standard input, output and error of the command, and a pipe.
The server writes two lines to the pipe: the child's pid, and its wait status once it has ended.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
from typing import Any, NoReturn

LARGEST = 1 << 17
"""Largest request in bytes. A socket of this kind takes about 200 kB at a time."""


class Child(Exception):
    """Raised in a new child with the module to run; it unwinds the server's stack before the module runs."""


def preload() -> None:
    """Import what commands import at run time, except modules that are run as `__main__`."""
    import anyio._backends._asyncio
    import docker
    import git
    import httpcore2
    import mcp
    import openai
    import redact_secret
    import tenacity
    import typer.main
    import uvicorn.protocols.http.h11_impl

    import m3agent.agent.context.chunks
    import m3agent.agent.context.pack
    import m3agent.agent.delivery.pull_request
    import m3agent.agent.fix.attempt
    import m3agent.agent.fix.entry
    import m3agent.agent.fix.orchestrate
    import m3agent.agent.loop.resume
    import m3agent.agent.session.catalog
    import m3agent.agent.ui.event_printer
    import m3agent.cli.acp
    import m3agent.cli.app
    import m3agent.cli.doctor
    import m3agent.cli.eval.run
    import m3agent.evals.run.evaluate
    import m3agent.evals.run.other_agent
    import m3agent.evals.run.own_agent
    import m3agent.sandbox.backends.bwrap_machine
    import m3agent.sandbox.backends.docker_machine
    import m3agent.serving.bench.run
    import m3agent.serving.check.check
    import m3agent.serving.client.client
    import m3agent.serving.embedded.server
    import m3agent.serving.launch.server
    import m3agent.serving.plan.planner
    import m3agent.tools.mcp.servers
    from m3agent.sandbox.protocol import supervisor
    from m3agent.tools.in_sandbox import bootstrap, runner
    from m3agent.tools.run_tests import PARTS
    from m3agent.util.portable_source import portable_text

    for source in (supervisor, runner, bootstrap, *PARTS):
        portable_text(source)
    # Typer builds its commands again for each call, which takes 0.05 s. The cache makes it build them once.
    typer.main.get_command = functools.cache(typer.main.get_command)
    typer.main.get_command(m3agent.cli.app.app)
    needed = (anyio, docker, git, httpcore2, mcp, openai, redact_secret, tenacity, uvicorn, m3agent)
    assert all(needed)


def become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Turn this fresh child into the process of the command."""
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    os.closerange(3, 1024)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = ["m3agent", *request["arguments"]]
    sys.modules["__main__"].__package__ = None  # as in the installed program: usage messages then name it
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  # they stay open as long as the process
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    faulthandler.enable()  # `communicate` aborts a command that hangs


def serve(asked: socket.socket) -> None:
    """Fork a child for each request until the other end is closed. Raises `Child` in the children."""
    ended, wakeup = os.pipe()  # not pidfd_open, which only Linux has
    os.set_blocking(wakeup, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    told: dict[int, int] = {}
    while True:
        ready: list[int] = select.select([asked.fileno(), ended], [], [])[0]
        if asked.fileno() in ready:
            data, descriptors, _, _ = socket.recv_fds(asked, LARGEST, 4)
            if not data:
                return
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                asked.detach()
                wanted = json.loads(data)
                become(wanted, descriptors)
                raise Child(wanted["module"])
            *streams, told[pid] = descriptors
            for stream in streams:
                os.close(stream)
            os.write(told[pid], b"%d\n" % pid)
        if ended in ready:
            os.read(ended, 4096)
            report(told)


def report(told: dict[int, int]) -> None:
    """Tell the status of each child that has ended."""
    while told:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with contextlib.suppress(BrokenPipeError):  # the test no longer waits for it
            os.write(told[pid], b"%d\n" % status)
        os.close(told.pop(pid))


def main() -> NoReturn:
    """Serve requests; in a child, run the command."""
    preload()
    gc.freeze()  # garbage collections in the children then do not touch shared memory
    try:
        with socket.socket(fileno=int(sys.argv[1])) as asked:
            serve(asked)
    except Child as child:
        module = str(child)
    else:
        sys.exit()
    run_and_exit(module)


def run_and_exit(module: str) -> NoReturn:
    """Run a module and end the process, without what takes most of the time of a short command: to free each object.

    Whatever else a process does at its end is done in the usual order. If a stream cannot be flushed, Python itself ends it.
    """
    try:
        runpy.run_module(module, run_name="__main__")
        code: object = 0
    except SystemExit as end:
        code = end.code or 0
    if not isinstance(code, int):
        sys.exit(str(code))
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the interpreter does
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except OSError:
        sys.exit(code)
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main()

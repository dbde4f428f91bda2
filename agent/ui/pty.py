"""Run an interactive shell in a sandbox: a terminal at each end, and one stream between them for keys and output."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import sys
import termios
import tty
from collections.abc import AsyncIterator

from m3agent.agent.ui.stdio import Output
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.util.daemon_thread import in_background

SHELL = '"$(command -v bash || command -v sh)"'
FOREVER = 7 * 86400.0
FRAME = struct.Struct(">BI")
KEYS, SIZE = 0, 1

# Runs in the sandbox. Its stdin carries frames (kind, length, payload): keys, and the size of the terminal.
RELAY = """
import fcntl, os, pty, select, struct, sys, termios
pid, fd = pty.fork()
if pid == 0:
    shell = next(s for s in ("/bin/bash", "/usr/bin/bash", "/bin/sh") if os.path.exists(s))
    os.execvp(shell, [shell, "-i"])
inbox = b""
watched = [0, fd]
while True:
    ready = select.select(watched, [], [])[0]
    if fd in ready:
        try:
            data = os.read(fd, 65536)
        except OSError:
            data = b""
        if not data:
            break
        while data:
            data = data[os.write(1, data):]
    if 0 in ready:
        data = os.read(0, 65536)
        if not data:
            break
        inbox += data
        while len(inbox) >= 5:
            kind, n = struct.unpack(">BI", inbox[:5])
            if len(inbox) < 5 + n:
                break
            payload, inbox = inbox[5:5 + n], inbox[5 + n:]
            if kind == 1:
                fcntl.ioctl(fd, termios.TIOCSWINSZ, payload + bytes(4))
            while kind == 0 and payload:
                payload = payload[os.write(fd, payload):]
os.close(fd)
status = os.waitpid(pid, 0)[1]
sys.exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
"""


async def terminal_session(sandbox: Sandbox) -> int:
    """Connect this process's terminal to a shell in the sandbox until it ends; return the shell's exit status."""
    sizes: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, sizes.put_nowait, None)
    before = termios.tcgetattr(0)
    output = Output()
    env = {**sandbox.typed_env, "TERM": os.environ.get("TERM", "xterm"), "PS1": r"(sandbox) \w\$ "}
    try:
        tty.setraw(0)
        result = await output.beside(
            sandbox.exec(
                ["python3", "-c", RELAY], env=env, timeout=FOREVER, feed=_frames(sizes), sink=output.put
            )
        )
    finally:
        termios.tcsetattr(0, termios.TCSANOW, before)
        loop.remove_signal_handler(signal.SIGWINCH)
    if result.total_bytes > output.taken:
        sys.stderr.write("m3agent: the session showed more than 50 MiB: the rest was not shown\n")
    return result.exit if result.exit >= 0 else 128 - result.exit


async def _frames(sizes: asyncio.Queue[None]) -> AsyncIterator[bytes]:
    """Yield the terminal's size, then keys and new sizes as they arrive, as frames for the relay."""
    yield _size()
    keys = asyncio.ensure_future(in_background(_read_keys))
    resized = asyncio.ensure_future(sizes.get())
    try:
        while True:
            await asyncio.wait({keys, resized}, return_when=asyncio.FIRST_COMPLETED)
            if resized.done():
                resized = asyncio.ensure_future(sizes.get())
                yield _size()
            if keys.done():
                data = keys.result()
                if not data:
                    return
                keys = asyncio.ensure_future(in_background(_read_keys))
                yield FRAME.pack(KEYS, len(data)) + data
    finally:
        keys.cancel()
        resized.cancel()


def _read_keys() -> bytes:
    try:
        return os.read(0, 4096)
    except OSError:  # the terminal hung up
        return b""


def _size() -> bytes:
    columns, rows = os.get_terminal_size(0)
    payload = struct.pack("=HH", rows, columns)  # the kernel's order and native byte order
    return FRAME.pack(SIZE, len(payload)) + payload

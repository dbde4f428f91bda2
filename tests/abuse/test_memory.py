"""Memory taken by one process, by many together, or owned by no process. The supervisor must survive."""

from __future__ import annotations

import pytest

from m3agent.sandbox.backends.sandbox import SandboxLimits
from tests.abuse.box import Box
from tests.conftest import others_later

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMITS = SandboxLimits(memory=192 << 20)

HOGS = {
    "one-process": "held = []\nwhile True: held.append(bytearray(4 << 20))",
    "one-allocation": "bytearray(8 << 30)",
    "anonymous-map": (
        "held = mmap.mmap(-1, 1 << 30)\nfor at in range(0, len(held), mmap.PAGESIZE): held[at] = 1"
    ),
    "thread-stacks": (
        "threading.stack_size(64 << 20)\n"
        "def fill(): x = ctypes.create_string_buffer(32 << 20); ctypes.memset(x, 1, 32 << 20); time.sleep(30)\n"
        "held = [threading.Thread(target=fill, daemon=True) for _ in range(20)]\n"
        "for thread in held: thread.start()\nfor thread in held: thread.join()"
    ),
    # each of these processes alone stays far below the limit
    "many-processes": (
        "for _ in range(12): child(lambda: os._exit(not [bytearray(b'x') * (32 << 20), time.sleep(20)]))\n"
        "for _ in range(12):\n"
        "    if os.wait()[1]: os._exit(1)"
    ),
    "memory-files": (
        "held = []\n"
        "while len(held) < 24:\n"
        "    fd = os.memfd_create('x'); held.append(fd)\n"
        "    for _ in range(16): os.write(fd, bytes(1 << 20))"
    ),
    "pipes": (
        "held = []\n"
        "try:\n"
        "    while True:\n"
        "        read, write = os.pipe(); held += [read, write]; os.set_blocking(write, False)\n"
        "        fcntl.fcntl(write, 1031, 1 << 20)\n"
        "        try:\n"
        "            while True: os.write(write, bytes(1 << 16))\n"
        "        except BlockingIOError: pass\n"
        "except OSError: os._exit(3)"
    ),
    "sockets": (
        "held = []\n"
        "try:\n"
        "    while True:\n"
        "        pair = socket.socketpair(); held.append(pair); pair[0].setblocking(False)\n"
        "        try:\n"
        "            while True: pair[0].send(bytes(1 << 16))\n"
        "        except BlockingIOError: pass\n"
        "except OSError: os._exit(3)"
    ),
}
"""Each takes twice the limit or more and ends with an error: it was killed, or an allocation failed."""

SHARED = {
    # it stays when its process ends, and the kernel counts it for no process when it looks for one to kill
    "shared-segments": (
        "libc.shmat.restype = ctypes.c_void_p\n"
        "try:\n"
        "    for _ in range(24):\n"
        "        address = libc.shmat(c('shmget', 0, 16 << 20, 0o1600), None, 0)\n"
        "        ctypes.memset(address, 1, 16 << 20); libc.shmdt(ctypes.c_void_p(address))\n"
        "except OSError: os._exit(3)"
    ),
    "message-queues": (
        "text = ctypes.create_string_buffer(struct.pack('<q', 1) + bytes(8000))\n"
        "try:\n"
        "    while True:\n"
        "        queue = c('msgget', 0, 0o1600)\n"
        "        while libc.msgsnd(queue, text, ctypes.c_size_t(8000), 0o4000) == 0: pass\n"
        "except OSError: os._exit(3)"
    ),
    "shared-memory-files": (
        "try:\n"
        "    for n in range(384): open(f'/dev/shm/{n}', 'wb').write(bytes(1 << 20))\n"
        "except OSError: os._exit(3)"
    ),
    "every-file-system": (
        "for folder in ('/ws', '/tmp', '/dev/shm', '/opt/m3agent'):\n"
        "    try:\n"
        "        with open(f'{folder}/full', 'wb', 0) as file:\n"
        "            while True: file.write(bytes(1 << 20))\n"
        "    except OSError: pass\n"
        "held = []\nwhile True: held.append(bytearray(1 << 20))"
    ),
}
"""Memory that is still in use after the command has ended."""


@pytest.mark.parametrize("hog", others_later(HOGS, HOGS.keys() - {"sockets"}))  # quick: pipes
async def test_too_much_memory_ends_the_command_and_is_freed(box: Box, hog: str) -> None:
    done = await box.python(HOGS[hog], timeout=40)
    assert done.exit != 0
    assert not done.timed_out
    assert (await box.python("bytearray(48 << 20)")).exit == 0


@pytest.mark.parametrize("hog", SHARED)
async def test_memory_that_stays_allocated_leaves_the_sandbox_usable(box: Box, hog: str) -> None:
    for _ in range(2):
        assert not (await box.python(SHARED[hog], timeout=40)).timed_out
        await box.sandbox.ping()
    assert (await box.python("bytearray(16 << 20)")).exit == 0
    # only the kernel's lists show these, no file system does (column 4: a segment's size, or a queue's bytes)
    lists = await box.python("for kind in ('shm', 'msg'): print(open(f'/proc/sysvipc/{kind}').read())")
    taken = sum(
        int(line.split()[3])
        for line in lists.stdout.decode().splitlines()
        if line[:1].isspace() and line.split()[0].isdigit()
    )
    assert taken <= LIMITS.memory // 4
    await box.sandbox.exec(["rm", "-f", "/opt/m3agent/full"])

"""The supervisor's filter of system calls: its program, interpreted step by step, and its effect in each sandbox."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.protocol.supervisor import ARCHITECTURES, MISSING, REFUSED, filter_program

SandboxOf = Callable[..., Sandbox]
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
COLUMN = {"x86_64": 0, "aarch64": 1}
WORD = 1 << 32

# Numbers of system calls on (x86_64, aarch64), from the kernel's headers.
SOCKET, SOCKETPAIR, CLONE, UNSHARE = (41, 198), (53, 199), (56, 220), (272, 97)
IOCTL, PERSONALITY, PRLIMIT, SETPRIORITY = (16, 29), (135, 92), (302, 261), (141, 140)
SHMGET, SEMGET, SCHED_SETSCHEDULER = (29, 194), (64, 190), (144, 119)
READ, EXECVE, MMAP, FUTEX, OPENAT2 = (0, 63), (59, 221), (9, 222), (202, 98), (437, 437)
WITH_CONDITIONS = {SOCKET, SOCKETPAIR, CLONE, UNSHARE, IOCTL, PERSONALITY, PRLIMIT, SETPRIORITY, SHMGET, SEMGET} | {
    (251, 30), (203, 122), (314, 274), (142, 118), SCHED_SETSCHEDULER, (256, 238), (279, 239),
}  # fmt: skip


def verdict(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """Return the filter's verdict as the kernel would: run its instructions as linux/filter.h defines them."""
    steps = list(struct.iter_unpack("=HBBI", filter_program(machine)))
    padded = [*arguments, *[0] * (6 - len(arguments))]
    known = dict(ARCHITECTURES)[machine] if architecture is None else architecture
    data = struct.pack("<iIQ6Q", number if number < 1 << 31 else number - WORD, known, 0, *padded)
    at, word = 0, 0
    while True:
        code, yes, no, value = steps[at]
        at += 1
        if code == 0x20:
            word = struct.unpack_from("<I", data, value)[0]
        elif code == 0x05:
            at += value
        elif code == 0x06:
            return int(value)
        else:
            holds = {0x15: word == value, 0x25: word > value, 0x45: bool(word & value)}[code]
            at += yes if holds else no


machines = pytest.mark.parametrize("machine", list(COLUMN))


@machines
def test_calls_refused_whole(machine: str) -> None:
    column = COLUMN[machine]
    for calls, error in ((REFUSED, errno.EPERM), (MISSING, errno.ENOSYS)):
        for name, numbers in calls.items():
            if numbers[column] >= 0:
                assert verdict(machine, numbers[column], 1, 2, 3) == ERRNO | error, name


@machines
def test_another_machine_s_calls_end_the_process(machine: str) -> None:
    for other in (0x40000003, 0xC000003E, 0xC00000B7, 0):  # i386, x86_64, aarch64, nothing
        if other != dict(ARCHITECTURES)[machine]:
            assert verdict(machine, 0, architecture=other) == KILL


@machines
@given(number=st.integers(0x40000000, 0xFFFFFFFF))
def test_the_second_set_of_calls_is_not_there(machine: str, number: int) -> None:
    assert verdict(machine, number) == ERRNO | errno.ENOSYS


@machines
@given(number=st.integers(0, 500), arguments=st.lists(st.integers(0, 2**64 - 1), min_size=6, max_size=6))
def test_other_system_calls_are_allowed(machine: str, number: int, arguments: list[int]) -> None:
    column = COLUMN[machine]
    named = {numbers[column] for numbers in [*REFUSED.values(), *MISSING.values(), *WITH_CONDITIONS]}
    if number not in named:
        assert verdict(machine, number, *arguments) == ALLOW


@machines
@given(
    family=st.integers(0, 50), kind=st.integers(0, 10), protocol=st.integers(0, 300), flags=st.sampled_from([0, 0x800, 0x80800])
)  # fmt: skip
def test_sockets(machine: str, family: int, kind: int, protocol: int, flags: int) -> None:
    got = verdict(machine, SOCKET[COLUMN[machine]], family, kind | flags, protocol)
    if family == 1:
        assert got == ALLOW
    elif family == 16:
        assert got == (ALLOW if protocol == 0 else ERRNO | errno.EPROTONOSUPPORT)
    elif family in (2, 10):
        wanted = (
            errno.EPERM if kind not in (1, 2) else errno.EPROTONOSUPPORT if protocol not in (0, 6, 17) else 0
        )
        assert got == (ERRNO | wanted if wanted else ALLOW)
    else:
        assert got == ERRNO | errno.EAFNOSUPPORT


@machines
@pytest.mark.parametrize(
    ("call", "arguments", "error"),
    [
        (CLONE, (0x11,), 0),  # SIGCHLD: fork
        (CLONE, (0x3D0F00,), 0),  # a thread
        (CLONE, (0x10000011,), errno.EPERM),  # a user namespace
        (CLONE, (0x00020011,), errno.EPERM),  # mounts
        (CLONE, (0x40000011,), errno.EPERM),  # network
        (UNSHARE, (0x400,), 0),  # files
        (UNSHARE, (0x80,), errno.EPERM),  # time
        (IOCTL, (0, 0x5413), 0),  # TIOCGWINSZ
        (IOCTL, (0, 0x5412), errno.EPERM),  # TIOCSTI
        (IOCTL, (0, 0x5412 + (1 << 32)), errno.EPERM),  # the kernel reads only the low half
        (PERSONALITY, (0xFFFFFFFF,), 0),  # only queries the personality
        (PERSONALITY, (0x0040000,), errno.EPERM),  # no address randomisation
        (PRLIMIT, (1, 7, 0, 0x7FFF), 0),  # process 1's limits may be read
        (PRLIMIT, (1, 7, 0x7FFF00000000, 0), errno.EPERM),
        (PRLIMIT, (1, 7, 0x10, 0), errno.EPERM),
        (PRLIMIT, (0, 7, 0x10, 0), 0),
        (PRLIMIT, (17, 7, 0x10, 0), 0),
        (SETPRIORITY, (0, 0, 5), 0),
        (SETPRIORITY, (0, 1, 5), errno.EPERM),
        (SETPRIORITY, (2, 0, 5), errno.EPERM),
        (SCHED_SETSCHEDULER, (0,), 0),
        (SCHED_SETSCHEDULER, (1,), errno.EPERM),
        (SHMGET, (0, 4096), 0),
        (SHMGET, (0, 1 << 30), errno.EINVAL),
        (SHMGET, (0, 1 << 32), errno.EINVAL),
        (SEMGET, (0, 17), 0),
        (SEMGET, (0, 32000), errno.EINVAL),
        (SOCKETPAIR, (1, 1, 0), 0),
        (SOCKETPAIR, (30, 1, 0), errno.EAFNOSUPPORT),
        (READ, (), 0),
        (EXECVE, (), 0),
        (MMAP, (), 0),
        (FUTEX, (), 0),
        (OPENAT2, (), 0),
    ],
)
def test_conditions(machine: str, call: tuple[int, int], arguments: tuple[int, ...], error: int) -> None:
    assert verdict(machine, call[COLUMN[machine]], *arguments) == (ERRNO | error if error else ALLOW)


def test_a_machine_it_does_not_know() -> None:
    with pytest.raises(KeyError):
        filter_program("riscv64")


ATTEMPTS = r"""
import ctypes, errno, os, platform, socket
libc = ctypes.CDLL(None, use_errno=True)
column = {"x86_64": 0, "aarch64": 1}[platform.machine()]
def call(name, numbers, *arguments):
    result = libc.syscall(ctypes.c_long(numbers[column]), *[ctypes.c_ulong(a) for a in arguments])
    print(name, errno.errorcode[ctypes.get_errno()] if result < 0 else "done")
def open_socket(name, *arguments):
    try:
        socket.socket(*arguments).close()
        print(name, "done")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
open_socket("vsock", 40, 1, 0)
open_socket("packet", 17, 3, 0)
open_socket("alg", 38, 5, 0)
open_socket("raw", 2, 3, 1)
open_socket("netlink-audit", 16, 3, 9)
open_socket("netlink-route", 16, 3, 0)
open_socket("tcp", 2, 1, 0)
open_socket("udp6", 10, 2, 17)
open_socket("unix", 1, 1, 0)
call("io_uring", (425, 425), 1, 0)
call("ptrace", (101, 117), 0, 0, 0, 0)
call("keyctl", (250, 219), 0, -3 & (2**64 - 1), 1)
call("bpf", (321, 280), 0, 0, 0)
call("perf", (298, 241), 0, 0, 0, 0, 0)
call("userfaultfd", (323, 282), 1)
call("process_vm_readv", (310, 270), 1, 0, 0, 0, 0, 0)
call("mount", (165, 40), 0, 0, 0, 0, 0)
call("open_tree", (428, 428), 0, 0, 0)
call("unshare-user", (272, 97), 0x10000000)
call("clone-user", (56, 220), 0x10000000 | 17, 0, 0, 0, 0)
call("clone3", (435, 435), 0, 0)
call("setns", (308, 268), 0, 0)
call("personality", (135, 92), 0x0040000)
call("limits-of-1", (302, 261), 1, 0, ctypes.addressof(ctypes.create_string_buffer(16)), 0)
call("schedule-1", (144, 119), 1, 5, ctypes.addressof(ctypes.create_string_buffer(4)))
call("slow-down-all", (141, 140), 2, 0, 19)
call("message-queue", (68, 186), 0, 0o1600)
call("large-segment", (29, 194), 0, 1 << 24, 0o1600)
"""
OUTCOMES = """\
vsock EAFNOSUPPORT
packet EAFNOSUPPORT
alg EAFNOSUPPORT
raw EPERM
netlink-audit EPROTONOSUPPORT
netlink-route done
tcp done
udp6 done
unix done
io_uring ENOSYS
ptrace EPERM
keyctl EPERM
bpf EPERM
perf EPERM
userfaultfd EPERM
process_vm_readv EPERM
mount EPERM
open_tree EPERM
unshare-user EPERM
clone-user EPERM
clone3 ENOSYS
setns EPERM
personality EPERM
limits-of-1 EPERM
schedule-1 EPERM
slow-down-all EPERM
message-queue ENOSYS
large-segment EINVAL
"""


async def test_the_filter_is_in_force(sandbox_of: SandboxOf) -> None:
    async with sandbox_of() as sandbox:
        assert sandbox.seccomp
        done = await sandbox.exec(["python3", "-c", ATTEMPTS])
        assert done.stdout.decode() == OUTCOMES
        assert (await sandbox.exec(["grep", "^Seccomp:", "/proc/self/status"])).stdout == b"Seccomp:\t2\n"


async def test_interfaces_that_repositories_need_still_work(sandbox_of: SandboxOf) -> None:
    program = (
        "import asyncio, concurrent.futures, multiprocessing, os, pty, resource, signal, socket, sqlite3, subprocess, sys, tempfile, threading\n"
        "from multiprocessing import shared_memory\n"
        "t = threading.Thread(target=print, args=('thread',), kwargs={'flush': True}); t.start(); t.join()\n"
        "m = shared_memory.SharedMemory(create=True, size=1 << 20); m.close(); m.unlink()\n"
        "with multiprocessing.get_context('spawn').Pool(2) as p: print(p.map(abs, [-1, -2]))\n"
        "a, b = socket.socketpair(); a.send(b'x'); print(b.recv(1))\n"
        "s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); print(bool(c))\n"
        "print(len(socket.if_nameindex()) > 0, socket.getaddrinfo('127.0.0.1', 80)[0][4])\n"
        "db = sqlite3.connect('/tmp/x.db'); db.execute('create table t(a)'); db.commit()\n"
        "print(asyncio.run(asyncio.wait_for(asyncio.sleep(0, 'slept'), 1)))\n"
        "r, w = pty.openpty(); os.write(w, b'tty\\n'); print(os.read(r, 4))\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); os.nice(1); os.sched_setaffinity(0, os.sched_getaffinity(0))\n"
        "print(subprocess.run('echo a | sed s/a/b/; command -v nice > /dev/null && nice -n 5 true', shell=True, capture_output=True).stdout)\n"
        "subprocess.run([sys.executable, '-m', 'venv', '--without-pip', '/tmp/venv'], check=True); print('done')\n"
    )
    async with sandbox_of() as sandbox:
        await sandbox.exec(
            ["sh", "-c", "cat > /tmp/needs.py"],
            stdin=f"if __name__ == '__main__':\n  exec({program!r})".encode(),
        )
        done = await sandbox.exec(["python3", "/tmp/needs.py"])
        assert done.stderr == b""
        assert done.stdout.decode().splitlines() == [
            "thread", "[1, 2]", "b'x'", "True", "True ('127.0.0.1', 80)", "slept", "b'tty\\r'", "b'b\\n'", "done"
        ]  # fmt: skip
        for tool in (
            "git log --oneline | grep base",
            "echo 'int main(){return 0;}' > a.c && cc a.c -o a && ./a",
            "printf 'all:\\n\\techo made\\n' > Makefile && make",
            "python3 -m pip --version",
        ):
            name = tool.split("&& ")[-1].split()[0] if "cc" not in tool else "cc"
            there = await sandbox.exec(["sh", "-c", f"command -v {name.removeprefix('./')}"])
            if there.exit == 0:
                done = await sandbox.exec(["sh", "-c", tool])
                assert done.exit == 0 or b"No module named pip" in done.stderr, (tool, done)

"""Helpers for attempts inside the sandbox. `Box.python` puts this file in front of each program that it runs there.

Standard library only. System calls go through the C library's `syscall`, so the image needs no tools.
"""

# ruff: noqa: PTH123 - the attempts attack paths, and some paths are bytes or descriptors

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

# name -> number on x86_64, number on aarch64 (-1: none); numbers from 424 on are the same on both
NUMBERS = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsopen": (430, 430),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, -1),
    "iopl": (172, -1),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "rt_sigqueueinfo": (129, 138),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "tgkill": (234, 131),
    "userfaultfd": (323, 282),
}


def checked(result: int) -> int:
    """Return the result of a call of the C library. Raises OSError for -1."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def syscall(name: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    number = NUMBERS[name][platform.machine() == "aarch64"]
    if number < 0:
        raise OSError(errno.ENOSYS, "not on this machine")
    return checked(
        libc.syscall(
            ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)
        )
    )


def c(name: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """Call a function of the C library."""
    return checked(getattr(libc, name)(*(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)))


def outcome(action: Callable[[], object]) -> str:
    """Run the action. Return `done`, or the name of the error that stopped it."""
    try:
        action()
    except socket.gaierror as error:
        return f"gai {error.errno}"
    except TimeoutError:
        return "ETIMEDOUT"
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, repr(error))
    return "done"


def outcome_apart(action: Callable[[], object]) -> str:
    """Same as `outcome`, but in a separate process. Return `signal N` if a signal ends it."""
    read, write = os.pipe()
    pid = child(lambda: os.write(write, outcome(action).encode()))
    os.close(write)
    with open(read, "rb") as pipe:
        said = pipe.read().decode()
    status = os.waitpid(pid, 0)[1]
    return said or f"signal {os.WTERMSIG(status)}"


def put(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def get(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(100)


def child(action: Callable[[], object]) -> int:
    """Run the action in a forked child, which then exits. Return the child's process id."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
        finally:
            os._exit(0)
    return pid


def ignore_polite_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


def forget_descriptors() -> None:
    """Close all descriptors and open /dev/null for the standard streams, as a daemon does."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.closerange(3, 256)


def become(*argv: str) -> None:
    """Replace this process with another program, with an empty environment."""
    os.execve(f"/usr/bin/{argv[0]}", list(argv), {})


def connect(address: tuple[str, int] | bytes, kind: int = socket.SOCK_STREAM, family: int = 0) -> None:
    default = socket.AF_UNIX if isinstance(address, bytes) else socket.AF_INET
    with socket.socket(family or default, kind) as sock:
        sock.settimeout(3)
        sock.connect(address)


def ioctl(path: str, request: int, argument: bytes) -> None:
    fd = os.open(path, os.O_RDWR | os.O_NOCTTY)
    try:
        fcntl.ioctl(fd, request, argument)
    finally:
        os.close(fd)


def run_machine_code(code: bytes) -> int:
    """Run these instructions and return rax, read as a system call's result. x86-64 only."""
    if platform.machine() != "x86_64":
        raise OSError(errno.ENOSYS, "not on this machine")
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    run = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    result = run()
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return int(result)


def int80(number: int, *arguments: int) -> int:
    """Make a system call through the 32-bit entry. Its numbers differ, so a filter of only 64-bit numbers misses it."""
    registers = (b"\xbb", b"\xb9", b"\xba", b"\xbe", b"\xbf")  # ebx, ecx, edx, esi, edi
    code = b"\x53\xb8" + struct.pack("<I", number)  # push rbx; mov eax, number
    for opcode, value in zip(registers, arguments, strict=False):
        code += opcode + struct.pack("<I", value)
    return run_machine_code(code + b"\xcd\x80\x48\x98\x5b\xc3")  # int 0x80; cdqe; pop rbx; ret


def low(data: bytes) -> int:
    """Return an address below 4 GiB that holds these bytes: 32-bit calls need one."""
    libc.mmap.restype = ctypes.c_void_p
    private_anonymous_32bit = 0x02 | 0x20 | 0x40
    address = libc.mmap(
        None, ctypes.c_size_t(mmap.PAGESIZE), 3, private_anonymous_32bit, -1, ctypes.c_long(0)
    )
    ctypes.memmove(address, data, len(data))
    return int(address)


def x32(number: int, *arguments: int) -> int:
    """Make a system call with an x32 number (bit 30 set)."""
    return checked(libc.syscall(ctypes.c_long(number | 0x40000000), *(ctypes.c_long(a) for a in arguments)))


_ = (sys, threading, time)  # used by the programs that follow this file

"""Remove what only Linux has from Python's modules, in each interpreter with this folder on PYTHONPATH.

Python on macOS 14 lacks these names (docs.python.org, "Availability"). Code that needs them only on Linux asks with
`hasattr`; other code fails here as it would there.
"""

import ctypes
import importlib
import os
from typing import Any

PREFIXES = {
    "select": ("epoll", "EPOLL"),  # first: `socket` imports `selectors`, which looks for epoll
    "os": (
        *("CLONE_", "EFD_", "GRND_", "MFD_", "POSIX_FADV_", "SCHED_", "SPLICE_", "TFD_", "XATTR_", "P_PIDFD"),
        *(
            "copy_file_range",
            "eventfd",
            "fdatasync",
            "getrandom",
            "getresgid",
            "getresuid",
            "getxattr",
            "listxattr",
        ),
        *("memfd_create", "pidfd_open", "pipe2", "posix_fadvise", "posix_fallocate", "removexattr", "sched_"),
        *("setns", "setresgid", "setresuid", "setxattr", "splice", "timerfd_", "unshare", "waitid"),
        *("O_DIRECT", "O_LARGEFILE", "O_NOATIME", "O_PATH", "O_RSYNC", "O_TMPFILE"),
    ),
    "resource": ("prlimit", "RLIMIT_MSGQUEUE", "RLIMIT_NICE", "RLIMIT_RT", "RLIMIT_SIGPENDING"),
    "signal": (
        *("pidfd_send_signal", "sigtimedwait", "sigwaitinfo"),
        *("SIGCLD", "SIGPOLL", "SIGPWR", "SIGRTMAX", "SIGRTMIN", "SIGSTKFLT"),
    ),
    "socket": (
        *("AF_ALG", "AF_CAN", "AF_NETLINK", "AF_PACKET", "AF_VSOCK", "MSG_CMSG_CLOEXEC", "SOCK_CLOEXEC"),
        *("SOCK_NONBLOCK", "SO_BINDTODEVICE", "SO_DOMAIN", "SO_PEERCRED", "SO_PROTOCOL", "TCP_CORK"),
        *("TCP_QUICKACK", "TCP_USER_TIMEOUT"),
    ),
}
"""The beginnings of the names that are removed from each module."""
KEPT = {"O_DIRECTORY"}
CALLS = {"personality", "prctl", "setns", "syscall", "unshare"}
"""Functions of Linux's C library that ctypes does not find."""

for module, prefixes in PREFIXES.items():
    found = importlib.import_module(module)
    for name in [name for name in vars(found) if name.startswith(prefixes) and name not in KEPT]:
        delattr(found, name)

_find = ctypes.CDLL.__getattr__


def _portable(library: ctypes.CDLL, name: str) -> Any:
    if name in CALLS:
        raise AttributeError(name)
    return _find(library, name)


ctypes.CDLL.__getattr__ = _portable  # type: ignore[method-assign]
if os.path.exists("/proc/self"):  # noqa: PTH110  # pathlib would import much
    raise RuntimeError("/proc is not hidden: start this with scripts/quality/portable.py")

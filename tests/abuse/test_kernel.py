"""Dangerous requests to the kernel: each must be refused, with an error that shows the right reason."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import pytest_asyncio

from tests.abuse.box import Box

pytestmark = pytest.mark.asyncio(loop_scope="module")

BARRED = "EPERM", "EACCES", "ENOSYS"  # by seccomp, capability or a path's owner; or missing in this kernel
HIDDEN = (*BARRED, "ENOENT", "EROFS", "ENXIO", "ENODEV")
NO_FAMILY = (*BARRED, "EAFNOSUPPORT", "ESOCKTNOSUPPORT", "EPROTONOSUPPORT")
NO_ID = (*BARRED, "EINVAL")  # the user namespace has no such user
NO_SPACE = (*BARRED, "ENOSPC")  # the namespace may contain no further user namespaces
KILLED = ("signal 31", "signal 11")  # killed by a filter, or because the kernel has no 32-bit entry


class Ask(NamedTuple):
    """A name, the Python expression that makes the request, and the correct outcomes."""

    name: str
    expression: str
    right: tuple[str, ...] = BARRED


PRIVILEGE = [
    Ask("become-root", "os.setresuid(0, 0, 0)", NO_ID),
    Ask("join-root-group", "os.setgroups([0])"),
    Ask("gain-capabilities", r'c("capset", ctypes.create_string_buffer(struct.pack("<II", 0x20080522, 0)), ctypes.create_string_buffer(b"\xff" * 24))'),
    Ask("ambient-capability", 'c("prctl", 47, 2, 21, 0, 0)'),
    Ask("drop-no-new-privs", 'c("prctl", 38, 0, 0, 0, 0)', NO_ID),
    Ask("file-capability", 'os.setxattr("/ws", "security.capability", struct.pack("<IIIII", 0x02000001, 0xFFFFFFFF, 0, 0, 0))'),
    Ask("give-file-to-root", 'os.chown("/ws", 0, 0)', NO_ID),
]  # fmt: skip

NAMESPACES = [
    Ask("unshare-user", 'c("unshare", 0x10000000)', NO_SPACE),
    Ask("unshare-user-and-mount", 'c("unshare", 0x10020000)', NO_SPACE),
    Ask("unshare-mount", 'c("unshare", 0x20000)'),
    Ask("unshare-pid", 'c("unshare", 0x20000000)'),
    Ask("unshare-net", 'c("unshare", 0x40000000)'),
    Ask("unshare-ipc", 'c("unshare", 0x08000000)'),
    Ask("unshare-uts", 'c("unshare", 0x04000000)'),
    Ask("unshare-cgroup", 'c("unshare", 0x02000000)'),
    Ask("unshare-time", 'c("unshare", 0x80)'),
    Ask("clone-user", 'syscall("clone", 0x10000011, None, None, None, None)', NO_SPACE),
    Ask("clone3-user", r'syscall("clone3", ctypes.create_string_buffer(struct.pack("<QQQQQ", 0x10000000, 0, 0, 0, 17).ljust(88, b"\0")), 88)', NO_SPACE),
    Ask("open-namespace-of-supervisor", 'os.open("/proc/1/ns/mnt", os.O_RDONLY)'),
    Ask("setns-by-pidfd", 'c("setns", syscall("pidfd_open", 1, 0), 0x20000)'),
    Ask("map-root", 'put("/proc/self/uid_map", "0 0 1")'),
    Ask("mount-tmpfs", 'c("mount", b"none", b"/tmp", b"tmpfs", 0, None)'),
    Ask("mount-bind", 'c("mount", b"/ws", b"/tmp", None, 4096, None)'),
    Ask("remount-usr-writable", 'c("mount", None, b"/usr", None, 32 | 4096, None)'),
    Ask("mount-proc", 'c("mount", b"proc", b"/tmp", b"proc", 0, None)'),
    Ask("umount-workspace", 'c("umount2", b"/ws", 2)'),
    Ask("fsopen", 'syscall("fsopen", b"tmpfs", 0)'),
    Ask("open-tree-clone", 'syscall("open_tree", -100, b"/usr", 1)'),
    Ask("mount-setattr", r'syscall("mount_setattr", -100, b"/usr", 0, ctypes.create_string_buffer(struct.pack("<QQQQ", 0, 1, 0, 0), 32), 32)'),
    Ask("chroot", 'c("chroot", b"/ws")'),
    Ask("pivot-root", 'syscall("pivot_root", b"/ws", b"/ws")'),
    Ask("hostname", 'socket.sethostname("owned")'),
]  # fmt: skip

DEVICES = [
    Ask("mknod-memory", 'os.mknod("/ws/mem", 0o020666, os.makedev(1, 1))'),
    Ask("mknod-disk", 'os.mknod("/tmp/disk", 0o060666, os.makedev(254, 0))'),
    *(Ask(f"open{path.replace('/', '-')}", f"open({path!r}, 'rb').read(1)", HIDDEN) for path in (
        "/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg", "/proc/kmsg", "/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/loop-control",
        "/dev/mapper/control", "/dev/vda", "/dev/sda", "/dev/tty", "/dev/console", "/dev/vsock", "/dev/uinput", "/dev/vhost-net",
    )),
    Ask("read-kcore", 'struct.unpack("1s", get("/proc/kcore")[:1])', HIDDEN),
    *(Ask(f"write{path.replace('/', '-')}", f"put({path!r}, {text!r})", HIDDEN) for path, text in (
        ("/proc/sysrq-trigger", "h"),
        ("/proc/sys/kernel/core_pattern", "|/ws/x"),
        ("/proc/sys/kernel/modprobe", "/ws/x"),
        ("/proc/sys/kernel/hostname", "x"),
        ("/proc/sys/kernel/ns_last_pid", "1"),
        ("/proc/sys/kernel/randomize_va_space", "0"),
        ("/proc/sys/vm/drop_caches", "3"),
        ("/proc/sys/vm/overcommit_memory", "1"),
        ("/proc/sys/fs/binfmt_misc/register", ":x:M::x::/ws/x:"),
        ("/proc/sys/net/ipv4/ip_forward", "1"),
        ("/sys/kernel/uevent_helper", "/ws/x"),
        ("/sys/power/state", "mem"),
        ("/sys/fs/cgroup/memory/release_agent", "/ws/x"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9999999999999"),
        ("/sys/fs/cgroup/pids/pids.max", "max"),
        ("/sys/fs/cgroup/memory.max", "max"),
        ("/sys/fs/cgroup/cgroup.procs", "1"),
    )),
]  # fmt: skip

SOCKETS = [
    Ask("vsock", "socket.socket(40, socket.SOCK_STREAM)", NO_FAMILY),
    Ask("vsock-to-host", "socket.socket(40, socket.SOCK_STREAM).connect((2, 1024))", NO_FAMILY),
    Ask("vsock-by-32-bit-entry", "int80(359, 40, 1, 0)", (*NO_FAMILY, *KILLED)),
    Ask("vsock-by-32-bit-socketcall", "int80(102, 1, low(struct.pack('<III', 40, 1, 0)))", (*NO_FAMILY, *KILLED)),
    Ask("vsock-by-x32", "x32(41, 40, 1, 0)", (*NO_FAMILY, *KILLED)),
    Ask("vsock-pair", "socket.socketpair(40, socket.SOCK_STREAM)", NO_FAMILY),
    Ask("kernel-crypto", "socket.socket(38, socket.SOCK_SEQPACKET)", NO_FAMILY),
    Ask("packet", "socket.socket(17, socket.SOCK_RAW)", NO_FAMILY),
    Ask("raw-ipv4", "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)", NO_FAMILY),
    Ask("raw-ipv6", "socket.socket(socket.AF_INET6, socket.SOCK_RAW, 58)", NO_FAMILY),
    Ask("ipsec-keys", "socket.socket(15, socket.SOCK_RAW, 2)", NO_FAMILY),
    Ask("express-data-path", "socket.socket(44, socket.SOCK_RAW)", NO_FAMILY),
    Ask("controller-bus", "socket.socket(29, socket.SOCK_RAW, 1)", NO_FAMILY),
    Ask("bluetooth", "socket.socket(31, socket.SOCK_SEQPACKET, 0)", NO_FAMILY),
    Ask("tipc", "socket.socket(30, socket.SOCK_SEQPACKET, 0)", NO_FAMILY),
    Ask("io-uring", "syscall('io_uring_setup', 8, ctypes.create_string_buffer(120))"),
    Ask("io-uring-by-32-bit-entry", "int80(425, 8, low(bytes(120)))", (*BARRED, *KILLED)),
]  # fmt: skip

SURFACES = [
    Ask("bpf", r'syscall("bpf", 0, ctypes.create_string_buffer(struct.pack("<IIII", 1, 4, 4, 1).ljust(128, b"\0")), 128)'),
    Ask("perf-events", r'syscall("perf_event_open", ctypes.create_string_buffer(struct.pack("<II", 1, 112).ljust(112, b"\0")), 0, -1, -1, 0)'),
    Ask("keyring", 'syscall("keyctl", 0, -2, 1)'),
    Ask("add-key", 'syscall("add_key", b"user", b"abuse", b"x", 1, -2)'),
    Ask("request-key", 'syscall("request_key", b"user", b"abuse", None, -2)'),
    Ask("trace-child", 'c("ptrace", 0, 0, 0, 0)'),
    Ask("user-fault", 'syscall("userfaultfd", 1)'),
    Ask("personality-no-randomize", 'c("personality", 0x0040000)'),
    Ask("set-clock", "time.clock_settime(time.CLOCK_REALTIME, 1_000_000_000)"),
    Ask("kexec", 'syscall("kexec_load", 0, 0, None, 0)'),
    Ask("kexec-file", 'syscall("kexec_file_load", 0, 0, 1, b"", 8)'),
    Ask("load-module", r'syscall("init_module", b"\x7fELF", 4, b"")'),
    Ask("load-module-file", 'syscall("finit_module", os.open("/usr/bin/env", 0), b"", 0)'),
    Ask("unload-module", 'syscall("delete_module", b"overlay", 0o4000)'),
    Ask("swap", 'syscall("swapon", b"/ws/x", 0)'),
    Ask("reboot", 'syscall("reboot", 0xFEE1DEAD, 672274793, 0x89ABCDEF, None)'),
    Ask("accounting", 'syscall("acct", b"/ws/x")'),
    Ask("kernel-log", 'syscall("syslog", 3, ctypes.create_string_buffer(64), 64)'),
    Ask("clear-kernel-log", 'syscall("syslog", 5, None, 0)'),
    Ask("port-access", 'syscall("iopl", 3)'),
    Ask("port-permission", 'syscall("ioperm", 0x80, 1, 1)'),
    Ask("open-by-handle", 'syscall("open_by_handle_at", -100, ctypes.create_string_buffer(struct.pack("<IiQ", 8, 1, 2)), 0)'),
    Ask("watch-all-files", 'syscall("fanotify_init", 0, 0)'),
    Ask("type-into-own-terminal", 'fcntl.ioctl(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY), 0x5412, b"x")', (*BARRED, "EIO")),
]  # fmt: skip


ALL = [*PRIVILEGE, *NAMESPACES, *DEVICES, *SOCKETS, *SURFACES]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def outcomes(module_box: Box) -> dict[str, str]:
    return await module_box.outcomes({ask.name: ask.expression for ask in ALL})


@pytest.mark.parametrize("ask", ALL, ids=lambda ask: ask.name)
async def test_system_calls_are_refused(outcomes: dict[str, str], ask: Ask) -> None:
    assert outcomes[ask.name] in ask.right

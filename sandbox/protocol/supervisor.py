"""Process 1 of every sandbox: runs commands, transfers files, kills whole process trees.

It is one file, for CPython 3.5 and later, with the standard library only. The host sends its source as the first
data on the stream, without annotations (`m3agent.util.portable_source`; see `BOOT` in `m3agent.sandbox.protocol.channel`).
So the image needs only an interpreter, and the sandbox contains no file that could be tampered with.

A frame of the protocol is the same in both directions, on standard input and output: the lengths of header
and payload (`>II`), a JSON header, the raw payload. The first frame is `hello{python, root, seccomp, openat2}`.
A request has `op` and `id`; its answers have the same `id`. At most `most_jobs` commands run at once. The
others wait, and their timeouts do not start before they do.

==========  =======================================================  ======================================
op          request fields (payload)                                 answers
==========  =======================================================  ======================================
exec        argv, cwd, env, timeout, grace, background, limits       started{pid, warm}; out{fd} (payload: bytes);
            more (payload: the child's standard input,               exit{exit, timed_out, oom, total, seconds}
            which `input` continues if `more` is set), file
            (payload: that file's content), warm (see `Spare`)
input       job, end (payload: more of a child's standard input)     ok, once the child has taken it
kill        job                                                      ok
write       path, mode (payload: content)                            ok
read        path, offset, limit                                      ok{size} (payload: content)
put         files: [[path, mode, size, sha], ...], into              ok
            (payload: contents)
delete      paths                                                    ok
scan        skip (folder names), most (bytes hashed in one file)     ok{changed: [[path, mode, sha, size]], deleted}
touched                                                              ok{paths}
ping                                                                 ok
alive                                                                nothing
listen      port, most (connections at once), window (bytes)         ok, then opened, data, eof, credit{n}, closed,
                                                                     each with conn (see `Tunnel`)
tunnel      conn, do: data (payload) | eof | credit{n} | close{abort}  nothing
==========  =======================================================  ======================================

A failed request is answered with `error{code, text}`. When standard input ends, everything is killed. The
same happens after `LEASE` seconds without data from the host, because the containers of a killed engine
continue to run, with their input open.

Why process 1: the kernel drops SIGKILL, SIGTERM and SIGSTOP that are sent to it from inside. (So their
default actions must stay: a handler would make it killable.) Its `kill(-1)` reaches every other process, and
its death ends the namespace. It is not dumpable, so tool code can neither trace it nor open its descriptors.
A system call filter on this process and its children forbids the kernel's unusual calls (see `forbid`).

Without isolation, it is an ordinary process with a guard as its parent (see `guard`). Its commands are then its
descendants (see `Descendants`), and the filter also refuses signals to it, its guard and its host.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import resource
import selectors
import signal
import stat
import struct
import sys
import time
import traceback
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, NoReturn, Optional, Tuple

if TYPE_CHECKING:
    import socket

Header = Dict[str, Any]
Answer = Optional[Tuple[Header, bytes]]

FRAME = struct.Struct(">II")
MAX_PAYLOAD = 256 << 20
STREAM_CAP = 50 << 20  # bytes of one job's output sent to the host; the rest is only counted
BACKLOG = 4 << 20  # unsent bytes above which the jobs' pipes are not read: the host sets the pace
LEASE = 600.0  # seconds of silence after which the host counts as dead; it sends `alive` ten times as often
TICK = 0.02  # seconds that file times may lag (10 ms on a kernel with 100 Hz)
SETTLE = 2.0  # seconds that killed processes get to disappear before a command's end is reported
MOST_JOBS = 128  # commands at once; fewer if only few processes are allowed
LATER = 0.02  # seconds that a frame waits for another frame to be sent with it
QUIET = 0.03  # seconds without a request after which a spare interpreter is started
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER, PR_CAPBSET_DROP = 36, 24
CAP_SYS_PTRACE = 19
PR_GET_SECCOMP, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 21, 22, 38
RLIMIT_LOCKS, RLIMIT_RTTIME = 10, 15  # without effect here, so that they can carry a job's number
MARK = 1 << 40
OOM_SCORE_ADJ = b"700"  # the kernel's out-of-memory killer takes a job before the supervisor
O_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(Exception):
    """A request failed: `code` is for the program, the text for people."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


LIBC = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def closing(fd: int) -> Iterator[int]:
    """Close a descriptor at the end."""
    try:
        yield fd
    finally:
        os.close(fd)


def null_streams() -> None:
    """Replace standard input and output, which a child must not hold."""
    with closing(os.open("/dev/null", os.O_RDWR)) as null:
        for fd in (0, 1):
            os.dup2(null, fd)


def set_dumpable(value: int) -> None:
    LIBC.prctl(PR_SET_DUMPABLE, value, 0, 0, 0)


def set_mark(pid: int, number: int) -> None:
    """Mark a process, and all processes that it will start, as belonging to a job.

    Nothing else is inherited reliably: a program can leave its session and its parent, and clear its
    environment. It can only lower these two limits, and then they no longer add up.
    """
    resource.prlimit(pid, RLIMIT_LOCKS, (MARK + number, MARK + number))
    resource.prlimit(pid, RLIMIT_RTTIME, (MARK - number, MARK - number))


def keeps_marks() -> bool:
    """Return whether this kernel permits setting those limits (gVisor, for example, does not)."""
    try:
        for limit in (RLIMIT_LOCKS, RLIMIT_RTTIME):
            before = resource.getrlimit(limit)
            resource.setrlimit(limit, (MARK, before[1]))
            resource.setrlimit(limit, before)
    except (OSError, ValueError):
        return False
    return True


def mark_of(pid: int) -> int:
    """Return the number of a process's job; 0 if it has no mark (yet) or has changed it.

    Raises:
        OSError: There is no such process.
    """
    up, down = resource.prlimit(pid, RLIMIT_LOCKS)[1], resource.prlimit(pid, RLIMIT_RTTIME)[1]
    return up - MARK if up + down == 2 * MARK else 0


def is_unmarked(pid: int) -> bool:
    """Return whether a process has the limits of this one; False if it has ended."""
    try:
        return all(
            resource.prlimit(pid, limit)[1] == resource.getrlimit(limit)[1]
            for limit in (RLIMIT_LOCKS, RLIMIT_RTTIME)
        )
    except OSError:
        return False


def fields_of(pid: int) -> list[bytes]:
    """Return what the kernel says about a process, from its state on: state, parent, group (proc_pid_stat(5)).

    Raises:
        OSError: There is no such process.
    """
    with open("/proc/%d/stat" % pid, "rb") as f:
        return f.read().rpartition(b")")[2].split()


def is_dead(fields: list[bytes]) -> bool:
    """Return whether no thread of a process runs. An ended process stays listed until its parent reaps it."""
    return fields[0] in (b"Z", b"X") and int(fields[17]) <= 1


def parent_of(pid: int) -> int:
    """Return the id of a process's parent.

    Raises:
        OSError: There is no such process.
    """
    return int(fields_of(pid)[1])


def all_pids() -> list[int]:
    """Return the ids of all processes that this one sees."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


class Processes:
    """The processes of the sandbox: all but this one, which is process 1 of their namespace."""

    niceness = 0  # of commands; process 1 needs little time to end them, however many there are

    def pids(self) -> list[int]:
        """Return their ids; some may have ended."""
        return [pid for pid in all_pids() if pid != 1]

    def signal(self, number: int) -> None:
        """Send them a signal, in one step, so that none can escape by forking."""
        assert os.getpid() == 1  # in any other process, this would signal every process of the machine
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, number)

    def stop(self) -> None:
        """Stop them, so that none can fork."""
        self.signal(signal.SIGSTOP)

    def kill(self) -> None:
        """Send them SIGKILL."""
        self.signal(signal.SIGKILL)


class Descendants(Processes):
    """The processes of a sandbox without a namespace: all descendants of this process.

    If one of them ends, its children become children of this process, because this process is their subreaper
    (prctl(2)). So a program can leave its parent, its group and its session, but not this tree.
    """

    niceness = 19  # so that this process gets enough time to find hundreds of busy ones

    def __init__(self) -> None:
        if LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            sys.exit("this kernel has no subreapers")

    def pids(self) -> list[int]:
        return [*self.fields()]

    def fields(self) -> dict[int, list[bytes]]:
        """Return what the kernel says about each of them, as `fields_of` returns it."""
        seen: dict[int, list[bytes]] = {}
        children: dict[int, list[int]] = {}
        unread = all_pids()
        for _ in range(5):
            for pid in unread:
                try:
                    seen[pid] = fields_of(pid)
                    children.setdefault(int(seen[pid][1]), []).append(pid)
                except OSError:
                    seen.pop(pid, None)
            # the parent of some may have ended in between: then they have another one now
            unread = [pid for parent in children.keys() - seen.keys() - {0} for pid in children.pop(parent)]
            if not unread:
                break
        found = [os.getpid()]
        for pid in found:  # the list grows meanwhile
            found += children.get(pid, [])
        return {pid: seen[pid] for pid in found[1:] if pid in seen}

    def signal(self, number: int) -> None:
        self.signal_some(self.pids(), number)

    def signal_some(self, pids: Iterable[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(OSError):  # it has ended; or it belongs to another user
                os.kill(pid, number)

    def stop(self) -> None:
        """Stop them, one after the other, until none is awake, or for `SETTLE` seconds.

        Those that are stopped still count against the limit of processes. So the others can fork ever less.
        """
        patience = time.monotonic() + SETTLE
        while time.monotonic() < patience:
            awake = [
                pid for pid, fields in self.fields().items() if fields[0] not in (b"T", b"t", b"Z", b"X")
            ]
            if not awake:
                break
            self.signal_some(awake, signal.SIGSTOP)

    def kill(self) -> None:
        """Send them SIGKILL until none of them runs, or for `SETTLE` seconds: this is not one step."""
        patience = time.monotonic() + SETTLE
        while has_children() and time.monotonic() < patience:
            running = [pid for pid, fields in self.fields().items() if not is_dead(fields)]
            if not running:
                break
            self.stop()
            self.signal(signal.SIGKILL)


def has_children() -> bool:
    """Return whether this process has a child, dead or alive. A subreaper without a child has no descendant."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def allowed_processes() -> int:
    """Return how many processes this control group may contain; 128 if unknown."""
    for path in ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"):
        with contextlib.suppress(OSError, ValueError), open(path) as f:
            return int(f.read())
    return 128


def oom_kills() -> int | None:
    """Return the number of out-of-memory kills in this control group, or None if unknown."""
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        with contextlib.suppress(OSError, ValueError), open(path) as f:
            for line in f:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return None


class Child:
    """A started process: its id, its job's number, and our ends of its pipes."""

    def __init__(self, pid: int, number: int, fd_in: int | None, outputs: dict[int, int]) -> None:
        self.pid = pid
        self.number = number
        self.fd_in = fd_in  # None if its input is empty
        self.outputs = outputs  # descriptor -> 1 or 2
        for fd in self.fds():
            os.set_blocking(fd, False)

    def fds(self) -> list[int]:
        return [*self.outputs, *([] if self.fd_in is None else [self.fd_in])]


class SupervisorJob:
    """One command: its process, its pipes, its clock."""

    def __init__(self, child: Child, header: Header, stdin: bytes) -> None:
        self.id: int = header["id"]
        self.number = child.number
        self.pid = child.pid
        self.input = child.fd_in  # None after it is closed
        self.pipes = child.outputs
        self.stdin = memoryview(stdin)
        self.more = bool(header.get("more"))
        self.fed: int | None = None  # the `input` request to answer once the child has read the data
        self.background = bool(header.get("background"))
        self.grace = float(header.get("grace", 1.0))
        self.started = time.monotonic()
        timeout = header.get("timeout")
        self.deadline = None if timeout is None else self.started + float(timeout)
        self.timed_out = False
        self.status: int | None = None
        self.sent = 0
        self.total = {1: 0, 2: 0}
        self.oom_before = oom_kills()


class Spare:
    """An interpreter that starts before its program is known, to save the program that time.

    It is what a request for `python3 FILE` with empty input starts, only earlier. FILE is first a named pipe:
    the interpreter is initialised and blocks when it opens FILE. The program is then written to the pipe, and
    also replaces the pipe, for tracebacks. Each spare runs exactly one program, and only if nothing was run
    or written since its start. A fork of a warm interpreter would differ: in its flags, paths and modules.
    """

    def __init__(self, header: Header) -> None:
        self.header = header
        self.file: str = header["file"]
        self.last = self.file + ".last"  # the previous program, until there is a new one
        self.child: Child | None = None
        self.stale = False

    def suits(self, header: Header, program: bytes) -> bool:
        names = ("argv", "cwd", "env", "limits", "file", "warm")
        same = all(self.header.get(name) == header.get(name) for name in names)
        # Python reads a program with an encoding declaration twice, which a pipe does not permit.
        return same and not self.stale and not any(b"coding" in line for line in program.split(b"\n", 2)[:2])

    def withdraw(self) -> None:
        """Close the open descriptors and restore the previous program."""
        if self.child is not None:
            for fd in self.child.fds():
                os.close(fd)
        with contextlib.suppress(OSError):  # the spare was used, or the file was removed
            os.rename(self.last, self.file)


def customised(env: dict[str, str]) -> bool:
    """Return whether files that programs can write affect the start of a Python interpreter.

    If so, no spare is started.
    """
    names = {*sys.modules, "sitecustomize", "usercustomize"} - {"__main__"}
    for folder in env.get("PYTHONPATH", "").split(":"):
        with contextlib.suppress(OSError):
            if any(entry.partition(".")[0] in names for entry in os.listdir(folder or ".")):
                return True
    return os.path.lexists(env.get("HOME", "") + "/.local")


def write_program(file: str, content: bytes) -> None:
    """Replace the program file that a command runs."""
    try:
        os.makedirs(os.path.dirname(file), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(file + ".new")
        # Never open an existing file: opening a named pipe for writing could block forever.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(file + ".new", flags, 0o644)
        with os.fdopen(fd, "wb") as f:
            f.write(content)
        os.rename(file + ".new", file)
    except OSError as error:
        raise Refused("exec-refused", "cannot write the program: %s" % error.strerror) from None


def enter_folder(root: str, cwd: str) -> None:
    """Make a folder of the tree the current one. Raises OSError, which names a missing folder."""
    try:
        os.chdir(os.path.join(root, cwd))
    except (FileNotFoundError, NotADirectoryError) as error:
        error.strerror = "no such folder: %s" % cwd
        raise


def spawn(header: Header, root: str, number: int, piped: bool, processes: Processes) -> Child:
    """Start a request's command as job `number`, in its own session; with an input pipe if `piped`.

    No fork: a copy of this process, and of every page that both then touch, takes three times as long as the
    rest (measured: 3.3 ms against 0.7). So no code runs in the child before the command. The child inherits
    its settings, or gets them from here. It inherits the filter and no_new_privs from the supervisor.

    Raises:
        Refused: The command cannot run; code `exec` if it does not exist, otherwise `exec-refused`.
    """
    argv, env = header["argv"], header["env"]
    limits = {getattr(resource, "RLIMIT_%s" % n): value for n, value in (header.get("limits") or {}).items()}
    mine = {limit: resource.getrlimit(limit) for limit in limits}
    ends: dict[int, tuple[int, int]] = {}  # stream -> our end and the child's end of its pipe
    try:
        for stream in (0, 1, 2) if piped else (1, 2):
            read, write = os.pipe()
            ends[stream] = (write, read) if stream == 0 else (read, write)
        enter_folder(root, header.get("cwd") or ".")
        for limit, value in limits.items():
            resource.setrlimit(limit, (value, mine[limit][1]))
        inherited = [ends[stream][1] if stream in ends else None for stream in range(3)]
        pid = start_process(find_program(argv[0], env), argv, env, inherited)
    except (AttributeError, OSError, TypeError, ValueError) as error:  # TypeError: not strings
        for pair in ends.values():
            os.close(pair[0])
            os.close(pair[1])
        missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
        why = getattr(error, "strerror", None) or str(error)
        text = "cannot run %.200r: %s" % (argv[0], why)
        raise Refused("exec" if missing else "exec-refused", text) from None
    finally:
        os.chdir(root)
        for limit, before in mine.items():
            resource.setrlimit(limit, before)
    seal_all(pid, number, limits, processes)
    for _, theirs in ends.values():
        os.close(theirs)
    return Child(pid, number, ends[0][0] if piped else None, {ends[1][0]: 1, ends[2][0]: 2})


def start_process(program: str, argv: list[str], env: dict[str, str], inherited: list[int | None]) -> int:
    """Start a program in a session of its own, with the default actions for signals; return its id.

    Args:
        inherited: Descriptors that become its standard input, output and error; None for empty input.
    """
    if not hasattr(os, "posix_spawn"):  # Python before 3.8: through a fork, which takes longer
        import subprocess

        stdin, stdout, stderr = inherited
        process = subprocess.Popen(
            argv,
            executable=program,
            env=env,
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        process.returncode = 0  # this object need not wait for the process, whose end `reap` sees
        return process.pid
    actions: list[Any] = [
        (os.POSIX_SPAWN_OPEN, target, "/dev/null", os.O_RDONLY, 0)
        if fd is None
        else (os.POSIX_SPAWN_DUP2, fd, target)
        for target, fd in enumerate(inherited)
    ]
    ignored = [signal.SIGPIPE, signal.SIGXFSZ]
    return os.posix_spawn(program, argv, env, file_actions=actions, setsid=True, setsigdef=ignored)


def find_program(name: str, env: dict[str, str]) -> str:
    """Return the file that a command's name stands for, by the rules of shells.

    Raises:
        OSError: There is none, or it is not executable.
    """
    if "/" in name:
        return name
    refused = False
    for folder in env.get("PATH", os.defpath).split(":"):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            if os.access(path, os.X_OK):
                return path
            refused = True
    raise (
        PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if refused
        else FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    )


def seal(pid: int, number: int, limits: dict[int, int], niceness: int) -> None:
    """Mark a process as the job's, and set its limits."""
    try:
        set_mark(pid, number)
        if niceness:
            os.setpriority(os.PRIO_PROCESS, pid, niceness)
        for limit, value in limits.items():
            resource.prlimit(pid, limit, (value, value))
        patience = time.monotonic() + 0.2
        while True:
            try:
                with open("/proc/%d/oom_score_adj" % pid, "wb") as f:
                    f.write(OOM_SCORE_ADJ)
                break
            except PermissionError:  # not accessible until the kernel has finished starting it
                if time.monotonic() > patience or is_dead(fields_of(pid)):
                    raise
                time.sleep(0.0001)
    except (OSError, ValueError):
        pass  # the process has ended; or the file or the marks do not exist here, which other code handles


def seal_all(pid: int, number: int, limits: dict[int, int], processes: Processes) -> None:
    """Mark a new process as the job's, and all that it has started so far, and set their limits.

    On a busy machine the process may have run for long, and its children may have left it. All processes of earlier
    jobs have marks by now, so those without one are the new job's. A process that still escapes, by forking faster
    than this finds its processes, has no mark: it is killed when the next command ends.
    """
    seal(pid, number, limits, processes.niceness)
    if is_unmarked(pid):
        return  # this kernel keeps no marks, so no other job runs
    for _ in range(20):  # until none is found; a child of one that was found may not be listed yet
        found = [other for other in processes.pids() if is_unmarked(other)]
        for below in found:
            seal(below, number, limits, processes.niceness)
        if not found:
            break


class Supervisor:
    """The event loop: reads requests, runs jobs, accesses files, sends answers."""

    def __init__(
        self,
        root: str,
        fd_in: int,
        fd_out: int,
        *,
        openat2: bool = True,
        processes: Processes | None = None,
    ) -> None:
        self.processes = processes or Processes()
        self.root = os.path.realpath(root)
        self.root_fd = os.open(self.root, O_DIR)
        self.openat2 = openat2 and has_openat2(self.root_fd)
        self.filtered = False  # whether `forbid` is in force
        self.fd_in = fd_in
        self.fd_out = fd_out
        self.inbox = bytearray()
        self.outbox = bytearray()
        self.jobs: dict[int, SupervisorJob] = {}
        self.queue: deque[list[Any]] = deque()  # [header, payload] of waiting commands
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        # Without marks, jobs cannot be distinguished. Then only one runs at a time, and all processes are its
        # own.
        self.most_jobs = max(1, min(MOST_JOBS, allowed_processes() // 4, files // 8)) if keeps_marks() else 1
        self.last_number = 0
        self.warm: Header | None = None  # the request to prepare a spare for
        self.spare: Spare | None = None
        self.seen: dict[
            str, tuple[Any, int, str | None, int]
        ] = {}  # path -> (stat signature, mode, sha, size): the tree as last reported
        self.paused = False
        self.heard = time.monotonic()
        self.selector = selectors.DefaultSelector()
        self.tunnel: Tunnel | None = None

    # -- frames ------------------------------------------------------------------------------------------

    def send(self, header: Header, payload: bytes = b"", later: bool = False) -> None:
        """Send a frame.

        With `later`, it may wait briefly for another frame to go with: each write costs the engine a copy.
        """
        raw = json.dumps(header, separators=(",", ":")).encode()
        self.outbox += FRAME.pack(len(raw), len(payload)) + raw + payload
        if not later:
            self.flush()

    def flush(self) -> None:
        while self.outbox:
            try:
                with memoryview(self.outbox) as view:
                    sent = os.write(self.fd_out, view[: 1 << 20])
            except BlockingIOError:
                break
            except BrokenPipeError:
                self.end()
            del self.outbox[:sent]
        self.watch(self.fd_out, selectors.EVENT_WRITE if self.outbox else 0, self.flush)
        if self.paused != (len(self.outbox) > BACKLOG):
            self.paused = not self.paused
            for job in self.jobs.values():
                for fd in job.pipes:
                    self.watch_pipe(job, fd)

    def watch(self, fd: int, events: int, callback: Callable[[], object] | None) -> None:
        known = fd in self.selector.get_map()
        if events and known:
            self.selector.modify(fd, events, callback)
        elif events:
            self.selector.register(fd, events, callback)
        elif known:
            self.selector.unregister(fd)

    def watch_pipe(self, job: SupervisorJob, fd: int) -> None:
        self.watch(fd, 0 if self.paused else selectors.EVENT_READ, lambda: self.read_pipe(job, fd))

    def receive(self) -> None:
        try:
            data = os.read(self.fd_in, 1 << 20)
        except BlockingIOError:
            return
        if not data:
            self.end()
        self.heard = time.monotonic()
        self.inbox += data
        while len(self.inbox) >= FRAME.size:
            n_header, n_payload = FRAME.unpack_from(self.inbox)
            if n_payload > MAX_PAYLOAD or n_header > MAX_PAYLOAD:
                self.end()
            end = FRAME.size + n_header + n_payload
            if len(self.inbox) < end:
                return
            raw = bytes(self.inbox[FRAME.size : FRAME.size + n_header])
            payload = bytes(self.inbox[FRAME.size + n_header : end])
            del self.inbox[:end]
            self.handle(raw, payload)

    def handle(self, raw: bytes, payload: bytes) -> None:
        try:
            header = json.loads(raw.decode())
        except (ValueError, RecursionError):
            header = None
        if not isinstance(header, dict):
            header = {}
        operation = getattr(self, "op_%s" % header.get("op"), self.unknown)
        if operation in (self.op_write, self.op_put, self.op_delete) and self.spare is not None:
            self.spare.stale = True
        self.answer(header, payload, operation)

    def unknown(self, header: Header, payload: bytes) -> Answer:
        raise Refused("unknown-op", "unknown operation %.200r" % header.get("op"))

    def answer(self, header: Header, payload: bytes, operation: Callable[[Header, bytes], Answer]) -> None:
        """Answer a request; an invalid request ends neither this process nor another request."""
        ident = header.get("id")
        try:
            answer = operation(header, payload)
        except Refused as error:
            self.send({"id": ident, "ev": "error", "code": error.code, "text": str(error)})
        except OSError as error:
            code = errno.errorcode.get(error.errno or 0, "EIO")
            self.send({"id": ident, "ev": "error", "code": code, "text": error.strerror or str(error)})
        except (KeyError, TypeError, ValueError) as error:
            self.send({"id": ident, "ev": "error", "code": "bad-request", "text": "%.500r" % error})
        except Exception as error:  # noqa: BLE001 - reported here and on standard error, which the host keeps
            traceback.print_exc()
            self.send({"id": ident, "ev": "error", "code": "internal", "text": "%.500r" % error})
        else:
            if answer is not None:
                self.send(dict(answer[0], id=ident, ev="ok"), answer[1])

    def end(self) -> NoReturn:
        """Kill everything and exit: the host is gone."""
        self.processes.kill()
        os._exit(0)

    # -- jobs --------------------------------------------------------------------------------------------

    def op_exec(self, header: Header, payload: bytes) -> None:
        if header.get("background"):
            waiting = sum(bool(queued.get("background")) for queued, _ in self.queue)
            if 2 * (1 + waiting + sum(job.background for job in self.jobs.values())) > self.most_jobs:
                raise Refused("exec-refused", "too many background commands at once")
        self.queue.append([header, payload])
        self.start_queued()

    def start_queued(self) -> None:
        while self.queue and len(self.jobs) < self.most_jobs:
            header, payload = self.queue.popleft()
            self.answer(header, payload, self.launch)

    def launch(self, header: Header, payload: bytes) -> None:
        argv, file = header["argv"], header.get("file")
        if not (isinstance(argv, list) and argv and all(isinstance(part, str) for part in argv)):
            raise Refused("exec", "no command to run")
        if header["id"] in self.jobs:
            raise Refused("bad-request", "a command with this id exists")
        for name in ("timeout", "grace"):
            float(header.get(name) or 0)  # fails before any process is started
        child = self.take_spare(header, payload)
        warm = child is not None
        if child is None:
            if file is not None:
                write_program(file, payload)
            self.last_number += 1
            child = spawn(header, self.root, self.last_number, file is None, self.processes)
        job = SupervisorJob(child, header, payload if child.fd_in is not None else b"")
        self.jobs[job.id] = job
        for fd in job.pipes:
            self.watch_pipe(job, fd)
        started = {"id": job.id, "ev": "started", "pid": job.pid, "warm": warm}
        self.send(started, later=not job.background)
        if job.input is not None:
            self.feed(job)
        if header.get("warm"):
            self.warm = header

    def feed(self, job: SupervisorJob) -> None:
        """Write as much standard input as the child accepts; close it at the end."""
        fd = job.input
        assert fd is not None
        try:
            while job.stdin:
                job.stdin = job.stdin[os.write(fd, job.stdin[: 1 << 16]) :]
        except BlockingIOError:
            self.watch(fd, selectors.EVENT_WRITE, lambda: self.feed(job))
            return
        except OSError:
            job.more = False  # the child closed its standard input: drop the rest
        self.watch(fd, 0, None)
        if not job.more:
            self.close_input(job)
        if job.fed is not None:
            self.send({"id": job.fed, "ev": "ok"})
            job.fed = None

    def close_input(self, job: SupervisorJob) -> None:
        if job.input is not None:
            self.watch(job.input, 0, None)
            os.close(job.input)
            job.input = None

    def op_input(self, header: Header, payload: bytes) -> Answer:
        for queued in self.queue:
            if queued[0]["id"] == header["job"]:
                queued[0]["more"] = not header.get("end")
                queued[1] += payload
                return {}, b""
        job = self.jobs.get(header["job"])
        if job is None or job.input is None:
            return {}, b""
        job.stdin = memoryview(bytes(job.stdin) + payload)
        job.more = not header.get("end")
        job.fed = header["id"]
        self.feed(job)
        return None

    def read_pipe(self, job: SupervisorJob, fd: int) -> bool:
        """Forward one chunk; return whether there may be more."""
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        number = job.pipes[fd]
        if not data:
            self.close_pipe(job, fd)
            return False
        job.total[number] += len(data)
        room = STREAM_CAP - job.sent
        if room > 0:
            job.sent += min(room, len(data))
            self.send({"id": job.id, "ev": "out", "fd": number}, data[:room])
        return True

    def close_pipe(self, job: SupervisorJob, fd: int) -> None:
        self.watch(fd, 0, None)
        del job.pipes[fd]
        os.close(fd)

    def op_kill(self, header: Header, payload: bytes) -> Answer:
        job = self.jobs.get(header["job"])
        if job is not None:
            self.kill_job(job)
        self.queue = deque(queued for queued in self.queue if queued[0]["id"] != header["job"])
        return {}, b""

    def op_alive(self, header: Header, payload: bytes) -> Answer:
        return None

    def op_ping(self, header: Header, payload: bytes) -> Answer:
        return {}, b""

    def kill_job(self, job: SupervisorJob) -> bool:
        """Send SIGKILL to all processes of the job, in whatever session; return whether any were left."""
        if not self.jobs.keys() - {job.id}:
            self.processes.kill()
            return self.collect()
        others = {other.number for other in self.jobs.values() if other is not job}
        found = False
        self.collect()
        for pid in self.processes.pids():
            try:
                # A process without another job's mark belongs to this job or an earlier one, or has changed
                # its mark.
                if mark_of(pid) in others:
                    continue
                fields = fields_of(pid)
                if not is_dead(fields):
                    found = True
                    os.kill(pid, signal.SIGKILL)
                elif int(fields[1]) == os.getpid():
                    # It has ended since `collect`. What it started last may be missing from the list.
                    found = True
            except OSError:
                continue  # its parent, which is not this process, has reaped it meanwhile
        self.collect()
        return found

    def reap(self) -> None:
        """Reap every dead process; finish the jobs whose main process is among them."""
        self.collect()
        for job in list(self.jobs.values()):
            if job.status is not None:
                self.finish(job, job.status)
        self.start_queued()

    def collect(self) -> bool:
        """Reap every dead process; return whether any other process is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            for job in self.jobs.values():
                if job.pid == pid:
                    job.status = status

    def finish(self, job: SupervisorJob, status: int) -> None:
        """The main process has ended: kill the job's other processes, drain the pipes, report the result."""
        patience = time.monotonic() + SETTLE
        # Killed processes do not disappear at once: the next command could still see hundreds of dying ones.
        while self.kill_job(job):
            if time.monotonic() > patience:
                self.processes.kill()  # better to lose the other commands than to keep this job's processes
                break
            if time.monotonic() > patience - SETTLE * 3 / 4:
                # The job forks faster than this loop finds its processes. While everything is stopped, it
                # cannot.
                self.processes.stop()
                self.kill_job(job)
                self.processes.signal(signal.SIGCONT)
            time.sleep(0.001)
        for fd in list(job.pipes):
            while self.read_pipe(job, fd):
                pass
            if fd in job.pipes:
                self.close_pipe(job, fd)
        self.close_input(job)
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        del self.jobs[job.id]
        after = oom_kills()
        self.send(
            {
                "id": job.id,
                "ev": "exit",
                "exit": code,
                "timed_out": job.timed_out,
                "oom": after is not None and job.oom_before is not None and after > job.oom_before,
                "total": [job.total[1], job.total[2]],
                "seconds": round(time.monotonic() - job.started, 6),
            }
        )

    def check_clocks(self) -> float:
        """End jobs that are over their time; return the seconds until the next deadline."""
        now = time.monotonic()
        wait = LEASE - (now - self.heard)
        if wait < 0:
            self.end()
        for job in list(self.jobs.values()):
            if job.deadline is None:
                continue
            if now >= job.deadline and not job.timed_out:
                job.timed_out = True
                job.deadline = now + job.grace
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(job.pid, signal.SIGTERM)
            elif now >= job.deadline:
                self.kill_job(job)
                job.deadline = now + 0.05  # repeat until the kernel has ended it
            wait = min(wait, max(0.0, job.deadline - now))
        if self.warm is not None and not self.jobs and (self.spare is None or self.spare.stale):
            if now >= self.heard + QUIET:
                self.start_spare()
            else:
                wait = min(wait, self.heard + QUIET - now)
        return wait

    # -- an interpreter ahead of its program -----------------------------------------------------------------

    def start_spare(self) -> None:
        """Start what the last request of this kind would start, and let it wait (see `Spare`)."""
        header, self.warm = self.warm, None
        self.drop_spare()
        if header is None or customised(header["env"]):
            return
        spare = Spare(header)
        try:
            os.rename(spare.file, spare.last)
            os.mkfifo(spare.file, 0o600)
            self.last_number += 1
            spare.child = spawn(header, self.root, self.last_number, False, self.processes)
        except (OSError, Refused):
            spare.withdraw()  # the next command then starts in the usual way
        else:
            self.spare, self.warm = spare, header

    def take_spare(self, header: Header, payload: bytes) -> Child | None:
        """Return the spare interpreter as this request's process, or None.

        A spare that does not fit is killed.
        """
        spare = self.spare
        if spare is None:
            return None
        child = spare.child
        if child is not None and spare.suits(header, payload):
            try:
                child.fd_in = os.open(spare.file, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
                write_program(spare.file, payload)
                os.unlink(spare.last)
            except (OSError, Refused):
                pass  # not waiting yet, or ended, or the disk is full: the usual way reports errors
            else:
                self.spare = None
                return child
        self.drop_spare()
        return None

    def drop_spare(self) -> None:
        """Kill the spare interpreter; call this only while no job runs."""
        spare, self.spare = self.spare, None
        if spare is None:
            return
        patience = time.monotonic() + SETTLE
        self.processes.kill()
        while self.collect() and time.monotonic() < patience:
            time.sleep(0.001)
        spare.withdraw()

    # -- files -------------------------------------------------------------------------------------------

    def below_root(self, path: str) -> str:
        """Return a file's path relative to the root; raise Refused if it is not a file's path."""
        inner = path[len(self.root) + 1 :] if path.startswith(self.root + "/") else path
        if inner.startswith("/"):
            raise Refused("escape", "%s is outside the work tree" % path)
        if "\0" in path or inner.rstrip("/").rpartition("/")[2] in ("", ".", ".."):
            raise Refused("escape", "not a file path: %r" % path)
        return inner.rstrip("/")

    def parent_of(self, path: str, create: bool = False) -> tuple[int, str]:
        """Open the folder of `path`, through links that stay in the tree.

        Returns:
            The folder's descriptor, and the file's name.
        """
        folder, _, name = self.below_root(path).rpartition("/")
        try:
            if self.openat2:
                try:
                    return openat2(self.root_fd, folder or ".", os.O_RDONLY | os.O_DIRECTORY), name
                except OSError as error:
                    if error.errno not in BY_WALK:
                        raise
            return self.walk(folder, create, path), name
        except NotADirectoryError:
            raise Refused("ENOTDIR", "%s: a part of this path is a file, not a folder" % path) from None

    def walk(self, folder: str, create: bool, path: str) -> int:
        """Open the folder of a path component by component, without following links below the root.

        Links inside the tree are resolved first. A link that appears afterwards is refused, so not even a
        race reaches a file outside (such as this process's own descriptors under /proc).
        """
        real = os.path.realpath(os.path.join(self.root, folder))
        if real != self.root and not real.startswith(self.root + "/"):
            raise Refused("escape", "%s is outside the work tree" % path)
        if create:
            refuse_git(real, path)
        fd = os.open(self.root, O_DIR)
        for part in filter(None, real[len(self.root) :].split("/")):
            with closing(fd) as above:
                try:
                    fd = os.open(part, O_DIR, dir_fd=above)
                except FileNotFoundError:
                    if not create:
                        raise
                    os.mkdir(part, 0o755, dir_fd=above)
                    fd = os.open(part, O_DIR, dir_fd=above)
        return fd

    def open_file(self, path: str, follow: bool = True) -> int:
        """Open a file for reading; with `follow`, the last component may be a link within the tree."""
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
        if self.openat2:
            try:
                return openat2(self.root_fd, self.below_root(path), flags)
            except OSError as error:
                if error.errno not in BY_WALK:
                    raise
        folder, name = self.parent_of(self.resolve_link(path) if follow else path)
        with closing(folder):
            return os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)

    def resolve_link(self, path: str) -> str:
        """Return the target of a link inside the tree; raise Refused if it leads outside."""
        full = os.path.join(self.root, path.rstrip("/"))
        if not os.path.islink(full):
            return path
        real = os.path.realpath(full)
        if not real.startswith(self.root + "/"):
            raise Refused("escape", "%s is a link that leads outside the work tree" % path)
        return real

    def write_file(self, path: str, content: bytes, mode: int | None = None) -> None:
        """Write a temporary file, then rename it: a full disk leaves the old content intact."""
        folder, name = self.parent_of(path, create=True)
        with closing(folder):
            refuse_git("%s/%s" % (path_of(folder), name), path)
            with contextlib.suppress(FileNotFoundError):
                old = os.stat(name, dir_fd=folder, follow_symlinks=False)
                real = self.resolve_link(path) if stat.S_ISLNK(old.st_mode) else path
                if real != path:
                    return self.write_file(real, content, mode)
                if not stat.S_ISREG(old.st_mode):
                    raise Refused("special", "%s is not a regular file" % path)
                mode = stat.S_IMODE(old.st_mode) if mode is None else mode
            temporary = ".m3agent-%d.tmp" % (time.monotonic() * 1e9)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with closing(os.open(temporary, flags, 0o600, dir_fd=folder)) as fd:
                try:
                    write_all(fd, memoryview(content))
                    os.fchmod(fd, 0o644 if mode is None else mode)
                    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                except BaseException:
                    os.unlink(temporary, dir_fd=folder)
                    raise

    def op_write(self, header: Header, payload: bytes) -> Answer:
        self.write_file(header["path"], payload, header.get("mode"))
        return {}, b""

    def op_read(self, header: Header, payload: bytes) -> Answer:
        path = header["path"]
        with closing(self.open_file(path)) as fd:
            refuse_git(path_of(fd), path)
            info = os.fstat(fd)
            if stat.S_ISDIR(info.st_mode):
                raise Refused("EISDIR", "%s is a folder" % path)
            if not stat.S_ISREG(info.st_mode):
                raise Refused("special", "%s is not a regular file" % path)
            limit = min(int(header.get("limit", MAX_PAYLOAD)), MAX_PAYLOAD)
            os.lseek(fd, int(header.get("offset", 0)), os.SEEK_SET)
            with os.fdopen(os.dup(fd), "rb") as f:
                return {"size": info.st_size}, f.read(max(0, limit))

    def op_put(self, header: Header, payload: bytes) -> Answer:
        """Write files and record them as known: a scan reports only differences from them.

        Their paths are taken literally: a link or file in the place of a folder is removed. With `into`, they
        go to that folder instead of the work tree, and are not scanned. With `alone`, no other program runs that could
        change them within the clock's next ticks, so the next scan need not read them.
        """
        into = header.get("into")
        sign = settled if header.get("alone") else signature
        view = memoryview(payload)
        opened = {"": os.open(into or self.root, O_DIR)}
        try:
            for path, mode, size, sha in header["files"]:
                content, view = view[:size], view[size:]
                above, _, name = path.rpartition("/")
                if name in ("", ".", ".."):
                    raise Refused("escape", "not a file path: %r" % path)
                if len(opened) > 200:  # below any limit of open files
                    for folder in [f for f in opened if f]:
                        os.close(opened.pop(folder))
                full = os.path.join(into or self.root, path)
                info = lay_file(self.folder_for(above, opened), name, mode, content, full)
                if into is None:
                    self.seen[path] = (sign(info), git_mode(info), sha, size)
        finally:
            for fd in opened.values():
                os.close(fd)
        return {}, b""

    def folder_for(self, path: str, opened: dict[str, int]) -> int:
        """Return a descriptor of a folder below `opened[""]`; create it if it is missing; follow no link."""
        if path in opened:
            return opened[path]
        above, _, name = path.rpartition("/")
        if name in ("", ".", ".."):
            raise Refused("escape", "not a folder path: %r" % path)
        parent = self.folder_for(above, opened)
        try:
            fd = os.open(name, O_DIR, dir_fd=parent)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                os.unlink(name, dir_fd=parent)
            elif error.errno != errno.ENOENT:
                raise
            os.mkdir(name, 0o755, dir_fd=parent)
            fd = os.open(name, O_DIR, dir_fd=parent)
        opened[path] = fd
        return fd

    def op_delete(self, header: Header, payload: bytes) -> Answer:
        for path in header["paths"]:
            with contextlib.suppress(FileNotFoundError):
                folder, name = self.parent_of(path)
                with closing(folder):
                    os.unlink(name, dir_fd=folder)
            self.seen.pop(path, None)
        return {}, b""

    def op_scan(self, header: Header, payload: bytes) -> Answer:
        skip: set[str] = set(header.get("skip") or ())
        most = int(header["most"])
        now: dict[str, tuple[Any, int, str | None, int]] = {}
        changed = []
        for path, info in self.files_of_tree(skip):
            known = self.seen.get(path)
            if known is not None and known[0] == signature(info):
                now[path] = known
                continue
            try:
                sha, size = self.hash_file(path, info, most)
            except OSError:
                continue
            now[path] = (signature(info), git_mode(info), sha, size)
            if known is None or known[1:] != now[path][1:]:
                changed.append([path, git_mode(info), sha, size])
        deleted = [path for path in self.seen if path not in now]
        self.seen = now
        return {"changed": changed, "deleted": deleted}, b""

    def files_of_tree(self, skip: set[str]) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the path and the status of each file and link. What vanishes or is not readable counts as deleted."""
        stack = [""]
        while stack:
            prefix = stack.pop()
            try:
                entries = list(os.scandir(os.path.join(self.root, prefix)))
            except OSError:
                continue
            for entry in entries:
                path = prefix + entry.name
                try:
                    info = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                if stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode):
                    yield path, info
                elif stat.S_ISDIR(info.st_mode) and not skip.intersection((entry.name, "/" + path)):
                    stack.append(path + "/")

    def op_touched(self, header: Header, payload: bytes) -> Answer:
        """List the recorded files that a program wrote or removed since then, even if it restored their content."""
        touched = []
        for path, known in self.seen.items():
            try:
                now = settled(os.lstat(os.path.join(self.root, path)))
            except OSError:
                now = ()
            if len(known[0]) > 1 and known[0] != now:  # a shorter signature says nothing
                touched.append(path)
        return {"paths": touched}, b""

    def hash_file(self, path: str, info: os.stat_result, most: int) -> tuple[str | None, int]:
        """Return git's id of the file's content; None for a file too large for a patch."""
        if stat.S_ISLNK(info.st_mode):
            target = os.fsencode(os.readlink(os.path.join(self.root, path)))
            return blob_id(target), len(target)
        if info.st_size > most:
            return None, info.st_size
        with os.fdopen(self.open_file(path, follow=False), "rb") as f:
            content = f.read(most + 1)
        return blob_id(content), len(content)

    # -- network -----------------------------------------------------------------------------------------

    def op_listen(self, header: Header, payload: bytes) -> Answer:
        if self.tunnel is not None:
            raise Refused("EBUSY", "a tunnel exists already")
        self.tunnel = Tunnel(self, header["id"], header["port"], header["most"], header["window"])
        return {}, b""

    def op_tunnel(self, header: Header, payload: bytes) -> Answer:
        if self.tunnel is not None:
            self.tunnel.order(header, payload)
        return None

    # -- the loop ----------------------------------------------------------------------------------------

    def run(self) -> NoReturn:
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        quiet = {"warn_on_full_buffer": False} if sys.version_info >= (3, 7) else {}
        signal.set_wakeup_fd(wake_write, **quiet)
        os.set_blocking(self.fd_in, False)
        os.set_blocking(self.fd_out, False)
        self.selector.register(self.fd_in, selectors.EVENT_READ, self.receive)
        self.selector.register(wake_read, selectors.EVENT_READ, lambda: os.read(wake_read, 4096))
        hello = {"ev": "hello", "python": sys.version.split()[0], "root": self.root}
        self.send(dict(hello, seccomp=self.filtered, openat2=self.openat2))
        faults = 0
        while True:
            try:
                wait = self.check_clocks()
                events = self.selector.select(min(wait, LATER) if self.outbox else wait)
                if not events and self.outbox:
                    self.flush()
                for key, _ in events:
                    current = self.selector.get_map().get(key.fd)
                    if current is not None and current.data == key.data:  # not closed or reused meanwhile
                        key.data()
                self.reap()
            except Exception:  # an error in one command must not end the others; the host keeps the traceback
                faults += 1
                if faults > 100:
                    raise
                traceback.print_exc()


class Link:
    """One connection of the tunnel; `sock` is None after it is closed."""

    def __init__(self, ident: int, sock: socket.socket, window: int) -> None:
        self.id = ident
        self.sock: socket.socket | None = sock
        self.credit = window  # bytes that the host still accepts
        self.unsent = bytearray()  # data from the host that the program has not read yet
        self.taken = 0  # bytes that the program has read since the last `credit`
        self.program_ended = False
        self.host_ended = False
        self.closing = False


class Tunnel:
    """The sandbox's only network: a port of its loopback.

    The host serves its connections, over the one stream. In each direction of a connection, at most `window`
    bytes are sent before the receiver has forwarded them and returned their `credit`. So a slow connection
    neither fills memory nor blocks others. A connection counts towards `most` until the host has closed it
    too; further connections wait in the listener's queue.
    """

    def __init__(self, supervisor: Supervisor, ident: int, port: int, most: int, window: int) -> None:
        import socket  # imported here because only a sandbox with a network needs it

        self.supervisor = supervisor
        self.id = ident
        self.most = most
        self.window = window
        self.links: dict[int, Link] = {}
        self.opened = 0
        self.shut_write = socket.SHUT_WR
        self.listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", port))
        self.listener.listen(128)
        self.listener.setblocking(False)
        self.watch_listener()

    def watch_listener(self) -> None:
        events = selectors.EVENT_READ if len(self.links) < self.most else 0
        self.supervisor.watch(self.listener.fileno(), events, self.accept)

    def accept(self) -> None:
        try:
            sock, _ = self.listener.accept()
        except OSError:
            return  # the connection is gone already
        sock.setblocking(False)
        self.opened += 1
        link = self.links[self.opened] = Link(self.opened, sock, self.window)
        self.tell(link, "opened")
        self.watch_listener()
        self.watch(link)

    def tell(self, link: Link, event: str, payload: bytes = b"", **fields: int) -> None:
        self.supervisor.send(dict(fields, id=self.id, ev=event, conn=link.id), payload)

    def watch(self, link: Link) -> None:
        if link.sock is not None:
            events = selectors.EVENT_READ if link.credit > 0 and not link.program_ended else 0
            events |= selectors.EVENT_WRITE if link.unsent else 0
            self.supervisor.watch(link.sock.fileno(), events, lambda: self.move(link))

    def move(self, link: Link) -> None:
        """Transfer what is possible, in both directions."""
        try:
            self.pull(link)
            self.push(link)
        except OSError:
            self.shut(link)  # the program has reset the connection
        self.watch(link)

    def pull(self, link: Link) -> None:
        if link.sock is None or link.credit <= 0 or link.program_ended:
            return
        try:
            data = link.sock.recv(min(link.credit, 1 << 16))
        except BlockingIOError:
            return
        link.credit -= len(data)
        link.program_ended = not data
        self.tell(link, "data" if data else "eof", data)

    def push(self, link: Link) -> None:
        if link.sock is None:
            return
        while link.unsent:
            try:
                sent = link.sock.send(link.unsent)
            except BlockingIOError:
                break
            del link.unsent[:sent]
            link.taken += sent
        if link.taken >= self.window // 4:
            self.tell(link, "credit", n=link.taken)
            link.taken = 0
        if not link.unsent and link.closing:
            self.shut(link)
        elif not link.unsent and link.host_ended:
            link.sock.shutdown(self.shut_write)
            link.host_ended = False  # do it only once

    def shut(self, link: Link) -> None:
        if link.sock is not None:
            self.supervisor.watch(link.sock.fileno(), 0, None)
            link.sock.close()
            link.sock = None
            link.unsent.clear()
            self.tell(link, "closed")
        if link.closing:
            self.links.pop(link.id, None)
            self.watch_listener()

    def order(self, header: Header, payload: bytes) -> None:
        """Process a frame of the host about a connection; ignore it if the connection is gone."""
        link = self.links.get(header["conn"])
        if link is None:
            return
        what = header["do"]
        if what == "data" and link.sock is not None:
            link.unsent += payload
        elif what == "eof":
            link.host_ended = True
        elif what == "credit":
            link.credit += header["n"]
        elif what == "close":
            link.closing = True
            if header["abort"] or link.sock is None:
                self.shut(link)
        self.move(link)


def lay_file(folder: int, name: str, mode: int, content: memoryview, full: str) -> os.stat_result:
    """Create a file or link with git's `mode` in a folder, and return its status.

    Anything with that name is replaced. `full` is the whole path, which is needed only to remove a folder.
    """
    try:
        if stat.S_ISLNK(mode):
            os.symlink(bytes(content), name, dir_fd=folder)
            return os.stat(name, dir_fd=folder, follow_symlinks=False)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, stat.S_IMODE(mode), dir_fd=folder)
    except FileExistsError:
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            import shutil  # imported here because few sandboxes need it

            shutil.rmtree(full)
        else:
            os.unlink(name, dir_fd=folder)
        return lay_file(folder, name, mode, content, full)
    with closing(fd):
        write_all(fd, content)
        return os.fstat(fd)


def write_all(fd: int, content: memoryview) -> None:
    while content:
        content = content[os.write(fd, content) :]


RESOLVE_NO_MAGICLINKS, RESOLVE_BENEATH = 0x02, 0x08
OPENAT2 = 437  # on every architecture
# Errors after which `walk` is tried. It creates missing folders, follows absolute links into the tree, and
# distinguishes a path that leads out from one that does not exist.
BY_WALK = (errno.ENOENT, errno.ENOTDIR, errno.EXDEV, errno.ELOOP)


def openat2(folder: int, path: str, flags: int) -> int:
    """Open a path below a folder; no link and no `..` in it can lead out, even if files change meanwhile.

    Raises:
        OSError: EXDEV if one leads out (any absolute link counts), ELOOP for a link of /proc; otherwise as
            for `open`.
    """
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, 0, RESOLVE_NO_MAGICLINKS | RESOLVE_BENEATH)
    name = os.fsencode(path)
    fd = -1
    for _ in range(100):  # EAGAIN: a file was renamed meanwhile
        fd = LIBC.syscall(ctypes.c_long(OPENAT2), folder, name, how, ctypes.c_size_t(len(how)))
        if fd >= 0 or ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR):
            break
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return fd


def path_of(fd: int) -> str:
    """Return the path of an open file or folder, without links."""
    return os.readlink("/proc/self/fd/%d" % fd)


def refuse_git(real: str, path: str) -> None:
    """Raise Refused if `real`, where the links of `path` led, is git's own folder or inside it."""
    if ".git" in real.split("/"):
        raise Refused("escape", "%s: git's own folder cannot be touched" % path)


def has_openat2(folder: int) -> bool:
    """Return whether the kernel has openat2 and an engine's filter permits it."""
    with contextlib.suppress(OSError):
        os.close(openat2(folder, ".", os.O_RDONLY | os.O_DIRECTORY))
        return True
    return False


def signature(info: os.stat_result) -> tuple[float, ...]:
    """Return values that change with a file's content: a program cannot set the change time.

    A file that changed within the clock's last ticks may change again unnoticed, so its signature equals no
    other.
    """
    if time.time() - info.st_ctime < TICK:
        return (time.monotonic(),)
    return settled(info)


def settled(info: os.stat_result) -> tuple[float, ...]:
    """Return the signature of a file that nothing can change within the clock's last ticks."""
    return (info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_mode)


def git_mode(info: os.stat_result) -> int:
    if stat.S_ISLNK(info.st_mode):
        return 0o120000
    return 0o100755 if info.st_mode & 0o100 else 0o100644


def blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()  # git's object id


# -- what no program in the sandbox may ask of the kernel --------------------------------------------------

ARCHITECTURES = (("x86_64", 0xC000003E), ("aarch64", 0xC00000B7))  # linux/audit.h
X32 = 0x40000000  # x86_64's second set of calls begins here; all of them are refused

# Each call's number on x86_64 and on aarch64 (asm/unistd_64.h, asm-generic/unistd.h); -1: does not exist.
REFUSED = {
    "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bpf": (321, 280), "chroot": (161, 51),
    "clock_adjtime": (305, 266), "clock_settime": (227, 112), "delete_module": (176, 106),
    "fanotify_init": (300, 262), "finit_module": (313, 273), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fsopen": (430, 430), "fspick": (433, 433), "init_module": (175, 105), "ioperm": (173, -1),
    "iopl": (172, -1), "kcmp": (312, 272), "kexec_file_load": (320, 294), "kexec_load": (246, 104),
    "keyctl": (250, 219), "lookup_dcookie": (212, 18), "modify_ldt": (154, -1), "mount": (165, 40),
    "mount_setattr": (442, 442), "move_mount": (429, 429), "open_by_handle_at": (304, 265),
    "open_tree": (428, 428), "open_tree_attr": (467, 467), "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438), "pivot_root": (155, 41), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "ptrace": (101, 117), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "reboot": (169, 142), "request_key": (249, 218), "setdomainname": (171, 162), "sethostname": (170, 161),
    "setns": (308, 268), "settimeofday": (164, 170), "swapoff": (168, 225), "swapon": (167, 224),
    "syslog": (103, 116), "umount2": (166, 39), "uselib": (134, -1), "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}  # fmt: skip
# Calls that fail as if the kernel lacked them. Libraries then use another way: threads, for example, use
# clone instead of clone3, and the filter can see clone's flags. Message queues outlive their creators and
# would fill the sandbox's memory.
MISSING = {
    "clone3": (435, 435),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "msgget": (68, 186),
}

UNIX, INET, INET6, NETLINK = 1, 2, 10, 16
KINDS = [kind | flags for kind in (1, 2) for flags in (0, 0x800, 0x80000, 0x80800)]  # SOCK_STREAM, SOCK_DGRAM
NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
NEWTIME = 0x80  # for `clone`, this bit is part of a signal's number
TERMINAL = [0x5412, 0x541C, 0x541D, 0x5423]  # TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD
HIGH = 8  # added to an argument's number: selects its upper 32 bits


def conditional(
    protected: tuple[int, ...],
) -> list[tuple[tuple[int, int], list[tuple[int, str, list[int]]], int]]:
    """Return calls that are refused for certain arguments: (numbers, [(argument, test, values)], errno).

    A call is refused if all tests hold. `protected` are the processes that no command may affect if there is no
    namespace; process 1 of a namespace needs no protection against signals.
    """
    out_of_reach = list(protected) or [1]
    socket, setpriority, ioprio_set, prlimit = (41, 198), (141, 140), (251, 30), (302, 261)
    rules = [
        (socket, [(0, "not in", [UNIX, INET, INET6, NETLINK])], errno.EAFNOSUPPORT),
        (socket, [(0, "in", [INET, INET6]), (1, "not in", KINDS)], errno.EPERM),
        (socket, [(0, "in", [INET, INET6]), (2, "not in", [0, 6, 17])], errno.EPROTONOSUPPORT),  # TCP, UDP
        (socket, [(0, "in", [NETLINK]), (2, "not in", [0])], errno.EPROTONOSUPPORT),  # routes and addresses
        ((53, 199), [(0, "not in", [UNIX])], errno.EAFNOSUPPORT),  # socketpair
        ((56, 220), [(0, "bits", [NAMESPACES])], errno.EPERM),  # clone
        ((272, 97), [(0, "bits", [NAMESPACES | NEWTIME])], errno.EPERM),  # unshare
        ((16, 29), [(1, "in", TERMINAL)], errno.EPERM),  # ioctl
        ((135, 92), [(0, "not in", [0, 0xFFFFFFFF])], errno.EPERM),  # personality
        # objects that outlive their creator stay small: shmget in bytes, semget in semaphores
        ((29, 194), [(1, "above", [1 << 16])], errno.EINVAL),
        ((29, 194), [(1 + HIGH, "not in", [0])], errno.EINVAL),
        ((64, 190), [(1, "above", [64])], errno.EINVAL),
        # one user owns all processes, so any process could starve or end process 1
        (prlimit, [(0, "in", out_of_reach), (2, "not in", [0])], errno.EPERM),
        (prlimit, [(0, "in", out_of_reach), (2 + HIGH, "not in", [0])], errno.EPERM),
        (setpriority, [(0, "in", [0, 1]), (1, "in", out_of_reach)], errno.EPERM),
        (setpriority, [(0, "in", [2])], errno.EPERM),  # all of a user's processes
        (ioprio_set, [(0, "in", [1, 2]), (1, "in", out_of_reach)], errno.EPERM),
        (ioprio_set, [(0, "in", [3])], errno.EPERM),
    ]
    # sched_setaffinity, _setattr, _setparam, _setscheduler, migrate_pages, move_pages
    others = [(203, 122), (314, 274), (142, 118), (144, 119), (256, 238), (279, 239)]
    if protected:
        # tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_open
        others += [(200, 130), (234, 131), (129, 138), (297, 240), (434, 434)]
        everybody, groups = [-1], [-os.getpgid(pid) for pid in protected]
        targets = [value & 0xFFFFFFFF for value in (*protected, *everybody, *groups)]
        rules.append(((62, 129), [(0, "in", sorted(set(targets)))], errno.EPERM))  # kill
        rules.append(((424, 424), [], errno.ENOSYS))  # pidfd_send_signal, which also takes a folder of /proc
    return rules + [(numbers, [(0, "in", out_of_reach)], errno.EPERM) for numbers in others]


def filter_program(machine: str, protected: tuple[int, ...] = ()) -> bytes:
    """Return the filter for a machine, by its name in `os.uname`, in the kernel's classic BPF.

    Raises:
        KeyError: The machine is unknown.
    """
    architecture = dict(ARCHITECTURES)[machine]
    column = ARCHITECTURES.index((machine, architecture))
    load, equal, above, bits, jump, give = 0x20, 0x15, 0x25, 0x45, 0x05, 0x06
    refuse, allow, kill = 0x00050000, 0x7FFF0000, 0x80000000  # SECCOMP_RET_ERRNO, _ALLOW, _KILL_PROCESS
    code: list[tuple[int, int, int, int]] = [
        (load, 0, 0, 4),  # the architecture; on another one the numbers mean other calls
        (equal, 1, 0, architecture),
        (give, 0, 0, kill),
        (load, 0, 0, 0),  # the call's number
        (above, 0, 1, X32 - 1),
        (give, 0, 0, refuse | errno.ENOSYS),
    ]
    for calls, error in ((REFUSED, errno.EPERM), (MISSING, errno.ENOSYS)):
        for numbers in calls.values():
            if numbers[column] >= 0:
                code += [(equal, 0, 1, numbers[column]), (give, 0, 0, refuse | error)]
    for numbers, tests, error in conditional(protected):
        rule = [(give, 0, 0, refuse | error)]
        for argument, test, values in reversed(tests):
            beyond = len(rule)  # steps to the end of the rule, after its verdict
            if test == "not in":
                step = [(equal, beyond + len(values) - n - 1, 0, value) for n, value in enumerate(values)]
            elif test == "in":
                step = [(equal, len(values) - n, 0, value) for n, value in enumerate(values)]
                step.append((jump, 0, 0, beyond))
            else:
                step = [(above if test == "above" else bits, 0, beyond, values[0])]
            offset = 16 + 8 * (argument % HIGH) + 4 * (argument // HIGH)  # in seccomp_data, little-endian
            rule = [(load, 0, 0, offset), *step, *rule]
        code += [(load, 0, 0, 0), (equal, 0, len(rule), numbers[column]), *rule]
    code.append((give, 0, 0, allow))
    return b"".join(struct.pack("=HBBI", *step) for step in code)


def forbid(protected: tuple[int, ...]) -> bool:
    """Install the filter on this process and all its future children; return False on an unknown machine."""
    try:
        program = filter_program(os.uname().machine, protected)
    except KeyError:
        return False
    steps = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(steps))
    zero, two = ctypes.c_ulong(0), ctypes.c_ulong(2)
    LIBC.prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero)
    LIBC.prctl(PR_SET_SECCOMP, two, header, zero, zero)
    return bool(LIBC.prctl(PR_GET_SECCOMP, zero, zero, zero, zero) == 2)


def remove(folder: str) -> None:
    """Delete a folder, whatever permissions the programs in it have set."""
    import shutil  # imported here because few sandboxes need it

    for _ in range(3):
        for path, below, _ in os.walk(folder):  # which enters the folders below only afterwards
            for inner in [os.path.join(path, name) for name in below]:
                if not os.path.islink(inner):
                    os.chmod(inner, 0o700)
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            break


def guard(folder: str) -> int:
    """Continue in a child; this process waits for it, ends what it leaves behind, and deletes the sandbox's folder.

    Without a namespace, the supervisor's death ends nothing by itself. On SIGTERM, the supervisor is killed.

    Returns:
        In the child, the id of the waiting process.
    """
    processes, waiting = Descendants(), os.getpid()
    child = os.fork()
    if child == 0:
        return waiting
    null_streams()  # so that the host sees the end of the supervisor
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    while os.waitpid(-1, 0)[0] != child:
        pass
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    patience = time.monotonic() + 5 * SETTLE
    while has_children() and time.monotonic() < patience:
        processes.kill()
        while has_children() and os.waitpid(-1, os.WNOHANG)[0]:
            pass
    remove(folder)
    os._exit(0)


def main(root: str, folder: str = "", *protected: str) -> NoReturn:
    """Run the supervisor.

    Args:
        root: The work tree.
        folder: The sandbox's folder if there is no namespace; the supervisor deletes it at its end.
        protected: Processes that no command may signal if there is no namespace.
    """
    if os.getpid() != 1 and not folder:
        sys.exit("the supervisor runs only as process 1 of a sandbox")
    set_dumpable(0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own handler would make process 1 killable by it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(0o022)
    waiting = guard(folder) if folder else 0
    fd_in, fd_out = os.dup(0), os.dup(1)  # dup makes them close-on-exec: no child ever holds them
    null_streams()
    if folder:
        # Root may trace other users' processes. With that right, commands could read the variables of m3agent in /proc.
        LIBC.prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE, 0, 0, 0)
    supervisor = Supervisor(root, fd_in, fd_out, processes=Descendants() if folder else None)
    supervisor.filtered = forbid((waiting, os.getpid(), *map(int, protected)) if folder else ())
    supervisor.run()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Process 1 of every sandbox: runs commands, moves files, kills whole process trees.

Standard library only, Python 3.8+, one file: its source is the first thing sent over the stream (see `BOOT` in
`m3agent.sandbox.channel`), so it needs nothing from the image but an interpreter, and there is no file in the
sandbox to tamper with.

Protocol (version 1), both ways over standard input and output: `>II` lengths of header and payload, a JSON
header, raw payload bytes. Requests carry `op` and `id`; answers carry the same `id`.

==========  =======================================================  ======================================
op          request fields (payload)                                 answers
==========  =======================================================  ======================================
exec        argv, cwd, env, timeout, grace, background, limits       started{pid}; out{fd} (payload: bytes);
            (payload: the child's standard input)                    exit{exit, timed_out, oom, total, seconds}
kill        job                                                      ok
write       path, mode (payload: content)                            ok
read        path, offset, limit                                      ok{size} (payload: content)
put         files: [[path, mode, size], ...] (payload: contents)     ok
delete      paths                                                    ok
scan        skip (folder names), most (bytes hashed in one file)     ok{changed: [[path, mode, sha, size]], deleted}
ping                                                                 ok
alive                                                                nothing
==========  =======================================================  ======================================

A request that cannot be done is answered `error{code, text}`. When standard input ends, everything is killed; so
it is when the host has not been heard of for `LEASE` seconds, since an engine that is killed leaves its containers
running with their input open.

Why process 1: the kernel drops SIGKILL, SIGTERM and SIGSTOP sent to it from inside (so their default actions
must stay in place: a handler would make it killable), `kill(-1)` from it reaches every process there is, and
its death ends the namespace. It is not dumpable, so tool code can neither trace it nor open its descriptors.
"""

from __future__ import annotations

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
import subprocess
import sys
import time
from typing import Any, Callable, Dict, NoReturn, Optional, Tuple

Header = Dict[str, Any]
Answer = Optional[Tuple[Header, bytes]]

PROTOCOL = 1
FRAME = struct.Struct(">II")
MAX_PAYLOAD = 256 << 20
STREAM_CAP = 50 << 20  # bytes of one job's output sent to the host; the rest is counted
BACKLOG = 4 << 20  # unsent bytes above which the jobs' pipes are not read: the host sets the pace
LEASE = 600.0  # seconds of silence after which the host is taken for dead; it says `alive` ten times as often
SETTLE = 2.0  # seconds for killed processes to be gone before a command's end is reported
PR_SET_DUMPABLE = 4
OOM_SCORE_ADJ = b"700"  # the kernel's out-of-memory killer takes a job before the supervisor
O_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(Exception):
    """A request that cannot be done: code for the program, text for people."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def set_dumpable(value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, value, 0, 0, 0)


def oom_kills() -> int | None:
    """Count of out-of-memory kills in this control group, or None where it cannot be read."""
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        try:
            with open(path) as f:
                for line in f:
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        except (OSError, ValueError):
            continue
    return None


class Job:
    """One command: its process, its pipes, its clock."""

    def __init__(self, ident: int, proc: subprocess.Popen[bytes], header: Header, stdin: bytes) -> None:
        self.id = ident
        assert proc.stdin and proc.stdout and proc.stderr
        self.proc = proc
        self.pid = proc.pid
        self.input = proc.stdin
        self.outputs = {1: proc.stdout, 2: proc.stderr}
        self.stdin = memoryview(stdin)
        self.background = bool(header.get("background"))
        self.grace = float(header.get("grace", 1.0))
        self.started = time.monotonic()
        timeout = header.get("timeout")
        self.deadline = None if timeout is None else self.started + float(timeout)
        self.timed_out = False
        self.killed = False
        self.status: int | None = None
        self.sent = 0
        self.total = {1: 0, 2: 0}
        self.pipes: dict[int, int] = {}  # descriptor -> 1 or 2
        self.oom_before = oom_kills()


class Supervisor:
    """The event loop: requests in, jobs and files, answers out."""

    def __init__(self, root: str, fd_in: int, fd_out: int) -> None:
        self.root = os.path.realpath(root)
        self.fd_in = fd_in
        self.fd_out = fd_out
        self.inbox = bytearray()
        self.outbox = bytearray()
        self.jobs: dict[int, Job] = {}
        self.seen: dict[
            str, tuple[Any, int, str | None, int]
        ] = {}  # path -> (stat signature, mode, sha, size): the tree as last reported
        self.paused = False
        self.heard = time.monotonic()
        self.selector = selectors.DefaultSelector()

    # -- frames ------------------------------------------------------------------------------------------

    def send(self, header: Header, payload: bytes = b"") -> None:
        raw = json.dumps(header, separators=(",", ":")).encode()
        self.outbox += FRAME.pack(len(raw), len(payload)) + raw + payload
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

    def watch_pipe(self, job: Job, fd: int) -> None:
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
            header = json.loads(self.inbox[FRAME.size : FRAME.size + n_header].decode())
            payload = bytes(self.inbox[FRAME.size + n_header : end])
            del self.inbox[:end]
            self.handle(header, payload)

    def handle(self, header: Header, payload: bytes) -> None:
        ident = header.get("id")
        try:
            operation = getattr(self, "op_" + str(header.get("op")), None)
            if operation is None:
                raise Refused("unknown-op", "unknown operation %r" % header.get("op"))
            answer = operation(header, payload)
        except Refused as error:
            self.send({"id": ident, "ev": "error", "code": error.code, "text": str(error)})
        except OSError as error:
            code = errno.errorcode.get(error.errno or 0, "EIO")
            self.send({"id": ident, "ev": "error", "code": code, "text": error.strerror or str(error)})
        except (KeyError, TypeError, ValueError) as error:
            self.send({"id": ident, "ev": "error", "code": "bad-request", "text": repr(error)})
        else:
            if answer is not None:
                self.send(dict(answer[0], id=ident, ev="ok"), answer[1])

    def end(self) -> NoReturn:
        """The host is gone: nothing survives."""
        os.kill(-1, signal.SIGKILL)
        os._exit(0)

    # -- jobs --------------------------------------------------------------------------------------------

    def op_exec(self, header: Header, payload: bytes) -> None:
        cwd = os.path.join(self.root, header.get("cwd") or ".")
        limits = header.get("limits") or {}

        def prepare() -> None:
            set_dumpable(1)  # /proc/self is closed to a child of a process that is not dumpable
            try:
                with open("/proc/self/oom_score_adj", "wb") as f:
                    f.write(OOM_SCORE_ADJ)
            except OSError:
                pass  # a sandbox without that file has no shared limit to protect
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            for name, value in limits.items():
                resource.setrlimit(getattr(resource, "RLIMIT_" + name), (value, value))
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)

        try:
            proc = subprocess.Popen(
                header["argv"],
                cwd=cwd,
                env=dict(header["env"], M3AGENT_JOB=str(header["id"])),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=prepare,  # safe: this process has one thread
                bufsize=0,
            )
        except OSError as error:
            missing_cwd = not os.path.isdir(cwd)
            what = "no such folder: %s" % header.get("cwd") if missing_cwd else error.strerror
            text = "cannot run %s: %s" % (str(header["argv"][:1])[1:-1], what)
            raise Refused("exec", text) from None
        except subprocess.SubprocessError as error:
            raise Refused("exec", "cannot run the command: %s" % error) from None
        job = Job(header["id"], proc, header, payload)
        self.jobs[job.id] = job
        for number, pipe in job.outputs.items():
            fd = pipe.fileno()
            os.set_blocking(fd, False)
            job.pipes[fd] = number
            self.watch_pipe(job, fd)
        os.set_blocking(job.input.fileno(), False)
        self.send({"id": job.id, "ev": "started", "pid": job.pid})
        self.feed(job)

    def feed(self, job: Job) -> None:
        """Pass on what the child takes of its standard input, then close it."""
        fd = job.input.fileno()
        try:
            while job.stdin:
                job.stdin = job.stdin[os.write(fd, job.stdin[: 1 << 16]) :]
        except BlockingIOError:
            self.watch(fd, selectors.EVENT_WRITE, lambda: self.feed(job))
            return
        except OSError:
            pass  # the child closed its standard input: what it does not want is dropped
        self.watch(fd, 0, None)
        job.input.close()

    def read_pipe(self, job: Job, fd: int) -> bool:
        """Forward one chunk; returns whether there may be more."""
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

    def close_pipe(self, job: Job, fd: int) -> None:
        self.watch(fd, 0, None)
        number = job.pipes.pop(fd)
        job.outputs[number].close()

    def op_kill(self, header: Header, payload: bytes) -> Answer:
        job = self.jobs.get(header["job"])
        if job is not None:
            job.killed = True
            self.kill_job(job)
        return {}, b""

    def op_alive(self, header: Header, payload: bytes) -> Answer:
        return None

    def op_ping(self, header: Header, payload: bytes) -> Answer:
        return {}, b""

    def kill_job(self, job: Job) -> None:
        """SIGKILL to everything the job started, whatever session or parent it has now."""
        if len(self.jobs) == 1 and job.id in self.jobs:
            try:
                os.kill(-1, signal.SIGKILL)
            except ProcessLookupError:
                pass
            return
        while True:
            victims = self.descendants(job)
            if not victims:
                return
            for pid in victims:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def descendants(self, job: Job) -> set[int]:
        """Living processes of the job: by session, by parent, or by the mark in their environment."""
        parents: dict[int, int] = {}
        found: set[int] = set()
        mark = b"M3AGENT_JOB=" + str(job.id).encode() + b"\0"
        for name in os.listdir("/proc"):
            if not name.isdigit() or name == "1":
                continue
            try:
                with open("/proc/%s/stat" % name, "rb") as f:
                    fields = f.read().rpartition(b")")[2].split()
                with open("/proc/%s/environ" % name, "rb") as f:
                    environ = f.read() + b"\0"
            except OSError:
                continue
            if fields[0] in (b"Z", b"X"):
                continue
            pid, parent, session = int(name), int(fields[1]), int(fields[3])
            parents[pid] = parent
            if session == job.pid or pid == job.pid or mark in environ:
                found.add(pid)
        grew = True
        while grew:
            more = {pid for pid, parent in parents.items() if parent in found} - found
            found |= more
            grew = bool(more)
        return found

    def reap(self) -> None:
        """Collect every dead process; finish the jobs whose main process is among them."""
        self.collect()
        for job in list(self.jobs.values()):
            if job.status is not None:
                self.finish(job, job.status)

    def collect(self) -> bool:
        """Collect every dead process; returns whether any other is left."""
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

    def finish(self, job: Job, status: int) -> None:
        """The main process is gone: end its left-overs, drain the pipes, report."""
        self.kill_job(job)
        patience = time.monotonic() + SETTLE
        # killed is not yet gone: hundreds of dying processes would still be seen by the next command
        while len(self.jobs) == 1 and self.collect() and time.monotonic() < patience:
            time.sleep(0.001)
            self.kill_job(job)
        for fd in list(job.pipes):
            while self.read_pipe(job, fd):
                pass
            if fd in job.pipes:
                self.close_pipe(job, fd)
        if not job.input.closed:
            self.watch(job.input.fileno(), 0, None)
            job.input.close()
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        job.proc.returncode = code
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
        """End what is over its time; returns the seconds until the next deadline."""
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
                try:
                    os.killpg(job.pid, signal.SIGTERM)
                except ProcessLookupError:
                    pass
            elif now >= job.deadline:
                self.kill_job(job)
                job.deadline = now + 0.05  # again until the kernel has let it go
            wait = min(wait, max(0.0, job.deadline - now))
        return wait

    # -- files -------------------------------------------------------------------------------------------

    def parent_of(self, path: str, create: bool = False) -> tuple[int, str]:
        """Open the folder that holds `path`, component by component, following no link below the root.

        Links inside the tree are resolved first; one that is put in the way afterwards is refused, so that
        not even a race reaches a file outside (such as this process's own descriptors under /proc).
        """
        full = os.path.join(self.root, path)
        folder, name = os.path.split(full.rstrip("/"))
        if "\0" in path or not name or name in (".", ".."):
            raise Refused("escape", "not a file path: %r" % path)
        real = os.path.realpath(folder)
        if real != self.root and not real.startswith(self.root + "/"):
            raise Refused("escape", "%s is outside the work tree" % path)
        fd = os.open(self.root, O_DIR)
        for part in [p for p in real[len(self.root) :].split("/") if p]:
            try:
                try:
                    below = os.open(part, O_DIR, dir_fd=fd)
                except FileNotFoundError:
                    if not create:
                        raise
                    os.mkdir(part, 0o755, dir_fd=fd)
                    below = os.open(part, O_DIR, dir_fd=fd)
            except NotADirectoryError:
                raise Refused("ENOTDIR", "%s: a part of this path is a file, not a folder" % path) from None
            finally:
                os.close(fd)
            fd = below
        return fd, name

    def resolve_link(self, path: str) -> str:
        """The path a link inside the tree stands for; refuses one that leads out."""
        full = os.path.join(self.root, path)
        if not os.path.islink(full):
            return path
        real = os.path.realpath(full)
        if not real.startswith(self.root + "/"):
            raise Refused("escape", "%s is a link that leads outside the work tree" % path)
        return real

    def write_file(self, path: str, content: bytes, mode: int | None = None) -> None:
        """Write beside the target, then rename: a full disk leaves the old content whole."""
        folder, name = self.parent_of(self.resolve_link(path), create=True)
        try:
            try:
                old = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if not stat.S_ISREG(old.st_mode):
                    raise Refused("special", "%s is not a plain file" % path)
                mode = stat.S_IMODE(old.st_mode) if mode is None else mode
            except FileNotFoundError:
                pass
            temporary = ".m3agent-%d.tmp" % time.monotonic_ns()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(temporary, flags, 0o600, dir_fd=folder)
            try:
                view = memoryview(content)
                while view:
                    view = view[os.write(fd, view) :]
                os.fchmod(fd, 0o644 if mode is None else mode)
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                os.unlink(temporary, dir_fd=folder)
                raise
            finally:
                os.close(fd)
        finally:
            os.close(folder)

    def op_write(self, header: Header, payload: bytes) -> Answer:
        self.write_file(header["path"], payload, header.get("mode"))
        return {}, b""

    def op_read(self, header: Header, payload: bytes) -> Answer:
        path = header["path"]
        folder, name = self.parent_of(self.resolve_link(path))
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        finally:
            os.close(folder)
        try:
            info = os.fstat(fd)
            if stat.S_ISDIR(info.st_mode):
                raise Refused("EISDIR", "%s is a folder" % path)
            if not stat.S_ISREG(info.st_mode):
                raise Refused("special", "%s is not a plain file" % path)
            limit = min(int(header.get("limit", MAX_PAYLOAD)), MAX_PAYLOAD)
            os.lseek(fd, int(header.get("offset", 0)), os.SEEK_SET)
            parts = []
            while limit > 0:
                chunk = os.read(fd, min(limit, 1 << 20))
                if not chunk:
                    break
                parts.append(chunk)
                limit -= len(chunk)
            return {"size": info.st_size}, b"".join(parts)
        finally:
            os.close(fd)

    def op_put(self, header: Header, payload: bytes) -> Answer:
        """Lay files down and take them as known: a scan reports only what differs from them."""
        offset = 0
        for path, mode, size in header["files"]:
            content = payload[offset : offset + size]
            offset += size
            folder, name = self.parent_of(path, create=True)
            try:
                try:
                    os.unlink(name, dir_fd=folder)
                except FileNotFoundError:
                    pass
                if stat.S_ISLNK(mode):
                    os.symlink(content, name, dir_fd=folder)
                else:
                    self.write_file(path, content, stat.S_IMODE(mode))
                info = os.stat(name, dir_fd=folder, follow_symlinks=False)
            finally:
                os.close(folder)
            self.seen[path] = (signature(info), git_mode(info), blob_id(content), size)
        return {}, b""

    def op_delete(self, header: Header, payload: bytes) -> Answer:
        for path in header["paths"]:
            try:
                folder, name = self.parent_of(path)
                try:
                    os.unlink(name, dir_fd=folder)
                finally:
                    os.close(folder)
            except FileNotFoundError:
                pass
            self.seen.pop(path, None)
        return {}, b""

    def op_scan(self, header: Header, payload: bytes) -> Answer:
        skip = set(header.get("skip") or ())
        most = int(header["most"])
        now: dict[str, tuple[Any, int, str | None, int]] = {}
        changed = []
        stack = [""]
        while stack:
            prefix = stack.pop()
            try:
                entries = list(os.scandir(os.path.join(self.root, prefix)))
            except OSError:
                continue  # a folder that vanished or was closed to us: its files count as deleted
            for entry in entries:
                path = prefix + entry.name
                try:
                    info = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(info.st_mode):
                        if entry.name not in skip:
                            stack.append(path + "/")
                        continue
                    if not (stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode)):
                        continue
                    known = self.seen.get(path)
                    if known is not None and known[0] == signature(info):
                        now[path] = known
                        continue
                    sha, size = self.hash_file(path, info, most)
                except OSError:
                    continue
                now[path] = (signature(info), git_mode(info), sha, size)
                if known is None or known[1:] != now[path][1:]:
                    changed.append([path, git_mode(info), sha, size])
        deleted = [path for path in self.seen if path not in now]
        self.seen = now
        return {"changed": changed, "deleted": deleted}, b""

    def hash_file(self, path: str, info: os.stat_result, most: int) -> tuple[str | None, int]:
        """Git's id of the file's content; None for one too large to be part of a patch."""
        if stat.S_ISLNK(info.st_mode):
            target = os.fsencode(os.readlink(os.path.join(self.root, path)))
            return blob_id(target), len(target)
        if info.st_size > most:
            return None, info.st_size
        folder, name = self.parent_of(path)
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        finally:
            os.close(folder)
        with os.fdopen(fd, "rb") as f:
            content = f.read(most + 1)
        return blob_id(content), len(content)

    # -- the loop ----------------------------------------------------------------------------------------

    def run(self) -> NoReturn:
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        os.set_blocking(self.fd_in, False)
        os.set_blocking(self.fd_out, False)
        self.selector.register(self.fd_in, selectors.EVENT_READ, self.receive)
        self.selector.register(wake_read, selectors.EVENT_READ, lambda: os.read(wake_read, 4096))
        self.send({"ev": "hello", "protocol": PROTOCOL, "python": sys.version.split()[0], "root": self.root})
        while True:
            for key, _ in self.selector.select(self.check_clocks()):
                current = self.selector.get_map().get(key.fd)
                if current is not None and current.data == key.data:  # not closed or reused meanwhile
                    key.data()
            self.reap()


def signature(info: os.stat_result) -> tuple[int, ...]:
    """What changes when a file's content may have: the change time cannot be set by a program."""
    return (info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_mode)


def git_mode(info: os.stat_result) -> int:
    if stat.S_ISLNK(info.st_mode):
        return 0o120000
    return 0o100755 if info.st_mode & 0o100 else 0o100644


def blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()  # git's object id


def main(root: str) -> NoReturn:
    if os.getpid() != 1:
        sys.exit("the supervisor runs only as process 1 of a sandbox")
    set_dumpable(0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own handler would make process 1 killable by it
    os.umask(0o022)
    fd_in, fd_out = os.dup(0), os.dup(1)  # dup makes them close-on-exec: no child ever holds them
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    Supervisor(root, fd_in, fd_out).run()


if __name__ == "__main__":
    main(sys.argv[1])

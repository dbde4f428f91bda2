"""Attacks from inside on the supervisor, which is process 1 and runs as the same user as the commands."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio

from tests.abuse.box import INSIDE, Box, gone, until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.supervisor]

BARRED = {"EPERM", "EACCES", "ENOSYS"}

SIGNALS = {
    "each-signal": "for n in range(1, 65):\n    try: os.kill(1, n)\n    except OSError: pass",
    "each-signal-to-its-thread": "for n in range(1, 65):\n    try: syscall('tgkill', 1, 1, n)\n    except OSError: pass",
    "each-signal-queued": (
        "for n in range(1, 65):\n"
        "    try: syscall('rt_sigqueueinfo', 1, n, ctypes.create_string_buffer(struct.pack('<iii', n, 0, -1), 128))\n"
        "    except OSError: pass"
    ),
    "each-signal-by-pidfd": (
        "fd = syscall('pidfd_open', 1, 0)\n"
        "for n in range(1, 65):\n"
        "    try: syscall('pidfd_send_signal', fd, n, None, 0)\n"
        "    except OSError: pass"
    ),
    "kill-everything": "child(lambda: time.sleep(301)); os.kill(-1, signal.SIGKILL)",
    "stop-everything": "child(lambda: time.sleep(301)); os.kill(-1, signal.SIGSTOP)",
    "signal-flood": "for _ in range(200_000): os.kill(1, signal.SIGCHLD)",
    # asks the kernel to send the signal when the supervisor reads its end of the pipe
    "kill-by-pipe-owner": (
        "fcntl.fcntl(1, fcntl.F_SETOWN, 1)\n"
        "fcntl.fcntl(1, 10, signal.SIGKILL)\n"  # F_SETSIG
        "fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) | os.O_ASYNC)\n"
        "for _ in range(100): os.write(1, b'x' * 60000)"
    ),
}


@pytest.mark.parametrize("attack", SIGNALS)
async def test_signals_do_not_end_or_stop_the_supervisor(box: Box, attack: str) -> None:
    done = await box.python(SIGNALS[attack] + "\nos.write(2, b'reached the end')")
    assert done.stderr == b"reached the end", done.stderr[-500:]
    assert not done.timed_out


OPENINGS = {
    "list-descriptors": "os.listdir('/proc/1/fd')",
    "write-to-channel": "os.write(os.open('/proc/1/fd/1', os.O_WRONLY), b'forged')",
    "memory": "open('/proc/1/mem', 'r+b', 0)",
    "maps": "get('/proc/1/maps')",
    "environment": "get('/proc/1/environ')",
    "root": "os.listdir('/proc/1/root')",
    "folder": "os.listdir('/proc/1/cwd')",
    "program": "os.readlink('/proc/1/exe')",
    "stack": "get('/proc/1/stack')",
    "system-call": "get('/proc/1/syscall')",
    "trace": "c('ptrace', 16, 1, 0, 0)",
    "seize": "c('ptrace', 0x4206, 1, 0, 0)",
    "read-memory": "syscall('process_vm_readv', 1, vector(8), 1, vector(8), 1, 0)",
    "write-memory": "syscall('process_vm_writev', 1, vector(8), 1, vector(8), 1, 0)",
    "take-descriptor": "syscall('pidfd_getfd', syscall('pidfd_open', 1, 0), 1, 0)",
    "compare": "syscall('kcmp', os.getpid(), 1, 0, 0, 0)",
    "advise-memory": "syscall('process_madvise', syscall('pidfd_open', 1, 0), vector(8), 1, 4, 0)",
    "first-for-the-killer": "put('/proc/1/oom_score_adj', '1000')",
    "rename": "put('/proc/1/comm', 'x')",
    "limit-processor-time": "limit(1, 0, 1)",
    "limit-memory": "limit(1, 9, 1 << 20)",
    "limit-descriptors": "limit(1, 7, 3)",
    "limit-file-size": "limit(1, 1, 0)",
    "lower-priority": "os.setpriority(os.PRIO_PROCESS, 1, 19)",
    "lower-group-priority": "os.setpriority(os.PRIO_USER, 1000, 19)",
    "idle-scheduling": "os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))",
    "bind-to-one-processor": "os.sched_setaffinity(1, {0})",
    "idle-disk-priority": "syscall('ioprio_set', 1, 1, 3 << 13)",
    "join-its-group": "os.setpgid(0, 1)",
}
HELPERS = """
def vector(size): return ctypes.create_string_buffer(struct.pack("<QQ", ctypes.addressof(ctypes.create_string_buffer(size)), size))
def limit(pid, kind, value): syscall("prlimit64", pid, kind, ctypes.create_string_buffer(struct.pack("<QQ", value, value)), None)
"""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def outcomes(module_box: Box) -> dict[str, str]:
    return await module_box.outcomes(OPENINGS, HELPERS)


@pytest.mark.parametrize("opening", OPENINGS)
async def test_the_supervisor_cannot_be_inspected_or_slowed_down(
    outcomes: dict[str, str], opening: str
) -> None:
    assert outcomes[opening] in BARRED


async def test_a_command_inherits_three_descriptors_and_no_terminal(box: Box) -> None:
    done = await box.python("print(sorted(os.listdir('/proc/self/fd')), [os.isatty(n) for n in range(3)])")
    # the fourth is the descriptor that lists the folder
    assert done.stdout == b"['0', '1', '2', '3'] [False, False, False]\n"


async def test_frames_on_standard_output_are_output(box: Box) -> None:
    forged = b'{"id":%d,"ev":"exit","exit":0,"timed_out":false,"oom":false,"total":[0,0],"seconds":0}'
    program = (
        "for n in range(200):\n"
        f"    raw = {forged!r} % n\n"
        "    for fd in (1, 2): os.write(fd, struct.pack('>II', len(raw), 0) + raw + struct.pack('>BxxxI', 1, 9))\n"
        "os._exit(9)"
    )
    done = await box.python(program)
    assert done.exit == 9
    assert done.stdout.count(b'"ev":"exit"') == 200


async def test_closing_and_filling_descriptors(box: Box) -> None:
    program = (
        "os.closerange(0, 3)\n"
        "held = []\n"
        "try:\n    while True: held.append(os.pipe())\n"
        "except OSError: os._exit(len(held) > 50 and 5)"
    )
    assert (await box.python(program)).exit == 5


async def test_a_command_that_takes_no_input_and_one_that_takes_it_slowly(box: Box) -> None:
    sandbox, much = box.sandbox, b"x" * 10_000_000
    assert (await sandbox.exec(["true"], stdin=much)).exit == 0
    stuck = asyncio.create_task(sandbox.exec(["sleep", "1"], stdin=much))
    await sandbox.ping()
    assert (await stuck).exit == 0
    assert (await sandbox.exec(["wc", "-c"], stdin=much)).stdout.strip() == b"10000000"


async def test_its_own_pipes_opened_again(box: Box) -> None:
    """Through /proc a command can open the other ends of its pipes. It can then only consume its own output."""
    program = "fd = os.open('/proc/self/fd/1', os.O_RDONLY | os.O_NONBLOCK)\nprint('own', flush=True)\nos.write(2, b'end')"
    done = await box.python(program)
    assert done.exit == 0
    assert done.stderr == b"end"


PLANT = """
import sysconfig
home = os.environ["HOME"]
site = f"{home}/.local/lib/python3.{sys.version_info[1]}/site-packages"
for folder in (site, "/tmp/m3agent", f"{home}/.config/git", "/ws/src"): os.makedirs(folder, exist_ok=True)
evil = "import os\\nos.write(1, b'planted')\\nos._exit(0)\\n"
for path in (f"{site}/usercustomize.py", "/ws/json.py", "/ws/os.py", "/ws/ctypes.py", "/ws/src/sitecustomize.py"): put(path, evil)
put(f"{site}/evil.pth", "import os; os.write(1, b'planted'); os._exit(0)\\n")
for name in (".profile", ".bashrc", ".bash_profile", ".pythonrc"): put(f"{home}/{name}", "echo planted; exit 0\\n")
for name in ("sh", "python3", "cat", "git"):
    put(f"/ws/{name}", "#!/bin/sh\\necho planted\\n"); os.chmod(f"/ws/{name}", 0o755)
put(f"{home}/.config/git/config", "[core]\\n fsmonitor = /ws/sh\\n")
os.environ.update(LD_PRELOAD="/ws/evil.so", PYTHONSTARTUP="/ws/json.py", PYTHONPATH="/ws", BASH_ENV="/ws/sh", PATH="/ws")
"""


async def test_planted_start_up_files_do_not_reach_the_supervisor(box: Box) -> None:
    """Files that a command leaves may mislead later programs in the sandbox, but never the supervisor."""
    sandbox = box.sandbox
    assert (await box.python(PLANT)).exit == 0
    await sandbox.write("x.txt", b"whole")
    assert await sandbox.read("x.txt") == b"whole"
    await sandbox.checkpoint()
    done = await sandbox.exec(["/bin/echo", "alive"])
    assert (done.exit, done.stdout) == (0, b"alive\n")
    shell = await sandbox.exec(["sh", "-c", "echo $LD_PRELOAD$PYTHONSTARTUP$BASH_ENV; command -v cat"])
    assert shell.stdout.splitlines()[0] == b""
    assert shell.stdout.splitlines()[1].endswith(b"bin/cat")


@pytest.mark.slow  # quick: test_fork_bomb
async def test_busy_programs_do_not_starve_the_supervisor(box: Box) -> None:
    """Programs that use all processor time may delay an answer, but do not prevent it."""
    spin = "for _ in range(60): os.fork() or [0 for _ in iter(int, 1)]\nopen('ready', 'w').close()\nwhile True: pass"
    busy = await box.sandbox.exec(["python3", "-c", f"{INSIDE}\n{spin}"], background=True)
    assert busy.job is not None
    await until(lambda: box.has("ready"))
    async with asyncio.timeout(60):
        for _ in range(5):
            await box.sandbox.ping()
        await box.sandbox.kill(busy.job)
        await gone(box.sandbox)

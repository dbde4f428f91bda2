"""A program cannot detect that its interpreter was started in advance. Each kind of program runs both ways."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.tools.code_exec import command

pytestmark = pytest.mark.supervisor

SandboxOf = Callable[..., Sandbox]

SURROUNDINGS = r"""
import atexit, io, locale, os, resource, signal, sys, threading
before = sorted(sys.modules)
print(__name__, __file__, __doc__, __spec__, type(__loader__).__name__, __builtins__.__name__, sorted(globals()))
print(sys.argv, sys.orig_argv, sys.path, sys.flags, sys.executable, sys.prefix, sys.warnoptions, sys._xoptions)
print(before, sorted(sys.path_importer_cache), sys.meta_path, sys.path_hooks)
print(sorted(os.environ.items()), os.getcwd(), sorted(os.listdir("/tmp/m3agent")))
print(os.getppid(), os.getpgrp() == os.getsid(0) == os.getpid(), os.umask(0o22))
print(open("/proc/self/cmdline").read().split("\0"), open("/proc/self/comm").read(), os.listdir("/proc/self/task") == [str(os.getpid())])
print(sorted(os.listdir("/proc/self/fd")), [os.readlink(f"/proc/self/fd/{n}").partition(":")[0] for n in (0, 1, 2)])
print([os.fstat(n).st_mode for n in (0, 1, 2)], [os.get_blocking(n) for n in (0, 1, 2)])
print([(s, signal.getsignal(s)) for s in sorted(signal.Signals)], signal.pthread_sigmask(signal.SIG_BLOCK, []))
print([(n, getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_") and resource.getrlimit(getattr(resource, n))])
print([resource.getrlimit(n) for n in range(16) if n not in (10, 15)], open("/proc/self/oom_score_adj").read())
print([line for line in open("/proc/self/status") if line.startswith(("SigPnd", "SigBlk", "SigIgn", "SigCgt", "Shd", "Cap", "NoNew", "Seccomp", "Threads", "Umask"))])
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.name, stream.encoding, stream.errors, stream.line_buffering, stream.write_through, stream.isatty(), stream.newlines)
print(locale.getpreferredencoding(), sys.getfilesystemencoding(), hash("text"), {"a", "b", "c"}, sys.getrecursionlimit())
print(threading.active_count(), threading.main_thread().name, sys.stdin.read(), sys.gettrace(), sys.getprofile())
"""

PAUSES = (0.1, 0.2, 0.5, 1, 2, 5)  # seconds for the supervisor to start an interpreter
READ_TWICE = {"utf-8-cookie", "latin-1-cookie", "unknown-cookie"}  # never run in a waiting interpreter
PROGRAMS = {
    "surroundings": SURROUNDINGS,
    "empty": "",
    "one-line": "print(1)",
    "carriage-returns": "print(1)\r\nif True:\r\n    print('''a\r\nb''')\r\n1/0\r\n",
    "byte-order-mark": "\ufeffprint('é')\n",
    "utf-8-cookie": "# -*- coding: utf-8 -*-\nprint('é', ascii('é'))\n",
    "latin-1-cookie": "#!/usr/bin/python3\n# vim: set fileencoding=latin-1 :\nprint(ascii('é'))\n",
    "unknown-cookie": "# coding: no-such\nprint(1)\n",
    "long": "x = 1\n" * 60_000 + "print(x)\n1/0\n",
    "traceback": "def f(n):\n    return g(n)\n\ndef g(n):\n    x = 1; return n / 0  # here\n\nprint('before')\nf(5)\n",
    "chained": "try:\n    {}['x']\nexcept KeyError as e:\n    raise ValueError('no é') from e\n",
    "syntax-error": "print(1)\ndef f(:\n    pass\n",
    "indentation-error": "if True:\nprint(1)\n",
    "not-ended": "print('''",
    "null-and-escapes": "print('\\0\\x1b[31m', end='')",
    "exit-code": "import sys; print('x', end=''); sys.exit(3)",
    "exit-text": "import sys; sys.exit('no good')",
    "exit-none": "raise SystemExit",
    "exit-at-once": "import os; print('lost?'); os._exit(4)",
    "interrupt": "raise KeyboardInterrupt",
    "signal": "import os, signal; print('x', end='', flush=True); os.kill(os.getpid(), signal.SIGTERM)",
    "abort": "import os; os.abort()",
    "broken-pipe": "import os, signal; print(signal.getsignal(signal.SIGPIPE))",
    "at-exit": "import atexit, sys; atexit.register(print, 'bye'); sys.stdout.write('no line end')",
    "at-exit-fails": "import atexit; atexit.register(lambda: 1/0)",
    "unraisable": "class A:\n    def __del__(self): raise ValueError('in del')\na = A()\n",
    "stack": "import inspect, sys, traceback\nprint(len(inspect.stack()), sys._getframe().f_back)\ntraceback.print_stack()",
    "warning": "import warnings\nwarnings.warn('odd', DeprecationWarning, stacklevel=2)\nwarnings.warn('odd', DeprecationWarning)\n",
    "source": "import inspect\ndef f():\n    return 1  # kept\nprint(inspect.getsource(f), open(__file__).read())",
    "main-module": "import sys; m = sys.modules['__main__']; print(m, sorted(vars(m)), __import__('__main__') is m)",
    "recursion": "def f(n):\n    try: return f(n + 1)\n    except RecursionError: return n\nprint(f(0))",
    "threads": "import threading\nts = [threading.Thread(target=print, args=(i,)) for i in range(3)]\nfor t in ts: t.start(); t.join()",
    "thread-outlives": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()\nprint('early')",
    "thread-fails": "import threading\nt = threading.Thread(target=lambda: 1/0, name='t'); t.start(); t.join()",
    "children": (
        "import os, subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'import sys; print(sys.flags, sys.path)'],"
        " capture_output=True, text=True))\nos.system('echo $0; cat; ls /proc/self/fd')\n"
        "if os.fork() == 0:\n    print('child'); sys.exit(0)\nprint(os.wait()[1])"
    ),
    "multiprocessing": (
        "import multiprocessing as m\ndef double(x): return 2 * x\nif __name__ == '__main__':\n"
        "    for kind in ('fork', 'spawn', 'forkserver'):\n        with m.get_context(kind).Pool(2) as p: print(kind, p.map(double, range(5)))"
    ),
    "executor": (
        "from concurrent.futures import ProcessPoolExecutor\ndef f(x): return x * x\n"
        "if __name__ == '__main__':\n    with ProcessPoolExecutor(2) as e: print(list(e.map(f, range(4))))"
    ),
    "asyncio": "import asyncio\nasync def m():\n    p = await asyncio.create_subprocess_exec('echo', 'hi'); print(await p.wait())\nasyncio.run(m())",
    "shadowing": "import queue_of_ours, json; print(queue_of_ours.NAME, json.__file__)",
    "import-itself": "import m3agent_code; print(m3agent_code.__name__)",
    "future": "from __future__ import annotations\ndef f(x: nowhere): pass\nprint(f.__annotations__)",
    "pickle-main": "import pickle\nclass A: pass\nprint(pickle.loads(pickle.dumps(A())).__class__, A.__module__)",
    "standard-input": "print(input())",
    "replaced": "import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'print(\"other\")'])",
    "dataclass-and-logging": (
        "import dataclasses, logging\n@dataclasses.dataclass\nclass P:\n    x: int = 1\nprint(P())\n"
        "logging.basicConfig(format='%(filename)s:%(lineno)d %(funcName)s %(message)s'); logging.warning('w')"
    ),
    "descriptors": "import os; r, w = os.pipe(); print(r, w, os.get_inheritable(r)); os.write(1, b'raw\\n')",
}


async def run(sandbox: Sandbox, program: str, **fields: Any) -> tuple[int, bytes, bytes, bool]:
    """Return exit code, standard output, standard error, and whether the interpreter was started in advance."""
    request = sandbox.channel.open_request(
        "exec",
        program.encode(),
        argv=list(command(sandbox.folders)),
        file=command(sandbox.folders)[-1],
        env={**sandbox._env, "PWD": sandbox.folders.work_tree},
        limits=sandbox.machine.job_limits(),
        timeout=120,
        **fields,
    )
    streams = {1: b"", 2: b""}
    began_early = False
    with request:
        while True:
            header, payload = await request.next()
            assert header["ev"] != "error", header
            if header["ev"] == "started":
                began_early = header["warm"]
            elif header["ev"] == "out":
                streams[header["fd"]] += payload
            else:
                return header["exit"], streams[1], streams[2], began_early


async def run_warm(sandbox: Sandbox, program: str) -> tuple[int, bytes, bytes, bool]:
    """Same as `run`, but in a waiting interpreter: try longer and longer pauses until one waits."""
    for pause in PAUSES:
        await run(sandbox, "pass", warm=True)
        await asyncio.sleep(pause)
        done = await run(sandbox, program, warm=True)
        if done[3]:
            return done
    pytest.fail("no interpreter was started early")


async def until_one_waits(sandbox: Sandbox) -> None:
    """Wait until an interpreter waits. The supervisor does not report it, so find a pause that is long enough."""
    for pause in PAUSES:
        await run(sandbox, "pass", warm=True)
        await asyncio.sleep(pause)
        if (await run(sandbox, "pass", warm=True))[3]:
            await asyncio.sleep(2 * pause)
            return
    pytest.fail("no interpreter was started early")


def without_addresses(text: bytes) -> bytes:
    return re.sub(rb"0x[0-9a-f]+|pid=\d+|\[\d{2,}\]", b"0x", text)


@pytest.mark.slow
async def test_no_program_can_tell(sandbox_of: SandboxOf) -> None:
    files = {"queue_of_ours.py": "NAME = 'ours'\n", "src/pkg/__init__.py": "", "package/__init__.py": ""}
    async with sandbox_of(files) as sandbox:
        for name, program in PROGRAMS.items():
            cold = await run(sandbox, program)
            assert not cold[3]
            warm = await (
                run(sandbox, program, warm=True) if name in READ_TWICE else run_warm(sandbox, program)
            )
            assert warm[3] == (name not in READ_TWICE)
            for number, what in enumerate(("exit code", "standard output", "standard error")):
                expected, got = cold[number], warm[number]
                if isinstance(expected, bytes) and isinstance(got, bytes):
                    expected, got = without_addresses(expected), without_addresses(got)
                assert got == expected, f"{name}: {what}"


async def test_waiting_interpreter_is_not_used_after_a_change(sandbox_of: SandboxOf) -> None:
    """After a change, a waiting interpreter is not used. While a start-up file exists, none is started in advance."""
    async with sandbox_of({"mod.py": "X = 1\n"}) as sandbox:
        await until_one_waits(sandbox)
        await sandbox.write("mod.py", b"X = 2\n")
        await sandbox.write("new_mod.py", b"Y = 3\n")
        done = await run(sandbox, "import mod, new_mod; print(mod.X, new_mod.Y)", warm=True)
        assert done == (0, b"2 3\n", b"", False)
        await until_one_waits(sandbox)
        hook = "open('/ws/ran', 'a').write('x'); import os\nif os.fork() == 0:\n    os.setsid(); import time; time.sleep(300)\n    os._exit(0)\n"
        await sandbox.write("sitecustomize.py", hook.encode())
        assert (await run(sandbox, "pass", warm=True))[3] is False
        before = await sandbox.read(
            "ran"
        )  # on a busy machine, the interpreter that waited may have run it too
        for _ in range(2):
            assert (await run(sandbox, "pass", warm=True))[3] is False
            await asyncio.sleep(0.3)
        assert await sandbox.read("ran") == before + b"xx", "it ran with a program only"
        looked = await sandbox.exec(["sh", "-c", "ls -d /proc/[0-9]*"])
        assert len(looked.stdout.split()) <= 3, "the supervisor, the shell, ls"
        await sandbox.exec(["rm", "sitecustomize.py"])
        await until_one_waits(sandbox)
        await sandbox.exec(["sh", "-c", "mkdir -p $HOME/.local/lib"])  # the folder of a user's start-up files
        await run(sandbox, "pass", warm=True)
        await asyncio.sleep(0.3)
        assert (await run(sandbox, "pass", warm=True))[3] is False


async def test_the_last_program_is_there_to_be_read(sandbox_of: SandboxOf) -> None:
    async with sandbox_of() as sandbox:
        await until_one_waits(sandbox)
        program = "print('the last one')\n"
        await run(sandbox, program, warm=True)
        await asyncio.sleep(0.3)
        shown = await sandbox.exec(["cat", command(sandbox.folders)[-1]])
        assert shown.stdout.decode() == program
        listed = await sandbox.exec(["ls", "-l", "/tmp/m3agent"])
        assert listed.stdout.count(b"\n") == 2, "a total and the one file"


async def test_other_commands_never_meet_a_waiting_interpreter(sandbox_of: SandboxOf) -> None:
    async with sandbox_of() as sandbox:
        await until_one_waits(sandbox)
        looked = await sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"])
        assert b"m3agent_code" not in looked.stdout
        server = await sandbox.exec(["sleep", "300"], background=True)
        assert server.job is not None
        for _ in range(2):
            assert (await run(sandbox, "pass", warm=True))[3] is False
            await asyncio.sleep(0.2)
        assert (await run(sandbox, "pass", warm=True))[3] is False, "not beside a command in the background"
        ended = await sandbox.kill(server.job)
        assert ended is not None
        assert ended.exit == -9


async def test_a_broken_start_is_an_ordinary_failure(sandbox_of: SandboxOf) -> None:
    async with sandbox_of() as sandbox:
        await until_one_waits(sandbox)
        argv, folder = command(sandbox.folders), f"{sandbox.folders.temporary}/m3agent"
        await sandbox.exec(["sh", "-c", 'rm -rf "$0"; echo x > "$0"', folder])
        done = await sandbox.exec(argv, stdin=b"print(1)", file=argv[-1], warm=True)
        assert (done.exit, done.stderr) == (126, b"cannot write the program: File exists")
        await sandbox.exec(["rm", folder])
        done = await sandbox.exec(argv, stdin=b"print(1)", file=argv[-1], warm=True)
        assert done.stdout == b"1\n"

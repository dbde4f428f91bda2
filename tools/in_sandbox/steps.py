"""Run programs in the sandbox, one after the other, and record what each left behind.

    python3 -I -S steps.py JOB KEY REPORT

JOB is a JSON file: an object with the list `steps` and the path `witness`. KEY is a file with a key in hexadecimal; it is
deleted before the first program starts. REPORT gets the records that `m3agent.tools.runners.records` reads:
`["begin", name]` and `["step", name, {...}]` for each step, and `["end"]`.

A step is an object. It has one of these kinds:

- `argv` runs a program in the folder `cwd` with the variables `env`, for at most `seconds`.
- `clean` removes the linked programs and libraries in this folder, so that the build must link them again.
- `collect` returns the files that match these patterns.

A program may have these options too:

- `must`: no other step follows if the program does not end with 0.
- `program`: the file that contains the tests. If it is missing, `make` (a command) is run first to build it.
- `modes`: frameworks, with the bytes that a program with the framework contains (`markers`). The arguments `list` make the
  program list its tests, `run` run them. The first mode counts.
- `report`: a file that the program writes. It is deleted before.
- `write`: files, path to text, that exist only while the program runs.
- `watch`: whether the witness (`witness.c`) is loaded into the program. It notes how the program ended.

The key stays in this process, which other processes of the same user cannot read.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # -I leaves it out

from m3agent.tools.in_sandbox.record_writer import RecordWriter

KEEP = 256 << 10  # bytes kept of the head, and of the tail, of a program's output
MOST_FILE = 8 << 20  # bytes of a file that is returned
MOST_FILES = 2000
BUILD_SECONDS = 300  # for one program that the whole build did not make
MOST_SCAN = 256 << 20  # bytes of a program that are searched for markers
SANITIZERS = (b"__asan_init", b"__tsan_init", b"__msan_init")
"""A program with one of these must be the first to load its own library."""
NOT_DUMPABLE = 4  # PR_SET_DUMPABLE


def head_and_tail(handle: int) -> str:
    """Return the ends of a file. Programs that still write into it do so at its end: they share the position."""
    size = os.fstat(handle).st_size
    head = os.pread(handle, KEEP, 0)
    if size <= KEEP:
        return head.decode("utf-8", "replace")
    tail = os.pread(handle, KEEP, max(KEEP, size - KEEP))
    return (head + b"\n[...]\n" + tail).decode("utf-8", "replace")


def content_of(path: str) -> str:
    try:
        if not os.path.isfile(path):
            return ""
        with open(path, "rb") as file:
            return file.read(MOST_FILE).decode("utf-8", "replace")
    except OSError:
        return ""


def is_linked(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def clean(folder: str) -> None:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.endswith("-src")]
        for name in names:
            path = os.path.join(parent, name)
            if os.access(path, os.X_OK) and os.path.isfile(path) and is_linked(path):
                os.unlink(path)


def collect(patterns: Sequence[str]) -> dict[str, str]:
    paths = sorted(path for pattern in patterns for path in glob.glob(pattern, recursive=True))
    return {path: content_of(path) for path in paths[:MOST_FILES]}


def run(
    argv: Sequence[str], step: Mapping[str, Any], report: str | None = None, watch: str | None = None
) -> dict[str, Any]:
    """Run a program to its end, or kill it and its process group after its time."""
    if report:
        with contextlib.suppress(OSError):
            os.unlink(report)
    env = {**os.environ, **step.get("env", {})}
    done = {"exit": 127, "timed_out": False, "seconds": 0.0, "output": "", "report": "", "watched": None}
    ours, theirs = socket.socketpair()
    with ours, theirs, tempfile.TemporaryFile() as output:
        token = os.urandom(16).hex()
        if watch:
            ours.sendall(token.encode() + b"\n")
            env["LD_PRELOAD"] = " ".join(filter(None, (watch, env.get("LD_PRELOAD"))))
            env["M3AGENT_WITNESS"] = str(theirs.fileno())
        started = time.monotonic()
        try:
            process = subprocess.Popen(
                argv,
                cwd=step.get("cwd") or None,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=(theirs.fileno(),) if watch else (),
            )
        except (OSError, ValueError) as error:
            done["output"] = str(error)
            return done
        try:
            process.wait(step.get("seconds"))
        except subprocess.TimeoutExpired:
            done["timed_out"] = True
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        done["exit"] = process.wait()
        done["seconds"] = time.monotonic() - started
        done["output"] = head_and_tail(output.fileno())
        if report:
            done["report"] = content_of(report)
        if watch:
            done["watched"] = testimony(ours, token, step.get("program", ""))
    return done


def testimony(ours: socket.socket, token: str, program: str) -> list[list[Any]]:
    """Return what the witness said: lists of event, status, stage and place."""
    ours.setblocking(False)
    testified = b""
    while len(testified) < MOST_FILE:
        try:
            part = ours.recv(1 << 16)
        except OSError:
            break
        if not part:
            break
        testified += part
    events = []
    for line in testified.decode("utf-8", "replace").splitlines():
        words = line.split(" ", 6)
        if len(words) == 7 and words[0] == token:
            module = words[6] if os.path.isabs(words[6]) else program
            where = ""
            if "exit" in words[1].lower():
                where = place(module, int(words[4], 16) - 1, int(words[5], 16))  # a return address
            elif ":" in words[1]:
                where = place(module, int(words[4], 16), int(words[5], 16))
            events.append([words[1], int(words[2]), int(words[3]), where])
    return events[:20]


def place(module: str, address: int, base: int) -> str:
    """Return the source file of a call, or the library that contains it."""
    try:
        with open(module, "rb") as file:
            fixed = file.read(18)[16:18] == b"\x02\x00"
        at = address - (0 if fixed else base)
        done = subprocess.run(
            ["addr2line", "-e", module, hex(at)],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=20,
        )
        source = done.stdout.decode("utf-8", "replace").strip().rpartition(":")[0]
    except (OSError, ValueError, subprocess.SubprocessError):
        source = ""
    return os.path.normpath(source) if source and not source.startswith("??") else module


def mode_of(path: str, modes: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any] | None, bool]:
    """Return the mode whose framework a program contains, or None, and whether a sanitizer is in it."""
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_SCAN)
    except OSError:
        return None, False
    linked = content[:4] == b"\x7fELF"
    present = [m for m in modes if linked and any(marker.encode() in content for marker in m["markers"])]
    return (present[0] if present else None), any(name in content for name in SANITIZERS)


def execute(step: Mapping[str, Any], witness: str) -> dict[str, Any]:
    if "clean" in step:
        clean(step["clean"])
        return {}
    for path, text in step.get("write", {}).items():
        with open(path, "x") as file:
            file.write(text)
    try:
        return execute_program(step, witness)
    finally:
        for path in step.get("write", {}):
            os.unlink(path)


def execute_program(step: Mapping[str, Any], witness: str) -> dict[str, Any]:
    if "collect" in step:
        return {"files": collect(step["collect"])}
    program = os.path.join(step.get("cwd", ""), step["program"]) if step.get("program") else ""
    made = {"output": ""}
    if program and step.get("make") and not os.path.isfile(program):
        made = run(step["make"], {"seconds": BUILD_SECONDS})
    if not step["argv"] or (program and not os.path.isfile(program)):
        return {"missing": True, "output": made["output"], "exit": 127}
    mode, sanitized = mode_of(program, step.get("modes", []))
    linked = is_linked(program)
    # the interpreter of a script ends in its own way
    watched = step.get("watch") and linked and not sanitized and os.path.isfile(witness)
    watch = witness if watched else None
    argv, listed = list(step["argv"]), None
    if mode:
        listed = run(argv + mode["list"], step)
        argv += mode["run"]
    done = run(argv, step, step.get("report"), watch)
    done["mode"] = mode["name"] if mode else ""
    done["linked"] = linked
    done["listed"] = listed and listed["output"]
    return done


def main() -> None:
    job_path, key_path, report_path = sys.argv[1:]
    ctypes.CDLL(None).prctl(NOT_DUMPABLE, 0, 0, 0, 0)
    with open(job_path) as file:
        job = json.load(file)
    report = RecordWriter(report_path, key_path)
    report.write("job", [step["name"] for step in job["steps"]])
    for step in job["steps"]:
        report.write("begin", step["name"])
        done = execute(step, job.get("witness", ""))
        report.write("step", step["name"], done)
        if step.get("must") and done["exit"] != 0:
            break
    report.write("end")


if __name__ == "__main__":
    main()

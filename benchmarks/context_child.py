"""Run one command and report its time and memory.

    python -I -S benchmarks/context_child.py STDOUT STDERR COMMAND ...

This is a separate, small program, because Linux counts the memory of the parent process in the peak of the process that
it starts. It prints a line of JSON: `wall` and `cpu` in seconds, `peak` in bytes, `exit`. CPU time is that of the
command and of every process that it waited for; the peak is that of the largest of them.
"""

import json
import os
import sys
import time

KIB = 1024  # the unit of ru_maxrss on Linux


def main() -> int:
    stdout, stderr, *command = sys.argv[1:]
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, stdout, flags, 0o600),
        (os.POSIX_SPAWN_OPEN, 2, stderr, flags, 0o600),
    ]
    started = time.perf_counter()
    child = os.posix_spawnp(command[0], command, os.environ, file_actions=files)
    _, status, used = os.wait4(child, 0)
    wall = time.perf_counter() - started
    took = {
        "wall": wall,
        "cpu": used.ru_utime + used.ru_stime,
        "peak": used.ru_maxrss * KIB,
        "exit": os.waitstatus_to_exitcode(status),
    }
    print(json.dumps(took))
    return 0


if __name__ == "__main__":
    sys.exit(main())

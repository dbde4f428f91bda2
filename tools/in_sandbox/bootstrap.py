"""Start a test program in the sandbox: `python3 -c` gets this text.

Standard input is one line of JSON with these keys:

- "key": Key of the report's authentication codes, in hexadecimal.
- "report": Path of the report, a new file.
- "sources": Names and texts of modules. Each may import those before it. The last one has
  `main(tell, request)`, which returns the exit status.
- "python_path": PYTHONPATH of the tests. This process starts without it, because a start-up file or a module of
  the work tree would otherwise run before, or in the place of, what is imported here.
- "request": What the last module gets.
"""

from __future__ import annotations

import sys

sys.path[:] = [place for place in sys.path if place]  # with -c, Python searches the work tree first

import json
import os
import types


def start(given: dict) -> int:  # type: ignore[type-arg]  # Python 3.8 has no dict[str, object]
    names = [name for name, _ in given["sources"]]
    for name, text in given["sources"]:
        sys.modules[name] = types.ModuleType(name)
        exec(compile(text, "<%s>" % name, "exec"), sys.modules[name].__dict__)
    modules = [sys.modules.pop(name) for name in names]  # the tests must not find them there
    # the tests can read this frame: the key must not stay in it
    tell = modules[0].channel(given["report"], bytes.fromhex(given.pop("key")))
    if given["python_path"]:
        os.environ["PYTHONPATH"] = given["python_path"]
        sys.path[0:0] = [place for place in given["python_path"].split(":") if place]
    return int(modules[-1].main(tell, given["request"]))


if __name__ == "__main__":
    status = start(json.loads(sys.stdin.readline()))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # do not wait for threads that tests left behind

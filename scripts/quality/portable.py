"""Run tests as on a host that is no Linux: without /proc, and without calls that only Linux has.

    python scripts/quality/portable.py [PYTEST ARGUMENT ...]

An empty folder hides /proc from the tests and from the programs that they start, in a mount namespace of their own.
`no_linux/sitecustomize.py` removes the calls from each Python. The Docker engine and its containers keep all of it, as
the Linux machine of an engine on macOS does. Interpreters that ignore PYTHONPATH keep the calls.

Exit status: pytest's, or 2 if the namespace cannot be made.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
QUICK = "not slow and not languages and not frameworks"
SELECTED = f"{QUICK} and not linux and not bwrap"
HIDE = 'mount -t tmpfs -o ro,size=4k none /proc && exec "$@"'


def unshare(*options: str) -> list[str]:
    """Return the words that start a command in a namespace of its own, which needs the rights of root."""
    return ["unshare", *options, *([] if os.geteuid() == 0 else ["--map-root-user"])]


def main(arguments: list[str]) -> int:
    """Run pytest in a namespace without /proc; return its exit status."""
    if shutil.which("unshare") is None:
        print("unshare is not installed: apt-get install util-linux", file=sys.stderr)
        return 2
    env = {**os.environ, "PYTHONPATH": str(HERE / "no_linux"), "TEST_SANDBOXES": "docker"}
    pytest = [sys.executable, "-m", "pytest", "-m", SELECTED, *arguments]
    return subprocess.run(
        [*unshare("--mount"), "sh", "-c", HIDE, "sh", *pytest], env=env, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

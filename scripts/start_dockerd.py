"""Start dockerd as a daemon without a terminal or inherited descriptors, with its output in a file.

Usage: start_dockerd.py LOG [DOCKERD-OPTION...]. Prints the daemon's process id. For machines without systemd.
"""

import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    with Path(sys.argv[1]).open("ab") as log:
        daemon = subprocess.Popen(
            ["dockerd", *sys.argv[2:]],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
    sys.stdout.write(f"{daemon.pid}\n")

"""Say which engines have a newer version than those whose options m3agent knows.

Usage: python -m scripts.quality.newer_engines

It asks pip for the newest version of each engine. It prints a line for each that is newer than all of
`serving/plan/listings/`. Exit status: 0 none is newer; 1 some are; 2 pip did not answer.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from packaging.version import Version

LISTINGS = Path(__file__).parents[2] / "serving" / "plan" / "listings"


def known(folder: Path = LISTINGS) -> dict[str, Version]:
    """Return the newest version of each engine whose options are listed in a folder."""
    newest: dict[str, Version] = {}
    for path in folder.glob("*-*.json"):
        engine, _, text = path.stem.rpartition("-")
        version = Version(text)
        newest[engine] = max(newest.get(engine, version), version)
    return newest


def newest_of(output: str) -> Version | None:
    """Return the newest version in the output of `pip index versions`, or None if it has none."""
    first = re.match(r"\S+ \(([^)\s]+)\)", output)
    return Version(first[1]) if first else None


def main() -> int:
    """Compare, print what is newer, and return the exit status."""
    status = 0
    program = shutil.which("pip") or shutil.which("pip3")  # the environment that uv makes has none
    pip = [program] if program else [sys.executable, "-m", "pip"]
    for engine, version in sorted(known().items()):
        asked = subprocess.run(
            [*pip, "index", "versions", engine], check=False, capture_output=True, text=True
        )
        newest = newest_of(asked.stdout)
        if newest is None:
            reason = (asked.stderr.strip().splitlines() or ["no version in its output"])[-1]
            print(
                f"newer_engines: pip does not say which versions of {engine} there are: {reason}",
                file=sys.stderr,
            )
            return 2
        if newest > version:
            print(f"{engine} {newest} is newer than {version}, the newest whose options m3agent knows")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())

"""Attempts side by side on one packed prefix, against a real vLLM; its weights may be random.

    python -m benchmarks.gpu.attempts --url http://127.0.0.1:8000/v1 [--attempts 4] [--pad FOLDER] [--json FILE]

The engine says the lines of fix.py. Shown is what each attempt's first request found in the server's prefix cache, and how
long it waited for its first token: the first attempt pays for the prompt, the others should not. `--pad` puts the text files
of a folder into the repository, so that the prompt is long. The exit status is 0 when the patch is verified and all others
found at least nine tenths of their first prompt in the cache.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import commit_all, write_json
from benchmarks.gpu.fix import FERRY, LINES, run_fix
from benchmarks.gpu.proxy import ScriptingProxy

LEAST_CACHED = 0.9


def first_turns(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what the first request of each attempt found."""
    numbers = {e["session"]: e["attempt"]["number"] for e in events if e["type"] == "session.started"}
    rows = [
        {"attempt": numbers[event["session"]]}
        | {key: event[key] for key in ("prompt_tokens", "cached_share", "first_token_seconds")}
        for event in events
        if event["type"] == "turn.finished" and event["turn"] == 1
    ]
    return sorted(rows, key=lambda row: row["attempt"])


def main() -> int:
    """Run the attempts and print what each found."""
    parser = argparse.ArgumentParser(description="attempts that share a prefix, against a real engine")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--attempts", type=int, default=4)
    parser.add_argument("--pad", type=Path, help="a folder whose text files make the repository larger")
    parser.add_argument("--json", type=Path, help="write the numbers there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ScriptingProxy(options.url, LINES) as proxy:
        repo = Path(folder) / "ferry"
        shutil.copytree(FERRY, repo)
        if options.pad is not None:
            for path in options.pad.rglob("*.py"):
                copy = repo / "reference" / path.relative_to(options.pad).with_suffix(".txt")
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
        commit_all(repo, "ferry 0.3.0")
        code, events = run_fix(repo, proxy.url, "--thinking", "adaptive", "--attempts", str(options.attempts))
    rows = first_turns(events)
    for row in rows:
        share = "?" if row["cached_share"] is None else f"{row['cached_share']:.4f}"
        print(
            f"attempt {row['attempt']}: prompt {row['prompt_tokens']:,}, cached {share}, "
            f"first token after {row['first_token_seconds']:.2f} s"
        )
    write_json(options.json, {"rows": rows, "exit": code})
    shared = all((row["cached_share"] or 0) >= LEAST_CACHED for row in rows if row["attempt"] > 1)
    return 0 if code == 0 and shared and len(rows) == options.attempts else 1


if __name__ == "__main__":
    sys.exit(main())

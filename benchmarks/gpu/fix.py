"""A whole fix, turn by turn, against a real vLLM with M3's parsers; its weights may be random.

    python -m benchmarks.gpu.fix --url http://127.0.0.1:8000/v1 [--thinking enabled] [--json FILE]

The engine says the lines below (see proxy.py), everything else is as always: `m3agent fix` packs examples/ferry, streams
from the engine, runs its calls in a sandbox and verifies the patch in another. Shown are each turn's tokens, cached share
and speed as the engine reports them, and what the engine's parsers made of M3's text before ours read it again. The exit
status is 0 when the patch is verified, every call was made once, and each request's bytes extend the last one's.

With `--thinking enabled` vLLM must apply grammars to reasoning as well:
`--structured-outputs-config '{"enable_in_reasoning": true}'`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import commit_all, write_json
from benchmarks.gpu.proxy import ScriptingProxy

from m3agent.serving.wire import Call, parse, write

FERRY = Path(__file__).resolve().parents[2] / "examples" / "ferry"
CODE = """\
from ferry import Lane, Vehicle
lane = Lane("quai n° 1 & <annex>", 2400)
for n in range(4):
    van = Vehicle(f"K-{n}", 600)
    print(n, lane.free, lane.accepts(van), "a &amp; b" if n < 2 and n > 0 else "…")
    lane.vehicles.append(van)
"""
LINES = [
    write("The suite tells where I stand, so I run it first.", "", [Call("test_runner", {"test_file": "."})]),
    write(
        "One test fails: the fourth van. Is it `<` where it should be `<=`?\nI read the deck and try it.",
        "The last van is refused. Looking at the deck.",
        [Call("file_read", {"path": "src/ferry/deck.py", "start": 18}), Call("code_exec", {"code": CODE})],
    ),
    write(
        "",
        "The comparison excludes an exact fit.",
        [
            Call(
                "file_edit",
                {
                    "path": "src/ferry/deck.py",
                    "old": "        return vehicle.length < self.free\n",
                    "new": "        return vehicle.length <= self.free\n",
                },
            )
        ],
    ),
    write("Now everything must be green.", "", [Call("test_runner", {"test_file": "tests"})]),
    write(
        "All pass.",
        "A lane refused a vehicle exactly as long as what was left of it; it now takes one that just fits.",
        [],
    ),
]
CALLS = ["test_runner", "file_read", "code_exec", "file_edit", "test_runner"]


def main() -> int:
    """Run the fix and print what happened."""
    parser = argparse.ArgumentParser(description="a scripted fix against a real engine")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--thinking", default="adaptive", choices=["adaptive", "enabled"])
    parser.add_argument("--json", type=Path, help="write the numbers there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ScriptingProxy(options.url, LINES) as proxy:
        repo = Path(folder) / "ferry"
        shutil.copytree(FERRY, repo)
        commit_all(repo, "ferry 0.3.0")
        code, events = run_fix(repo, proxy.url, "--thinking", options.thinking)
    faults = problems(events, proxy)
    show(events, proxy, faults)
    write_json(options.json, {"events": events, "faults": faults})
    return 1 if faults or code else 0


def run_fix(repo: Path, url: str, *more: str) -> tuple[int, list[dict[str, Any]]]:
    """Run `m3agent fix` on the copy of examples/ferry in `repo`; return its exit code and its event log."""
    command = [
        sys.executable,
        "-m",
        "m3agent",
        "fix",
        str(repo / "ISSUE.md"),
        "--repo",
        str(repo),
    ]
    command += ["--endpoint", url, *more, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def problems(events: list[dict[str, Any]], proxy: ScriptingProxy) -> list[str]:
    """Return the deviations from the expected run."""
    found = []
    status = [event["status"] for event in events if event["type"] == "session.finished"]
    if status != ["verified"]:
        found.append(f"the session ended as {status}")
    calls = [event["name"] for event in events if event["type"] == "call.started"]
    if calls != CALLS:
        found.append(f"the calls made were {calls}")
    for earlier, later in itertools.pairwise(proxy.requests):
        if not later.startswith(messages_of(earlier)):
            found.append("a request does not extend the bytes of the previous request")
    sent = [
        m.get("reasoning", "") for m in json.loads(proxy.requests[-1])["messages"] if m["role"] == "assistant"
    ]
    if sent != [parse(line, None).reasoning for line in LINES[: len(sent)]]:
        found.append("the reasoning in a later request differs from the reasoning that the engine wrote")
    return found


def messages_of(body: bytes) -> bytes:
    """Return the bytes of a request up to the end of its last message."""
    text = body.decode()
    _, end = json.JSONDecoder().raw_decode(text, len('{"messages":'))
    return text[: end - 1].encode()


def leaks(stream: bytes) -> str:
    """Describe the markup in an answer that vLLM's parsers left to m3agent's."""
    found = []
    deltas = [
        choice["delta"]
        for line in stream.decode().splitlines()
        if line.startswith("data: {")
        for choice in json.loads(line[6:]).get("choices", [])
    ]
    content = "".join(delta.get("content") or "" for delta in deltas)
    if "mm:think>" in content:
        found.append("think tags in content")
    if "]<]minimax[>[" in content:
        found.append("call markup in content")
    pieces = [call["function"] for delta in deltas for call in delta.get("tool_calls") or ()]
    whole = [piece for piece in pieces if piece.get("name") and piece.get("arguments")]
    if whole:
        found.append(f"{len(whole)} of {len(pieces)} pieces hold a whole call")
    return ", ".join(found) or "nothing"


def show(events: list[dict[str, Any]], proxy: ScriptingProxy, faults: list[str]) -> None:
    """Print the results."""
    for event in events:
        match event["type"]:
            case "endpoint.probed":
                shown = (
                    "flavour",
                    "version",
                    "max_model_len",
                    "prefix_caching",
                    "cached_tokens",
                    "tokenizer_seconds",
                )
                print("endpoint:", ", ".join(f"{name} {event[name]}" for name in shown))
            case "turn.finished":
                share, speed = event["cached_share"], event["tokens_per_second"]
                print(
                    f"turn {event['turn']}: {event['finish']:<10} prompt {event['prompt_tokens']}"
                    f" (cached {'?' if share is None else f'{share:.3f}'}), completion {event['completion_tokens']},"
                    f" first token {event['first_token_seconds']:.3f} s, {'?' if speed is None else f'{speed:.0f}'}/s;"
                    f" left to our parser: {leaks(proxy.answers[event['turn'] - 1])}"
                )
            case "retry" | "error" | "verify" | "session.finished":
                print(f"{event['type']}:", event.get("reason") or event.get("text"))
    for fault in faults:
        print("FAULT:", fault)


if __name__ == "__main__":
    sys.exit(main())

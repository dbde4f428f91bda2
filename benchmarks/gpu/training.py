"""Whether each prompt of a fix begins with the last prompt and its answer, on a real vLLM whose weights may be random.

    python -m benchmarks.gpu.training --tokenizer MODEL/tokenizer.json [--url http://127.0.0.1:8000/v1]

The engine says ten lines (see proxy.py) in `m3agent fix --training`. Programs that train a model want to use all turns as one
sequence of tokens. This compares each prompt with the last one and its answer, in three ways:

- tokens: the ids that the engine reports. Random weights spell a line with other tokens than the tokenizer would, and the
  template can only repeat the text. So with them this says nothing about the template.
- text: the same ids as text.
- spelled: the ids of the last prompt, and those that the tokenizer gives the answer's text.

The exit status is 1 if a text differs, or the spelled ids do: then the template or m3agent changed the conversation.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import commit_all
from benchmarks.gpu.fix import FERRY, LINES, run_fix
from benchmarks.gpu.proxy import ScriptingProxy

from m3agent.agent.session.token_log import read_tokens
from m3agent.serving.client.messages import TurnTokens
from m3agent.serving.wire import Call, write

BASH = "wc -l src/ferry/*.py | sort -n\ngrep -n '<' src/ferry/deck.py\n"
TEN_LINES = [
    *LINES[:2],
    write(
        "Is it the name?\nI try a wrong one.", "", [Call("code_exec", {"code": "from ferry import Barge\n"})]
    ),
    write("It fails.", "Now the tests.", [Call("file_read", {"path": "tests/test_sailing.py"})]),
    write("", "How large is it?", [Call("code_exec", {"code": BASH, "language": "bash"})]),
    *LINES[2:4],
    write(
        "Does the diff show one line?",
        "",
        [
            Call("code_exec", {"code": "git diff --stat\n", "language": "bash"}),
            Call("file_read", {"path": "src/ferry/deck.py", "start": 30, "end": 40}),
        ],
    ),
    write("Once more, with everything.", "", [Call("test_runner", {"test_file": "."})]),
    LINES[4],
]


def kept(before: Sequence[object], after: Sequence[object]) -> int:
    """Return how many items of `before` are at the beginning of `after`."""
    pairs = enumerate(zip(before, after, strict=False))
    return next((place for place, (old, new) in pairs if old != new), min(len(before), len(after)))


def compared(turns: Sequence[TurnTokens], tokenizer_file: Path) -> list[dict[str, bool]]:
    """Return for each turn but the first which of its forms begin with the last turn."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))

    def text(ids: Sequence[int]) -> str:
        return str(tokenizer.decode([*ids], skip_special_tokens=False))

    found = []
    for last, turn in itertools.pairwise(turns):
        before = last.prompt + last.completion
        answer = tokenizer.encode(text(last.completion), add_special_tokens=False).ids
        spelled = [*last.prompt, *answer]
        found.append(
            {
                "tokens": kept(before, turn.prompt) == len(before),
                "text": text(turn.prompt).startswith(text(before)),
                "spelled": kept(spelled, turn.prompt) == len(spelled),
            }
        )
    return found


def main() -> int:
    """Run the fix and print the comparison."""
    parser = argparse.ArgumentParser(description="whether the prompts of a fix only grow, on a real engine")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="FILE")
    parser.add_argument("--sandbox", default="bwrap")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ScriptingProxy(options.url, TEN_LINES) as proxy:
        repo = Path(folder) / "ferry"
        shutil.copytree(FERRY, repo)
        commit_all(repo, "ferry 0.3.0")
        os.environ["M3AGENT_STATE"] = f"{folder}/state"
        code, events = run_fix(
            repo, proxy.url, "--thinking", "adaptive", "--training", "--sandbox", options.sandbox
        )
        turns = read_tokens(Path(folder) / "state" / "sessions" / events[0]["session"])
    rows = compared([turns[number] for number in sorted(turns)], options.tokenizer)
    print("| turn | tokens | text | spelled |\n|---:|---|---|---|")
    for number, row in enumerate(rows, 2):
        print(f"| {number} | " + " | ".join("equal" if same else "differ" for same in row.values()) + " |")
    print(f"the fix ended with exit code {code}; {len(turns)} of {len(proxy.requests)} turns have tokens")
    complete = len(turns) == len(proxy.requests) == len(TEN_LINES)
    return 0 if code == 0 and complete and all(row["text"] and row["spelled"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

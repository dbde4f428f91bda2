"""Run the property tests repeatedly with new random examples, and print each finding as a ready `@example`.

    python scripts/quality/fuzz.py --minutes 10 | --rounds 5 [--seed N] [PYTEST ARGUMENT ...]

Each round has its own seed, which is printed. `--seed` sets the seed of the first round. Exit status: 0 without a
finding, 1 with a finding, 2 if the tests did not run.
"""

from __future__ import annotations

import argparse
import ast
import math
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

FALSIFYING = re.compile(
    r"^(?:E\s+)?(?:\s*[|+-]*\s*)(?:Falsifying example|Failing test case): (\w+)\(", re.MULTILINE
)
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
PYTEST = ("-m", "pytest", "-q", "-m", "hypothesis", "--hypothesis-profile=fuzz", "-p", "no:cacheprovider")


@dataclass(frozen=True)
class Finding:
    """A failing example of the property test `test`. `arguments` maps each parameter to Python source."""

    test: str
    arguments: dict[str, str]

    def __str__(self) -> str:
        lines = (f"    {name}={value},\n" for name, value in self.arguments.items())
        return f"# {self.test}\n@example(\n{''.join(lines)})"


def findings(output: str) -> Iterator[Finding]:
    """Yield the failing examples that Hypothesis printed in pytest's output."""
    for match in FALSIFYING.finditer(output):
        lines = []
        for line in output[match.end() - 1 :].splitlines():
            lines.append(re.sub(r"^E ?", "", line))
            try:
                call = ast.parse("f" + "\n".join(lines).strip(), mode="eval").body
            except SyntaxError:
                if len(lines) > 2000:  # no complete call: the output was cut
                    break
                continue
            assert isinstance(call, ast.Call)
            # leave out the fixture tmp_path: its folder exists only in that run
            arguments = {
                k.arg: ast.unparse(k.value) for k in call.keywords if k.arg and "tmp_path" not in k.arg
            }
            yield Finding(match[1], arguments)
            break


def run_round(seed: int, seconds: float | None, arguments: list[str]) -> tuple[int, str]:
    """Run the property tests once; interrupt them after `seconds` if not None.

    Returns pytest's exit status (2 if interrupted) and output.
    """
    command = [sys.executable, *PYTEST, f"--hypothesis-seed={seed}", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # pytest then prints its findings so far
            output, _ = process.communicate()
            return 2, output  # with several workers, pytest's own status may differ
        return process.returncode, output


def main() -> int:
    """Fuzz until the time is over, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, help="stop after so many rounds, however long they take")
    parser.add_argument("--seed", type=int)
    options, arguments = parser.parse_known_args()
    end = math.inf if options.rounds else time.monotonic() + options.minutes * 60
    seen: set[str] = set()
    rounds = 0
    seed = options.seed
    while (left := end - time.monotonic()) > 0 and rounds != options.rounds:
        seed = random.SystemRandom().getrandbits(32) if seed is None else seed
        status, output = run_round(seed, None if left == math.inf else left, arguments)
        if status not in (0, 1, 2):  # passed, failed, interrupted
            print(output)
            return 2
        rounds += 1
        found = [str(finding) for finding in findings(output)]
        # if the variable CI is set, pytest may repeat a finding in its summary
        new = [text for text in dict.fromkeys(found) if text not in seen]
        failed = FAILED.findall(output)
        print(f"round {rounds}, seed {seed}: {', '.join(failed) or 'no finding'}", flush=True)
        for text in new:
            print(text, flush=True)
        if failed and not found:
            print(output)
        seen.update(found or failed)
        seed = None
    print(f"{rounds} rounds, {len(seen)} findings")
    return 1 if seen else 0


if __name__ == "__main__":
    sys.exit(main())

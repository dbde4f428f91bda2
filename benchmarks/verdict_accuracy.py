"""Measure how often verdicts are right, over several repositories.

    python -m benchmarks.verdict_accuracy [--fixes 12] [--json FILE] CLONE...

Runs `m3agent eval verdicts` in each clone, bare or not, which keeps what it measured: a further call continues. Prints a table
by language and kind of patch, with 95 % intervals (Wilson), and each verdict that is not right with its reason.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

from benchmarks.common import name_of, say

from m3agent.agent.verify.accuracy import Measured, Trial
from m3agent.evals.report.statistics import wilson
from m3agent.evals.verdicts.variants import KINDS
from m3agent.sandbox.store.git import run_git
from m3agent.tools.runners.suites import CODE

LANGUAGES = {".py": "Python", ".go": "Go", ".rs": "Rust", ".rb": "Ruby"} | dict.fromkeys(
    (".js", ".cjs", ".mjs", ".ts", ".tsx"), "JavaScript"
)


@dataclass(frozen=True)
class Result:
    """The trials of a clone."""

    name: str
    language: str
    trials: tuple[Trial, ...]


def language_of(clone: Path) -> str:
    """Return the language of most of the code of a clone's last commit."""
    git_dir = clone / ".git" if (clone / ".git").exists() else clone
    names = run_git("ls-tree", "-r", "--name-only", "HEAD", env={"GIT_DIR": str(git_dir)}).stdout.decode()
    suffixes = Counter(Path(name).suffix for name in names.splitlines())
    suffix = max((each for each in suffixes if each in CODE), key=lambda each: suffixes[each], default="")
    return LANGUAGES.get(suffix, "other")


def measured(clone: Path, fixes: int) -> Result | None:
    """Run the command in a clone; None if it fails."""
    command = [sys.executable, "-m", "m3agent", "eval", "verdicts", "--repo", str(clone), "--json"]
    done = subprocess.run([*command, "--fixes", str(fixes)], stdout=subprocess.PIPE, check=False)
    if done.returncode not in (0, 1):
        say(f"{name_of(clone)}: exit code {done.returncode}")
        return None
    found = Measured.model_validate(json.loads(done.stdout))
    return Result(name_of(clone), language_of(clone), found.trials)


def line(name: str, trials: Sequence[Trial]) -> str:
    """Return a line of the table."""
    verdicts = Counter(trial.verdict for trial in trials)
    interval = wilson(verdicts["verified"], len(trials))
    counts = " | ".join(str(verdicts[each]) for each in ("verified", "unverified", "failed"))
    share = verdicts["verified"] / len(trials)
    return f"| {name} | {len(trials)} | {counts} | {share:.1%} ({interval.low:.1%} to {interval.high:.1%}) |"


def table(results: Iterable[Result]) -> str:
    """Return the table in Markdown, and below it each verdict that is not right."""
    found = [(result, trial) for result in results for trial in result.trials]
    lines = [
        "| patches | number | verified | unverified | failed | verified, of all |",
        "|---|" + "---:|" * 5,
    ]
    for kind in KINDS:
        if of_kind := [trial for _, trial in found if trial.kind == kind]:
            lines.append(line(kind, of_kind))
    for language in sorted({result.language for result, _ in found}):
        for is_right in (True, False):
            those = [each for of, each in found if of.language == language and each.is_right == is_right]
            if those:
                lines.append(line(f"{language}: {'right' if is_right else 'wrong'}", those))
    for is_right in (True, False):
        if those := [trial for _, trial in found if trial.is_right == is_right]:
            lines.append(line(f"all: {'right' if is_right else 'wrong'}", those))
    fixes = {(result.name, trial.commit) for result, trial in found}
    lines.append(f"\n{len(fixes)} fixes of {len({name for name, _ in fixes})} repositories")
    lines += [
        f"{result.name} {trial.commit[:12]} {trial.kind}: {trial.verdict} ({trial.rule}): {trial.reason}"
        for result, trial in found
        if trial.is_misjudged
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure in each clone and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("clones", nargs="+", type=Path, metavar="CLONE")
    parser.add_argument("--fixes", type=int, default=12, help="fixes of each repository")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all trials to this file")
    given = parser.parse_args()
    results: list[Result] = []
    for clone in given.clones:
        if (result := measured(clone.resolve(), given.fixes)) is None:
            continue
        results.append(result)
        say(f"{result.name}: {len(result.trials)} trials")
        if given.json is not None:
            rows = [
                {"repository": each.name, **trial.model_dump()} for each in results for trial in each.trials
            ]
            given.json.write_text(json.dumps(rows, indent=1))
    print(table(results))


if __name__ == "__main__":
    main()

"""Measure how often verdicts are right, over several repositories.

    python -m benchmarks.verdict_accuracy [--fixes 6] [--minutes 30] CLONE...
    python -m benchmarks.verdict_accuracy --table [--write]

The first form runs `m3agent eval verdicts` in clones, bare or not, and appends its trials to benchmarks/results/verdicts.csv. It
never repeats the commits that are there: a further call continues, also on another machine. After `--minutes` in a clone it goes
on to the next one.

The second form prints what the file holds: a table by language and kind of patch, with 95 % intervals (Wilson), and each verdict
that is not right with its reason. `--write` puts the table into docs/benchmarks.md, and its two rates into README.md.
"""

from __future__ import annotations

import argparse
import csv
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from benchmarks.common import TIDY_UP, git, name_of, say

from m3agent.agent.verify.accuracy import Measured, Trial, path_of, read, write
from m3agent.cli.common import state_folder
from m3agent.evals.report.statistics import wilson
from m3agent.evals.verdicts.variants import KINDS, RIGHT
from m3agent.sandbox.store.git import run_git
from m3agent.tools.runners.suites import CODE
from scripts.docs.settings_page import renewed

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "verdicts.csv"
LEFT_OUT = "left out"
"""What stands in place of a kind for a commit whose tests cannot label a patch."""
LANGUAGES = {".py": "Python", ".go": "Go", ".rs": "Rust", ".rb": "Ruby"} | dict.fromkeys(
    (".js", ".cjs", ".mjs", ".ts", ".tsx"), "JavaScript"
)


@dataclass(frozen=True)
class Row:
    """A line of the file: a trial, or a commit that was left out."""

    repository: str
    language: str
    commit: str
    kind: str
    verdict: str = ""
    rule: str = ""
    seconds: str = ""
    m3agent: str = ""
    """The commit of m3agent that judged."""
    reason: str = ""
    """The reason of a verdict that is not right."""

    @property
    def is_right(self) -> bool:
        """Whether the patch is right."""
        return self.kind in RIGHT

    @property
    def trial(self) -> Trial:
        """The trial as `m3agent eval verdicts` keeps it."""
        of_trial = (self.verdict, self.rule, self.reason, float(self.seconds))
        names = ("verdict", "rule", "reason", "seconds")
        values = dict(zip(names, of_trial, strict=True))
        return Trial.model_validate(
            {"commit": self.commit, "kind": self.kind, "is_right": self.is_right, **values}
        )


def rows_of(path: Path = RESULTS) -> list[Row]:
    """Return the lines of the file."""
    with path.open(newline="") as file:
        return [Row(**line) for line in csv.DictReader(file)]


def append(rows: Sequence[Row], path: Path = RESULTS) -> None:
    """Add lines to the file, with a line of names if it is new."""
    path.parent.mkdir(exist_ok=True)
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([[field.name for field in fields(Row)]] if is_new else [])
        writer.writerows(map(astuple, rows))


def language_of(git_dir: Path) -> str:
    """Return the language of most of the code of a clone's last commit."""
    names = run_git("ls-tree", "-r", "--name-only", "HEAD", env={"GIT_DIR": str(git_dir)}).stdout.decode()
    suffixes = Counter(Path(name).suffix for name in names.splitlines())
    suffix = max((each for each in suffixes if each in CODE), key=lambda each: suffixes[each], default="")
    return LANGUAGES.get(suffix, "other")


def measured(clone: Path, known: Sequence[Row], fixes: int, seconds: float) -> list[Row]:
    """Run the command in a clone until so many fixes are known.

    Returns:
        The new lines.
    """
    name, git_dir = name_of(clone), clone / ".git" if (clone / ".git").exists() else clone
    kept, own = path_of(state_folder(), git_dir), [row for row in known if row.repository == name]
    commits = {row.commit for row in own}
    state = read(kept)  # it may have more, if an earlier call was killed
    before = Measured(
        trials=(
            *(row.trial for row in own if row.kind != LEFT_OUT),
            *(trial for trial in state.trials if trial.commit not in commits),
        ),
        silent=tuple({*state.silent, *(row.commit for row in own if row.kind == LEFT_OUT)}),
        untested=state.untested,
    )
    write(kept, before)
    command = [sys.executable, "-m", "m3agent", "eval", "verdicts", "--repo", str(clone)]
    with subprocess.Popen([*command, "--fixes", str(fixes)], stdout=subprocess.DEVNULL) as process:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            process.wait(TIDY_UP)
    after, language, judge = read(kept), language_of(git_dir), _judge()
    rows = [_row(name, language, trial, judge) for trial in after.trials]
    rows += [Row(name, language, commit, LEFT_OUT) for commit in after.silent]
    return [row for row in rows if row.commit not in commits]


def _row(name: str, language: str, trial: Trial, judge: str) -> Row:
    reason = trial.reason if trial.is_misjudged else ""
    told = (trial.commit, trial.kind, trial.verdict, trial.rule)
    return Row(name, language, *told, f"{trial.seconds:g}", judge, reason)


def _judge() -> str:
    """Return the commit of m3agent that judges."""
    return git(ROOT, "rev-parse", "--short=12", "HEAD").stdout.decode().strip()


def fixes_in(rows: Sequence[Row]) -> set[tuple[str, str]]:
    """Return the repositories and the commits of the fixes that count."""
    return {(row.repository, row.commit) for row in rows if row.kind != LEFT_OUT}


def measure(clones: Sequence[Path], fixes: int, minutes: float) -> None:
    """Measure until each clone has so many fixes, or until its time is over."""
    for clone in clones:
        name, known = name_of(clone), rows_of() if RESULTS.exists() else []
        if sum(repository == name for repository, _ in fixes_in(known)) < fixes:
            say(name)
            append(measured(clone, known, fixes, 60 * minutes))


def line(name: str, rows: Sequence[Row]) -> str:
    """Return a line of the table."""
    verdicts = Counter(row.verdict for row in rows)
    interval = wilson(verdicts["verified"], len(rows))
    counts = " | ".join(str(verdicts[each]) for each in ("verified", "unverified", "failed"))
    share = verdicts["verified"] / len(rows)
    return f"| {name} | {len(rows)} | {counts} | {share:.1%} ({interval.low:.1%} to {interval.high:.1%}) |\n"


def table(rows: Sequence[Row]) -> str:
    """Return the table in Markdown, and how many fixes it holds."""
    trials = [row for row in rows if row.kind != LEFT_OUT]
    groups, fixes = groups_of(trials), fixes_in(rows)
    other = {(row.repository, row.commit) for row in trials if row.language != "Python"}
    verified = [row for row in trials if row.verdict == "verified"]
    true = sum(row.is_right for row in verified)
    at_least = wilson(true, len(verified)).low if verified else 0
    return (
        f"{len(fixes)} fixes of {len({name for name, _ in fixes})} repositories, {len(other)} of them not Python. Of {len(verified)} "
        f"verified patches, {true} are right: {at_least:.1%} or more, with a confidence of 95 %.\n\n"
        "| patches | number | verified | unverified | failed | verified, of all |\n"
        f"|---|{'---:|' * 5}\n"
        f"{''.join(line(name, those) for name, those in groups.items() if those)}"
    )


def groups_of(trials: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the trials by kind, and the right and the wrong ones of each language and of all."""
    languages = sorted({row.language for row in trials})
    labels = [f"{name}: {label}" for name in (*languages, "all") for label in ("right", "wrong")]
    groups: dict[str, list[Row]] = {name: [] for name in (*KINDS, *labels)}
    for row in trials:
        label = "right" if row.is_right else "wrong"
        for name in (row.kind, f"{row.language}: {label}", f"all: {label}"):
            groups[name].append(row)
    return groups


def rates(rows: Sequence[Row]) -> str:
    """Return the rates in a sentence."""

    def share(those: Sequence[Row]) -> str:
        return f"{sum(row.verdict == 'verified' for row in those)} of {len(those)}"

    wrong = [row for row in rows if row.kind != LEFT_OUT and not row.is_right]
    whole, changed, code = (
        [row for row in rows if row.kind == kind] for kind in ("whole", "whole, tests changed", "code")
    )
    return (
        f"{len(fixes_in(rows))} upstream fixes were judged in several forms. With their failing tests already in the repository, {share(code)}\n"
        f"were verified. With their tests in the patch: {share(whole)} that only add tests, and {share(changed)} that also change some,\n"
        "because only a person can say that an existing test may change (`--pinned`).\n"
        f"Of their wrong variants, {share(wrong)} were verified.\n"
    )


def misjudged(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a sentence about each verdict that is not right."""
    for row in rows:
        if row.kind != LEFT_OUT and row.trial.is_misjudged:
            yield f"{row.repository} {row.commit[:12]} {row.kind}: {row.verdict} ({row.rule}): {row.reason}"


PAGES: dict[Path, Callable[[Sequence[Row]], str]] = {
    ROOT / "docs" / "benchmarks.md": lambda rows: f"\n{table(rows)}\n",
    ROOT / "README.md": rates,
}
"""The pages that show a part of this."""
PART = "verdicts"
"""The name of that part."""


def main() -> None:
    """Measure in each clone, or print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("clones", nargs="*", type=Path, metavar="CLONE")
    parser.add_argument("--fixes", type=int, default=6, help="fixes of each repository")
    parser.add_argument("--minutes", type=float, default=30, help="most minutes for a repository")
    parser.add_argument("--table", action="store_true", help="print what is known")
    parser.add_argument("--write", action="store_true", help="write it into docs/benchmarks.md and README.md")
    given = parser.parse_args()
    measure([clone.resolve() for clone in given.clones], given.fixes, given.minutes)
    rows = rows_of()
    if given.table:
        print(table(rows), *misjudged(rows), sep="\n")
    if given.write:
        for page, made in PAGES.items():
            page.write_text(renewed(page.read_text(), made(rows), PART))


if __name__ == "__main__":
    main()

"""Verify thirteen patches by others: real fixes of public repositories, wrong ones, and three that cheat or are flaky.

    python -m benchmarks.others_patches [--only WORD ...] [--json FILE] CLONE...

Each CLONE is a local clone, bare or not, of boltons, cachetools, humanize or tenacity; a patch whose commit no clone has is left
out, and the program says so. The base of a patch is the parent of the real fix with the tests of that fix, except for those
patches that are the whole commit, tests included. One wrong patch is right for all tests: verification cannot see more than they
do, so *verified* is the right verdict for it.

Each patch is verified with `m3agent verify`. Then its certificate is checked in a second clone with an empty state folder, and
must hold. At the end, one byte is flipped in the certificate and one in the patch; both must be noticed. The exit status is 1 if a
verdict is wrong, a certificate does not hold, or a flipped byte is not noticed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import IDENTITY, name_of, parser_of, say, write_json

WRONG = frozenset({"failed", "unverified"})
"""The verdicts that are right for a patch that must not be trusted."""
BITS, DOUBLE_S = "c1c25da365cf14878cf5317147e7a09b5d124df5", "1e61524a798ea73632029a013a7686036d5c126f"
ORDINAL, NATURAL = "0bdf1d9e5f42b7179e7aae52cb70d26283a4c5ed", "823ad6096e1e5ba82ea876ce761fc2efebd76157"
WAIT, DESCRIPTOR = "c650fb4520", "57d2e4813d9801f97034559e22428bac6f7c6c9b"

FORGER = """import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    report.outcome = "passed"
    report.longrepr = None
"""


@dataclass(frozen=True)
class Theirs:
    """A patch.

    Attributes:
        name: What it does.
        fix: The real fix that it stands for, a commit.
        right: The verdicts that are right.
        edits: Path, old text and new text of each change; an empty old text makes a new file, an empty new text deletes a file.
            None for the change of the real fix.
        whole: Whether it is the whole commit, with the tests.
        steady: Whether every verification must have the same result.
    """

    name: str
    fix: str
    right: frozenset[str] = frozenset({"verified"})
    edits: tuple[tuple[str, str, str], ...] | None = None
    whole: bool = False
    steady: bool = True


def rollover(condition: str) -> tuple[tuple[str, str, str], ...]:
    """Return the fix of naturalsize with another condition."""
    before = '    space = "" if gnu else " "\n'
    check = f"    if {condition}abs(float(format % (abs_bytes / (base**exp)))) >= base:\n        exp += 1\n"
    return (("src/humanize/filesize.py", before, check + before),)


PATCHES = (
    Theirs("real: length of Bits", BITS),
    Theirs("real: words that end in ss", DOUBLE_S, whole=True),
    Theirs("real: ordinals of 111 to 113", ORDINAL),
    Theirs("real: rollover of naturalsize", NATURAL),
    Theirs("real: threshold of exponential waits", WAIT, whole=True),
    Theirs("real: cached methods of a class", DESCRIPTOR, whole=True),
    Theirs(
        "wrong: only 111, not 112 and 113",
        ORDINAL,
        WRONG,
        (
            (
                "tenacity/_utils.py",
                "    if pos_num == 0:",
                '    if pos_num % 100 == 11:\n        return "th"\n    if pos_num == 0:',
            ),
        ),
    ),
    Theirs(
        "wrong: off by one in the other direction",
        BITS,
        WRONG,
        (("boltons/mathutils.py", "if val > 2 ** len_:", "if val >= 2 ** len_ - 1:"),),
    ),
    Theirs(
        "wrong: only for decimal units", NATURAL, WRONG, rollover("exp < len(suffix) and base == 1000 and ")
    ),
    Theirs("wrong where no test looks: the largest unit", NATURAL, edits=rollover("")),
    Theirs("forged by conftest.py", BITS, WRONG, (("conftest.py", "", FORGER),)),
    Theirs("deletes the tests", BITS, WRONG, (("tests/test_mathutils.py", "def", ""),)),
    Theirs(
        "flaky: right in every second process",
        ORDINAL,
        WRONG,
        (
            (
                "tenacity/_utils.py",
                "    if pos_num == 0:",
                '    if _LUCKY and 11 <= pos_num % 100 <= 13:\n        return "th"\n    if pos_num == 0:',
            ),
            (
                "tenacity/_utils.py",
                "def find_ordinal(",
                "import os\n\n_LUCKY = os.urandom(1)[0] & 1\n\n\ndef find_ordinal(",
            ),
        ),
        steady=False,
    ),
)


@dataclass(frozen=True)
class Row:
    """What was found. `held` is None if the certificate need not hold."""

    name: str
    repository: str
    verdict: str
    right: bool
    held: bool | None
    seconds: float
    reason: str

    def line(self) -> str:
        """Return the patch as a line of a Markdown table."""
        verdict = self.verdict if self.right else f"**{self.verdict}**"
        held = {True: "holds", False: "**does not hold**", None: "not asked"}[self.held]
        return (
            f"| {self.name} | {self.repository} | {verdict} | {held} | {self.seconds:.0f} s | {self.reason} |"
        )


def git(folder: Path, *args: str) -> str:
    """Run git, and return its output. Raises SystemExit."""
    done = subprocess.run(["git", *IDENTITY, *args], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"git {' '.join(args[:2])} failed in {folder}: {done.stderr.strip()}")
    return done.stdout


def m3agent(state: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run m3agent with a state folder."""
    env = {**os.environ, "M3AGENT_STATE": str(state)}
    program = [sys.executable, "-m", "m3agent.agent", *args]
    return subprocess.run(program, env=env, capture_output=True, text=True, check=False)


def source_of(clones: list[Path], commit: str) -> Path | None:
    """Return the clone that has a commit."""
    for clone in clones:
        done = subprocess.run(
            ["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=clone, capture_output=True, check=False
        )
        if done.returncode == 0:
            return clone
    return None


def prepare(one: Theirs, source: Path, folder: Path) -> tuple[Path, Path]:
    """Make a clone with the base checked out, and the patch; return both."""
    clone, patch = folder / "clone", folder / "patch.diff"
    git(folder, "clone", "-q", "--no-checkout", str(source.absolute()), "clone")
    git(clone, "checkout", "-q", "-B", "base", f"{one.fix}^")
    changed = git(clone, "diff", "--name-only", f"{one.fix}^", one.fix).split()
    tests = [path for path in changed if path.startswith("tests/")]
    if not one.whole:
        git(clone, "checkout", "-q", one.fix, "--", *tests)
        git(clone, "commit", "-q", "-m", "the tests of the fix")
    if one.edits is None:
        code = changed if one.whole else [path for path in changed if path not in tests]
        git(clone, "checkout", "-q", one.fix, "--", *code)
    for path, old, new in one.edits or ():
        file = clone / path
        if not new:
            file.unlink()
            continue
        text = file.read_text() if old else ""
        if old and text.count(old) != 1:
            raise SystemExit(f"{path} of {one.fix[:10]} has {old!r} {text.count(old)} times")
        file.write_text(text.replace(old, new) if old else new)
    git(clone, "add", "-A")
    patch.write_text(git(clone, "diff", "--cached", "--binary"))
    git(clone, "reset", "-q", "--hard")
    return clone, patch


def judge(one: Theirs, source: Path, folder: Path) -> Row:
    """Verify a patch, and check its certificate in a second clone."""
    clone, patch = prepare(one, source, folder)
    certificate, began = folder / "certificate.json", time.monotonic()
    done = m3agent(
        folder / "state",
        "verify",
        str(patch),
        "--repo",
        str(clone),
        "--certificate",
        str(certificate),
        "--yes",
    )
    seconds = time.monotonic() - began
    if not certificate.exists():
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        return Row(one.name, name_of(source), f"none (exit {done.returncode})", False, None, seconds, said)
    said = json.loads(certificate.read_text())["predicate"]
    git(folder, "clone", "-q", "--branch", "base", "clone", "second")
    again = m3agent(
        folder / "other-state",
        "verify",
        str(patch),
        "--check",
        str(certificate),
        "--repo",
        str(folder / "second"),
        "--yes",
    )
    held = again.returncode == 0 if one.steady else None
    if held is False:
        say(again.stdout + again.stderr)
    return Row(
        one.name,
        name_of(source),
        said["verdict"],
        said["verdict"] in one.right,
        held,
        seconds,
        said["reason"],
    )


def flips_are_noticed(folder: Path) -> bool:
    """Return whether a flipped byte of the certificate, and one of the patch, are noticed."""
    certificate, patch = folder / "certificate.json", folder / "patch.diff"
    flipped = folder / "flipped.json"
    data = bytearray(certificate.read_bytes())
    data[data.index(b'"reason": "') + len(b'"reason": "')] ^= 1
    flipped.write_bytes(data)
    clone, state = str(folder / "second"), folder / "other-state"
    first = m3agent(state, "verify", str(patch), "--check", str(flipped), "--repo", clone)
    lines = patch.read_text().splitlines(keepends=True)
    at = next(
        n
        for n, line in enumerate(lines)
        if line.startswith("+") and not line.startswith("+++") and line.strip() != "+"
    )
    lines[at] = lines[at].rstrip("\n") + " \n"
    other = folder / "flipped.diff"
    other.write_text("".join(lines))
    second = m3agent(state, "verify", str(other), "--check", str(certificate), "--repo", clone)
    say(f"flipped in the certificate: {first.stderr.strip()}")
    say(f"changed in the patch: {second.stdout.strip().splitlines()[:1]}")
    return first.returncode == 2 and "was changed" in first.stderr and second.returncode == 1


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    parser.add_argument("clones", nargs="+", type=Path, metavar="CLONE")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="WORD",
        help="only patches whose names have one of these words",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to this file")
    given = parser.parse_args()
    rows, noticed = list[Row](), None
    print(
        "| patch | repository | verdict | certificate in a second clone | time | reason |\n|---|---|---|---|---|---|",
        flush=True,
    )
    for one in PATCHES:
        if given.only and not any(word in one.name for word in given.only):
            continue
        source = source_of(given.clones, one.fix)
        if source is None:
            say(f"left out, because no clone has its commit: {one.name}")
            continue
        with tempfile.TemporaryDirectory() as folder:
            rows.append(judge(one, source, Path(folder)))
            print(rows[-1].line(), flush=True)
            if noticed is None and rows[-1].verdict == "verified":
                noticed = flips_are_noticed(Path(folder))
    write_json(given.json, rows)
    right = sum(row.right for row in rows)
    print(f"\n{right} of {len(rows)} verdicts are right; flipped bytes are noticed: {noticed}")
    sys.exit(0 if right == len(rows) and noticed and all(row.held is not False for row in rows) else 1)


if __name__ == "__main__":
    main()

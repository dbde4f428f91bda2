"""Test how declared checks judge patches: in real sandboxes, with a checker that the tree contains."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from m3agent.agent.checks.run import CheckResult
from m3agent.agent.report.words import evidence as words_of
from m3agent.agent.session.events import Verify
from m3agent.agent.verify.feedback import feedback_on
from m3agent.sandbox.backends.factory import Backend
from tests.agent.scripted import DONE, Fixes, calls
from tests.agent.scripted import TEST as RUN
from tests.agent.verify.real_runs import verified

LINT = """import pathlib, sys
wrong = [(path, n) for path in sorted(pathlib.Path().glob("*.py")) for n, line in enumerate(path.read_text().splitlines(), 1)
         if "BAD" in line and path.name != "lint.py"]
for path, n in wrong:
    print(f"{path}:{n}:1: W1 BAD in line {n}")
sys.exit(bool(wrong))
"""
BASE = {
    "calc.py": "# BAD old\ndef add(a, b):\n    return a - b\n",
    "test_calc.py": "from calc import add\ndef test_add():\n    assert add(2, 3) == 5\n",
    "lint.py": LINT,
}
FIXED = {"calc.py": "# BAD old\ndef add(a, b):\n    return a + b\n"}
WORSE = {"calc.py": "# moved\n# BAD old\ndef add(a, b):\n    return a + b  # BAD\n"}
CHECK = "python3 lint.py"


@pytest.mark.slow
async def test_a_new_problem_fails_a_patch_and_an_old_one_does_not(
    tmp_path: Path, one_backend: Backend
) -> None:
    fixed = await verified(tmp_path, one_backend, BASE, FIXED, checks=[CHECK, "no-such-checker ."])
    assert (fixed.verdict, fixed.rule, fixed.checks[0]) == ("verified", "fixed", CheckResult(CHECK))
    assert "no-such-checker . shows nothing: " in fixed.reason and "not found" in fixed.reason
    (again := tmp_path / "again").mkdir()
    worse = await verified(again, one_backend, BASE, WORSE, checks=[CHECK, "test ! -e x"])
    assert (worse.verdict, worse.rule) == ("failed", "check_worse")
    assert worse.reason.startswith(
        f"{CHECK}: 1 new problem in changed lines, first calc.py:4: W1 BAD in line 4"
    )
    told = feedback_on(worse, 1, 2)
    assert told is not None and told.kinds == ("checks",)
    assert f"- {CHECK}: calc.py:4: W1 BAD in line 4" in told.text
    line = json.loads(json.dumps(vars(Verify.of(worse, new=[], repeats=0, repeat_seconds=0.0))))
    assert words_of(line, 0, isolated=True) == [f"{CHECK}: 1 new problem", "test ! -e x: no new problem"]


async def test_a_build_that_only_the_patch_breaks(tmp_path: Path, one_backend: Backend) -> None:
    build = "test ! -e broken || { echo cannot link >&2; false; }"
    changed = await verified(tmp_path, one_backend, BASE, FIXED | {"broken": ""}, checks=[build, "false"])
    assert changed.rule == "check_worse"
    assert changed.reason.startswith(f"{build} fails only with the patch: cannot link")
    assert "false shows nothing: it fails with and without the patch" in changed.reason


@pytest.mark.slow
@pytest.mark.parametrize("checks", [["sleep 60"]])
async def test_a_check_without_end_does_not_change_the_verdict(
    tmp_path: Path, one_backend: Backend, checks: list[str]
) -> None:
    slow = await verified(tmp_path, one_backend, BASE, FIXED, checks=checks, seconds=2)
    assert slow.verdict == "verified"
    assert "sleep 60 shows nothing: it took too long" in slow.reason


@pytest.mark.slow  # quick: test_a_build_that_only_the_patch_breaks
async def test_a_fix_is_told_of_its_checks_and_mends_what_is_new(fixes: Fixes) -> None:
    worse = calls("file_edit", path="calc.py", old="return a - b", new="return a + b  # BAD")
    mend = calls("file_edit", path="calc.py", old="  # BAD", new="")
    answers = [worse, RUN, DONE, mend, RUN, DONE]
    done = await asyncio.to_thread(fixes, BASE, answers, "--checks", f"{CHECK}; no-such-checker")
    first = fixes.chats[0].json["messages"][-1]["content"]
    assert f"{CHECK}; no-such-checker\n" in first
    (told,) = fixes.of_type("feedback")
    assert (told["kinds"], told["round"]) == (["checks"], 1)
    assert [line["verdict"] for line in fixes.of_type("verify")] == ["failed", "verified"]
    assert f"{CHECK}: no new problem" in done.stderr

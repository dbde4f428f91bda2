"""Grade a patch by the rules of the row's benchmark (`OwnRules`).

Its script runs the tests in a fresh container of the row's image. Its parser reads the log in a fresh sandbox, because a
parser is a program from the data. A patch can fool this verdict, so it is reported next to m3agent's own.
"""

from __future__ import annotations

import json
import re
import shlex
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from m3agent.evals.data.instance import Instance, OwnRules
from m3agent.evals.data.results import OfficialGrade
from m3agent.evals.grade import log_reader
from m3agent.evals.grade.container import run_in_container
from m3agent.sandbox.backends.factory import SandboxSpec, new_sandbox
from m3agent.sandbox.store.git import TreeEntry, TreeStore
from m3agent.sandbox.store.workspace import Workspace
from m3agent.util.portable_source import portable_text
from m3agent.util.sanitize import last_line, printable_line

GRADING = "/m3agent-grading"
PARSER_SECONDS = 300.0
MOST_OUTCOMES = 64 << 20  # bytes
MOST_SHOWN = 300  # characters
_REGULAR = 0o100644
_PASSED = frozenset({"PASSED", "PASS", "XFAIL"})
_FAILED = frozenset({"FAILED", "FAIL", "ERROR"})
_DURATION = re.compile(
    r"\s*(?:\[\s*[\d.]+\s*m?s\s*\]|\(\s*[\d.]+\s*m?s\s*\))\s*$|\s+in\s+[\d.]+\s+m?sec\b", re.IGNORECASE
)
"""Durations in names of tests that SWE-rebench V2 leaves out: `[3 ms]`, `(0.1s)` at the end, ` in 2 msec` anywhere."""


class ParserFailed(Exception):
    """The benchmark's parser failed; the message says why."""


async def grade_by_own_rules(
    instance: Instance, rules: OwnRules, patch: bytes, image: str, folder: Path
) -> OfficialGrade:
    """Return the verdict of a benchmark's own rules on a patch; keep the log in `folder`.

    Raises:
        EnvironmentBuildFailed: The container engine failed.
        SandboxError: The parser's sandbox failed.
    """
    if rules.unusable:
        return OfficialGrade(
            resolved=None, reason=f"the rules of {rules.benchmark} cannot be used: {rules.unusable}"
        )
    started = time.monotonic()
    wanted = [f"{GRADING}/{name}" for name in ("out", "err", "applied")]
    files = _files(instance, rules, patch)
    run = await run_in_container(image, files, f"{GRADING}/drive.sh", instance.answer.timeout, wanted)
    out, err = (run.files.get(f"{GRADING}/{name}", b"") for name in ("out", "err"))
    (folder / "test_output.txt").write_bytes(out + err)

    def grade(reason: str) -> OfficialGrade:
        seconds = round(time.monotonic() - started, 3)
        return OfficialGrade(resolved=not reason, reason=reason, seconds=seconds, test_seconds=run.seconds)

    if run.timed_out:
        return grade("the tests took too long")
    if f"{GRADING}/applied" not in run.files:
        return grade("the patch does not apply")
    try:
        return grade(verdict(rules, await outcomes_in(rules, out, err)))
    except ParserFailed as error:
        return grade(f"the parser of {rules.benchmark} failed: {error}")


def verdict(rules: OwnRules, outcomes: Mapping[str, str]) -> str:
    """Return why outcomes by test do not resolve an instance; empty if they do."""
    if not outcomes:
        return "no result could be read from the log"
    named = {_name(test, rules): outcome.upper() for test, outcome in outcomes.items()}
    passed = {test for test, outcome in named.items() if outcome in _PASSED}
    wanted = {_name(test, rules) for test in rules.to_pass}
    lost = {_name(test, rules) for test in rules.not_to_fail if named.get(_name(test, rules)) in _FAILED}
    if missing := sorted((wanted - passed) | lost):
        return f"{len(missing)} tests did not pass, such as {printable_line(missing[0], MOST_SHOWN)}"
    if rules.exact and (more := sorted(passed - wanted)):
        return f"{len(more)} tests passed that the row does not list, such as {printable_line(more[0], MOST_SHOWN)}"
    return ""


async def outcomes_in(rules: OwnRules, out: bytes, err: bytes) -> dict[str, str]:
    """Return the outcomes that the benchmark's parser finds in a log, by test.

    Raises:
        ParserFailed: It found none, because it failed.
        SandboxError: The sandbox failed.
    """
    content = {"out": out, "err": err, "parser.py": rules.parser.encode()}
    with tempfile.TemporaryDirectory(prefix="m3agent-parser-") as temporary:
        store = TreeStore(Path(temporary) / "log.git")
        entries = [TreeEntry(name, _REGULAR, store.put_blob(data)) for name, data in content.items()]
        workspace = Workspace(store, store.write_tree(entries))
        async with new_sandbox("docker", SandboxSpec("docker"), workspace, lambda _: None) as sandbox:
            done = await sandbox.exec(
                ["python3", "-I", "-c", portable_text(log_reader)],
                stdin=json.dumps({"form": rules.form, "entry": rules.entry}).encode(),
                timeout=PARSER_SECONDS,
                keep=MOST_OUTCOMES,
            )
    if done.timed_out:
        raise ParserFailed(f"it took more than {PARSER_SECONDS:g} s")
    if done.exit != 0:
        words = last_line(done.stderr.decode(errors="replace")) or f"exit status {done.exit}"
        raise ParserFailed(printable_line(words, MOST_SHOWN))
    outcomes: dict[str, str] = json.loads(done.stdout)
    return outcomes


def _files(instance: Instance, rules: OwnRules, patch: bytes) -> dict[str, bytes]:
    code = shlex.quote(instance.task.environment.folder)
    drive = f"export GRADING={GRADING}\ncd {code} && bash $GRADING/script.sh > $GRADING/out 2> $GRADING/err < /dev/null\n"
    files = {
        "patch.diff": patch,
        "tests.diff": instance.answer.test_patch.encode(errors="surrogateescape"),
        "script.sh": rules.script.encode(errors="surrogateescape"),
        "drive.sh": drive.encode(),
        **{name: text.encode(errors="surrogateescape") for name, text in rules.files.items()},
    }
    return {f"{GRADING}/{name}": content for name, content in files.items()}


def _name(test: str, rules: OwnRules) -> str:
    return _DURATION.sub("", test).strip() if rules.untimed else test

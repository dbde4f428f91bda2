"""Grade a patch under m3agent's own rules, in a fresh sandbox.

The instance determines the tests and everything that decides how they run. The patch cannot change them and
cannot write the results.

"Resolved" means: every test in the row's fail-to-pass and pass-to-pass lists passed, the run completed, and
nothing in it was tampered with. The exit status alone does not count.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from m3agent.agent.util.sanitize import last_line
from m3agent.evals.data.instance import Answer, Task
from m3agent.evals.data.results import Grade, TestCount, Verdict
from m3agent.evals.grade import guard
from m3agent.evals.grade.command import RowCommand, parse_command
from m3agent.evals.grade.matching import Outcomes, failed_ids, is_junk
from m3agent.evals.grade.trees import Trees
from m3agent.sandbox.backends.factory import SandboxSpec, new_sandbox
from m3agent.sandbox.backends.sandbox import Sandbox, SandboxLimits
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools import in_sandbox_runner

PER_TEST_SHARE, LEAST_PER_TEST, MOST_PER_TEST = 1 / 3, 2.0, 300.0
"""Time limit of one test: a share of the whole limit, and its bounds in seconds.

After each test that hangs, the next tests get a third of the limit (`tools.in_sandbox_runner`). A run therefore
survives many hanging tests. The limit is generous: a slow test on a busy machine must not count as hanging.
"""
MOST_TEXT, MOST_LINE = 500, 200  # characters
ESCAPED = re.compile(rb"[\x20-\x7e]*")


@dataclass
class TestRun:
    """The results of a test run.

    Attributes:
        outcomes: `passed`, `xfailed`, `skipped`, `failed` or `error`, by node id.
        errors: Error texts, by node id.
        forged: Signs of tampering.
        complete: Whether the run completed.
        canaries: Number of canaries that ran.
        timed_out: Whether the run exceeded its time limit.
        test_seconds: Duration of the test process.
        output: The end of its standard error.
    """

    __test__ = False

    outcomes: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    forged: list[str] = field(default_factory=list)
    complete: bool = False
    canaries: int = 0
    timed_out: bool = False
    test_seconds: float = 0.0
    output: str = ""


class ReportListener:
    """Read the guard's reports.

    Only lines in order and with a valid authentication code count. All other data is ignored.
    """

    def __init__(self, key: bytes) -> None:
        self.run = TestRun()
        self._key = key
        self._rest = b""
        self._next = 1
        self._running: str | None = None

    def feed(self, data: bytes) -> None:
        """Process a piece of the stream."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line)
        if len(self._rest) > 1 << 20:
            self._rest = b""

    def close(self) -> TestRun:
        """Return the results. A test that started but did not end has failed."""
        if self._running is not None:
            self.run.outcomes[self._running] = "failed"
            self.run.errors[self._running] = "the run ended in the middle of this test"
        return self.run

    def _take(self, line: bytes) -> None:
        body, _, code = line.rpartition(b"\t")
        right = hashlib.blake2b(body, key=self._key, digest_size=16).hexdigest().encode()
        if not hmac.compare_digest(code, right) or not ESCAPED.fullmatch(body.replace(b"\t", b" ")):
            return
        number, kind, *fields = (
            part.decode("ascii").encode("latin-1").decode("unicode_escape") for part in body.split(b"\t")
        )
        if not number.isdigit() or int(number) != self._next:
            return  # a line is missing or repeated: the following lines are not trusted
        self._next += 1
        self._event(kind, fields)

    def _event(self, kind: str, fields: Sequence[str]) -> None:
        run = self.run
        match kind, *fields:
            case "start", ident:
                self._running = ident
            case "result", ident, outcome, text:
                self._running = None
                worse = run.outcomes.get(ident) in {"failed", "error"}
                run.outcomes[ident] = run.outcomes[ident] if worse else outcome
                if outcome in {"failed", "error"}:
                    run.errors[ident] = text
            case "forged", what:
                run.forged.append(what)
            case "canaries", count:
                run.canaries = int(count)
            case "end", status:
                run.complete = status in {"0", "1"}
            case _:
                pass


async def run_tests_of(
    task: Task,
    answer: Answer,
    trees: Trees,
    image: str | None,
    *,
    say: Callable[[str], None],
    limits: SandboxLimits,
) -> TestRun:
    """Run an instance's tests on a tree in a fresh sandbox.

    Raises:
        SandboxError: The sandbox itself failed.
    """
    command = parse_command(answer.test_command)
    files = {entry.path for entry in trees.store.list_tree(trees.tree)}
    targets = targets_of(command, answer, trees.tests, files)
    key = secrets.token_bytes(32)
    listener = ReportListener(key)
    by_program = answer.runner in {"django", "unittest"} and command.program
    if not targets and not by_program:
        return listener.close()
    given = {
        "key": key.hex(),
        "source": Path(in_sandbox_runner.__file__).read_text(),
        "limit": min(max(LEAST_PER_TEST, answer.timeout * PER_TEST_SHARE), MOST_PER_TEST),
        "options": command.options,
        "targets": targets,
        "wanted": [name for name in answer.fail_to_pass if not is_junk(name)],
        "program": command.program if by_program else "",
        "words": command.words,
    }
    spec = SandboxSpec("docker", image, limits)
    warnings = [
        word for name, value in command.env.items() if name == "PYTHONWARNINGS" for word in _warnings(value)
    ]
    argv = ["python3", "-I", *command.python, *warnings, "-c", Path(guard.__file__).read_text()]

    def sink(stream: int, data: bytes) -> None:
        if stream == 1:
            listener.feed(data)

    async with new_sandbox("docker", spec, Workspace(trees.store, trees.tree), say) as sandbox:
        done = await sandbox.exec(
            argv,
            stdin=json.dumps(given).encode() + b"\n",
            env={**task.environment.variables, **command.env},
            timeout=answer.timeout,
            sink=sink,
        )
        changed = await _changed(sandbox, trees)
    run = listener.close()
    run.test_seconds, run.timed_out = done.seconds, done.timed_out
    run.output = (done.stderr[-4000:]).decode(errors="replace")
    run.forged += [f"{path} was changed while the tests ran" for path in changed]
    return run


async def _changed(sandbox: Sandbox, trees: Trees) -> list[str]:
    """Return the guarded paths (tests, and files that decide how they run) that changed during the run."""
    after = await sandbox.checkpoint()
    if after == trees.tree:
        return []
    changed = await asyncio.to_thread(trees.store.changed_paths, trees.tree, after)
    return sorted({path for _, path in changed} & set(trees.tests))


def targets_of(command: RowCommand, answer: Answer, tests: Sequence[str], files: set[str]) -> list[str]:
    """Return the tests to run.

    They are the command's files, else the files in the row's test ids, else the test files among `tests`.
    """
    folders = {str(parent) for file in files for parent in Path(file).parents} - {"."}
    named = [t for t in command.targets if t.partition("::")[0].rstrip("/") in files | folders]
    if named:
        return named
    ids = [*answer.fail_to_pass, *answer.pass_to_pass]
    of_ids = {name.partition("::")[0] for name in ids} & files
    if of_ids:
        return sorted(of_ids)
    return [path for path in tests if path.endswith(".py") and Path(path).name.startswith("test")]


def _warnings(value: str) -> list[str]:
    """Convert PYTHONWARNINGS to options, because the interpreter ignores environment variables here."""
    return [word for entry in value.split(",") if entry for word in ("-W", entry)]


def judge(answer: Answer, run: TestRun, trees: Trees, seconds: float) -> Grade:
    """Return the grade of a test run.

    Args:
        seconds: Wall time of the whole grading.
    """
    outcomes = Outcomes(run.outcomes)
    fixed, not_fixed = failed_ids(answer.fail_to_pass, outcomes)
    kept, lost = failed_ids(answer.pass_to_pass, outcomes)
    verdict, reason = Verdict.UNRESOLVED, ""
    if run.forged:
        reason = f"tampered with: {run.forged[0]}"
    elif run.timed_out:
        verdict, reason = Verdict.TIMEOUT, f"the tests took longer than {answer.timeout:g} s"
    elif not run.outcomes:
        reason = f"no tests ran: {last_line(run.output)[:MOST_LINE] or 'no output'}"
    elif not_fixed or lost:
        both = [*not_fixed, *lost]
        reason = f"{len(not_fixed)} to fix and {len(lost)} to keep did not pass, such as {both[0]}"
        reason += f": {last_line(run.errors[both[0]])[:MOST_LINE]}" if both[0] in run.errors else ""
    elif not run.complete:
        reason = "the test run did not finish"
    else:
        verdict = Verdict.RESOLVED
    return Grade(
        verdict=verdict,
        reason=reason[:MOST_TEXT],
        fail_to_pass=TestCount(passed=fixed, failed=tuple(not_fixed)),
        pass_to_pass=TestCount(passed=kept, failed=tuple(lost)),
        undone=trees.undone,
        forged=tuple(run.forged),
        seconds=round(seconds, 3),
        test_seconds=round(run.test_seconds, 3),
    )

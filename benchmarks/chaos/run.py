"""One chaos run: a fix with one fault, then what its user would do; and everything that must hold, checked."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.chaos.faults import Plan, Stage
from benchmarks.common import commit_all, git
from benchmarks.sandbox_cycles import PR_SET_CHILD_SUBREAPER, children, containers_of, describe

from m3agent.agent.delivery.apply import STAGED
from m3agent.agent.session.messages import FILE as MESSAGES
from tests.servers.misbehaving import history_faults

ISSUE = "add() gives wrong sums: add(2, 3) should be 5."
BUGGY = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "test_calc.py": "from calc import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n",
    "trace.txt": "0\n",
}
FIXED = BUGGY | {"calc.py": "def add(a, b):\n    return a + b\n", "trace.txt": "0\n1\n2\n3\n"}
BRANCH = "fix/add"
MOST_RESUMED = 5
LIMIT = 150.0  # seconds for one process of a run to come to its end
PATIENCE = 10.0  # seconds for everything that a process started to be gone after it
ERRORS = frozenset({3, 4})
"""Exit codes that a fault may cause: of the machine, of the model server. The session can continue after both."""
NOT_BEGUN = ("start the fix again", "there are no sessions")
"""Parts of the messages of `sessions resume` for a session that ended before it had begun."""

How = Literal["at once", "resumed", "restarted", "refused"]


@dataclass
class Result:
    """The result of a run.

    Attributes:
        how: `at once`: verified by the process that was hit. `resumed`: verified after resuming. `restarted`: verified by
            a second fix, because the first had not begun. `refused`: ended with a clear refusal, because the patch is
            already handed over completely, or because the disk is full (then nothing is handed over, and the patch is
            kept).
        seconds: From the fault to the end of the last process; None if the fault did not happen.
        ends: Exit code of each process.
        said: Last error of each process, else the last line of its standard error.
        violations: One sentence for each broken rule.
    """

    plan: Plan
    how: How = "at once"
    seconds: float | None = None
    ends: list[int] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class End:
    """How one process of the harness ended; code is -9 for one that was killed."""

    pid: int
    code: int
    stdout: bytes
    stderr: str

    @property
    def said(self) -> str:
        """The last error, else the last line of standard error."""
        lines = self.stderr.strip().splitlines()
        errors = [line for line in lines if line.startswith(("error ", "m3agent: "))]
        return (errors or lines or [""])[-1].strip()


def play(plan: Plan, folder: Path) -> Result:
    """Do one run in the new folder `folder`."""
    # whatever a killed process leaves behind becomes our child, so that it can be found
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    result = Result(plan)
    with Stage(plan, folder) as stage:
        _write(stage.repo, BUGGY)
        commit_all(stage.repo, "first")
        witness = Witness(stage, git(stage.repo, "rev-parse", "HEAD").stdout)
        hand_over = {"print": [], "apply": ["--apply"], "branch": ["--branch", BRANCH]}[plan.hand_over]
        options = [*hand_over, *(["--json"] if plan.as_json else [])]
        fix = ["fix", ISSUE, "--repo", str(stage.repo), "--endpoint", stage.model.url]
        fix += ["--sandbox", plan.backend, *options]
        resume = ["sessions", "resume", "last", "--repo", str(stage.repo), *options]
        commands: dict[How | None, list[str]] = {"restarted": fix, "resumed": resume}
        command = fix
        try:
            for number in range(MOST_RESUMED):
                end, hung = _process(stage, command, number)
                result.ends.append(end.code)
                result.said.append(end.said)
                result.violations += [
                    f"process {number + 1}: {fault}" for fault in witness.faults(end, stage.struck)
                ]
                if hung:
                    result.violations.append(f"process {number + 1} had not ended after {LIMIT:g} s")
                    break
                step = _next_step(plan, end, witness, is_first=number == 0)
                # a run that was begun again counts as that, also if it is resumed after it
                if step is not None and not (step == "resumed" and result.how != "at once"):
                    result.how = step
                if step not in commands:
                    break
                command = commands[step]
            if stage.struck is not None:
                result.seconds = round(time.monotonic() - stage.struck, 2)
            result.violations += witness.final_faults(result)
        except Exception as error:  # noqa: BLE001  # a run that cannot be judged is a violation; the other runs continue
            result.violations.append(f"the run could not be judged: {type(error).__name__}: {error}")
    return result


def _process(stage: Stage, command: list[str], number: int) -> tuple[End, bool]:
    """Run one process to its end, and strike the first one; return its end, and whether it had to be killed."""
    with running(stage, command, number) as process:
        if number == 0 and stage.strike(process):
            stage.struck = time.monotonic()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(stage.plan.back)
            stage.repair()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LIMIT)
        hung = process.poll() is None
    return _end(stage, process, number), hung


def _next_step(plan: Plan, end: End, witness: Witness, *, is_first: bool) -> How | None:
    """Return what follows the end of a process: `restarted`, `resumed` or `refused`; None if the run is over."""
    if end.code == 0 or (end.code == 2 and "is over (verified)" in end.said):
        return None
    if any(words in end.said for words in NOT_BEGUN):
        return "restarted"
    if end.code == 5 and plan.kind == "disk":
        return "refused"
    if end.code in (2, 5) and not is_first and witness.handed_over():
        return "refused"
    return "resumed" if end.code in ERRORS or end.code == -9 else None


@contextlib.contextmanager
def running(stage: Stage, arguments: list[str], number: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run `m3agent` with the run's own state, home and temporary folder; kill it at the end if it still runs."""
    foreign = ("M3AGENT_", "XDG_", "OPENAI_", "GIT_", "DOCKER_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    env |= {"HOME": str(stage.folder), "TMPDIR": str(stage.scratch), "M3AGENT_STATE": str(stage.state)}
    if host := (stage.engine.address if stage.engine else os.environ.get("DOCKER_HOST")):
        env["DOCKER_HOST"] = host
    with (
        (stage.folder / f"stdout-{number}").open("wb") as stdout,
        (stage.folder / f"stderr-{number}").open("wb") as stderr,
    ):
        command = [sys.executable, "-m", "m3agent", *arguments]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=env)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _end(stage: Stage, process: subprocess.Popen[bytes], number: int) -> End:
    stdout, stderr = ((stage.folder / f"{name}-{number}").read_bytes() for name in ("stdout", "stderr"))
    return End(process.pid, process.returncode, stdout, stderr.decode(errors="replace"))


def _calls_faults(lines: list[dict[str, Any]]) -> list[str]:
    """Return what is wrong with the begins and the ends of a session's calls."""
    started = [line for line in lines if line["type"] == "call.started"]
    begun, ids = [line["call"] for line in started], [(line["turn"], line["id"]) for line in started]
    ended = [line["call"] for line in lines if line["type"] == "call.finished"]
    if sorted(ended) == begun and len(set(ids)) == len(ids):
        return []
    return [f"calls begun {begun}, ended {ended}, ids {ids}"]


class Witness:
    """Check what each process of a run leaves behind."""

    def __init__(self, stage: Stage, head: bytes) -> None:
        self._stage, self._head = stage, head
        self._grown: dict[Path, bytes] = {}
        self._pids: set[int] = set()
        self._before = set(children(os.getpid()))
        self._ended = End(0, 0, b"", "")
        expected = stage.folder / "expected"
        _write(expected, FIXED)
        commit_all(expected, "fixed")
        self._fixed_tree = git(expected, "rev-parse", "HEAD^{tree}").stdout

    def faults(self, end: End, struck: float | None) -> list[str]:
        """Return the violations after a process has ended."""
        self._pids.add(end.pid)
        self._ended = end
        found = [*self._exit(end, struck), *self._left(), *self._files(), *self._repository()]
        for log in self._stage.logs():
            for path in (log, log.with_name(MESSAGES)):
                found += self._growth(path)
            lines = _whole_lines(log)
            if [line.get("seq") for line in lines] != list(range(1, len(lines) + 1)):
                found.append(f"{log.name}: the lines are not numbered from 1 without gaps")
            begun = [line["call"] for line in lines if line["type"] == "call.started"]
            if begun != sorted(set(begun)):
                found.append(f"{log.name}: a call was begun twice: {begun}")
        if self._stage.plan.as_json:
            found += self._printed(end)
        return found

    def final_faults(self, result: Result) -> list[str]:
        """Return the violations at the end of the run."""
        stage, plan = self._stage, self._stage.plan
        if not (logs := stage.logs()):
            return ["there is no session"]
        lines = _whole_lines(logs[-1])
        found = _calls_faults(lines)
        bodies = stage.model.requests()
        found += history_faults(bodies)
        kept = [json.loads(line) for line in logs[-1].with_name(MESSAGES).read_bytes().splitlines()]
        sent = json.loads(bodies[-1])["messages"] if bodies else []
        if kept[: len(sent)] != sent:
            found.append(f"{MESSAGES} does not begin with what the model was sent last")
        if (status := lines[-1].get("status")) != "verified" and result.how != "refused":
            return [*found, f"the session ended {status} with exit {result.ends[-1]}: {result.said[-1]}"]
        file = logs[-1].with_name("patch.diff")
        patch = file.read_bytes() if file.exists() else b""
        if self._patched(patch) != self._fixed_tree:
            found.append("the patch does not make what the script makes")
        if result.ends[-1] == 0 and not plan.as_json and self._ended.stdout != patch:
            found.append("what was printed is not the patch")
        if plan.hand_over != "print" and result.how != "refused" and not self.handed_over():
            found.append(f"the patch was not handed over (--{plan.hand_over})")
        return found

    def handed_over(self) -> bool:
        """Return whether the user's repository has the complete patch in the way that the plan demands."""
        if self._stage.plan.hand_over == "apply":
            return _read_files(self._stage.repo) == FIXED
        tree = git(self._stage.repo, "rev-parse", "--verify", "--quiet", f"{BRANCH}^{{tree}}").stdout
        return tree == self._fixed_tree

    def _exit(self, end: End, struck: float | None) -> Iterator[str]:
        if "Traceback" in end.stderr or "Traceback" in end.stdout.decode(errors="replace"):
            yield f"a traceback: {end.stderr[-1500:]}"
        if end.code in (0, -9):
            return
        if struck is None and end.code:
            yield f"ended with {end.code} before the fault: {end.said}"
        logs = self._stage.logs()
        errors = [line["text"] for line in _whole_lines(logs[-1]) if line["type"] == "error"] if logs else []
        flat = " ".join((end.stderr + end.stdout.decode(errors="replace")).split())
        if not end.said.startswith("m3agent: ") and not any(
            " ".join(text.split()) in flat for text in errors[-1:]
        ):
            yield f"ended with {end.code} and no clear sentence: {end.stderr[-500:]!r}"

    def _left(self) -> list[str]:
        """Return processes, containers and mounts that still exist after some seconds."""
        stage, deadline = self._stage, time.monotonic() + PATIENCE
        with contextlib.ExitStack() as stack:
            api = stage.docker()
            if api is not None:
                stack.enter_context(closing(api))
            while True:
                new = set(children(os.getpid())) - self._before - {stage.model.pid}
                own = str(stage.engine.folder) if stage.engine else None
                found = [
                    f"still running: {line}"
                    for line in map(describe, sorted(new))
                    if line is not None and not (own and own in line)
                ]
                if api is not None:
                    found += [f"container left: {line}" for line in containers_of(api, self._pids)]
                mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
                found += [f"mount left: {each}" for each in mounts if each.startswith(f"{stage.work}/")]
                if not found or time.monotonic() > deadline:
                    return found
                time.sleep(0.05)

    def _files(self) -> Iterator[str]:
        """Check for incomplete and forgotten files."""
        stage = self._stage
        code = self._ended.code
        for path in sorted(stage.work.rglob("*")):
            # A killed process cannot clean up. The next process does, in these two folders.
            ours = path.is_relative_to(stage.state) or path.is_relative_to(stage.repo / ".git" / STAGED)
            if path.name.endswith((".tmp", ".lock", "~")) and not (code == -9 and ours):
                yield f"half-written: {path.relative_to(stage.work)}"
            # On a full disk, git leaves such files behind. In the user's repository, its next gc removes them.
            if (
                path.name.startswith(("tmp_", "unfinished-"))
                and code == 0
                and path.is_relative_to(stage.state)
            ):
                yield f"half-written: {path.relative_to(stage.work)}"
        for folder in (stage.scratch, stage.state / "scratch"):
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                yield f"temporary file left: {path.relative_to(stage.work)}"

    def _repository(self) -> Iterator[str]:
        """Check the user's repository: it is unchanged, or the complete patch is handed over."""
        stage = self._stage
        if git(stage.repo, "rev-parse", "HEAD").stdout != self._head:
            yield "HEAD of the user's repository moved"
        files = _read_files(stage.repo)
        if (
            stage.plan.hand_over == "apply" and self._ended.code == -9
        ):  # killed between two files: each file is old or new
            whole = files.keys() == BUGGY.keys() and all(files[n] in (BUGGY[n], FIXED[n]) for n in files)
        else:
            whole = files == BUGGY or (stage.plan.hand_over == "apply" and files == FIXED)
        if not whole:
            yield f"the user's work tree is neither as before nor fixed: {files}"
        if git(stage.repo, "rev-parse", "--verify", "--quiet", BRANCH).stdout and not self.handed_over():
            yield "the branch holds something else than the fix"
        checked = git(stage.repo, "fsck", "--strict", "--no-dangling", "--no-progress")
        if checked.returncode:
            yield f"git fsck: {checked.stderr.decode(errors='replace')}"

    def _growth(self, path: Path) -> Iterator[str]:
        """Check that a file still begins with its earlier content; an incomplete last line may have been removed."""
        now = path.read_bytes() if path.exists() else b""
        if not now.startswith(self._grown.get(path, b"")):
            yield f"{path.name} lost or changed lines that it had"
        self._grown[path] = now[: now.rfind(b"\n") + 1]
        try:
            for line in self._grown[path].splitlines():
                json.loads(line)
        except ValueError:
            yield f"{path.name} holds a line that is not JSON"
        if self._ended.code != -9 and now != self._grown[path]:
            yield f"{path.name} ends in half a line"

    def _printed(self, end: End) -> Iterator[str]:
        """Check that every printed event is in the log."""
        printed = [json.loads(line) for line in end.stdout.splitlines(keepends=True) if line.endswith(b"\n")]
        logged = [line for log in self._stage.logs() for line in _whole_lines(log)]
        lost = [line for line in printed if line not in logged]
        if lost:
            yield f"printed and not in the log: {lost}"

    def _patched(self, patch: bytes) -> bytes:
        """Return the id of the tree that results from applying a patch to the user's commit."""
        index = self._stage.folder / "patched"
        index.mkdir(exist_ok=True)
        for args in (
            ("init", "-q"),
            ("fetch", "-q", str(self._stage.repo), "HEAD"),
            ("read-tree", "FETCH_HEAD"),
        ):
            git(index, *args)
        git(index, "apply", "--cached", "-", stdin=patch)
        return git(index, "write-tree").stdout


def _whole_lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_bytes().split(b"\n")[:-1]]


def _write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def _read_files(folder: Path) -> dict[str, str]:
    """Return the text of each file of a work tree, by path."""
    return {
        str(path.relative_to(folder)): path.read_text(errors="replace")
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".git" not in path.relative_to(folder).parts
    }

"""Grade a patch by the verifier of a task of Harbor (`RewardRules`): its `tests/test.sh` writes a reward.

Everything happens as root in fresh containers of the task's image, without a network. One of them stands for the agent's:
it gets the patch, or the solution runs in it. The tests run in the same one, or in a second one that gets only what the
first left for it. The code under test can forge the reward, so this verdict is weaker than m3agent's own.
"""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from m3agent.evals.data.files import files_in, unreadable
from m3agent.evals.data.harbor import SOLUTION, SOLVE, TEST, TESTS
from m3agent.evals.data.instance import Instance, RewardRules
from m3agent.evals.data.results import OfficialGrade
from m3agent.evals.grade.container import ContainerRun, run_in_container
from m3agent.util.sanitize import last_line, printable_line

GRADING = "/m3agent-grading"
SCRIPT, OUT, DONE, PACKED = (f"{GRADING}/{name}" for name in ("script.sh", "out", "done", "artifacts.tar"))
ARTIFACTS, VERIFIER = "/logs/artifacts", "/logs/verifier"
REWARDS = (f"{VERIFIER}/reward.json", f"{VERIFIER}/reward.txt")
"""Where the tests write the reward. The first one wins."""
REWARD = "reward"
LOG = "test_output.txt"
MOST_SHOWN = 300  # characters


async def grade_by_reward(
    instance: Instance, rules: RewardRules, patch: bytes, image: str, folder: Path
) -> OfficialGrade:
    """Return the verdict of a task's own tests on a patch; keep their log in `folder`.

    Raises:
        EnvironmentBuildFailed: The container engine failed.
        DataError: The task's files cannot be read.
    """
    file = f"{GRADING}/patch.diff"
    script = (
        f"if command -v git >/dev/null; then git apply --whitespace=nowarn {file} || exit\n"
        f"else patch --batch --forward -p1 -i {file} || exit; fi\n"
    )
    reason, _, seconds = await _graded(instance, rules, (script, {file: patch}), image, folder)
    reason = "the patch does not apply" if reason is None else reason
    return OfficialGrade(resolved=not reason, reason=reason, seconds=seconds)


async def grade_solution(instance: Instance, rules: RewardRules, image: str, folder: Path) -> OfficialGrade:
    """Return the verdict of a task's own tests on what its solution does. If they write no reward, there is no verdict.

    Raises:
        EnvironmentBuildFailed, DataError: As for `grade_by_reward`.
    """
    if not (Path(rules.folder) / SOLUTION / SOLVE).is_file():
        return OfficialGrade(resolved=None, reason=f"it has no {SOLUTION}/{SOLVE}")
    script = f"( {_exports(rules.of_solution)}/{SOLUTION}/{SOLVE} )\n"
    work = script, dict(_files(rules, SOLUTION))
    reason, known, seconds = await _graded(instance, rules, work, image, folder)
    if reason is None:
        reason, known = "the image has no folder of the code", False
    return OfficialGrade(resolved=not reason if known else None, reason=reason, seconds=seconds)


async def _graded(
    instance: Instance, rules: RewardRules, work: tuple[str, Mapping[str, bytes]], image: str, folder: Path
) -> tuple[str | None, bool, float]:
    """Grade the work of a script with its files, by path. If the script calls `exit`, the work was not done.

    Returns:
        What `judged` says (None in place of the reason if the work was not done), and the wall time.
    """
    started, (script, files) = time.monotonic(), work
    tests = dict(_files(rules, TESTS))
    code = shlex.quote(instance.task.environment.folder)
    head = (
        f"mkdir -p {GRADING} {ARTIFACTS} {VERIFIER} /logs/agent\nexec > {OUT} 2>&1 < /dev/null\n"
        f"{_exports(rules.variables)}cd {code} || exit\n"
    )
    collect = "".join(f"sh -c {shlex.quote(command)}\n" for command in rules.collect)
    first = f"{head}{script}: > {DONE}\n{collect}"
    grade = f"cd {code} || exit\n{_exports(rules.of_tests)}/{TESTS}/{TEST}\n"
    carried = [ARTIFACTS, *rules.artifacts]
    if not rules.separate:
        run = await _run(instance, image, {**files, **tests}, first + grade)
        log = run.files.get(OUT, b"")
    else:
        names = " ".join(shlex.quote(path.lstrip("/")) for path in carried)
        # the folder of the code is a link: with the dot, its content is packed
        pack = (
            f'cd /\nfor path in {names}; do if [ -d "$path" ]; then echo "$path/."; elif [ -e "$path" ]; then '
            f'echo "$path"; fi; done > {GRADING}/names\n'
            f"tar -cf {PACKED} -T {GRADING}/names\n"
        )
        run = await _run(instance, image, files, first + pack)
        log = run.files.get(OUT, b"")
        if DONE in run.files and not run.timed_out:
            unpack = f"rm -rf {' '.join(map(shlex.quote, carried))}\ntar -xf {PACKED} -C / && : > {DONE}\n"
            given = {**tests, PACKED: run.files.get(PACKED, b"")}
            run = await _run(instance, image, given, head + unpack + grade)
            log += run.files.get(OUT, b"")
    (folder / LOG).write_bytes(log)
    is_done = DONE in run.files or run.timed_out
    reason, known = judged(run, log) if is_done else (None, False)
    return reason, known, round(time.monotonic() - started, 3)


def judged(run: ContainerRun, log: bytes) -> tuple[str, bool]:
    """Return why the tests' reward does not resolve a task (empty if it does), and whether there is a reward."""
    if run.timed_out:
        return "the tests took too long", True
    for path in REWARDS:
        if path in run.files:
            rewards = read_rewards(path, run.files[path])
            if rewards is None:
                return f"the tests wrote something else than a reward to {path}", False
            low = {name: value for name, value in rewards.items() if value < 1}
            return ", ".join(f"{name} is {value:g}" for name, value in sorted(low.items())), True
    words = last_line(log.decode(errors="replace"))
    return printable_line(
        f"{TESTS}/{TEST} wrote no reward: {words or 'it printed nothing'}", MOST_SHOWN
    ), False


def read_rewards(path: str, content: bytes) -> dict[str, float] | None:
    """Return the rewards by name; None if the file has none. If one is named `reward`, only this one counts."""
    try:
        value: Any = json.loads(content)
    except (ValueError, RecursionError):
        return None
    found: dict[str, Any] = value if isinstance(value, dict) and path.endswith(".json") else {REWARD: value}
    found = {REWARD: found[REWARD]} if REWARD in found else found
    rewards: dict[str, float] = {}
    for name, one in found.items():
        if isinstance(one, bool) or not isinstance(one, int | float) or not math.isfinite(one):
            return None
        rewards[name] = one
    return rewards or None


async def _run(instance: Instance, image: str, files: Mapping[str, bytes], script: str) -> ContainerRun:
    given = {**files, SCRIPT: script.encode(errors="surrogateescape")}
    wanted = (OUT, DONE, PACKED, *REWARDS)
    return await run_in_container(image, given, SCRIPT, instance.answer.timeout, wanted)


def _files(rules: RewardRules, part: str) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a folder of the task, by their path in the container."""
    folder = Path(rules.folder) / part
    for name in files_in(folder):
        try:
            yield f"/{part}/{name}", (folder / name).read_bytes()
        except OSError as error:
            raise unreadable(folder / name, error) from None


def _exports(variables: Mapping[str, str]) -> str:
    return "".join(f"export {shlex.quote(name)}={shlex.quote(value)}\n" for name, value in variables.items())

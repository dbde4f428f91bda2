"""Run the checks on the tree with a patch, and, if one of them fails there, on the tree without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from m3agent.agent.checks.problems import Problem, cleaned, marked, new_problems, problems_in
from m3agent.sandbox.backends.sandbox import ExecResult
from m3agent.sandbox.backends.sandboxes_ahead import SandboxesAhead
from m3agent.sandbox.store.git import TreeStore
from m3agent.util.counted import counted
from m3agent.util.sanitize import last_line

PLAIN = {"NO_COLOR": "1", "RUFF_OUTPUT_FORMAT": "concise", "CI": "1", "TERM": "dumb"}
"""Variables that let checkers write one line for each problem."""
MOST_OUTPUT = 1 << 20
"""Most bytes of the head and of the tail of an output that are read."""
MISSING = {126, 127}
"""Exit codes of a shell whose command cannot start."""


@dataclass(frozen=True)
class CheckResult:
    """What a check shows about a patch."""

    command: str
    new: tuple[Problem, ...] = ()
    """What is wrong only with the patch, that in changed lines first."""
    silent: str = ""
    """Why the check shows nothing; empty if it does."""

    def sentence(self) -> str:
        """Return what is new, such as `mypy: 2 new problems in changed lines`."""
        changed = sum(problem.in_changed_line for problem in self.new)
        where = {0: "outside of changed lines", len(self.new): "in changed lines"}
        some = where.get(changed, f"{changed} of them in changed lines")
        if not self.new[0].path:
            return f"{self.command} fails only with the patch: {self.new[0].message}"
        return f"{self.command}: {counted(len(self.new), 'new problem')} {some}, first {self.new[0]}"


async def run_checks(
    sandboxes: SandboxesAhead, commands: Sequence[str], old: str, new: str, seconds: float
) -> tuple[CheckResult, ...]:
    """Run the checks on the tree `new`, and those that fail on the tree `old`, each tree in its own fresh sandbox.

    Args:
        seconds: Time for each check.

    Raises SandboxError: A sandbox failed.
    """
    after = await _outputs(sandboxes, commands, new, seconds)
    failing = [command for command, ended in after.items() if ended.exit]
    before = await _outputs(sandboxes, failing, old, seconds) if failing else {}
    trees = _Trees(sandboxes.store, old, new)
    return tuple(trees.result(command, before.get(command), after[command]) for command in commands)


async def _outputs(
    sandboxes: SandboxesAhead, commands: Sequence[str], tree: str, seconds: float
) -> dict[str, ExecResult]:
    async with sandboxes.sandbox(tree) as sandbox:
        return {
            command: await sandbox.exec(["sh", "-c", command], env=PLAIN, timeout=seconds, keep=MOST_OUTPUT)
            for command in commands
        }


@dataclass(frozen=True)
class _Trees:
    store: TreeStore
    old: str
    new: str

    @cached_property
    def _ids(self) -> tuple[dict[str, str], dict[str, str]]:
        """The ids of the files of both trees, by path."""
        old, new = (self.store.list_tree(tree) for tree in (self.old, self.new))
        return {each.path: each.sha for each in old}, {each.path: each.sha for each in new}

    def result(self, command: str, before: ExecResult | None, after: ExecResult) -> CheckResult:
        """Compare the ends of a check on both trees."""
        if not after.exit:
            return CheckResult(command)
        assert before is not None, "a check that fails runs on the old tree, too"
        last = cleaned(last_line(_text(after).strip()) or f"exit code {after.exit}")
        if after.timed_out or before.timed_out:
            return CheckResult(command, silent="it took too long")
        if before.exit in MISSING:
            return CheckResult(command, silent=last)
        olds, news = self._ids
        problems = self._problems(after)
        fresh = new_problems(list(problems_in(_text(before), olds)), problems, olds.keys() & news.keys())
        if not before.exit and not fresh:
            fresh = (Problem("", 0, last),)
        silent = "" if fresh or problems else f"it fails with and without the patch: {last}"
        return CheckResult(command, fresh, silent)

    def _problems(self, after: ExecResult) -> list[Problem]:
        """Return the problems on the new tree; those in changed files are marked."""
        olds, news = self._ids
        problems = list(problems_in(_text(after), news))
        for path in {each.path for each in problems if olds.get(each.path) != news[each.path]}:
            blob = self.store.get_blob(olds[path]) if path in olds else None
            others = [each for each in problems if each.path != path]
            problems = [*others, *marked(problems, path, blob, self.store.get_blob(news[path]))]
        return problems


def _text(ended: ExecResult) -> str:
    return (ended.stdout + b"\n" + ended.stderr).decode(errors="replace")

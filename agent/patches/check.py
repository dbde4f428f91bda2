"""Check a certificate: verify its patch again, and compare all fields that a second verification can repeat.

Nothing in the certificate makes the check weaker: its limits are those of who checks, and what it excuses comes from its own runs.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from m3agent.agent.certificate.build import Change, digest_of, maker_of
from m3agent.agent.certificate.statement import (
    Counts,
    Maker,
    Predicate,
    Statement,
    TestCommand,
    TestRuns,
    Tests,
)
from m3agent.agent.certificate.table import in_rows, runs_of
from m3agent.agent.issue.load import Issue
from m3agent.agent.patches.change import Source
from m3agent.agent.repo.repository import GitCommandFailed, Repository
from m3agent.sandbox.store.git import TreeStore
from m3agent.util.counted import first_of

MOST_NAMED = 3
"""Most tests, packages or files that a difference names."""

SHOWN_ONLY: Mapping[str, str] = {
    "checks": "who checks says which declared checks run; the verdict is compared",
    "environment": "the check may run on another machine, and with a newer image",
    "limits.verify_minutes": "it only limits the time: tests that had none are missing in other fields",
    "limits.baseline_minutes": "it only limits the time: tests that had none are missing in other fields",
    "tests.flaky": "whether a flaky test shows itself is chance",
}
"""Fields whose differences are shown and do not decide, each with the reason. A name stands for all fields inside of it too."""
NOT_COMPARED: Mapping[str, str] = {
    "patch.sha256": "it is compared before the tests run, if the check has the patch in the form in which it was certified",
    "patch.source": "the check may get the same patch in another form; the commit is compared before the tests run",
    "issue": "the check takes the issue from the certificate",
    "accepted": "no test run can show what a person accepted",
    "made_by.model": "no test run can show which model made a patch",
    "started": "each verification has its own time",
    "finished": "each verification has its own time",
    "seconds": "each verification takes its own time",
    "seal": "it is about the other fields, and is checked when the certificate is read",
}
"""Fields that are not compared with those of a new verification, each with the reason."""
WITH_CHANCE = frozenset(
    {"tests.without_patch", "tests.with_patch", "commands", "commands.runs"}
    | {f"tests.{tests}.runs" for tests in ("red_to_green", "broken", "still_red")}
)
"""Fields that do not decide if a test of the check itself was sometimes green and sometimes red: then further runs take place."""
LABELS: Mapping[str, str] = {
    "base.commit": "base commit",
    "base.tree": "base tree",
    "commands.runs": "command runs",
    "made_by.harness": "made by",
    "made_by.model_licence": "licence",
    "only_own_tests": "own tests",
    "patch.source.commit": "commit",
    "tests.added_red": "added red",
    "tests.broken.runs": "broken runs",
    "tests.flaky.runs": "flaky runs",
    "tests.new": "new tests",
    "tests.red_to_green.runs": "green runs",
    "tests.still_red.runs": "red runs",
    "tool.name": "tool",
    "tool.version": "m3agent",
}
"""How people call fields. Others have the last part of their names."""
HINTS: Mapping[str, str] = {
    "limits.reruns": "; to repeat it, give --reruns {}",
    "tool.version": "; check it with m3agent {}",
}
"""What the user can do about a difference, with the value of the certificate."""

_FULL_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_BY_CHANCE = re.compile(
    r"; [\d,]+ (?:flaky tests? not counted|others? ran)(?=$|[;)\s])|; the unchanged tree's run had no time for more tests"
)
"""Parts of a reason that depend on flaky tests and on time."""
_PLACE = re.compile(r"(?<![\w.])/(?:[^/\s]+/)*|-[0-9a-f]{16}\b")
"""Folders of a sandbox in the arguments of a command, and random parts of names."""


@dataclass(frozen=True)
class Difference:
    """What differs from a certificate."""

    what: str
    """What it is about, in a word or two."""
    text: str
    """How it differs, as a clause."""
    decides: bool = True
    """Whether the certificate does not hold because of it. Another image or another flaky test does not decide."""


def source_of(statement: Statement, given: Source) -> Source:
    """Return where the patch of a certificate is.

    The user may give it. Otherwise it is in the commits that the certificate names, or in the work tree if it names none.
    """
    stated = statement.predicate
    commit = stated.patch.source.commit
    if given.file is not None and given.base is None:
        return Source(file=given.file, base=stated.base.commit)
    if given.named or given.base is not None:
        return given
    if commit is None:
        return Source(base=stated.base.commit)
    return Source(commits=f"{stated.base.commit}..{commit}")


def issue_of(statement: Statement) -> Issue | None:
    """Return the issue that a certificate names: its text takes part in the verdict."""
    about = statement.predicate.issue
    if about is None:
        return None
    return Issue(about.title, about.text, about.source, hashlib.sha256(about.text.encode()).hexdigest())


def table(again: Statement | None, differing: Collection[Difference], width: int = 0) -> str:
    """Return for people whether a certificate holds, what the new verification says, and what differs.

    Args:
        again: The new verification; None if the patch is another one, so that no test ran.
        width: Columns of the terminal; 0 for no terminal.
    """
    holds = not any(difference.decides for difference in differing)
    now = "the patch is another one, so no test ran"
    if again is not None:
        now = f"{again.predicate.verdict}: {again.predicate.reason}"
    rows = [("✓ holds" if holds else "✗ does not hold", now)]
    return in_rows([*rows, *((difference.what, difference.text) for difference in differing)], width)


def different_patch(statement: Statement, change: Change, repository: Repository) -> list[Difference]:
    """Return how the patch in the repository differs from that of the certificate; empty if it is the same."""
    stated = statement.predicate
    before_and_now = [
        ("base commit", stated.base.commit, change.base.commit),
        ("base tree", stated.base.tree, change.base.tree),
        ("result tree", stated.result_tree, change.patch.tree),
    ]
    differing = [
        Difference(what, _other(now, before)) for what, before, now in before_and_now if before != now
    ]
    is_file, was_file = change.origin.kind == "file", stated.patch.source.kind == "file"
    # the same trees may have a file of other bytes
    as_given = is_file and stated.patch.source.kind in ("file", "fix")
    digest = digest_of(change.text if as_given else change.patch.text)
    if digest != stated.patch.sha256:
        missing = "" if is_file or not was_file else "; give the file to compare its bytes"
        text = _other(digest, stated.patch.sha256) + missing
        differing.append(Difference("patch", text, decides=not missing))
    return [*differing, *_different_commit(stated, change.workspace.store, repository)]


def _different_commit(stated: Predicate, store: TreeStore, repository: Repository) -> Iterator[Difference]:
    commit = stated.patch.source.commit
    if commit is None:
        return
    if _FULL_ID.fullmatch(commit) is None:
        yield Difference("commit", f"the certificate says {commit}, which is not the full id of a commit")
        return
    try:
        tree = repository.git(
            "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}^{{tree}}"
        )
    except GitCommandFailed:
        yield Difference("commit", f"this repository has no commit {commit}, which the certificate says")
        return
    if store.with_submodules(tree.decode().strip()) != stated.result_tree:
        yield Difference("commit", f"the files of {commit} are not those that the certificate is about")


def differences(statement: Statement, again: Statement) -> list[Difference]:
    """Return how a new verification of the same patch differs from the certificate; those that decide come first."""
    stated, now = statement.predicate, again.predicate
    facts = _facts(stated), _facts(now.model_copy(update={"made_by": _maker(stated)}))
    excused = {*SHOWN_ONLY, *(WITH_CHANCE if _has_chance(now) else ())}
    differing = []
    for name in dict.fromkeys([*facts[0], *facts[1]]):
        before, after = (some.get(name) for some in facts)
        if before != after and not _is_in(name, NOT_COMPARED):
            text = _clause(before, after) + HINTS.get(name, "").format(before)
            label = LABELS.get(name, name.rpartition(".")[2].replace("_", " "))
            differing.append(Difference(label, text, decides=not _is_in(name, excused)))
    return sorted(differing, key=lambda difference: not difference.decides)


def _is_in(name: str, fields: Iterable[str]) -> bool:
    return any(name == field or name.startswith(f"{field}.") for field in fields)


def _maker(stated: Predicate) -> Maker | None:
    """Return the maker as a certificate must name it: only a fix has one, and its licence follows from the model."""
    if stated.patch.source.kind != "fix" or stated.made_by is None:
        return None
    return maker_of(stated.made_by.model)


def _has_chance(now: Predicate) -> bool:
    """Return whether a test was sometimes green and sometimes red on one side."""
    tests = (*now.tests.red_to_green, *now.tests.broken, *now.tests.still_red)
    sides = (side for test in tests for side in (test.without_patch, test.with_patch))
    return bool(now.tests.flaky) or any(side.green and side.red for side in sides)


def _facts(predicate: Predicate) -> dict[str, Any]:
    """Return all fields by their names. Lists are counted texts, so that their order does not count."""
    lists = {"suites", "commands", "review", "tests", "checks"}
    facts = dict(_leaves("", predicate.model_dump(mode="json", exclude=lists)))
    facts["reason"] = _BY_CHANCE.sub("", predicate.reason)
    facts["suites"] = Counter(
        f"{suite.runner} in {suite.folder or '.'} ({suite.evidence}{'' if suite.ran else '; not run'})"
        for suite in predicate.suites
    )
    facts |= _facts_of_commands(predicate.commands)
    facts["checks"] = Counter(
        f"{check.command}: {text}" for check in predicate.checks for text in check.new or [check.silent]
    )
    facts["review"] = Counter(f"{line.path}:{line.line} {line.what}" for line in predicate.review)
    return facts | _facts_of_tests(predicate.tests)


def _facts_of_commands(commands: Iterable[TestCommand]) -> dict[str, Any]:
    facts: dict[str, Any] = {"commands": Counter[str](), "commands.runs": Counter[str]()}
    for command in commands:
        text = _PLACE.sub("", shlex.join(command.argv))
        runs = f"{command.without_patch} without the patch, {command.with_patch} with it, {command.on_copies} on copies"
        facts["commands"][text] += 1
        facts["commands.runs"][f"{text} ({runs})"] += 1
    return facts


def _facts_of_tests(tests: Tests) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for name in type(tests).model_fields:
        value: Counts | tuple[TestRuns | str, ...] = getattr(tests, name)
        if isinstance(value, Counts):
            facts[f"tests.{name}"] = ", ".join(f"{number} {what}" for what, number in value)
            continue
        facts[f"tests.{name}"] = Counter(test if isinstance(test, str) else test.id for test in value)
        facts[f"tests.{name}.runs"] = Counter(runs_of(test) for test in value if isinstance(test, TestRuns))
    return facts


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(f"{name}.{key}" if name else key, item)
    else:
        yield name, Counter(value) if isinstance(value, list) else value


def _clause(before: Any, after: Any) -> str:
    """Return how a field differs, as a clause."""
    if not isinstance(before, Counter) or not isinstance(after, Counter):
        return _other(*(_plain(value) for value in (after, before)))
    return "; ".join(
        f"{which} {first_of(sorted(more), MOST_NAMED)}"
        for which, more in (("only here", after - before), ("only in the certificate", before - after))
        if more
    )


def _other(now: str, before: str) -> str:
    return f"it is {now}, and the certificate says {before}"


def _plain(value: Any) -> str:
    match value:
        case None:
            return "missing"
        case bool():
            return "yes" if value else "no"
    return str(value)

"""Check a certificate: verify its patch again, and compare."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from m3agent.agent.certificate.build import digest_of
from m3agent.agent.certificate.statement import Predicate, Statement, TestRuns
from m3agent.agent.certificate.table import in_rows
from m3agent.agent.issue.load import Issue
from m3agent.agent.patches.change import Change, Source

MOST_NAMED = 3
"""Most tests, packages or files that a difference names."""


@dataclass(frozen=True)
class Difference:
    """What differs from a certificate.

    Attributes:
        what: What it is about, in a word or two.
        text: How it differs, as a clause.
        decides: Whether the certificate does not hold because of it. Another image or another flaky test does not decide.
    """

    what: str
    text: str
    decides: bool = True


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


def table(statement: Statement, found: Sequence[Difference], width: int = 0) -> str:
    """Return for people whether a certificate holds, and what differs from it.

    Args:
        statement: The certificate.
        found: What differs.
        width: Columns of the terminal; 0 for no terminal.
    """
    held = not any(one.decides for one in found)
    said = f"{statement.predicate.verdict}: {statement.predicate.reason}"
    rows = [("✓ holds" if held else "✗ does not hold", said), *((one.what, one.text) for one in found)]
    return in_rows(rows, width)


def different_patch(statement: Statement, change: Change) -> list[Difference]:
    """Return how the patch in the repository differs from that of the certificate; empty if it is the same."""
    stated = statement.predicate
    pairs = [
        ("base commit", stated.base.commit, change.base.commit),
        ("base tree", stated.base.tree, change.base.tree),
        ("result tree", stated.result_tree, change.patch.tree),
    ]
    from_file = change.origin.kind == "file"
    if stated.patch.source.kind in ("file", "fix") and from_file:
        pairs.append(("patch", stated.patch.sha256, digest_of(change.text)))
    elif stated.patch.source.kind != "file":  # the same trees may have a file of other bytes
        pairs.append(("patch", stated.patch.sha256, digest_of(change.patch.text)))
    return [
        Difference(what, f"it is {now[:16]}, and the certificate says {before[:16]}")
        for what, before, now in pairs
        if before != now
    ]


def differences(statement: Statement, again: Statement) -> list[Difference]:
    """Return how a new verification of the same patch differs from the certificate; those that decide come first."""
    found = [*_decisive(statement.predicate, again.predicate), *_others(statement.predicate, again.predicate)]
    return sorted(found, key=lambda one: not one.decides)


def _decisive(stated: Predicate, now: Predicate) -> Iterator[Difference]:
    if stated.verdict != now.verdict:
        yield Difference(
            "verdict", f"it is {now.verdict} ({now.reason}), and the certificate says {stated.verdict}"
        )
    if stated.only_own_tests != now.only_own_tests:
        others = "only tests that the patch brings show the fix"
        yield Difference(
            "own tests",
            f"{others}: {_yes(now.only_own_tests)}, in the certificate {_yes(stated.only_own_tests)}",
        )
    for what, before, after in (
        ("red to green", stated.tests.red_to_green, now.tests.red_to_green),
        ("broken", stated.tests.broken, now.tests.broken),
    ):
        yield from _sets(what, _ids(before), _ids(after))
    yield from _sets("put back", {*stated.put_back}, {*now.put_back})
    if bool(stated.tampering) != bool(now.tampering):
        yield Difference(
            "tampering",
            f"found: {_yes(bool(now.tampering))}, in the certificate {_yes(bool(stated.tampering))}",
        )


def _others(stated: Predicate, now: Predicate) -> Iterator[Difference]:
    for what, before, after in (
        ("still red", _ids(stated.tests.still_red), _ids(now.tests.still_red)),
        ("flaky", _ids(stated.tests.flaky), _ids(now.tests.flaky)),
        ("packages", {*stated.environment.packages}, {*now.environment.packages}),
        ("suites", _names(stated), _names(now)),
    ):
        yield from _sets(what, before, after, decides=False)
    before_values, after_values = (
        {**said.environment.model_dump(exclude={"packages"}), "m3agent": said.tool.version}
        for said in (stated, now)
    )
    for name, value in before_values.items():
        if value != after_values[name]:
            yield Difference(
                name, f"it is {after_values[name]}, and the certificate says {value}", decides=False
            )


def _names(said: Predicate) -> set[str]:
    return {
        f"{suite.runner} in {suite.folder or '.'}{'' if suite.ran else ' (not run)'}" for suite in said.suites
    }


def _ids(tests: tuple[TestRuns, ...]) -> set[str]:
    return {test.id for test in tests}


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _sets(what: str, before: set[str], after: set[str], *, decides: bool = True) -> Iterator[Difference]:
    parts = [
        f"{verb} {', '.join(sorted(some)[:MOST_NAMED])}{f' and {len(some) - MOST_NAMED} more' if len(some) > MOST_NAMED else ''}"
        for verb, some in (("only here", after - before), ("only in the certificate", before - after))
        if some
    ]
    if parts:
        yield Difference(what, "; ".join(parts), decides)

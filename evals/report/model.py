"""The report of a run as a plain object: what the table, the page and the JSON show, and nothing that they compute.

It depends on the results alone, not on their order nor on when it is made.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from m3agent.evals.report.amounts import Used, used
from m3agent.evals.report.statistics import Mean, mean, pass_all_k, pass_at_k
from m3agent.evals.report.tally import Attempt, Tally
from m3agent.evals.results import Result, RunConfig, Verdict

FORMAT = 1
"""Of the JSON; it changes when a field changes its meaning."""

_EVERY_K = 10  # up to so many attempts each k is shown, then only some


@dataclass(frozen=True)
class Score:
    """How many instances were resolved.

    instances: in the denominator. attempts: at them, done and missing. worst, best: the mean rate over instances if the
    missing attempts all fail or all succeed; equal where none is missing, None of no instances.
    """

    instances: int
    attempts: int
    resolved: int
    missing: int
    worst: Mean | None
    best: Mean | None


@dataclass(frozen=True)
class PassK:
    """Over instances: one, the chance that one of k attempts succeeds (pass@k); all_of, that all do (pass^k)."""

    k: int
    one: Mean
    all_of: Mean


@dataclass(frozen=True)
class Repository:
    """A repository's part. verdicts: attempts by verdict, those of invalid instances included."""

    name: str
    invalid: int
    score: Score
    verdicts: dict[Verdict, int]
    used: Used


@dataclass(frozen=True)
class Agreement:
    """Our grading against the official rules, over attempts that have both. unknown: graded attempts without the latter."""

    both: int
    neither: int
    only_strict: tuple[str, ...]
    only_official: tuple[str, ...]
    unknown: int


@dataclass(frozen=True)
class Report:
    """What a run's results say.

    repos: the repository of each instance. score: without invalid instances. over_all: with them, as not resolved. missing: attempts without a result, or with
    `infra` only. pass_k: empty where attempts are missing. used: of the attempts that count. results: failures first.
    notes: what a reader should know before trusting a number.
    """

    config: RunConfig
    repos: dict[str, str]
    score: Score
    over_all: Score
    invalid: tuple[str, ...]
    missing: tuple[Attempt, ...]
    verdicts: dict[Verdict, int]
    pass_k: tuple[PassK, ...]
    used: Used
    repositories: tuple[Repository, ...]
    agreement: Agreement | None
    undone: tuple[str, ...]
    forged: tuple[str, ...]
    results: tuple[Result, ...]
    notes: tuple[str, ...]
    format: int = FORMAT

    @property
    def complete(self) -> bool:
        """Whether each attempt has a result."""
        return not self.missing

    def label(self, instance_id: str, attempt: int) -> str:
        """What an attempt is called: its instance, and its number where there are several."""
        return label(self.config, instance_id, attempt)


def report_of(tally: Tally) -> Report:
    """The report of a run's results."""
    config, counting, ordered = tally.config, tally.counting(), tally.ordered()
    return Report(
        config=config,
        repos={ident: tally.repo(ident) for ident in tally.instances},
        score=_score(tally, tally.counted),
        over_all=_score(tally, tally.counted, tally.invalid),
        invalid=tally.invalid,
        missing=tally.missing,
        verdicts=_verdicts(ordered),
        pass_k=_pass_k(tally),
        used=used(counting),
        repositories=_repositories(tally, counting),
        agreement=_agreement(config, ordered),
        undone=_labels(config, (r for r in ordered if r.grade and r.grade.undone)),
        forged=_labels(config, (r for r in ordered if r.grade and r.grade.forged)),
        results=tuple(ordered),
        notes=tuple(_notes(tally)),
    )


def _score(tally: Tally, counted: Sequence[str], unresolved: Sequence[str] = ()) -> Score:
    """The score of instances; `unresolved`: further ones, none of whose attempts counts as resolved."""
    attempts = tally.config.attempts
    every = [*counted, *unresolved]
    worst = [tally.rate(ident) for ident in counted] + [0.0] * len(unresolved)
    best = [(tally.resolved[ident] + tally.missing_of[ident]) / attempts for ident in counted]
    best += [0.0] * len(unresolved)
    repos = [tally.repo(ident) for ident in every]
    return Score(
        instances=len(every),
        attempts=len(every) * attempts,
        resolved=sum(tally.resolved[ident] for ident in counted),
        missing=sum(tally.missing_of[ident] for ident in counted),
        worst=mean(worst, repos),
        best=mean(best, repos),
    )


def _verdicts(results: Iterable[Result]) -> dict[Verdict, int]:
    counts = Counter(result.verdict for result in results)
    return {verdict: counts[verdict] for verdict in Verdict}


def _pass_k(tally: Tally) -> tuple[PassK, ...]:
    """For each k, where there are several attempts and none is missing."""
    n = tally.config.attempts
    if n == 1 or tally.missing or not tally.counted:
        return ()
    repos = [tally.repo(ident) for ident in tally.counted]
    found: list[PassK] = []
    for k in range(1, n + 1):
        if k > _EVERY_K and k != n and k.bit_count() != 1:  # then powers of two, and all
            continue
        one = mean([pass_at_k(n, tally.resolved[ident], k) for ident in tally.counted], repos)
        all_of = mean([pass_all_k(n, tally.resolved[ident], k) for ident in tally.counted], repos)
        if one is not None and all_of is not None:
            found.append(PassK(k, one, all_of))
    return tuple(found)


def _repositories(tally: Tally, counting: Sequence[Result]) -> tuple[Repository, ...]:
    instances: defaultdict[str, list[str]] = defaultdict(list)
    for ident in tally.instances:
        instances[tally.repo(ident)].append(ident)
    left_out = set(tally.invalid)
    return tuple(
        Repository(
            name=name,
            invalid=sum(ident in left_out for ident in idents),
            score=_score(tally, [ident for ident in idents if ident not in left_out]),
            verdicts=_verdicts(
                result for result in tally.results.values() if tally.repo(result.instance_id) == name
            ),
            used=used([result for result in counting if tally.repo(result.instance_id) == name]),
        )
        for name, idents in sorted(instances.items())
    )


def _agreement(config: RunConfig, results: Iterable[Result]) -> Agreement | None:
    """None where the official rules were never asked."""
    graded = [result for result in results if result.grade is not None]
    if not any(result.official for result in graded):
        return None
    pairs = [
        (result, result.grade.verdict is Verdict.RESOLVED, result.official.resolved)
        for result in graded
        if result.grade is not None and result.official is not None and result.official.resolved is not None
    ]
    return Agreement(
        both=sum(strict and official for _, strict, official in pairs),
        neither=sum(not strict and not official for _, strict, official in pairs),
        only_strict=_labels(
            config, (result for result, strict, official in pairs if strict and not official)
        ),
        only_official=_labels(
            config, (result for result, strict, official in pairs if official and not strict)
        ),
        unknown=len(graded) - len(pairs),
    )


def _labels(config: RunConfig, results: Iterable[Result]) -> tuple[str, ...]:
    return tuple(sorted(label(config, result.instance_id, result.attempt) for result in results))


def label(config: RunConfig, instance_id: str, attempt: int) -> str:
    """What an attempt is called: its instance, and its number where there are several."""
    return instance_id if config.attempts == 1 else f"{instance_id} #{attempt}"


def _notes(tally: Tally) -> Iterable[str]:
    for ident in tally.invalid:
        verdicts = {tally.verdict(ident, number) for number in range(1, tally.config.attempts + 1)}
        if verdicts - {Verdict.INVALID, Verdict.INFRA, None}:
            yield f"{ident} is left out as invalid, though some of its attempts could be graded"
    if strange := sorted(ident for ident in tally.instances if ident not in tally.repos):
        yield f"the repository of {', '.join(strange)} is not known: they are taken for one repository"

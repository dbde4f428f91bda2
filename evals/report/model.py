"""The report of a run, and the comparison of two runs, as plain objects.

The table, the page and the JSON show them without further computation. They depend only on the results, not on
their order or on the current time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from m3agent.evals.data.results import Attempt, AttemptRecord, RunConfig, Verdict, differing
from m3agent.evals.report.counting import Tally, UsageSummary, counting, used
from m3agent.evals.report.statistics import Mean, Paired, mean, paired, pass_all_k, pass_at_k

FORMAT = 1
"""Version of the JSON; it changes when a field changes its meaning."""

_EVERY_K = 10  # every k is shown up to this one, then only some


@dataclass(frozen=True)
class Score:
    """How many instances were resolved."""

    instances: int
    """Number of instances in the denominator."""
    attempts: int
    """Number of attempts at them, including missing ones."""
    resolved: int
    """Number of attempts that resolved their instance."""
    missing: int
    """Number of attempts without a result."""
    worst: Mean | None
    """Mean rate over the instances if all missing attempts fail; None without instances."""
    best: Mean | None
    """Mean rate if all missing attempts succeed; equal to `worst` if none is missing."""


@dataclass(frozen=True)
class PassK:
    """Estimates for k attempts, as means over the instances."""

    k: int
    one: Mean
    """Probability that at least one of k attempts succeeds (pass@k)."""
    all_of: Mean
    """Probability that all k attempts succeed (pass^k)."""


@dataclass(frozen=True)
class RepositoryResults:
    """The results of one repository."""

    name: str
    invalid: int
    score: Score
    """Score without invalid instances."""
    verdicts: dict[Verdict, int]
    """Number of attempts by verdict, including those at invalid instances."""
    used: UsageSummary


@dataclass(frozen=True)
class Agreement:
    """The strict verdicts compared with the official ones."""

    both: int
    """Number of attempts that both resolve."""
    neither: int
    """Number of attempts that neither resolves."""
    only_strict: tuple[str, ...]
    """Attempts that only the strict rules resolve."""
    only_official: tuple[str, ...]
    """Attempts that only the official rules resolve."""
    unknown: int
    """Number of graded attempts without an official verdict."""


@dataclass(frozen=True)
class RunReport:
    """The results of a run."""

    config: RunConfig
    repos: dict[str, str]
    score: Score
    """Score without invalid instances."""
    over_all: Score
    """Score that counts invalid instances as not resolved."""
    invalid: tuple[str, ...]
    missing: tuple[Attempt, ...]
    """Attempts without a result, or with the verdict `infra`."""
    verdicts: dict[Verdict, int]
    pass_k: tuple[PassK, ...]
    """Estimates for several attempts; empty if attempts are missing."""
    used: UsageSummary
    """What the counting attempts used."""
    repositories: tuple[RepositoryResults, ...]
    agreement: Agreement | None
    """Comparison with the official verdicts; None if there are none."""
    undone: tuple[str, ...]
    """Attempts whose patch was partly reset."""
    forged: tuple[str, ...]
    """Attempts with signs of tampering."""
    review: tuple[str, ...]
    """Attempts whose patch a person must read."""
    results: tuple[AttemptRecord, ...]
    """All results, failures first."""
    notes: tuple[str, ...]
    """Facts to know before trusting the numbers."""
    format: int = FORMAT

    @property
    def complete(self) -> bool:
        """Whether every attempt has a result."""
        return not self.missing

    @property
    def counting(self) -> list[AttemptRecord]:
        """The results that count for or against the agent, failures first."""
        return counting(self.results, self.invalid)


def report_of(tally: Tally) -> RunReport:
    """Return the report of a run's results."""
    config, counted, ordered = tally.config, tally.counting(), tally.ordered()
    return RunReport(
        config=config,
        repos={ident: tally.repo(ident) for ident in tally.instances},
        score=_score(tally, tally.counted),
        over_all=_score(tally, tally.counted, tally.invalid),
        invalid=tally.invalid,
        missing=tally.missing,
        verdicts=_verdicts(ordered),
        pass_k=_pass_k(tally),
        used=used(counted),
        repositories=_repositories(tally, counted),
        agreement=_agreement(config, ordered),
        undone=_labels(config, (r for r in ordered if r.grade and r.grade.undone)),
        forged=_labels(config, (r for r in ordered if r.grade and r.grade.forged)),
        review=_labels(config, (r for r in ordered if r.grade and r.grade.review)),
        results=tuple(ordered),
        notes=tuple(_notes(tally)),
    )


def _score(tally: Tally, counted: Sequence[str], unresolved: Sequence[str] = ()) -> Score:
    """Return the score of the instances `counted`; the attempts at those in `unresolved` count as failed."""
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


def _verdicts(results: Iterable[AttemptRecord]) -> dict[Verdict, int]:
    counts = Counter(result.verdict for result in results)
    return {verdict: counts[verdict] for verdict in Verdict}


def _pass_k(tally: Tally) -> tuple[PassK, ...]:
    """Return the estimates for each k; empty for a single attempt, or if attempts are missing."""
    n = tally.config.attempts
    if n == 1 or tally.missing or not tally.counted:
        return ()
    repos = [tally.repo(ident) for ident in tally.counted]

    def estimate(of_one: Callable[[int, int, int], float], k: int) -> Mean:
        value = mean([of_one(n, tally.resolved[ident], k) for ident in tally.counted], repos)
        assert value is not None  # there are instances
        return value

    # beyond _EVERY_K: powers of two, and n
    shown = [k for k in range(1, n + 1) if k <= _EVERY_K or k == n or k.bit_count() == 1]
    return tuple(PassK(k, estimate(pass_at_k, k), estimate(pass_all_k, k)) for k in shown)


def _repositories(tally: Tally, counted: Sequence[AttemptRecord]) -> tuple[RepositoryResults, ...]:
    instances: defaultdict[str, list[str]] = defaultdict(list)
    for ident in tally.instances:
        instances[tally.repo(ident)].append(ident)
    left_out = set(tally.invalid)
    return tuple(
        RepositoryResults(
            name=name,
            invalid=sum(ident in left_out for ident in idents),
            score=_score(tally, [ident for ident in idents if ident not in left_out]),
            verdicts=_verdicts(
                result for result in tally.results.values() if tally.repo(result.instance_id) == name
            ),
            used=used([result for result in counted if tally.repo(result.instance_id) == name]),
        )
        for name, idents in sorted(instances.items())
    )


def _agreement(config: RunConfig, results: Iterable[AttemptRecord]) -> Agreement | None:
    """Return the agreement; None if no attempt has an official verdict."""
    graded = [result for result in results if result.grade is not None]
    if not any(result.official for result in graded):
        return None
    by_verdicts: defaultdict[tuple[bool, bool], list[AttemptRecord]] = defaultdict(list)
    for result in graded:
        if result.grade and result.official and result.official.resolved is not None:
            by_verdicts[result.grade.verdict is Verdict.RESOLVED, result.official.resolved].append(result)
    known = sum(map(len, by_verdicts.values()))
    return Agreement(
        both=len(by_verdicts[True, True]),
        neither=len(by_verdicts[False, False]),
        only_strict=_labels(config, by_verdicts[True, False]),
        only_official=_labels(config, by_verdicts[False, True]),
        unknown=len(graded) - known,
    )


def _labels(config: RunConfig, results: Iterable[AttemptRecord]) -> tuple[str, ...]:
    return tuple(sorted(config.label(result.instance_id, result.attempt) for result in results))


def _notes(tally: Tally) -> Iterable[str]:
    for ident in tally.invalid:
        verdicts = {tally.verdict(ident, number) for number in range(1, tally.config.attempts + 1)}
        if verdicts - {Verdict.INVALID, Verdict.INFRA, None}:
            yield f"{ident} is left out as invalid, though some of its attempts could be graded"
    if strange := sorted(ident for ident in tally.instances if ident not in tally.repos):
        yield f"the repository of {', '.join(strange)} is not known: they are counted as one repository"


@dataclass(frozen=True)
class RunComparison:
    """This run compared with another, on common instances that are complete and valid in both.

    In pairs, this run comes first.
    """

    other: str
    agents: tuple[str, str]
    attempts: tuple[int, int]
    """Attempts at each instance."""
    instances: int
    rates: tuple[float, float] | None
    """Mean rates; None if there are no such instances."""
    paired: Paired | None
    """The statistical test; None if there are no such instances."""
    won: tuple[str, ...]
    """Instances on which this run has the higher rate."""
    lost: tuple[str, ...]
    """Instances on which this run has the lower rate."""
    only_here: tuple[str, ...]
    only_there: tuple[str, ...]
    left_out: tuple[str, ...]
    """Common instances that are invalid or incomplete in a run."""
    used: tuple[UsageSummary, UsageSummary]
    """What the runs used on the compared instances."""
    notes: tuple[str, ...]


def compare(here: Tally, there: Tally, other: str = "") -> RunComparison:
    """Compare two runs. Instances are matched by id; `notes` mentions differences between the runs' data.

    Args:
        other: Folder of the other run, as the user wrote it.
    """
    mine, theirs = set(here.instances), set(there.instances)
    unfit = {*here.invalid, *there.invalid, *here.missing_of, *there.missing_of}
    counted = sorted((mine & theirs) - unfit)
    first, second = ([tally.rate(ident) for ident in counted] for tally in (here, there))
    single = here.config.attempts == there.config.attempts == 1
    rows = list(zip(counted, first, second, strict=True))
    return RunComparison(
        other=other,
        agents=(here.config.agent, there.config.agent),
        attempts=(here.config.attempts, there.config.attempts),
        instances=len(counted),
        rates=(fmean(first), fmean(second)) if counted else None,
        paired=paired(first, second, [here.repo(ident) for ident in counted], single=single),
        won=tuple(ident for ident, a, b in rows if a > b),
        lost=tuple(ident for ident, a, b in rows if a < b),
        only_here=tuple(sorted(mine - theirs)),
        only_there=tuple(sorted(theirs - mine)),
        left_out=tuple(sorted(mine & theirs & unfit)),
        used=(_used(here, counted), _used(there, counted)),
        notes=tuple(_cautions(here, there)),
    )


def _used(tally: Tally, counted: list[str]) -> UsageSummary:
    wanted = set(counted)
    return used([result for result in tally.counting() if result.instance_id in wanted])


def _limit(tally: Tally, name: str) -> str:
    seconds = tally.config.timeouts.get(name)
    return "none" if seconds is None else f"{seconds:g} s"


def _cautions(here: Tally, there: Tally) -> list[str]:
    notes: list[str] = []
    if here.config == there.config:
        notes.append("both runs have the same configuration: the differences are chance")
    if here.config.data != there.config.data:
        if here.instances == there.instances:
            notes.append(
                "the runs have the same ids but different data: their instances may not be the same tasks"
            )
        else:
            notes.append(
                "the runs attempted different instances; those with the same id are compared as the same task"
            )
    if differ := differing(here.config.timeouts, there.config.timeouts):
        limits = ", ".join(f"{name} {_limit(here, name)} and {_limit(there, name)}" for name in differ)
        notes.append(f"the runs had different time limits: {limits}")
    return notes

"""Decide which attempts of a run count, and count the results of each instance.

All numbers of a report use these rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from m3agent.evals.data.instance import INSTANCE_ID
from m3agent.evals.data.results import AttemptRecord, RunConfig, Verdict
from m3agent.evals.data.run_folder import RUN, RunFolder
from m3agent.util.errors import UsageError

ORDER = (
    Verdict.ERROR,
    Verdict.TIMEOUT,
    Verdict.EMPTY,
    Verdict.UNRESOLVED,
    Verdict.INFRA,
    Verdict.INVALID,
    Verdict.RESOLVED,
)
"""Display order: failures, then verdicts that do not count, then successes."""

UNKNOWN_REPOSITORY = "unknown"

Attempt = tuple[str, int]
"""Instance id and number of the attempt."""


class Tally:
    """The results of a run by instance; the order of the results does not matter.

    Attributes:
        missing: Attempts without a result, or with the verdict `infra`.
        invalid: Instances with an attempt whose verdict is `invalid`: the instance itself is at fault.
    """

    def __init__(self, config: RunConfig, repos: Mapping[str, str], results: Iterable[AttemptRecord]) -> None:
        self.config = config
        self.results = {(result.instance_id, result.attempt): result for result in results}
        self.instances = tuple(sorted(set(config.instances)))
        self.repos = {result.instance_id: result.repo for result in self.results.values()} | dict(repos)
        numbers = range(1, config.attempts + 1)
        self.missing = tuple(
            (ident, number)
            for ident in self.instances
            for number in numbers
            if self.verdict(ident, number) in (None, Verdict.INFRA)
        )
        self.missing_of = Counter(ident for ident, _ in self.missing)
        self.resolved = {
            ident: sum(self.verdict(ident, number) is Verdict.RESOLVED for number in numbers)
            for ident in self.instances
        }
        self.invalid = tuple(
            ident
            for ident in self.instances
            if any(self.verdict(ident, number) is Verdict.INVALID for number in numbers)
        )
        self.counted = tuple(ident for ident in self.instances if ident not in set(self.invalid))

    def verdict(self, ident: str, number: int) -> Verdict | None:
        """Return an attempt's verdict; None if it has no result."""
        result = self.results.get((ident, number))
        return None if result is None else result.verdict

    def repo(self, ident: str) -> str:
        """Return the repository of an instance; `UNKNOWN_REPOSITORY` if it is not known."""
        return self.repos.get(ident, UNKNOWN_REPOSITORY)

    def rate(self, ident: str) -> float:
        """Return the share of an instance's attempts that resolved it; missing attempts count as failed."""
        return self.resolved[ident] / self.config.attempts

    def counting(self) -> list[AttemptRecord]:
        """Return the results that count for or against the agent, failures first."""
        left_out = set(self.invalid)
        return [
            result
            for result in self.ordered()
            if result.verdict is not Verdict.INFRA and result.instance_id not in left_out
        ]

    def ordered(self) -> list[AttemptRecord]:
        """Return all results: failures first, then by instance and attempt number."""
        return sorted(
            self.results.values(),
            key=lambda result: (ORDER.index(result.verdict), result.instance_id, result.attempt),
        )


def tally_of(run: RunFolder) -> Tally:
    """Read a run's results from the disk.

    Raises:
        UsageError: A record is damaged.
    """
    for ident in run.config.instances:
        if not INSTANCE_ID.fullmatch(ident):  # it becomes a file name; the run may be foreign
            raise UsageError(f"{run.path / RUN} names an instance {ident!r}, which is not an instance id.")
    found: list[AttemptRecord] = []
    for ident, number in run.wanted():
        result = run.result(ident, number)
        if result is not None and (result.instance_id, result.attempt) != (ident, number):
            where = run.attempt(ident, number)
            raise UsageError(
                f"{where} holds the result of {result.instance_id}, attempt {result.attempt}: remove it to repeat it."
            )
        found += [] if result is None else [result]
    return Tally(run.config, run.repos, found)

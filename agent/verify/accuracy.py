"""How often verdicts were right in a repository, as `m3agent eval verdicts` measured it.

The trials are kept in the state folder. Those of another version of m3agent do not count, because its rules differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from m3agent import __version__
from m3agent.util.private_file import read_file, write_file

FOLDER = "verdicts"
"""The folder in the state folder."""


class Trial(BaseModel):
    """The verdict about one patch whose label is known."""

    model_config = ConfigDict(frozen=True)

    commit: str
    """Id of the fix."""
    kind: str
    """What was made of the fix (`m3agent.evals.verdicts.variants.KINDS`)."""
    is_right: bool
    """Whether the patch is right."""
    verdict: str
    rule: str
    reason: str
    seconds: float
    """Wall time of the verification."""

    @property
    def is_misjudged(self) -> bool:
        """Whether a right patch is not verified, or a wrong one is."""
        return (self.verdict == "verified") != self.is_right


class Measured(BaseModel):
    """What was measured in a repository."""

    trials: tuple[Trial, ...] = ()
    silent: tuple[str, ...] = ()
    """Ids of the commits whose tests do not show that they fix something."""
    untested: tuple[str, ...] = ()
    """Ids of the commits of which no test passes on this machine."""
    version: str = __version__

    @property
    def commits(self) -> set[str]:
        """Ids of the commits that need not be tried again."""
        return {*self.silent, *self.untested, *(trial.commit for trial in self.trials)}


@dataclass(frozen=True)
class Accuracy:
    """Numbers of right and wrong patches, and how many of each were verified."""

    right: int
    right_verified: int
    wrong: int
    wrong_verified: int

    @classmethod
    def of(cls, trials: Sequence[Trial]) -> Accuracy:
        """Count trials."""
        verified = [trial.is_right for trial in trials if trial.verdict == "verified"]
        right = sum(trial.is_right for trial in trials)
        return cls(right, sum(verified), len(trials) - right, len(verified) - sum(verified))

    def __str__(self) -> str:
        """Return the numbers as a sentence without an end."""
        return (
            f"in this repository, {self.right_verified} of {self.right} right fixes were verified, and "
            f"{self.wrong_verified} of {self.wrong} wrong ones"
        )


def path_of(state: Path, repository: Path) -> Path:
    """Return the file with the trials of a repository.

    Args:
        repository: The folder of its git data, which its work trees share.
    """
    name = hashlib.sha256(str(repository.resolve()).encode(errors="surrogateescape")).hexdigest()[:16]
    return state / FOLDER / f"{name}.json"


def read(path: Path) -> Measured:
    """Return what a file says; nothing if it is missing, damaged or of another version of m3agent."""
    content = read_file(str(path))
    try:
        kept = Measured() if content is None else Measured.model_validate_json(content)
    except ValidationError:
        return Measured()
    return kept if kept.version == __version__ else Measured()


def write(path: Path, measured: Measured) -> None:
    """Replace a file. Raises OSError: The state folder cannot be written."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_file(str(path), measured.model_dump_json().encode())


def known_accuracy(state: Path, repository: Path) -> Accuracy | None:
    """Return how often verdicts were right in a repository; None if that was not measured."""
    trials = read(path_of(state, repository)).trials
    return Accuracy.of(trials) if trials else None

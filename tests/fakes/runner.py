"""A test runner whose suites are the files named `own.suite`, and which needs what the test says."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from m3agent.sandbox.declared.preparation import Preparation
from m3agent.tools.runners import suites
from m3agent.tools.runners.base import Command, Job, Output, Reading, Runner, Suite, Tree, Unit


class OwnRunner(Runner):
    """The runner."""

    name = "own"
    language = "Own"

    def __init__(self, preparation: Preparation) -> None:
        self.preparation = preparation

    def detect(self, tree: Tree) -> list[Suite]:
        return [Suite(self.name, path.rpartition("/")[0], path) for path in tree.named("own.suite")]

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        return self.preparation

    def is_test(self, path: str) -> bool:
        return False

    def surroundings(self, path: str, base: Collection[str] = ()) -> bool:
        return False

    def commands(self, job: Job, units: Sequence[Unit]) -> list[Command]:
        return []

    def read(self, job: Job, units: Sequence[Unit], outputs: Sequence[Output]) -> Reading:
        return Reading()


def use_own_runner(monkeypatch: pytest.MonkeyPatch, preparation: Preparation) -> None:
    """Make the runner the only one."""
    monkeypatch.setattr(suites, "RUNNERS", {"own": OwnRunner(preparation)})

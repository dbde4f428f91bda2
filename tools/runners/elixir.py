"""Run tests of Elixir (ExUnit): a reporter of m3agent is in the process of the tests.

All files run in one process. Mix compiles all test files before any test runs: if one of them cannot be compiled, all files of the run
are red.
"""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace

from m3agent.tools.runners.base import (
    Command,
    Job,
    Output,
    Preparation,
    Reading,
    Suite,
    Tree,
    Unit,
    is_skipped,
    own_folders,
)
from m3agent.tools.runners.file_runner import FileRunner, reporter

_CANARY = """\
defmodule Case{number}Test do
  use ExUnit.Case
  test "value" do
    value = {first}
    assert value == {second}
  end
end
"""


class Exunit(FileRunner):
    """ExUnit. Each mix.exs with test files has a suite; in an umbrella, those of its applications."""

    name = "exunit"
    language = "Elixir"

    def roots(self, tree: Tree) -> Iterable[str]:
        """Return the folders with a mix.exs, except those in folders of tests."""
        return own_folders(tree.named("mix.exs"), ("test",))

    def files(self, tree: Tree, root: str) -> list[str]:
        """Return the test files in the folder `test` of a root."""
        tests = tree.below(posixpath.join(root, "test"), "_test.exs")
        return [path for path in tests if "\n" not in path and not is_skipped(path)]

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Return Mix's commands; without dependencies there is nothing to fetch."""
        manifest, lock = suite.path("mix.exs"), suite.path("mix.lock")
        if lock not in tree.paths:
            return Preparation(system_packages=("elixir",))
        return Preparation(
            system_packages=("elixir", "erlang-dev", "git"),
            commands=(("mix", "local.hex", "--force"), ("mix", "deps.get", "--only", "test")),
            inputs=(manifest, lock),
            keep=("deps",),
            env={"MIX_ENV": "test"},
        )

    def commands(self, job: Job, units: Sequence[Unit]) -> list[Command]:
        """Return one command for all files, and a canary."""
        script, report, key, listed = (self.path(job, end) for end in ("exs", "report", "key", "files"))
        files, number = self.chosen(job), 2 + secrets.randbelow(900)
        (command,) = self.reporting(
            job,
            (
                *("elixir", "-r", script, "-S", "mix", "test", "--formatter", "M3agent.Formatter"),
                *("--formatter", "ExUnit.CLIFormatter", "--no-color", "--seed", "0"),
                *("--timeout", f"{job.limits.per_test * 1000:.0f}", *files),
                canary := f"{job.work}/case{number}_test.exs",
            ),
            {"exs": reporter("exunit.exs"), "files": files},
            {
                "MIX_ENV": "test",
                "MIX_BUILD_PATH": f"{job.work}/build",
                "HEX_OFFLINE": "1",
                "M3AGENT_REPORT": f"{report}\n{key}\n{listed}\n{canary}",
            },
        )
        text = _CANARY.format(number=number, first=number, second=number + 1 + secrets.randbelow(90))
        return [replace(command, files={**command.files, canary: text.encode()})]

    def read(self, job: Job, units: Sequence[Unit], outputs: Sequence[Output]) -> Reading:
        """Read the records. Without any, all planned files are red: one of them may not compile."""
        reading = super().read(job, units, outputs)
        if not reading.planned and outputs:
            reading.planned = set(map(job.suite.path, self.chosen(job)))
        return reading

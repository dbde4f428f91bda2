"""Run tests of Elixir: ExUnit with Mix.

Mix compiles all test files before any test runs. If one of them cannot be compiled, all files of the run are red.
"""

from __future__ import annotations

import posixpath
import re
import secrets
from collections.abc import Collection, Sequence

from m3agent.tools.runners.base import (
    SKIPPED_FOLDERS,
    Command,
    Limits,
    Output,
    Preparation,
    Reading,
    Runner,
    Suite,
    Tree,
    Unit,
)
from m3agent.tools.runners.canaries import read_with_canaries, reporter

_SURROUNDINGS = re.compile(
    r"(^|/)(mix\.(exs|lock)|\.formatter\.exs|config/(config|test|runtime)\.exs|\.tool-versions|\.env[^/]*|Makefile)$"
    r"|(^|/)(deps|_build)/"
)
_CANARY = """\
defmodule Case{number}Test do
  use ExUnit.Case
  test "value" do
    value = {first}
    assert value == {second}
  end
end
"""


class Exunit(Runner):
    """ExUnit."""

    name = "exunit"
    language = "Elixir"

    def detect(self, tree: Tree) -> list[Suite]:
        """Return a suite for each mix.exs with test files; in an umbrella, one for each of its applications."""
        found = []
        for path in tree.named("mix.exs"):
            root = path.rpartition("/")[0]
            mine = _tests(tree, root)
            if mine and "test" not in root.split("/"):
                found.append(Suite(self.name, root, f"{len(mine)} test files such as {mine[0]}"))
        return found

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

    def is_test(self, path: str) -> bool:
        """Return whether a file is a test or a helper of tests."""
        return "test" in path.split("/")[:-1] or path.endswith("_test.exs")

    def surroundings(self, path: str, base: Collection[str] = ()) -> bool:
        """Return whether a file decides which tests run, or which libraries they use."""
        return bool(_SURROUNDINGS.search(path))

    def select(self, suite: Suite, tree: Tree, wanted: Sequence[str]) -> tuple[str, ...]:
        """Return the files of the wanted tests; empty if one of them is in no test file."""
        mine = _tests(tree, suite.root)
        found: set[str] = set()
        for one in wanted:
            path = posixpath.normpath(one.partition("::")[0])
            hits = [file for file in mine if path in (".", file) or file.startswith(f"{path}/")]
            if not hits:
                return ()
            found.update(hits)
        return tuple(sorted(found)) if len(found) < len(mine) else ()

    def commands(
        self,
        suite: Suite,
        tree: Tree,
        targets: Sequence[str],
        units: Sequence[Unit],
        limits: Limits,
        work: str,
    ) -> list[Command]:
        """Return one command for all files."""
        files = [suite.within(path) for path in targets or _tests(tree, suite.root)]
        script, report, key, listed = (f"{work}/exunit.{end}" for end in ("exs", "report", "key", "files"))
        number = 2 + secrets.randbelow(900)
        canary = f"{work}/case{number}_test.exs"
        text = _CANARY.format(number=number, first=number, second=number + 1 + secrets.randbelow(90))
        return [
            Command(
                (
                    *("elixir", "-r", script, "-S", "mix", "test", "--formatter", "M3agent.Formatter"),
                    *("--formatter", "ExUnit.CLIFormatter", "--no-color", "--seed", "0"),
                    *("--timeout", f"{limits.per_test * 1000:.0f}", *files, canary),
                ),
                cwd=suite.root or ".",
                env={
                    "MIX_ENV": "test",
                    "MIX_BUILD_PATH": f"{work}/build",
                    "HEX_OFFLINE": "1",
                    "M3AGENT_REPORT": f"{report}\n{key}\n{listed}\n{canary}",
                },
                files={
                    script: reporter("exunit.exs"),
                    listed: "\n".join(files).encode(),
                    canary: text.encode(),
                },
                report=report,
                key_file=key,
            )
        ]

    def read(self, suite: Suite, tree: Tree, units: Sequence[Unit], outputs: Sequence[Output]) -> Reading:
        """Read the records. Without any, all planned files are red: one of them may not compile."""
        reading = read_with_canaries(suite, outputs)
        if not reading.planned:
            for output in outputs:
                listed = next(
                    (text for path, text in output.command.files.items() if path.endswith(".files")), b""
                )
                reading.planned |= {suite.path(path) for path in listed.decode().split("\n") if path}
        return reading


def _tests(tree: Tree, root: str) -> list[str]:
    """Return the sorted paths of the test files in the folder `test` of a root."""
    prefix = f"{root}/test/" if root else "test/"
    return sorted(
        path
        for path in tree.paths
        if path.startswith(prefix)
        and path.endswith("_test.exs")
        and "\n" not in path
        and SKIPPED_FOLDERS.isdisjoint(path.split("/")[:-1])
    )

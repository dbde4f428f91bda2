"""Test the choice among attempts by the tests that each one wrote first."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from m3agent.agent.fix.agreement import Rival, passed_tests, scores
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.run_tests import Selection
from tests.agent.fix.test_attempts import logs, scripted
from tests.agent.fix.test_proposal import UNTESTED
from tests.agent.fix.test_ranking import NO_TESTS
from tests.agent.scripted import DONE, TEST, Fixes, calls, says

REGULAR = 0o100644


class Runs:
    """Runs tests without a sandbox: a test is green if the code contains its text."""

    def __init__(self, store: TreeStore) -> None:
        self.store = store

    async def run(self, tree: str, _: str, selection: Selection, *, added: Any) -> Any:
        files = {entry.path: self.store.get_blob(entry.sha) for entry in self.store.list_tree(tree)}
        [path] = selection.targets
        assert (list(selection.only), list(added)) == ([path], [path])
        green = files[path] in files["code"]
        return replace(NO_TESTS, passed=(path,)) if green else replace(NO_TESTS, failed=(path,))


def rival(folder: Path, number: int, code: bytes, test: bytes, verdict: str = "verified") -> Rival:
    """Return an attempt with a repository of its own. All of them name their test alike."""
    store = TreeStore(folder / f"{number}.git")
    (folder / "code").write_bytes(b"old")
    base = Workspace.from_folder(store, folder, ["code"])
    tested = base.commit_changes(base.base, [("test_it", REGULAR, test)], [])
    tree = base.commit_changes(tested, [("code", REGULAR, code)], [])
    return Rival(number, verdict, base, tree, tested, functools.partial(cast(Any, Runs), store))


async def test_each_test_runs_on_each_patch(tmp_path: Path) -> None:
    """The third patch passes only its own test, and the first two agree."""
    rivals = [
        rival(tmp_path, 1, b"x = 3, y = 4", b"x = 3"),
        rival(tmp_path, 2, b"y = 4, x = 3", b"y = 4"),
        rival(tmp_path, 3, b"x = 5, y = 6", b"x = 5"),
        rival(tmp_path, 4, b"x = 5", b"x = 5", "unverified"),
    ]
    passed = await passed_tests(rivals, 60.0)
    assert passed == {1: {1, 2}, 2: {1, 2}, 3: {3}}
    assert scores(passed) == {1: 4, 2: 4, 3: 1}
    assert await passed_tests(rivals[2:], -1.0) == {}, "one patch alone agrees with nobody"


async def test_the_runs_end_with_the_time_of_the_fix(tmp_path: Path) -> None:
    class Endless:
        async def run(self, *_: Any, **__: Any) -> Any:
            await asyncio.Event().wait()

    rivals = [replace(rival(tmp_path, number, b"x", b"x"), runs=cast(Any, Endless)) for number in (1, 2)]
    with pytest.raises(TimeoutError):
        await passed_tests(rivals, 0.01)


@pytest.mark.slow
@pytest.mark.integration
def test_the_attempt_that_agrees_with_others_is_chosen(fixes: Fixes) -> None:
    """All three patches are verified by their own tests; the first one is right about one sum only."""

    def attempt(result: str, first: str, second: str, total: int) -> list[Any]:
        text = f"from calc import add\n\n\ndef test_sum():\n    assert add({first}, {second}) == {total}\n"
        change = calls("file_edit", path="calc.py", old="return a - b", new=f"return {result}")
        return [calls("file_write", path="test_sum.py", content=text), says("It is red."), change, TEST, DONE]

    script = scripted(
        attempt("a * b - 1", "2", "3", 5), attempt("a + b", "4", "3", 7), attempt("b + a", "1", "6", 7)
    )
    done = fixes(UNTESTED, [script], "--spec", "--attempts", "3", code=0)
    assert "+    return a + b" in done.stdout
    found = logs(fixes.home)
    assert [lines[-1]["status"] for _, lines in sorted(found.items())] == ["verified"] * 3
    note = "attempt 2 of 3 was chosen: its patch passes the tests of 3 of 3 attempts"
    assert note in found[2][-1]["notes"]
    assert [line["by"] for line in found[1] if line["type"] == "proposal.answered"] == ["m3agent"]
    [choice] = [line for line in found[1] if line["type"] == "attempt.chosen"]
    assert [(rank["number"], rank["executed"]) for rank in choice["ranking"]] == [(2, 6), (3, 6), (1, 1)]

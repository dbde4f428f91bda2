"""Test which attempt is chosen as the best."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.agent.fix.ranking import VERDICTS, AttemptResult, ranked, result_of
from m3agent.agent.verify.verify import Verification
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.test_report import TestReport

NO_TESTS = TestReport((), (), (), (), {}, True, False, 0.0, 0, "", False)


def evidence(verdict: str, broken: int) -> Verification:
    assert verdict in VERDICTS
    return Verification(
        verdict=verdict,  # type: ignore[arg-type]
        reason="",
        fixed=(),
        broken=tuple(f"t.py::{n}" for n in range(broken)),
        still_red=(),
        new_tests=(),
        flaky=(),
        before=NO_TESTS,
        after=NO_TESTS,
        old_tree="",
        new_tree="",
        seconds=0.0,
    )


def results(drawn: list[tuple[str | None, int, str | None, int]]) -> list[AttemptResult]:
    return [
        AttemptResult(number, evidence(verdict, broken) if verdict is not None else None, kind, lines)
        for number, (verdict, broken, kind, lines) in enumerate(drawn, start=1)
    ]


ATTEMPT = st.tuples(
    st.sampled_from([*VERDICTS, None]),
    st.integers(0, 3),
    st.sampled_from([None, "x", "y"]),
    st.integers(0, 9),
)


@given(st.lists(ATTEMPT, min_size=1, max_size=6))
def test_each_is_ranked_once_and_no_worse_one_comes_first(
    drawn: list[tuple[str | None, int, str | None, int]],
) -> None:
    ranks = ranked(results(drawn))
    assert sorted(rank.number for rank in ranks) == list(range(1, len(drawn) + 1))
    places = [*VERDICTS, "none"]
    for better, worse in itertools.pairwise(ranks):
        assert places.index(better.verdict) <= places.index(worse.verdict)
        if better.verdict == worse.verdict:
            assert better.regressions <= worse.regressions
            if better.regressions == worse.regressions:
                assert better.agreement >= worse.agreement
                if better.agreement == worse.agreement:
                    assert better.lines <= worse.lines


@given(st.lists(ATTEMPT, min_size=1, max_size=6), st.randoms())
def test_the_order_in_which_they_ended_plays_no_part(
    drawn: list[tuple[str | None, int, str | None, int]], random: object
) -> None:
    found = results(drawn)
    shuffled = list(found)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert ranked(shuffled) == ranked(found)


BASE = {"a.py": "def f(x):\n    return x - 1\n", "b.txt": "one\n", "test_a.py": "def test(): pass\n"}


@pytest.fixture
def kind_of(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Return a function that tells the kind of a patch that leaves these files."""
    store = TreeStore(tmp_path / "trees.git")

    def tree(name: str, files: dict[str, str]) -> str:
        folder = tmp_path / name
        folder.mkdir()
        for path, text in files.items():
            (folder / path).write_text(text)
        return Workspace.from_folder(store, folder, list(files)).base

    base = Workspace(store, tree("base", BASE))
    count = itertools.count()

    def kind(**changed: str) -> object:
        names = {"a": "a.py", "b": "b.txt", "test": "test_a.py"}
        files = BASE | {names[name]: text for name, text in changed.items()}
        return result_of(1, base, base.patch(tree(f"t{next(count)}", files)), None).kind

    return kind


def test_comments_layout_docstrings_and_tests_make_no_difference(kind_of) -> None:  # type: ignore[no-untyped-def]
    plain = kind_of(a="def f(x):\n    return x + 1\n")
    assert kind_of(a="def f( x ):\n    # up\n    return (x + 1)\n") == plain
    assert kind_of(a='def f(x):\n    """Up."""\n    return x + 1\n') == plain
    assert kind_of(a="def f(x):\n    return x + 1\n", test="def test(): assert 1\n") == plain
    assert kind_of(a="def f(x):\n    return 1 + x\n") != plain
    assert kind_of(a="def f(x):\n    return x + 1\n", b="two\n") != plain
    assert kind_of(b="o n e\n\n") == kind_of(b="one \n \n")
    assert kind_of(a="def f(x:\n    return\n") == kind_of(a="def f(x:\n return\n"), (
        "what does not parse is compared as text"
    )
    assert kind_of() is None


@pytest.mark.parametrize(
    "text", ["x = " + "-" * 50_000 + "1\n", "x = " + "+".join("1" * 50_000) + "\n", "x = '\0'\n", "(" * 9000]
)
def test_code_that_breaks_a_parser_is_compared_as_text(kind_of, text: str) -> None:  # type: ignore[no-untyped-def]
    assert kind_of(a=text) == kind_of(a=text + "\n") != kind_of(a=text + "y = 2\n")

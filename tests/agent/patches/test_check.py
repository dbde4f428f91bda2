"""Test what is said about a certificate that does not hold in every detail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from m3agent.agent.certificate.build import maker_of
from m3agent.agent.certificate.statement import Source, Statement, SuiteCommand, sealed
from m3agent.agent.patches.check import NOT_COMPARED, SHOWN_ONLY, Difference, differences, table
from tests.agent.certificate.test_certificate import ADD, DOUBLE, FOUND, made

ROOT = Path(__file__).parent.parent.parent.parent
STEADY = replace(
    FOUND, flaky=(), runs=tuple(run for run in FOUND.runs if not run.name.startswith("verify-repeat"))
)
"""A verification in which no test was sometimes green and sometimes red."""


def resealed(statement: Statement, change: Callable[[dict[str, Any]], None]) -> Statement:
    """Return a certificate with changed fields, as a forger seals it."""
    predicate = statement.predicate.model_dump(mode="json", exclude={"seal"})
    change(predicate)
    return sealed(predicate)


def setting(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Return what sets a field, named by its path such as `tests.red_to_green.0.id`."""
    *outer, last = path.split(".")

    def change(predicate: dict[str, Any]) -> None:
        part: Any = predicate
        for name in outer:
            part = part[int(name) if isinstance(part, list) else name]
        part[int(last) if isinstance(part, list) else last] = value

    return change


SUITE = {"runner": "go", "folder": "tool", "evidence": "go.mod", "ran": False}
RUNS = {"green": 0, "red": 0}


@pytest.mark.parametrize(
    ("path", "value", "what"),
    [
        ("reason", "12,304 tests pass, audited", "reason"),
        ("reason", "1 test red before, green after; 12,304 tests pass", "reason"),
        ("patch.paths", ["other.py"], "paths"),
        ("put_back", [], "put back"),
        ("tests.red_to_green.0.with_patch", {"green": 5000, "red": 0}, "green runs"),
        ("tests.with_patch.passed", 12304, "with patch"),
        ("tests.still_red", [{"id": DOUBLE, "without_patch": RUNS, "with_patch": RUNS}], "still red"),
        ("tests.added_red", [DOUBLE], "added red"),
        ("tests.new", [DOUBLE], "new tests"),
        ("commands.0.argv", ["audit", "--all"], "commands"),
        ("commands.0.with_patch", 5000, "command runs"),
        ("suites", [SUITE], "suites"),
        ("review", [{"path": "calc.py", "line": 1, "what": "is fine"}], "review"),
        ("tampering", ["none, audited"], "tampering"),
        ("limits.reruns", 0, "reruns"),
        ("tool.name", "auditor", "tool"),
        ("tool.version", "99.0", "m3agent"),
        ("base.uncommitted", 7, "uncommitted"),
        ("base.commit", "HEAD", "base commit"),
        (
            "made_by",
            {"harness": "m3agent 0", "model": "m", "model_licence": "https://free.example"},
            "made by",
        ),
    ],
)
def test_a_resealed_field_does_not_hold(path: str, value: Any, what: str, tmp_path: Path) -> None:
    again = made(tmp_path, STEADY)
    stated = resealed(again, setting(path, value))
    assert what in {difference.what for difference in differences(stated, again) if difference.decides}


def test_a_licence_that_the_model_does_not_have_does_not_hold(tmp_path: Path) -> None:
    of_fix: dict[str, Any] = {"source": Source(kind="fix", commit=None), "made_by": maker_of("MiniMax-M3")}
    stated, again = made(tmp_path, STEADY, **of_fix), made(tmp_path, STEADY)
    assert differences(stated, again) == []
    forged = resealed(stated, setting("made_by.model_licence", "https://free.example"))
    [difference] = differences(forged, again)
    assert (difference.what, difference.decides) == ("licence", True)
    assert difference.text.endswith("LICENSE, and the certificate says https://free.example")


def test_a_field_that_differs_has_one_sentence(tmp_path: Path) -> None:
    again = made(tmp_path, STEADY)
    stated = resealed(again, setting("limits.reruns", 0))
    [difference] = differences(stated, again)
    assert difference.text == "it is 3, and the certificate says 0; to repeat it, give --reruns 0"
    assert table(again, [difference]).splitlines() == [
        "✗ does not hold  verified: 1 test red before, green after",
        f"reruns         {difference.text}",
    ]
    assert table(None, [difference]).startswith("✗ does not hold  the patch is another one, so no test ran\n")


def test_the_reason_of_the_new_run_is_shown(tmp_path: Path) -> None:
    """Numbers of flaky tests and of tests that had time differ by chance, and nothing of the certificate is repeated."""
    again = made(tmp_path, STEADY)
    stated = resealed(again, setting("reason", f"{FOUND.reason}; 2 flaky tests not counted"))
    assert differences(stated, again) == []
    assert table(again, []) == f"✓ holds        verified: {FOUND.reason}\n"


def test_numbers_decide_unless_the_check_itself_saw_chance(tmp_path: Path) -> None:
    """A flaky test that only the certificate names excuses nothing."""
    change = setting("commands.0.with_patch", 5000)
    chance, steady = made(tmp_path, FOUND), made(tmp_path, STEADY)
    assert [each.decides for each in differences(resealed(chance, change), chance)] == [False]
    flaky = [{"id": DOUBLE, "without_patch": RUNS, "with_patch": RUNS}]
    both = resealed(resealed(steady, change), setting("tests.flaky", flaky))
    assert [each.what for each in differences(both, steady) if each.decides] == ["command runs"]


def test_folders_of_a_sandbox_do_not_differ(tmp_path: Path) -> None:
    argv = ("python3", "-m", "pytest", "--x=/tmp/{}/variants-{}/a", "./tests/a.py")
    one, other = (
        replace(
            STEADY,
            runs=(
                replace(STEADY.runs[0], commands=(tuple(part.format(name, digits * 16) for part in argv),)),
            ),
        )
        for name, digits in (("a", "0"), ("b", "f"))
    )
    assert differences(made(tmp_path, one), made(tmp_path, other)) == []
    moved = replace(one.runs[0], commands=(("python3", "-m", "pytest", "--x=/tmp/a", "./a.py"),))
    assert differences(made(tmp_path, replace(one, runs=(moved,))), made(tmp_path, other)) != []


def test_each_field_that_is_not_compared_exists(tmp_path: Path) -> None:
    """Each other field is compared, also one that a later version adds."""
    predicate = made(tmp_path, made_by=maker_of("m")).predicate.model_dump()
    for path in (*SHOWN_ONLY, *NOT_COMPARED):
        part: Any = predicate
        for name in path.split("."):
            assert name in part, path
            part = part[name]


def test_the_documentation_names_each_field_that_is_not_compared() -> None:
    text = (ROOT / "docs/certificate.md").read_text().partition("## What a check compares")[2]
    for path in (*SHOWN_ONLY, *NOT_COMPARED):
        assert f"`{path}" in text, path


def test_suites_differ_by_name(tmp_path: Path) -> None:
    statement = made(tmp_path)
    suites = (*statement.predicate.suites, SuiteCommand.model_validate(SUITE))
    more = statement.model_copy(
        update={"predicate": statement.predicate.model_copy(update={"suites": suites})}
    )
    assert differences(statement, more) == [Difference("suites", "only here go in tool (go.mod; not run)")]
    assert differences(more, statement)[0].text == "only in the certificate go in tool (go.mod; not run)"


def test_ids_of_tests_are_named(tmp_path: Path) -> None:
    again = made(tmp_path, STEADY)
    stated = resealed(
        again, setting("tests.red_to_green.0", {"id": DOUBLE, "without_patch": RUNS, "with_patch": RUNS})
    )
    first = next(each for each in differences(stated, again) if each.what == "red to green")
    assert first.text == f"only here {ADD}; only in the certificate {DOUBLE}"

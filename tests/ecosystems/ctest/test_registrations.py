"""What a patch may change in how C tests are built and registered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from m3agent.tools.runners.base import Reading
from m3agent.tools.runners.programs import Program
from m3agent.tools.runners.registrations import macro_changes, registration_changes
from m3agent.tools.runners.run import report_of

OLD = Program(
    "tests/a_test.c::a",
    program="/b/a",
    file="tests/a_test.c",
    title="a",
    argv=("/b/a", "--all"),
    cwd="/b",
    env={"A": "1"},
    skip=(77,),
    sources=("tests/a_test.c", "tests/more_test.c", "src/a.c"),
    facts={"compiler flags": "X=1 -O2", "linker flags": "-lm", "TIMEOUT": "5"},
)


def said(*programs: Program) -> dict[str, str]:
    """Return `TestReport.registrations` for a run of these programs."""
    return dict(report_of(Reading(), programs, []).registrations)


@pytest.mark.parametrize(
    ("new", "text"),
    [
        (replace(OLD, argv=("/bin/true",)), "its command changed"),
        (replace(OLD, env={}), "its variables changed"),
        (replace(OLD, cwd="/"), "its working directory changed"),
        (replace(OLD, disabled=True), "it is disabled"),
        (replace(OLD, skip=(77, 134)), "more exit statuses"),
        (replace(OLD, expected_to_fail=True), "whether it must fail changed"),
        (replace(OLD, facts={**OLD.facts, "WILL_FAIL": "true"}), "its property WILL_FAIL changed"),
        (replace(OLD, sources=("tests/a_test.c", "src/a.c")), "tests/more_test.c is not compiled"),
        (
            replace(OLD, facts={**OLD.facts, "compiler flags": "NDEBUG X=1 -O2"}),
            "its compiler flags contain NDEBUG",
        ),
        (replace(OLD, facts={**OLD.facts, "compiler flags": "X=1 -DNDEBUG"}), "contain -DNDEBUG"),
        (
            replace(OLD, facts={**OLD.facts, "compiler flags": "X=1 -include /ws/x.h"}),
            "contain -include /ws/x.h",
        ),
        (replace(OLD, facts={**OLD.facts, "compiler flags": "assert(x)=0"}), "contain assert"),
        (replace(OLD, facts={**OLD.facts, "linker flags": "-Wl,--wrap=abort"}), "-Wl,--wrap=abort"),
        (replace(OLD, name="tests/b_test.c::a"), "it is not registered any more"),
    ],
)
def test_changes_that_hide_a_failure(new: Program, text: str) -> None:
    (change,) = registration_changes(said(OLD), said(new)).values()
    assert text in change


@pytest.mark.parametrize(
    "new",
    [
        OLD,
        replace(OLD, sources=(*OLD.sources, "src/b.c", "tests/third_test.c")),
        replace(OLD, facts={**OLD.facts, "compiler flags": "X=1 Y=2 -O2 -std=c11 -Isrc", "TIMEOUT": "50"}),
        replace(OLD, facts={**OLD.facts, "linker flags": "-lm -lpthread"}),
    ],
)
def test_changes_that_a_fix_may_need(new: Program) -> None:
    assert not registration_changes(said(OLD), said(new, replace(OLD, name="tests/new_test.c::new")))


def test_macros_that_let_tests_fail() -> None:
    before = {"src/a.h": "#define assert_size(x) x\n", "src/b.h": ""}
    after = {
        "src/a.h": "#define assert_size(x) x\n#define SIZE 3\n",
        "src/b.h": "#undef assert\n#  define assert(x)\n#define EXPECT_EQ(a, b)\n#define NDEBUG\n",
        "tests/c_test.h": "#define assert(x)\n",
        "docs/a.md": "#define assert(x)\n",
    }
    assert [(path, line, what) for path, line, _, what in macro_changes(before, after)] == [
        ("src/b.h", 1, "redefines the macro assert"),
        ("src/b.h", 2, "redefines the macro assert"),
        ("src/b.h", 3, "redefines the macro EXPECT_EQ"),
        ("src/b.h", 4, "redefines the macro NDEBUG"),
    ]

"""Patches as models write them."""

from __future__ import annotations

import difflib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from m3agent.tools.patch_format import BadPatch, changes_of, patched

LINE = st.sampled_from(
    ["a", "b", "", "-- x", "++ y", "-- a/f", "++ b/f", "@@ -1 +1 @@", "*** End Patch", "diff --git", "  c"]
)


def applied(patch: str, files: dict[str, str]) -> dict[str, str]:
    return {
        change.target or change.path: patched(change, change.path, files.get(change.path))
        for change in changes_of(patch)
    }


@given(st.lists(LINE, max_size=12), st.lists(LINE, max_size=12), st.integers(0, 3))
@example(["-- x", ""], ["a", ""], 1)
def test_a_unified_diff_gives_the_new_text(old: list[str], new: list[str], context: int) -> None:
    """Lines of the file may look like headers of the patch."""
    before, after = ("".join(f"{line}\n" for line in lines) for lines in (old, new))
    diff = "".join(
        difflib.unified_diff(before.splitlines(True), after.splitlines(True), "a/f", "b/f", n=context)
    )
    if before != after:
        assert applied(diff, {"f": before}) == {"f": after}


@given(st.lists(LINE, min_size=1, max_size=8, unique=True), st.lists(LINE, max_size=4), st.data())
def test_a_section_gives_the_new_text(lines: list[str], new: list[str], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(lines) - 1))
    end = data.draw(st.integers(start + 1, len(lines)))
    body = [*(f"-{line}" for line in lines[start:end]), *(f"+{line}" for line in new)]
    patch = "\n".join(["*** Begin Patch", "*** Update File: f", "@@", *body, "*** End Patch"])
    wanted = [*lines[:start], *new, *lines[end:]]
    assert applied(patch, {"f": "".join(f"{line}\n" for line in lines)}) == {
        "f": "".join(f"{line}\n" for line in wanted)
    }


def test_several_files() -> None:
    patch = """*** Begin Patch
*** Add File: new.py
+x = 1
+
*** Update File: a.py
*** Move to: b.py
@@ def g():
-    return 1
+    return 2

*** Delete File: old.py
*** End Patch
"""
    files = {"a.py": "def f():\n    return 1\n\n\ndef g():\n    return 1\n\n", "old.py": "x\n"}
    assert applied(patch, files) == {
        "new.py": "x = 1\n\n",
        "b.py": "def f():\n    return 1\n\n\ndef g():\n    return 2\n\n",
        "old.py": "",
    }


DIFF = "--- a/f\n+++ b/f\n@@ -1,{count} +1,{count} @@\n-a\n+b\n c\n"


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_wrong_counts_do_not_matter_if_the_end_is_certain(count: int) -> None:
    assert applied(DIFF.format(count=count), {"f": "a\nc\n"}) == {"f": "b\nc\n"}


def test_new_and_removed_files_of_a_diff() -> None:
    patch = "--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n--- a/o\n+++ /dev/null\n@@ -1 +0,0 @@\n-y\n"
    assert applied(patch, {"o": "y\n"}) == {"n": "x\n", "o": ""}


def test_line_ends_stay() -> None:
    assert applied(DIFF.format(count=2), {"f": "a\r\nc\nd\r\n"}) == {"f": "b\r\nc\nd\r\n"}


@pytest.mark.parametrize(
    ("patch", "text", "problem"),
    [
        ("hello", "", "the patch has no change"),
        ("", "", "the patch has no change"),
        (
            "*** Update File: f\n@@ def f():\n-x\n+y",
            "def f():\nx\ndef f():\nx\n",
            "the anchor of hunk 1 of f",
        ),
        ("*** Update File: f\n@@ gone\n-x\n+y", "x\nx\n", "the anchor of hunk 1 of f"),
        ("*** Update File: f\n-x\n+y", "x\nx\n", "more than once"),
        ("*** Update File: f\n-z\n+y", "x\n", "are not in the file"),
        ("*** Add File: f\n+y", "x\n", "exists already"),
        ("*** Update File: f\nwhat\n", "x\n", "line 2 of the patch"),
        ("--- a/f\n+++ b/f\n@@ -7 +7 @@\n-x\n+y\n", "x\nx\n", "more than once"),
        (f"--- a/f\n+++ b/f\n@@ -{'9' * 5000} +1 @@\n-z\n+y\n", "x\n", "are not in the file"),
        ("--- a/f\n+++ b/f\n@@ -1,9 +1,9 @@\n--- x\n+++ y\n", "-- x\n", "other numbers of lines"),
    ],
)
def test_what_does_not_fit_is_refused(patch: str, text: str, problem: str) -> None:
    with pytest.raises(BadPatch, match=problem):
        applied(patch, {"f": text})


def test_a_file_that_is_missing() -> None:
    with pytest.raises(BadPatch, match="f does not exist"):
        applied(DIFF.format(count=2), {})

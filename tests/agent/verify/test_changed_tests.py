"""Test which tests of a changed test file have to run."""

from __future__ import annotations

import pytest

from m3agent.agent.verify.changed_tests import changed_tests, only_adds

FILE = """\
import os
from a import one

LIMIT = 3

@pytest.fixture
def box(): return one()

def helper(x): return x

class Fake:
    pass

def test_a(box): assert helper(box)

class TestB:
    def test_b(self): assert Fake()
"""


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("", "def test_new(): pass\n", {"test_new"}),
        ("def test_a(box): assert helper(box)\n", "def test_a(box): assert box\n", {"test_a"}),
        ("assert Fake()", "assert not Fake()", {"TestB"}),
        ("def test_a(box): assert helper(box)\n", "", set()),
        ("", "# a comment\n", set()),
        ("import os\n", "import os\nfrom a import two\n", set()),
        ("import os\n", "import os, sys\n", set()),
        # the change may affect other tests
        ("LIMIT = 3", "LIMIT = 4", None),
        ("", "LIMIT += 1\n", None),
        ("return one()", "return 1", None),
        ("return x", "return not x", None),
        ("class Fake:\n    pass", "class Fake:\n    x = 1", None),
        ("import one\n", "import one\nfrom a import two as one\n", None),
        ("import os\n", "import os\nfrom a import two as helper\n", None),
        ("import os\n", "import os\nfrom a import two as pytest\n", None),
        ("import os\n", "import os\nfrom a import *\n", None),
        ("import os\n", "", None),
        ("from a import one", "from b import one", None),
        ("from a import one", "from .a import one", None),
        ("", "@pytest.fixture(autouse=True)\ndef always(): pass\n", None),
        ("", "def test_a(): pass\n", None),
        ("", "@pytest.mark.usefixtures('test_c')\ndef test_d(): pass\ndef test_c(): pass\n", None),
        ("", "def (\n", None),
    ],
)
def test_changed_tests(old: str, new: str, changed: set[str] | None) -> None:
    assert FILE.count(old) >= 1
    after = FILE.replace(old, new, 1) if old else FILE + new
    assert changed_tests(FILE.encode(), after.encode()) == changed


def test_a_file_that_cannot_be_parsed() -> None:
    assert changed_tests(b"\xff\xfe(", b"x = 1\n") is None
    assert changed_tests(b"x = '" + b"\0", b"x = 1\n") is None


@pytest.mark.parametrize(
    ("old", "new", "adds"),
    [
        ("", "def test_new(): pass\n", True),
        ("    def test_b", "    def test_c(self): pass\n    def test_b", True),
        ("", "# a comment\n", True),
        ("import os\n", "import os\nimport sys\n", True),
        ("assert Fake()", "assert not Fake()", False),
        ("    def test_b(self): assert Fake()", "    x = 1", False),
        ("class TestB:", "class TestC:", False),
        ("LIMIT = 3", "LIMIT = 4", False),
        ("", "def (", False),
    ],
)
def test_only_adds(old: str, new: str, adds: bool) -> None:
    after = FILE.replace(old, new, 1) if old else FILE + new
    assert only_adds(FILE.encode(), after.encode()) == adds

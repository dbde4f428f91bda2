"""Which files of a C or C++ project belong to its tests, and which decide how the tests run."""

from __future__ import annotations

import re

_FOLDERS = frozenset(
    {"test", "tests", "testing", "unittest", "unittests", "unit_tests", "gtest", "googletest", "t", "spec"}
)
_NAME = re.compile(r"^tests?[._-]|[._-]tests?[._-]|unit_?tests?|^check_.*\.c$", re.IGNORECASE)
_CAMEL = re.compile(r"(?<=[a-z0-9])Tests?\.[A-Za-z+]+$|^Tests?[A-Z]")
_SURROUNDINGS = re.compile(
    r"^(?:CMakePresets\.json|CMakeUserPresets\.json|CTestCustom\.(?:cmake|ctest)(?:\.in)?|CTestConfig\.cmake|"
    r"\.gdbinit|\.lsanignore|.*\.supp)$"
)
_CI = re.compile(r"^(?:\.github/workflows/|\.circleci/|\.travis\.yml$|\.gitlab-ci\.yml$|azure-pipelines)")


def is_test(path: str) -> bool:
    """Return whether a file belongs to the tests, by its path."""
    *folders, name = path.split("/")
    if name == "CMakeLists.txt" or name.endswith((".cmake", "meson.build", ".am", ".ac")):
        return False  # a fix may have to register its sources there
    return any(folder.lower() in _FOLDERS for folder in folders) or bool(
        _NAME.search(name) or _CAMEL.search(name)
    )


def surroundings(path: str) -> bool:
    """Return whether a file decides how tests run.

    Build files (`CMakeLists.txt`, `meson.build`, `Makefile.am`) are not among them: a fix may add a source file. The
    registrations of the two trees are compared instead (`m3agent.tools.runners.registrations`).
    """
    return bool(_SURROUNDINGS.match(path.rpartition("/")[2]) or is_ci(path))


def is_ci(path: str) -> bool:
    """Return whether a file configures continuous integration; the build's options come from there."""
    return bool(_CI.match(path))

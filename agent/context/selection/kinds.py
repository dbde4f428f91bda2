"""Determine a file's purpose from its path: source, test, example, documentation or configuration.

The rules use no project, no language and no project layout; only words that are common in names of folders
and files.
"""

import re
from collections.abc import Container
from enum import StrEnum
from functools import lru_cache

from m3agent.agent.context.languages import is_code, is_prose, word_set


class FileKind(StrEnum):
    """The purpose of a file."""

    SOURCE = "source"
    TEST = "test"
    EXAMPLE = "example"
    """Code that is not part of the program: examples, benchmarks, scripts."""
    DOC = "doc"
    CONFIG = "config"
    """Configuration, build files and data."""


_TEST = word_set(
    "test tests unittest unittests spec specs e2e it itest itests testcase testcases testdata testsuite testsuites "
    "fixture fixtures mocks snapshots cypress"
)
_EXAMPLE = word_set(
    "bench benches benchmark benchmarks demo demos example examples playground sample samples tutorial tutorials"
)
_DOC = frozenset({"doc", "docs", "documentation", "javadoc", "apidoc"})

# Words that have this meaning only for top-level folders: deeper folders of these names are parts of
# programs.
_TOP_TEST = frozenset({"testing", "t"})
_TOP_EXAMPLE = frozenset({"ci", "hack", "release", "script", "scripts"})
_TOP_DOC = frozenset(
    {"changelog", "changelogs", "changes", "man", "news", "newsfragments", "site", "website", "wiki"}
)
_FOLDERS = (
    (FileKind.TEST, _TEST, _TOP_TEST),
    (FileKind.EXAMPLE, _EXAMPLE, _TOP_EXAMPLE),
    (FileKind.DOC, _DOC, _TOP_DOC),
)

_TEST_NAME = re.compile(
    r"conftest|tests?|specs?|[Tt]ests?[_.-].*|.*[_.-](?:[Tt]ests?|[Ss]pecs?|e2e)"
    r"|.*[a-z0-9](?:Tests?|TestCase|Specs?|IT)|Test[A-Z].*"
)
_BUILD_NAME = re.compile(
    r"setup\.py|noxfile\.py|.*\.config\.\w+|(?:gulp|grunt|rake|gem|make|docker|jenkins|vagrant|pod)file(?:\..*)?"
    r"|.*\.(?:gradle|kts|gemspec|cmake|mk|sbt|nix|dockerfile)|cmakelists\.txt|build|build\.bazel|workspace|meson\.build|meson[._]options.*",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^-_. ]+")


@lru_cache(maxsize=4096)
def _of_folders(folders: str) -> FileKind:
    """Return the kind of a code file in these folders; the matching folder nearest to the file counts."""
    names = folders.lower().split("/")
    for depth in reversed(range(len(names))):
        if names[depth].startswith("."):
            return FileKind.CONFIG
        words = {names[depth], *_WORD.findall(names[depth])}
        for kind, anywhere, at_top in _FOLDERS:
            if words & anywhere or (depth == 0 and words & at_top):
                return kind
    return FileKind.SOURCE


def kind_of(path: str) -> FileKind:
    """Return the purpose of a file; `path` is relative to the repository, with `/` as separator."""
    folders, _, name = path.rpartition("/")
    if name.startswith(".") or _BUILD_NAME.fullmatch(name):
        return FileKind.CONFIG
    if is_prose(name):
        return FileKind.DOC
    if not is_code(name):
        return FileKind.CONFIG
    by_folder = _of_folders(folders)
    if by_folder is FileKind.SOURCE and _TEST_NAME.fullmatch(name.rpartition(".")[0] or name):
        return FileKind.TEST
    return by_folder


def comes_last(path: str, paths: Container[str]) -> bool:
    """Return whether a file is shown only if everything else fits.

    This holds for texts for people (changelogs, licences, manuals), for the settings of hosting services, and for a stub
    beside its module.
    """
    is_stub = path.endswith(".pyi") and path[:-1] in paths
    return is_stub or path.startswith((".github/", ".gitlab/")) or kind_of(path) is FileKind.DOC

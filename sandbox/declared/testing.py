"""Read how the repository's own configuration runs its tests, where plain `pytest` would run others or none.

That is pytest's options, the settings of Django, and the folders that modules are imported from.
"""

from __future__ import annotations

import fnmatch
import itertools
import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from m3agent.sandbox.declared.commands import read_commands
from m3agent.sandbox.declared.setup_files import CFG, setup_arguments
from m3agent.sandbox.declared.tox import TOX
from m3agent.sandbox.declared.types import PYPROJECT, Files, ScanResult, name_of, texts_at
from m3agent.util.json_value import mapping, strings

USUAL = ("test_*.py", "*_test.py")
"""Files in which pytest looks for tests."""
UNUSUAL = ("[Tt]est*.py", "*[._-][Tt]est*.py")
"""Files in which nose looks for tests; unittest's are among them."""
NOSE_NAMES = "[Tt]est* *_[Tt]est*"
"""Names of the functions and classes that nose takes for tests."""
INI = (("pytest.ini", "pytest"), (".pytest.ini", "pytest"), (TOX, "pytest"), (CFG, "tool:pytest"))
NOSE = ("nosetests", "tool:nosetests")
RUNNER = re.compile(
    r"(?:^|[\s\"'=&|;(/])"
    r"(?:(?P<pytest>(?:-m\s+)?(?:pytest|py\.test))|(?P<unittest>-m\s+unittest(?:\s+discover)?)|(?P<doctest>-m\s+doctest)"
    r"|(?P<nose>(?:-m\s+)?(?:nosetests[23]?|nose2?|pynose))"
    r"|(?:python[\d.]*|coverage\s+run)\s+(?:-\S+\s+)*(?P<program>[\w./-]*[tT]est[\w-]*\.py))"
    r"(?=[\s\"')]|$)(?P<rest>.*)"
)
"""The start of a test run in a line of a script, and the rest of the line."""
END_OF_COMMAND = {"&&", "||", "|", ";", ">", "2>&1", "#"}
ERRORS = re.compile(r"(?:^|\s)error(?=:|\s|$)", re.MULTILINE)
RUNNERS = ("pytest", "unittest", "doctest", "nose")
DOCTEST, DOCTEST_GLOB = "--doctest-modules", "--doctest-glob"
IN_DOCTESTS = {DOCTEST, "--doctest-ignore-import-errors", "--doctest-continue-on-failure"}
PROGRAM, TEST = (
    re.compile(r"\bsys\.stdin\b|\binput\("),
    re.compile(r"(?i:test)|>>>|import \*|globals\(|exec\("),
)
"""A file that reads its standard input, and one that can have a test."""
MOST_TEST_FILES = 5000
"""If there are more files with the names of tests, none is read."""
NO_ERROR = "default::pytest.PytestDeprecationWarning"
"""Keeps a warning what newer versions of pytest will not support. Where a repository turns all warnings into errors
and does not bound pytest, the newest pytest would otherwise refuse its tests."""

DJANGO_VARIABLE = "DJANGO_SETTINGS_MODULE"
MANAGE = "manage.py"
PLUGIN = "pytest-django"
STARTS_TESTS = re.compile(r"(?:run|quick)?_?tests?\.py")
"""Names of programs at the root that run a Django application's tests, such as `runtests.py`."""
IN_PROGRAM = re.compile(
    rf"""environ(?:\.setdefault\(\s*|\[)["']{DJANGO_VARIABLE}["']\]?\s*[,=]\s*["']([\w.]+)["']"""
)
IN_TOX = re.compile(rf"^\s*{DJANGO_VARIABLE}\s*=\s*([\w.]+)\s*$", re.MULTILINE)
CONFIGURATION = ("pytest.ini", ".pytest.ini", "pyproject.toml", "setup.cfg")
PLAIN_FOLDER = re.compile(r"[\w.-]+(?:/[\w.-]+)*")
IMPORT_FOLDERS = (
    *("setuptools.package-dir.", "setuptools.packages.find.where"),
    *("maturin.python-source", "pdm.build.package-dir", "uv.build-backend.module-root"),
    *("poetry.packages.*.from", "hatch.build.sources", "hatch.build.targets.wheel.sources"),
)
"""Places in pyproject.toml's tables of tools that name the folders. The empty key of `package-dir` is for all packages."""
IMPORT_PACKAGES = ("hatch.build.targets.wheel.packages", "scikit-build.wheel.packages")
"""Places that name packages in such folders."""


@dataclass
class _Named:
    """What test runs name, each in the order in which it is found."""

    doctests: list[str] = field(default_factory=list)
    """Options of pytest about doctests."""
    places: list[str] = field(default_factory=list)
    """Files and folders in which pytest looks for tests."""
    patterns: list[str] = field(default_factory=list)
    """Names of test files."""
    nose: bool = False
    """Whether nose runs the tests."""


def read_test_options(files: Files) -> tuple[str, ...]:
    """Return the words that pytest's command line needs beside the repository's settings; empty if none."""
    settings = _settings(files)
    named = _named(files)
    words: list[str] = list(dict.fromkeys(named.doctests))
    if DOCTEST in words:
        words.append("--doctest-ignore-import-errors")
        if named.places and "testpaths" not in settings:
            words += ["-o", f"testpaths={' '.join(dict.fromkeys(named.places))}"]
    if "python_files" not in settings and (more := _other_patterns(files, named)):
        words += ["-o", f"python_files={' '.join([*USUAL, *more])}"]
    if named.nose and not settings:
        for key in ("python_functions", "python_classes"):
            words += ["-o", f"{key}={NOSE_NAMES}"]
    if ERRORS.search(settings.get("filterwarnings", "")):
        words += ["-W", NO_ERROR]
    if not settings.keys() & {"python_functions", "python_classes"}:  # otherwise tests may have any name
        texts = files.texts(_test_files(files))
        words += [
            f"--ignore={path}" for path, text in texts if PROGRAM.search(text) and not TEST.search(text)
        ]
    return tuple(words)


def _test_files(files: Files) -> list[str]:
    """Return the files in which pytest looks for tests and fixtures; empty if these are too many to be read."""
    paths = sorted(path for path in files.paths if _fits(path, (*USUAL, "conftest.py")))
    return paths if len(paths) <= MOST_TEST_FILES else []


def _other_patterns(files: Files, named: _Named) -> list[str]:
    """Return the names of test files that pytest would not look into by itself."""
    patterns = dict.fromkeys(named.patterns)
    if named.nose or not any(_fits(path, USUAL) for path in files.paths):
        patterns |= dict.fromkeys(p for p in UNUSUAL if any(_fits(path, (p,)) for path in files.paths))
    return [pattern for pattern in patterns if not _fits(pattern, USUAL)]


def _named(files: Files) -> _Named:
    """Return what the commands of test runs and nose's settings name."""
    found = _Named()
    for line in read_commands(files):
        if match := RUNNER.search(line):
            _take(files, match, _command(match["rest"]), found)
    config = files.ini(CFG)
    for section in NOSE:
        if config.has_section(section):
            found.nose = True
            if config.get(section, "with-doctest", fallback="0").strip().lower() in {"1", "true", "yes"}:
                found.doctests.append(DOCTEST)
    return found


def _take(files: Files, match: re.Match[str], words: list[str], found: _Named) -> None:
    """Add what one test run names."""
    paths = [path for word in words if (path := _path(files, word))]
    match next((name for name in RUNNERS if match[name]), ""):
        case "pytest":
            found.places += paths
            found.doctests += _doctest_options(words)
        case "doctest":
            found.places += paths
            found.doctests += map(_doctest_option, paths)
        case "unittest":
            patterns = [value for option, value in _pairs(words) if option in {"-p", "--pattern"}]
            found.patterns += ["test*.py", *patterns]
        case "nose":
            found.nose = True
            found.doctests += [DOCTEST] * words.count("--with-doctest")
        case _:
            paths.append(_path(files, match["program"] or ""))
    found.patterns += filter(_is_unusual, map(posixpath.basename, paths))


def _is_unusual(name: str) -> bool:
    """Return whether a file's name is no usual one of a test."""
    return name.endswith(".py") and _fits(name, UNUSUAL) and not name.startswith("run")


def _doctest_options(words: list[str]) -> Iterator[str]:
    """Yield the options of pytest about doctests."""
    for option, value in _pairs(words):
        if option == DOCTEST_GLOB:
            yield f"{DOCTEST_GLOB}={value}"
        elif option in IN_DOCTESTS:
            yield option


def _doctest_option(path: str) -> str:
    """Return the option with which pytest finds the doctests of a file."""
    return DOCTEST if path.endswith(".py") else f"{DOCTEST_GLOB}={posixpath.basename(path)}"


def _settings(files: Files) -> dict[str, str]:
    """Return pytest's settings in the repository, lists as lines; empty without any."""
    tables: list[dict[str, Any]] = []
    pytest = mapping(files.toml(PYPROJECT), "tool", "pytest")
    tables += [mapping(pytest, "ini_options"), {k: v for k, v in pytest.items() if k != "ini_options"}]
    for path in ("pytest.toml", ".pytest.toml"):
        tables.append(mapping(files.toml(path), "pytest"))
    for path, section in INI:
        config = files.ini(path)
        tables.append(dict(config.items(section)) if config.has_section(section) else {})
    found = next(filter(None, tables), None)
    return {k: "\n".join(strings(v)) if isinstance(v, list) else str(v) for k, v in (found or {}).items()}


def _command(text: str) -> list[str]:
    """Return the words of a command up to its end."""
    try:
        words = shlex.split(text)
    except ValueError:  # a quote around the whole command ends here
        words = [word.strip("\"'") for word in text.split()]
    return list(itertools.takewhile(lambda word: word not in END_OF_COMMAND, words))


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield options with their values, as in `-p PATTERN` and `-p=PATTERN`."""
    for word, following in itertools.pairwise([*words, ""]):
        option, _, value = word.partition("=")
        if option.startswith("-"):
            yield option, value or following


def _path(files: Files, word: str) -> str:
    """Return the file or folder of the repository that a word names; empty if it names none."""
    path = posixpath.normpath(word)
    there = path in files.paths or any(other.startswith(f"{path}/") for other in files.paths)
    return path if there else ""


def _fits(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(posixpath.basename(path), pattern) for pattern in patterns)


def read_django(files: Files, found: ScanResult) -> str | None:
    """Return the settings module of the tests and require pytest-django; None where pytest needs neither.

    A repository that has pytest-django, names the settings in pytest's configuration or mentions Django in a
    conftest.py has its own way to set Django up.
    """
    required = set(map(name_of, found.requirements))
    if "django" not in required or PLUGIN in required or _sets_django_up(files):
        return None
    setenv = "\n".join(files.ini_lines(TOX, "testenv", "setenv", "set_env"))
    programs = [MANAGE, *sorted(path for path in files.paths if STARTS_TESTS.fullmatch(path))]
    matches = (IN_PROGRAM.search(files.text(path) or "") for path in programs)
    match = IN_TOX.search(setenv) or next(filter(None, matches), None)
    if match is None:
        return None
    found.require(PLUGIN, TOX)
    return match[1]


def _sets_django_up(files: Files) -> bool:
    """Return whether pytest's configuration or a conftest.py mentions Django."""
    own = [path for path in files.paths if path in CONFIGURATION or path.rpartition("/")[2] == "conftest.py"]
    mentioned = re.compile(rf"{DJANGO_VARIABLE}|django\.setup|settings\.configure")
    in_tox = files.ini(TOX).has_option("pytest", DJANGO_VARIABLE)
    return in_tox or any(mentioned.search(files.text(path) or "") for path in own)


def read_imported(files: Files, found: ScanResult) -> None:
    """Require what a test file imports unconditionally, although each declaration of it is for older Pythons only.

    Such conditions pin one version for each Python, up to the newest Python at that time.
    """
    conditions: dict[str, list[Marker | None]] = {}
    for line in found.requirements:
        requirement = Requirement(line.partition(" --hash")[0])
        conditions.setdefault(canonicalize_name(requirement.name), []).append(requirement.marker)
    modules = {
        name.replace("-", "_"): name for name, markers in conditions.items() if all(map(_is_of_past, markers))
    }
    imports = re.compile(rf"^(?:import|from)\s+({'|'.join(map(re.escape, modules))})\b", re.MULTILINE)
    for path, text in files.texts(_test_files(files)) if modules else ():
        for module in imports.findall(text):
            found.require(modules[module], path)


def _is_of_past(marker: Marker | None) -> bool:
    """Return whether a condition names Python versions, and holds for no future one."""
    future = {"python_version": "3.99", "python_full_version": "3.99.0", "extra": ""}
    return marker is not None and "python_" in str(marker) and not marker.evaluate(future)


def read_import_folders(files: Files) -> tuple[str, ...]:
    """Return the sorted folders that the build's configuration names as the place of packages, and that exist."""
    tool = files.toml(PYPROJECT).get("tool")
    config = files.ini(CFG)
    named = [*texts_at(tool, *IMPORT_FOLDERS), config.get("options.packages.find", "where", fallback="")]
    named += [posixpath.dirname(path.rstrip("/")) for path in texts_at(tool, *IMPORT_PACKAGES)]
    for line in files.ini_lines(CFG, "options", "package_dir"):
        package, _, folder = line.partition("=")
        named += [] if package.strip() else [folder.strip()]
    named += texts_at(setup_arguments(files, ScanResult())[1], "package_dir.")
    folders = {posixpath.normpath(folder) for folder in named if folder}
    return tuple(sorted(folder for folder in folders - {".", "src"} if _is_folder(files, folder)))


def _is_folder(files: Files, folder: str) -> bool:
    return bool(PLAIN_FOLDER.fullmatch(folder)) and any(path.startswith(f"{folder}/") for path in files.paths)

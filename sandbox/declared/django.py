"""Read which settings module a Django project's own test runs use."""

from __future__ import annotations

import re

from m3agent.sandbox.declared.setup_files import TOX
from m3agent.sandbox.declared.types import Files, ScanResult, name_of

VARIABLE = "DJANGO_SETTINGS_MODULE"
MANAGE = "manage.py"
PLUGIN = "pytest-django"
STARTS_TESTS = re.compile(r"(?:run|quick)?_?tests?\.py")
"""Names of programs at the root that run a Django application's tests, such as `runtests.py`."""
IN_PROGRAM = re.compile(
    rf"""environ(?:\.setdefault\(\s*|\[)["']{VARIABLE}["']\]?\s*[,=]\s*["']([\w.]+)["']"""
)
IN_TOX = re.compile(rf"^\s*{VARIABLE}\s*=\s*([\w.]+)\s*$", re.MULTILINE)
CONFIGURATION = ("pytest.ini", ".pytest.ini", "pyproject.toml", "setup.cfg")


def read_django(files: Files, found: ScanResult) -> str | None:
    """Return the settings module of the tests and require pytest-django; None where pytest needs neither.

    A repository that has pytest-django, names the settings in pytest's configuration or mentions Django in a
    conftest.py has its own way to set Django up.
    """
    required = set(map(name_of, found.requirements))
    if "django" not in required or PLUGIN in required:
        return None
    own = [path for path in files.paths if path in CONFIGURATION or path.rpartition("/")[2] == "conftest.py"]
    if any(re.search(rf"{VARIABLE}|django\.setup|settings\.configure", _text(files, path)) for path in own):
        return None
    config = files.ini(TOX)
    if config.has_option("pytest", VARIABLE):
        return None
    for key in ("setenv", "set_env"):
        if match := IN_TOX.search(config.get("testenv", key, fallback="")):
            break
    else:
        programs = [MANAGE, *sorted(path for path in files.paths if STARTS_TESTS.fullmatch(path))]
        match = next(filter(None, (IN_PROGRAM.search(_text(files, path)) for path in programs)), None)
    if match is None:
        return None
    found.require(PLUGIN, TOX)
    return match[1]


def _text(files: Files, path: str) -> str:
    return files.text(path) or ""

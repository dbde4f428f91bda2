"""The settings module of a Django project's tests."""

from __future__ import annotations

import pytest

from m3agent.sandbox.declared.declared import Declared, read_declared
from m3agent.sandbox.declared.types import Files

TOX = "[testenv]\nsetenv =\n    A = 1\n    DJANGO_SETTINGS_MODULE = tests.settings\n"
MANAGE = "import os\nos.environ.setdefault('DJANGO_SETTINGS_MODULE', \"site.settings\")\n"


def declared(texts: dict[str, str]) -> Declared:
    texts = {"requirements.txt": "Django>=5\n", **texts}
    return read_declared(Files(texts.keys(), lambda path: texts[path].encode()))


@pytest.mark.parametrize(
    ("texts", "module"),
    [
        ({"tox.ini": TOX}, "tests.settings"),
        ({"manage.py": MANAGE}, "site.settings"),
        ({"manage.py": MANAGE, "tox.ini": TOX}, "tests.settings"),
        ({"runtests.py": "os.environ['DJANGO_SETTINGS_MODULE'] = 'tests.settings'\n"}, "tests.settings"),
        ({"manage.py": MANAGE, "run_tests.py": MANAGE.replace("site", "other")}, "site.settings"),
        ({"quicktest.py": MANAGE}, "site.settings"),
    ],
)
def test_tox_and_programs_at_the_root_name_the_settings(texts: dict[str, str], module: str) -> None:
    found = declared(texts)
    assert found.django_settings == module
    assert found.optional == ("pytest-django",)
    assert "pytest-django" in found.requirements


@pytest.mark.parametrize(
    "texts",
    [
        {},
        {"example/manage.py": MANAGE},
        {"example/runtests.py": MANAGE},
        {"docs_tests_of.py": MANAGE},
        {"manage.py": MANAGE, "requirements.txt": "flask\n"},
        {"manage.py": MANAGE, "requirements.txt": "django\npytest-django\n"},
        {"manage.py": MANAGE, "pytest.ini": "[pytest]\nDJANGO_SETTINGS_MODULE = other\n"},
        {"manage.py": MANAGE, "tox.ini": "[pytest]\nDJANGO_SETTINGS_MODULE = other\n"},
        {"manage.py": MANAGE, "tests/conftest.py": "settings.configure(DEBUG=True)\n"},
        {"manage.py": "os.environ.setdefault('DJANGO_SETTINGS_MODULE', name)\n"},
    ],
)
def test_a_repository_with_its_own_way_keeps_it(texts: dict[str, str]) -> None:
    found = declared(texts)
    assert found.django_settings is None
    assert "pytest-django" not in found.optional

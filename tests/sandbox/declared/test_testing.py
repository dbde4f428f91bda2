"""How a repository's own configuration runs its tests."""

from __future__ import annotations

import shlex

import pytest

from m3agent.sandbox.declared.declared import Declared, read_declared
from m3agent.sandbox.declared.testing import NO_ERROR, read_import_folders, read_test_options
from tests.sandbox.declared.trees import files_of

DOCTESTS = "--doctest-modules --doctest-ignore-import-errors"
NAMES = "-o python_functions=[Tt]est* *_[Tt]est* -o python_classes=[Tt]est* *_[Tt]est*"


def options(texts: dict[str, str]) -> str:
    """Return the options for a repository with these files, a module and a test file that pytest finds."""
    texts = {"own.py": "", "tests/test_own.py": "", **texts}
    return " ".join(read_test_options(files_of(texts)))


@pytest.mark.parametrize(
    "texts",
    [
        {},
        {"tox.ini": "[testenv]\ncommands = pytest -n auto --cov {posargs}\n"},
        {"tox.ini": "[testenv:docs]\ncommands = pytest --doctest-modules own.py\n"},
        {".github/workflows/docs.yml": "- run: pytest --doctest-modules own.py\n"},
        {"Makefile": "docs:\n\tpython -m doctest own.py\n"},
        {"setup.cfg": "[tool:pytest]\naddopts = --doctest-modules\n"},
        {"pyproject.toml": "[tool.pytest.ini_options]\nfilterwarnings = ['ignore', 'default:error in x']\n"},
        {"runtests.py": "", "tox.ini": "[testenv]\ncommands = python runtests.py\n"},
        {"tox.ini": "[testenv\n", "pyproject.toml": "[tool]\npytest = 3\nhatch.envs.a.scripts.test = [4]\n"},
    ],
)
def test_plain_pytest_is_enough(texts: dict[str, str]) -> None:
    assert options(texts) == ""


@pytest.mark.parametrize(
    "texts",
    [
        {"tox.ini": "[testenv]\ncommands =\n  pytest \\\n    --doctest-modules own.py\n"},
        {"tox.ini": "[testenv]\ncommands_pre = pytest --version \\\ncommands = python -m doctest own.py\n"},
        {".github/workflows/ci.yml": "    - run: python -m pytest --doctest-modules ./own.py > log\n"},
        {"Makefile": "tests:\n\t@echo start\n\tpython3 -m doctest own.py && echo done\n"},
        {"pyproject.toml": "[tool.hatch.envs.x.scripts]\ntest = 'pytest --doctest-modules own.py {args}'\n"},
        {"pyproject.toml": "[tool.pdm.scripts]\ntest.cmd = 'pytest own.py --doctest-modules'\n"},
        {"pyproject.toml": "[tool.tox.env_run_base]\ncommands = [['pytest', '--doctest-modules', 'own.py']]"},
        {"noxfile.py": "def tests(session):\n    session.run('pytest', '--doctest-modules', 'own.py')\n"},
    ],
)
def test_doctests_run_where_test_runs_run_them(texts: dict[str, str]) -> None:
    assert options(texts) == f"{DOCTESTS} -o testpaths=own.py"


def test_the_repositorys_own_places_of_tests_stay() -> None:
    texts = {
        "pytest.ini": "[pytest]\ntestpaths = own\n",
        "tox.ini": "[testenv]\ncommands = pytest --doctest-modules .",
    }
    assert options(texts) == DOCTESTS


def test_doctests_in_texts() -> None:
    texts = {
        "README.md": "",
        "tox.ini": "[testenv]\ncommands =\n  python -m doctest README.md\n  pytest --doctest-glob '*.rst'",
    }
    assert options(texts) == "--doctest-glob=README.md --doctest-glob=*.rst"


@pytest.mark.parametrize(
    ("commands", "patterns"),
    [
        ("python tests.py", "tests.py"),
        ("coverage run -p all_tests.py", "all_tests.py"),
        ("pytest tests.py", "tests.py"),
        ("python -m unittest discover -s tests -p '*_check.py'", "test*.py *_check.py"),
        ("python -m unittest", "test*.py"),
    ],
)
def test_files_with_other_names(commands: str, patterns: str) -> None:
    texts = {"tests.py": "", "all_tests.py": "", "tox.ini": f"[testenv]\ncommands = {commands}\n"}
    assert options(texts) == f"-o python_files=test_*.py *_test.py {patterns}"
    assert options({**texts, "pytest.ini": "[pytest]\npython_files = *.py\n"}) == ""


def test_names_of_nose_count_where_no_file_has_one_of_pytest() -> None:
    for path in ("own/tests.py", "test.py", "own/Test-all.py"):
        paths = {"setup.py", path}
        words = read_test_options(files_of(dict.fromkeys(paths, "")))
        assert words == ("-o", "python_files=test_*.py *_test.py [Tt]est*.py"), path
    assert read_test_options(files_of({"setup.py": "", "own/contest.py": ""})) == ()


@pytest.mark.parametrize(
    ("texts", "doctests"),
    [
        ({"setup.cfg": "[nosetests]\nwith-doctest = 1\n"}, f"{DOCTESTS} "),
        ({"setup.cfg": "[nosetests]\nverbosity = 2\n"}, ""),
        ({"tox.ini": "[testenv]\ncommands = nosetests --with-doctest own\n"}, f"{DOCTESTS} "),
        ({"Makefile": "check:\n\tnosetests\n"}, ""),
    ],
)
def test_names_of_nose_count_where_nose_runs_the_tests(texts: dict[str, str], doctests: str) -> None:
    files = "-o python_files=test_*.py *_test.py [Tt]est*.py"
    assert options({"tests/testing_all.py": "", **texts}) == f"{doctests}{files} {NAMES}"


@pytest.mark.parametrize(
    "texts",
    [
        {"pyproject.toml": "[tool.pytest.ini_options]\nfilterwarnings = ['error', 'ignore::UserWarning']\n"},
        {"setup.cfg": "[tool:pytest]\nfilterwarnings =\n    error::Warning\n    default\n"},
        {"pytest.toml": "[pytest]\nfilterwarnings = ['error']\n"},
    ],
)
def test_deprecations_of_pytest_are_no_errors(texts: dict[str, str]) -> None:
    assert options(texts) == f"-W {NO_ERROR}"


READS = "import json, sys\nprint(json.load(sys.stdin))\n"


def test_a_program_with_the_name_of_a_test_is_left_out() -> None:
    """pytest refuses to import it, because it reads its input."""
    texts = {
        "tests/test_a.py": f"{READS}def test_a(): pass\n",
        "tests/encoding_test.py": READS,
        "test_b.py": "x = 1\n",
    }
    assert options(texts) == "--ignore=tests/encoding_test.py"
    named = {"pytest.ini": "[pytest]\npython_functions = check_*\n"}
    assert options({**texts, **named}) == "", "any function may be a test"


def test_the_options_are_one_text_for_pytest() -> None:
    words = read_test_options(files_of({"my tests.py": ""}))
    assert shlex.split(shlex.join(words)) == list(words)


# -- Django -----------------------------------------------------------------------------------------------------------

DJANGO_TOX = "[testenv]\nsetenv =\n    A = 1\n    DJANGO_SETTINGS_MODULE = tests.settings\n"
MANAGE = "import os\nos.environ.setdefault('DJANGO_SETTINGS_MODULE', \"site.settings\")\n"


def declared(texts: dict[str, str]) -> Declared:
    texts = {"requirements.txt": "Django>=5\n", **texts}
    return read_declared(files_of(texts))


@pytest.mark.parametrize(
    ("texts", "module"),
    [
        ({"tox.ini": DJANGO_TOX}, "tests.settings"),
        ({"manage.py": MANAGE}, "site.settings"),
        ({"manage.py": MANAGE, "tox.ini": DJANGO_TOX}, "tests.settings"),
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


# -- import folders ---------------------------------------------------------------------------------------------------


def folders(texts: dict[str, str]) -> tuple[str, ...]:
    texts = {"src/own/__init__.py": "", "lib/own/__init__.py": "", "a b/own.py": "", **texts}
    return read_import_folders(files_of(texts))


@pytest.mark.parametrize(
    "texts",
    [
        {"pyproject.toml": "[tool.maturin]\npython-source = './lib/'"},
        {"pyproject.toml": "[tool.setuptools]\npackage-dir = {'' = 'lib', 'x' = 'src'}"},
        {"pyproject.toml": "[tool.setuptools.packages.find]\nwhere = ['lib', 'src']"},
        {"pyproject.toml": "[tool.pdm.build]\npackage-dir = 'lib'"},
        {"pyproject.toml": "[tool.uv.build-backend]\nmodule-root = 'lib'"},
        {"pyproject.toml": "[[tool.poetry.packages]]\ninclude = 'own'\nfrom = 'lib'"},
        {"pyproject.toml": "[tool.hatch.build]\nsources = ['lib']"},
        {"pyproject.toml": "[tool.hatch.build.targets.wheel]\npackages = ['lib/own']"},
        {"pyproject.toml": "[tool.scikit-build]\nwheel.packages = ['lib/own/']"},
        {"setup.cfg": "[options]\npackage_dir =\n    = lib\n    x = src\n"},
        {"setup.cfg": "[options.packages.find]\nwhere = lib\n"},
        {"setup.py": "setup(package_dir={'': 'lib'})"},
    ],
)
def test_the_builds_configuration_names_the_folder(texts: dict[str, str]) -> None:
    assert folders(texts) == ("lib",)


@pytest.mark.parametrize("value", ["''", "'.'", "'src'", "'none'", "'../lib'", "'/lib'", "'a b'", "3", "[]"])
def test_others_do_not_count(value: str) -> None:
    assert folders({"pyproject.toml": f"tool.maturin.python-source = {value}"}) == ()
    assert folders({"pyproject.toml": f"tool = {value}\npoetry.packages = 3"}) == ()

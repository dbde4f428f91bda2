"""Folders from which a repository's packages are imported."""

from __future__ import annotations

import pytest

from m3agent.sandbox.declared.import_folders import read_import_folders
from m3agent.sandbox.declared.types import Files


def folders(texts: dict[str, str]) -> tuple[str, ...]:
    texts = {"src/own/__init__.py": "", "lib/own/__init__.py": "", "a b/own.py": "", **texts}
    return read_import_folders(Files(texts.keys(), lambda path: texts[path].encode()))


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

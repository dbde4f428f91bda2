"""What the project's own build makes, read from its configuration."""

from __future__ import annotations

import pytest

from m3agent.sandbox.declared.build import may_be_kept, read_build, version_of_tag
from tests.sandbox.declared.trees import files_of


@pytest.mark.parametrize(
    ("texts", "path"),
    [
        ({"pyproject.toml": "[tool.setuptools_scm]\nwrite_to = 'src/own/_v.py'"}, "src/own/_v.py"),
        ({"pyproject.toml": "[tool.setuptools_scm]\nversion_file = './own/v.py'"}, "own/v.py"),
        ({"pyproject.toml": "[tool.hatch]\nbuild.hooks.vcs.version-file = 'own/_v.py'"}, "own/_v.py"),
        (
            {"pyproject.toml": "tool.hatch.build.targets.wheel.hooks.vcs.version-file = 'own/_v.py'"},
            "own/_v.py",
        ),
        ({"pyproject.toml": "[tool.hatch.build.hooks.version]\npath = 'own/_v.py'"}, "own/_v.py"),
        ({"pyproject.toml": "[tool.pdm]\nbuild.package-dir = 'lib'\nversion.write_to = 'a.py'"}, "lib/a.py"),
        ({"pyproject.toml": "[tool.versioningit.write]\nfile = 'own/_v.py'"}, "own/_v.py"),
        ({"setup.py": "setup(name='own', use_scm_version={'write_to': 'own/_v.py'})"}, "own/_v.py"),
        ({"setup.py": "SCM = dict\nS = {'write_to': 'own/_v.py'}\nsetup(use_scm_version=S)"}, "own/_v.py"),
    ],
)
def test_version_files_of_all_backends(texts: dict[str, str], path: str) -> None:
    build = read_build(files_of(texts))
    assert build is not None
    assert (build.version_files, build.extensions) == ((path,), False)
    assert build.inputs == tuple(texts)
    assert read_build(files_of({**texts, path: "version = '1'\n"})) is None, "the tree has the file"


def test_a_file_of_pdm_may_be_below_src_or_at_the_root() -> None:
    build = read_build(files_of({"pyproject.toml": "[tool.pdm.version]\nwrite_to = 'own/_v.py'"}))
    assert build is not None
    assert build.version_files == ("own/_v.py", "src/own/_v.py")


@pytest.mark.parametrize(
    "path",
    [
        *("../out.py", "/etc/out.py", ".", ".git/config", "own/.git/hooks/x"),
        *("sitecustomize.py", "src/usercustomize.py", "own.pth", "conftest.py", "tests/Conftest.py"),
        *("tests/test_version.py", "own/version_test.py", "own/tests.py", "setup.py", ".github/x.yml"),
    ],
)
def test_files_that_start_by_themselves_or_are_tests_are_never_kept(path: str) -> None:
    assert not may_be_kept(path)
    text = f"[tool.setuptools_scm]\nwrite_to = '{path}'"
    assert read_build(files_of({"pyproject.toml": text})) is None


@pytest.mark.parametrize(
    "texts",
    [
        {"own/fast.pyx": ""},
        {"setup.py": "from setuptools import setup\nif True:\n    setup(ext_modules=MODULES)"},
        {"pyproject.toml": "[build-system]\nrequires = ['setuptools', 'Cython>=3']"},
        {"pyproject.toml": "[build-system]\nrequires = ['maturin>=1,<2']"},
        {"pyproject.toml": "[[tool.setuptools.ext-modules]]\nname = 'own'"},
    ],
)
def test_projects_that_compile(texts: dict[str, str]) -> None:
    build = read_build(files_of(texts))
    assert build is not None
    assert build.extensions


def test_what_decides_a_build() -> None:
    tree = {
        "pyproject.toml": "[build-system]\nrequires = []\nbackend-path = ['tools/build']\n"
        "[tool.setuptools_scm]\nwrite_to = 'own/_v.py'",
        **dict.fromkeys(("setup.cfg", "tools/build/backend.py", "hatch_build.py"), ""),
        **dict.fromkeys(("own/a.py", "own/a.c", "tests/test_a.py", "tests/data.c", "docs/a.rst"), ""),
    }
    build = read_build(files_of(tree))
    assert build is not None
    assert build.inputs == ("hatch_build.py", "pyproject.toml", "setup.cfg", "tools/build/backend.py")
    build = read_build(files_of({**tree, "own/fast.pyx": ""}))
    assert build is not None
    assert set(tree) - set(build.inputs) == {"tests/test_a.py", "docs/a.rst"}
    build = read_build(files_of({**tree, "setup.py": "setup(ext_modules=[Extension('own.a', ['own/a.c'])])"}))
    assert build is not None
    assert set(tree) - set(build.inputs) == {"own/a.py", "tests/test_a.py", "docs/a.rst"}


def test_nothing_to_build() -> None:
    assert read_build(files_of({})) is None
    assert read_build(files_of({"pyproject.toml": "[tool]\nhatch = 3\nsetuptools_scm = []"})) is None
    assert read_build(files_of({"pyproject.toml": "[tool.setuptools_scm]\nwrite_to = 3"})) is None
    assert read_build(files_of({"tests/a.pyx": "", "setup.py": "setup(name='own')"})) is None
    assert read_build(files_of({"setup.py": "setup(name='own', ext_modules=[])"})) is None
    assert read_build(files_of({"setup.py": "setup(name='own', ext_modules = None)"})) is None


@pytest.mark.parametrize(
    ("tag", "version"),
    [
        *(("v1.2", "1.2"), ("1.2.3", "1.2.3"), ("own-name-2024.1", "2024.1"), ("release/3", "3")),
        *(("v1.2.0rc1", "1.2.0rc1"), ("v1.2-beta.3", "1.2b3"), ("REL_1_4_2", "1.4.2")),
        *(("latest", None), ("", None), ("v1.2-old", None), ("1.", None)),
    ],
)
def test_the_version_in_a_tag(tag: str, version: str | None) -> None:
    assert version_of_tag(tag) == version


RUST_VERSION = "rust-version = '1.80'\n"


@pytest.mark.parametrize(
    ("texts", "rust"),
    [
        ({"pyproject.toml": "build-system.requires = ['maturin>=1,<2']"}, ""),
        (
            {
                "pyproject.toml": "build-system.requires = ['maturin']",
                "Cargo.toml": f"[package]\n{RUST_VERSION}",
            },
            "1.80",
        ),
        (
            {
                "pyproject.toml": "build-system.requires = ['maturin']\ntool.maturin.manifest-path = './core/Cargo.toml'",
                "core/Cargo.toml": f"[workspace.package]\n{RUST_VERSION}[package]\nrust-version.workspace = true",
            },
            "1.80",
        ),
        ({"pyproject.toml": "[[tool.setuptools-rust.ext-modules]]\ntarget = 'own'"}, ""),
        ({"setup.py": "setup(rust_extensions=[RustExtension('own')])", "Cargo.toml": "broken ["}, ""),
        ({"pyproject.toml": "build-system.requires = ['Cython']", "Cargo.toml": RUST_VERSION}, None),
        ({"setup.py": "setup(ext_modules=[Extension('own', ['own.c'])])"}, None),
    ],
)
def test_which_rust_the_build_needs(texts: dict[str, str], rust: str | None) -> None:
    build = read_build(files_of(texts))
    assert build is not None
    assert (build.extensions, build.rust) == (True, rust)

"""Reading declarations from a repository's files: it reads only data and never raises an error."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from m3agent.sandbox.declared.container import Container, read_containers, without_comments
from m3agent.sandbox.declared.declared import (
    Declared,
    acceptable_pythons,
    folders_before_installed,
    read_declared,
)
from m3agent.sandbox.declared.poetry import NotSimple, specifier
from m3agent.sandbox.declared.requirements import logical_lines, requirements_files
from m3agent.sandbox.declared.types import ScanResult
from m3agent.sandbox.images.indexes import find_indexes, indexes_here
from tests.sandbox.declared.trees import files_of


def declared(texts: dict[str, str | bytes]) -> Declared:
    return read_declared(files_of(texts))


def test_pyproject_gives_dependencies_extras_groups_and_the_project() -> None:
    found = declared(
        {
            "pyproject.toml": """
            [project]
            name = "own-name"
            version = "1.2"
            requires-python = ">=3.9"
            dependencies = ["alpha>=1", "beta[fast] ; python_version < '4'"]
            [project.scripts]
            own = "own:main"
            [project.entry-points.pytest11]
            own = "own.plugin"
            [project.optional-dependencies]
            Test = ["gamma", "own_name[more]"]
            more = ["delta==1.*"]
            docs = ["sphinx"]
            [dependency-groups]
            dev = [{include-group = "lint"}, "epsilon"]
            lint = ["zeta", {include-group = "dev"}]
            docs = ["furo"]
            """
        }
    )
    names = {Requirement(line).name for line in found.requirements}
    assert names == {"alpha", "beta", "gamma", "delta", "epsilon", "zeta"}
    assert found.python == ">=3.9"
    assert found.project is not None
    assert found.project.entry_points == {
        "console_scripts": {"own": "own:main"},
        "pytest11": {"own": "own.plugin"},
    }
    assert found.notices == ()
    assert not found.empty


def test_poetry_is_read_with_its_own_notation() -> None:
    found = declared(
        {
            "pyproject.toml": """
            [tool.poetry]
            name = "own"
            version = "2.0"
            [tool.poetry.dependencies]
            python = "^3.9"
            alpha = "^1.2"
            beta = {version = "~2.1", extras = ["fast"], markers = "sys_platform == 'linux'"}
            gamma = [{version = "1.*", python = "<3.11"}, {version = ">=2", python = ">=3.11"}]
            delta = {version = "*", optional = true}
            epsilon = {version = "*", optional = true}
            zeta = {git = "https://example.invalid/zeta.git"}
            eta = ">=1 || >=3"
            [tool.poetry.extras]
            test = ["delta"]
            [tool.poetry.group.dev.dependencies]
            theta = "3.1"
            [tool.poetry.group.docs.dependencies]
            sphinx = "*"
            """
        }
    )
    assert set(found.requirements) == {
        "alpha<2,>=1.2",
        'beta[fast]<2.2,>=2.1; sys_platform == "linux"',
        'gamma==1.*; python_version < "3.11"',
        'gamma>=2; python_version >= "3.11"',
        "delta",
        "eta",
        "theta==3.1",
    }
    assert acceptable_pythons(found)[0] == "3.12"
    assert "3.8" not in acceptable_pythons(found)
    assert len(found.notices) == 2
    assert any("zeta" in notice for notice in found.notices)


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ("^1.2.3", ">=1.2.3,<2"),
        ("^0.2.3", ">=0.2.3,<0.3"),
        ("^0.0.3", ">=0.0.3,<0.0.4"),
        ("^0", ">=0,<1"),
        ("~1.2.3", ">=1.2.3,<1.3"),
        ("~1", ">=1,<2"),
        ("~=1.4", "~=1.4"),
        ("1.2.*", "==1.2.*"),
        (">= 1.0 <2.0", ">=1.0,<2.0"),
        ("*", ""),
    ],
)
def test_poetry_versions(constraint: str, expected: str) -> None:
    assert SpecifierSet(specifier(constraint)) == SpecifierSet(expected)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=4), st.sampled_from("^~"))
def test_a_caret_or_tilde_takes_the_version_it_names_and_none_far_above(
    numbers: list[int], sign: str
) -> None:
    version = ".".join(map(str, numbers))
    taken = SpecifierSet(specifier(sign + version))
    assert taken.contains(version)
    assert not taken.contains(f"{numbers[0] + 1}.0.1")


def test_poetry_alternatives_are_refused_by_name() -> None:
    with pytest.raises(NotSimple):
        specifier("^1.0 || ^2.0")


def test_requirements_files_nested_continued_hashed_and_circular() -> None:
    found = declared(
        {
            "requirements.txt": "alpha==1.0 \\\n  --hash=sha256:aa \\\n  --hash=sha256:bb\n"
            "# comment\nbeta  # why\n-r requirements/more.txt\n-c limits.txt\n",
            "requirements/more.txt": "gamma; python_version >= '3'\n-r ../requirements.txt\n",
            "limits.txt": "beta==2.5\n-r limits.txt\n",
            "requirements-docs.txt": "sphinx\n",
            "requirements-dev.txt": "delta\n",
            "notes.txt": "epsilon\n",
        }
    )
    assert set(found.requirements) == {
        "alpha==1.0 --hash=sha256:aa --hash=sha256:bb",
        "beta",
        'gamma; python_version >= "3"',
        "delta",
    }
    assert found.constraints == ("beta==2.5",)
    assert found.notices == ()


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("git+https://example.invalid/a.git#egg=a", "address"),
        ("https://example.invalid/a-1.0.zip", "address"),
        ("a @ https://example.invalid/a-1.0.zip", "address"),
        ("-e git+https://example.invalid/a.git", "folder or an address"),
        ("-e ../elsewhere", "folder or an address"),
        ("./vendored", "folder or an address"),
        ("--index-url https://example.invalid/simple", "--index-url"),
        ("-i https://example.invalid/simple", "-i"),
        ("--trusted-host example.invalid", "--trusted-host"),
        ("-r missing.txt", "missing.txt"),
        ("-r ../../etc/passwd", "not a file of the repository"),
        ("a b c", "not a requirement"),
    ],
)
def test_unsupported_requirement_is_left_out_with_a_note(line: str, word: str) -> None:
    found = declared({"requirements.txt": f"{line}\nalpha\n"})
    assert found.requirements == ("alpha",)
    assert len(found.notices) == 1
    assert word in found.notices[0]


@pytest.mark.parametrize("line", ["-e .", ".", "-e .[test]", "--editable=."])
def test_the_project_itself_is_not_worth_a_word(line: str) -> None:
    assert declared({"requirements.txt": f"{line}\nalpha\n"}).notices == ()


@given(st.text())
def test_requirements_file_may_contain_any_text(text: str) -> None:
    found = declared({"requirements.txt": text.encode(errors="replace")})
    for line in found.requirements:
        Requirement(line.partition(" --hash")[0])
        assert "\n" not in line


@given(st.lists(st.sampled_from(["alpha==1", "# x", "beta>=2 # y", ""])), st.sampled_from(["\n", "\r\n"]))
def test_comments_and_empty_lines_vanish(lines: list[str], ending: str) -> None:
    kept = [line.partition(" #")[0] for line in lines if line and not line.startswith("#")]
    assert logical_lines(ending.join(lines)) == kept


def test_setup_py_is_read_and_never_run(tmp_path: Path) -> None:
    trap = tmp_path / "ran"
    found = declared(
        {
            "setup.py": f"""
from setuptools import setup
open({str(trap)!r}, "w")
BASE = ["alpha"]
TESTS = ["gamma", "delta>=2"]
setup(name="own", version="3", install_requires=BASE + ["beta"], python_requires=">=3.8",
      extras_require={{"test": TESTS, "docs": ["sphinx"]}}, tests_require=compute(),
      entry_points={{"console_scripts": ["own = own:main"]}})
"""
        }
    )
    assert not trap.exists()
    assert set(found.requirements) == {"alpha", "beta", "gamma", "delta>=2"}
    assert found.python == ">=3.8"
    assert found.project is not None
    assert found.project.entry_points == {"console_scripts": {"own": "own:main"}}
    assert [notice for notice in found.notices if "tests_require is computed" in notice]


def test_extras_that_setup_py_adds_one_by_one_are_read() -> None:
    found = declared(
        {
            "setup.py": """
EXTRAS = {"yaml": ["alpha"]}
EXTRAS["tests"] = EXTRAS["yaml"] + ["beta"]
EXTRAS["tests"] = EXTRAS["tests"] + ["gamma"]
EXTRAS["dev"] = EXTRAS["tests"] + compute()
EXTRAS["docs"] = ["sphinx"]
OTHER["tests"] = ["delta"]
setup(name="own", extras_require=EXTRAS, install_requires=EXTRAS["none"])
"""
        }
    )
    assert found.requirements == ("alpha", "beta", "gamma")


def test_what_only_a_file_for_development_names_is_optional() -> None:
    found = declared({"requirements.txt": "alpha\n", "requirements-dev.txt": "-r requirements.txt\nbeta\n"})
    assert found.requirements == ("alpha", "beta")
    assert found.optional == ("beta",)


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("pip install attrs", {"attrs"}),
        ("python -m pip install -U pip 'delta>=2' && make test", {"delta>=2"}),
        ("pip install -r other.txt . wheel tox", set()),
        ("pip install numpy==${{ matrix.numpy }}", set()),
    ],
)
def test_workflows_name_what_nothing_else_declares(command: str, names: set[str]) -> None:
    texts: dict[str, str | bytes] = {".github/workflows/tests.yml": f"steps:\n- run: {command}\n"}
    assert set(declared(texts).requirements) == names
    assert declared({**texts, "requirements.txt": "alpha\n"}).requirements == ("alpha",)


def test_the_first_file_that_pins_a_package_counts() -> None:
    found = declared(
        {
            "requirements/ci.txt": "alpha==1.0\nbeta==2; python_version < '3.9'\ngamma==1\n",
            "requirements/dev.txt": "alpha==1.1\nbeta==3; python_version >= '3.9'\ngamma==1\ndelta==4\n",
        }
    )
    assert "alpha==1.0" in found.requirements
    assert "alpha==1.1" not in found.requirements
    assert len(found.requirements) == 5
    assert found.notices == ("requirements/dev.txt: alpha==1.1 differs from requirements/ci.txt: left out",)


def test_dependencies_that_a_hook_of_hatch_adds() -> None:
    hook = "[tool.hatch.metadata.hooks.uv-dynamic-versioning]\n"
    extras = "[tool.hatch.metadata.hooks.uv-dynamic-versioning.optional-dependencies]\n"
    lines = "dependencies = ['alpha>=1', 'beta[x]=={{ version }}']\n"
    found = declared(
        {"pyproject.toml": f"{hook}{lines}{extras}test = ['gamma=={{{{ version }}}}']\ndocs = ['delta']\n"}
    )
    assert set(found.requirements) == {"alpha>=1", "beta[x]", "gamma"}


def test_setup_cfg_and_tox_are_read() -> None:
    found = declared(
        {
            "setup.cfg": "[metadata]\nname = own\nversion = attr: own.__version__\n[options]\npython_requires = >=3.7\n"
            "install_requires =\n    alpha\n    beta>=1 # why\n[options.extras_require]\ntesting =\n    gamma\n",
            "tox.ini": "[testenv]\ndeps =\n    delta\n    -r{toxinidir}/test-requirements.txt\n    py38: old\n    .\n",
            "test-requirements.txt": "epsilon\n",
        }
    )
    assert set(found.requirements) == {"alpha", "beta>=1", "gamma", "delta", "epsilon"}
    assert found.python == ">=3.7"
    assert found.project is not None
    assert found.project.version == "0+unknown"
    assert len(found.notices) == 1


UV_LOCK = """
version = 1
[[package]]
name = "alpha"
version = "1.5"
source = { registry = "https://example.invalid/simple" }
[[package]]
name = "beta"
version = "1.0"
source = { registry = "https://example.invalid/simple" }
resolution-markers = ["python_version < '3.11'"]
[[package]]
name = "beta"
version = "2.0"
source = { registry = "https://example.invalid/simple" }
resolution-markers = ["python_version >= '3.11'"]
[[package]]
name = "own"
version = "1"
source = { editable = "." }
[[package]]
name = "gamma"
version = "1.0+special"
source = { registry = "https://example.invalid/simple" }
"""


def test_locks_hold_versions_and_ask_for_nothing() -> None:
    project = '[project]\nname = "own"\ndependencies = ["alpha"]\n'
    found = declared({"pyproject.toml": project, "uv.lock": UV_LOCK})
    assert found.requirements == ("alpha",)
    assert set(found.constraints) == {
        "alpha==1.5",
        'beta==1.0; python_version < "3.11"',
        'beta==2.0; python_version >= "3.11"',
    }
    poetry = '[[package]]\nname = "alpha"\nversion = "1.4"\n[[package]]\nname = "b"\nversion = "2"\n[package.source]\ntype = "git"\n'
    assert declared({"pyproject.toml": project, "poetry.lock": poetry}).constraints == ("alpha==1.4",)
    assert declared({"poetry.lock": poetry}).empty


def test_versions_for_exclusive_groups_are_not_fixed_together() -> None:
    conflicts = "conflicts = [[{package = 'own', group = 'v1'}, {package = 'own', group = 'v2'}]]\n"
    lock = conflicts + UV_LOCK.replace("version = 1\n", "", 1)
    found = declared({"requirements.txt": "alpha\n", "uv.lock": lock})
    assert found.constraints == ("alpha==1.5",)
    assert found.notices == ("uv.lock: beta is locked at several versions: no version is fixed",)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "pdm.lock",
            (
                "[[package]]\nname = 'alpha'\nversion = '1.4'\n"
                "[[package]]\nname = 'alpha'\nversion = '1.4'\nextras = ['x']\n"
                "[[package]]\nname = 'beta'\nversion = '2'\ngit = 'https://example.invalid/x'\n"
            ),
        ),
        (
            "pylock.toml",
            (
                "[[packages]]\nname = 'alpha'\nversion = '1.4'\n"
                "[[packages]]\nname = 'beta'\nversion = '2'\nvcs = {type = 'git'}\n"
            ),
        ),
    ],
)
def test_other_lock_files_fix_the_versions_of_an_index(name: str, text: str) -> None:
    found = declared({"requirements.txt": "alpha\n", name: text})
    assert (found.constraints, found.notices) == (("alpha==1.4",), ())


@pytest.mark.parametrize(
    "name",
    ["pyproject.toml", "setup.cfg", "setup.py", "tox.ini", "uv.lock", "requirements.txt", ".python-version"],
)
@pytest.mark.parametrize(
    "content", [b"[[[ broken", b"\xff\xfe\x00", b"((" * 5000, b"", b"[project]\nname = 3\n"]
)
def test_broken_files_are_noted_and_the_others_still_read(name: str, content: bytes) -> None:
    found = declared({"requirements-dev.txt": "alpha\n", name: content})
    assert found.requirements[0:1] == ("alpha",) or "alpha" in found.requirements


def test_broken_toml_is_named_with_its_fault() -> None:
    (notice,) = declared({"pyproject.toml": "[project\n"}).notices
    assert notice.startswith("pyproject.toml: not valid TOML")


@pytest.mark.parametrize(
    "tables",
    ["project = 3", "[project]\ndependencies = {}", "[tool]\npoetry = []", "[dependency-groups]\ndev = 1"],
)
def test_tables_of_another_kind_are_no_error(tables: str) -> None:
    assert declared({"pyproject.toml": tables}).requirements == ()


def test_pytest_alone_needs_no_image() -> None:
    assert declared({}).empty
    assert declared({"requirements-dev.txt": "pytest>=7\n"}).empty
    assert not declared({"requirements-dev.txt": "pytest==1.0\n"}).empty
    assert not declared({"requirements-dev.txt": "pytest\nalpha\n"}).empty


@pytest.mark.parametrize(
    ("text", "pythons"),
    [("3.9.1\n", ("3.9",)), ("3.10", ("3.10",)), ("pypy3.9\n", ()), ("", ()), ("venv", ())],
)
def test_the_version_a_repository_pins(text: str, pythons: tuple[str, ...]) -> None:
    assert acceptable_pythons(declared({".python-version": text})) == pythons


def test_where_requirements_files_are_looked_for() -> None:
    names = ["requirements.txt", "requirements/dev.txt", "tests/requirements.txt", "deep/in/requirements.txt"]
    names += ["requirements/gpu.txt", "requirements-doc.txt", "dev-requirements.txt", "test.txt"]
    assert set(requirements_files(files_of(dict.fromkeys(names, "")))) == {
        "requirements.txt",
        "requirements/dev.txt",
        "tests/requirements.txt",
        "dev-requirements.txt",
    }


# -- devcontainer.json and Dockerfile ---------------------------------------------------------------------------


def containers(texts: dict[str, str | bytes]) -> tuple[list[Container], list[str]]:
    found = ScanResult()
    return read_containers(files_of(texts), found), found.notices


def test_a_devcontainer_counts_before_a_dockerfile_and_only_its_image() -> None:
    text = """{
      // what to run in
      "name": "x", "image": "example/image:1", /* and more */
      "runArgs": ["--privileged"], "mounts": ["source=/,target=/host,type=bind"], "privileged": true,
      "initializeCommand": "touch /tmp/pwned // no", "postCreateCommand": "x", "features": {},
    }"""
    found, notices = containers({".devcontainer/devcontainer.json": text, "Dockerfile": "FROM scratch\n"})
    assert [c.image for c in found] == ["example/image:1", None]
    assert found[1].dockerfile == "Dockerfile"
    (notice,) = notices
    for key in ("runArgs", "mounts", "privileged", "initializeCommand", "postCreateCommand", "features"):
        assert key in notice


def test_a_devcontainer_with_a_build() -> None:
    text = '{"build": {"dockerfile": "Dockerfile.dev", "context": "..", "args": {"A": "b"}, "options": ["--network=host"]}}'
    found, notices = containers(
        {".devcontainer/devcontainer.json": text, ".devcontainer/Dockerfile.dev": "FROM scratch\n"}
    )
    place = ".devcontainer/devcontainer.json"
    assert found == [Container(place, None, ".devcontainer/Dockerfile.dev", ".", None, {"A": "b"})]
    assert notices == [f"{place}: ignored: build.options"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('{"build": {"dockerfile": "gone"}}', "gone"),
        ('{"build": {"dockerfile": "D", "context": "../.."}}', "outside"),
        ('{"build": {"dockerfile": "D", "args": {"A": "${localEnv:HOME}"}}}', "variables of the host"),
        ('{"image": "--privileged"}', "not the name of an image"),
        ('{"image": "${localEnv:IMAGE}"}', "not the name of an image"),
        ('{"dockerComposeFile": "c.yml", "service": "app"}', "dockerComposeFile"),
        ("{", "not valid JSON"),
        ("[]", "not a JSON object"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_unusable_devcontainers_are_reported(text: str, word: str) -> None:
    found, notices = containers(
        {".devcontainer/devcontainer.json": text, ".devcontainer/D": "FROM scratch\n"}
    )
    assert found == []
    assert any(word in notice for notice in notices)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(JSON, st.sampled_from(["", "// x ]\n", '/* " ] */', " "]))
def test_comments_go_and_strings_stay(value: object, comment: str) -> None:
    text = json.dumps(value, indent=1).replace("\n", f"\n{comment}")
    assert json.loads(without_comments(f"{comment}{text}{comment}\n")) == value


# -- package indexes --------------------------------------------------------------------------------------------


def test_indexes_come_from_the_environment_before_files(tmp_path: Path) -> None:
    home, system = tmp_path / "home", tmp_path / "etc"
    (home / ".config/pip").mkdir(parents=True)
    system.mkdir()
    (system / "pip.conf").write_text("[global]\nindex-url = https://one.invalid/simple\ncert = /gone\n")
    (home / ".config/pip/pip.conf").write_text(
        "[global]\nindex-url = https://two.invalid/simple\nextra-index-url =\n  https://three.invalid/s\n  file:///four\n"
    )
    found = find_indexes({}, home, system)
    assert found.default == "https://two.invalid/simple"
    assert found.extra == ["https://three.invalid/s"]
    assert found.strategy == "unsafe-best-match"
    assert len(found.left_out) == 1
    named = find_indexes({"UV_DEFAULT_INDEX": "own=https://five.invalid/simple"}, home, system)
    assert (named.default, named.extra) == ("https://five.invalid/simple", [])
    env = named.environment("/certificates")
    assert env["UV_DEFAULT_INDEX"] == env["PIP_INDEX_URL"] == "https://five.invalid/simple"


def test_nothing_secret_goes_along(tmp_path: Path) -> None:
    env = {
        "PIP_INDEX_URL": "https://user:hidden@one.invalid/simple",
        "PIP_EXTRA_INDEX_URL": "https://token-hidden@two.invalid/simple https://ok.invalid/simple",
        "HTTPS_PROXY": "http://user:hidden@proxy.invalid:3128",
        "HTTP_PROXY": "http://proxy.invalid:3128",
        "OPENAI_API_KEY": "hidden",
    }
    found = find_indexes(env, tmp_path, tmp_path)
    passed = json.dumps(found.environment("/certificates"))
    assert "hidden" not in passed + json.dumps(found.left_out)
    assert "ok.invalid" in passed
    assert found.proxies["http_proxy"] == "http://proxy.invalid:3128"
    assert len(found.left_out) == 3


def test_uv_settings_are_read(tmp_path: Path) -> None:
    (tmp_path / ".config/uv").mkdir(parents=True)
    (tmp_path / ".config/uv/uv.toml").write_text(
        'index-strategy = "unsafe-first-match"\n[[index]]\nurl = "https://a.invalid/simple"\ndefault = true\n'
        '[[index]]\nurl = "https://b.invalid/simple"\n'
    )
    found = find_indexes({}, tmp_path, tmp_path / "none")
    assert (found.default, found.extra) == ("https://a.invalid/simple", ["https://b.invalid/simple"])
    assert found.strategy == "unsafe-first-match"


def test_a_user_without_a_home_folder_has_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # a numeric user id without a passwd entry
    with pytest.raises(RuntimeError):
        Path.home()
    assert indexes_here() == find_indexes(os.environ, Path("/nonexistent"))


@given(st.binary())
def test_broken_settings_files_are_no_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    home = tmp_path_factory.mktemp("settings")
    for name in (".config/uv/uv.toml", ".config/pip/pip.conf"):
        (home / name).parent.mkdir(parents=True)
        (home / name).write_bytes(content)
    find_indexes({}, home, home / "none")


MEMBER = '[project]\nname = "Own_Core"\nversion = "3"\ndependencies = ["beta"]\n[project.entry-points.pytest11]\nown = "own_core.plugin"\n'


IN_PROJECT = "file:///${PROJECT_ROOT}"
WORKSPACE = "[tool.uv.workspace]\nmembers ="
NAMES_CORE: tuple[tuple[str, str], ...] = (
    ("pyproject.toml", f"{WORKSPACE} ['packages/*']\n[tool.uv.sources]\nown-core = {{workspace = true}}\n"),
    ("pyproject.toml", f"{WORKSPACE} ['packages/**']\nexclude = ['packages/old']\n"),
    ("pyproject.toml", "[tool.uv.sources]\nown_core = {path = 'packages/core', editable = true}\n"),
    ("pyproject.toml", "[tool.uv.sources]\nown-core = [{path = './packages/core'}]\n"),
    ("pyproject.toml", "[tool.poetry.dependencies]\nown-core = {path = 'packages/core', develop = true}\n"),
    ("pyproject.toml", "[tool.poetry.group.dev.dependencies]\nown-core = {path = 'packages/core'}\n"),
    ("pyproject.toml", f"[tool.pdm.dev-dependencies]\ndev = ['-e {IN_PROJECT}/packages/core#egg=own-core']\n"),
    ("pyproject.toml", f"[dependency-groups]\ndev = ['own-core @ {IN_PROJECT}/packages/core']\n"),
    ("pyproject.toml", "[tool.hatch.envs.default]\ndependencies = ['own-core @ {root:uri}/packages/core']\n"),
    ("pyproject.toml", "[tool.pixi.pypi-dependencies]\nown-core = {path = 'packages/core', editable = true}\n"),
    ("pyproject.toml", "[tool.rye.workspace]\nmembers = ['packages/co*']\n"),
    ("pixi.toml", "[pypi-dependencies]\nown-core = {path = 'packages/core'}\n"),
    ("requirements.txt", "-e ./packages/core\n"),
    ("requirements.txt", "./packages/core\n"),
    ("requirements/dev.txt", "--editable=../packages/core\n"),
    ("requirements.txt", "own_core @ file:./packages/core\n"),
    ("setup.cfg", "[options]\ninstall_requires =\n  own-core @ file:packages/core\n"),
    ("tox.ini", "[testenv]\ndeps =\n  -e {toxinidir}/packages/core\n"),
)  # fmt: skip


@pytest.mark.parametrize(("path", "text"), NAMES_CORE, ids=[text[:70] for _, text in NAMES_CORE])
def test_what_the_tree_contains_is_never_asked_of_an_index(path: str, text: str) -> None:
    files = {"reqs.txt": "own-core>=2\nalpha\n", "packages/core/pyproject.toml": MEMBER, path: text}
    files |= {"packages/core/src/own_core/__init__.py": "", "packages/other/package.json": ""}
    if "packages/old" in text:
        files |= {"packages/old/setup.py": "", "packages/old/pyproject.toml": "[project]\nname = 'alpha'\n"}
    found = declared({**files})
    assert found.requirements == ("alpha", "beta")
    assert "beta" not in found.optional
    assert "own-core" in found.not_of_index
    assert found.import_folders == ("packages/core/src",)
    assert [(member.name, member.version) for member in found.members] == [("Own_Core", "3")]
    assert found.members[0].entry_points == {"pytest11": {"own": "own_core.plugin"}}
    assert not [notice for notice in found.notices if "core" in notice]


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("{git = 'https://example.invalid/x'}", "a git repository"),
        ("{url = 'https://example.invalid/x.whl'}", "an address"),
        ("{path = 'not-there'}", "'not-there', which is no project of the repository"),
        ("{path = '../outside'}", "'../outside', which is no project of the repository"),
        ("{path = '/etc'}", "'/etc', which is no project of the repository"),
        ("{workspace = true}", "the workspace, which has no member of this name"),
    ],
)
def test_a_dependency_from_elsewhere_is_not_taken_from_an_index(source: str, word: str) -> None:
    project = f"[project]\nname = 'own'\ndependencies = ['x>1', 'alpha']\n[tool.uv.sources]\nx = {source}\n"
    found = declared({"pyproject.toml": project})
    assert (found.requirements, found.not_of_index) == (("alpha",), ("x",))
    assert found.notices == (f"pyproject.toml: x comes from {word}, not from an index: left out",)


@pytest.mark.parametrize(
    "source", ["{index = 'theirs'}", "[{index = 'theirs'}, {git = 'https://x'}]", "3", "{}"]
)
def test_a_dependency_from_another_index_is_still_asked_for(source: str) -> None:
    project = f"[project]\nname = 'own'\ndependencies = ['x']\n[tool.uv.sources]\nx = {source}\n"
    assert declared({"pyproject.toml": project}).requirements == ("x",)


def test_members_that_name_each_other_end_and_extras_count() -> None:
    sources = "[tool.uv.sources]\na = {path = '../a'}\nb = {path = '../b'}\n"
    found = declared(
        {
            "requirements.txt": "./a[fast]\n",
            "a/pyproject.toml": f"[project]\nname = 'a'\ndependencies = ['b[more]']\n[project.optional-dependencies]\nfast = ['x']\n{sources}",
            "b/pyproject.toml": f"[project]\nname = 'b'\ndependencies = ['a']\n[project.optional-dependencies]\nmore = ['y']\nrare = ['z']\n{sources}",
            "b/types.py": "",
        }
    )
    assert (found.requirements, found.import_folders) == (("x", "y"), ("a", "b"))


def test_a_folder_that_would_hide_a_module_of_python_does_not_come_first() -> None:
    files = {"requirements.txt": "./a\n./b\n", "a/setup.py": "", "b/setup.py": "", "b/types.py": ""}
    assert folders_before_installed(files_of({**files})) == ("a",)

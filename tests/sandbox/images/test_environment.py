"""Environment images on a real engine: what they install, what a build can see, what remains after a failure."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import subprocess
import tarfile
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from m3agent.sandbox.backends.docker_machine import LABEL, PROCESS_LABEL, describe_process
from m3agent.sandbox.backends.factory import SandboxSpec, new_sandbox
from m3agent.sandbox.backends.image import REPOSITORY, find_image
from m3agent.sandbox.backends.sandbox import SandboxLimits
from m3agent.sandbox.declared.preparation import Preparation, SuiteNeeds
from m3agent.sandbox.errors import EnvironmentBuildFailed, ImageMissing
from m3agent.sandbox.images.environment import find_environment, image_of_tree
from m3agent.sandbox.images.kept import touch
from m3agent.sandbox.images.prune import environment_images, is_orphan, prune
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.run_tests import Selection, run_in_sandbox
from tests.conftest import docker_here, later
from tests.sandbox.images.reach import WorkspaceOf, sandbox_from, yes
from tests.servers.packages import PackageIndex, nosy_source, wheel

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(not docker_here(), reason="no Docker engine answers: environment images need one"),
    pytest.mark.usefixtures("nothing_stays"),
]


PROJECT = """
[project]
name = "own-project"
version = "4.5"
dependencies = ["alpha>=1"]
[project.scripts]
own-command = "own:main"
[dependency-groups]
dev = ["beta"]
"""
LOCK = '[[package]]\nname = "alpha"\nversion = "1.0"\n'
OWN = "def main():\n    import alpha\n    print('alpha', alpha.VERSION)\n"


@pytest.mark.slow
async def test_declared_dependencies_are_there_and_the_next_time_at_once(
    index: PackageIndex, workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    index.add(wheel("alpha", "1.0"), wheel("alpha", "1.1", requires=("gamma",)), wheel("beta", "2.0"))
    index.add(wheel("gamma", "0.1"))
    workspace = workspace_of({"pyproject.toml": PROJECT, "src/own.py": OWN})
    image = await find_environment(workspace, tmp_path, said.append)
    assert image is not None
    assert any("building" in line for line in said)
    script = (
        "import alpha, beta, gamma, importlib.metadata as m, own, sys\n"
        "print(alpha.VERSION, beta.VERSION, gamma.VERSION, m.version('own-project'), own.__file__, sys.prefix)"
    )
    async with sandbox_from(image, workspace) as sandbox:
        done = await sandbox.exec(["python3", "-c", script])
        assert done.stdout.split() == [b"1.1", b"2.0", b"0.1", b"4.5", b"/ws/src/own.py", b"/opt/m3agent-env"]
        assert (await sandbox.exec(["own-command"])).stdout == b"alpha 1.1\n"
        assert (await sandbox.exec(["python3", "-m", "pytest", "--version"])).exit == 0
        python = await sandbox.exec(["python", "-c", "import sys; print(sys.prefix)"])
        assert python.stdout == b"/opt/m3agent-env\n"
        assert b"alpha" in (await sandbox.exec(["pip", "list"], env=sandbox.typed_env)).stdout
        refused = await sandbox.exec(["pip", "install", "alpha", "delta"], env=sandbox.typed_env)
        assert (refused.exit, b"Not installed: delta\n" in refused.stderr) == (1, True), refused.stderr
        assert (await sandbox.exec(["pytest", "--version"])).exit == 0
        assert (await sandbox.exec(["touch", "/opt/m3agent-env/x"])).exit != 0, (
            "the environment can be changed"
        )
    asked, words = len(index.requests), len(said)
    assert await find_environment(workspace, tmp_path, said.append) == image
    assert (len(index.requests), len(said)) == (asked, words)


@pytest.mark.slow
async def test_an_extra_that_cannot_be_installed_does_not_spoil_the_rest(
    index: PackageIndex, workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    index.add(wheel("alpha", "1.0"), wheel("beta", "1.0"))
    project = (
        '[project]\nname = "own"\n[project.optional-dependencies]\ncli = ["beta"]\nodd = ["not-there"]\n'
    )
    workspace = workspace_of(
        {"pyproject.toml": project, "requirements.txt": "alpha\n-e .[cli,odd]\n", "poetry.lock": LOCK}
    )
    image = await find_environment(workspace, tmp_path, said.append)
    assert [line for line in said if line.startswith("without")] == [
        "without not-there, which cannot be installed here"
    ]
    async with sandbox_from(image, workspace) as sandbox:
        assert (await sandbox.exec(["python3", "-c", "import alpha, beta"])).exit == 0


@pytest.mark.slow
async def test_a_strangers_package_is_never_taken_for_a_member_of_the_workspace(
    index: PackageIndex, workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    index.add(wheel("alpha", "1.0", requires=("core>9", "beta")), wheel("core", "99"), wheel("beta", "1"))
    files: dict[str, str | bytes] = {
        "pyproject.toml": "[project]\nname = 'own'\ndependencies = ['alpha', 'core']\n"
        "[tool.uv.workspace]\nmembers = ['packages/*']\n",
        "packages/core/pyproject.toml": "[project]\nname = 'core'\nversion = '3'\n[project.scripts]\ncore-run = 'core:main'\n",
        "packages/core/src/core/__init__.py": "def main():\n    print('ours')\n",
    }
    image = await find_environment(workspace_of(files), tmp_path, said.append)
    script = "import alpha, beta, core, importlib.metadata as m; print(core.__file__, m.version('core'))"
    async with sandbox_from(image, workspace_of(files)) as sandbox:
        done = await sandbox.exec(["python3", "-c", script])
        assert done.stdout.split() == [b"/ws/packages/core/src/core/__init__.py", b"3"], done.stderr
        assert (await sandbox.exec(["core-run"])).stdout == b"ours\n"
    assert not [path for path in index.requests if "core" in path]


@pytest.mark.slow
async def test_a_lock_that_cannot_be_followed_is_left_out(
    index: PackageIndex, workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    index.add(wheel("alpha", "1.1"))
    workspace = workspace_of({"requirements.txt": "alpha\n", "poetry.lock": LOCK})
    image = await find_environment(workspace, tmp_path, said.append)
    assert "without the locked versions, which cannot be installed here" in said
    async with sandbox_from(image, workspace) as sandbox:
        assert (await sandbox.exec(["python3", "-c", "import alpha"])).exit == 0


@pytest.mark.slow
async def test_the_repositorys_own_way_to_run_tests(
    workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    doctest = 'def one():\n    """\n    >>> one()\n    1\n    """\n    return 1\n'
    files: dict[str, str | bytes] = {
        "lib/own.py": doctest,
        "pyproject.toml": "[tool.setuptools]\npackage-dir = {'' = 'lib'}\n",
        "tox.ini": "[testenv]\ncommands = pytest --doctest-modules lib\n",
        "docs/conf.py": "import not_there\n",
    }
    workspace = workspace_of(files)
    image = await find_environment(workspace, tmp_path, said.append)
    async with sandbox_from(image, workspace) as sandbox:
        for targets in ([], ["."]):
            report = await run_in_sandbox(sandbox, Selection(targets))
            assert (report.passed, report.red) == (("lib/own.py::own.one",), set()), report.output
        assert (await sandbox.exec(["python3", "-c", "import own"])).exit == 0


@pytest.mark.slow  # quick: test_declared.py
async def test_a_lock_holds_versions_and_a_date_holds_all_of_them(
    index: PackageIndex, workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    index.add(wheel("alpha", "1.0", "2020-01-01T00:00:00Z"), wheel("alpha", "1.1", "2021-01-01T00:00:00Z"))
    index.add(wheel("alpha", "1.2", "2022-01-01T00:00:00Z"))
    lock = '[[package]]\nname = "alpha"\nversion = "1.1"\n'
    locked = workspace_of(
        {"pyproject.toml": '[project]\nname = "own"\ndependencies = ["alpha"]\n', "poetry.lock": lock}
    )
    loose = Workspace.from_folder(locked.store, tmp_path / "tree", ["pyproject.toml"])
    versions = {}
    for name, workspace, date in (
        ("lock", locked, None),
        ("date", loose, "2020-06-01"),
        ("newest", loose, None),
    ):
        image = await find_environment(workspace, tmp_path, said.append, exclude_newer=date)
        async with sandbox_from(image, workspace) as sandbox:
            done = await sandbox.exec(["python3", "-c", "import alpha; print(alpha.VERSION)"])
            versions[name] = done.stdout.decode().strip()
    assert versions == {"lock": "1.1", "date": "1.0", "newest": "1.2"}


@pytest.mark.slow
async def test_a_build_sees_no_secrets_and_nothing_of_this_machine(
    index: PackageIndex, workspace_of: WorkspaceOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add(nosy_source())
    monkeypatch.setenv("M3AGENT_API_KEY", "hidden-1")
    monkeypatch.setenv("GITHUB_TOKEN", "hidden-2")
    monkeypatch.setenv("UV_INDEX", "https://user:hidden-3@example.invalid/simple")
    workspace = workspace_of({"requirements.txt": "nosy\n", "code.py": "hidden_4 = 1\n"})
    image = await find_environment(workspace, tmp_path, lambda _: None)
    async with sandbox_from(image, workspace) as sandbox:
        done = await sandbox.exec(["python3", "-c", "import json, nosy; print(json.dumps(nosy.SEEN))"])
    assert done.exit == 0, done.stderr
    seen = json.loads(done.stdout)
    assert "hidden" not in done.stdout.decode()
    assert seen["uid"] == 1000
    assert seen["homes"] == []
    capabilities = [line for line in seen["status"].splitlines() if line.startswith(("CapEff", "CapBnd"))]
    assert all(int(line.split()[1], 16) == 0 for line in capabilities)
    assert "NoNewPrivs:\t1" in seen["status"]
    mounted = {line.split()[1]: line.split()[3].split(",") for line in seen["mounts"].splitlines()}
    for place, options in mounted.items():
        if place.startswith(("/usr", "/etc/alternatives")):
            assert "ro" in options, place
        assert not place.startswith(("/home", "/work", str(tmp_path)))


@pytest.mark.slow
async def test_unavailable_package_is_one_sentence_with_a_log_and_no_leftovers(
    index: PackageIndex, workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    index.add(wheel("alpha", "1.0"))
    with pytest.raises(EnvironmentBuildFailed) as caught:
        await find_environment(
            workspace_of({"requirements.txt": "alpha\nno-such-thing\n"}), tmp_path, said.append
        )
    text = str(caught.value)
    assert "\n" not in text
    log = Path(text.rpartition("the log is ")[2])
    assert "no-such-thing" in log.read_text()


@pytest.mark.slow  # quick: test_declared_dependencies_are_there_and_the_next_time_at_once
async def test_an_interrupted_build_leaves_nothing(
    index: PackageIndex, workspace_of: WorkspaceOf, tmp_path: Path, api: Any
) -> None:
    workspace = workspace_of({"requirements.txt": "slow\n"})
    before = {image.name for image in environment_images(api, tmp_path)}
    building = asyncio.create_task(find_environment(workspace, tmp_path, lambda _: None))
    assert await asyncio.to_thread(index.asked_slow.wait, 60)
    started = time.monotonic()
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    assert time.monotonic() - started < 20
    assert {image.name for image in environment_images(api, tmp_path)} == before


@pytest.mark.slow
async def test_two_at_once_build_once_and_without_a_build_the_image_is_for_all_trees(
    index: PackageIndex, workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    index.add(wheel("alpha", "1.0"))
    workspace = workspace_of({"requirements.txt": "alpha\n", "setup.py": ""})
    image, other = await asyncio.gather(
        *(find_environment(workspace, tmp_path, said.append) for _ in range(2))
    )
    assert image is not None
    assert image == other
    assert len([line for line in said if line.startswith("building")]) == 1
    assert await image_of_tree(changed(workspace, "setup.py", b"x"), image, tmp_path, said.append) == image


async def test_nothing_declared_is_no_image(workspace_of: WorkspaceOf, tmp_path: Path) -> None:
    assert await find_environment(workspace_of({"a.py": ""}), tmp_path, lambda _: None) is None


# -- what only the project's own build makes ----------------------------------------------------------------------

BACKEND = """
import os, pathlib, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    version = os.environ["SETUPTOOLS_SCM_PRETEND_VERSION"]
    for name in ("src/own/_version.py", "src/own/other.py", "src/own/seen.py", "sitecustomize.py"):
        pathlib.Path(name).write_text(f"version = {version!r}\\n")
    {then}
    info = "own-1.dist-info"
    with zipfile.ZipFile(os.path.join(folder, "own-1-py3-none-any.whl"), "w") as z:
        z.writestr("own/__init__.py", "")
        z.writestr("own/fast.abi3.so", pathlib.Path("src/own/fast.pyx").read_text())
        z.writestr("sitecustomize.py", "raise SystemExit('started')")
        z.writestr(info + "/METADATA", "Metadata-Version: 2.1\\nName: own\\nVersion: 1\\n")
        z.writestr(info + "/WHEEL", "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        z.writestr(info + "/RECORD", "")
    return "own-1-py3-none-any.whl"
"""
BUILDS_ITSELF = """
[build-system]
requires = [{requires}]
build-backend = "backend"
backend-path = ["."]
[project]
name = "own"
dynamic = ["version"]
[tool.setuptools_scm]
write_to = "src/own/_version.py"
version_file = "src/own/seen.py"
"""


def built_by_itself(
    workspace_of: WorkspaceOf, *, then: str = "", requires: str = "", more: Mapping[str, str] | None = None
) -> Workspace:
    return workspace_of(
        {
            **(more or {}),
            "pyproject.toml": BUILDS_ITSELF.format(requires=requires),
            "backend.py": BACKEND.replace("{then}", then or "pass"),
            ".gitignore": "_version.py\n",
            "src/own/__init__.py": "from own._version import version\n",
            "src/own/fast.pyx": "machine code",
        }
    )


async def test_an_image_that_was_removed_is_no_fault_of_m3agent(
    workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    with pytest.raises(ImageMissing, match=r"^the image m3agent-env:0 was removed .* run the command again"):
        await image_of_tree(workspace_of({"a.py": ""}), f"{REPOSITORY}:0", tmp_path, said.append)


def changed(workspace: Workspace, path: str, content: bytes) -> Workspace:
    """Return a workspace of the same repository with another content of one file."""
    entries = workspace.entries(workspace.base)
    entry = replace(entries[path], sha=workspace.store.put_blob(content))
    return Workspace(workspace.store, workspace.store.write_tree({**entries, path: entry}.values()))


async def contents(image: str | None, workspace: Workspace) -> tuple[bytes, bytes]:
    """Return the generated version file and the compiled module in a sandbox; empty if they are missing."""
    async with sandbox_from(image, workspace) as sandbox:
        files = ("src/own/_version.py", "src/own/fast.abi3.so")
        done = [await sandbox.exec(["cat", path]) for path in files]
        return done[0].stdout, done[1].stdout


@pytest.mark.slow  # quick: test_dependencies_are_in_each_sandbox_and_never_in_the_patch
async def test_what_a_build_generates_is_there_and_never_in_the_patch_or_stale(
    index: PackageIndex, workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    workspace = built_by_itself(workspace_of)
    image = await find_environment(workspace, tmp_path, said.append, tag="v3.4")
    assert image is not None
    script = (
        "import importlib.metadata as m, own, os\n"
        "print(own.version, m.version('own'), sorted(os.listdir('src/own')), os.path.exists('sitecustomize.py'))"
    )
    async with sandbox_from(image, workspace) as sandbox:
        done = await sandbox.exec(["python3", "-c", script])
        assert done.stdout.decode().split("\n")[0] == (
            "3.4 3.4 ['__init__.py', '_version.py', 'fast.abi3.so', 'fast.pyx'] False"
        ), done.stderr
        await sandbox.write("src/own/_version.py", b"version = '9'\n")
        await sandbox.write("src/own/fast.abi3.so", b"changed")
        await sandbox.write("src/own/new.py", b"x = 1\n")
        assert (await sandbox.patch()).paths == ("src/own/new.py",)
    words = len(said)
    assert await find_environment(workspace, tmp_path, said.append, tag="v3.4") == image
    assert len(said) == words
    broken = changed(workspace, "backend.py", b"raise SystemExit('broken')\n")
    again = await image_of_tree(broken, image, tmp_path, said.append)
    assert "the changed project's own build failed; what it makes is missing" in said
    assert await contents(again, broken) == (b"", b"")


@pytest.mark.slow
async def test_a_suites_dependencies_and_what_the_build_generates_are_both_there(
    index: PackageIndex, workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    install = "mkdir deps; echo made > deps/file"
    needs = Preparation(commands=(("sh", "-c", install),), keep=("deps",))
    suites = [SuiteNeeds("own:.", "Own", "", "", needs)]
    workspace = built_by_itself(workspace_of)
    image = await find_environment(workspace, tmp_path, said.append, tag="v3.4", suites=suites)
    assert image is not None
    new = changed(workspace, "src/own/fast.pyx", b"other code")
    again = await image_of_tree(new, image, tmp_path, said.append)
    for of, name, code in ((workspace, image, b"machine code"), (new, again, b"other code")):
        assert await contents(name, of) == (b"version = '3.4'\n", code)
        async with sandbox_from(name, of) as sandbox:
            assert (await sandbox.exec(["cat", "deps/file"])).stdout == b"made\n"


@pytest.mark.slow
async def test_a_build_that_fails_after_the_version_file_keeps_that_file(
    index: PackageIndex, workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    workspace = built_by_itself(workspace_of, then="raise SystemExit('no compiler')")
    image = await find_environment(workspace, tmp_path, said.append)
    assert any("the project's own build failed" in line for line in said)
    async with sandbox_from(image, workspace) as sandbox:
        done = await sandbox.exec(["python3", "-c", "import own; print(own.version)"])
        assert done.stdout == b"0+unknown\n"


@pytest.mark.slow  # quick: test_unusable_dockerfile_falls_back_to_declared_dependencies
async def test_a_project_that_cannot_be_built_and_whose_python_is_unavailable_still_has_an_environment(
    index: PackageIndex, workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    index.add(wheel("alpha", "1.0"))
    more = {".python-version": "3.99\n", "requirements.txt": "alpha\n"}
    workspace = built_by_itself(workspace_of, requires='"not-in-the-index"', more=more)
    image = await find_environment(workspace, tmp_path, said.append)
    assert any("Python 3.99 is not available" in line for line in said)
    [line] = [line for line in said if "continuing without these files" in line]
    assert line.startswith("the project itself could not be built: its build failed")
    assert "not-in-the-index" in line
    async with sandbox_from(image, workspace) as sandbox:
        assert (await sandbox.exec(["python3", "-m", "pytest", "--version"])).exit == 0
        assert (await sandbox.exec(["python3", "-c", "import alpha"])).exit == 0
        assert (await sandbox.exec(["python3", "-c", "import own"])).exit != 0


@pytest.mark.slow
async def test_a_tree_that_changes_what_the_build_reads_is_built_anew_without_a_network(
    index: PackageIndex, workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    index.add(wheel("alpha", "1.0"))
    offline = "try:\n        socket.create_connection(('192.0.2.1', 80), 0.2)\n"
    offline += (
        "    except OSError as error:\n        pathlib.Path('src/own/fast.pyx').write_text(str(error.errno))"
    )
    workspace = built_by_itself(workspace_of, requires='"alpha"')
    image = await find_environment(workspace, tmp_path, said.append, tag="v3.4")
    assert image is not None
    requests, words = len(index.requests), len(said)
    same = changed(workspace, ".gitignore", b"_version.py\n*.so\n")
    assert await image_of_tree(same, image, tmp_path, said.append) == image
    new = changed(workspace, "src/own/fast.pyx", b"other code")
    again = await image_of_tree(new, image, tmp_path, said.append)
    assert await contents(again, new) == (b"version = '3.4'\n", b"other code")
    assert await contents(image, workspace) == (b"version = '3.4'\n", b"machine code")
    assert any("anew, without a network" in line for line in said[words:])

    async def image_of(of: Workspace, image: str) -> str:
        return await image_of_tree(of, image, tmp_path, said.append)

    spec = SandboxSpec("docker", image, SandboxLimits(memory=1 << 30), image_of=image_of)
    async with new_sandbox("docker", spec, new, lambda _: None) as sandbox:
        assert (await sandbox.exec(["cat", "src/own/fast.abi3.so"])).stdout == b"other code"
    words = len(said)
    assert await image_of_tree(new, image, tmp_path, said.append) == again
    assert (len(said), len(index.requests)) == (words, requests)
    backend = BACKEND.replace("{then}", offline).replace("import os", "import os, socket")
    nosy = changed(workspace, "backend.py", backend.encode())
    unreachable = str(errno.ENETUNREACH).encode()
    assert (await contents(await image_of_tree(nosy, image, tmp_path, said.append), nosy))[1] == unreachable


# -- the repository's own image ---------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_dockerfile_makes_the_image(
    python_image: str, workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    workspace = workspace_of(
        {
            "docker/Dockerfile": f"FROM {python_image}\nARG WORD\nENV OWN_WORD=$WORD PATH=/opt/own/bin:/usr/bin\n"
            "COPY data /data\nRUN [\"python3\", \"-c\", \"open('/built', 'w').write('yes')\"]\n",
            ".devcontainer/devcontainer.json": '{"build": {"dockerfile": "../docker/Dockerfile", "context": "..",'
            ' "args": {"WORD": "given"}}, "runArgs": ["--privileged"]}',
            ".dockerignore": "data/secret\n",
            "data/plain": "plain\n",
            "data/secret": "secret\n",
            "requirements.txt": "never-asked-for\n",
        }
    )
    image = await find_environment(workspace, tmp_path, said.append, may_build=yes)
    assert image is not None
    assert any("ignored: runArgs" in line for line in said)
    script = "import os; print(os.listdir('/data'), open('/built').read(), os.environ['OWN_WORD'], os.environ['PATH'])"
    async with sandbox_from(image, workspace) as sandbox:
        done = await sandbox.exec(["python3", "-c", script])
    assert done.stdout.decode().strip() == "['plain'] yes given /opt/own/bin:/usr/bin:/opt/m3agent/bin"
    words = len(said)
    assert await find_environment(workspace, tmp_path, said.append, may_build=yes) == image
    assert not [line for line in said[words:] if line.startswith("building")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "dockerfile",
    [
        "FROM m3agent-no-such-image:0\n",
        *map(later, ("FROM scratch\nCOPY a.txt /a.txt\n", "NONSENSE\n", "")),
    ],
)
async def test_unusable_dockerfile_falls_back_to_declared_dependencies(
    index: PackageIndex, dockerfile: str, workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    index.add(wheel("alpha", "1.0"))
    workspace = workspace_of({"Dockerfile": dockerfile, "a.txt": "a\n", "requirements.txt": "alpha\n"})
    image = await find_environment(workspace, tmp_path, said.append, may_build=yes)
    assert [line for line in said if line.startswith("Dockerfile is not used: ")]
    async with sandbox_from(image, workspace) as sandbox:
        assert (await sandbox.exec(["python3", "-c", "import alpha"])).exit == 0


# -- pruning ----------------------------------------------------------------------------------------------------


@pytest.fixture
def base_image(api: Any) -> str:
    """An image that exists after the first start of a sandbox."""
    return find_image(api, None, lambda _: None).name


def fake_environment(api: Any, base: str, name: str) -> str:
    """Create an environment image as a build creates it."""
    container = api.create_container(base, command=["true"])["Id"]
    try:
        labels = {LABEL: "1", f"{LABEL}.environment": name}
        info = tarfile.TarInfo("filler")
        info.size = 1_000_000
        buffer = BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            archive.addfile(info, BytesIO(os.urandom(info.size)))
        api.put_archive(container, "/", buffer.getvalue())
        api.commit(container, repository=REPOSITORY, tag=name, conf={"Labels": labels})
    finally:
        api.remove_container(container)
    return f"{REPOSITORY}:{name}"


class OnlyImages:
    """An engine's API that lists only some images: whatever else is on the machine does not count, and stays."""

    def __init__(self, api: Any, names: Collection[str]) -> None:
        self._api, self._names = api, names

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    def images(self, **query: Any) -> list[dict[str, Any]]:
        return [
            image
            for image in self._api.images(**query)
            if not {*self._names}.isdisjoint(image["RepoTags"] or ())
        ]


def test_prune_keeps_the_budget_and_what_was_used_last(api: Any, base_image: str, tmp_path: Path) -> None:
    names = [fake_environment(api, base_image, f"test{os.getpid()}x{number}") for number in range(3)]
    own = OnlyImages(api, names)
    for number in (0, 2, 1):
        touch(tmp_path, names[number], api)
    size = {image.name: image.size for image in environment_images(own, tmp_path)}
    done = prune(own, tmp_path, keep_bytes=size[names[1]], say=lambda _: None)
    assert done.images == [names[0], names[2]]
    assert done.freed == size[names[0]] + size[names[2]]
    assert [image.name for image in environment_images(own, tmp_path)] == [names[1]]


@pytest.mark.linux  # elsewhere no process counts as ended (docs/install.md)
def test_prune_removes_orphaned_containers_only(api: Any, base_image: str, tmp_path: Path) -> None:
    ended = subprocess.Popen(["sleep", "60"])
    dead = describe_process(ended.pid)
    ended.kill()
    ended.wait()
    assert dead is not None
    labels = {
        "orphan": {LABEL: "1", PROCESS_LABEL: dead},
        "ours": {LABEL: "1", PROCESS_LABEL: describe_process(os.getpid()) or ""},
        "other namespace": {LABEL: "1", PROCESS_LABEL: dead.replace("pid:[", "pid:[9")},
        "unlabelled": {LABEL: "1"},
        "somebody's": {"com.example": "1"},
    }
    made = {
        n: api.create_container(base_image, command=["true"], labels=own)["Id"] for n, own in labels.items()
    }
    volumes = {n: api.create_volume(labels=own)["Name"] for n, own in labels.items()}
    try:
        done = prune(api, tmp_path, keep_bytes=1 << 60, say=lambda _: None)
        here = {listed["Id"] for listed in api.containers(all=True)}
        left = {listed["Name"] for listed in api.volumes()["Volumes"]}
        assert {name for name, ident in made.items() if ident not in here} == {"orphan"}
        assert {name for name, ident in volumes.items() if ident not in left} == {"orphan"}
        assert done.containers >= 1
        assert done.volumes >= 1
    finally:
        for ident in made.values():
            with contextlib.suppress(Exception):  # `prune` may have removed it
                api.remove_container(ident, force=True)
        for name in volumes.values():
            with contextlib.suppress(Exception):
                api.remove_volume(name, force=True)


@pytest.mark.linux
def test_an_earlier_boots_process_is_gone_unless_it_may_be_another_machines() -> None:
    ours = describe_process(os.getpid())
    assert ours is not None
    earlier = "00000000-0000-0000-0000-000000000000" + ours[36:]
    assert is_orphan(earlier, other_boots=True)
    assert not is_orphan(earlier, other_boots=False)
    assert not is_orphan(ours, other_boots=True)
    for odd in ("", "x", "a b c d", ours + " more"):
        assert not is_orphan(odd, other_boots=True)


@pytest.mark.linux
def test_a_process_of_other_namespaces_may_live() -> None:
    ours = describe_process(os.getpid())
    assert ours is not None
    boot, namespaces, pid, started = ours.split()
    pids = namespaces.partition(",")[0]
    dead = str(int(started) + 1)
    assert is_orphan(f"{boot} {namespaces} {pid} {dead}", other_boots=True)
    for others in (f"{pids},time:[1]", namespaces.replace("pid:[", "pid:[1")):
        assert not is_orphan(f"{boot} {others} {pid} {dead}", other_boots=True)

"""Installations of the wheel: beside packages named like our folders, as a tool, as an image, and their size."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import threading
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import m3agent
from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.images.debian import base_image
from m3agent.sandbox.images.indexes import find_indexes
from tests.agent.scripted import BUGGY, ISSUE, MakeRepo
from tests.evals.bases import needs_base
from tests.installs import ROOT, install, new_environment, uv, uv_env

pytestmark = pytest.mark.slow

TAKEN = ("agent", "evals", "tools")
"""Names of this repository's top-level folders that published packages also install."""
BASE_MB = 45
"""Megabytes of the base installation in November 2026: the files of its site-packages, without bytecode."""


def run(
    command: Sequence[str | Path], cwd: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env={**uv_env(), **env},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=170,
    )


def their_wheel(folder: Path, name: str) -> Path:
    """Build the wheel of another package that has the name and the module names of one of our folders."""
    files = {path.relative_to(ROOT).as_posix(): b"WHOSE = 'theirs'\n" for path in (ROOT / name).rglob("*.py")}
    info = f"{name}-9.9.dist-info"
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n".encode()
    files[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    rows = [f"{path},sha256={_digest(data)},{len(data)}" for path, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    wheel = folder / f"{name}-9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return wheel


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@pytest.fixture(scope="module")
def empty(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with only m3agent and its dependencies."""
    python = new_environment(tmp_path_factory.mktemp("installed") / "environment")
    install(python, str(wheel))
    return python


@pytest.fixture(scope="module")
def crowded(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that also has packages named `agent`, `evals` and `tools`."""
    folder = tmp_path_factory.mktemp("crowded")
    python = new_environment(folder / "environment")
    install(python, *(str(their_wheel(folder, name)) for name in TAKEN))
    install(python, str(wheel))
    return python


@pytest.mark.parametrize("kind", ["empty", "crowded"])
def test_the_wheel_fixes_a_bug(
    kind: str, request: pytest.FixtureRequest, make_repo: MakeRepo, one_backend: str, own_state: Path
) -> None:
    """The working folder also has packages of those names, and PYTHONPATH contains it."""
    program = request.getfixturevalue(kind).with_name("m3agent")
    bomb = "raise RuntimeError('this is the repository, not m3agent')\n"
    repo = make_repo({**BUGGY, **{f"{name}/__init__.py": bomb for name in TAKEN}})
    version = run([program, "--version"], repo, PYTHONPATH=".")
    assert version.stdout == f"m3agent {m3agent.__version__}\n", version.stderr
    doctor = run([program, "doctor"], repo, PYTHONPATH=".")
    assert doctor.returncode == 0, doctor.stdout
    assert str(repo) in doctor.stdout
    fixed = run(
        [program, "fix", ISSUE, "--engine", "embedded", "--sandbox", one_backend], repo, PYTHONPATH="."
    )
    assert fixed.returncode == 0, fixed.stderr
    assert "-    return a - b\n+    return a + b" in fixed.stdout


def test_theirs_and_ours_are_there_side_by_side(crowded: Path, tmp_path: Path) -> None:
    names = ["agent", "agent.exit_codes", "evals", "evals.data.results", "tools", "tools.registry"]
    program = "import importlib, sys\nfor name in sys.argv[1:]: print(vars(importlib.import_module(name)).get('WHOSE'))"
    done = run([crowded, "-c", program, *names, *(f"m3agent.{name}" for name in names)], tmp_path)
    assert done.stdout.split() == ["theirs"] * len(names) + ["None"] * len(names), done.stderr


def test_uninstalling_leaves_theirs_alone(
    wheel: Path, crowded: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    site = Path(run([crowded, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).stdout.strip())
    theirs = {path for name in TAKEN for path in (site / name).rglob("*.py")}
    assert theirs and (site / "m3agent").is_dir()
    assert run([uv(), "pip", "uninstall", "--python", crowded, "m3agent"]).returncode == 0
    try:
        assert not list((site / "m3agent").rglob("*.py")) and not crowded.with_name("m3agent").exists()
        assert {path for name in TAKEN for path in (site / name).rglob("*.py")} == theirs
        assert all(path.read_text() == "WHOSE = 'theirs'\n" for path in theirs)
    finally:
        install(crowded, "--no-deps", str(wheel))


def test_the_base_install_stays_small(empty: Path) -> None:
    site = Path(run([empty, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).stdout.strip())
    files = [path for path in site.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    size = sum(path.stat().st_size for path in files) / 1e6
    assert BASE_MB / 2 < size < BASE_MB * 1.5
    said = (ROOT / "docs" / "install.md").read_text()
    assert f"**{BASE_MB} MB**" in said


EXTRAS = ["acp", "data", "mcp", "official", "outlines", "ray", "serve", "verify"]
SAYING = """
import asyncio, contextlib, os, socket, sys, types
from pathlib import Path

def acp():
    sys.argv[1:] = ["acp"]
    with contextlib.redirect_stderr(sys.stdout):
        from m3agent.cli.__main__ import main
        main()

def verify():
    from m3agent.agent.context.tokenizer.counter import oracle_count
    oracle_count(types.SimpleNamespace(kind="file"), "a")

def serve():
    from m3agent.serving.check.wire_check import ids_check
    print(asyncio.run(ids_check(None, api_key=None, tokenizer=Path("tokenizer.json"))).fix)

def data():
    from m3agent.evals.data.load import read_hub
    list(read_hub("a/b", "test"))

def mcp():
    from m3agent.agent.mcp.toolset import require_extra
    require_extra()

def official():
    from m3agent.evals.grade.official import official_module
    official_module("grading")

def outlines():
    sys.argv[1:] = ["context", "--stats", "--budget", "1000"]
    os.dup2(1, 2)
    from m3agent.cli.__main__ import main
    main()

def ray():
    from m3agent.evals.run.cluster.ray_cluster import connected
    with socket.create_server(("127.0.0.1", 0)) as there, connected(
        f"ray://127.0.0.1:{there.getsockname()[1]}", None, print
    ):
        pass

try:
    globals()[sys.argv[1]]()
except Exception as error:
    print(error)
"""
"""A program that uses the packages of an extra as a command does."""


@pytest.mark.parametrize("extra", EXTRAS)
def test_missing_extra_is_reported_in_one_sentence(empty: Path, make_repo: MakeRepo, extra: str) -> None:
    repo = make_repo({f"{number}.py": f"def f{number}():\n    return {number}\n" * 99 for number in range(9)})
    done = run([empty, "-c", SAYING, extra], repo)
    said = [line for line in done.stdout.splitlines() if f"m3agent[{extra}]" in line]
    assert len(said) == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_every_extra_is_tried_and_in_the_table() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = re.findall(r"^\| `\[(\w+)\]` \|", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    assert table == EXTRAS == sorted(extras)


def test_make_install_installs_the_command_with_its_extras(empty: Path, tmp_path: Path) -> None:
    """`empty` skips where packages cannot be downloaded."""
    env = {
        "HOME": str(tmp_path),
        "XDG_DATA_HOME": "",
        "XDG_BIN_HOME": "",
        "UV_TOOL_DIR": str(tmp_path / "tools"),
    }
    cache = run([uv(), "cache", "dir"]).stdout.strip()
    made = run(["make", "install", "EXTRAS=acp,gold"], ROOT, **env, UV_CACHE_DIR=cache)
    assert made.returncode == 0, made.stderr
    program = tmp_path / ".local" / "bin" / "m3agent"
    assert f"The command is {program}.\n" in made.stderr
    assert f'export PATH="{program.parent}:$PATH"' in made.stderr
    assert "does not have an extra named `gold`" in made.stderr
    assert run([program, "--version"]).stdout == f"m3agent {m3agent.__version__}\n"
    assert run([program, "acp"]).returncode == 0


def test_uv_and_pipx_install_it_as_a_tool(wheel: Path, tmp_path: Path) -> None:
    """They also uninstall it; then only the sessions remain, as the document says."""
    home = tmp_path / "home"
    home.mkdir()
    bin_folder = home / ".local" / "bin"
    env = {"HOME": str(home), "PATH": f"{bin_folder}:{os.environ['PATH']}", "M3AGENT_STATE": ""}
    pipx = new_environment(tmp_path / "pipx")
    install(pipx, "pipx", "pip")
    tools: dict[str, tuple[list[str | Path], list[str | Path]]] = {
        "uv": ([uv(), "tool", "install", wheel], [uv(), "tool", "uninstall", "m3agent"]),
        "pipx": ([pipx, "-m", "pipx", "install", wheel], [pipx, "-m", "pipx", "uninstall", "m3agent"]),
    }
    for name, (brings, takes) in tools.items():
        done = run(brings, tmp_path, **env)
        assert done.returncode == 0, (name, done.stderr)
        program = bin_folder / "m3agent"
        assert program.is_file()
        assert run([program, "--version"], tmp_path, **env).stdout == f"m3agent {m3agent.__version__}\n"
        assert "Python" in run([program, "doctor"], tmp_path, **env).stdout
        assert run(takes, tmp_path, **env).returncode == 0
        assert not program.exists()
        assert (home / ".local" / "state" / "m3agent").is_dir(), "sessions stay"
        assert not list((home / ".local").rglob("m3agent-*.dist-info"))
        shutil.rmtree(home / ".local" / "state")


@pytest.fixture(scope="module")
def image(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The image of packaging/Dockerfile, on a base image built here, so that no registry is needed."""
    folder = tmp_path_factory.mktemp("image")
    api = connect()
    try:
        base = base_image(api, "3.11", state=folder, say=print, stop=threading.Event()).image.name
    finally:
        api.close()
    context = folder / "context"
    context.mkdir()
    shutil.copy(wheel, context)
    trusted = find_indexes(os.environ, Path.home()).certificates
    if trusted is not None:
        shutil.copy(trusted, context / "certificates.pem")
    tag = f"m3agent-of-a-test:{os.getpid()}"
    recipe = str(ROOT / "packaging" / "Dockerfile")
    build = ["docker", "build", "--file", recipe, "--build-arg", f"BASE={base}", "--tag", tag, str(context)]
    try:
        done = subprocess.run(build, capture_output=True, text=True, check=False)
        if re.search(
            "Failed to establish|Could not (fetch|resolve)|Temporary failure", done.stdout + done.stderr
        ):
            pytest.skip("packages cannot be had inside a container here")
        assert done.returncode == 0, done.stdout + done.stderr
        yield tag
    finally:
        subprocess.run(["docker", "rmi", "--force", tag], check=False, capture_output=True)


@needs_base
@pytest.mark.timeout(600)
def test_the_image_fixes_a_bug_with_a_sandbox_of_its_own(image: str, make_repo: MakeRepo) -> None:
    ran = ["docker", "run", "--rm"]
    assert run([*ran, image, "--version"]).stdout == f"m3agent {m3agent.__version__}\n"
    assert run([*ran, "--entrypoint", "id", image, "-u"]).stdout == "1000\n", "it is nobody's root"
    options = re.findall(r"--security-opt \S+", (ROOT / "docs" / "install.md").read_text())
    assert len(set(options)) == 2
    allowed = [word for option in sorted(set(options)) for word in option.split()]
    if run(
        [*ran, *allowed, "--entrypoint", "bwrap", image, "--unshare-all", "--ro-bind", "/", "/", "true"]
    ).returncode:
        pytest.skip("this machine's kernel bars user namespaces for those who are not root")
    repo = make_repo(BUGGY)
    mounted = [*ran, *allowed, "--volume", f"{repo}:/work", image]
    done = run([*mounted, "fix", ISSUE, "--engine", "embedded", "--sandbox", "bwrap"])
    assert done.returncode == 0, done.stderr
    assert "-    return a - b\n+    return a + b" in done.stdout
    barred = run([*ran, "--volume", f"{repo}:/work", image, "doctor"])
    assert barred.returncode == 3 and "missing  bubblewrap" in barred.stdout, "which is why they are needed"


@needs_base
@pytest.mark.timeout(600)
def test_the_image_fixes_a_bug_without_a_sandbox(image: str, make_repo: MakeRepo) -> None:
    """A container as benchmarks make them: no engine, no user namespaces, no rights, a root that cannot be written."""
    repo = make_repo(BUGGY)
    for path in (repo, *repo.rglob("*")):
        os.chown(path, 1000, 1000)
    confined = ["--read-only", "--cap-drop", "ALL", "--network", "none", "--tmpfs", "/tmp:exec,mode=1777"]
    inside = [
        "docker",
        "run",
        "--rm",
        *confined,
        "--env",
        "M3AGENT_STATE=/tmp/state",
        "--volume",
        f"{repo}:/work",
        image,
    ]
    done = run([*inside, "fix", ISSUE, "--engine", "embedded", "--sandbox", "here", "--apply"])
    assert done.returncode == 0, done.stderr
    assert "verified (not isolated)" in done.stderr
    assert (repo / "calc.py").read_text() == BUGGY["calc.py"].replace("-", "+")
    assert {path.name for path in repo.iterdir()} == {".git", *BUGGY}

"""Environments of test suites on a real engine: what their builds see and reach, and what sandboxes get of them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from m3agent.cli.sandbox import _build
from m3agent.sandbox.backends.image import DEFAULT_PATH
from m3agent.sandbox.declared.preparation import Preparation, SuiteNeeds
from m3agent.sandbox.errors import DiskFull, EnvironmentBuildFailed
from m3agent.sandbox.images import toolchains
from m3agent.sandbox.images.environment import find_environment
from m3agent.sandbox.images.repository_layers import suite_job, usable_folder
from m3agent.sandbox.store.workspace import Workspace
from tests.conftest import docker_here
from tests.ecosystems import table
from tests.fakes.runner import use_own_runner
from tests.sandbox.images.reach import REACH, WorkspaceOf, addresses_here, sandbox_from, service
from tests.servers.npm_registry import NpmRegistry
from tests.servers.packages import bridge_address

engine = [
    pytest.mark.docker,
    pytest.mark.integration,
    pytest.mark.skipif(not docker_here(), reason="no Docker engine answers: environment images need one"),
]
needs_docker = pytest.mark.usefixtures("nothing_stays")


def on_engine(function: Any) -> Any:
    for mark in (*engine, needs_docker):
        function = mark(function)
    return function


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[NpmRegistry]:
    """A registry that builds can reach because this machine's npm is configured to use it."""
    if shutil.which("npm", path=DEFAULT_PATH) is None:
        pytest.skip("this machine has no npm under /usr")
    try:
        server = NpmRegistry(bridge_address())
    except OSError:
        pytest.skip("the engine's bridge is not on this machine")
    with server.serve():
        monkeypatch.setenv("npm_config_registry", server.url)
        yield server


def needs(root: str = "", name: str = "", **fields: Any) -> SuiteNeeds:
    return SuiteNeeds(name or f"own:{root or '.'}", "Own", "", root, Preparation(**fields))


def shell(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script)


# -- what goes into an image --------------------------------------------------------------------------------------


def test_the_hash_has_the_inputs_and_nothing_else_of_the_tree(workspace_of: WorkspaceOf) -> None:
    files: dict[str, str | bytes] = {"web/lock": "1", "web/kept/own.txt": "", "a.txt": ""}
    workspace = workspace_of(files)
    suite = needs(
        "web",
        inputs=("web/lock", "web/none"),
        keep=("deps", "kept", "/opt/cache", "../out", "../../outside"),
        commands=(("x",),),
    )
    job = suite_job(suite, workspace.entries(workspace.base))
    assert job["inputs"] == [("web/lock", workspace.entries(workspace.base)["web/lock"].sha)]
    assert job["keep"] == ["web/deps", "web/kept", "/opt/cache", "out"]
    assert job["untracked"] == ["web/deps", "/opt/cache", "out"]
    other = replace(
        suite, name="own:web/inner", root="web/inner", preparation=replace(suite.preparation, root="web")
    )
    assert {**suite_job(other, workspace.entries(workspace.base)), "suite": suite.name} == job


@pytest.mark.parametrize(
    ("path", "usable"),
    [("a", True), ("a b/ü", True), ("/opt/x", True), ("../a", False), ("a//b", False), ("a/./b", False), (".git/a", False), ("a\nb", False), ("", False)],
)  # fmt: skip
def test_only_plain_folders_are_kept(path: str, usable: bool) -> None:
    assert usable_folder(path) is usable


@pytest.mark.slow
@on_engine
async def test_dependencies_are_in_each_sandbox_and_never_in_the_patch(
    workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    workspace = workspace_of(
        {"web/lock": "1", "web/app.js": "code\n", "web/vendor/own.txt": "own\n", "secret": "s"}
    )
    install = (
        "find /ws -type f > /opt/seen/files; mkdir -p deps/x vendor/y; echo made > deps/x/file; ln -s ../app.js deps/link; "
        "echo made > vendor/y/file; echo theirs > vendor/own.txt; echo $OWN_WORD $CI > /opt/seen/env"
    )
    finish = "cat deps/x/file > /opt/seen/offline; cat /proc/net/dev | wc -l >> /opt/seen/offline"
    suite = needs(
        "web",
        commands=(shell(install),),
        offline_commands=(shell(finish),),
        inputs=("web/lock",),
        keep=("deps", "vendor", "missing", "/opt/seen"),
        env={"OWN_WORD": "given"},
    )
    image = await find_environment(workspace, tmp_path, said.append, suites=[suite])
    assert image is not None
    async with sandbox_from(image, workspace) as sandbox:
        read = await sandbox.exec(
            shell("cat web/deps/x/file web/deps/link web/vendor/y/file web/vendor/own.txt; echo $OWN_WORD")
        )
        assert read.stdout == b"made\ncode\nmade\nown\ngiven\n", (
            "a file of the repository counts, not the build's"
        )
        seen = await sandbox.exec(
            shell("cat /opt/seen/files /opt/seen/env /opt/seen/offline; ls -A /opt/m3agent-build")
        )
        lines = seen.stdout.decode().split()
        assert lines[:3] == ["/ws/web/lock", "given", "1"], "a build sees other files than the inputs"
        assert lines[3:5] == ["made", "3"], "the second step has a network device"
        assert "m3agent-build" not in lines
        for path in ("web/deps/x/file", "web/deps/new", "web/vendor/y/file"):
            await sandbox.write(path, b"changed")
            assert await sandbox.is_left_out(path)
        await sandbox.write("web/vendor/own.txt", b"changed\n")
        assert (await sandbox.patch()).paths == ("web/vendor/own.txt",)
        status = await sandbox.exec(["git", "status", "--short"])
        assert b"deps" not in status.stdout
        assert (await sandbox.exec(["touch", "/opt/seen/x"])).exit != 0
    # a tree that has files of its own there, such as a patched one
    entry = replace(workspace.entries(workspace.base)["web/lock"], path="web/deps/x/file")
    entries = [*workspace.entries(workspace.base).values(), entry]
    patched = Workspace(workspace.store, workspace.store.write_tree(entries))
    async with sandbox_from(image, patched) as sandbox:
        assert (await sandbox.exec(["cat", "web/deps/x/file"])).stdout == b"1"
        assert await sandbox.checkpoint() == patched.base
        await sandbox.write("web/deps/x/file", b"2")
        assert (await sandbox.patch()).paths == ("web/deps/x/file",)
    words = len(said)
    assert await find_environment(workspace, tmp_path, said.append, suites=[suite]) == image
    assert len(said) == words
    twin = replace(suite, name="other:web")
    assert await find_environment(workspace, tmp_path, said.append, suites=[suite, twin]) == image, (
        "built twice"
    )


@pytest.mark.slow
@on_engine
async def test_what_is_compiled_ahead_is_a_layer_of_its_own(
    workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    workspace = workspace_of({"lock": "1"})
    suite = needs(
        commands=(shell("mkdir deps; echo made > deps/file; echo cold > /opt/seen/x"),),
        inputs=("lock",),
        keep=("deps", "/opt/seen"),
    )
    cold = await find_environment(workspace, tmp_path, said.append, suites=[suite])
    for script, content in (("cat lock /opt/seen/x > /opt/seen/y", b"1cold\nmade\n"), ("exit 3", b"made\n")):
        ahead = replace(suite, preparation=replace(suite.preparation, warm=(shell(script),)))
        image = await find_environment(workspace, tmp_path, said.append, suites=[ahead])
        assert (image != cold) == (b"cold" in content)
        async with sandbox_from(image, workspace) as sandbox:
            assert (await sandbox.exec(shell("cat /opt/seen/y deps/file 2>/dev/null"))).stdout == content


@pytest.mark.slow  # quick: test_unavailable_package_is_one_sentence_with_a_log_and_no_leftovers
@on_engine
async def test_a_suite_that_fails_is_one_sentence_and_the_others_follow(
    workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    workspace = workspace_of({"a.txt": ""})
    bad = needs(
        name="bad:.", commands=(shell("echo 'error: the registry does not answer'; echo bye; exit 3"),)
    )
    gone = needs(name="gone:.", commands=(("no-such-program",),))
    good = needs(name="good:.", commands=(shell("mkdir deps; echo made > deps/file"),), keep=("deps",))
    silent = needs(name="silent:.", notices=("something is left out",))
    image = await find_environment(workspace, tmp_path, said.append, suites=[bad, gone, good, silent])
    assert "silent:.: something is left out" in said
    sentences = [line for line in said if "continuing" in line]
    assert sentences[0].startswith("the environment of bad:. could not be built: `sh -c ")
    assert "` failed: the registry does not answer; the log is " in sentences[0]
    assert sentences[0].endswith("continuing without the dependencies of bad:.")
    assert "no-such-program is not in the image" in sentences[1]
    async with sandbox_from(image, workspace) as sandbox:
        assert (await sandbox.exec(["cat", "deps/file"])).stdout == b"made\n"


@pytest.mark.slow  # quick: test_a_command_reaches_nothing_of_this_machine_and_has_limits
@on_engine
async def test_a_build_reaches_nothing_of_this_machine(
    workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    with service() as (port, seen):
        hosts = sorted(addresses_here() | {"localhost", "169.254.169.254", "10.0.0.1"})
        look = REACH.format(hosts=hosts, port=port) + "import json; print(json.dumps(look()))"
        program = (
            "mkdir -p out; python3 -c '$LOOK' > out/$NAME; env > out/env-$NAME; id >> out/env-$NAME".replace(
                "'$LOOK'", '"$LOOK"'
            )
        )
        suite = needs(
            commands=(shell(f"NAME=first; {program}"),),
            offline_commands=(shell(f"NAME=second; {program}"),),
            keep=("out",),
            env={"LOOK": look, "GOPROXY": "off"},
        )
        workspace = workspace_of({"a.txt": ""})
        image = await find_environment(workspace, tmp_path, said.append, suites=[suite])
        async with sandbox_from(image, workspace) as sandbox:
            done = await sandbox.exec(["cat", "out/first", "out/second"])
            first, second = (json.loads(line) for line in done.stdout.splitlines())
            env = (await sandbox.exec(["cat", "out/env-first"])).stdout.decode()
        assert all(direct != "reached" for direct, _ in (*first.values(), *second.values())), done.stdout
        assert all("not a public address of another machine" in proxied for _, proxied in first.values())
        assert all("not a public address" not in proxied for _, proxied in second.values())
        assert seen == []
    assert "GOPROXY=off" not in env
    assert "npm_config_ignore_scripts=true" in env
    assert "uid=1000" in env


@on_engine
@pytest.mark.slow
async def test_dependencies_that_do_not_fit_are_one_sentence(
    workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    workspace = workspace_of({"a.txt": ""})
    suite = needs(commands=(shell("mkdir deps; head -c 200000000 /dev/zero > deps/large"),), keep=("deps",))
    image = await find_environment(workspace, tmp_path, said.append, suites=[suite])
    with pytest.raises(DiskFull, match="no room for the repository's dependencies"):
        async with sandbox_from(image, workspace, memory=256 << 20):
            pass


# -- npm ----------------------------------------------------------------------------------------------------------

PACKAGE = {"name": "own", "version": "1.0.0", "dependencies": {"alpha": "^1.0.0"}}
LOCK = {
    "name": "own",
    "version": "1.0.0",
    "lockfileVersion": 3,
    "packages": {"": PACKAGE, "node_modules/alpha": {"version": "1.0.0", "hasInstallScript": True}},
}
INPUTS = (".npmrc", "package.json", "package-lock.json")


def npm(**files: str) -> dict[str, str | bytes]:
    named = {name.replace("npmrc", ".npmrc"): text for name, text in files.items()}
    return {
        "package.json": json.dumps(PACKAGE),
        "package-lock.json": json.dumps(LOCK),
        "app.js": "console.log(require('alpha'))\n",
        **named,
    }


NPM = needs(
    name="node:.",
    commands=(("npm", "ci"),),
    inputs=INPUTS,
    keep=("node_modules",),
    system_packages=("nodejs", "npm"),
)


@on_engine
@pytest.mark.slow
async def test_npm_installs_from_the_users_registry_and_runs_no_scripts(
    registry: NpmRegistry, workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    scripts = {"postinstall": "echo ran > ran", "install": "echo ran > ran"}
    registry.add(
        {"name": "alpha", "version": "1.0.0", "scripts": scripts},
        {"index.js": "module.exports = 'alpha 1'\n"},
    )
    with service() as (port, seen):
        # the user's own registry counts, and the scripts stay off
        npmrc = f"registry=http://{registry.host}:{port}/\nignore-scripts=false\nscript-shell=/ws/evil\n"
        workspace = workspace_of(npm(npmrc=npmrc))
        image = await find_environment(workspace, tmp_path, said.append, suites=[NPM])
        assert seen == []
    async with sandbox_from(image, workspace) as sandbox:
        assert (await sandbox.exec(["node", "app.js"])).stdout == b"alpha 1\n", said
        assert (await sandbox.exec(shell("find / -name ran 2>/dev/null"))).stdout == b""
        assert (await sandbox.exec(["git", "status", "--short"])).stdout == b""
    assert registry.requests


@on_engine
@pytest.mark.slow
async def test_a_hostile_configuration_of_npm_reaches_no_private_host(
    registry: NpmRegistry,
    workspace_of: WorkspaceOf,
    tmp_path: Path,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("npm_config_registry")
    monkeypatch.setenv("HIDDEN_KEY", "hidden-1")
    (Path(os.environ["HOME"]) / ".npmrc").write_text("//registry.test/:_authToken=hidden-2\n")
    npmrc = f"registry={registry.url}\nfetch-retries=0\nuser-agent=${{HIDDEN_KEY}}\nuserconfig=/root/.npmrc\ncafile=/etc/shadow\n"
    workspace = workspace_of(npm(npmrc=npmrc))
    assert await find_environment(workspace, tmp_path, said.append, suites=[NPM]) is None
    assert registry.requests == []
    [sentence] = [line for line in said if line.endswith("continuing without the dependencies of node:.")]
    assert "`npm ci` failed: " in sentence
    assert "403" in sentence
    assert any(line.startswith("network of the build: refused: ") for line in said)
    log = Path(sentence.partition("the log is ")[2].partition(";")[0])
    assert "hidden" not in log.read_text()


@on_engine
@pytest.mark.slow
@table.needs("npm", path=DEFAULT_PATH)
async def test_npm_installs_from_this_machines_own_registry(
    workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    package = {"name": "own", "version": "1.0.0", "dependencies": {"is-number": "7.0.0"}}
    lock = {**LOCK, "packages": {"": package, "node_modules/is-number": {"version": "7.0.0"}}}
    files: dict[str, str | bytes] = {
        "package.json": json.dumps(package),
        "package-lock.json": json.dumps(lock),
        "app.js": "console.log(require('is-number')('7'))\n",
    }
    workspace = workspace_of(files)
    image = await find_environment(workspace, tmp_path, said.append, suites=[NPM])
    if image is None:
        pytest.skip(f"this machine's registry of npm does not answer: {said[-1]}")
    async with sandbox_from(image, workspace) as sandbox:
        assert (await sandbox.exec(["node", "app.js"])).stdout == b"true\n"


@on_engine
@pytest.mark.slow
@table.needs("go", "node", path=DEFAULT_PATH)
async def test_a_go_module_without_dependencies_runs_offline(
    workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    test = 'package own\n\nimport "testing"\n\nfunc TestOne(t *testing.T) { if One() != 1 { t.Fatal() } }\n'
    files: dict[str, str | bytes] = {
        "go.mod": "module example.test/own\n\ngo 1.18\n",
        ".nvmrc": "99\n",
        "own.go": "package own\n\nfunc One() int { return 1 }\n",
        "own_test.go": test,
    }
    workspace = workspace_of(files)
    suite = needs(
        name="go:.",
        commands=(("go", "mod", "download"),),
        inputs=("go.mod",),
        keep=("/opt/m3agent-go",),
        env={
            "GOMODCACHE": "/opt/m3agent-go",
            "GOPROXY": "off",
            "GOFLAGS": "-mod=mod",
            "GOTOOLCHAIN": "local",
        },
        system_packages=("golang", "nodejs"),
    )
    image = await find_environment(workspace, tmp_path, said.append, suites=[suite])
    assert image is not None, said
    assert any(line.startswith(".nvmrc asks for Node.js 99, and the sandbox has ") for line in said)
    async with sandbox_from(image, workspace) as sandbox:
        done = await sandbox.exec(["go", "test", "-count=1", "./..."], timeout=120)
        assert done.exit == 0, done.stdout + done.stderr


@on_engine
@pytest.mark.slow
async def test_sandbox_build_prints_what_it_detected_and_what_is_missing(
    make_repo: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_own_runner(
        monkeypatch,
        Preparation(
            ("no-such-package-of-debian",),
            commands=(shell("mkdir deps; echo made > deps/x"),),
            keep=("deps",),
        ),
    )
    monkeypatch.setattr(toolchains, "base_image", unbuildable)
    name = await _build(make_repo({"web/own.suite": ""}), None, None, {})
    assert name is not None
    printed = capsys.readouterr().err
    assert "own:web: tests in Own (web/own.suite)\n" in printed
    assert "environment of own:web ready after" in printed
    assert "own:web: the image lacks no-such-package-of-debian\n" in printed


def unbuildable(*_: object, **__: object) -> NoReturn:
    raise EnvironmentBuildFailed("no base here")

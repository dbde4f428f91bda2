"""Which image a sandbox of a fix starts from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from m3agent.agent.fix import sandbox_setup
from m3agent.agent.fix.sandbox_setup import NOT_ISOLATED, chosen_sandbox, with_environment
from m3agent.agent.settings.settings import Settings
from m3agent.sandbox.backends.factory import Backend, SandboxSpec
from m3agent.sandbox.backends.kinds import IMAGELESS
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.declared.preparation import Preparation, SuiteNeeds
from m3agent.sandbox.network.allow_list import AllowList
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.runners.suites import tree_files
from m3agent.util.errors import UsageError
from tests.fakes.machine import MemoryMachine, no_programs
from tests.fakes.runner import use_own_runner

WorkspaceOf = Callable[[dict[str, str | bytes]], Workspace]


@pytest.mark.parametrize("given", [None, "m3agent-env:own"])  # the second is a resumed session
async def test_only_other_trees_are_asked_for_their_image(
    given: str | None, workspace_of: WorkspaceOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def find_environment(*_: object, **__: object) -> str:
        return "m3agent-env:own"

    async def image_of_tree(of: Workspace, image: str, *_: object) -> str:
        return f"{image}-{of.base}"

    monkeypatch.setattr(sandbox_setup, "find_environment", find_environment)
    monkeypatch.setattr(sandbox_setup, "image_of_tree", image_of_tree)
    workspace = workspace_of({"a.py": "old"})
    spec = SandboxSpec("docker", given)
    ready = await with_environment(spec, "docker", workspace, Settings(), tmp_path, lambda _: None)
    assert ready.image == "m3agent-env:own"
    assert ready.image_of is not None
    assert await ready.image_of(Workspace(workspace.store, workspace.base), ready.image) == ready.image
    empty = Workspace(workspace.store, workspace.store.write_tree([]))
    assert await ready.image_of(empty, ready.image) == f"m3agent-env:own-{empty.base}"


@pytest.mark.parametrize("settings", [Settings(), Settings(environment="off")])
async def test_the_users_own_image_is_for_all_trees(
    settings: Settings, workspace_of: WorkspaceOf, tmp_path: Path
) -> None:
    spec = SandboxSpec("docker", "theirs:1")
    workspace = workspace_of({"a.py": ""})
    ready = await with_environment(spec, "docker", workspace, settings, tmp_path, lambda _: None)
    assert ready.image_of is None


def test_variables_of_test_runs_are_set_unless_they_decide_what_starts(workspace_of: WorkspaceOf) -> None:
    tox = "[testenv]\nsetenv =\n    REGION = us\n    PLACE = here\n    PATH = /nowhere\n    PYTHONPATH = x\n"
    workspace = workspace_of({"tox.ini": tox, ".m3agent.toml": '[tests.env]\nREGION = "eu"\n'})
    tree = tree_files(workspace.store, workspace.base)
    assert sandbox_setup._variables(workspace, tree) == {"REGION": "eu", "PLACE": "here"}


NOWHERE = "no-such-package-of-debian"


@pytest.mark.parametrize(
    ("files", "preparation", "sentence"),
    [
        ({"a.py": ""}, Preparation(), None),
        (
            {"own.suite": ""},
            Preparation(commands=(("own", "install"),)),
            "bwrap has no images: only this machine's packages are available, not the repository's dependencies",
        ),
        (
            {"requirements.txt": "alpha\n", "own.suite": ""},
            Preparation((NOWHERE,), (("own", "install"),)),
            (
                "bwrap has no images: only this machine's packages are available, not the repository's dependencies "
                f"and {NOWHERE}, which the tests need"
            ),
        ),
        (
            {"own.suite": ""},
            Preparation((NOWHERE,)),
            f"bwrap has no images, and this machine's /usr lacks {NOWHERE}, which the tests need",
        ),
    ],
)
async def test_a_sandbox_without_images_says_what_is_missing(
    files: dict[str, str | bytes],
    preparation: Preparation,
    sentence: str | None,
    workspace_of: WorkspaceOf,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_own_runner(monkeypatch, preparation)
    said: list[str] = []
    await with_environment(SandboxSpec(), "bwrap", workspace_of(files), Settings(), tmp_path, said.append)
    assert said == ([] if sentence is None else [sentence])


async def test_an_environment_has_what_the_suites_of_the_base_tree_need(
    workspace_of: WorkspaceOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preparation = Preparation(commands=(("own", "install"),), notices=("left out",))
    use_own_runner(monkeypatch, preparation)
    seen: list[SuiteNeeds] = []

    async def find_environment(*_: object, suites: tuple[SuiteNeeds, ...], **__: object) -> None:
        seen.extend(suites)

    monkeypatch.setattr(sandbox_setup, "find_environment", find_environment)
    workspace = workspace_of({"own.suite": "", "web/own.suite": "", "node_modules/a/own.suite": ""})
    await with_environment(SandboxSpec(), "docker", workspace, Settings(), tmp_path, lambda _: None)
    assert seen == [
        SuiteNeeds("own:.", "Own", "own.suite", "", preparation),
        SuiteNeeds("own:web", "Own", "web/own.suite", "web", preparation),
    ]


def here(**values: object) -> Settings:
    return replace(Settings(), sandbox="here", **values)  # type: ignore[arg-type]


async def chosen(settings: Settings, *, container: bool, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said = list[str]()
    monkeypatch.setattr(sandbox_setup, "in_container", lambda: container)
    spec, backend = await chosen_sandbox(settings, said.append)
    assert (spec.backend, backend) == ("here", "here")
    return said


@pytest.mark.parametrize(("container", "yes"), [(True, False), (False, True)])
async def test_missing_isolation_is_said(container: bool, yes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    said = await chosen(here(yes=yes), container=container, monkeypatch=monkeypatch)
    assert said == [NOT_ISOLATED]


async def test_outside_of_a_container_it_must_be_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="this is no container: use --sandbox docker, or add --yes"):
        await chosen(here(), container=False, monkeypatch=monkeypatch)


async def test_without_isolation_the_network_cannot_be_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="leave out --allow-net"):
        await chosen(here(allow_net=AllowList("example.org")), container=True, monkeypatch=monkeypatch)


@pytest.mark.parametrize("backend", sorted(IMAGELESS))
async def test_an_image_is_refused_where_the_sandbox_would_ignore_it(backend: Backend) -> None:
    with pytest.raises(UsageError, match=f"--sandbox {backend} has no images, so it cannot use nosuch:1"):
        await chosen_sandbox(Settings(sandbox=backend, image="nosuch:1", yes=True), print)


async def test_python_imports_from_the_trees_packages_before_installed_ones(
    workspace_of: WorkspaceOf, tmp_path: Path
) -> None:
    workspace = workspace_of(
        {
            "pyproject.toml": "[tool.uv.workspace]\nmembers = ['packages/*']\n",
            "packages/core/pyproject.toml": "[project]\nname = 'core'\n",
            "packages/core/src/core.py": "",
        }
    )
    settings = Settings(environment="off")
    spec = await with_environment(SandboxSpec("here"), "here", workspace, settings, tmp_path, lambda _: None)
    assert spec.python_folders == ("packages/core/src",)
    async with Sandbox(MemoryMachine(no_programs), workspace, python_folders=spec.python_folders) as sandbox:
        paths = sandbox.environment["PYTHONPATH"].split(":")
        assert paths[:2] == [sandbox.folders.work_tree, f"{sandbox.folders.work_tree}/packages/core/src"]

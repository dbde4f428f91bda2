"""Choose the sandbox that the settings request, with the repository's own environment if an engine can build it.

A Dockerfile's instructions run in containers, and strangers wrote them: the settings and the user decide whether one is built.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from m3agent.agent.repo.host_git import read_regular
from m3agent.agent.repo.repository import Repository, last_tag
from m3agent.agent.settings.settings import Settings
from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.backends.factory import Backend, SandboxSpec, choose_backend, image_conflict, parse_bytes
from m3agent.sandbox.backends.here_machine import in_container, wanted_beside
from m3agent.sandbox.backends.image import REPOSITORY
from m3agent.sandbox.backends.kinds import IMAGELESS, WITHOUT_ISOLATION
from m3agent.sandbox.backends.sandbox import SandboxLimits
from m3agent.sandbox.declared.container import Container, MayBuild, read_containers
from m3agent.sandbox.declared.declared import folders_before_installed, read_declared
from m3agent.sandbox.declared.preparation import SuiteNeeds
from m3agent.sandbox.declared.types import Files, ScanResult
from m3agent.sandbox.declared.variables import read_variables
from m3agent.sandbox.errors import EnvironmentBuildFailed
from m3agent.sandbox.images.environment import files_of, find_environment, image_of_tree
from m3agent.sandbox.images.kept import touch
from m3agent.sandbox.images.toolchains import missing_on_host
from m3agent.sandbox.network.allow_list import describe
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.runners import suites, unsupported
from m3agent.tools.runners.base import MOST_TEXT, Tree
from m3agent.tools.runners.command import variables_of
from m3agent.tools.runners.suites import tree_files
from m3agent.tools.runners.variables import fault_of
from m3agent.util.errors import UsageError
from m3agent.util.plain_file import read_inside
from m3agent.util.trust import Trust

NOT_ISOLATED = (
    "no isolation: commands run in this container with your rights and its network; the verdict says so"
)


async def chosen_sandbox(settings: Settings, say: Callable[[str], None]) -> tuple[SandboxSpec, Backend]:
    """Return the sandbox that the settings request, and its backend on this machine.

    Raises:
        EngineUnavailable: This machine has no backend.
        UsageError: The sandbox cannot start from the image, or commands may not run without isolation.
    """
    limits = SandboxLimits(parse_bytes(settings.memory), settings.cpus)
    hosts = settings.allow_net.hosts if settings.allow_net else ()
    if hosts:
        say(describe(hosts))
    spec = SandboxSpec(settings.sandbox, settings.image, limits, hosts)
    if conflict := image_conflict(spec.backend, spec.image):
        raise UsageError(conflict)
    if spec.backend == "here":
        _check_here(settings)
        say(NOT_ISOLATED)
    return spec, await choose_backend(spec, say)


async def sandbox_for(
    repository: Repository, settings: Settings, say: Callable[[str], None]
) -> tuple[SandboxSpec, Backend]:
    """Return the sandbox for a repository, after checking that it can start here. Otherwise like `chosen_sandbox`.

    Raises EngineUnavailable: There is no engine. Without this check, model requests could be paid for in vain.
    """
    spec, backend = await chosen_sandbox(settings, say)
    if backend == WITHOUT_ISOLATION:
        ignored = await asyncio.to_thread(repository.ignored_files)
        beside = tuple(path for path in ignored if wanted_beside(path))
        spec = replace(spec, source=repository.root, ignored=beside)
    if spec.backend == "docker":
        (await asyncio.to_thread(connect)).close()
    return spec, backend


def _check_here(settings: Settings) -> None:
    """Raise UsageError if commands may not run without isolation."""
    if settings.allow_net:
        raise UsageError("--sandbox here has the network of this container: leave out --allow-net.")
    if not settings.yes and not in_container():
        raise UsageError(
            "--sandbox here would run the model's commands on this machine with all your rights, because this is no "
            "container: use --sandbox docker, or add --yes."
        )


def _variables(workspace: Workspace, tree: Tree) -> dict[str, str]:
    """Return the variables of the tests: those of the repository's own test runs, then those that it declares to m3agent."""
    own = read_variables(files_of(workspace)).items()
    return {name: value for name, value in own if not fault_of({name: value})} | variables_of(tree)


async def environment_of(
    repository: Repository,
    spec: SandboxSpec,
    backend: Backend,
    workspace: Workspace,
    settings: Settings,
    state: Path,
    say: Callable[[str], None],
    *,
    build: bool = True,
) -> SandboxSpec:
    """Return the sandbox to start, with the environment of a repository whose base tree `workspace` has.

    Otherwise like `with_environment`.
    """
    tree = await asyncio.to_thread(tree_files, workspace.store, workspace.base)
    if declared := await asyncio.to_thread(_variables, workspace, tree):
        say(f"variables of the tests, as the repository declares them: {', '.join(declared)}")
        spec = replace(spec, variables=tuple(declared.items()))
    tag = await asyncio.to_thread(last_tag, repository)
    may = may_build(repository, settings, state, say)
    return await with_environment(spec, backend, workspace, settings, state, say, tag, may, build=build)


async def with_environment(
    spec: SandboxSpec,
    backend: Backend,
    workspace: Workspace,
    settings: Settings,
    state: Path,
    say: Callable[[str], None],
    tag: str | None = None,
    may_build: MayBuild = lambda *_: False,
    *,
    build: bool = True,
) -> SandboxSpec:
    """Return the sandbox to start, with the image of the repository's environment. Building it may take minutes.

    If the environment cannot be built, `say` receives a note and the bare image is used. An image that the user named
    is never replaced. `tag` is the repository's last tag; `may_build` decides about the repository's Dockerfile.

    Raises:
        EngineUnavailable, ImageMissing: There is no engine, or no image to start from.
        EnvironmentBuildFailed: The image is not here, and `build` is false.
    """
    folders = await asyncio.to_thread(lambda: folders_before_installed(files_of(workspace)))
    spec = replace(spec, python_folders=folders)
    if spec.image is not None:
        if spec.image.startswith(f"{REPOSITORY}:"):
            touch(state, spec.image)
            return _for_trees(spec, workspace, state, say)
        return spec
    if settings.environment == "off":
        return spec
    suites = await asyncio.to_thread(suites_of, workspace)
    if backend in IMAGELESS:
        declared = await asyncio.to_thread(lambda: read_declared(files_of(workspace)))
        if sentence := _without_images(backend, suites, declares=not declared.empty):
            say(sentence)
        return spec
    try:
        image = await find_environment(
            workspace, state, say, tag=tag, may_build=may_build, suites=suites, build=build
        )
    except EnvironmentBuildFailed as error:
        if not build:
            raise
        say(f"{error}; continuing without the repository's dependencies")
        return spec
    return spec if image is None else _for_trees(replace(spec, image=image), workspace, state, say)


def _without_images(backend: Backend, suites: Sequence[SuiteNeeds], *, declares: bool) -> str:
    """Return what a sandbox without an image lacks, in one sentence; empty if it lacks nothing.

    Args:
        declares: Whether the repository declares dependencies for Python.
    """
    missing = missing_on_host({name for suite in suites for name in suite.preparation.system_packages})
    lacks = f"{', '.join(missing)}, which the tests need" if missing else ""
    if declares or any(suite.preparation.commands for suite in suites):
        lacks = " and ".join(filter(None, ("the repository's dependencies", lacks)))
        return f"{backend} has no images: only this machine's packages are available, not {lacks}"
    return f"{backend} has no images, and this machine's /usr lacks {lacks}" if lacks else ""


def _for_trees(spec: SandboxSpec, base: Workspace, state: Path, say: Callable[[str], None]) -> SandboxSpec:
    """Return the sandbox with the project built anew for each tree that changes what its build reads."""

    async def image_of(workspace: Workspace, image: str) -> str:
        return image if workspace.base == base.base else await image_of_tree(workspace, image, state, say)

    return replace(spec, image_of=image_of)


TRUSTED = "dockerfiles-trusted"
"""A folder in the state folder, for `Trust`."""
HOW = "give --dockerfile build, or see the file, then `m3agent sandbox trust`"


def may_build(
    repository: Repository, settings: Settings, state: Path, say: Callable[[str], None]
) -> MayBuild:
    """Return the decision about each Dockerfile of the repository; `say` tells of those that are not built."""

    def decide(container: Container, text: str) -> bool:
        if settings.dockerfile == "build" or trust_in(repository, container, text, state).given:
            return True
        if settings.dockerfile == "ask":
            say(
                f"{container.dockerfile} is not built, only the image and the packages that it names are used: {HOW}"
            )
        return False

    return decide


def trust_in(repository: Repository, container: Container, text: str, state: Path) -> Trust:
    """Return the user's decision about a Dockerfile of this repository with this text."""
    how = json.dumps(
        [container.dockerfile, container.context, container.target, container.args], sort_keys=True
    )
    where = repository.root or repository.git_dir
    return Trust(state / TRUSTED, str(where.resolve()), how, text)


def dockerfiles(repository: Repository) -> Iterator[tuple[Container, str]]:
    """Yield the Dockerfiles in the work tree that a build may use, best first, with their texts."""
    root = repository.root
    if root is None:
        return
    plain = [path for path in repository.list_files() if not (root / path).is_symlink()]
    files = Files(plain, lambda path: read_regular(str(root / path), MOST_TEXT + 1) or b"")
    for container in read_containers(files, ScanResult()):
        text = files.text(str(container.dockerfile), ScanResult()) if container.dockerfile else None
        if text is not None:
            yield container, text


NO_TESTS = (
    "no tests were found here, so nothing can verify a patch: add a test that shows the fault, or name the command that runs "
    "your tests in .m3agent.toml, under [tests]"
)
"""Said about a repository in which no test suite is found."""


NAME_COMMAND = (
    "m3agent has no runner for them; name the command that runs them in .m3agent.toml, under [tests]"
)
"""What to do about tests that are recognised and cannot run."""


def without_suites(workspace: Workspace) -> str:
    """Return what is said about a tree in which no test suite is found."""
    return _without_suites(suites.tree_files(workspace.store, workspace.base))


def without_suites_on_disk(repository: Repository) -> str:
    """Return what is said about a work tree in which no test suite is found."""
    return NO_TESTS if repository.root is None else _without_suites(_on_disk(repository, repository.root))


def _without_suites(tree: Tree) -> str:
    named = unsupported.described(tree)
    return f"the tests of {named} cannot run here: {NAME_COMMAND}" if named else NO_TESTS


def suites_of(workspace: Workspace) -> tuple[SuiteNeeds, ...]:
    """Return the suites of the tree that a workspace starts from."""
    return _needs(suites.tree_files(workspace.store, workspace.base))


def suites_on_disk(repository: Repository) -> tuple[SuiteNeeds, ...]:
    """Return the suites of a repository's work tree; none for a bare repository."""
    return () if repository.root is None else _needs(_on_disk(repository, repository.root))


def _on_disk(repository: Repository, root: Path) -> Tree:
    def read(path: str) -> bytes:
        try:
            return read_inside(str(root), str(root / path), MOST_TEXT)
        except OSError:
            return b""

    return Tree(repository.list_files(), read)


def _needs(tree: Tree) -> tuple[SuiteNeeds, ...]:
    """Return what the suites of a tree need. The environment of suites that a command replaces is still its own."""
    found = suites.without_left_out(tree)
    running = suites.running_among(found)
    needs = suites.needs_of(tree, found)
    return tuple(
        need
        if suite in running
        else replace(need, evidence=f"{need.evidence}; {running[0].evidence} runs instead")
        for suite, need in zip(found, needs, strict=True)
    )

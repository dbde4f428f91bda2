"""Check what `m3agent fix` needs on this machine, and say how to fix each problem."""

import asyncio
import contextlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from m3agent.agent.endpoint.choice import EmbeddedEngine, EndpointChoice, choose_endpoint
from m3agent.agent.repo.repository import MIN_GIT, Repository, git_version, open_repository
from m3agent.agent.repo.snapshot import sizes_of, submodules_with_room, too_large
from m3agent.agent.settings.settings import Settings
from m3agent.cli.common import say, state_folder
from m3agent.sandbox.backends.engine import (
    DOCKER_SOCKET,
    ContainerEngine,
    find_engine,
    is_podman,
    named_engine,
)
from m3agent.sandbox.backends.factory import Backend, allowed_backends, image_conflict
from m3agent.sandbox.backends.here_machine import in_container
from m3agent.sandbox.backends.kinds import WITHOUT_ISOLATION
from m3agent.sandbox.declared.preparation import SuiteNeeds
from m3agent.sandbox.errors import EngineUnavailable, EnvironmentBuildFailed, SandboxError
from m3agent.sandbox.store.workspace import TOO_LARGE, about_submodules
from m3agent.serving.check.check import Check
from m3agent.util.counted import first_of
from m3agent.util.errors import EnvironmentFault, M3AgentError

ENGINE_TIMEOUT = 10
"""Seconds that a container engine, a GPU driver or a server may take to answer."""

MIN_FREE_BYTES = 1024**3
"""The least free disk space, in bytes. With less, a session (its log, its objects, an image) may not fit."""

MOST_FILES = 20_000
"""Most files of a repository whose tests are imported: more take longer than a person waits for checks."""


async def diagnose(settings: Settings, repo_dir: Path) -> list[Check]:
    """Run all checks, in at most about `ENGINE_TIMEOUT` seconds, and import the tests in a sandbox, if one is ready.

    The only change it makes is to create the folder for sessions.
    """
    choice = await asyncio.to_thread(_choice, settings)
    embedded = isinstance(choice, EmbeddedEngine)
    engine, bubblewrap, gpu, endpoint, ours = await asyncio.gather(
        asyncio.to_thread(_engine, settings),
        asyncio.to_thread(_bubblewrap),
        asyncio.to_thread(_gpu, embedded=embedded),
        _endpoint(settings, choice),
        asyncio.to_thread(
            lambda: [Check("Python", True, platform.python_version()), _git(), _repository(repo_dir)]
        ),
    )
    suites = await _suites(settings, repo_dir, engine[0].ok is True, embedded=embedded)
    return [*ours, *suites, *_either(settings, engine, bubblewrap), gpu, endpoint, *_state()]


def exit_code(checks: Sequence[Check]) -> int:
    """Return the exit status: 0 if `m3agent fix` could run here, else 3."""
    return EnvironmentFault.exit_code if any(check.ok is False for check in checks) else 0


def _either(settings: Settings, engine: list[Check], bubblewrap: Check) -> list[Check]:
    """Return the checks of both backends.

    A failed check of a backend that a fix does not need is not an error.
    """
    found: dict[Backend, list[Check]] = {"docker": engine, "bwrap": [bubblewrap]}
    if settings.sandbox == WITHOUT_ISOLATION:
        found[WITHOUT_ISOLATION] = [_here()]
    allowed = allowed_backends(settings.sandbox, settings.image)
    used = next((backend for backend in allowed if found[backend][0].ok), None)
    needed = allowed if used is None else (used,)
    conflict = image_conflict(settings.sandbox, settings.image)
    refusal = [Check("sandbox", False, conflict)] if conflict else []
    return refusal + [
        check if check.ok or backend in needed else replace(check, ok=None)
        for backend, checks in found.items()
        for check in checks
    ]


def _git() -> Check:
    version = git_version()
    fix = "apt-get install git"
    if version is None:
        return Check("git", False, "not installed", fix)
    found, needed = (".".join(map(str, numbers)) for numbers in (version, MIN_GIT))
    if version < MIN_GIT:
        return Check("git", False, f"{found} is older than {needed}", f"install git {needed} or newer")
    return Check("git", True, found)


def _repository(repo_dir: Path) -> Check:
    try:
        repository = open_repository(repo_dir)
        root = repository.root
        large = [] if root is None else too_large(sizes_of(root, repository.list_files()))
        submodules, filled = repository.submodules(), submodules_with_room(repository)
    except M3AgentError as error:
        return Check("repository", False, str(error))
    where = f"{repository.root or repository.git_dir} at {repository.head[:12]}"
    if repository.bare or repository.shallow:
        where += " (bare)" if repository.bare else " (shallow)"
    if submodules:
        where += f"; {about_submodules(submodules, filled)}"
    if large:
        detail = f"{where}; not copied into sandboxes, because {TOO_LARGE}: {first_of(large, 5)}"
        return Check("repository", None, detail, "leave them out with .gitignore, or tell git to forget them")
    return Check("repository", True, where)


async def _suites(settings: Settings, repo_dir: Path, engine: bool, *, embedded: bool) -> list[Check]:
    """Check the toolchain of each test suite of the repository, where a fix would run the tests."""
    from m3agent.agent.fix.sandbox_setup import suites_on_disk
    from m3agent.sandbox.backends.image import DEFAULT_IMAGE
    from m3agent.tools.runners.python import PYTEST

    try:
        repository = open_repository(repo_dir)
        suites = await asyncio.to_thread(suites_on_disk, repository)
    except M3AgentError:
        return []  # `_repository` reports it
    engine = engine and "docker" in allowed_backends(settings.sandbox, settings.image)
    if not suites and not repository.bare:
        return [await asyncio.to_thread(_no_suites, repository)]
    checks = []
    images = _images_here(settings) if engine else set[str]()
    in_image = engine and (settings.image is not None or DEFAULT_IMAGE in images)
    for suite in suites:
        packages = await _missing(suite, settings, in_image=in_image)
        check = _toolchain(suite, packages, settings.image, engine=engine)
        if check.ok and suite.name.startswith(f"{PYTEST}:") and (images or not engine):
            check = await _imported(check, settings, repository)
        checks.append(check)
    return checks + _parsers({suite.name.partition(":")[0] for suite in suites} if embedded else ())


def _no_suites(repository: Repository) -> Check:
    """Return the check of a repository without a test suite."""
    from m3agent.agent.fix.sandbox_setup import without_suites_on_disk

    detail, _, remedy = without_suites_on_disk(repository).partition(": ")
    return Check("tests", None, detail, remedy)


async def _missing(suite: SuiteNeeds, settings: Settings, *, in_image: bool) -> Sequence[str]:
    """Return the packages of the system that a suite lacks, in the image if that can tell, otherwise here."""
    from m3agent.sandbox.images.environment import missing_packages
    from m3agent.sandbox.images.toolchains import missing_on_host

    if in_image:
        with contextlib.suppress(SandboxError, M3AgentError):
            lacking = await missing_packages(settings.image, [suite], state_folder())
            return lacking.get(suite.name, ())
    return missing_on_host(suite.preparation.system_packages)


async def _imported(check: Check, settings: Settings, repository: Repository) -> Check:
    """Return the check of Python's tests after importing all of them, where a fix would run them."""
    from m3agent.agent.fix.collection import collected_here
    from m3agent.agent.verify.rules import MEND

    # without isolation, a fix runs the repository's code in this container, and a check must not
    if settings.sandbox == WITHOUT_ISOLATION or len(repository.list_files()) > MOST_FILES:
        return check
    say("importing the tests in a sandbox")
    try:
        found = await collected_here(repository, settings, state_folder())
    except EnvironmentBuildFailed:
        build = "m3agent sandbox build, or the first fix, builds it"
        return replace(
            check, detail=f"{check.detail}; not tried, because its environment is not built yet: {build}"
        )
    except (SandboxError, M3AgentError):
        return check  # the checks of sandboxes report it
    if found is None:
        return replace(
            check, detail=f"{check.detail}; whether all can be imported takes too long to wait for"
        )
    lines, advice = found.sentences(), found.advice(settings.sandbox or "docker")
    ok = check.ok if not lines else None if found.errors else False
    told = "; ".join([*lines, *found.skips()])
    return replace(check, ok=ok, detail=f"{check.detail}: {told}", fix=advice or MEND) if told else check


def _toolchain(suite: SuiteNeeds, packages: Sequence[str], image: str | None, *, engine: bool) -> Check:
    """Return the check of a suite whose tests lack these packages in the image, or on this machine."""
    from m3agent.sandbox.images.toolchains import UNPACKAGED

    missing = ", ".join(packages)
    evidence = f" ({suite.evidence})" if suite.evidence else ""
    detail, fix = f"{suite.language}{evidence}", ""
    if missing and image:
        detail, fix = f"{detail}: {image} lacks {missing}", "add it to that image"
    elif missing and not engine:
        detail += f": {missing} is missing"
        fix = f"apt-get install {' '.join(packages)}, as root"
    elif missing and not UNPACKAGED.isdisjoint(packages):
        detail += f": m3agent cannot install {missing}, so these tests cannot run here"
        fix = "name an image that has it with --image"
    elif missing:
        detail += f": {missing} is missing, and the first fix installs it into an image"
    return Check(f"tests {suite.label}", None if missing else True, detail, fix)


def _parsers(runners: Collection[str]) -> list[Check]:
    """Check what the embedded engine needs to change code whose tests run with these runners."""
    from m3agent.serving.embedded.languages import unchangeable

    languages = unchangeable(runners)
    if not languages:
        return []
    detail = f"not installed: without it, the embedded engine cannot change {' and '.join(languages)}"
    return [Check("extra outlines", None, detail, "make install EXTRAS=outlines (docs/install.md)")]


def _images_here(settings: Settings) -> set[str]:
    """Return those of the images from which a sandbox may start that the engine has."""
    from m3agent.sandbox.backends.engine import connect
    from m3agent.sandbox.backends.image import DEFAULT_IMAGE, SKELETON, local_image

    names = filter(None, (settings.image, DEFAULT_IMAGE, SKELETON))
    with contextlib.closing(connect(ENGINE_TIMEOUT)) as api:
        return {name for name in names if local_image(api, name) is not None}


def _engine(settings: Settings) -> list[Check]:
    """Check the container engine that a fix would use, and the image that a sandbox would start from."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    unknown = Check("base image", False, "unknown without an engine")
    denied = False
    try:
        named = named_engine()
    except EngineUnavailable as error:
        detail, _, fix = str(error).partition(": ")
        return [Check("Docker", False, detail, fix), unknown]
    try:
        engine = find_engine(ENGINE_TIMEOUT)
        with contextlib.closing(engine.client) as api:
            return [Check("Docker", True, _described(engine)), _image(api, settings)]
    except EngineUnavailable as error:
        denied = error.permission_denied
    except (DockerException, RequestException):
        pass  # the engine stopped after its first response
    return [Check("Docker", False, *_engine_fault(named.named_by if named else "", denied=denied)), unknown]


def _described(engine: ContainerEngine) -> str:
    """Return the engine's name, version and address."""
    version = engine.client.version()
    name = f"Podman {version['Version']}" if is_podman(version) else str(version["Version"])
    return f"{name} at {'the local socket' if engine.address == DOCKER_SOCKET else engine.address}"


def _engine_fault(named_by: str, *, denied: bool) -> tuple[str, str]:
    """Return what is wrong with the container engine, and how to fix it."""
    if denied:
        fix = "usermod -aG docker $USER as root, then log in again"
        return f"no permission to use the engine at {named_by or 'the local socket'}", fix
    if named_by:
        return (
            f"no engine answers at {named_by}",
            "start that engine, or unset DOCKER_HOST or the Docker context",
        )
    if sys.platform != "linux":
        return "no engine answers at the local socket", "start Docker Desktop, Colima, OrbStack or Podman"
    if shutil.which("dockerd"):
        return "no engine answers at the local socket", "start it: systemctl start docker, or dockerd as root"
    return "no engine is installed", "apt-get install docker.io iptables, as root"


def _image(api: Any, settings: Settings) -> Check:
    from m3agent.sandbox.backends.image import DEFAULT_IMAGE, SKELETON, host_python_usable, local_image

    for name in [settings.image] if settings.image else [DEFAULT_IMAGE, SKELETON]:
        if local_image(api, name) is not None:
            return Check("base image", True, name)
    if settings.image:
        detail, fix = f"{settings.image} is not on this machine", f"docker pull {settings.image}, or build it"
    elif host_python_usable():
        made = f"made at first use: {DEFAULT_IMAGE}, or a skeleton image over this host's /usr"
        return Check("base image", True, made)
    else:
        detail = f"neither {DEFAULT_IMAGE} nor a python3 under /usr is on this machine"
        fix = f"docker pull {DEFAULT_IMAGE}, or apt-get install python3"
    return Check("base image", False, detail, fix)


def _bubblewrap() -> Check:
    from m3agent.sandbox.backends.bwrap_machine import barred_by, command
    from m3agent.sandbox.backends.sandbox import SandboxLimits

    name = "bubblewrap"
    if sys.platform != "linux":
        return Check(name, False, "needs Linux", "use a Docker engine")
    if shutil.which("bwrap") is None:
        return Check(name, False, "not installed", "apt-get install bubblewrap")
    try:
        argv = command(SandboxLimits())
    except EngineUnavailable as error:
        return Check(name, False, str(error), "apt-get install python3 util-linux")
    # The same sandbox as in a fix, but it runs /bin/true instead of the supervisor.
    trial = [*argv[: argv.index("--") + 1], "/bin/true"]
    fault = _run(trial)
    if fault is None:
        return Check(name, True, "works here")
    if setting := barred_by():
        key, _, value = setting.partition("=")
        allowed = {"0": "1", "1": "0"}[value] if key != "user.max_user_namespaces" else "10000"
        detail = f"the kernel forbids user namespaces ({setting})"
        return Check(name, False, detail, f"sysctl -w {key}={allowed}, as root")
    return Check(name, False, f"cannot start: {fault}", "use a Docker engine, or allow user namespaces")


def _here() -> Check:
    """Check the sandbox without isolation, which the user has chosen."""
    if in_container():
        return Check("no isolation", True, "commands run in this container with your rights")
    return Check("no isolation", None, "this is no container: --sandbox here needs --yes")


def _run(argv: Sequence[str]) -> str | None:
    """Run a program. Return None if it succeeds, else the last line of its standard error."""
    try:
        done = subprocess.run(argv, capture_output=True, check=False, timeout=ENGINE_TIMEOUT, cwd="/")
    except OSError as error:
        return error.strerror or type(error).__name__
    except subprocess.TimeoutExpired:
        return f"no answer within {ENGINE_TIMEOUT} s"
    lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1] if done.returncode else None


def _gpu(*, embedded: bool) -> Check:
    """Check the GPUs of this machine."""
    from m3agent.serving.plan.detect import DetectionError, detect

    try:
        found = detect(os.environ, ENGINE_TIMEOUT)
    except DetectionError as error:
        none = "no GPU: the embedded engine is used" if embedded else "no GPU"
        return Check("GPU", None, none if error.none else str(error))
    return Check("GPU", True, "; ".join([str(found.fleet), *found.notes]))


def _choice(settings: Settings) -> EndpointChoice | Check:
    """Return what a fix would talk to, or a check that says why no choice is possible."""
    try:
        return choose_endpoint(settings, state_folder())
    except EnvironmentFault:  # `_state` reports it
        return Check("endpoint", None, "unknown without a folder for sessions")
    except M3AgentError as error:
        return Check("endpoint", False, str(error))


async def _endpoint(settings: Settings, choice: EndpointChoice | Check) -> Check:
    """Probe the server that a fix would talk to."""
    if isinstance(choice, Check):
        return choice
    if isinstance(choice, EmbeddedEngine):
        why = "none set" if settings.engine is None else "engine is set"
        engine = "a search for small repairs, no language model; --endpoint URL names a server"
        return Check("endpoint", None, f"{why}: the embedded engine is used, {engine}")
    from m3agent.serving.check.draft_check import accepted_length
    from m3agent.serving.check.engine_state import engine_state
    from m3agent.serving.client.endpoint import probe
    from m3agent.serving.errors import ModelServerError

    try:
        found = await probe(choice.url, api_key=choice.key, model=settings.model, timeout=ENGINE_TIMEOUT)
    except EnvironmentFault as error:  # of a proxy, or of certificates
        return Check("endpoint", False, str(error))
    except ModelServerError as error:
        mend = "start the server, or correct the endpoint or the key"
        if choice.source == "running":
            mend = "see `m3agent serve logs`, or name another server with --endpoint"
        return Check("endpoint", False, str(error), choice.notice or mend)
    told = (
        found.flavour if found.max_model_len is None else f"{found.flavour}, {found.max_model_len:,} tokens"
    )
    if found.flavour == "vllm":
        state = await engine_state(found, api_key=choice.key)
        if state.drafts is not None:
            length = accepted_length(state.drafts, state.accepted)
            told += "; drafts tokens" + ("" if length is None else f", {length:.2f} a step")
    if choice.record is None:
        return Check("endpoint", True, f"{found.model} at {found.url} ({told})")
    where = f"the m3agent server at {choice.url} ({choice.record.phase.value})"
    return Check("endpoint", True, f"none set: {where}, {found.model} ({told})")


def _state() -> list[Check]:
    """Check the folder for sessions, and the room on its disk."""
    try:
        path = state_folder()
    except EnvironmentFault as error:
        return [
            Check("sessions", False, str(error), "set M3AGENT_STATE to a folder that can be written"),
            Check("disk", None, "unknown without a folder for sessions"),
        ]
    free = shutil.disk_usage(path).free
    is_enough = free >= MIN_FREE_BYTES
    room = "" if is_enough else f"make room: {MIN_FREE_BYTES // 1024**3} GiB are needed"
    disk = Check("disk", is_enough, f"{free / 1024**3:.1f} GiB free at {path}", room)
    return [Check("sessions", True, str(path)), disk]

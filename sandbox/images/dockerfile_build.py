"""Find the image of the repository's own devcontainer.json or Dockerfile: build it from what a stranger wrote, or pull what it
names.

The engine's own builder would run its commands as root with the engine's default capabilities, on the engine's bridge and
with any number of processes, and it would fetch `ADD http://...` itself, from the host's own network. So every RUN runs in
a container with the limits of all builds (`image_build`). The builder gets only what copies files and sets variables.

An image is used only if it can run a sandbox (it has a python3).
"""

from __future__ import annotations

import contextlib
import io
import posixpath
import socket
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from m3agent.sandbox.backends.docker_machine import LABEL
from m3agent.sandbox.backends.image import REPOSITORY, Image, local_image, pull
from m3agent.sandbox.declared.container import Container, MayBuild, read_containers
from m3agent.sandbox.declared.dockerfile import (
    Instruction,
    Named,
    Stage,
    as_list,
    declared_argument,
    read_instructions,
    read_named,
    read_stages,
)
from m3agent.sandbox.declared.types import Files, ScanResult
from m3agent.sandbox.errors import EnvironmentBuildFailed, ImageMissing, SandboxError
from m3agent.sandbox.images import image_build
from m3agent.sandbox.images.image_build import (
    INSTALLING,
    MEMORY,
    MOST_DISK,
    Build,
    add_entry,
    build_image,
    engine_failures,
    packed,
)
from m3agent.sandbox.images.kept import touch
from m3agent.sandbox.images.layers import Builder, container_of, digest
from m3agent.sandbox.network.allow_list import may_reach, split_authority
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import LARGEST_FILE, Workspace

DOCKERFILE = ".m3agent-dockerfile"
"""Name of the Dockerfile in the files for the engine's builder."""
SCRATCH = "scratch"
MOST_CONTEXT = 1 << 30  # most bytes of files that the builder gets
MOST_PATTERNS = 1 << 20  # most bytes of a .dockerignore that is read
SHELL = ("/bin/sh", "-c")
FOR_BUILDER = frozenset({"ADD", "COPY", "ENV", "USER", "WORKDIR"})
"""Instructions that the engine's builder executes. None of them runs a program of the image."""
NOT_NEEDED = frozenset(
    ["CMD", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "ONBUILD", "STOPSIGNAL", "VOLUME"]
)
"""Instructions about how containers of the image run; a sandbox decides that itself."""
NOTHING = Named(None, (), ())
# Files whose content determines what is installed. Changes of other files need no new image: the sandbox replaces the
# image's copies of them by the files of the work tree.
DECIDING = (
    "requirements",
    "pyproject.toml",
    "setup.py",
    "setup.cfg",
    ".lock",
    "package.json",
    "environment.y",
)
RECIPE = 2  # part of every hash; increase it if the same files must give another image
NO_PYTHON = "its image has no python3, which every sandbox needs"


def own_image(
    builder: Builder, workspace: Workspace, files: Files, may_build: MayBuild
) -> tuple[str | None, Named]:
    """Return the repository's own image; without one, what the first Dockerfile names that may not be built. Blocking.

    Raises:
        SandboxError: The search was stopped.
    """
    found, named = ScanResult(), NOTHING
    for container in read_containers(files, found):
        while found.notices:
            builder.say(found.notices.pop(0))
        try:
            text = _text(files, container)
            if text is None or may_build(container, text):
                return _built(builder, container, workspace), NOTHING
            named = named if named != NOTHING else _named(builder, container, text)
        except SandboxError as error:
            if builder.stop.is_set():
                raise
            builder.say(f"{container.source} is not used: {error}")
    for notice in found.notices:
        builder.say(notice)
    return None, named


def _text(files: Files, container: Container) -> str | None:
    """Return the text of the Dockerfile; None if the image is not built."""
    if container.dockerfile is None:
        return None
    text = files.text(container.dockerfile)
    if text is None:
        raise EnvironmentBuildFailed(f"{container.dockerfile} is too large, or is no text")
    return text


def _named(builder: Builder, container: Container, text: str) -> Named:
    """Return what a Dockerfile names; without its image if that cannot run a sandbox."""
    try:
        named = read_named(text, container.target, container.args)
    except ValueError as error:
        builder.say(f"nothing is read from {container.dockerfile}: {error}")
        return NOTHING
    if named.image is not None:
        try:
            _pull_usable(builder, named.image)
        except ImageMissing as error:
            builder.say(f"the image {named.image} of {container.dockerfile} is not used: {error}")
            return replace(named, image=None)
    return named


@engine_failures("it")
def _built(builder: Builder, container: Container, workspace: Workspace) -> str:
    """Return the name of the image; pull or build the image if it is not here. Blocking; takes minutes.

    Raises:
        EnvironmentBuildFailed: The build failed.
        ImageMissing: No registry has the image, or the image has no python3.
    """
    if container.image is not None:
        _pull_usable(builder, container.image)
        return container.image
    tag = f"{REPOSITORY}:{_key(container, workspace)}"
    # remembers an image without python3, so that it is not built again at every start
    unfit = builder.log(tag).with_suffix(".unfit")
    with builder.lock(tag):
        if unfit.exists():
            raise ImageMissing(NO_PYTHON)
        if local_image(builder.api, tag) is None:
            builder.go_on()
            builder.say(f"building the image of {container.source} once (this may take minutes)")

            def check(image: str) -> None:
                try:
                    _check_python(builder.api, image)
                except ImageMissing:
                    unfit.touch()
                    raise

            build_dockerfile(builder, container, workspace, tag, check)
    touch(builder.state, tag, builder.api)
    return tag


def _key(container: Container, workspace: Workspace) -> str:
    entries = workspace.entries(workspace.base)
    deciding = sorted(
        (path, entry.sha)
        for path, entry in entries.items()
        if path in {container.dockerfile, f"{container.dockerfile}.dockerignore", ".dockerignore"}
        or any(word in posixpath.basename(path) for word in DECIDING)
    )
    made_from = [RECIPE, container.dockerfile, container.context, container.target, container.args, deciding]
    return digest(made_from)


@engine_failures("it")
def _pull_usable(builder: Builder, image: str) -> None:
    """Pull an image that a repository names if it is not here. Blocking.

    Raises:
        ImageMissing: It cannot be pulled, or it has no python3.
    """
    find_named(builder, image)
    _check_python(builder.api, image)


def _check_python(api: Any, image: str) -> None:
    """Raise ImageMissing if the image's python3 does not run."""
    from docker.errors import APIError

    plain = Image(image, env={"PATH": "/usr/local/bin:/usr/bin:/bin"})
    command, silent = ("python3", "-I", "-S", "-c", ""), {"Type": "none", "Config": {}}
    with container_of(api, plain, command, log_config=silent) as container:
        works = False
        with contextlib.suppress(APIError):  # it does not start
            api.start(container)
            works = api.wait(container, timeout=60)["StatusCode"] == 0
    if not works:
        raise ImageMissing(NO_PYTHON)


def build_dockerfile(
    builder: Builder,
    container: Container,
    workspace: Workspace,
    tag: str,
    check: Callable[[str], None] = lambda _: None,
) -> None:
    """Build the image of a Dockerfile and tag it if `check` accepts it. Blocking; takes minutes.

    Args:
        tag: The image's name. Whoever finds an image with this name may use it.
        check: Gets the id of the image, before the image has a name, and raises an error if it is unfit.

    Raises:
        EnvironmentBuildFailed: A step failed, is not supported, or took too long or too much disk.
        ImageMissing: No registry has an image that it names, or `check` raised it.
    """
    entry = workspace.entries(workspace.base).get(container.dockerfile or "")
    if entry is None:
        raise EnvironmentBuildFailed("it cannot be built: there is no Dockerfile")
    text = workspace.store.get_blob(entry.sha).decode(errors="replace")
    try:
        stages = read_stages(read_instructions(text), container.target, container.args)
    except ValueError as error:
        raise EnvironmentBuildFailed(f"it cannot be built: {error}") from None
    _Dockerfile(builder, container, workspace, builder.log(tag)).run(stages, tag, check)


def _ignored(store: TreeStore, files: Sequence[str]) -> Any:
    """Return a matcher with the patterns of these .dockerignore files."""
    from docker.utils.build import PatternMatcher

    text = b"".join(filter(None, store.each_blob_up_to(files, MOST_PATTERNS))).decode(errors="replace")
    lines = (line.strip() for line in text.splitlines())
    return PatternMatcher([line for line in lines if line and not line.startswith("#")])


def _context(workspace: Workspace, container: Container) -> IO[bytes]:
    """Return the builder's files as a tar: those below the context, except those that .dockerignore excludes."""
    entries, store = workspace.entries(workspace.base), workspace.store
    prefix = "" if container.context == "." else f"{container.context}/"
    places = (f"{container.dockerfile}.dockerignore", f"{prefix}.dockerignore")
    ignore_files = [entries[path].sha for path in places if path in entries]
    matcher = _ignored(store, ignore_files[:1])
    chosen = {
        path[len(prefix) :]: entry
        for path, entry in entries.items()
        if path.startswith(prefix) and not matcher.matches(path[len(prefix) :])
    }
    sizes = store.sizes([entry.sha for entry in chosen.values()])
    if sum(size for size in sizes if size <= LARGEST_FILE) > MOST_CONTEXT:
        raise EnvironmentBuildFailed(f"its context is larger than {MOST_CONTEXT >> 30} GiB")
    return packed(store, chosen)


def find_named(builder: Builder, name: str) -> str:
    """Return the id of an image that a repository names; pull it if it is not here.

    The engine pulls from the host's own network. So it is not asked to if the registry is this machine or in a private
    network.

    Raises:
        ImageMissing: No registry has it, or its registry is not a public host.
    """
    image = local_image(builder.api, name)
    if image is None:
        builder.go_on()
        registry, slash, _ = name.partition("/")
        if slash and (registry == "localhost" or set(".:") & set(registry)):
            _check_registry(registry)
        if not pull(name, builder.say) or (image := local_image(builder.api, name)) is None:
            raise ImageMissing(f"no registry has {name}")
    return image.ident


def _check_registry(registry: str) -> None:
    try:
        host, port = split_authority(registry)
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, port or 443, type=socket.SOCK_STREAM)}
    except (OSError, ValueError):
        raise ImageMissing(f"the registry {registry} cannot be found") from None
    for address in found:
        if not may_reach(address):
            raise ImageMissing(
                f"the registry {registry} is at {address}, which is not a public address: pull the image yourself"
            )


class _Dockerfile:
    """One build."""

    def __init__(self, builder: Builder, container: Container, workspace: Workspace, log: Path) -> None:
        self._builder = builder
        self._api = builder.api
        self._container = container
        self._workspace = workspace
        self._log = log
        self._end = time.monotonic() + image_build.BUILD_SECONDS
        self._stages: dict[str, str] = {}
        self._made: list[str] = []

    def run(self, stages: Sequence[Stage], tag: str, check: Callable[[str], None]) -> None:
        self._log.unlink(missing_ok=True)
        built = final = ""
        try:
            for number, stage in enumerate(stages):
                built = self._stage(stage)
                self._stages |= {str(number): built, stage.name or str(number): built}
            labels = {LABEL: "1", f"{LABEL}.environment": tag.partition(":")[2]}
            labelled = self._by_engine(built, [], {}, labels=labels)
            check(labelled)
            self._api.tag(labelled, *tag.split(":"))
            final = labelled
        finally:
            self._remove(self._made, final)

    def _stage(self, stage: Stage) -> str:
        """Build one stage; return its image's id."""
        image = self._base(stage.base)
        most = MOST_DISK + self._size(image)
        shell: Sequence[str] = self._config(image).get("Shell") or SHELL
        args: dict[str, str] = {}
        waiting: list[Instruction] = []

        def flushed() -> str:
            done = self._by_engine(image, waiting, args) if waiting else image
            waiting.clear()
            return done

        for step in stage.steps:
            if step.name == "ARG":
                image = flushed()
                args |= declared_argument(
                    step.text, {**stage.values, **args, **self._env(image)}, self._container.args
                )
            elif step.name == "SHELL":
                shell = as_list(step.text) or shell
            elif step.name in FOR_BUILDER:
                waiting.append(self._for_builder(step))
            elif step.name == "RUN":
                image = self._run(flushed(), step, shell, args)
            elif step.name not in NOT_NEEDED:
                raise self._failure(f"it has an unknown instruction {step.name[:20]}")
            if self._size(image) > most:
                raise self._failure(f"it takes more than {MOST_DISK >> 30} GiB of disk")
        return flushed()

    def _base(self, name: str) -> str:
        if name == SCRATCH:
            return name
        image = self._stages.get(name.lower()) or find_named(self._builder, name)
        if self._config(image).get("OnBuild"):  # the engine's builder would execute them
            raise self._failure(f"{name} has instructions ONBUILD, which are not run")
        return image

    def _for_builder(self, step: Instruction) -> Instruction:
        """Return an instruction as the builder may get it."""
        plain = step.text.translate({ord(character): None for character in "\"'\\"})
        if step.name == "ADD" and any(sign in plain for sign in ("$", "://", "git@")):
            raise self._failure(
                "ADD may copy only files of the repository: fetch with RUN what comes from an address"
            )
        flags = []
        for flag in step.flags:
            name, _, value = flag.partition("=")
            if name == "--from":
                flag = f"--from={self._stages.get(value.lower()) or self._base(value)}"
            flags += [] if name == "--link" else [flag]  # only about the builder's cache
        return replace(step, flags=tuple(flags))

    def _run(self, image: str, step: Instruction, shell: Sequence[str], args: Mapping[str, str]) -> str:
        if image == SCRATCH:
            raise self._failure("it runs a command in an empty image")
        if any(flag.startswith("--mount=") and "type=cache" not in flag for flag in step.flags):
            raise self._failure("it mounts files into a command")
        self._note(f"Step: {step}")
        config, env = self._config(image), self._env(image)
        declared = {name: value for name, value in args.items() if name not in env}
        build = Build(
            what=f"its step '{step.name} {step.text[:60]}'",
            base=Image(image, env=env, ident=image),
            command=tuple(as_list(step.text) or (*shell, step.text)),
            user=config.get("User") or "0:0",
            folder=config.get("WorkingDir") or "/",
            # no path of a file with certificates: the image has its own
            env={**declared, **replace(self._builder.indexes, certificates=None).environment("")},
            capabilities=INSTALLING,
            indexes=self._builder.indexes,
            scratch=False,  # later steps may need what this one leaves in /tmp
            seconds=self._left(),
            image_env=env,
            image_command="python3",
        )
        done = build_image(
            self._api, build, None, [], log=self._log, say=self._builder.say, stop=self._builder.stop
        )
        self._made.append(done)
        return done

    def _by_engine(
        self,
        base: str,
        steps: Sequence[Instruction],
        args: Mapping[str, str],
        *,
        labels: Mapping[str, str] | None = None,
    ) -> str:
        """Let the engine's builder execute instructions on an image; return the new image's id."""
        copies = any(step.name in {"ADD", "COPY"} for step in steps)
        lines = [f"FROM {base}", *(f"ARG {name}" for name in args), *map(str, steps)]
        with _context(self._workspace, self._container) if copies else io.BytesIO() as context:
            with tarfile.open(fileobj=context, mode="a" if copies else "w") as archive:
                add_entry(archive, DOCKERFILE, 0o100644, "\n".join(lines).encode())
            context.seek(0)
            stream = self._api.build(
                fileobj=context,
                custom_context=True,
                dockerfile=DOCKERFILE,
                buildargs=dict(args) or None,
                labels=dict(labels or {}) or None,
                network_mode="none",
                container_limits={"memory": MEMORY, "memswap": MEMORY},
                rm=True,
                forcerm=True,
                decode=True,
                timeout=int(image_build.BUILD_SECONDS),
            )
            made = self._ended(stream)
        self._made.append(made)
        return made

    def _ended(self, stream: Any) -> str:
        """Follow the output of the engine's builder to its end; return the image's id."""
        made, error = "", None
        for line in stream:
            made = (line.get("aux") or {}).get("ID") or made
            error = line.get("error") or error
            self._note(line.get("stream") or line.get("error") or line.get("status"))
            if self._builder.stop.is_set() or not self._left():
                stream.close()
                error = "interrupted" if self._builder.stop.is_set() else "it took too long"
        if error is not None or not made:
            raise self._failure(str(error or "the builder ended without an image").strip()[:300])
        return made

    def _config(self, image: str) -> dict[str, Any]:
        config = {} if image == SCRATCH else self._api.inspect_image(image)["Config"]
        return config or {}

    def _env(self, image: str) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self._config(image).get("Env") or () if "=" in line)

    def _size(self, image: str) -> int:
        return 0 if image == SCRATCH else int(self._api.inspect_image(image)["Size"])

    def _left(self) -> float:
        """Return the seconds that are left."""
        return max(0.0, self._end - time.monotonic())

    def _note(self, line: object) -> None:
        if text := str(line or "").rstrip():
            with self._log.open("a", encoding="utf-8", errors="replace") as file:
                file.write(f"{text}\n")

    def _failure(self, reason: str) -> EnvironmentBuildFailed:
        return EnvironmentBuildFailed(f"it cannot be built: {reason}; the log is {self._log}")

    def _remove(self, images: Sequence[str], final: str) -> None:
        """Remove the images of steps that no other image is built on."""
        from docker.errors import APIError

        for image in reversed(images):
            if image != final:
                with contextlib.suppress(APIError):  # another image is built on it
                    self._api.remove_image(image, noprune=False)

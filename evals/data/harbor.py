"""Read tasks of Harbor, such as those of Terminal-Bench and those that `m3agent eval export` writes.

    NAME/task.toml               limits, the image, how the verifier gets the work (format 1.0 to 1.4)
    NAME/instruction.md          the statement
    NAME/environment/Dockerfile  builds the image, if task.toml names none that is available
    NAME/solution/solve.sh       the reference; it may be missing
    NAME/tests/test.sh           writes the reward
    NAME/tests/Dockerfile        may add the tests to the task's image, and nothing else

A task of m3agent is a change of one folder of code. That is the working folder of the image here. A task that needs more
than one container with that folder is refused.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from m3agent.evals.data.fields import Fields
from m3agent.evals.data.files import hash_of_folder, id_of, read_statement, unreadable, within
from m3agent.evals.data.instance import (
    Answer,
    DataError,
    DockerContext,
    Environment,
    Instance,
    RewardRules,
    Source,
    Task,
)
from m3agent.evals.data.recipe import FOLDER
from m3agent.sandbox.declared.dockerfile import Stage, read_instructions, read_stages
from m3agent.util.sanitize import printable_line

TASK, INSTRUCTION, DOCKERFILE = "task.toml", "instruction.md", "Dockerfile"
ENVIRONMENT, TESTS, SOLUTION = "environment", "tests", "solution"
TEST, SOLVE = "test.sh", "solve.sh"
COMPOSE = ("docker-compose.yaml", "docker-compose.yml")
SECONDS = 600.0
"""Harbor's time limit for the tests, in seconds."""
SYSTEM = frozenset(
    {"bin", "boot", "dev", "etc", "lib", "lib64", "opt", "proc", "run", "sbin", "sys", "tmp", "usr", "var"}
)
"""Folders of the root that are no project: the sandbox cannot have them as its work tree."""
SHARED, SEPARATE = "shared", "separate"
LIMITS = frozenset({"build_timeout_sec", "cpus", "memory_mb", "storage_mb"})
"""What a task may say about its tests' container if that is one of the task's own image."""
COPIED = re.compile(r"(?:COPY\s+(?:--chmod=\S+\s+)?\S+\s+/tests\b|RUN\s+chmod\s+[^&|;]*\s/tests/)\S*")
"""A line of a Dockerfile that only puts the tests where they are put in any case."""
PRE_ARTIFACTS = "pre_artifacts.sh"
"""Ends the work of an agent, in tasks of DeepSWE 1.1 before `[[verifier.collect]]`."""
COMMITTED = re.compile(r"git diff\b.*\b[0-9a-f]{7,64}(?: |\.\.\.?)HEAD\b")
"""A command that collects only what was committed."""
COMMIT = (
    "git -c safe.directory='*' add -A; git -c safe.directory='*' -c user.name=agent -c user.email=agent@localhost "
    "commit -q --no-verify -m work; true"
)
"""Commits the work, as such tasks ask their agents to do."""


def task_folders(folder: Path) -> list[Path]:
    """Return the tasks that are directly in a folder, in alphabetical order.

    Raises:
        DataError: The folder cannot be read.
    """
    try:
        return sorted(path.parent for path in folder.glob(f"*/{TASK}") if path.parent.is_dir())
    except OSError as error:
        raise unreadable(folder, error) from None


def read_task(folder: Path) -> Instance:
    """Return a task as an instance. Nothing is built.

    Raises:
        DataError: A file is missing or malformed, or the task needs something that m3agent does not have.
    """
    folder = folder.resolve()
    ident = id_of(folder)
    fields = _toml(folder)
    _check_supported(fields, folder)
    given = fields.inner("environment")
    context = folder / ENVIRONMENT
    stages = _stages(context)
    image = given.optional("docker_image")
    if image is None and not stages:
        raise DataError(f"{folder}: it has neither docker_image nor {ENVIRONMENT}/{DOCKERFILE}")
    code = _code_folder(given, stages)
    within(folder, f"{TESTS}/{TEST}", f"{folder}:")
    dockerfile = DockerContext(folder=str(context), content=hash_of_folder(context)) if stages else None
    metadata, name = fields.inner("metadata"), fields.inner("task").optional("name") or ""
    url = (metadata.optional("repository_url") or "").removesuffix("/").removesuffix(".git")
    return Instance(
        task=Task(
            instance_id=ident,
            repo=metadata.optional("repo") or "/".join(url.split("/")[-2:]) or name or ident,
            statement=read_statement(within(folder, INSTRUCTION, f"{folder}:")),
            source=Source(
                kind="image", location=image or f"{DOCKERFILE} {dockerfile and dockerfile.content}", ref=code
            ),
            environment=Environment(image=image, folder=code, dockerfile=dockerfile),
        ),
        answer=Answer(
            patch="",
            fail_to_pass=(),
            runner="",
            timeout=_seconds(fields.inner("verifier")),
            rules=_rules(fields, folder),
        ),
    )


def _toml(folder: Path) -> Fields:
    path = within(folder, TASK, f"{folder}:")
    try:
        values = tomllib.loads(path.read_bytes().decode())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as TOML ({printable_line(error)})") from None
    return Fields(values, str(path))


def _check_supported(fields: Fields, folder: Path) -> None:
    """Check that a task is one of a single container."""
    version = fields.first("schema_version", "version") or ""
    if not version.startswith("1."):
        raise fields.wrong(
            "schema_version", f"{printable_line(version, 20)!r} is not a version from 1.0 to 1.4"
        )
    environment, verifier = fields.inner("environment"), fields.inner("verifier")
    needs: dict[str, object] = {
        "several steps": "steps" in fields,
        "several containers": any((folder / ENVIRONMENT / name).exists() for name in COMPOSE),
        "an operating system other than Linux": (environment.optional("os") or "linux").lower() != "linux",
        "a GPU": environment.values.get("gpus") or environment.values.get("tpu"),
        "a service that starts with the container": "healthcheck" in environment,
        "MCP servers": environment.values.get("mcp_servers"),
        "an image of its own for the tests": not _shares_image(environment, verifier, folder / TESTS),
        "a user of its own for the tests": str(verifier.values.get("user") or "root") not in {"root", "0"},
    }
    for what, needed in needs.items():
        if needed:
            raise DataError(f"{fields.where}: it needs {what}, which m3agent does not provide")


def _shares_image(environment: Fields, verifier: Fields, tests: Path) -> bool:
    """Return whether the tests need nothing but the task's image and their own files."""
    if not verifier.inner("environment").values.keys() <= LIMITS:
        return False
    path = tests / DOCKERFILE
    if not path.exists():
        return "environment" not in verifier
    try:
        lines = [line.strip() for line in path.read_bytes().decode().splitlines()]
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {printable_line(error)}") from None
    first, *others = [line for line in lines if line and not line.startswith("#")] or [""]
    is_own = first.split() == ["FROM", environment.optional("docker_image")]
    return is_own and all(COPIED.fullmatch(line) for line in others)


def _collect(verifier: Fields, folder: Path) -> tuple[str, ...]:
    """Return the commands that end the work of an agent."""
    commands = [each.text("command") for each in _tables(verifier, "collect")]
    if not commands and (folder / PRE_ARTIFACTS).exists():
        script = within(folder, PRE_ARTIFACTS, f"{folder}:").read_text("utf-8", "replace")
        commands = [f"bash -c {shlex.quote(script)}"]
    is_committed = any(COMMITTED.search(command) for command in commands)
    return (*([COMMIT] if is_committed else ()), *commands)


def _stages(context: Path) -> list[Stage]:
    """Return the stages of the Dockerfile; empty if the folder has no Dockerfile."""
    path = context / DOCKERFILE
    if not path.exists():
        return []
    try:
        return read_stages(read_instructions(path.read_bytes().decode()), None, {})
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be built: {printable_line(error)}") from None


def _code_folder(environment: Fields, stages: list[Stage]) -> str:
    """Return the folder of the code in the image: the working folder."""
    code = environment.optional("workdir")
    if code is None:
        folders: dict[str, str] = {}
        code = ""
        for stage in stages:
            code = folders.get(stage.base.lower(), "")
            for step in stage.steps:
                if step.name == "WORKDIR":
                    code = posixpath.join(code, step.text.strip().strip("\"'"))
            folders[stage.name] = code
    if not code:
        raise environment.wrong(
            "workdir", "it is missing, and the Dockerfile has no WORKDIR: where is the code?"
        )
    code = posixpath.normpath(code)
    if not FOLDER.fullmatch(code) or code.strip("/") in SYSTEM:
        raise environment.malformed("workdir", code, "is no folder of a project")
    return code


def _rules(fields: Fields, folder: Path) -> RewardRules:
    verifier, environment = fields.inner("verifier"), fields.inner("environment")
    mode = verifier.optional("environment_mode") or SHARED
    if mode not in {SHARED, SEPARATE}:
        raise verifier.wrong("environment_mode", f"it is {SHARED} or {SEPARATE}")
    content = hashlib.sha256()
    for part in (TESTS, SOLUTION):
        if (folder / part).is_dir():
            content.update(f"{part} {hash_of_folder(folder / part)}\n".encode())
    return RewardRules(
        folder=str(folder),
        content=content.hexdigest(),
        separate=mode == SEPARATE,
        collect=_collect(verifier, folder),
        artifacts=tuple(_path(each) for each in _tables(fields, "artifacts", "source")),
        variables=_variables(environment),
        of_tests=_variables(verifier),
        of_solution=_variables(fields.inner("solution")),
    )


def _tables(fields: Fields, name: str, text: str = "") -> list[Fields]:
    """Return the tables of a list. With `text`, a string counts as a table with only this field."""
    tables = []
    values = fields.values.get(name) or []
    for value in values if isinstance(values, list) else [None]:
        entry = {text: value} if text and isinstance(value, str) else value
        if not isinstance(entry, Mapping):
            raise fields.wrong(name, "a list of tables is expected")
        for key in ("service", "destination", "exclude", "user"):
            if entry.get(key):
                raise fields.wrong(name, f"an entry has {key}, which m3agent does not support")
        tables.append(Fields(entry, fields.where, f"{fields.prefix}{name}."))
    return tables


def _path(artifact: Fields) -> str:
    path = artifact.text("source")
    if not path.startswith("/") or "\n" in path or posixpath.normpath(path) in {"/", "//"}:
        raise artifact.malformed("source", path, "is not a whole path of a file or folder")
    return posixpath.normpath(path)


def _variables(fields: Fields) -> dict[str, str]:
    variables = fields.variables("env")
    for name, value in variables.items():
        if "${" in value:
            raise fields.wrong(
                "env", f"{printable_line(name, 60)} takes its value from the machine of the run"
            )
    return variables


def _seconds(verifier: Fields) -> float:
    value: Any = verifier.values.get("timeout_sec", SECONDS)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
        raise verifier.wrong("timeout_sec", "a number of seconds is expected")
    return float(value)

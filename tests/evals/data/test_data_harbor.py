"""Tasks of Harbor: what is read from their folders, and which ones are refused."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from m3agent.evals.data.instance import DataError, RewardRules
from m3agent.evals.data.load import digest, load
from tests.evals.harbor_task import TOML, write_deep_swe, write_task

SEPARATE = """\
[verifier]
timeout_sec = 90
environment_mode = "separate"
env = { SEED = "1" }
[[verifier.collect]]
command = "tar -cf /logs/artifacts/x.tar ."
"""
NO_IMAGE = 'version = "1.0"\n'
DOCKERFILE = {"environment/Dockerfile": "FROM a AS b\nWORKDIR /app\nFROM b\nWORKDIR src\nRUN make\n"}


def test_a_task(tmp_path: Path) -> None:
    text = 'artifacts = ["/app/out"]\n' + TOML + SEPARATE
    [instance] = load(str(write_task(tmp_path / "calc-1", text)))
    task, rules = instance.task, instance.answer.rules
    assert (task.instance_id, task.repo, task.statement) == ("calc-1", "someone/calc", "add is wrong\n")
    assert (task.source.kind, task.source.location, task.source.ref) == ("image", "calc:1", "/app")
    assert (task.environment.image, task.environment.folder, instance.answer.timeout) == (
        "calc:1",
        "/app",
        90.0,
    )
    assert isinstance(rules, RewardRules)
    assert (rules.separate, rules.artifacts, rules.of_tests) == (True, ("/app/out",), {"SEED": "1"})
    assert rules.collect == ("tar -cf /logs/artifacts/x.tar .",)


def test_a_task_of_deep_swe_commits_the_work_before_it_is_collected(tmp_path: Path) -> None:
    [instance] = load(str(write_deep_swe(tmp_path / "calc-1", "calc:1")))
    rules = instance.answer.rules
    assert isinstance(rules, RewardRules)
    assert instance.task.repo == "someone/calc"
    assert (rules.separate, rules.artifacts) == (True, ("/logs/artifacts/model.patch",))
    commit, collect = rules.collect
    assert "commit" in commit and collect.startswith("git diff --binary")


TERMINAL_BENCH = """\
version = "1.0"
[metadata]
author_name = "someone"
difficulty = "easy"
category = "programming"
tags = ["trivial"]
[verifier]
timeout_sec = 120.0
[agent]
timeout_sec = 120.0
[environment]
build_timeout_sec = 600.0
docker_image = "calc:1"
cpus = 1
memory_mb = 2048
storage_mb = 10240
"""
"""The form of Terminal-Bench 2, as Harbor's documentation has it; the working folder is the Dockerfile's."""


def test_a_task_of_terminal_bench(tmp_path: Path) -> None:
    dockerfile = {"environment/Dockerfile": "FROM calc:1\nWORKDIR /app\n"}
    [instance] = load(str(write_task(tmp_path / "calc-1", TERMINAL_BENCH, **dockerfile)))
    assert (instance.task.source.location, instance.task.source.ref) == ("calc:1", "/app")
    assert instance.answer.timeout == 120.0


def test_an_older_task_of_deep_swe_collects_by_a_script(tmp_path: Path) -> None:
    script = "#!/bin/bash\ngit diff --binary 7cef35b HEAD > /logs/artifacts/model.patch\n"
    [instance] = load(str(write_task(tmp_path / "calc-1", **{"pre_artifacts.sh": script})))
    rules = instance.answer.rules
    assert isinstance(rules, RewardRules)
    assert rules.collect[1:] == (f"bash -c {shlex.quote(script)}",)


def test_a_folder_of_tasks(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_task(tmp_path / name)
    (tmp_path / "README.md").write_text("tasks")
    assert [instance.id for instance in load(str(tmp_path))] == ["a", "b"]
    assert [instance.id for instance in load(str(tmp_path), ids=["b"])] == ["b"]


def test_the_working_folder_of_a_dockerfile_has_the_code(tmp_path: Path) -> None:
    [instance] = load(str(write_task(tmp_path / "calc-1", NO_IMAGE, **DOCKERFILE)))
    environment = instance.task.environment
    assert (environment.image, environment.folder) == (None, "/app/src")
    assert environment.dockerfile is not None


def test_the_digest_is_that_of_the_content_and_not_of_the_place(tmp_path: Path) -> None:
    first = digest(load(str(write_task(tmp_path / "one" / "calc-1", NO_IMAGE, **DOCKERFILE))))
    assert first == digest(load(str(write_task(tmp_path / "two" / "calc-1", NO_IMAGE, **DOCKERFILE))))
    for name in ("environment/x", "tests/x", "solution/x"):
        other = write_task(tmp_path / name / "calc-1", NO_IMAGE, **DOCKERFILE, **{name: "x"})
        assert digest(load(str(other))) != first


@pytest.mark.parametrize(
    ("toml", "files", "said"),
    [
        ("x", {}, "task.toml cannot be read as TOML"),
        ('schema_version = "2.0"\n', {}, "field schema_version: '2.0' is not a version from 1.0 to 1.4"),
        (NO_IMAGE, {}, "it has neither docker_image nor environment/Dockerfile"),
        (NO_IMAGE, {"environment/Dockerfile": "FROM a\n"}, "field environment.workdir: it is missing"),
        (NO_IMAGE, {"environment/Dockerfile": "FROM a\nRUN <<EOF\nx\nEOF\n"}, "Dockerfile cannot be built: "),
        (TOML.replace("/app", "/usr"), {}, "'/usr' is no folder of a project"),
        (TOML + "[[steps]]\nname = 'a'\n", {}, "it needs several steps"),
        (TOML + "gpus = 1\n", {}, "it needs a GPU"),
        (TOML + 'os = "windows"\n', {}, "an operating system other than Linux"),
        (TOML, {"environment/docker-compose.yaml": ""}, "it needs several containers"),
        (TOML, {"tests/Dockerfile": ""}, "an image of its own for the tests"),
        (TOML + "[verifier.environment]\n", {}, "an image of its own for the tests"),
        (TOML, {"tests/Dockerfile": "FROM calc:2\nCOPY test.sh /tests/test.sh\n"}, "an image of its own"),
        (TOML, {"tests/Dockerfile": "FROM calc:1\nRUN pip install x\n"}, "an image of its own"),
        (TOML, {"tests/Dockerfile": "FROM calc:1\nRUN chmod +x /tests/a && make\n"}, "an image of its own"),
        (TOML + '[verifier]\nuser = "agent"\n', {}, "a user of its own for the tests"),
        (TOML + 'env = { KEY = "${KEY}" }\n', {}, "KEY takes its value from the machine of the run"),
        (TOML + SEPARATE + 'service = "db"\n', {}, "an entry has service"),
        ('artifacts = ["out"]\n' + TOML, {}, "field artifacts.source: 'out' is not a whole path"),
        (TOML + '[verifier]\nenvironment_mode = "x"\n', {}, "it is shared or separate"),
        (TOML + "[verifier]\ntimeout_sec = -1\n", {}, "a number of seconds is expected"),
        (TOML, {"instruction.md": "\n"}, "instruction.md is empty"),
    ],
)
def test_a_task_that_cannot_be_graded_is_refused_with_the_reason(
    tmp_path: Path, toml: str, files: dict[str, str], said: str
) -> None:
    with pytest.raises(DataError) as caught:
        load(str(write_task(tmp_path / "calc-1", toml, **files)))
    assert said in str(caught.value)


def test_a_task_without_tests_or_with_links_is_refused(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "calc-1")
    (folder / "tests" / "link").symlink_to("/etc/passwd")
    with pytest.raises(DataError, match="link is not a regular file"):
        load(str(folder))
    (folder / "tests" / "link").unlink()
    (folder / "tests" / "test.sh").unlink()
    with pytest.raises(DataError, match=r"test\.sh does not exist"):
        load(str(folder))

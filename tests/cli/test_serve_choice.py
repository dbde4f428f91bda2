"""Test which options of `m3agent serve` go together, and what a dry run prints, without a process."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from packaging.specifiers import SpecifierSet

from m3agent.cli.serve.command import refuse_search_options
from m3agent.cli.serve.dry_run import dry_run, files_text
from m3agent.cli.serve.options import ServeRequest, choose, cluster_files, server_files
from m3agent.serving.plan.known_issues import Severity
from m3agent.serving.plan.listing import listing, problems, versions
from m3agent.util.errors import UsageError
from tests.serving.issue_rows import add_issue


@pytest.mark.parametrize(
    ("seed", "candidates", "said"),
    [
        (7, None, "pass it to the engine with `-- --seed 7`"),
        (0, None, "--seed is for"),
        (None, 3, "--candidates is for"),
    ],
)
def test_options_of_the_search_are_for_the_embedded_engine(
    seed: int | None, candidates: int | None, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        refuse_search_options(seed, candidates)
    refuse_search_options(None, None)


TWO_NODES = ServeRequest(gpus="2x8xH100", context=1_048_576)


def test_a_dry_run_of_one_node_prints_its_command_only() -> None:
    shown = dry_run(replace(TWO_NODES, node_rank=1, master="10.0.0.1"), {})
    assert "--node-rank 1" in shown and "--master-addr 10.0.0.1" in shown
    assert "--node-rank 0" not in shown


def test_a_dry_run_prints_the_command_of_a_container_and_its_image(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": "0"}
    asked = ServeRequest(gpus="8xH200", container=True, port=9000)
    shown = dry_run(asked, home)
    image = "vllm/vllm-openai:v0.33.0"
    assert f"# image        {image} (pull it first: docker pull {image})\n" in shown
    words = shlex.split(shown[shown.index("\ndocker run ") :].replace("\\\n", " "))
    assert words[:2] == ["docker", "run"]
    assert words[words.index("--publish") + 1] == "127.0.0.1:9000:9000"
    assert words[words.index("--gpus") + 1] == '"device=0,1,2,3,4,5,6,7"', "not those of this machine"
    assert words[words.index("--entrypoint") + 1 :][:3] == ["vllm", image, "serve"]
    assert list(tmp_path.iterdir()) == [], "a dry run makes no cache"
    assert "VLLM_USE_FASTOKENS" not in words, "the image lacks the package"
    assert "set VLLM_USE_FASTOKENS=1" in shown.partition("\n")[0]
    own = dry_run(replace(asked, image="own/image:1", pull=True), {**home, "VLLM_USE_FASTOKENS": "1"})
    assert "--env VLLM_USE_FASTOKENS" in own
    assert "own/image:1 (--pull fetches it)" in own and " own/image:1 serve" in own


@pytest.mark.parametrize("asked", [ServeRequest(gpus="8xH200"), TWO_NODES])
def test_a_dry_run_prints_the_command_of_a_slurm_job(asked: ServeRequest) -> None:
    shown = dry_run(replace(asked, slurm=True, sbatch=("--partition=gpu",)), {})
    assert "\n# job.sh:\n" in shown and ("\n# node.sh:\n" in shown) is (asked is TWO_NODES)
    assert "--host 0.0.0.0" in shown and "export VLLM_API_KEY=" in shown
    command = shown[shown.index("\nsbatch ") :]
    assert command.endswith("--partition=gpu job.sh\n")
    assert '"--chdir=$PWD"' in command


DYNAMO = ServeRequest(engine="dynamo", gpus="8xB200", host="127.0.0.1", port=9000)


def test_dynamo_listens_where_it_was_told_to() -> None:
    shown = dry_run(DYNAMO, {})
    assert "4 of the 8 GPUs stay unused" in shown
    command = "".join(f"{line}\n" for line in shown.splitlines() if not line.startswith("#"))
    assert command == "export HTTP_HOST=127.0.0.1\nexport HTTP_PORT=9000\nbash agg.sh\n"
    assert '--http-host "$HTTP_HOST" --http-port "$HTTP_PORT" &' in shown
    inside = dry_run(replace(DYNAMO, container=True), {"HOME": "/nowhere"})
    assert "export HTTP_HOST=0.0.0.0\n" in inside and "--publish 127.0.0.1:9000:9000" in inside


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (ServeRequest(gpus="2x8xH200", node_rank=1), "The plan has one node, which needs no number"),
        (replace(TWO_NODES, node_rank=1), "--master is missing"),
        (replace(TWO_NODES, node_rank=2, master="a"), "There is no node 2"),
        (replace(TWO_NODES, master="a"), "--master is for --node-rank"),
        (ServeRequest(gpus="8xH200", slurm=True, container=True), "--slurm starts no container"),
        (ServeRequest(gpus="8xH200", sbatch=("--partition=gpu",)), "--sbatch is for --slurm"),
        (ServeRequest(gpus="8xH200", pull=True), "--pull is for --container"),
        (ServeRequest(gpus="8xH200", engine="sglang", container=True), "name one with --image"),
        (ServeRequest(recipe="trtllm-gb200-2x4", container=True), "use --slurm"),
        (replace(DYNAMO, gpus="8xH200"), "through Marlin on Hopper: garbage, then illegal memory access"),
        (replace(DYNAMO, gpus="2xB200"), "needs 4 GPUs, and 2xB200 are 2"),
        (replace(DYNAMO, host="0.0.0.0"), "Dynamo's frontend asks for no key"),
        (replace(DYNAMO, slurm=True), "asks for no key: leave out --slurm"),
        (replace(DYNAMO, concurrency=4, precision="mxfp8"), "--concurrency and --precision are for a plan"),
        (replace(DYNAMO, vision=True), "has no options to set"),
        (replace(DYNAMO, recipe="sglang-8gpu"), "sglang-8gpu starts sglang: leave out --engine dynamo"),
        (ServeRequest(recipe="vllm-amd-tp8", gpus="8xH200"), "is for AMD's GPUs, not for 8xH200"),
    ],
)
def test_what_cannot_be_started_is_refused_in_a_dry_run(asked: ServeRequest, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        dry_run(asked, {"HOME": "/nowhere"})


def test_a_recipe_without_a_server_says_what_to_do_and_is_not_started() -> None:
    asked = ServeRequest(gpus="8xH200", recipe="vllm-nvidia-docker")
    said = "vllm-nvidia-docker only pulls an image and starts no server: `m3agent serve --container` runs"
    shown = dry_run(asked, {})
    assert f"# next         {said}" in shown and "leave out --dry-run" not in shown
    assert shown.endswith("\ndocker pull vllm/vllm-openai:minimax-m3\n")
    with pytest.raises(UsageError, match=said):
        choose(asked, {}, key=None, local=True)


KUBERNETES = ServeRequest(gpus="8xH200", kubernetes=True)


def test_files_for_kubernetes_leave_out_what_images_lack() -> None:
    choice, files = cluster_files(KUBERNETES, {})
    assert [change.what for change in choice.prepared.left_out] == ["fast tokeniser"]
    assert "VLLM_USE_FASTOKENS" not in files["servers.yaml"]
    shown = files_text(choice, files, "--kubernetes")
    assert [line for line in shown.splitlines() if line.startswith("# file ")] == [
        f"# file {name}" for name in files
    ]
    printed = [item for item in yaml.safe_load_all(shown) if item]
    assert printed == [item for text in files.values() for item in yaml.safe_load_all(text) if item]
    router = cluster_files(replace(KUBERNETES, router="llm-d"), {})[1]
    assert set(router) - set(files) == {"values.yaml"}


def test_files_for_kubernetes_tell_and_refuse_the_known_issues_of_their_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_issue(monkeypatch, Severity.WARN, ">=0.32,<0.34")
    asked = replace(KUBERNETES, image="vllm/vllm-openai:v0.33.0")
    for choice in (
        cluster_files(asked, {})[0],
        choose(replace(asked, container=True), {}, key=None, local=False),
    ):
        assert "vLLM 0.33.0 in the image: answers are slow; wait (a test)" in choice.notes
    add_issue(monkeypatch, Severity.REFUSE, "<0.33")
    with pytest.raises(UsageError, match=r"v0\.32\.0 has vLLM 0\.32\.0: answers are slow; wait"):
        cluster_files(replace(KUBERNETES, image="vllm/vllm-openai:v0.32.0"), {})


def test_llm_d_gets_as_many_servers_as_the_gpus_are_enough_for() -> None:
    choice, files = cluster_files(replace(KUBERNETES, gpus="2x8xH100", router="llm-d", concurrency=4), {})
    assert choice.plan is not None
    assert (choice.plan.gpus, choice.plan.wish.concurrency) == ("8xH100-80", 2)
    assert not any("unused" in warning for warning in choice.plan.warnings)
    assert "\n  replicas: 2\n" in files["servers.yaml"]
    odd = cluster_files(replace(KUBERNETES, gpus="2x6xH200", router="llm-d"), {})[1]
    assert "\n  replicas: 2\n" in odd["servers.yaml"]


def test_a_folder_of_the_cluster_is_not_looked_for_here() -> None:
    asked = replace(KUBERNETES, model="/models/m3", precision="mxfp8", name="m3-b")
    choice, files = cluster_files(asked, {"HF_ENDPOINT": "http://mirror"})
    assert any("/models/m3 is a folder of the cluster's volume" in note for note in choice.notes)
    assert "/models/m3" in files["servers.yaml"] and "name: m3-b\n" in files["servers.yaml"]
    assert "http://mirror" in files["weights.yaml"]


@pytest.mark.parametrize(
    "beside",
    [
        {"slurm": True},
        {"recipe": "vllm-nvidia-tp8"},
        {"router": "dynamo"},
        {"router": "vllm-router"},
        {"engine": "dynamo"},
        {"engine": "embedded"},
        {"servers": "2"},
        {"engine": "trtllm", "precision": "nvfp4", "gpus": "4xB200", "image": "own:1"},
    ],
)
def test_what_kubernetes_files_cannot_have_is_refused(beside: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        cluster_files(replace(KUBERNETES, **beside), {})


WORKLOADS = {
    "plain": ServeRequest(gpus="8xH200"),
    "two machines": TWO_NODES,
    "a draft": ServeRequest(gpus="4xB200", draft="on"),
    "a host cache": ServeRequest(gpus="8xH200", host_cache=400),
    "images": ServeRequest(gpus="8xMI355X", vision=True),
    "NVFP4": ServeRequest(gpus="4xB200", precision="nvfp4"),
    "SGLang": ServeRequest(gpus="4xB200", engine="sglang", image="own:1"),
    "SGLang on AMD": ServeRequest(gpus="8xMI300X", engine="sglang", image="own:1"),
    "a revision": ServeRequest(gpus="8xH200", options=("--revision", "abc")),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_command_that_is_written_is_taken_by_the_engines_parser(name: str) -> None:
    asked = WORKLOADS[name]
    texts = [dry_run(asked, {"HOME": "/nowhere"})]
    if asked.gpus != TWO_NODES.gpus:
        container = replace(asked, container=True, image=asked.image)
        texts.append(dry_run(container, {"HOME": "/nowhere"}))
    texts.append(dry_run(replace(asked, image=None, slurm=True), {"HOME": "/nowhere"}))
    in_cluster = replace(asked, kubernetes=True)
    commands = [*in_manifests(cluster_files(in_cluster, {})[1]["servers.yaml"])]
    if asked.engine is None and asked.gpus != TWO_NODES.gpus:
        commands += in_manifests(cluster_files(replace(in_cluster, router="llm-d"), {})[1]["servers.yaml"])
        texts += server_files(replace(asked, servers="a,b"), {})[1].values()
    commands += [command for text in texts for command in in_scripts(text)]
    assert len(commands) >= 3
    plan = choose(asked, {}, key=None, local=False).plan
    assert plan is not None
    for version in versions(plan.engine):
        if version in SpecifierSet(plan.versions):
            for command in commands:
                assert problems(command, listing(plan.engine, version)) == [], (version, command)


def in_manifests(text: str) -> list[list[str]]:
    """The engine's commands in Kubernetes objects, with numbers in place of what the cluster fills in."""
    servers = next(yaml.safe_load_all(text))["spec"]
    group = servers.get("leaderWorkerTemplate")
    pods = [servers["template"]] if group is None else [group["leaderTemplate"], group["workerTemplate"]]
    containers = [pod["spec"]["containers"][0] for pod in pods]
    return [
        [re.sub(r"\$\(\w+\)", "1", word) for word in (*each["command"], *each["args"])] for each in containers
    ]


def in_scripts(text: str) -> list[list[str]]:
    """The engine's commands in scripts and in files that comments show, with numbers in place of variables.

    The image of a container stands between the words.
    """
    found = []
    plain = re.sub(r"\$\w+", "1", re.sub(r"(?m)^#  ", "", text))
    for line in re.sub(r" *\\\n *", " ", plain).splitlines():
        start = re.search(r"\b(vllm|sglang|python3?) (?:\S+ )?(serve|-m sglang\.launch_server) ", line)
        if start and not line.startswith("#"):
            found.append([start[1], *start[2].split(), *shlex.split(line[start.end() :])])
    return found

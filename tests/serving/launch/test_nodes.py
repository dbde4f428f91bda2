"""An engine over several nodes: the engine's own parser accepts every command."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.serving.launch.job import EngineJob
from m3agent.serving.launch.nodes import MASTER_PORT, as_node
from m3agent.serving.plan.command import LaunchCommand
from m3agent.serving.plan.listing import listing, problems, versions
from m3agent.serving.plan.overlay import applied, overlay
from m3agent.serving.plan.recipe import recipe
from m3agent.util.errors import UsageError

SPREAD = [
    ("vllm-nvidia-tp8", "vllm"),
    ("vllm-nvidia-dp8-ep", "vllm"),
    ("vllm-amd-tp8", "vllm"),
    ("sglang-8gpu", "sglang"),
]


def job_of(name: str, nodes: int = 2) -> EngineJob:
    """Return the job of a recipe that serves other machines."""
    known = recipe(name)
    argv, env = applied(known, overlay(known, loopback=False))
    return EngineJob(
        known.engine, argv, env, {}, "0.0.0.0", 8000, known.gpus, nodes, known.image, known.checkpoint
    )


def option(argv: tuple[str, ...], flag: str) -> tuple[str, ...]:
    found = LaunchCommand.of(argv).option(flag)
    return found[1:] if found else ()


def nodes_of(job: EngineJob, master: str = "10.0.0.1") -> list[EngineJob]:
    return [as_node(job, rank, master) for rank in range(2)]


@pytest.mark.parametrize(("name", "engine"), SPREAD)
def test_every_nodes_command_is_one_that_the_listed_versions_take(name: str, engine: str) -> None:
    for version in versions(engine):
        known = listing(engine, version)
        plain = problems(job_of(name).argv, known)
        for node in nodes_of(job_of(name)):
            assert problems(node.argv, known) == plain


def test_vllms_first_node_serves_and_the_others_are_headless() -> None:
    first, second = nodes_of(job_of("vllm-nvidia-tp8"))
    for command in (first, second):
        assert option(command.argv, "--nnodes") == ("2",)
        assert option(command.argv, "--master-addr") == ("10.0.0.1",)
        assert option(command.argv, "--master-port") == (str(MASTER_PORT),)
    assert [option(command.argv, "--node-rank") for command in (first, second)] == [("0",), ("1",)]
    assert "--headless" not in first.argv
    assert "--headless" in second.argv
    assert first.env["VLLM_USE_FASTOKENS"] == "1", "the job's own variables are there"


def test_headless_node_gets_no_number_of_api_servers() -> None:
    plain = job_of("vllm-nvidia-tp8")
    many = EngineJob(**{**vars(plain), "argv": (*plain.argv, "--api-server-count", "4")})
    first, second = nodes_of(many)
    assert option(first.argv, "--api-server-count") == ("4",)
    assert option(second.argv, "--api-server-count") == ()


def test_sglang_meets_at_the_first_node() -> None:
    first, second = nodes_of(job_of("sglang-8gpu"), "node1:20000")
    for rank, command in enumerate((first, second)):
        assert option(command.argv, "--dist-init-addr") == ("node1:20000",)
        assert option(command.argv, "--node-rank") == (str(rank),)


def test_numbering_twice_is_the_same_as_once() -> None:
    once = as_node(job_of("vllm-nvidia-tp8"), 1, "10.0.0.1")
    assert as_node(once, 1, "10.0.0.1:29501") == once
    assert "--headless" not in as_node(once, 0, "10.0.0.1").argv


@pytest.mark.parametrize(
    ("master", "host", "port"),
    [
        ("10.0.0.1", "10.0.0.1", "29501"),
        ("node1", "node1", "29501"),
        ("node1:1234", "node1", "1234"),
        ("fd00::2", "fd00::2", "29501"),
        ("[fd00::2]:1234", "fd00::2", "1234"),
    ],
)
def test_the_first_nodes_address_is_read_with_and_without_port(master: str, host: str, port: str) -> None:
    argv = as_node(job_of("vllm-nvidia-tp8"), 1, master).argv
    assert (option(argv, "--master-addr"), option(argv, "--master-port")) == ((host,), (port,))
    with_brackets = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    assert option(as_node(job_of("sglang-8gpu"), 1, master).argv, "--dist-init-addr") == (with_brackets,)


@given(st.text(max_size=30) | st.from_regex(r"[\w.:\[\]-]{0,20}(:[0-9]{1,6})?", fullmatch=True))
def test_any_other_address_is_refused_in_a_sentence(master: str) -> None:
    try:
        argv = as_node(job_of("vllm-nvidia-tp8"), 0, master).argv
    except UsageError as error:
        assert ("is not an" if master else "--node-rank needs the") + " address of the first node" in str(
            error
        )
    else:
        (host,), (port,) = option(argv, "--master-addr"), option(argv, "--master-port")
        assert master in (host, f"{host}:{port}", f"[{host}]", f"[{host}]:{port}")
        assert not host.startswith("-") and 0 < int(port) < 65536


@pytest.mark.parametrize(
    ("name", "nodes", "rank", "said"),
    [
        ("trtllm-gb200-2x4", 2, 0, "Only Slurm"),
        ("dynamo-vllm-agg", 2, 0, "its own launch files"),
        ("vllm-nvidia-tp8", 3, 0, "cannot be divided evenly among 3 nodes"),
        ("vllm-nvidia-tp8", 1, 0, "The plan has one node"),
        ("vllm-nvidia-tp8", 2, 2, "There is no node 2"),
    ],
)
def test_engines_that_cannot_use_several_nodes_are_refused(
    name: str, nodes: int, rank: int, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        as_node(job_of(name, nodes), rank, "10.0.0.1")

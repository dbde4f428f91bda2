"""Test which options of `m3agent serve` go together, and what a dry run prints, without a process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from m3agent.agent.cli.serve.command import refuse_search_options
from m3agent.agent.cli.serve.options import ServeRequest, dry_run
from m3agent.agent.errors import UsageError


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


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (ServeRequest(gpus="2x8xH200", node_rank=1), "The plan has one node, which needs no number"),
        (replace(TWO_NODES, node_rank=1), "--master is missing"),
        (replace(TWO_NODES, node_rank=2, master="a"), "There is no node 2"),
        (replace(TWO_NODES, master="a"), "--master is for --node-rank"),
    ],
)
def test_a_node_that_cannot_be_is_refused_in_a_dry_run(asked: ServeRequest, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        dry_run(asked, {})


def test_a_dry_run_of_one_node_prints_its_command_only() -> None:
    shown = dry_run(replace(TWO_NODES, node_rank=1, master="10.0.0.1"), {})
    assert "--node-rank 1" in shown and "--master-addr 10.0.0.1" in shown
    assert "--node-rank 0" not in shown

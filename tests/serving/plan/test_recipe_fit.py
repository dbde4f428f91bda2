"""Which recipes suit which GPUs."""

from __future__ import annotations

import pytest

from m3agent.serving.launch.prepare import LaunchRequest, prepare
from m3agent.serving.plan.command_setup import misfit
from m3agent.serving.plan.gpus import parse_gpus
from m3agent.serving.plan.recipe import RECIPES, Recipe

FOR = {"amd": "8xMI355X", "nvidia": "2x8xB200"}


@pytest.mark.parametrize(
    "known", [known for known in RECIPES if not known.refused], ids=lambda known: known.name
)
def test_every_recipe_suits_the_newest_gpus_of_its_vendor_and_no_others(known: Recipe) -> None:
    long = "EAGLE3" not in " ".join(known.argv) or "GQA" in " ".join(known.argv)
    job = prepare(known, LaunchRequest(context=None if long else 131_072)).job
    for vendor, gpus in FOR.items():
        why = misfit(known, parse_gpus(gpus), job.argv, job.env)
        assert (why is None) is (known.vendor == vendor), why


@pytest.mark.parametrize("name", ["trtllm-b200-1x4", "dynamo-vllm-agg"])
def test_nvfp4_is_refused_off_blackwell(name: str) -> None:
    known = next(known for known in RECIPES if known.name == name)
    job = prepare(known, LaunchRequest()).job
    assert "through Marlin on Hopper" in str(misfit(known, parse_gpus("8xH200"), job.argv, job.env))


def test_the_draft_with_all_heads_is_for_short_windows() -> None:
    known = next(known for known in RECIPES if known.name == "vllm-nvidia-nvfp4-eagle3")
    job = prepare(known, LaunchRequest()).job
    assert "MiniMax-M3-EAGLE3-GQA" in str(misfit(known, parse_gpus("8xB200"), job.argv, job.env))

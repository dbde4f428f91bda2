"""The table of GPUs, and the notation for a number of GPUs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.serving.plan.gpus import ALIASES, GPUS, Fleet, UnknownGpu, gpu_of_product, parse_gpus
from m3agent.serving.plan.memory_model import GIB
from m3agent.util.errors import UsageError


@pytest.mark.parametrize(
    ("text", "name", "nodes", "per_node"),
    [
        ("H200", "H200", 1, 1),
        ("8xH200", "H200", 1, 8),
        ("8XH200", "H200", 1, 8),
        (" 4 x h200 ", "H200", 1, 4),
        ("4×H200", "H200", 1, 4),  # noqa: RUF001  # pasted from a web page
        ("8xH200-141", "H200", 1, 8),
        ("8xh200-141gb", "H200", 1, 8),
        ("8x H200 141GB", "H200", 1, 8),
        ("2x4xGB200", "GB200", 2, 4),
        ("8xGB200", "GB200", 2, 4),
        ("16xH200", "H200", 2, 8),
        ("12xH200", "H200", 1, 12),
        ("8xH100", "H100-80", 1, 8),
        ("8xH20", "H20-96", 1, 8),
        ("8xH20-141", "H20-141", 1, 8),
        ("4xmi355x", "MI355X", 1, 4),
        ("8xMI300X-192GB", "MI300X", 1, 8),
    ],
)
def test_gpu_specs_that_people_write(text: str, name: str, nodes: int, per_node: int) -> None:
    fleet = parse_gpus(text)
    assert (fleet.gpu.name, fleet.nodes, fleet.per_node) == (name, nodes, per_node)
    assert fleet.count == nodes * per_node


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("8xH2000", r"did you mean H200\?$"),
        ("8xV100", "known are H100-80"),
        ("8xMI350", "MI350X"),
        ("H200-80", "H200"),
        ("8xRTX4090", "known are H100-80, H200"),
        ("8xFOO", "^FOO is not a known GPU; known are H100-80"),
        ("", "write it like 8xH200"),
        ("eight", "write it like 8xH200"),
        ("8x", "write it like 8xH200"),
        ("2x2x2xH200", "write it like 8xH200"),
        ("-1xH200", "write it like 8xH200"),
        ("0xH200", "0 GPUs"),
        ("0x8xH200", "0 GPUs"),
        ("9999xH200", "9,999 GPUs"),
        ("9" * 5000 + "xH200", "write it like 8xH200"),
        ("H200;" * 30, "…"),
    ],
)
def test_anything_else_is_one_sentence(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        parse_gpus(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


@given(st.sampled_from(sorted(GPUS)), st.integers(1, 30), st.integers(1, 4))
def test_a_fleet_is_written_as_it_is_read(name: str, nodes: int, per_node: int) -> None:
    fleet = Fleet(GPUS[name], per_node, nodes)
    assert parse_gpus(str(fleet)) == fleet
    assert parse_gpus(str(fleet).lower()) == fleet


@given(st.text(max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        fleet = parse_gpus(text)
    except UsageError as error:
        assert str(error)
    else:
        assert fleet.gpu.name in GPUS


def test_every_other_name_leads_to_a_gpu() -> None:
    assert set(ALIASES.values()) <= set(GPUS)
    assert not set(ALIASES) & set(GPUS)


@pytest.mark.parametrize(
    ("product", "gib", "name"),
    [
        ("NVIDIA H200", 140.4, "H200"),
        ("NVIDIA H100 80GB HBM3", 79.6, "H100-80"),
        ("NVIDIA H20", 95.6, "H20-96"),
        ("NVIDIA H20-3e", 140.4, "H20-141"),
        ("NVIDIA GB200", 184.0, "GB200"),
        ("AMD Instinct MI300X OAM", 192.0, "MI300X"),
        ("AMD Instinct MI355X", 288.0, "MI355X"),
        ("NVIDIA GeForce RTX 4090", 24.0, None),
        ("NVIDIA L4", 22.5, None),
    ],
)
def test_product_names_of_drivers(product: str, gib: float, name: str | None) -> None:
    found = gpu_of_product(product, int(gib * GIB))
    assert (found.name if found else None) == name


def test_a_smaller_sibling_counts_with_its_own_memory() -> None:
    found = gpu_of_product("NVIDIA H200", 100 * GIB)
    assert found is not None
    assert found.usable_bytes == 100 * GIB


def test_memory_that_is_given_replaces_the_table_s() -> None:
    known = parse_gpus("8xH100", 94).gpu
    assert (known.name, known.measured) == ("H100-80", False)
    assert known.usable_bytes == int(94 * 0.99 * GIB)
    unknown = parse_gpus("4x RTX PRO 7000", 96)
    assert (str(unknown), unknown.gpu.usable_bytes) == ("4xRTX-PRO-7000", int(96 * 0.99 * GIB))
    with pytest.raises(UnknownGpu) as caught:
        parse_gpus("4xH200SXM")
    assert caught.value.near == ("H200",)


@pytest.mark.parametrize(
    ("text", "fleet"),
    [
        ("2xGB200 NVL4", "2x4xGB200"),
        ("GB200-NVL4", "4xGB200"),
        ("GB300 NVL72", "18x4xGB300"),
        ("4xDGX Spark", "4x1xGB10"),
        ("4 DGX Spark", "4x1xGB10"),
        ("DGX Spark", "1xGB10"),
        ("dgx-spark", "1xGB10"),
        ("8 H200", "8xH200"),
        ("8x NVIDIA H100 80GB HBM3", "8xH100-80"),
        ("8xH100 SXM5", "8xH100-80"),
        ("8xA100-SXM4-80GB", "8xA100-80"),
        ("8xH100-NVL", "8xH100-80"),
        ("4xH200 PCIe", "4xH200"),
        ("8x AMD Instinct MI300X OAM", "8xMI300X"),
    ],
)
def test_boards_and_machines_are_counted_in_gpus(text: str, fleet: str) -> None:
    assert str(parse_gpus(text)) == fleet

"""Detection of GPUs and drivers, with fake programs on PATH that print the output of the real ones."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from m3agent.serving.plan.detect import DetectionError, detect
from m3agent.serving.plan.memory_model import GIB, MIB

pytestmark = pytest.mark.integration

H200 = "NVIDIA H200, 143771"
L4 = "NVIDIA L4, 23034"


def program(folder: Path, name: str, output: str, code: int = 0, condition: str = "") -> None:
    """Write a program that prints `output` if its arguments contain `condition`."""
    path = folder / name
    begin = path.read_text() if path.exists() else "#!/bin/sh\n"
    text = f"cat <<'END'\n{output}\nEND\nexit {code}"
    path.write_text(f"{begin}case \"$*\" in *'{condition}'*) {text}\n;; esac\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def nvidia(folder: Path, *gpus: str, used: tuple[int, ...] = (), mig: tuple[int, ...] = ()) -> None:
    program(
        folder,
        "nvidia-smi",
        "\n".join(
            f"{index}, GPU-{index}aaa-bbb, {gpu}, {dict(enumerate(used)).get(index, 1)}, "
            f"{'Enabled' if index in mig else 'Disabled'}"
            for index, gpu in enumerate(gpus)
        ),
    )


def environ(folder: Path, **more: str) -> dict[str, str]:
    return {"PATH": f"{folder}:/usr/bin:/bin", **more}


def refused(folder: Path, **more: str) -> str:
    with pytest.raises(DetectionError) as caught:
        detect(environ(folder, **more))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_no_gpu_program_at_all(tmp_path: Path) -> None:
    assert "no GPU was found here" in refused(tmp_path)


def test_eight_alike(tmp_path: Path) -> None:
    nvidia(tmp_path, *[H200] * 8)
    found = detect(environ(tmp_path))
    assert str(found.fleet) == "8xH200"
    assert found.fleet.free_bytes is None
    assert found.notes == ()


@pytest.mark.parametrize(
    ("value", "count"), [("0,1,2,3", 4), (" 3 , 2 ", 2), ("GPU-1aaa-bbb", 1), ("GPU-1aaa,0", 2)]
)
def test_visible_devices(tmp_path: Path, value: str, count: int) -> None:
    nvidia(tmp_path, *[H200] * 4)
    assert detect(environ(tmp_path, CUDA_VISIBLE_DEVICES=value)).fleet.count == count


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "hides every GPU"),
        ("9", "9 names no GPU of this machine"),
        ("-1", "-1 names no GPU"),
        ("0,0", "more than once"),
        ("GPU-zzz", "names no GPU"),
        ("0,,1", "an empty entry"),
        ("all", "all names no GPU"),
        ("MIG-5a5a", "slice of a GPU"),
    ],
)
def test_odd_visible_devices(tmp_path: Path, value: str, said: str) -> None:
    nvidia(tmp_path, H200, H200)
    assert said in refused(tmp_path, CUDA_VISIBLE_DEVICES=value)


def test_mixed_gpus_say_which_to_choose(tmp_path: Path) -> None:
    nvidia(tmp_path, L4, H200, H200, L4, L4)
    said = refused(tmp_path)
    assert "3 x NVIDIA L4 (0,3,4); 2 x NVIDIA H200 (1,2)" in said
    assert said.endswith("CUDA_VISIBLE_DEVICES=1,2")
    assert str(detect(environ(tmp_path, CUDA_VISIBLE_DEVICES="1,2")).fleet) == "2xH200"


def test_gpus_that_m3_does_not_run_on(tmp_path: Path) -> None:
    nvidia(tmp_path, L4, L4)
    assert "2 x NVIDIA L4 (22 GiB) is not a GPU that can run M3" in refused(tmp_path)


def test_slices(tmp_path: Path) -> None:
    nvidia(tmp_path, H200, H200, H200, mig=(1,))
    said = refused(tmp_path)
    assert "GPU 1 is divided into slices by MIG" in said
    assert said.endswith("CUDA_VISIBLE_DEVICES=0,2")
    assert detect(environ(tmp_path, CUDA_VISIBLE_DEVICES="0,2")).fleet.count == 2


def test_memory_held_by_others(tmp_path: Path) -> None:
    nvidia(tmp_path, *[H200] * 4, used=(1, 20 * 1024, 600))
    found = detect(environ(tmp_path))
    assert found.fleet.free_bytes == found.fleet.gpu.usable_bytes - 20 * GIB
    assert "GPU 1,2, most on GPU 1 (20.0 of 140.4 GiB)" in found.notes[0]


@pytest.mark.parametrize(
    ("output", "code", "said"),
    [
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9, "exit code 9"),
        ("No devices were found", 6, "no GPU was found"),
        ("No devices were found", 0, "no GPU was found"),
        ("0, GPU-a, NVIDIA H200, [Unknown Error], 1, Disabled", 0, "'[Unknown Error]' for the memory"),
    ],
)
def test_a_driver_in_trouble(tmp_path: Path, output: str, code: int, said: str) -> None:
    program(tmp_path, "nvidia-smi", output, code)
    assert said in refused(tmp_path)


def test_a_program_that_cannot_run(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_bytes(b"\x7fELF nothing")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert "nvidia-smi cannot be started" in refused(tmp_path)


@pytest.mark.parametrize("wrapped", [False, True])
def test_amd_smi(tmp_path: Path, wrapped: bool) -> None:
    def listed(entries: list[dict[str, object]]) -> str:
        return json.dumps({"gpu_data": entries} if wrapped else entries)

    def mib(value: int) -> dict[str, object]:
        return {"value": value, "unit": "MB"}

    asics: list[dict[str, object]] = [
        {"gpu": index, "asic": {"market_name": "AMD Instinct MI355X"}} for index in range(8)
    ]
    usages: list[dict[str, object]] = [
        {"gpu": index, "mem_usage": {"total_vram": mib(294_896), "used_vram": mib(297)}} for index in range(8)
    ]
    program(tmp_path, "amd-smi", listed(asics), condition="--asic")
    program(tmp_path, "amd-smi", listed(usages), condition="--mem-usage")
    assert str(detect(environ(tmp_path)).fleet) == "8xMI355X"
    assert str(detect(environ(tmp_path, HIP_VISIBLE_DEVICES="0,1")).fleet) == "2xMI355X"
    assert "HIP_VISIBLE_DEVICES is empty" in refused(tmp_path, HIP_VISIBLE_DEVICES="")


def test_rocm_smi(tmp_path: Path) -> None:
    cards = {
        f"card{index}": {
            "Card Series": "AMD Instinct MI300X",
            "VRAM Total Memory (B)": str(196_592 * MIB),
            "VRAM Total Used Memory (B)": str(40 * GIB if index == 3 else 300 * MIB),
        }
        for index in range(4)
    }
    program(tmp_path, "rocm-smi", json.dumps({**cards, "system": {"Driver version": "6.12"}}))
    found = detect(environ(tmp_path))
    assert str(found.fleet) == "4xMI300X"
    assert "on GPU 3 (40.0 of 192.0 GiB)" in found.notes[0]


@pytest.mark.parametrize("output", ["not JSON", '{"card0": {}}', "[1]", '{"card0": 3}'])
def test_answers_of_another_form(tmp_path: Path, output: str) -> None:
    program(tmp_path, "rocm-smi", output)
    assert "cannot parse the output of rocm-smi" in refused(tmp_path)


@pytest.mark.parametrize("output", ["not JSON", '{"gpus": 1}', '[{"gpu": 0}]', "[1]"])
def test_answers_of_amd_smi_of_another_form(tmp_path: Path, output: str) -> None:
    program(tmp_path, "amd-smi", output)
    assert "cannot parse the output of amd-smi" in refused(tmp_path)

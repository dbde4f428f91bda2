"""Detect the GPUs of this machine with the drivers' own programs: nvidia-smi, amd-smi, rocm-smi.

NVML would give the same answers, because nvidia-smi is built on it. One method is enough for a question asked
once.
"""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from m3agent.serving.plan.gpus import GPUS, Fleet, Gpu, gpu_of_product
from m3agent.serving.plan.memory_model import GIB, MIB
from m3agent.util.errors import EnvironmentFault

ANSWER_SECONDS = 20
"""Timeout of each program in seconds: a sleeping driver needs some seconds for each GPU."""

HELD = 512 * MIB
"""Bytes in use at or above which other programs count as working on a GPU; the driver's own share is less."""

_NVIDIA_FIELDS = ("index", "uuid", "name", "memory.total", "memory.used", "mig.mode.current")


_Ask = Callable[..., str | None]  # `_ask` of a PATH: a program and its arguments


class DetectionError(EnvironmentFault):
    """This machine has no GPUs that M3 could be planned for; `none` is true if it has no GPU at all."""

    def __init__(self, sentence: str, *, none: bool = False) -> None:
        super().__init__(sentence)
        self.none = none


@dataclass(frozen=True)
class Detected:
    """Result of the detection."""

    fleet: Fleet
    notes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    """Indices of the GPUs, as `variable` takes them."""
    variable: str = "CUDA_VISIBLE_DEVICES"
    used: tuple[int, ...] = ()
    """Bytes in use on each GPU."""


@dataclass(frozen=True)
class _Seen:
    """One GPU as the driver reports it; memory in bytes."""

    index: int
    uuid: str
    product: str
    total: int
    used: int
    mig: bool = False

    def called(self, entry: str) -> bool:
        """Return whether an entry of a variable means it: its index, its UUID, or the beginning of that."""
        if entry.isdecimal():
            return self.index == int(entry)
        return entry.upper().startswith("GPU-") and self.uuid.upper().startswith(entry.upper())


def detect(environ: Mapping[str, str], seconds: float = ANSWER_SECONDS) -> Detected:
    """Detect the GPUs that a server started with this environment would see.

    Raises:
        DetectionError: There are no GPUs, they are of different or unknown kinds, MIG divides them into
            slices, or a program fails.
    """
    path = environ.get("PATH")
    ask = partial(_ask, path, seconds)
    gpus = _nvidia(ask)
    variables: tuple[str, ...] = ("CUDA_VISIBLE_DEVICES",)
    if gpus is None:
        gpus = _amd_smi(ask) or _rocm_smi(ask)
        variables = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    if not gpus:
        raise DetectionError(
            "no GPU was found here (neither nvidia-smi nor amd-smi nor rocm-smi lists one); "
            "name the GPUs to plan for, like --gpus 8xH200",
            none=True,
        )
    variable = next((name for name in variables if name in environ), variables[0])
    if variable in environ:
        gpus = _visible(gpus, variable, environ[variable])
    return _fleet(gpus, variable)


def _fleet(gpus: Sequence[_Seen], variable: str) -> Detected:
    kind = _kind(gpus, variable)
    devices, used = tuple(str(gpu.index) for gpu in gpus), tuple(gpu.used for gpu in gpus)
    held = [gpu for gpu in gpus if gpu.used >= HELD]
    if not held:
        return Detected(Fleet(kind, len(gpus)), (), devices, variable, used)
    fullest = max(held, key=lambda gpu: gpu.used)
    where = _indices(held) if len(held) == 1 else f"{_indices(held)}, most on GPU {fullest.index}"
    note = (
        f"programs hold memory on GPU {where} ({fullest.used / GIB:.1f} of {fullest.total / GIB:.1f} GiB): the plan "
        "uses what is left; `m3agent serve status`, `nvidia-smi` or `amd-smi process` names them"
    )
    fleet = Fleet(kind, len(gpus), free_bytes=max(0, kind.usable_bytes - fullest.used))
    return Detected(fleet, (note,), devices, variable, used)


def _kind(gpus: Sequence[_Seen], variable: str) -> Gpu:
    """Return the one kind of GPUs that M3 runs on, or raise a DetectionError that says what is there instead."""
    if sliced := [gpu for gpu in gpus if gpu.mig]:
        whole = [gpu for gpu in gpus if not gpu.mig]
        instead = f", or leave it out with {variable}={_indices(whole)}" if whole else ""
        raise DetectionError(
            f"GPU {_indices(sliced)} is divided into slices by MIG, and M3 needs whole GPUs: "
            f"end that as root with `nvidia-smi -i {_indices(sliced)} -mig 0`{instead}"
        )
    kinds: dict[str, list[_Seen]] = {}
    for gpu in gpus:
        kinds.setdefault(gpu.product, []).append(gpu)
    if len(kinds) > 1:
        listed = "; ".join(f"{len(of)} x {product} ({_indices(of)})" for product, of in kinds.items())
        most = max(
            kinds.values(), key=lambda of: (gpu_of_product(of[0].product, of[0].total) is not None, len(of))
        )
        raise DetectionError(
            f"the GPUs here are of several kinds: {listed}; one server needs GPUs of "
            f"one kind: choose them with {variable}={_indices(most)}"
        )
    product, total = gpus[0].product, min(gpu.total for gpu in gpus)
    kind = gpu_of_product(product, total)
    if kind is None:
        raise DetectionError(
            f"{len(gpus)} x {product} ({total / GIB:.0f} GiB) is not a GPU that can "
            f"run M3; those are {', '.join(GPUS)}"
        )
    return kind


def _visible(gpus: Sequence[_Seen], variable: str, value: str) -> list[_Seen]:
    """Select the GPUs that a variable leaves visible.

    The function reads the variable as CUDA does: indices, or UUIDs, or prefixes of UUIDs.
    """
    chosen: list[_Seen] = []
    for entry in (part.strip() for part in value.split(",")) if value.strip() else ():
        if entry.upper().startswith("MIG-"):
            raise DetectionError(
                f"{variable}={value} names a slice of a GPU (MIG), and M3 needs whole GPUs; name whole ones"
            )
        match = [gpu for gpu in gpus if gpu.called(entry)]
        if len(match) != 1 or match[0] in chosen:
            wrong = "names no GPU of this machine" if not match else "names one more than once"
            raise DetectionError(
                f"{variable}={value}: {entry or 'an empty entry'} {wrong} (it has {_indices(gpus)}); "
                "CUDA would ignore the entries after it: correct or unset the variable"
            )
        chosen += match
    if not chosen:
        raise DetectionError(f"{variable} is empty, which hides every GPU: unset it or name GPUs")
    return chosen


def _nvidia(ask: _Ask) -> list[_Seen] | None:
    """Return the GPUs that nvidia-smi lists; None without the program or without an NVIDIA GPU."""
    text = ask("nvidia-smi", f"--query-gpu={','.join(_NVIDIA_FIELDS)}", "--format=csv,noheader,nounits")
    if text is None:
        return None
    gpus: list[_Seen] = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) != len(_NVIDIA_FIELDS):
            continue  # "No devices were found"
        index, uuid, product, total, used, mig = (cell.strip() for cell in row)
        mig_on = mig.casefold() == "enabled"
        if not (total.isdecimal() and used.isdecimal()):
            raise DetectionError(
                f"nvidia-smi says {total!r} for the memory of GPU {index} ({product}); check its state with "
                "`nvidia-smi -q`"
            )
        gpus.append(_Seen(int(index), uuid, product, int(total) * MIB, int(used) * MIB, mig_on))
    return gpus or None


def _amd_smi(ask: _Ask) -> list[_Seen]:
    asics = _listed(ask("amd-smi", "static", "--asic", "--json"), "amd-smi")
    usages = _listed(ask("amd-smi", "metric", "--mem-usage", "--json"), "amd-smi") if asics else []
    gpus: list[_Seen] = []
    with _parsing("amd-smi"):
        usage = {int(entry["gpu"]): entry["mem_usage"] for entry in usages}
        for entry in asics:
            index = int(entry["gpu"])
            total, used = (int(usage[index][name]["value"]) * MIB for name in ("total_vram", "used_vram"))
            gpus.append(_Seen(index, "", str(entry["asic"]["market_name"]), total, used))
    return gpus


def _rocm_smi(ask: _Ask) -> list[_Seen]:
    text = ask("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")
    gpus: list[_Seen] = []
    if not text or not text.strip():
        return gpus
    with _parsing("rocm-smi"):
        for card, fields in json.loads(text).items():
            if card.startswith("card"):
                product = next(str(fields[name]) for name in ("Card Series", "Card series") if name in fields)
                total, used = (int(fields[f"VRAM Total {name}(B)"]) for name in ("Memory ", "Used Memory "))
                gpus.append(_Seen(int(card[4:]), "", product, total, used))
    return gpus


def _listed(text: str | None, program: str) -> list[Any]:
    """Parse amd-smi's list of GPUs; newer versions wrap the list in an object."""
    if not text or not text.strip():
        return []
    with _parsing(program):
        answer = json.loads(text)
        return list(answer["gpu_data"] if isinstance(answer, dict) else answer)


def _ask(path: str | None, seconds: float, program: str, *arguments: str) -> str | None:
    """Run a program and return its output; None if it is not installed or finds no GPU."""
    full = shutil.which(program, path=path)
    if full is None:
        return None
    try:
        done = subprocess.run(
            [full, *arguments], capture_output=True, check=False, timeout=seconds, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise DetectionError(
            f"{program} did not answer within {seconds:g} s; check the driver, or name the GPUs with --gpus"
        ) from None
    except OSError as error:
        raise DetectionError(
            f"{program} cannot be started: {error.strerror}; name the GPUs with --gpus"
        ) from None
    output = done.stdout.decode(errors="replace")
    if done.returncode:
        words = " ".join((done.stderr.decode(errors="replace") or output).split())[:200]
        if "no devices" in words.casefold():
            return None
        raise DetectionError(
            f"{program} failed with exit code {done.returncode}: {words or 'no output'}; "
            "check the driver, or name the GPUs with --gpus"
        )
    return output


@contextmanager
def _parsing(program: str) -> Iterator[None]:
    """Raise a DetectionError if the output of a program has another form."""
    try:
        yield
    except (AttributeError, KeyError, StopIteration, TypeError, ValueError):
        raise DetectionError(
            f"this version cannot parse the output of {program}; name the GPUs with --gpus"
        ) from None


def _indices(gpus: Sequence[_Seen]) -> str:
    return ",".join(str(gpu.index) for gpu in gpus)

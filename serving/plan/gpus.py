"""The GPUs that M3 is served on, and how a number of them is written: `8xH200`, `2x4xGB200`.

`usable_bytes` is what a process sees as the GPU's total (`torch.cuda.mem_get_info`), which is less than the driver's
list says: an engine's utilisation is a share of it.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from enum import StrEnum

GIB = 2**30
MIB = 2**20


def gib(size: int) -> str:
    """Bytes as `103.2 GiB`."""
    return f"{size / GIB:,.1f} GiB"


MOST_GPUS = 1024
"""A number above this is a slip of the finger."""


class Vendor(StrEnum):
    """Who made a GPU."""

    NVIDIA = "nvidia"
    AMD = "amd"


class Architecture(StrEnum):
    """What decides which kernels run."""

    HOPPER = "hopper"
    BLACKWELL = "blackwell"
    CDNA3 = "cdna3"
    CDNA4 = "cdna4"


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU. `usable_bytes`: memory as a process sees it; `measured`: by us, on that GPU.

    `spot` and `on_demand`: dollars an hour, None where no price is known; `source`: of the memory; `node`: how many a
    machine has at most.
    """

    name: str
    vendor: Vendor
    architecture: Architecture
    usable_bytes: int
    measured: bool
    source: str
    spot: float | None = None
    on_demand: float | None = None
    node: int = 8


def _gib(value: float) -> int:
    return int(value * GIB)


PRICES_OF = "cloud prices of June 2026"
_NVIDIA, _AMD = Vendor.NVIDIA, Vendor.AMD
_HOPPER, _BLACKWELL = Architecture.HOPPER, Architecture.BLACKWELL
_CDNA3, _CDNA4 = Architecture.CDNA3, Architecture.CDNA4
_LESS = "nominal size less 1%, as on those that were measured"

GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            "H100-80",
            _NVIDIA,
            _HOPPER,
            _gib(79.1),
            False,
            "nvidia-smi says 81,559 MiB (modal-labs/modal-client#2797), less what the driver keeps",
            1.43,
            3.92,
        ),
        Gpu(
            "H200",
            _NVIDIA,
            _HOPPER,
            _gib(139.8),
            True,
            "torch on four of them; nvidia-smi says 143,771 MiB",
            1.82,
            4.84,
        ),
        Gpu("H20-96", _NVIDIA, _HOPPER, _gib(95.0), False, _LESS),
        Gpu("H20-141", _NVIDIA, _HOPPER, _gib(139.5), False, _LESS),
        Gpu("B200", _NVIDIA, _BLACKWELL, _gib(178.3), False, "CUDA says 178.35 GiB (pytorch/ao#4002)"),
        Gpu("B300", _NVIDIA, _BLACKWELL, _gib(265.3), False, "268 GiB, less 1%"),
        Gpu(
            "GB200",
            _NVIDIA,
            _BLACKWELL,
            _gib(178.3),
            False,
            "taken to be a B200; 186 GB by its data sheet",
            node=4,
        ),
        Gpu(
            "GB300",
            _NVIDIA,
            _BLACKWELL,
            _gib(265.3),
            False,
            "taken to be a B300; 288 GB by its data sheet",
            node=4,
        ),
        Gpu("MI300X", _AMD, _CDNA3, _gib(190.0), False, _LESS),
        Gpu("MI325X", _AMD, _CDNA3, _gib(253.4), False, _LESS),
        Gpu("MI350X", _AMD, _CDNA4, _gib(285.1), False, _LESS),
        Gpu("MI355X", _AMD, _CDNA4, _gib(285.1), False, _LESS),
    )
}
"""By name. Where the same GPU comes in two sizes, the name says which."""

ALIASES = {
    "H100": "H100-80",
    "H200-141": "H200",
    "H20": "H20-96",
    "B200-180": "B200",
    "B200-192": "B200",
    "B300-288": "B300",
    "GB200-186": "GB200",
    "GB300-288": "GB300",
    "MI300X-192": "MI300X",
    "MI325X-256": "MI325X",
    "MI350X-288": "MI350X",
    "MI355X-288": "MI355X",
}


@dataclass(frozen=True)
class Fleet:
    """GPUs of one kind: `nodes` machines with `per_node` of them each.

    `free_bytes`: of the fullest GPU, where other programs were seen to hold memory; None: all of it is free.
    """

    gpu: Gpu
    per_node: int
    nodes: int = 1
    free_bytes: int | None = None

    @property
    def count(self) -> int:
        """All GPUs together."""
        return self.nodes * self.per_node

    def __str__(self) -> str:
        nodes = f"{self.nodes}x" if self.nodes > 1 else ""
        return f"{nodes}{self.per_node}x{self.gpu.name}"

    def of(self, count: int) -> Fleet:
        """As many GPUs of this kind, on as many machines as that takes if it is a whole number of them."""
        node = self.gpu.node
        nodes = count // node if count > node and count % node == 0 else 1
        return replace(self, per_node=count // nodes, nodes=nodes)


_SPEC = re.compile(r"(?:([0-9]{1,6})x)?(?:([0-9]{1,6})x)?([a-z]+[0-9]+[a-z]*)(?:[- ]?([0-9]{2,3})(?:gb)?)?")


def parse_gpus(text: str) -> Fleet:
    """GPUs as people write them: `H200` (one), `8xH200`, `2x4xGB200` (two nodes of four), `8 x h20-141GB`.

    More than a machine has are taken to be on several: `8xGB200` is `2x4xGB200`.

    Raises ValueError with one sentence for anything else.
    """
    spec = re.sub(r"\s*[x×*]\s*", "x", text.strip().lower())  # noqa: RUF001  # the sign people paste
    match = _SPEC.fullmatch(spec)
    if match is None:
        shown = text if len(text) <= 40 else text[:39] + "…"
        raise ValueError(
            f"{shown!r} is not a number of GPUs; write it like 8xH200, or 2x4xGB200 for two nodes of four"
        )
    first, second, model, size = match.groups()
    nodes, per_node = (int(first), int(second)) if second else (1, int(first or 1))
    if not (nodes and per_node and nodes * per_node <= MOST_GPUS):
        raise ValueError(
            f"{text.strip()!r} asks for {nodes * per_node:,} GPUs; a number from 1 to {MOST_GPUS:,} is meant"
        )
    fleet = Fleet(_named(model, size), per_node, nodes)
    return fleet if second else fleet.of(per_node)


def gpu_of_product(product: str, total_bytes: int) -> Gpu | None:
    """The kind of GPU that a driver's product name means ("NVIDIA H200", "AMD Instinct MI300X"); None: not one of ours.

    Where a GPU comes in two sizes its memory decides.
    """
    words = re.findall(r"[A-Z]+[0-9]+[A-Z]*", product.upper())
    for word in words:
        found = [gpu for gpu in GPUS.values() if gpu.name.split("-")[0] == word]
        if found:
            gpu = min(found, key=lambda gpu: abs(gpu.usable_bytes - total_bytes))
            # an H100 of 94 GB, a B200 sold smaller: its own memory counts, never more than that of the kind
            return gpu if total_bytes >= gpu.usable_bytes else replace(gpu, usable_bytes=total_bytes)
    return None


def _named(model: str, size: str | None) -> Gpu:
    name = model.upper() + (f"-{size}" if size else "")
    found = GPUS.get(ALIASES.get(name, name))
    if found is not None:
        return found
    near = difflib.get_close_matches(name, [*GPUS, *ALIASES], n=3, cutoff=0.6)
    if not near:
        raise ValueError(f"{name} is not a GPU that this version knows; it knows {', '.join(GPUS)}")
    meant = ", ".join(dict.fromkeys(ALIASES.get(kind, kind) for kind in near))
    raise ValueError(f"{name} is not a GPU that this version knows; did you mean {meant}?")

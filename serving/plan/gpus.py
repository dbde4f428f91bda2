"""The GPUs that can serve M3, and how users write a number of them: `8xH200`, `2x4xGB200`.

`usable_bytes` is the total that a process sees (`torch.cuda.mem_get_info`). It is less than the driver's
figure. An engine's utilisation is a share of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator

from m3agent.serving.facts.table import Row, plausible, rows, version_range, within
from m3agent.serving.plan.kinds import EngineKind, Precision
from m3agent.serving.plan.memory_model import GIB, possible_tp
from m3agent.util.errors import UsageError

MOST_GPUS = 1024
"""Upper limit of GPUs in a specification; a larger number is a typing error."""


class Vendor(StrEnum):
    """Manufacturer of a GPU."""

    NVIDIA = "nvidia"
    AMD = "amd"


class Architecture(StrEnum):
    """GPU architecture; it decides which kernels run."""

    AMPERE = "ampere"
    HOPPER = "hopper"
    BLACKWELL = "blackwell"
    """SM100: the data centre's Blackwell."""
    BLACKWELL_RTX = "blackwell-rtx"
    """SM120 and SM121: the workstation's Blackwell, which has other kernels."""
    CDNA3 = "cdna3"
    CDNA4 = "cdna4"


_Memory = Annotated[float, AfterValidator(plausible(40, 600, "GiB of one GPU, which are its MiB / 1024"))]
_Price = Annotated[float, AfterValidator(plausible(0.1, 60, "dollars for an hour of one GPU"))]


@dataclass(frozen=True, kw_only=True)
class Gpu(Row):
    """One kind of GPU; `source` is that of its memory."""

    needed = ("H200",)
    name: str
    """Name, with the memory size where the GPU comes in two sizes."""
    vendor: Vendor
    architecture: Architecture
    usable_gib: _Memory
    """Memory as a process sees it, in GiB."""
    measured: bool
    """True if we measured it on this kind of GPU."""
    aliases: tuple[str, ...] = ()
    spot: _Price | None = None
    """Spot price in dollars an hour; None if unknown."""
    on_demand: _Price | None = None
    """On-demand price in dollars an hour; None if unknown."""
    prices: str = ""
    """Where the prices come from."""
    spot_prices: str = ""
    """Where the spot price comes from, if from elsewhere."""
    node: Annotated[int, AfterValidator(plausible(1, 72, "the most GPUs of one machine"))] = 8
    """Maximum number of GPUs in one machine."""
    trtllm_tp: tuple[int, ...] = ()
    """Tensor-parallel sizes of TensorRT-LLM on one node, for which it has msa kernels."""
    products: tuple[str, ...] = ()
    """Names under which clusters label it: `nvidia.com/gpu.product`, `amd.com/gpu.product-name`."""
    known: bool = True
    """False if the user gave only its name and memory; the rest is then assumed to be as on an H200."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its name and the other ways to write it."""
        return (self.name, *self.aliases)

    def check(self) -> None:
        """Compare the fields. Raises ValueError, which begins with the field's name."""
        if self.spot is not None and self.on_demand is not None and self.spot > self.on_demand:
            raise ValueError(
                f"spot: {self.spot} is more than on_demand, {self.on_demand}: the range is upside down"
            )
        if bool(self.prices) == (self.spot is None and self.on_demand is None):
            raise ValueError("prices: it says where spot and on_demand come from; give all, or none of them")
        if self.spot_prices and self.spot is None:
            raise ValueError("spot_prices: it says where spot comes from; give both, or leave both out")
        if self.architecture.startswith("cdna") != (self.vendor is Vendor.AMD):
            raise ValueError(f"vendor: {self.vendor} has no GPUs of the architecture {self.architecture}")
        _check_layouts("trtllm_tp", self.trtllm_tp)

    @property
    def usable_bytes(self) -> int:
        """Memory as a process sees it, in bytes."""
        return int(self.usable_gib * GIB)


@dataclass(frozen=True, kw_only=True)
class ArchitectureRow(Row):
    """What the engines have for an architecture."""

    needed = tuple(Architecture)
    name: Architecture
    documented: bool = True
    """True if a recipe page has M3 on it."""
    precisions: tuple[Precision, ...]
    """Precisions of the weights to try if the user names none, in order of preference."""
    fp8_cache: bool = True
    fp8_index: Annotated[str, AfterValidator(version_range)] = ""
    """Versions of vLLM that are planned with index keys in fp8; empty for none."""
    sglang_tp: tuple[int, ...] = ()
    """Tensor-parallel sizes of SGLang's cookbook for M3."""
    sglang_precisions: tuple[Precision, ...] = ()
    """Precisions that the cookbook has; empty for any."""
    vllm_env: Mapping[str, str] = field(default_factory=dict[str, str])
    vllm_mxfp8_env: Mapping[str, str] = field(default_factory=dict[str, str])
    """The same for MXFP8 weights, in addition."""

    def check(self) -> None:
        """Check the layouts. Raises ValueError, which begins with the field's name."""
        _check_layouts("sglang_tp", self.sglang_tp)

    def offered(self, engine: EngineKind | None) -> tuple[Precision, ...]:
        """Return the precisions to try with an engine if the user names none, in order of preference."""
        return (
            self.sglang_precisions
            if engine is EngineKind.SGLANG and self.sglang_precisions
            else self.precisions
        )

    def has_fp8_index(self, version: str | None) -> bool:
        """Return whether a version of vLLM has index keys in fp8; None means that a version can be chosen."""
        return bool(self.fp8_index) and (version is None or within(version, self.fp8_index))


def _check_layouts(field: str, sizes: tuple[int, ...]) -> None:
    for size in sizes:
        if not possible_tp(size):
            raise ValueError(f"{field}: M3 cannot be spread over {size} GPUs; give powers of two")


GIVEN = "given with --gpu-memory, less 1% for the driver"
"""Source of a memory size that the user gave."""

GPUS = {gpu.name: gpu for gpu in rows(Gpu, "gpus")}
"""All known kinds by name. Where the same GPU comes in two sizes, the name includes the size."""
ALIASES = {alias: gpu.name for gpu in GPUS.values() for alias in gpu.aliases}

ARCHITECTURES = {row.name: row for row in rows(ArchitectureRow, "architectures")}
"""What the engines have for each architecture."""
DOCUMENTED = tuple(gpu for gpu in GPUS.values() if ARCHITECTURES[gpu.architecture].documented)
"""The GPUs on which a recipe page has M3. Only these are advised."""


@dataclass(frozen=True)
class Fleet:
    """GPUs of one kind, equally spread over machines."""

    gpu: Gpu
    per_node: int
    """GPUs in each machine."""
    nodes: int = 1
    free_bytes: int | None = None
    """Free memory on the fullest GPU if other programs hold memory; None if all memory is free."""

    @property
    def count(self) -> int:
        """Number of GPUs in all machines."""
        return self.nodes * self.per_node

    @property
    def memory(self) -> int:
        """Memory of all GPUs in bytes."""
        return self.count * self.gpu.usable_bytes

    def __str__(self) -> str:
        nodes = f"{self.nodes}x" if self.nodes > 1 else ""
        return f"{nodes}{self.per_node}x{self.gpu.name}"

    def of(self, count: int) -> Fleet:
        """Return a fleet of `count` GPUs of this kind.

        The fleet has several machines if `count` is a multiple of a machine's maximum, otherwise one.
        """
        node = self.gpu.node
        nodes = count // node if count > node and count % node == 0 else 1
        return replace(self, per_node=count // nodes, nodes=nodes)


_SPEC = re.compile(
    r"(?:([0-9]{1,6})x)?(?:([0-9]{1,6})x)?"
    r"([a-z]+(?:[- ][a-z]+)*(?(1)(?:[- ]?[0-9]+[a-z]*)?|[- ]?[0-9]+[a-z]*))"  # without digits only after a number
    r"(?:[- ]?([0-9]{2,3})(?:gb)?)?"
)
_BESIDE_THE_MODEL = re.compile(r"(?:nvidia|amd instinct) |[- ](?:sxm[0-9]?|oam|pcie|hbm[0-9]e?|nvl)\b")
"""What product names say beside the model and its memory: maker, form factor and kind of memory."""


class UnknownGpu(UsageError):
    """The table has no such GPU.

    Attributes:
        near: Names of known GPUs that are spelt alike: one name begins with the other. A name with another letter or
            digit (A100, H800) is another GPU.
    """

    def __init__(self, name: str, near: tuple[str, ...]) -> None:
        hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(GPUS)}"
        super().__init__(f"{name} is not a known GPU; {hint}")
        self.name = name
        self.near = near


def parse_gpus(text: str, memory: int | None = None) -> Fleet:
    """Parse a number of GPUs: `H200` or `DGX Spark` (one), `8xH200`, `2x4xGB200` (two nodes of four), `8 x h20-141GB`.

    Product names are taken as drivers and shops write them: `8x NVIDIA H100 80GB HBM3`, `8xA100-SXM4-80GB`, `8xH100-NVL`.
    More GPUs than one machine has are spread over several: `8xGB200` means `2x4xGB200`, and so does `2xGB200 NVL4`. An NVL72 is
    a rack of 18 machines.

    Args:
        memory: Nominal memory of each GPU in GB (as sold, so in units of 2^30 bytes); then the GPU need not be a
            known one. None takes the table's memory.

    Raises:
        UnknownGpu: The table has no such GPU.
        UsageError: The text is not a number of GPUs; the message is one sentence.
    """
    spec = _BESIDE_THE_MODEL.sub("", text.strip().lower())
    spec = _counted(re.sub(r"(?<=[0-9])\s*[x×*]\s*", "x", spec))  # noqa: RUF001  # the sign people paste
    match = _SPEC.fullmatch(spec)
    if match is None:
        shown = text if len(text) <= 40 else text[:39] + "…"
        raise UsageError(
            f"{shown!r} is not a number of GPUs; write it like 8xH200, or 2x4xGB200 for two nodes of four"
        )
    first, second, model, size = match.groups()
    nodes, per_node = (int(first), int(second)) if second else (1, int(first or 1))
    if not (nodes and per_node and nodes * per_node <= MOST_GPUS):
        raise UsageError(f"{text.strip()!r} asks for {nodes * per_node:,} GPUs; give 1 to {MOST_GPUS:,}")
    fleet = Fleet(_named(model, size) if memory is None else _of_memory(model, size, memory), per_node, nodes)
    return fleet if second else fleet.of(per_node)


def _counted(spec: str) -> str:
    """Return `2xgb200 nvl4`, two boards of four GPUs, as the number of GPUs: `8xgb200`; `dgx spark` is one, `4 dgx spark` are four."""
    if spec.upper().replace(" ", "-") in ALIASES:
        return f"1x{spec}"
    spec = re.sub(r"^([0-9]{1,6}) +(?=[a-z])", r"\1x", spec)
    board = re.fullmatch(r"(?:([0-9]{1,4})x)?(.*?[a-z0-9])[ -]?nvl([0-9]{1,3})", spec)
    return spec if board is None else f"{int(board[1] or 1) * int(board[3])}x{board[2]}"


def gpu_of_product(product: str, total_bytes: int) -> Gpu | None:
    """Return the kind of GPU that a driver's product name means ("NVIDIA H200", "AMD Instinct MI300X"); None if M3 runs on no such one.

    The memory that the driver reports decides where a GPU comes in two sizes. A GPU with less memory than its kind keeps that.
    """
    words = re.findall(r"[A-Z]+[0-9]+[A-Z]*", product.upper().replace("RTX PRO ", "RTXPRO"))
    for word in words:
        sizes = [gpu for gpu in GPUS.values() if gpu.name.split("-")[0] == word]
        if sizes:
            gpu = min(sizes, key=lambda gpu: abs(gpu.usable_bytes - total_bytes))
            # An H100 with 94 GB, or a smaller B200: use the actual memory, but never more than the kind has.
            return gpu if total_bytes >= gpu.usable_bytes else replace(gpu, usable_gib=total_bytes / GIB)
    return None


def _of_memory(model: str, size: str | None, memory: int) -> Gpu:
    """Return a GPU of a given memory. What is unknown about it is assumed to be as on a Hopper GPU."""
    try:
        return replace(_named(model, size), usable_gib=memory * 0.99, measured=False, source=GIVEN)
    except UnknownGpu as unknown:
        like = GPUS["H200"]
        own = replace(like, name=unknown.name, usable_gib=memory * 0.99, measured=False, source=GIVEN)
        return replace(own, aliases=(), spot=None, on_demand=None, prices="", spot_prices="", known=False)


def _named(model: str, size: str | None) -> Gpu:
    name = model.upper().replace(" ", "-") + (f"-{size}" if size else "")
    known = GPUS.get(ALIASES.get(name, name))
    if known is not None:
        return known
    raise UnknownGpu(name, _near(name))


def _near(name: str) -> tuple[str, ...]:
    """Return the known kinds with the longest common spelling: their names begin with this one, or this one with theirs."""
    if not any(map(str.isdigit, name)):
        return ()
    lengths = {
        spelt: min(len(spelt), len(name))
        for spelt in (*GPUS, *ALIASES)
        if spelt.startswith(name) or name.startswith(spelt)
    }
    longest = max(lengths.values(), default=0)
    return tuple(
        dict.fromkeys(ALIASES.get(spelt, spelt) for spelt, length in lengths.items() if length == longest)
    )

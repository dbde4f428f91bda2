"""Inspect the checkpoint to serve: its shape, and whether this machine has all its weights."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from m3agent.serving.plan.draft import GQA_DRAFT, ROPE_POSITIONS, Draft, known_draft
from m3agent.serving.plan.kinds import Precision
from m3agent.serving.plan.memory_model import (
    DENSE_WIDTH,
    EXPERT_WIDTH,
    EXPERTS,
    GIB,
    HIDDEN,
    KV_HEADS,
    M3,
    NATIVE_CONTEXT,
    QUERY_HEADS,
    LayerCounts,
    Split,
    weight_bytes,
)
from m3agent.util.errors import UsageError
from m3agent.util.json_value import mapping

_WIDTHS = {
    "hidden_size": HIDDEN,
    "intermediate_size": EXPERT_WIDTH,
    "dense_intermediate_size": DENSE_WIDTH,
    "num_attention_heads": QUERY_HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_local_experts": EXPERTS,
}
_ARCHITECTURE = "MiniMaxM3"
_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)  # a repository on Hugging Face
_OTHER_MODEL = re.compile(r"minimax-?m3\.[0-9]", re.IGNORECASE)  # M3.1-Flash
_PRECISIONS = {"mxfp8": Precision.MXFP8, "mxfp4": Precision.MXFP4, "nvfp4": Precision.NVFP4}


class CheckpointError(UsageError):
    """A checkpoint that cannot be served. The message says in one sentence why and what to do."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint to serve."""

    name: str
    """Folder or name on Hugging Face; the engine gets it."""
    folder: Path | None
    """Folder of its files; None if they are not on this machine yet."""
    shape: LayerCounts = M3
    precision: Precision | None = None
    positions: int = NATIVE_CONTEXT
    """`max_position_embeddings` of its config."""
    revision: str = ""
    """The revision that the engine is told to read; empty for `main`."""
    whole: bool = True
    """True if it has M3's widths, so that the memory model applies."""
    text_config: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    """Its config of the language model; None if it is not on this machine."""


def read_checkpoint(
    model: str, environ: Mapping[str, str], *, weights: bool = True, revision: str = ""
) -> Checkpoint:
    """Read the config of a checkpoint and check that its weights are complete.

    Args:
        weights: False if a folder needs no weights because the engine makes up random ones.
        revision: A branch, a tag or a commit that the engine is told to read; `main` if it is empty.

    Raises:
        CheckpointError: There is no such folder, it is not an M3 checkpoint, or it is not complete.
    """
    path = as_path(model)
    if path.is_dir():
        return _read(str(path.resolve()), path.resolve(), weights=weights)
    if not _NAME.fullmatch(model):
        what = "is a file" if path.exists() else "does not exist"
        raise CheckpointError(
            f"{model} {what}: give a folder with config.json, or a name like MiniMaxAI/MiniMax-M3"
        )
    if _OTHER_MODEL.search(model):
        raise CheckpointError(
            f"{model} is another model than M3, with other sizes, and m3agent has no plan for it: start it as its own documents say, "
            "or use a hosted one, with m3agent fix --endpoint URL --model NAME"
        )
    folder = _cached(model, environ, revision)
    return (
        Checkpoint(model, None, precision=_by_name(model), revision=revision)
        if folder is None
        else _read(model, folder, weights=False)
    )


def elsewhere(folder: str) -> Checkpoint:
    """Return a checkpoint in a folder that this machine does not have; its precision is that of its name."""
    return Checkpoint(folder, None, precision=_by_name(folder))


def check_name(model: str) -> None:
    """Check that a model is given by a name on Hugging Face. Raises CheckpointError: it is not."""
    if not _NAME.fullmatch(model):
        raise CheckpointError(f"{model} is not a name on Hugging Face: give one like MiniMaxAI/MiniMax-M3")


def read_draft(model: str, environ: Mapping[str, str]) -> Draft:
    """Read the config of a draft for M3; a published draft that is not on this machine is known by its name.

    Raises:
        CheckpointError: There is no such folder, its config is not that of a draft for M3, or the download of an
            unknown draft would be necessary to read it.
    """
    path = as_path(model)
    if not path.is_dir() and not _NAME.fullmatch(model):
        raise CheckpointError(
            f"{model} does not exist: give the draft's folder, or a name like {GQA_DRAFT.model}"
        )
    folder = path.resolve() if path.is_dir() else _cached(model, environ)
    if folder is None:
        if (known := known_draft(model)) is not None:
            return known
        raise CheckpointError(
            f"the draft {model} is not on this machine, so its size is unknown: download it first, or take {GQA_DRAFT.model}"
        )
    config = _json(folder / "config.json")
    named = config.get("architectures")
    if not (
        isinstance(named, list) and any("eagle3" in str(architecture).casefold() for architecture in named)
    ):
        raise CheckpointError(
            f"{folder / 'config.json'} is not that of an EAGLE3 draft: take {GQA_DRAFT.model}, or --draft off"
        )
    keys = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    sizes = [_size(config.get(key)) for key in keys]
    if not all(sizes):
        raise CheckpointError(
            f"{folder / 'config.json'} lacks one of {', '.join(keys)}: download the draft again"
        )
    hidden, inner, heads, kv_heads = sizes
    if hidden != HIDDEN:
        raise CheckpointError(
            f"the draft {model} reads states of {hidden:,} numbers and M3's have {HIDDEN:,}: take {GQA_DRAFT.model}"
        )
    width = _size(config.get("head_dim")) or hidden // heads
    # An EAGLE3 layer reads the embedding beside the state, so the inputs of its attention have twice the width.
    attention = 2 * hidden * (heads + 2 * kv_heads) * width + heads * width * hidden
    count = 3 * hidden * hidden + attention + 3 * hidden * inner
    name = str(folder) if path.is_dir() else model
    positions = _size(config.get("max_position_embeddings")) or ROPE_POSITIONS
    return Draft(name, kv_heads, count * 2, inner, positions)


def _size(value: object) -> int:
    """Return a size that a config states; 0 if the value is not a positive whole number."""
    return value if isinstance(value, int) and value > 0 else 0


def lacking_weights(
    checkpoint: Checkpoint, precision: Precision | None, environ: Mapping[str, str], *, download: bool
) -> str | None:
    """Return why an engine cannot have the weights; None if they are here, or if it may and can download them."""
    if checkpoint.folder is not None:
        return None
    if _offline(environ):
        return (
            f"{checkpoint.name} is not on this machine and HF_HUB_OFFLINE forbids the download: unset it, or give "
            "the checkpoint's folder with --model"
        )
    needed = (
        0
        if precision is None
        else weight_bytes(checkpoint.shape, precision, Split(1), vision=True, positions=0)
    )
    if not download:
        revision = checkpoint.revision
        at, fetched = (f" at {revision}", f" --revision {shlex.quote(revision)}") if revision else ("", "")
        size = f" (about {needed / 1e9:,.0f} GB)" if needed else ""
        return (
            f"{checkpoint.name}{size} is not complete on this machine{at}: get it with `m3agent serve fetch {checkpoint.name}"
            f"{fetched}`, or let the engine download it with --download"
        )
    there, free = free_bytes(cache_folder(environ))
    if free >= needed:
        return None
    return (
        f"the weights of {checkpoint.name} take {needed / GIB:.0f} GiB and {there} has {free / GIB:.0f} GiB free: make "
        "room, or set HF_HOME to a folder on a larger disk"
    )


def free_bytes(folder: Path) -> tuple[Path, int]:
    """Return a folder, or the nearest one above it that exists, and the free bytes of its disk. Raises OSError."""
    while not folder.exists():
        folder = folder.parent
    return folder, shutil.disk_usage(folder).free


def lacking_download(model: str, environ: Mapping[str, str]) -> bool:
    """Return whether a model would have to be downloaded, and the environment forbids that."""
    return _offline(environ) and not is_here(model, environ)


def as_path(model: str) -> Path:
    """Return a model as a path, in which `~` is the home folder."""
    return Path(os.path.expanduser(model))  # noqa: PTH111  # never raises


def is_here(model: str, environ: Mapping[str, str]) -> bool:
    """Return whether a model is on this machine, as a folder or in Hugging Face's cache."""
    return as_path(model).is_dir() or _cached(model, environ) is not None


def are_cached(models: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """Return whether models include names on Hugging Face, and the cache has all of those.

    Args:
        models: The revision of each model; empty for `main`.
    """
    names = {model: revision for model, revision in models.items() if model and not as_path(model).is_dir()}
    return bool(names) and all(_cached(name, environ, revision) for name, revision in names.items())


def _offline(environ: Mapping[str, str]) -> bool:
    return environ.get("HF_HUB_OFFLINE", "").strip().casefold() in ("1", "on", "yes", "true")


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of Hugging Face's cache (huggingface_hub's HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME)."""
    hub = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    return as_path(hub) if hub else hugging_face(environ) / "hub"


def hugging_face(environ: Mapping[str, str]) -> Path:
    """Return Hugging Face's folder by the rules of huggingface_hub (its constants.py)."""
    cache = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME', '~')}/.cache"
    return as_path(environ.get("HF_HOME") or f"{cache}/huggingface")


def _cached(name: str, environ: Mapping[str, str], revision: str = "") -> Path | None:
    """Return the folder of a revision's snapshot in the Hugging Face cache, or None if it is not complete.

    Without a revision, engines without the network find the main branch only.
    """
    store = cache_folder(environ) / f"models--{name.replace('/', '--')}"
    reference = store / "refs" / (revision or "main")
    try:
        commit = reference.read_text("utf-8").strip() if reference.is_file() or not revision else revision
    except (OSError, ValueError):
        return None
    folder = store / "snapshots" / commit
    return folder if (folder / "config.json").exists() and _missing_weights(folder) is None else None


def _read(name: str, folder: Path, *, weights: bool) -> Checkpoint:
    config = _json(folder / "config.json")
    named = config.get("architectures")
    if not (isinstance(named, list) and any(str(entry).startswith(_ARCHITECTURE) for entry in named)):
        what = ", ".join(map(str, named)) if isinstance(named, list) and named else "no architecture"
        raise CheckpointError(
            f"{folder / 'config.json'} names {what}, which is not MiniMax M3: give the folder of an M3 checkpoint"
        )
    inner = config.get("text_config")
    text = inner if isinstance(inner, dict) else config
    sparse = text.get("moe_layer_freq")
    if isinstance(sparse, list) and sparse:
        count = sum(bool(entry) for entry in sparse)
        shape = LayerCounts(dense=len(sparse) - count, sparse=count)
    else:
        shape = M3
    positions = text.get("max_position_embeddings")
    if weights and (missing := _missing_weights(folder)):
        raise CheckpointError(missing)
    return Checkpoint(
        name,
        folder,
        shape,
        _precision(config, text),
        positions if isinstance(positions, int) else NATIVE_CONTEXT,
        whole=all(text.get(key, width) == width for key, width in _WIDTHS.items()),
        text_config=text,
    )


def _precision(config: dict[str, Any], text: dict[str, Any]) -> Precision | None:
    quantised = config.get("quantization_config") or text.get("quantization_config")
    if not isinstance(quantised, dict):
        return Precision.BF16
    return _PRECISIONS.get(str(quantised.get("quant_method")).casefold()) or _by_name(
        json.dumps(quantised), otherwise=None
    )


def _by_name(name: str, otherwise: Precision | None = Precision.BF16) -> Precision | None:
    return next((known for word, known in _PRECISIONS.items() if word in name.casefold()), otherwise)


def _missing_weights(folder: Path) -> str | None:
    """Return what is missing from a folder's weights, in one sentence; None if nothing is."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        named = sorted(set(map(str, mapping(_json(index), "weight_map").values())))
        gone = [name for name in named if not (folder / name).exists()]
        if gone:
            some = ", ".join(gone[:2]) + (", …" if len(gone) > 2 else "")
            return (
                f"{folder} lacks {len(gone)} of its {len(named)} weight files ({some}): download them again"
            )
        return None
    if any(folder.glob("*.safetensors")):
        return None
    return (
        f"{folder} has no weights (*.safetensors): download them, or try the engine with random "
        "weights: -- --load-format dummy"
    )


def _json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(
            f"{file.parent} has no {file.name}: a checkpoint folder has this file and the weights"
        ) from None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError:
        raise CheckpointError(f"{file} is not JSON: download it again") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} is not a JSON object: download it again")
    return value

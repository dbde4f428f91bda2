"""A replacement for the model's tokenizer: a tokenizer.json made from a file of byte-pair ranks in tiktoken's format.

With o200k_base it counts as repomix and gitingest do, so that all three do the same work.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

O200K_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|"
    r"\s*[\r\n]+|"
    r"\s+(?!\S)|"
    r"\s+"
)
"""How o200k_base splits text into words, from its definition (openai/tiktoken, tiktoken_ext/openai_public.py)."""


def make_tokenizer(ranks_file: Path, words: str) -> str:
    """Return the text of a tokenizer.json without control tokens. Raises ValueError if the file has no ranks."""
    ranks: dict[bytes, int] = {}
    for line in ranks_file.read_bytes().splitlines():
        entry, _, rank = line.partition(b" ")
        ranks[base64.b64decode(entry, validate=True)] = int(rank)
    shown = _byte_characters()

    def characters(entry: bytes) -> str:
        return "".join(shown[byte] for byte in entry)

    described: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {characters(entry): rank for entry, rank in ranks.items()},
            "merges": [[characters(left), characters(right)] for left, right in merges(ranks)],
        },
    }
    return json.dumps(described, ensure_ascii=False)


def merges(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Return the pair that each entry is merged from, in the order of their ranks.

    Raises ValueError for an entry that merging by rank cannot produce.
    """
    found: list[tuple[bytes, bytes]] = []
    for entry, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(entry) == 1:
            continue
        parts = _merged(entry, ranks, rank)
        if len(parts) != 2:
            raise ValueError(f"the entry {entry!r} is not made of two others")
        found.append((parts[0], parts[1]))
    return found


def _merged(entry: bytes, ranks: Mapping[bytes, int], limit: int) -> list[bytes]:
    """Return the bytes of an entry, merged with all ranks below `limit`."""
    parts = [entry[start : start + 1] for start in range(len(entry))]
    while len(parts) > 1:
        pairs = [ranks.get(left + right, limit) for left, right in pairwise(parts)]
        best = min(pairs)
        if best >= limit:
            break
        place = pairs.index(best)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts


def _byte_characters() -> dict[int, str]:
    """Return the characters that represent bytes in byte-level vocabularies (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + number) for number, byte in enumerate(others)
    }

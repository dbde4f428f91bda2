"""A small tokenizer.json of the kind that large models have: byte-level BPE that splits text as GPT-4o does."""

from __future__ import annotations

import copy
import functools
import json
import random
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT_4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT_4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|endoftext|>", "<think>", "</think>"]

_LATIN = ["ka", "lo", "mi", "ter", "ing", "un", "der", "test", "ed", "er", "s", "naïve", "ção", "über"]
_SYLLABLES = [*_LATIN, "ство", "при", "ка", "слово", "λόγος", "漢字", "仮名", "한국", "भाषा", "ไทย"]
_CODE = [
    "def {}(self, {}: int) -> None:\n        return self.{}\n",
    "    for {} in range(10):\n\t\tprint({}, {!r})\n\n",
    "# {} {} {}'s\n",
    'if {}["{}"] != {} and x == 12345:\n    pass\n',
    "<{}>{}</{}>\r\n",
    "https://{}.example/{}?q={}%20\n",
    "{},\t{};   {}!! ==== //\n",
]


@functools.cache
def _trained(pattern: str, size: int) -> str:
    chance = random.Random(1)
    words = ["".join(chance.choices(_SYLLABLES, k=chance.randint(1, 3))) for _ in range(400)]
    words += [word.title() for word in words[:200]]
    corpus = [chance.choice(_CODE).format(*chance.choices(words, k=3)) for _ in range(3000)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return str(tokenizer.to_str())


def description(pattern: str = GPT_4O, size: int = 1200) -> dict[str, Any]:
    """Return the contents of a tokenizer.json; a test may change them."""
    return copy.deepcopy(_parsed(pattern, size))


@functools.cache
def _parsed(pattern: str, size: int) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(_trained(pattern, size))
    return parsed


def write_tokenizer(path: Path, described: dict[str, Any] | None = None) -> Path:
    """Write a tokenizer.json, by default the one from `description`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(described or description(), ensure_ascii=False), encoding="utf-8")
    return path

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer

from m3agent.serving.check.script import MARKERS
from tests.agent.small_tokenizer import description


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json in which each of M3's markers is one token."""
    tokenizer = Tokenizer.from_str(json.dumps(description()))
    tokenizer.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in MARKERS])
    path = tmp_path_factory.mktemp("model") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="session")
def encode(tokenizer_file: Path) -> Callable[[str], list[int]]:
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)

"""Check whether a server's tokenizer makes the same token ids as Hugging Face's library.

The library reads the model's tokenizer.json. A fast tokenizer that differs in one place changes what the
model reads, without any error.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from m3agent.serving.check.check import Check
from m3agent.serving.check.script import MARKERS
from m3agent.serving.client.endpoint import Endpoint
from m3agent.serving.client.http import open_client
from m3agent.serving.client.tokenize import token_ids
from m3agent.serving.errors import ModelServerError

CONNECT_SECONDS, SECONDS = 10.0, 30.0
"""Timeouts in seconds of a connection, and of one answer of `/tokenize`."""
_FILE = "tokenizer.json"
_FIX = "use the checkpoint's own tokenizer, without a fast one (VLLM_USE_FASTOKENS, --tokenizer-backend)"

SAMPLES = (
    "def f(x: int) -> dict[str, int]:\n    return {'a': x ** 2, \"b\": 0x1F}  # etc.\n\n\nclass A:\n\tpass\r\n",
    "if (a<b&&c>=d){std::vector<int> v{1,2};}// <div class='x'>&amp;</div> \\d+\\.\\w*",
    "漢字とかな交じり文。한국어 텍스트, это русский, עברית, ไทย, Đặng Thị",
    "🙂🙃 👩‍👩‍👧‍👦 🇩🇪 e\u0301 é ﬁ \u200b\u00a0\ufeff x",
    " \n  \n\t\t\n        x   y\t z\n\n\n\n   \n" + " " * 37 + "end" + "\n" * 9,
    "1234567890 3.14159 1e-9 1,000,000 v0.24.0 'tis don't WE'LL ALLCAPS camelCaseName snake_case_name",
    "".join(f"a{marker}b {marker}\n" for marker in (*MARKERS, "]~b]user\n", "[e~[", "]<]image[>[")),
)
"""Code, many scripts, emoji, runs of white space, numbers, and the texts of special tokens."""


async def ids_check(endpoint: Endpoint, *, api_key: str | None, tokenizer: Path | None) -> Check:
    """Compare the token ids of `SAMPLES`.

    Args:
        tokenizer: The model's tokenizer.json or its folder; None if it is not on this machine.
    """
    name = "token ids"
    if tokenizer is None:
        return Check(name, None, f"not compared: the model's {_FILE} is not on this machine")
    try:
        right = await asyncio.to_thread(_reference, tokenizer / _FILE if tokenizer.is_dir() else tokenizer)
    except ImportError:
        fix = "install m3agent[serve] as docs/install.md says"
        return Check(name, None, "not compared: Hugging Face's tokenizers is not installed", fix)
    except ValueError as error:
        return Check(name, None, f"not compared: {tokenizer} cannot be read ({error})")
    async with open_client(endpoint.url, api_key, connect=CONNECT_SECONDS, read=SECONDS) as client:
        for sample, wanted in zip(SAMPLES, right, strict=True):
            try:
                got = await token_ids(client, endpoint, sample, api_key)
            except ModelServerError as error:
                return Check(name, None, f"not compared: {error}")
            if got is None:
                return Check(name, None, "not compared: the server does not return token ids")
            if got != wanted:
                return Check(name, False, _difference(sample, got, wanted), _FIX)
    return Check(name, True, f"{sum(map(len, right)):,} ids equal those of {_FILE}")


def _difference(sample: str, got: list[int], wanted: list[int]) -> str:
    """Describe the first place where the ids of a sample differ."""
    pairs = enumerate(zip(got, wanted, strict=False))
    at = next((place for place, (a, b) in pairs if a != b), min(len(got), len(wanted)))
    return f"not the ids of {_FILE}: {got[at : at + 3]} for {wanted[at : at + 3]}, token {at} of {sample[:20]!r}…"


def _reference(path: Path) -> list[list[int]]:
    """Return the correct ids of each sample.

    Raises:
        ImportError: The library is not installed.
        ValueError: The file cannot be used.
    """
    from tokenizers import Tokenizer

    try:
        data = path.read_bytes()
        reference = Tokenizer.from_buffer(data)
    except OSError as error:
        raise ValueError(error.strerror or error) from None
    reference.no_truncation()
    reference.no_padding()
    return [encoding.ids for encoding in reference.encode_batch(list(SAMPLES), add_special_tokens=False)]

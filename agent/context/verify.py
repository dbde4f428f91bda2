"""Checks a context's token count against the tokenizer that the vendor's own tools use, on the whole text."""

from __future__ import annotations

import sys

from m3agent.agent.context.packed import Context
from m3agent.agent.context.tokenizer.counter import oracle_count
from m3agent.agent.context.tokenizer.source import TokenizerSource
from m3agent.agent.errors import UsageError


def verify(context: Context, tokenizer: TokenizerSource | None) -> int:
    """Say whether the counts of the files add up to what the oracle counts. Returns the exit code.

    Raises `UsageError` without a tokenizer or without the oracle's library.
    """
    if tokenizer is None:
        raise UsageError(
            "--verify needs the model's tokenizer: give its tokenizer.json or folder with --tokenizer."
        )
    whole = oracle_count(tokenizer, context.text)
    same = whole == context.tokens
    mark = "=" if same else "is not"
    sys.stdout.write(
        f"sum of the chunks {context.tokens:,} {mark} {whole:,}, counted as one text ({tokenizer.label})\n"
    )
    return 0 if same else 1

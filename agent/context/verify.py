"""Check a context's token count with the vendor's own tokenizer on the complete text."""

from __future__ import annotations

import sys

from m3agent.agent.context.tokenizer.counter import oracle_count
from m3agent.agent.context.tokenizer.source import TokenizerSource
from m3agent.agent.context.types import Context
from m3agent.agent.errors import UsageError


def verify(context: Context, tokenizer: TokenizerSource | None) -> int:
    """Compare the sum of the chunks' counts with the reference count, and print the result.

    The reference counts the complete text at once.

    Returns:
        The exit status: 0 if they are equal, else 1.

    Raises:
        UsageError: There is no tokenizer, or its library is not installed.
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

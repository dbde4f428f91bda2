"""Keeps a tokenizer.json in the form that loads fastest, with what is known of how well it can be counted with."""

from __future__ import annotations

import os
from hashlib import sha256

from m3agent.agent.context.cache import read_file, write_file
from m3agent.agent.context.tokenizer.source import TokenizerSource, identity, read_tokenizer
from m3agent.agent.errors import UsageError

_MAGIC = b"m3agent tokenizer 2\n"
_DIGEST_BYTES = 32
UNSUPPORTED = 3
"""Exit code of `check` for a file that cannot be counted with; why is on its standard error."""

_MINUTES = 2  # for the largest file on a busy machine; a few seconds are usual


class Prepared:
    """A tokenizer as kitoken stores it, whether its counts are exact and add up, and if not, why.

    `spaces_last` says whether its expression ends as most do, which tells what long runs of white space become.
    """

    __slots__ = ("exact", "form", "note", "spaces_last")

    def __init__(self, form: bytes, note: str, *, spaces_last: bool) -> None:
        self.form = form
        self.note = note
        self.exact = not note
        self.spaces_last = spaces_last

    def packed(self) -> bytes:
        """All of it as one file."""
        body = b"%d%s\n%s" % (self.spaces_last, self.note.encode(), self.form)
        return _MAGIC + sha256(body).digest() + body


def unpacked(packed: bytes | None) -> Prepared | None:
    """What `Prepared.packed` made a file of, or None for anything else."""
    start = len(_MAGIC) + _DIGEST_BYTES
    if packed is None or packed[: len(_MAGIC)] != _MAGIC:
        return None
    body = packed[start:]
    if sha256(body).digest() != packed[len(_MAGIC) : start]:
        return None
    facts, _, form = body.partition(b"\n")
    return Prepared(form, facts[1:].decode(), spaces_last=facts[:1] == b"1")


def prepare(source: TokenizerSource) -> Prepared:
    """The prepared form of a tokenizer's file: kept from an earlier run, or made now and kept where that is possible.

    Raises `UsageError` when the file cannot be read or counted with.
    """
    kept = f"{source.cache}/tokenizers/{source.id}.kit"
    if (found := unpacked(read_file(kept))) is not None:
        return found
    data = read_tokenizer(source.location)
    if identity(data) != source.id:
        raise UsageError(f"The tokenizer {source.location} changed while it was read: run the command again.")
    packed = _convert(data, source.location)
    prepared = unpacked(packed)
    if prepared is None:
        raise UsageError(
            f"The tokenizer {source.location} cannot be used: the program that reads it was cut off."
        )
    try:
        os.makedirs(f"{source.cache}/tokenizers", mode=0o700, exist_ok=True)  # noqa: PTH103
        write_file(kept, packed)
    except OSError:  # then it is made again next time
        pass
    return prepared


def _convert(data: bytes, location: str) -> bytes:
    """Have the form made by another process, which may die of it."""
    import subprocess
    import sys

    # -P: the working directory is a repository that nobody vouches for, and no place to import from.
    command = [sys.executable, "-P", "-m", "m3agent.agent.context.tokenizer.check"]
    try:
        done = subprocess.run(command, input=data, capture_output=True, check=False, timeout=60 * _MINUTES)
    except subprocess.TimeoutExpired:
        reason = f"reading it took longer than {_MINUTES} minutes"
    else:
        if done.returncode == 0:
            return done.stdout
        reason = "the library that counts cannot read it"
        if done.returncode == UNSUPPORTED:
            reason = " ".join(done.stderr.decode("utf-8", "replace").split())
    raise UsageError(
        f"The tokenizer {location} cannot be used: {reason}; download it again, or name another one with --tokenizer."
    )

"""Keep a tokenizer.json in the form that loads fastest, with the result of its check."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from m3agent.agent.context.cache import keep_file
from m3agent.agent.context.tokenizer.source import TokenizerSource, identity, read_tokenizer
from m3agent.util.errors import UsageError
from m3agent.util.private_file import read_file

_MAGIC = b"m3agent tokenizer 2\n"
_DIGEST_BYTES = 32
UNSUPPORTED = 3
"""Exit status of `check` for an unsuitable file; the reason is on its standard error."""

CPU_SECONDS = 120
"""Most CPU time for reading a file; a few seconds are usual. Time of the clock would be no measure on a busy machine."""


@dataclass(frozen=True)
class PreparedTokenizer:
    """A tokenizer in kitoken's format, with the result of its check."""

    form: bytes
    """The tokenizer as kitoken stores it."""
    note: str
    """Why counts are not exact; empty if they are."""
    spaces_last: bool
    """Whether its expression ends as most do, which determines how long runs of white space are counted."""

    @property
    def exact(self) -> bool:
        """Whether counts are exact and additive."""
        return not self.note

    def packed(self) -> bytes:
        """Return everything as the content of one file."""
        body = b"%d%s\n%s" % (self.spaces_last, self.note.encode(), self.form)
        return _MAGIC + sha256(body).digest() + body


def unpacked(packed: bytes | None) -> PreparedTokenizer | None:
    """Return what `PreparedTokenizer.packed` stored; None for any other content."""
    start = len(_MAGIC) + _DIGEST_BYTES
    if packed is None or packed[: len(_MAGIC)] != _MAGIC:
        return None
    body = packed[start:]
    if sha256(body).digest() != packed[len(_MAGIC) : start]:
        return None
    facts, _, form = body.partition(b"\n")
    return PreparedTokenizer(form, facts[1:].decode(), spaces_last=facts[:1] == b"1")


def prepare(source: TokenizerSource) -> PreparedTokenizer:
    """Return the prepared form of a tokenizer's file, from an earlier run or made now.

    A new form is stored if possible.

    Raises:
        UsageError: The file cannot be read, or is not suitable for counting.
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
            f"The tokenizer {source.location} cannot be used: the program that reads it was killed."
        )
    keep_file(kept, packed)
    return prepared


def _convert(data: bytes, location: str) -> bytes:
    """Convert the file in a separate process, because the library may end the process."""
    import signal
    import subprocess
    import sys

    # -P: the working directory is an untrusted repository, so Python must not import from it.
    command = [sys.executable, "-P", "-m", "m3agent.agent.context.tokenizer.check"]
    done = subprocess.run(command, input=data, capture_output=True, check=False)
    if done.returncode == 0:
        return done.stdout
    reason = "the library that counts cannot read it"
    if done.returncode == UNSUPPORTED:
        reason = " ".join(done.stderr.decode("utf-8", "replace").split())
    elif done.returncode == -signal.SIGXCPU:
        reason = f"reading it took more than {CPU_SECONDS} s of CPU time"
    raise UsageError(
        f"The tokenizer {location} cannot be used: {reason}; download it again, or name another one with --tokenizer."
    )

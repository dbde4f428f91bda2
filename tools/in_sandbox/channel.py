"""Write lines of a report that the code under test cannot forge without the key.

Each line has a number, some fields and an authentication code (HMAC-SHA256), separated by tabs. Code that finds the report can
destroy it, but then a number is missing. `m3agent.tools.report_reader` reads it.

The guard writes lines while the interpreter loads modules, so nothing here may import anything, look up a codec by its name,
or wait. A codec that the code under test replaces would also see, and could change, what is written.
"""

from __future__ import annotations

import hashlib
import os
from _codecs import unicode_escape_encode
from _thread import allocate_lock
from typing import Any

BLOCK = 64
"""Bytes of a block of SHA-256. HMAC fills the key up to this length (RFC 2104)."""


def channel(path: str, key: bytes) -> Any:
    """Return a function that writes one line: `tell(kind, *fields)`.

    It takes references to its parts now, before the code can replace them. It may be called in any thread, in a hook, and
    while it is at work already: the call that is at work writes the lines of the others.
    """
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    state = [0]
    waiting: list[tuple[str, ...]] = []
    busy = allocate_lock()
    write, escape = os.write, unicode_escape_encode
    padded = key.ljust(BLOCK, b"\0")
    inner, outer = (hashlib.sha256(bytes(byte ^ pad for byte in padded)) for pad in (0x36, 0x5C))

    def code_of(line: bytes) -> str:
        first, second = inner.copy(), outer.copy()
        first.update(line)
        second.update(first.digest())
        return second.hexdigest()

    def tell(*fields: str) -> None:
        waiting.append(fields)
        if not busy.acquire(False):
            return
        try:
            while waiting:
                # str methods only, because the code can replace the functions of json
                escaped = [escape(field)[0].decode("ascii") for field in waiting[0]]
                line = "\t".join([str(state[0] + 1), *escaped])
                # The line break before it ends what an alarm may have cut short. Such a line is written again.
                data = ("\n" + line + "\t" + code_of(line.encode()) + "\n").encode()
                while data:
                    data = data[write(out, data) :]
                state[0] += 1
                del waiting[0]
        finally:
            busy.release()

    return tell

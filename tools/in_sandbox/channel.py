"""Write lines of a report that the code under test cannot forge without the key.

Each line has a number, some fields and an authentication code, separated by tabs. Code that finds the report can
destroy it, but then a number is missing. `m3agent.tools.report_reader` reads it.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any


def channel(path: str, key: bytes) -> Any:
    """Return a function that writes one line: `tell(kind, *fields)`.

    It takes references to its parts now, before the code can replace them.
    """
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    state = [0]
    write, code = os.write, hashlib.blake2b

    def tell(*fields: str) -> None:
        # str methods only, because the code can replace the functions of json
        escaped = [field.encode("unicode_escape").decode("ascii") for field in fields]
        line = "\t".join([str(state[0] + 1), *escaped])
        data = (line + "\t" + code(line.encode(), key=key, digest_size=16).hexdigest() + "\n").encode()
        while data:
            data = data[write(out, data) :]
        state[0] += 1

    return tell

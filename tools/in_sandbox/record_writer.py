"""Write records for `m3agent.tools.runners.records`. Programs that run tests inside a sandbox import this file."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import threading


class RecordWriter:
    """A report of authenticated records. Threads may share it.

    Args:
        path: The report, a new file.
        key_file: File with the key. It is deleted at once, because the code under test must not find it.
    """

    def __init__(self, path: str, key_file: str) -> None:
        with open(key_file) as file:
            self._key = bytes.fromhex(file.read().strip())
        os.unlink(key_file)
        self._file = open(path, "wb", buffering=0)
        self._number = 0
        self._lock = threading.Lock()

    def write(self, *record: object) -> None:
        with self._lock:
            self._number += 1
            body = b"%d\t%s" % (self._number, json.dumps(record).encode())
            code = hmac.new(self._key, body, hashlib.sha256).hexdigest().encode()
            self._file.write(body + b"\t" + code + b"\n")

"""Keep the bytecode that a test run compiles, so that runs of other trees need not compile the same files again.

Compiling takes more than half of the time of many runs, because pytest also rewrites the assertions of each test file. A
file of bytecode is laid beside a source only if the source has the same content and the same path as where it was compiled:
the code says from which path it was compiled, and the guard and tracebacks rely on it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import struct
import sys
import zlib

TAG = ".%s" % sys.implementation.cache_tag
HEADER = struct.Struct("<4sIII")
"""Of a file of bytecode (PEP 552): magic number, flags, and the time and size of its source or, with flags, a hash."""
MOST_BYTES = 96 << 20
"""Most bytes of bytecode that are kept."""


def source_of(path: str) -> str:
    """Return the path of the source of a file of bytecode; empty if it is none."""
    folder, name = os.path.split(path)
    stem, tag, _ = name.rpartition(TAG)
    if not tag or os.path.basename(folder) != "__pycache__" or not name.endswith(".pyc"):
        return ""
    return os.path.join(os.path.dirname(folder), stem + ".py")


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def with_times(code: bytes, path: str, text: bytes) -> bytes:
    """Return bytecode that is valid for a source here. Hashes are valid everywhere, but times are not."""
    magic, flags, _, _ = HEADER.unpack_from(code)
    if flags:
        return code
    when = int(os.stat(path).st_mtime) & 0xFFFFFFFF
    return HEADER.pack(magic, flags, when, len(text) & 0xFFFFFFFF) + code[HEADER.size :]


def collect(target: str) -> None:
    """Write the bytecode in the work tree to a new file, with the tree's path and the hashes of the sources."""
    kept: dict[str, tuple[str, str]] = {}
    total = 0
    for folder, _, names in os.walk("."):
        for path in [os.path.join(folder, name) for name in names]:
            source = source_of(path)
            if not source:
                continue
            try:
                code, text = read(path), read(source)
                valid = with_times(code, source, text) == code  # else the source has changed since
            except (OSError, struct.error):
                continue
            total += len(code)
            if total > MOST_BYTES:
                return
            if valid:
                kept[path] = hashlib.sha256(text).hexdigest(), base64.b64encode(code).decode()
    with open(target, "xb") as file:
        file.write(zlib.compress(json.dumps([os.getcwd(), kept]).encode(), 1))


def lay(packed: str) -> None:
    """Write collected bytecode, in base64, into the work tree, beside each source that has the same content.

    Work trees without isolation have a path of their own each; they get nothing.
    """
    try:
        root, found = json.loads(zlib.decompress(base64.b64decode(packed)))
    except (ValueError, TypeError, zlib.error):  # damaged: then everything is compiled
        return
    if root != os.getcwd():
        return
    for path, (digest, content) in found.items():
        try:
            source = source_of(path)
            text = read(source)
            if hashlib.sha256(text).hexdigest() == digest:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as file:
                    file.write(with_times(base64.b64decode(content), source, text))
        except OSError:
            continue

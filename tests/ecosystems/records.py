"""Reports as the program in the sandbox signs them, for tests without a sandbox."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

from m3agent.tools.runners.base import Command, Output

KEY = b"k" * 32


def signed(*records: object, key: bytes = KEY) -> bytes:
    """Return records as lines of a report."""
    lines = []
    for number, record in enumerate(records, 1):
        body = f"{number}\t{json.dumps(record)}".encode()
        lines.append(body + b"\t" + hmac.new(key, body, hashlib.sha256).hexdigest().encode())
    return b"\n".join(lines) + b"\n"


def output_of(command: Command, done: Mapping[str, Mapping[str, Any]], *, ended: bool = True) -> Output:
    """Return what a command of steps left behind: what each step did, by its name."""
    ordinary = {"exit": 0, "timed_out": False, "output": "", "report": ""}
    records: list[object] = [["step", name, {**ordinary, **what}] for name, what in done.items()]
    return Output(command, 0, signed(*records, *([["end"]] if ended else [])), key=KEY)

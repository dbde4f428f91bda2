"""Read what a stand-in engine (`stand_in_engine.py`) was given, once it answers."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from typing import Any

PATIENCE = 30.0  # seconds for the server to answer


def seen(page: Callable[[], str], patience: float = PATIENCE) -> dict[str, Any]:
    """Return the JSON at an address, and retry while `page` raises OSError because the address is not known yet."""
    deadline = time.monotonic() + patience
    while True:
        try:
            with urllib.request.urlopen(page()) as answer:
                found = json.loads(answer.read())
                assert isinstance(found, dict)
                return found
        except OSError:
            assert time.monotonic() < deadline, "the server did not come up"
            time.sleep(0.1)

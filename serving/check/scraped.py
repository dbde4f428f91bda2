"""Check whether a Prometheus reads a server's metrics, by its list of targets.

https://prometheus.io/docs/prometheus/latest/querying/api/#targets
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

from m3agent.serving.check.check import Check
from m3agent.serving.client.endpoint import Endpoint, get
from m3agent.serving.client.http import is_local, open_client
from m3agent.serving.errors import ModelServerError

_SECONDS = 10.0
_NAME = "scraped"


async def scraped_check(endpoint: Endpoint, page: str, prometheus: str | None) -> Check:
    """Check whether the metrics at `page` are a target of `prometheus`, and whether the last read succeeded."""
    if prometheus is None:
        return Check(
            _NAME, None, "unknown whether anything reads the metrics: name a Prometheus with --prometheus"
        )
    address = prometheus.rstrip("/")
    address = address if "://" in address else f"http://{address}"
    try:
        async with open_client(address, None, connect=_SECONDS, read=_SECONDS) as client:
            answer = json.loads(await get(client, f"{address}/api/v1/targets?state=active", None))
        targets = answer["data"]["activeTargets"]
        found = [target for target in targets if _is_of(str(target["scrapeUrl"]), page)]
    except ModelServerError:
        return Check(_NAME, None, f"no Prometheus answers at {prometheus}")
    except (ValueError, KeyError, TypeError):
        return Check(_NAME, None, f"the server at {prometheus} is not a Prometheus")
    if not found:
        fix = "add the output of `m3agent serve scrape` to its configuration"
        return Check(_NAME, False, f"{page} is not among the {len(targets)} targets of {prometheus}", fix)
    return _health(found[0], page)


def _health(target: dict[str, Any], page: str) -> Check:
    if target.get("health") == "up":
        return Check(_NAME, True, f"last read at {str(target.get('lastScrape', ''))[:19]}")
    why = str(target.get("lastError") or "not read yet")
    return Check(
        _NAME,
        False,
        f"{page} is a target with health {target.get('health')}: {why}",
        "see its list of targets",
    )


def _is_of(url: str, page: str) -> bool:
    """Return whether two addresses are the same page; all names of this machine count as equal."""
    one, other = urlsplit(url), urlsplit(page)
    same_host = one.hostname == other.hostname or (is_local(url) and is_local(page))
    return same_host and one.port == other.port and one.path == other.path

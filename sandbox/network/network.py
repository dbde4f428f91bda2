"""Give a sandbox a network: only the proxy, and only if the user lists hosts.

The sandbox itself has no network device except loopback. Programs find the proxy by the usual variables;
programs that ignore them reach nothing.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

from m3agent.sandbox.network.proxy import PORT, Proxy
from m3agent.sandbox.network.tunnel import Tunnel
from m3agent.sandbox.protocol.channel import Channel

HERE = "localhost,127.0.0.1,::1"
VARIABLES = {
    # curl reads http_proxy in lower case only; other programs read upper case only
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), f"http://127.0.0.1:{PORT}"),
    **dict.fromkeys(("no_proxy", "NO_PROXY"), HERE),
}
"""What tells programs where the proxy is."""
BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Usual paths of the system's bundle of trusted certificate authorities."""
BUNDLE_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT")


class Network:
    """The network connection of one sandbox."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self._tunnel: Tunnel | None = None

    async def open(self, channel: Channel) -> dict[str, str]:
        """Start the tunnel over the sandbox's channel; return the variables that name the proxy."""
        self._tunnel = await Tunnel.open(channel, PORT, self.proxy.serve)
        return dict(VARIABLES)

    async def close(self) -> None:
        """Close every connection; safe to call twice."""
        if self._tunnel is not None:
            await self._tunnel.close()


async def lend_certificates(run: Callable[[list[str], bytes], Awaitable[int]], path: str) -> dict[str, str]:
    """Copy this host's certificate bundle into a sandbox if its image has none.

    Args:
        run: Runs a command with a standard input in the sandbox, and returns its exit status.
        path: Path of the bundle inside the sandbox.

    Returns:
        Variables that name the bundle; empty if nothing was copied.
    """
    script = f"for f in {' '.join(BUNDLES)}; do test -e $f && exit 3; done; exit 0"
    if await run(["sh", "-c", script], b"") != 0:
        return {}
    bundle = await asyncio.to_thread(_host_bundle)
    if bundle is None or await run(["sh", "-c", 'cat > "$0"', path], bundle) != 0:
        return {}
    return dict.fromkeys(BUNDLE_VARIABLES, path)


def _host_bundle() -> bytes | None:
    own = ssl.get_default_verify_paths().cafile
    for name in (own, *BUNDLES):
        if name is not None and Path(name).is_file():
            return Path(name).read_bytes()
    return None

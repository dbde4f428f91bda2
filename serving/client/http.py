"""HTTP functions for the probe and the client: addresses, connections, and a quick import of the OpenAI SDK."""

import importlib.util
import ipaddress
import os
import sys
import threading
from collections.abc import Mapping
from importlib.machinery import PathFinder
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from m3agent.util.errors import EnvironmentFault

if TYPE_CHECKING:
    import ssl

    import httpx2
    import openai

# Headers that every request needs, so they must not be omitted.
_OURS = frozenset({"accept", "authorization", "content-type", "user-agent"})
_UNUSED = ("openai.types", "openai.types.responses")
"""Packages of types, parents first. The SDK's client needs a few of their modules and nothing of the packages themselves."""

_lock = threading.RLock()


def host_of(url: str) -> str:
    """Return host and port of a URL, without user name and password; the text itself if it is no URL."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2] or url
    except ValueError:
        return url


def is_local(url: str) -> bool:
    """Return whether a URL points to this machine."""
    name = urlsplit(url).hostname or ""
    return is_loopback(name) or name.endswith(".localhost")


def is_loopback(host: str) -> bool:
    """Return whether `host`, an address or a name, is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def certificates_for(url: str) -> "ssl.SSLContext | bool":
    """Return which certificates an HTTP client for `url` needs, as `verify` of httpx2: True for the system's.

    To load the system's takes 0.05 s. Plain HTTP to this machine needs none, and the context for it trusts none.

    Raises:
        EnvironmentFault: A variable that the HTTP client would read has no usable proxy, or no certificates.
    """
    import ssl

    if not is_local(url):
        _check_proxies()
        _check_certificates()
    elif urlsplit(url).scheme == "http":
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return True


def proxy_variable(url: str) -> str:
    """Return the variable that names the proxy for a URL; empty if the connection is direct."""
    from urllib.request import proxy_bypass

    scheme, host = urlsplit(url).scheme, urlsplit(url).hostname or ""
    if is_local(url) or proxy_bypass(host):
        return ""
    names = (f"{scheme}_proxy", "all_proxy")
    return next((each for name in names for each in (name, name.upper()) if os.environ.get(each)), "")


def _check_proxies() -> None:
    schemes = ["http", "https"]
    if importlib.util.find_spec("socksio") is not None:
        schemes += ["socks5", "socks5h"]
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        for variable in (name, name.upper()):
            address = os.environ.get(variable, "")
            try:
                parts = urlsplit(address if "://" in address else f"http://{address}")
                usable = parts.scheme in schemes and parts.hostname and parts.port != 0
            except ValueError:  # such as a port that is no number
                usable = False
            if address and not usable:  # its value may have a password
                raise EnvironmentFault(
                    f"The proxy in {variable} cannot be used: write it as http://HOST:PORT."
                )


def _check_certificates() -> None:
    import ssl

    if file := os.environ.get("SSL_CERT_FILE"):
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
        except OSError:  # also ssl.SSLError
            raise EnvironmentFault(
                f"SSL_CERT_FILE names {file}, which is no file with certificates: correct or unset the variable."
            ) from None


def open_client(url: str, api_key: str | None, *, connect: float, read: float | None) -> "openai.AsyncOpenAI":
    """Return an OpenAI client for `url` that neither retries nor follows redirections.

    Without a key, none is sent: the key in OPENAI_API_KEY is for OpenAI only. Redirections are not followed
    because the repository's content may go only to the host that the user named. Requests to this machine
    bypass any proxy. The size of responses is limited.
    """
    import httpx2

    defer_unused_types()
    import openai

    from m3agent.serving.client.bounds import PLAIN, bound_async

    timeout = httpx2.Timeout(read, connect=connect, write=60.0, pool=None)
    transport = openai.DefaultAsyncHttpxClient(
        timeout=timeout,
        trust_env=not is_local(url),
        follow_redirects=False,
        headers=PLAIN,
        event_hooks={"response": [bound_async]},
        verify=certificates_for(url),
    )
    return openai.AsyncOpenAI(
        base_url=url, api_key=api_key or "none", max_retries=0, timeout=timeout, http_client=transport
    )


def request_headers(api_key: str | None) -> "dict[str, str | openai.Omit]":
    """Return the headers of each request; they drop what the SDK would add from the environment."""
    import openai

    # OPENAI_CUSTOM_HEADERS has one header per line. They are meant for OpenAI, like the organisation and the
    # project.
    lines = os.environ.get("OPENAI_CUSTOM_HEADERS", "").splitlines()
    names = {name.strip() for name, colon, _ in (line.partition(":") for line in lines) if colon}
    names = {name for name in names if name.lower() not in _OURS} | {"OpenAI-Organization", "OpenAI-Project"}
    headers: dict[str, str | openai.Omit] = dict.fromkeys(names, openai.Omit())
    headers["Authorization"] = openai.Omit() if api_key is None else f"Bearer {api_key}"
    return headers


async def post_chat(
    client: "openai.AsyncOpenAI",
    body: bytes,
    api_key: str | None,
    more: Mapping[str, str] = MappingProxyType({}),
) -> "httpx2.Response":
    """Send an encoded chat completion request; return once the response headers have arrived.

    Raises:
        openai.APIError: The SDK's errors, not translated.
    """
    import httpx2
    import openai

    headers = {"Content-Type": "application/json", **request_headers(api_key), **more}
    try:
        return await client.post(
            "/chat/completions",
            cast_to=httpx2.Response,
            content=body,
            options={"headers": headers},
            stream=True,
            stream_cls=None,
        )
    except httpx2.HTTPError as error:  # the body of an error broke off, which the SDK does not expect
        request = httpx2.Request("POST", client.base_url)
        raise openai.APIConnectionError(request=request) from httpx2.ReadError(str(error))


def mask_key(text: str, api_key: str | None) -> str:
    """Return the text without a key that is known."""
    return text.replace(api_key, "[key]") if api_key else text


class _LazyPackage(ModuleType):
    """A package whose `__init__.py` runs when someone asks for a name in it, and not before a module in it is imported."""

    def __getattr__(self, name: str) -> object:
        with _lock:  # another thread waits here until `__init__.py` has run
            if type(self) is _LazyPackage and self not in _running:
                assert self.__spec__ is not None
                assert self.__spec__.loader is not None
                _running.append(self)
                try:
                    self.__spec__.loader.exec_module(self)
                finally:
                    _running.remove(self)
                object.__setattr__(self, "__class__", ModuleType)  # an ordinary module from here on
        return ModuleType.__getattribute__(self, name)


_running: list[_LazyPackage] = []


def defer_unused_types() -> None:
    """Let `import openai` leave out what m3agent does not use; it is imported at its first use.

    `import openai` imports 500 modules, of which 370 define the types of an API that m3agent does not use. That takes half
    of the import's time: 0.3 s of every `fix`.

    Do nothing if the SDK is imported already, or has no such packages any more.
    """
    with _lock:
        if "openai" in sys.modules or (sdk := importlib.util.find_spec("openai")) is None:
            return
        folders = sdk.submodule_search_locations
        for name in _UNUSED:
            spec = PathFinder.find_spec(name, folders)
            if spec is None or spec.loader is None or spec.submodule_search_locations is None:
                return
            package = importlib.util.module_from_spec(spec)
            package.__class__ = _LazyPackage
            sys.modules[name] = package
            folders = spec.submodule_search_locations

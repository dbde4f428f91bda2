"""Find images in an issue's Markdown and fetch them, only from the public web and from the issue's server itself."""

from __future__ import annotations

import html
import re
import socket
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urljoin, urlsplit

from m3agent.agent.forge.address import IssueReference
from m3agent.agent.forge.api import TooLarge, TooSlow, read_bounded
from m3agent.agent.issue.images import KINDS, MAX_IMAGE_BYTES, MAX_IMAGES, IssueImage, image_of
from m3agent.sandbox.network.allow_list import is_public
from m3agent.util.sanitize import quoted

if TYPE_CHECKING:
    import httpx2

MAX_HOPS = 4
"""Addresses visited for one image. Images on GitHub take two."""

# Every repetition is bounded and cannot run past the next start, so that a hostile text takes linear time.
_MARKDOWN = re.compile(
    r"!\[[^\[\]]{0,500}\](?:\(\s{0,10}<?(?P<url>[^\s()<>]{1,2000})|\[(?P<label>[^\[\]]{1,200})\])"
)
_DEFINITION = re.compile(
    r"^ {0,3}\[(?P<label>[^\[\]]{1,200})\]:[ \t]{1,10}<?(?P<url>[^\s<>]{1,2000})", re.MULTILINE
)
_TAG = re.compile(r"<img\s(?P<attributes>[^<>]{1,4000})", re.IGNORECASE)
_SRC = re.compile(r"""(?:^|\s)src\s{0,5}=\s{0,5}["']?(?P<url>[^\s"'<>]{1,2000})""", re.IGNORECASE)
_FENCE = re.compile(r" {0,3}(?P<mark>`{3,}|~{3,})(?P<info>.*)")
_INLINE_CODE = re.compile(r"(?<!`)(`{1,3})(?!`)[^`\n]{1,2000}(?<!`)\1(?!`)")


class _Refused(Exception):
    """The reason why an image is left out."""


def find_images(text: str) -> list[str]:
    """Return the addresses of images in Markdown with HTML: as written, each once, in order.

    Code is ignored.
    """
    text = _INLINE_CODE.sub(" ", _without_fences(text))
    definitions = {found["label"].casefold(): found["url"] for found in _DEFINITION.finditer(text)}
    found: list[tuple[int, str]] = []
    for match in _MARKDOWN.finditer(text):
        url = match["url"] or definitions.get(match["label"].casefold())
        if url:
            found.append((match.start(), url))
    for tag in _TAG.finditer(text):
        source = _SRC.search(tag["attributes"])
        if source:
            found.append((tag.start(), source["url"]))
    return list(dict.fromkeys(html.unescape(url) for _, url in sorted(found)))


def load_images(
    urls: Iterable[str],
    client: httpx2.Client,
    issue: IssueReference,
    *,
    say: Callable[[str], None],
    timeout: float,
) -> list[IssueImage]:
    """Fetch the images, without a token.

    An image that cannot be fetched is reported and left out.

    Args:
        issue: The issue. Only the host of its API may be without TLS or in a private network: the user named it. The
            other addresses come from the author of the issue.
        timeout: In seconds. The time limit for all images together is three times as long.
    """
    wanted = [_absolute(url, issue) for url in urls]
    if not wanted:
        return []
    say(f"fetching {min(len(wanted), MAX_IMAGES)} images of the issue")
    images: list[IssueImage] = []
    deadline, own = time.monotonic() + 3 * timeout, _origin(urlsplit(issue.api))
    for url in wanted[:MAX_IMAGES]:
        try:
            image = image_of(url[:200], _fetch(client, f"{issue.page}/", url, own, deadline))
            if image is None:
                raise _Refused(f"it is not a {KINDS} image")
            images.append(image)
        except _Refused as reason:
            say(f"the image {quoted(url)} is left out: {reason}")
    if len(wanted) > MAX_IMAGES:
        say(
            f"{len(wanted) - MAX_IMAGES} more images of the issue are left out: at most {MAX_IMAGES} are sent"
        )
    return images


def _absolute(url: str, issue: IssueReference) -> str:
    """Complete the address of an upload, which GitLab writes relative to the project's page; return others unchanged."""
    return f"{issue.page}{url}" if url.startswith(issue.server.uploads) else url


def _without_fences(text: str) -> str:
    lines: list[str] = []
    open_mark = ""
    for line in text.splitlines():
        fence = _FENCE.match(line)
        if open_mark:
            if fence and fence["mark"].startswith(open_mark) and not fence["info"].strip():
                open_mark = ""
        elif fence and not (fence["mark"][0] == "`" and "`" in fence["info"]):
            open_mark = fence["mark"]
        else:
            lines.append(line)
    return "\n".join(lines)


def _fetch(client: httpx2.Client, base: str, link: str, own: tuple[str, str], deadline: float) -> bytes:
    import httpx2

    url = base
    for _ in range(MAX_HOPS):
        try:
            url = urljoin(url, link)
            answer = _visit(client, url, own, deadline)
        except TooLarge:
            raise _Refused(f"it is larger than {MAX_IMAGE_BYTES >> 20} MiB") from None
        except (TooSlow, httpx2.TimeoutException):
            raise _Refused("its server did not answer in time") from None
        except (httpx2.TransportError, httpx2.DecodingError):
            raise _Refused("the connection to its server failed") from None
        except (httpx2.InvalidURL, ValueError):
            raise _Refused("its address is invalid") from None
        if isinstance(answer, bytes):
            return answer
        link = answer
    raise _Refused("its server redirects in a loop")


def _visit(client: httpx2.Client, url: str, own: tuple[str, str], deadline: float) -> bytes | str:
    """Return the body at `url`, or the address that it redirects to.

    Raises:
        _Refused: The address is not allowed. Nothing was sent to it.
    """
    import httpx2

    if time.monotonic() > deadline:
        raise TooSlow
    parts = urlsplit(url)
    if _origin(parts) == own:
        return _answer(client, url, {}, {}, deadline)
    if parts.scheme != "https" or not parts.hostname:
        raise _Refused("its address is not https")
    if parts.username is not None or parts.password is not None:
        raise _Refused("its address holds a user name")
    # Connect to the address that was checked. A second DNS lookup could return a different one.
    addresses = public_addresses(parts.hostname, parts.port or 443)
    for number, address in enumerate(addresses, start=1):
        host = f"[{address}]" if ":" in address else address
        pinned = parts._replace(
            netloc=host if parts.port is None else f"{host}:{parts.port}", fragment=""
        ).geturl()
        try:
            return _answer(client, pinned, {"Host": parts.netloc}, {"sni_hostname": parts.hostname}, deadline)
        except httpx2.ConnectError:
            if number == len(addresses):
                raise
    raise _Refused("its host has no address")


def _answer(
    client: httpx2.Client, url: str, headers: dict[str, str], extensions: dict[str, str], deadline: float
) -> bytes | str:
    with client.stream("GET", url, headers=headers, extensions=extensions) as response:
        if response.is_redirect:
            return str(response.headers.get("location", ""))
        if response.status_code != 200:
            raise _Refused(f"its server answered {response.status_code}")
        return read_bounded(response, MAX_IMAGE_BYTES, deadline)


def public_addresses(host: str, port: int) -> list[str]:
    """Return the IP addresses of a host.

    Raises:
        _Refused: The host is unknown, or one of its addresses is not on the public internet.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise _Refused("its host is not known") from None
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    if not all(is_public(address) for address in addresses):
        raise _Refused("its host is in a private network")
    return addresses


def _origin(parts: SplitResult) -> tuple[str, str]:
    return parts.scheme, parts.netloc

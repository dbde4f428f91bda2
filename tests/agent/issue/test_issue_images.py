"""Test an issue's images: they are found in its text, and fetched from allowed places only."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.agent.issue.images import (
    MAX_IMAGE_BYTES,
    MAX_IMAGES,
    MAX_TOTAL_BYTES,
    IssueImage,
    fitting,
    image_of,
)
from m3agent.agent.issue.linked_images import find_images
from m3agent.agent.issue.load import Issue, load_issue
from m3agent.sandbox.network.allow_list import is_public
from tests.servers.tracker import PNG, Page, TrackerServer


@pytest.fixture
def tracker() -> Iterator[TrackerServer]:
    with TrackerServer() as running:
        yield running


def load(tracker: TrackerServer, body: str, said: list[str] | None = None, timeout: float = 20.0) -> Issue:
    tracker.add_issue(body=body)
    say = said.append if said is not None else lambda _: None
    return load_issue("owner/repo#1", github_api=tracker.url, env={}, say=say, timeout=timeout)


def left_out(tracker: TrackerServer, url: str, timeout: float = 20.0) -> str:
    """Return the reason for which the only image of an issue was left out."""
    said: list[str] = []
    assert load(tracker, f"![x]({url})", said, timeout).images == ()
    (reason,) = [line for line in said if "is left out" in line]
    return reason


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("![a](https://x/a.png) and ![](<https://x/b.png> 'title')", ["https://x/a.png", "https://x/b.png"]),
        ("[![a](https://x/a.png)](https://x/page)", ["https://x/a.png"]),
        ('<img width="5" alt="a > b" src="https://x/a.png?x=1&amp;y=2" />', []),
        ('<img width="5" src="https://x/a.png?x=1&amp;y=2" />', ["https://x/a.png?x=1&y=2"]),
        ("<IMG SRC=https://x/a.png>", ["https://x/a.png"]),
        ("<img\nalt='a'\nsrc='https://x/a.png'>", ["https://x/a.png"]),
        ("<img data-src='https://x/a.png'>", []),
        ("![a][Shot]\n\n[shot]: https://x/a.png\n", ["https://x/a.png"]),
        ("![a](https://x/a.png) ![b](https://x/a.png)", ["https://x/a.png"]),
        ("<img src='1.png'> then ![b](2.png)", ["1.png", "2.png"]),
        ("```\n![a](https://x/a.png)\n```\n![b](https://x/b.png)", ["https://x/b.png"]),
        ("~~~~ md\n```\n![a](a.png)\n~~~\n~~~~\n![b](b.png)", ["b.png"]),
        ("write `![a](a.png)` or ``![b](b.png)`` like ![c](c.png)", ["c.png"]),
        ("a link [a](https://x/a.png), https://x/b.png and ![broken](", []),
    ],
)
def test_finding(text: str, urls: list[str]) -> None:
    assert find_images(text) == urls


@pytest.mark.parametrize(
    "piece", ["![", "![a](", "<img ", "<img src", "```\n", "`", "![a][b]", "[a]: b\n", "<img a "]
)
def test_a_hostile_text_takes_no_time(piece: str) -> None:
    started = time.monotonic()
    find_images(piece * (1_000_000 // len(piece)))
    assert time.monotonic() - started < 60


@given(st.text(alphabet="![]()<>`~img src='\"=\n ", max_size=200))
def test_any_text_can_be_searched(text: str) -> None:
    assert all(isinstance(url, str) and url for url in find_images(text))


@pytest.mark.integration
def test_images_are_fetched_and_recognised_by_content(tracker: TrackerServer) -> None:
    kinds = {
        "a.png": (PNG, "image/png"),
        "b.txt": (b"\xff\xd8\xff\xe0" + bytes(16), "image/jpeg"),
        "c": (b"GIF89a" + bytes(16), "image/gif"),
        "d?x=1": (b"RIFF\x10\0\0\0WEBPVP8 " + bytes(16), "image/webp"),
    }
    for name, (data, _) in kinds.items():
        tracker.pages[f"/owner/repo/{name}"] = Page(data, headers={"Content-Type": "text/html"})
    issue = load(tracker, "\n".join(f"![x]({name})" for name in kinds))
    assert issue.images == tuple(
        IssueImage(name, kind, data, hashlib.sha256(data).hexdigest()) for name, (data, kind) in kinds.items()
    )
    assert "data" not in repr(issue.images[0])


@pytest.mark.integration
def test_images_in_comments_count_and_each_only_once(tracker: TrackerServer) -> None:
    tracker.add_issue(body="![x](/x.png)", comments=1)
    path = "/repos/owner/repo/issues/1/comments"
    tracker.pages[path] = Page([{"user": {"login": "a"}, "body": "![y](/y.png) ![x](/x.png) ![z](/z.png)"}])
    tracker.pages |= {"/x.png": Page(PNG), "/y.png": Page(PNG + b"y"), "/z.png": Page(PNG)}
    issue = load_issue("owner/repo#1", github_api=tracker.url, env={})
    assert [image.name for image in issue.images] == ["/x.png", "/y.png"]
    assert tracker.paths.count("/x.png") == 1


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.usefixtures("no_backoff")
def test_invalid_images_are_left_out(tracker: TrackerServer) -> None:
    tracker.pages |= {
        "/page": Page(b"<html>"),
        "/picture.svg": Page(b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
        "/empty": Page(b""),
        "/huge": Page(PNG + bytes(MAX_IMAGE_BYTES)),
        "/endless": tracker.endless,
        "/silent": tracker.silent,
        "/dripping": tracker.dripping,
        "/cut": tracker.cut,
        "/circle": Page(status=302, headers={"Location": "/circle"}),
        "/nowhere": Page(status=302),
    }
    for name in ("page", "picture.svg", "empty"):
        assert "is not a PNG, JPEG, GIF or WebP image" in left_out(tracker, f"/{name}")
    for name in ("huge", "endless"):
        assert "larger than 5 MiB" in left_out(tracker, f"/{name}")
    for name in ("silent", "dripping"):
        assert "did not answer in time" in left_out(tracker, f"/{name}", 0.4)
    assert "connection to its server failed" in left_out(tracker, "/cut")
    assert "redirects in a loop" in left_out(tracker, "/circle")
    assert "answered 404" in left_out(tracker, "/missing")
    assert left_out(tracker, "/nowhere")


@pytest.mark.integration
@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://example.com/x.png", "not https"),
        ("ftp://example.com/x.png", "not https"),
        ("data:image/png;base64,AAAA", "not https"),
        ("file:///etc/passwd", "not https"),
        ("https://127.0.0.1/x.png", "private network"),
        ("https://localhost/x.png", "private network"),
        ("https://2130706433/x.png", "private network"),
        ("https://0x7f.1/x.png", "private network"),
        ("https://10.0.0.1/x.png", "private network"),
        ("https://169.254.169.254/latest/meta-data", "private network"),
        ("https://[::1]/x.png", "private network"),
        ("https://[::ffff:10.0.0.1]/x.png", "private network"),
        ("https://[fe80::1%25lo]/x.png", "private network|not known|address is invalid"),
        ("https://[64:ff9b::a00:1]/x.png", "private network"),
        ("https://name.invalid/x.png", "not known"),
        ("https://user:word@example.com/x.png", "user name"),
        ("https://example.com:99999/x.png", "address is invalid"),
        ("https://[/x.png", "address is invalid"),
        ("https:///x.png", "not https"),
    ],
)
def test_addresses_that_are_not_gone_to(tracker: TrackerServer, url: str, reason: str) -> None:
    sentence = left_out(tracker, url)
    assert any(part in sentence for part in reason.split("|")), sentence
    tracker.pages["/hop"] = Page(status=302, headers={"Location": url})
    sentence = left_out(tracker, "/hop")
    assert any(part in sentence for part in reason.split("|")), sentence


@pytest.mark.integration
def test_redirects_to_another_server_on_this_machine_are_not_followed(tracker: TrackerServer) -> None:
    with TrackerServer() as other:
        other.pages["/x.png"] = Page(PNG)
        port = other.host.partition(":")[2]
        for target in (other.url, f"https://{other.host}", f"https://localhost:{port}", f"//{other.host}"):
            tracker.pages["/hop"] = Page(status=307, headers={"Location": f"{target}/x.png"})
            assert left_out(tracker, "/hop")
        assert other.visits == []
    tracker.pages |= {"/hop": Page(status=301, headers={"Location": "/x.png"}), "/x.png": Page(PNG)}
    assert len(load(tracker, "![x](/hop)").images) == 1


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", True),
        ("64:ff9b::5db8:d70e", True),
        ("64:ff9b::7f00:1", False),
        ("::ffff:93.184.215.14", True),
        ("::ffff:127.0.0.1", False),
        ("2002:7f00:1::", False),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", False),
        ("0.0.0.0", False),
        ("100.64.0.1", False),
        ("192.168.1.1", False),
        ("172.16.0.1", False),
        ("224.0.0.1", False),
        ("ff02::1", False),
        ("fd00::1", False),
        ("fe80::1%eth0", False),
        ("::", False),
        ("240.0.0.1", False),
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(address) is public


@pytest.mark.integration
def test_number_of_images_is_limited(tracker: TrackerServer) -> None:
    count = MAX_IMAGES + 3
    tracker.pages |= {f"/{number}.png": Page(PNG + bytes([number])) for number in range(count)}
    said: list[str] = []
    issue = load(tracker, "\n".join(f"![x](/{number}.png)" for number in range(count)), said)
    assert [image.name for image in issue.images] == [f"/{number}.png" for number in range(MAX_IMAGES)]
    assert any("3 more images" in line for line in said)
    assert f"/{MAX_IMAGES}.png" not in tracker.paths


def test_the_total_size_of_images_is_limited() -> None:
    half = [image_of(str(number), PNG + bytes([number]) * (MAX_TOTAL_BYTES // 2)) for number in range(2)]
    small = image_of("small", PNG)
    said: list[str] = []
    kept = fitting([image for image in (*half, small) if image is not None], said.append)
    assert [image.name for image in kept] == ["0", "small"]
    assert "1 of the issue's images" in said[0]

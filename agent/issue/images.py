"""Recognize the images of an issue, and limit their number and size."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

MAX_IMAGE_BYTES = 5 * 1024 * 1024
"""The largest accepted image, in bytes. A PNG screenshot of a 4K monitor is smaller."""

MAX_IMAGES = 16
MAX_TOTAL_BYTES = 20 * 1024 * 1024
"""The most bytes of all images of an issue together. Every request carries them, a third larger as base64."""

KINDS = "PNG, JPEG, GIF or WebP"
_BEGINNINGS = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}


@dataclass(frozen=True)
class IssueImage:
    """An image, unchanged."""

    name: str
    """The name for people and for the model."""
    media_type: str
    """The MIME type."""
    data: bytes = field(repr=False)
    """The bytes of the file."""
    digest: str
    """The SHA-256 of `data`, in hexadecimal."""


def image_of(name: str, data: bytes) -> IssueImage | None:
    """Return the image in `data`, recognized by its first bytes; None if models accept no such format."""
    is_webp = data.startswith(b"RIFF") and data[8:12] == b"WEBP"
    known = (media_type for beginning, media_type in _BEGINNINGS.items() if data.startswith(beginning))
    media_type = "image/webp" if is_webp else next(known, None)
    if media_type is None:
        return None
    return IssueImage(name, media_type, data, hashlib.sha256(data).hexdigest())


def fitting(images: Iterable[IssueImage], say: Callable[[str], None]) -> tuple[IssueImage, ...]:
    """Return the images that fit within the limits: in order, each once.

    `say` receives the number of images that are left out.
    """
    kept: dict[str, IssueImage] = {}
    total = left_out = 0
    for image in images:
        if image.digest in kept:
            continue
        if len(kept) == MAX_IMAGES or total + len(image.data) > MAX_TOTAL_BYTES:
            left_out += 1
            continue
        kept[image.digest] = image
        total += len(image.data)
    if left_out:
        say(
            f"{left_out} of the issue's images are left out: at most {MAX_IMAGES} "
            f"images of {MAX_TOTAL_BYTES >> 20} MiB together are sent"
        )
    return tuple(kept.values())

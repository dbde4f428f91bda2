"""Load files given with `--attach`: images unchanged, videos as a few frames."""

import re
import shutil
import subprocess
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable
from pathlib import Path

from m3agent.agent.issue.images import (
    KINDS,
    MAX_IMAGE_BYTES,
    MAX_IMAGES,
    MAX_TOTAL_BYTES,
    IssueImage,
    image_of,
)
from m3agent.util.errors import EnvironmentFault, UsageError
from m3agent.util.sanitize import quoted

MAX_FRAMES = 8
"""The most frames taken from a video."""

FRAME_WIDTH = 1280
"""The greatest width of a frame, in pixels. Text on a recorded screen stays readable."""

_FFMPEG_SECONDS = 60
_DURATION = re.compile(rb"Duration: (\d+):(\d+):(\d+(?:\.\d+)?)")
_EBML = b"\x1a\x45\xdf\xa3"


def load_attachments(
    paths: Iterable[Path], *, say: Callable[[str], None] = lambda _: None
) -> tuple[IssueImage, ...]:
    """Return the images in these files, in order, without duplicates. Blocking.

    A video (MP4, MOV, WebM) gives at most `MAX_FRAMES` frames.

    Raises:
        UsageError: A file is neither an image nor a video, cannot be read or is too large, or there are too
            many images.
        EnvironmentFault: A video needs ffmpeg, which is missing or failed.
    """
    images: dict[str, IssueImage] = {}
    for path in paths:
        for image in _images(path, say):
            images.setdefault(image.digest, image)
    if len(images) > MAX_IMAGES or sum(len(image.data) for image in images.values()) > MAX_TOTAL_BYTES:
        raise UsageError(
            f"The attachments are {len(images)} images; at most {MAX_IMAGES} "
            f"images of {MAX_TOTAL_BYTES >> 20} MiB together can be sent: attach fewer or smaller images."
        )
    return tuple(images.values())


def _images(path: Path, say: Callable[[str], None]) -> list[IssueImage]:
    name = quoted(str(path))
    try:
        if not path.exists():
            raise UsageError(f"There is no file {name} to attach: check the path.")
        if not path.is_file():
            raise UsageError(f"The attachment {name} is not a file: attach an image or a video.")
        with path.open("rb") as file:
            data = file.read(MAX_IMAGE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"The attachment {name} cannot be read: {error.strerror}.") from None
    image = image_of(path.name, data)
    if image is not None:
        if len(data) > MAX_IMAGE_BYTES:
            raise UsageError(
                f"The attachment {name} is larger than {MAX_IMAGE_BYTES >> 20} MiB: make the image smaller."
            )
        return [image]
    demuxer = _demuxer(data)
    if demuxer is not None:
        return _frames(path, demuxer, say)
    if _is_text(data):
        raise UsageError(
            f"The attachment {name} is text: put it into the issue; only images and videos are attached."
        )
    raise UsageError(f"The attachment {name} is neither an image ({KINDS}) nor a video (MP4, MOV or WebM).")


def _demuxer(data: bytes) -> str | None:
    """Return the input format that ffmpeg must use.

    Without it, ffmpeg could detect a playlist, which names other files.
    """
    if data[4:8] in (b"ftyp", b"moov", b"mdat", b"wide"):
        return "mov"
    return "matroska" if data.startswith(_EBML) else None


def _is_text(data: bytes) -> bool:
    if b"\0" in data:
        return False
    try:
        getincrementaldecoder("utf-8")().decode(
            data
        )  # the incremental decoder accepts a character cut in two at the end
    except UnicodeDecodeError:
        return False
    return True


def _frames(path: Path, demuxer: str, say: Callable[[str], None]) -> list[IssueImage]:
    name = quoted(str(path))
    ffmpeg = shutil.which("ffmpeg")
    if ffmpeg is None:
        raise EnvironmentFault(
            f"The attachment {name} is a video; taking frames from it needs "
            "ffmpeg: install it (Debian and Ubuntu: apt-get install ffmpeg), or attach screenshots."
        )
    say(f"taking frames from {name} with ffmpeg")
    # With `file:`, a name like "-x" is not an option and "http:x" is not an address.
    source = [ffmpeg, "-nostdin", "-protocol_whitelist", "file,pipe", "-f", demuxer]
    source_file = ["-i", f"file:{path.absolute()}"]
    found = _DURATION.search(_run([*source, *source_file], name).stderr)
    if found:
        hours, minutes, seconds = (float(part) for part in found.groups())
        length = hours * 3600 + minutes * 60 + seconds
        times = [length * (index + 0.5) / MAX_FRAMES for index in range(MAX_FRAMES)]
    else:  # browsers write no length into their recordings: take the first seconds
        times = [float(second) for second in range(MAX_FRAMES)]
    images: dict[str, IssueImage] = {}
    for moment in times:
        still = ["-frames:v", "1", "-an", "-vf", f"scale='min({FRAME_WIDTH},iw)':-2"]
        output = ["-f", "image2pipe", "-c:v", "mjpeg", "-q:v", "3", "pipe:1"]
        done = _run([*source, "-v", "error", "-ss", f"{moment:.3f}", *source_file, *still, *output], name)
        image = image_of(f"{path.name}, frame at {moment:.1f} s", done.stdout)
        if image is not None and len(image.data) <= MAX_IMAGE_BYTES:
            images.setdefault(image.digest, image)
    if not images:
        raise UsageError(f"ffmpeg found no frame in the attachment {name}: check that the video plays.")
    return list(images.values())


def _run(command: list[str], name: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_FFMPEG_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentFault(
            f"ffmpeg did not read the attachment {name} within {_FFMPEG_SECONDS} seconds: attach screenshots instead."
        ) from None
    except OSError as error:
        raise EnvironmentFault(f"ffmpeg cannot be started: {error.strerror}.") from None

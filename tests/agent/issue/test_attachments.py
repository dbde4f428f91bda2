"""Test reading files given with --attach; videos go through a real ffmpeg if one is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from m3agent.agent.issue.attachments import MAX_FRAMES, load_attachments
from m3agent.agent.issue.images import MAX_IMAGE_BYTES, MAX_IMAGES
from m3agent.util.errors import EnvironmentFault, M3AgentError, UsageError
from tests.servers.tracker import PNG

JPEG = b"\xff\xd8\xff\xe0" + bytes(16)
MP4 = b"\0\0\0\x18ftypisom" + bytes(64)


def put(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def refused(*paths: Path, kind: type[M3AgentError] = UsageError) -> str:
    with pytest.raises(kind) as caught:
        load_attachments(paths)
    sentence = str(caught.value)
    assert "\n" not in sentence and sentence.endswith(".")
    return sentence


def test_images_in_their_order_each_once(tmp_path: Path) -> None:
    first, second = put(tmp_path, "shot.png", PNG), put(tmp_path, "photo.dat", JPEG)
    (tmp_path / "link").symlink_to(first)
    images = load_attachments([second, first, tmp_path / "link"])
    assert [(image.name, image.media_type, image.data) for image in images] == [
        ("photo.dat", "image/jpeg", JPEG),
        ("shot.png", "image/png", PNG),
    ]


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"Traceback (most recent call last):\n", "is text: put it into the issue"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is text"),
        ("é".encode() * 3_000_000, "is text"),
        (b"", "is text"),
        (b"%PDF-1.7\n\xe2\xe3\xcf\xd3\0", "is neither an image"),
        (b"RIFF\0\0\0\0WAVEfmt ", "is neither an image"),
        (PNG + bytes(MAX_IMAGE_BYTES), "larger than 5 MiB"),
    ],
    ids=["log", "svg", "long text", "empty", "pdf", "sound", "huge"],
)
def test_files_that_cannot_be_sent(tmp_path: Path, data: bytes, part: str) -> None:
    sentence = refused(put(tmp_path, "file.png", data))
    assert part in sentence and "file.png" in sentence


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "There is no file" in refused(tmp_path / "gone.png")
    assert "is not a file" in refused(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "is not a file" in refused(tmp_path / "pipe")
    (tmp_path / "broken").symlink_to(tmp_path / "gone")
    assert "There is no file" in refused(tmp_path / "broken")


def test_too_many(tmp_path: Path) -> None:
    paths = [put(tmp_path, f"{number}.png", PNG + bytes([number])) for number in range(MAX_IMAGES + 1)]
    assert len(load_attachments(paths[:-1])) == MAX_IMAGES
    assert f"at most {MAX_IMAGES}" in refused(*paths)


def test_a_video_without_ffmpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    sentence = refused(put(tmp_path, "clip.mp4", MP4), kind=EnvironmentFault)
    assert "clip.mp4" in sentence and "needs ffmpeg" in sentence
    put(tmp_path, "clip.webm", b"\x1a\x45\xdf\xa3" + bytes(64))
    assert "needs ffmpeg" in refused(tmp_path / "clip.webm", kind=EnvironmentFault)


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs ffmpeg")
class TestVideo:
    def make(self, path: Path, *options: str) -> Path:
        source = ["-f", "lavfi", "-i", "testsrc=duration=2:size=320x180:rate=10"]
        subprocess.run(["ffmpeg", "-v", "error", *source, *options, f"file:{path}"], check=True)
        return path

    @pytest.mark.parametrize("name", ["clip.mp4", "-clip.mov", "http:clip.webm"])
    def test_frames_are_taken_over_its_length(self, tmp_path: Path, name: str) -> None:
        codec = ["-c:v", "libvpx"] if name.endswith("webm") else ["-c:v", "mpeg4"]
        path = self.make(tmp_path / name, *codec)
        said: list[str] = []
        images = load_attachments([path], say=said.append)
        assert len(images) == MAX_FRAMES
        assert {image.media_type for image in images} == {"image/jpeg"}
        assert images[0].name == f"{name}, frame at 0.1 s"
        assert images[-1].name == f"{name}, frame at 1.9 s"
        assert any("ffmpeg" in line for line in said)
        assert images == load_attachments([path]), "the same video gives the same bytes"

    def test_without_a_length(self, tmp_path: Path) -> None:
        path = tmp_path / "live.webm"
        with path.open("wb") as file:  # ffmpeg cannot write the length into an output in which it cannot seek
            source = ["-f", "lavfi", "-i", "testsrc=duration=2:size=320x180:rate=10"]
            command = [
                "ffmpeg",
                "-v",
                "error",
                *source,
                "-c:v",
                "libvpx",
                "-live",
                "1",
                "-f",
                "webm",
                "pipe:1",
            ]
            subprocess.run(command, stdout=file, check=True)
        assert [image.name[-5:] for image in load_attachments([path])] == ["0.0 s", "1.0 s"]

    def test_one_that_does_not_play(self, tmp_path: Path) -> None:
        assert "found no frame" in refused(put(tmp_path, "clip.mp4", MP4))

    def test_a_playlist_in_disguise_names_no_other_file(self, tmp_path: Path) -> None:
        self.make(tmp_path / "real.mp4", "-c:v", "mpeg4")
        text = f"#EXTM3U\n#EXTINF:2,\nfile:{tmp_path}/real.mp4\n#EXT-X-ENDLIST\n"
        assert "is text" in refused(put(tmp_path, "clip.mp4", text.encode()))
        assert "found no frame" in refused(put(tmp_path, "clip.mp4", MP4 + text.encode()))

"""Base images: made once on a machine."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from m3agent.sandbox.backends.image import Image
from m3agent.sandbox.images import debian


def test_two_state_folders_make_one_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    waiting, stop = threading.Event(), threading.Event()

    def bootstrap(_: object, python: str, tag: str, *__: object) -> None:
        waiting.wait(5)
        made.append(tag)

    def say(line: str) -> None:
        if "waiting" in line:
            waiting.set()

    def local_image(_: object, name: str) -> Image | None:
        return Image(name) if name in made else None

    monkeypatch.setattr(debian, "LOCKS", tmp_path / "locks")
    monkeypatch.setattr(debian, "_bootstrap", bootstrap)
    monkeypatch.setattr(debian, "local_image", local_image)
    monkeypatch.setattr(debian, "pull", lambda *_: False)
    monkeypatch.setattr(debian, "_not_pulled", set[str]())

    def base(state: str) -> debian.BaseImage:
        return debian.base_image(None, "3.11", state=tmp_path / state, say=say, stop=stop)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(base, ("first", "second"))
    assert waiting.is_set() and first == second and len(made) == 1

"""Room for images: an engine that counts for another process is no fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError

from m3agent.sandbox.images import prune
from m3agent.sandbox.images.prune import EnvironmentImage, make_room


class Engine:
    """An engine with two images of 10 bytes; `said` is how it fails to count them."""

    def __init__(self, said: str = "") -> None:
        self.names = ["m3agent-env:a", "m3agent-env:b"]
        self.said = said

    def df(self) -> dict[str, Any]:
        if self.said:
            raise APIError("500 Server Error", explanation=self.said)
        return {"LayersSize": 10 * len(self.names)}

    def remove_image(self, name: str) -> None:
        self.names.remove(name)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    made = Engine()
    images = [EnvironmentImage(name, name, 10, 0.0) for name in made.names]
    monkeypatch.setattr(prune, "environment_images", lambda *_: images)
    return made


def test_the_least_recently_used_images_go_until_the_others_fit(engine: Engine, tmp_path: Path) -> None:
    assert make_room(engine, tmp_path, 10) == ["m3agent-env:a"]
    assert make_room(engine, tmp_path, 10) == []


def test_nothing_goes_while_the_engine_counts_for_another_process(engine: Engine, tmp_path: Path) -> None:
    engine.said = "a disk usage operation is already running"
    assert make_room(engine, tmp_path, 0) == []
    engine.said = "the disk is broken"
    with pytest.raises(APIError):
        make_room(engine, tmp_path, 0)

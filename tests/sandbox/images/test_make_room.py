"""Room for images: an engine that counts for another process is no fault."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError

from m3agent.sandbox.images import prune
from m3agent.sandbox.images.kept import touch
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


class SharedEngine(Engine):
    """An engine whose images got their names a number of seconds ago."""

    def __init__(self, ages: dict[str, float]) -> None:
        super().__init__()
        self.names = list(ages)
        self.ages = ages

    def info(self) -> dict[str, Any]:
        return {"SystemTime": datetime.now(UTC).isoformat()}

    def images(self, **_: Any) -> list[dict[str, Any]]:
        return [{"Id": name, "RepoTags": [name], "Size": 10, "Created": 0} for name in self.names]

    def inspect_image(self, ident: str) -> dict[str, Any]:
        when = datetime.now(UTC) - timedelta(seconds=self.ages[ident])
        return {"Metadata": {"LastTagTime": when.isoformat()}}

    def tag(self, image: str, repository: str, tag: str) -> None:
        assert f"{repository}:{tag}" == image
        self.ages[image] = 0.0

    def containers(self, **_: Any) -> list[dict[str, Any]]:
        return []

    def volumes(self, **_: Any) -> dict[str, Any]:
        return {"Volumes": None}


def test_what_another_m3agent_has_just_used_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(prune, "socket_of", lambda _: None)
    engine = SharedEngine({"m3agent-env:own": 60.0, "m3agent-env:others": 60.0, "m3agent-env:old": 7200.0})
    touch(tmp_path, "m3agent-env:own", engine)
    told: list[str] = []
    done = prune.prune(engine, tmp_path, keep_bytes=0, say=told.append)
    assert done.images == ["m3agent-env:old", "m3agent-env:own"]
    assert engine.names == ["m3agent-env:others"]
    assert len(told) == 1
    assert make_room(engine, tmp_path, 0) == []


def test_the_clock_of_this_machine_does_not_make_an_image_old(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = SharedEngine({"m3agent-env:others": 60.0})
    late = datetime(2099, 1, 1, tzinfo=UTC).timestamp()
    monkeypatch.setattr(prune, "time", SimpleNamespace(time=lambda: late))
    assert make_room(engine, tmp_path, 0) == []
    assert engine.names == ["m3agent-env:others"]


def test_an_engine_that_notes_no_times_is_pruned_by_our_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = SharedEngine({"m3agent-env:a": 0.0})
    monkeypatch.setattr(engine, "inspect_image", lambda _: {})
    assert make_room(engine, tmp_path, 0) == ["m3agent-env:a"]

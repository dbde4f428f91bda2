"""What `serve fetch` needs of this machine, and how it looks."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from m3agent.agent.ui.serve_display import FetchView
from m3agent.serving.launch.hub import HubFile, Snapshot, check_room, look_up
from m3agent.util.errors import EnvironmentFault


def test_without_its_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(EnvironmentFault, match=r"install m3agent\[serve\]"):
        look_up("someone/m3", None, None)


def test_the_disk_is_the_one_that_gets_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def usage(path: Path) -> SimpleNamespace:
        asked.append(path)
        return SimpleNamespace(free=60)

    monkeypatch.setattr("shutil.disk_usage", usage)
    snapshot = Snapshot("someone/m3", "main", "0" * 40, [], tmp_path / "not" / "yet", None)
    assert check_room(snapshot, 60) == 60
    with pytest.raises(EnvironmentFault, match=r"needs 0\.0 GB more"):
        check_room(snapshot, 61)
    assert asked == [tmp_path, tmp_path]


def test_a_file_outside_is_never_removed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("the user's")
    folder = tmp_path / "m3"
    folder.mkdir()
    (folder / "a").symlink_to(outside)
    file = HubFile("a", 1, "0" * 40, None)
    Snapshot("someone/m3", "main", "0" * 40, [file], folder, None).remove(file)
    assert outside.exists()
    assert not (folder / "a").is_symlink()


def test_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    view = FetchView()
    assert view.rows(100, 24, 0.0) == []
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    told = view.stage("downloading", 400_000_000_000)
    assert view.rows(100, 24, 1000.0)[0].plain == f"downloading {'━' * 24}   0% 0 B of 400 GB"
    told(100_000_000_000)
    assert (
        view.rows(100, 24, 1100.0)[0].plain
        == f"downloading {'━' * 24}  25% 100 GB of 400 GB  1 GB/s, 5 min 0 s left"
    )
    assert len(view.rows(40, 24, 1100.0)[0].plain) < 40
    told(500_000_000_000)
    assert "100% 400 GB of 400 GB" in view.rows(100, 24, 1100.0)[0].plain, "retries count twice"

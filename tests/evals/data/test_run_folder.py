"""A run's folder: which configurations are the same experiment."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.agent.errors import UsageError
from m3agent.evals.data.results import RunConfig
from m3agent.evals.data.run_folder import RunFolder, config_hash


def config(**settings: str) -> RunConfig:
    return RunConfig(data="d", instances=("a",), agent="m3agent 1", settings=settings, attempts=1)


def test_settings_in_another_order_are_the_same_run(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", config(engine="embedded", sandbox="docker"), {})
    other = config(sandbox="docker", engine="embedded")
    assert RunFolder.create(tmp_path / "run", other, {}).config == other
    assert config_hash(other) == config_hash(config(engine="embedded", sandbox="docker"))


def test_another_setting_is_another_run(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", config(engine="embedded"), {})
    with pytest.raises(UsageError, match=r"another configuration \(settings: sandbox\)"):
        RunFolder.create(tmp_path / "run", config(engine="embedded", sandbox="docker"), {})

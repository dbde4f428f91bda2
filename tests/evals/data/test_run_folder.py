"""A run's folder: which configurations are the same experiment."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from m3agent.evals.data.results import AttemptRecord, RunConfig, Verdict
from m3agent.evals.data.run_folder import RunFolder, config_hash
from m3agent.util.errors import UsageError


def config(**settings: str) -> RunConfig:
    return RunConfig(data="d", instances=("a",), agent="m3agent 1", settings=settings, attempts=1)


def finish(folder: RunFolder, verdict: Verdict) -> None:
    """Store an attempt's result."""
    folder.begin("a", 1)
    started = datetime(2026, 1, 1, tzinfo=UTC)
    folder.finish(AttemptRecord(instance_id="a", repo="r", attempt=1, verdict=verdict, started=started), b"")


def test_settings_in_another_order_are_the_same_run(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", config(engine="embedded", sandbox="docker"), {})
    other = config(sandbox="docker", engine="embedded")
    assert RunFolder.create(tmp_path / "run", other, {}).config == other
    assert config_hash(other) == config_hash(config(engine="embedded", sandbox="docker"))


def test_another_setting_is_another_run_once_there_is_a_result(tmp_path: Path) -> None:
    finish(RunFolder.create(tmp_path / "run", config(engine="embedded"), {}), Verdict.EMPTY)
    with pytest.raises(UsageError, match=r"another configuration \(settings: sandbox\)"):
        RunFolder.create(tmp_path / "run", config(engine="embedded", sandbox="docker"), {})


@pytest.mark.parametrize("failed", [False, True], ids=["no attempt", "only attempts that the machine failed"])
def test_a_run_without_a_result_takes_another_configuration(tmp_path: Path, *, failed: bool) -> None:
    """A wrong address is corrected with the same -o."""
    first = RunFolder.create(tmp_path / "run", config(endpoint="http://localhost:9/v1"), {"a": "old"})
    if failed:
        finish(first, Verdict.INFRA)
    corrected = config(endpoint="http://localhost:8/v1")
    second = RunFolder.create(tmp_path / "run", corrected, {"a": "new"})
    assert RunFolder.read(tmp_path / "run").config == first.config, "nothing changes without the lock"
    said: list[str] = []
    with second.locked(said.append):
        found = RunFolder.read(tmp_path / "run")
        assert (found.config, found.repos, found.results()) == (corrected, {"a": "new"}, [])
    assert said == [
        f"{tmp_path / 'run'} has no result yet, so it now has another configuration (settings: endpoint)"
    ]
    with second.locked(said.append):
        assert len(said) == 1


def test_a_result_that_another_process_made_in_the_meantime_is_kept(tmp_path: Path) -> None:
    first = RunFolder.create(tmp_path / "run", config(engine="embedded"), {})
    second = RunFolder.create(tmp_path / "run", config(engine="embedded", sandbox="docker"), {})
    finish(first, Verdict.RESOLVED)
    with pytest.raises(UsageError, match="another configuration"), second.locked():
        pass
    assert RunFolder.read(tmp_path / "run").config == first.config
    assert len(first.kept()) == 1


def test_a_process_that_is_killed_while_it_takes_over_leaves_the_old_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = RunFolder.create(tmp_path / "run", config(engine="embedded"), {})
    finish(first, Verdict.INFRA)
    second = RunFolder.create(tmp_path / "run", config(engine="embedded", sandbox="docker"), {})

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("m3agent.evals.data.run_folder.write_whole", killed)
        with pytest.raises(KeyboardInterrupt), second.locked():
            pass
    assert RunFolder.read(tmp_path / "run").config == first.config
    with second.locked():
        assert RunFolder.read(tmp_path / "run").config == second.config

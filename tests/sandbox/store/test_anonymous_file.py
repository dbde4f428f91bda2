"""Files without a name, on Linux and elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from m3agent.sandbox.store.anonymous_file import anonymous_file


@pytest.mark.parametrize("linux", [True, False])
def test_a_file_that_only_this_process_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linux: bool
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if not linux:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    file = anonymous_file("notes")
    try:
        os.write(file, b"text")
        assert os.pread(file, 9, 0) == b"text"
        assert not os.get_inheritable(file)
        assert list(tmp_path.iterdir()) == []
    finally:
        os.close(file)

"""Test the cache of packed contexts: entries, damage, full disks, permissions and links."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m3agent.agent.context.cache import KEY_BYTES, Cache, Entry, key
from m3agent.agent.context.chunk_format import PLAIN, REDACTED, STORED
from m3agent.util.private_file import read_file, write_file

keys = st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES)
entries = st.dictionaries(keys, st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 255)), max_size=20)


@settings(max_examples=50)
@given(entries, st.booleans())
def test_entries_read_back(
    tmp_path_factory: pytest.TempPathFactory, made: dict[bytes, Entry], exact: bool
) -> None:
    folder = str(tmp_path_factory.mktemp("cache"))
    cache = Cache(folder, "v")
    cache.exact = exact
    for name, entry in made.items():
        cache.add(name, entry)
    cache.save(set(made))
    again = Cache(folder, "v")
    assert again.entries == made and again.exact is exact
    assert Cache(folder, "another way of counting").entries == {}


def test_keys_tell_paths_and_contents_apart() -> None:
    assert len({key(b"a", b"b"), key(b"ab", b""), key(b"", b"ab"), key(b"a", b"b\0"), key(b"a\0", b"b")}) == 5


def test_texts_are_kept_while_they_are_wanted(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path), "v")
    one, two, three = (bytes([n]) * KEY_BYTES for n in range(3))
    cache.add(one, (1, STORED), b"text one")
    cache.add(two, (1, REDACTED), b"text two")
    cache.add(three, (1, PLAIN))
    cache.save({one, two, three})
    for _ in range(20):
        cache = Cache(str(tmp_path), "v")
        assert cache.text(one) == b"text one"
        cache.save({one})
    assert cache.text(two) is None
    assert list(Cache(str(tmp_path), "v").entries) == [one]


@pytest.mark.parametrize("place", [0, 6, 7, 20, -1])
def test_damaged_file_counts_as_missing(place: int, tmp_path: Path) -> None:
    cache = Cache(str(tmp_path), "v")
    name = b"k" * KEY_BYTES
    cache.add(name, (7, STORED), b"text")
    cache.save({name})
    (file,) = tmp_path.glob("*.pack")
    data = bytearray(file.read_bytes())
    data[place] ^= 2
    file.write_bytes(data)
    assert Cache(str(tmp_path), "v").entries == {}
    file.write_bytes(b"")
    assert Cache(str(tmp_path), "v").entries == {}
    (text,) = (tmp_path / f"{file.name}.texts").iterdir()
    text.write_bytes(b"forged text")
    assert Cache(str(tmp_path), "v").text(name) is None


def test_no_folder_or_one_that_cannot_be_written(tmp_path: Path) -> None:
    for folder in (None, str(tmp_path / "file" / "below")):
        (tmp_path / "file").write_text("")
        cache = Cache(folder, "v")
        cache.add(b"k" * KEY_BYTES, (1, STORED), b"text")
        cache.save({b"k" * KEY_BYTES})
        assert cache.text(b"k" * KEY_BYTES) == b"text"
        assert Cache(folder, "v").entries == {}


@pytest.mark.integration
def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    """A limit on the size of files simulates a full disk: writes fail halfway."""
    file = tmp_path / "state"
    write_file(str(file), b"old")
    program = (
        "import resource, signal, sys\n"
        "from m3agent.agent.context.cache import write_file\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "try:\n    write_file(sys.argv[1], b'new' * 100)\n"
        "except OSError as error:\n    print(error.errno)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(file)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "27"
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    assert file.read_bytes() == b"old"


def test_files_are_their_owners_and_links_are_not_followed(tmp_path: Path) -> None:
    file = tmp_path / "state"
    write_file(str(file), b"mine")
    assert file.stat().st_mode & 0o777 == 0o600
    (tmp_path / "link").symlink_to(file)
    assert read_file(str(tmp_path / "link")) is None
    assert read_file(str(tmp_path / "none")) is None
    os.mkdir(tmp_path / "folder")  # noqa: PTH102
    assert read_file(str(tmp_path / "folder")) is None

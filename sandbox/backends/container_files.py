"""Read what a container has at a path, whether it runs or not."""

from __future__ import annotations

import contextlib
import tarfile
import tempfile
from collections.abc import Iterator
from typing import Any


class TooLarge(ValueError):
    """What is at a path of a container has too many bytes."""


@contextlib.contextmanager
def archive_of(api: Any, container: str, path: str, most_bytes: int) -> Iterator[tarfile.TarFile]:
    """Yield what is at a path of a container, as a tar.

    Raises:
        docker.errors.NotFound: There is nothing.
        TooLarge: It has more bytes than `most_bytes`.
    """
    stream, _ = api.get_archive(container, path)
    with tempfile.TemporaryFile() as packed:
        for piece in stream:
            if packed.tell() + len(piece) > most_bytes:
                raise TooLarge(f"it is larger than {most_bytes >> 20} MiB")
            packed.write(piece)
        packed.seek(0)
        with tarfile.open(fileobj=packed) as archive:
            yield archive

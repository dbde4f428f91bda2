"""A container image whose `vllm` is the stand-in engine, built from this machine's Python without a registry."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path

PROGRAM = Path(__file__).with_name("stand_in_engine.py")
_LEFT_OUT = {"site-packages", "test", "tests", "idlelib", "tkinter", "ensurepip", "lib2to3", "__pycache__"}


@contextlib.contextmanager
def engine_image(tag: str) -> Iterator[str]:
    """Make the image, and remove it afterwards. Its entrypoint does not exist, so callers have to override it."""
    change = 'ENTRYPOINT ["/no/such/entrypoint"]'
    made = subprocess.run(
        ["docker", "import", "--change", change, "-", tag], input=_files(), capture_output=True, check=False
    )
    assert made.returncode == 0, made.stderr.decode()
    try:
        yield tag
    finally:
        subprocess.run(["docker", "rmi", "--force", tag], check=False, capture_output=True)


def script() -> bytes:
    """Return the stand-in engine as a program for this machine's Python."""
    return f"#!{Path(sys.executable).resolve()}\n".encode() + PROGRAM.read_bytes()


def _files() -> bytes:
    python = Path(sys.executable).resolve()
    library = Path(sysconfig.get_path("stdlib")).resolve()
    modules = [
        path
        for path in library.rglob("*")
        if path.suffix in (".py", ".so") and not _LEFT_OUT & {*path.relative_to(library).parts}
    ]
    binaries = [python, *(path for path in modules if path.suffix == ".so")]
    shared = _needed(binaries)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in dict.fromkeys((python, *modules, *shared)):
            tar.add(path.resolve(), arcname=str(path))
        for name, content, mode in (("usr/bin/vllm", script(), 0o755), ("tmp/.keep", b"", 0o644)):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _needed(binaries: list[Path]) -> list[Path]:
    """Return the shared libraries that binaries load, including the loader."""
    done = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False)
    return [Path(found) for found in re.findall(r"(/\S+) \(0x", done.stdout)]

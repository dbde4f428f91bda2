"""Open a file without a name. A pack from the cache imports this module, so it imports nothing that is slow."""

import os


def anonymous_file(name: str) -> int:
    """Return the descriptor of a new, empty file that only this process has: in memory if the system can do that.

    Raises:
        OSError: There is no room for temporary files.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())

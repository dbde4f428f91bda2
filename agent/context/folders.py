"""Write the folders of a repository as a short tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

_DEEPEST = 6
_INTRO = b"Folders, with the number of files in each:"


def folder_lines(names: Iterable[bytes], most: int) -> list[bytes]:
    """Return at most `most` lines with the folders of some files, and a line before them; empty if nothing fits.

    Where there are too many folders, the deeper ones are left out, and their files count for the folder above.

    Args:
        names: The paths of all files, as shown.
        most: Largest number of folders.
    """
    folders = Counter(tuple(name.split(b"/")[:-1]) for name in names)
    for depth in range(_DEEPEST, 0, -1):
        tally: Counter[tuple[bytes, ...]] = Counter()
        for folder, number in folders.items():
            for end in range(min(len(folder), depth)):
                tally[folder[:end]] += 0
            tally[folder[:depth]] += number
        if 1 < len(tally) <= most:
            return [_INTRO, *(_line(folder, tally[folder]) for folder in sorted(tally))]
    return []


def _line(folder: tuple[bytes, ...], number: int) -> bytes:
    name = folder[-1] if folder else b"."
    return b"%b%b/ %d" % (b"  " * len(folder), name, number)

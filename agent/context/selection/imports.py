"""Resolve imports between files, in any language, from their texts and from the existing paths."""

from collections.abc import Iterable, Sequence
from itertools import takewhile

# A file with one of these names stands for its folder.
FOLDER_FILES = frozenset({"__init__", "index", "mod", "lib", "init", "package"})

# Source folders that import statements do not mention.
_ROOTS = ("src", "lib", "source", "include", "app", "python")

_MOST_TARGETS = 128
"""A name that matches more files than this is ignored."""


class ImportMap:
    """Find the files that imports refer to; `terms.Terms.imports` defines the notation of imports."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._folder_of: list[str] = []
        self._module_of: list[str] = []
        self._for_folder: set[int] = set()
        modules: dict[str, list[int]] = {}  # by complete path, without suffix
        tails: dict[str, list[int]] = {}  # by the last two or more parts of the path
        folders: dict[str, list[int]] = {}
        for index, path in enumerate(paths):
            folder, _, name = path.rpartition("/")
            stem = name.partition(".")[0] or name
            module = f"{folder}/{stem}" if folder else stem
            self._folder_of.append(folder)
            self._module_of.append(module)
            folders.setdefault(folder, []).append(index)
            if stem in FOLDER_FILES and folder:
                self._for_folder.add(index)
                module = folder
            modules.setdefault(module, []).append(index)
            tail = module.partition("/")[2]
            while "/" in tail:
                tails.setdefault(tail, []).append(index)
                tail = tail.partition("/")[2]
        self._modules, self._tails, self._folders = _fixed(modules), _fixed(tails), _fixed(folders)
        self._parts = {part for module in (*modules, *folders) for part in module.split("/")}
        self._absolute: dict[str, list[tuple[int, ...]]] = {}
        self._known: dict[str, tuple[int, ...]] = {}

    def targets(self, importer: int, imports: Iterable[str]) -> dict[int, float]:
        """Return the files that the file at position `importer` imports.

        Returns:
            A weight by position: 1 for a unique match, 1/n for each of n possible files.
        """
        found: dict[int, float] = {}
        for each in imports:
            meanings = self._absolute.get(each)
            if meanings is None:
                meanings = self._meanings(importer, each)
                if not each.startswith((".", "~")):
                    self._absolute[each] = meanings
            for meant in meanings:
                if len(meant) == 1:
                    found[meant[0]] = 1.0
                elif len(meant) <= _MOST_TARGETS:
                    nearest = self._nearest(importer, meant)
                    for index in nearest:
                        found[index] = max(found.get(index, 0.0), 1 / len(nearest))
        found.pop(importer, None)
        return found

    def _meanings(self, importer: int, each: str) -> list[tuple[int, ...]]:
        """Return the files of a module, and the files that correspond to names imported from it."""
        module, _, names = each.partition(":")
        folder = module.rstrip("/")
        if names and folder and folder[0] != "." and folder.rpartition("/")[2] not in self._parts:
            return []  # an external module
        meant = self._meant(importer, module) if module else ()
        if not names or (meant and self._for_folder.isdisjoint(meant)):
            return [meant] if meant else []
        # a name imported from a folder may be a file in it
        each_name = names.split(",")
        if len(meant) == 1:
            base = self._folder_of[meant[0]]
            return list(dict.fromkeys(self._modules.get(f"{base}/{name}", meant) for name in each_name))
        inner = (self._meant(importer, f"{folder}/{name}" if folder else name) for name in each_name)
        return list(dict.fromkeys(filter(None, inner)))

    def _meant(self, importer: int, name: str) -> tuple[int, ...]:
        """Return the files of a module, or of the module that may define the last part as a name."""
        if name.startswith("."):
            # next to the file, or (Rust) in the folder with the file's name
            for base in (self._folder_of[importer], self._module_of[importer]):
                module = _joined(base, name)
                if found := self._modules.get(module) or self._modules.get(module.rpartition("/")[0]):
                    return found
            return ()
        if name.startswith("~"):
            name = name[1:]
            if found := self._modules.get(_joined(self._folder_of[importer], name)):
                return found
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._anywhere(name)
        return known

    def _anywhere(self, name: str) -> tuple[int, ...]:
        for module in (name, name.rpartition("/")[0]):
            if module and (found := self._modules.get(module)):
                return found
            if "/" in module and (found := self._tails.get(module)):
                return found
            for root in _ROOTS:
                if module and (found := self._modules.get(f"{root}/{module}")):
                    return found
        # the name may begin with the project's public address
        rest = name.partition("/")[2]
        while "/" in rest:
            if found := self._modules.get(rest) or self._folders.get(rest):
                return found
            rest = rest.partition("/")[2]
        return ()

    def _nearest(self, importer: int, meant: tuple[int, ...]) -> tuple[int, ...]:
        """Return the files that share the most folders with the importer."""
        own = self._folder_of[importer].split("/")
        shared = [in_common(own, self._folder_of[index].split("/")) for index in meant]
        most = max(shared)
        return tuple(index for index, number in zip(meant, shared, strict=True) if number == most)


def _fixed(found: dict[str, list[int]]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(indexes) for name, indexes in found.items()}


def _joined(folder: str, name: str) -> str:
    parts = folder.split("/") if folder else []
    for part in name.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def in_common(first: Iterable[str], second: Iterable[str]) -> int:
    """Return how many parts two paths have in common at their beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))

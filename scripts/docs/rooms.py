"""Print the rooms of the code, what each imports, and its public names: `python -m scripts.docs.rooms`.

A room is a folder directly below one of `PACKAGES`; modules that stand there alone count
as rooms too. Public names are those that other rooms import. The order of the rooms is that of the import-linter
contracts in pyproject.toml. `make docs-pages` writes a picture into docs/architecture.md: the folders with their purposes.
"""

from __future__ import annotations

import ast
import functools
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from scripts.docs.settings_page import renewed

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGES = ("integrations", "cli", "evals", "agent", "tools", "sandbox", "serving", "util")
"""The packages, from the top layer to the bottom one."""


@dataclass
class Room:
    """A folder or a single module.

    Attributes:
        name: Dotted, such as `agent.loop`.
        purpose: First sentence of its docstring.
        imports: Names of the rooms that it imports, at any level of the code.
        public: Names that other rooms import from it, as `module.name`.
        is_folder: Whether it is a folder.
    """

    name: str
    purpose: str
    imports: set[str] = field(default_factory=set)
    public: set[str] = field(default_factory=set)
    is_folder: bool = False


@functools.cache
def rooms(root: Path = ROOT) -> dict[str, Room]:
    """Return all rooms by name, read from the code."""
    modules = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
    }
    found: dict[str, Room] = {}
    for module, path in modules.items():
        name = _room_of(module)
        if module in PACKAGES:
            continue
        room = found.setdefault(name, Room(name, ""))
        if module == name:
            room.purpose, room.is_folder = _purpose(path), path.name == "__init__.py"
    for module, path in modules.items():
        own = _room_of(module)
        for target, name in _imports(path, modules):
            other = _room_of(target)
            if other != own and other in found:
                found[other].public.add(f"{target.removeprefix(other).lstrip('.')}.{name}".strip("."))
                if own in found:
                    found[own].imports.add(other)
    return found


def _room_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def _purpose(path: Path) -> str:
    text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())
    first, full_stop, _ = text.partition(". ")
    return first + "." if full_stop else text


def _imports(path: Path, modules: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Yield each imported module and the name taken from it; an empty name for the module itself."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("m3agent."):
            base = node.module.removeprefix("m3agent.")
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield (whole, "") if whole in modules else (base, alias.name)


def layers(package: str, root: Path = ROOT) -> list[list[str]]:
    """Return the rooms of a package by layer, from the top layer to the bottom one."""
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    for contract in contracts:
        if contract.get("containers") == [f"m3agent.{package}"]:
            return [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]
    return [sorted(name.split(".")[1] for name in rooms(root) if name.startswith(f"{package}."))]


def picture(root: Path = ROOT) -> str:
    """Return the packages and their rooms, layer by layer, as a block of Markdown.

    Modules that stand alone have no purpose there. They are named only if the package has layers.
    """
    lines = []
    for package in PACKAGES:
        lines.append(f"{package + '/':<20}{_purpose(root / package / '__init__.py')}")
        shown = [rows for layer in layers(package, root) if (rows := _rows(package, layer, root))]
        for number, rows in enumerate(shown):
            for place, (name, purpose) in enumerate(rows):
                branch = " " if place else "└" if number == len(shown) - 1 else "├"
                lines.append(f"{branch} {name:<17} {purpose}".rstrip())
    return "```text\n" + "\n".join(lines) + "\n```\n"


def _rows(package: str, layer: list[str], root: Path) -> list[tuple[str, str]]:
    """Return a layer's rooms with their purposes: each folder, and all modules together."""
    found = {name: rooms(root)[f"{package}.{name}"] for name in layer}
    rows = [(name, room.purpose) for name, room in found.items() if room.is_folder]
    modules = [name for name, room in found.items() if not room.is_folder]
    return [*rows, (", ".join(modules), "")] if modules and len(layers(package, root)) > 1 else rows


def main() -> None:
    """Print all rooms; with `--write`, write the picture into the page instead."""
    if "--write" in sys.argv:
        PAGE.write_text(renewed(PAGE.read_text(), picture()))
        return
    for room in rooms().values():
        print(f"{room.name}: {room.purpose}")
        print(f"  imports: {', '.join(sorted(room.imports)) or '-'}")
        print(f"  public:  {', '.join(sorted(room.public)) or '-'}")


if __name__ == "__main__":
    main()

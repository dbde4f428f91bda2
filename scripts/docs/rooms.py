"""Print the rooms of the code, what each imports, and its public names: `python -m scripts.docs.rooms`.

A room is a folder directly below one of `PACKAGES`; modules that stand there alone count
as rooms too. Public names are those that other rooms import. The order of the rooms is that of the import-linter
contracts in pyproject.toml. `make docs-pages` writes the picture into docs/architecture.md.
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
    """

    name: str
    purpose: str
    imports: set[str] = field(default_factory=set)
    public: set[str] = field(default_factory=set)


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
        if module == name:
            found.setdefault(name, Room(name, "")).purpose = _purpose(path)
        else:
            found.setdefault(name, Room(name, ""))
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
    """Return the rooms and their purposes, layer by layer, as a block of Markdown."""
    found = rooms(root)
    lines = []
    for package in PACKAGES:
        lines.append(f"{package}/")
        by_layer = layers(package, root)
        for number, layer in enumerate(by_layer):
            last = number == len(by_layer) - 1
            for place, name in enumerate(layer):
                branch = " " if place else "└" if last else "├"
                lines.append(f"{branch} {name:<17} {found[f'{package}.{name}'].purpose}")
    return "```text\n" + "\n".join(lines) + "\n```\n"


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

"""Read setup.cfg and setup.py.

setup.py is parsed, never executed, so values that it computes stay unknown.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from m3agent.sandbox.declared.pyproject import UNKNOWN_VERSION
from m3agent.sandbox.declared.requirements import read_named_file
from m3agent.sandbox.declared.types import Files, ScanResult, texts_at
from m3agent.util.json_value import mapping, strings
from m3agent.util.python_ast import parse

CFG, PY = "setup.cfg", "setup.py"
SCRIPT = re.compile(r"\s*([^=\s]+)\s*=\s*(\S.*)")


def read_setup_cfg(files: Files, found: ScanResult) -> None:
    """Add the requirements of setup.cfg."""
    config = files.ini(CFG, found)
    if config.has_section("metadata"):
        name = config.get("metadata", "name", fallback="").strip()
        version = config.get("metadata", "version", fallback="").strip()
        points = _items(config, "options.entry_points")
        plain = version if re.fullmatch(r"\d[\w.+!-]*", version) else UNKNOWN_VERSION
        if name and not name.startswith("attr:"):
            found.name_project(name, plain, {group: _scripts(lines.splitlines()) for group, lines in points})
    found.accept_python(config.get("options", "python_requires", fallback="").strip())
    for key in ("install_requires", "tests_require"):
        _lines(files, config.get("options", key, fallback=""), found)
    for name, lines in _items(config, "options.extras_require"):
        if found.wants(name.split(":")[0], lines.splitlines()):
            _lines(files, lines, found)


def setup_arguments(files: Files, found: ScanResult) -> tuple[set[str], dict[str, Any]]:
    """Return the names of the arguments of setup() in setup.py, and the values of those that are literals."""
    module = files.python(PY, found)
    call = next((node for node in ast.walk(module) if _is_setup(node)), None)
    if not isinstance(call, ast.Call):
        return set(), {}
    names = _constants(module)
    given = {word.arg: word.value for word in call.keywords if word.arg}
    return set(given), {key: _literal(node, names) for key, node in given.items()}


def read_setup_py(files: Files, found: ScanResult) -> None:
    """Add the requirements in the literal arguments of setup() in setup.py."""
    given, values = setup_arguments(files, found)
    _name_project(values, found)
    if isinstance(values.get("python_requires"), str):
        found.accept_python(values["python_requires"])
    for key in ("install_requires", "tests_require", "extras_require"):
        value = values.get(key)
        if key in given and value is None:
            found.notice(PY, f"{key} is computed, and m3agent does not run setup.py: left out")
        lists = [value]
        if key == "extras_require":
            lists = [v for n, v in mapping(value).items() if found.wants(n.split(":")[0])]
        for one in lists:
            text = one if isinstance(one, str) else "\n".join(strings(one))
            found.require_all(filter(None, map(str.strip, text.splitlines())), PY)


def _name_project(values: dict[str, Any], found: ScanResult) -> None:
    name, version = (next(texts_at(values, key), "") for key in ("name", "version"))
    if name:
        groups = {
            group: _scripts(lines if isinstance(lines, list) else str(lines).splitlines())
            for group, lines in mapping(values.get("entry_points")).items()
        }
        found.name_project(name, version or UNKNOWN_VERSION, groups)


def _lines(files: Files, value: str, found: ScanResult) -> None:
    """Add requirements of setup.cfg, one per line, or those of the files that the value names."""
    if value.strip().startswith("file:"):
        for path in value.strip().removeprefix("file:").split(","):
            read_named_file(files, path.strip(), CFG, found)
        return
    for line in value.splitlines():
        if line.strip() and not line.strip().startswith("#"):
            found.require(line.split(" #")[0].strip(), CFG)


def _items(config: Any, section: str) -> list[tuple[str, str]]:
    return list(config.items(section)) if config.has_section(section) else []


def _scripts(lines: list[Any]) -> dict[str, str]:
    """Parse `name = module:object` lines into a dictionary."""
    matches = (SCRIPT.fullmatch(line.strip()) for line in lines if isinstance(line, str))
    return {match[1]: match[2] for match in matches if match}


def _is_setup(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
    return called == "setup"


def _constants(module: ast.Module) -> dict[str, ast.expr]:
    """Return the values of the module's own names.

    Later additions such as `EXTRAS["tests"] = [...]` are included.
    """
    names: dict[str, ast.expr] = {}
    for node in module.body:
        for target in node.targets if isinstance(node, ast.Assign) else ():
            assert isinstance(node, ast.Assign)
            if isinstance(target, ast.Name):
                names[target.id] = node.value
            elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                known = names.get(target.value.id)
                if isinstance(known, ast.Dict):  # evaluated now: it may use the key's earlier value
                    value = parse(repr(_literal(node.value, names)), "eval").body
                    names[target.value.id] = ast.Dict([*known.keys, target.slice], [*known.values, value])
    return names


def _literal(node: ast.expr, names: dict[str, ast.expr], depth: int = 0) -> Any:
    """Return the value of a literal, with the module's own constants inserted; None if it is computed."""
    if depth > 20:
        return None

    def inner(part: ast.expr) -> Any:
        return _literal(part, names, depth + 1)

    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name) if name in names:
            return inner(names[name])
        case ast.Subscript(value=container, slice=place):
            whole, key = inner(container), inner(place)
            return mapping(whole).get(key) if isinstance(key, str) else None
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _sum(inner(left), inner(right))
        case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
            items = [inner(item) for item in elements]
            return None if None in items else items
        case ast.Dict(keys=keys, values=values):
            pairs = zip(map(_constant, keys), values, strict=True)
            return {key: inner(value) for key, value in pairs if isinstance(key, str)}
        case _:
            return None


def _constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _sum(left: Any, right: Any) -> Any:
    """Return the sum of two lists or two texts; None of other values."""
    if isinstance(left, list):
        return left + right if isinstance(right, list) else None
    return left + right if isinstance(left, str) and isinstance(right, str) else None

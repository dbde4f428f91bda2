"""Read requirements files in pip's format: nested files, constraints, hashes, comments, continued lines."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable

from packaging.utils import canonicalize_name

from m3agent.sandbox.declared.types import WANTED_GROUPS, Files, ScanResult, words_of

# The words that a file's name may contain. Other words (docs, lint, gpu) name files that tests do not need.
WORDS = {"requirements", "requirement", "reqs", "base", "common", "core", "main", "ci"}
WORDS |= WANTED_GROUPS
COMMENT = re.compile(r"(^|\s)#.*$")
OPTION = re.compile(r"\s+(?=--[a-z])")
FILE_OPTIONS = {"-r": False, "--requirement": False, "-c": True, "--constraint": True}
"""Options that name another file, and whether that file contains constraints."""
ADDRESS = re.compile(r"(?:[a-z]+\+)?[a-z]{2,}://|git@", re.IGNORECASE)

EDITABLE = re.compile(r"^(?:-e|--editable)[\s=]*")
NAMED = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?\s*@\s*")
ROOT_MARK = re.compile(r"\$\{PROJECT_ROOT\}|\{(?:toxinidir|tox_root)\}|\{root((?::parent)*)(?::uri|:real)*\}")
"""How PDM, tox and Hatch write the folder of the project, or with `:parent` one above it."""
FILE_URL = re.compile(r"^file:(?://(?=\.))?")


def requirements_files(files: Files, groups: Collection[str] = WANTED_GROUPS) -> list[str]:
    """Return the requirements files that the repository's tests may need, most general first.

    Args:
        groups: Those of `WANTED_GROUPS` that a file's name may contain.
    """
    named, allowed = [], WORDS - (WANTED_GROUPS - set(groups))
    for path in files.paths:
        folder, name = posixpath.split(path)
        stem, extension = posixpath.splitext(name)
        words = set(re.split(r"[-_.]", stem.lower()))
        in_folder = folder in {"requirements", "reqs"}
        if extension != ".txt" or not words <= allowed or not (in_folder or words & {"requirements", "reqs"}):
            continue
        if folder in {"", "requirements", "reqs", "test", "tests"}:
            named.append(path)
    return sorted(named, key=lambda path: (path.count("/"), len(path), path))


def read_requirements(
    files: Files, path: str, found: ScanResult, *, constraint: bool = False, seen: set[str] | None = None
) -> None:
    """Add the requirements, or the constraints, of a file and of the files that it names, without those already seen."""
    seen = set() if seen is None else seen
    if path in seen:
        return  # a cycle, or named twice
    seen.add(path)
    for line in logical_lines(files.text(path, found) or ""):
        _line(files, path, line, found, constraint=constraint, seen=seen)


def read_named_file(
    files: Files, path: str, source: str, found: ScanResult, *, constraint: bool = False
) -> None:
    """Add the requirements, or the constraints, of a file that the file `source` names; a notice if it is missing."""
    if path in files.paths:
        read_requirements(files, path, found, constraint=constraint)
    else:
        found.notice(source, f"names {path}, which is not a file of the repository: left out")


def logical_lines(text: str) -> list[str]:
    """Return the lines of a requirements file: continued lines joined, without comments and empty lines."""
    joined = re.sub(r"\\\r?\n", " ", text)
    lines = (COMMENT.sub("", line).strip() for line in joined.splitlines())
    return [line for line in lines if line]


def _line(files: Files, path: str, line: str, found: ScanResult, *, constraint: bool, seen: set[str]) -> None:
    name, value = _option(line)
    if name in FILE_OPTIONS:
        other = posixpath.normpath(posixpath.join(posixpath.dirname(path), value))
        if other not in files.paths:
            found.notice(path, f"names {value}, which is not a file of the repository: left out")
            return
        read_requirements(files, other, found, constraint=constraint or FILE_OPTIONS[name], seen=seen)
    elif name in {"-e", "--editable"} or line.startswith((".", "/")) or "file:" in line:
        target = value if name else line
        if not asks_folder(line, (posixpath.dirname(path), ""), found):
            found.notice(path, f"'{target[:80]}' is installed from a folder or an address: left out")
    elif name is not None:
        found.notice(path, f"the option {name} is not followed")
    elif ADDRESS.match(line):
        found.notice(path, f"'{line[:80]}' comes from an address, not from an index: left out")
    else:
        requirement, *options = OPTION.split(line)
        hashes = "".join(f" {option}" for option in options if option.startswith("--hash"))
        if constraint:
            found.constrain(requirement, path)
        else:
            found.require(requirement, path, hashes)


def named_folder(line: str, folder: str) -> tuple[str, str | None]:
    """Return the name in a line such as `-e ../x[test]` or `x @ file:x`, and the path in the repository that it names.

    Relative paths start from `folder`. The name may be empty, and the path None.
    """
    text = EDITABLE.sub("", line.strip())
    name = NAMED.match(text)
    target = re.split(r"[\[;#\s]", text[name.end() :] if name else text)[0]
    marked = ROOT_MARK.search(target)
    if marked:
        target = "./" + "../" * (marked[1] or "").count(":parent") + target[marked.end() :].lstrip("/\\")
    elif target.startswith("file:"):
        target = FILE_URL.sub("", target).lstrip() or "."
    elif (
        name or re.match(r"[a-z+]+:", target) or (text == line.strip() and not target.startswith((".", "/")))
    ):
        return name[1] if name else "", None
    path = posixpath.normpath(posixpath.join(folder, target))
    outside = path.startswith(("/", "../")) or path == ".."
    if path == ".":
        path = ""
    return name[1] if name else "", None if outside else path


def asks_folder(line: str, folders: Iterable[str], found: ScanResult) -> bool:
    """Return whether a line names the repository or one of its packages by a path from one of the folders; record which."""
    extras = re.search(r"\[([^\]]*)\]", line)
    wanted = {canonicalize_name(extra.strip()) for extra in extras[1].split(",")} if extras else set()
    paths = {named_folder(line, folder)[1] for folder in folders}
    names = [name for name, folder in found.in_tree.folders.items() if folder in paths]
    for name in names:
        found.asked.setdefault(name, set()).update(wanted)
    return bool(names) or "" in paths


def _option(line: str) -> tuple[str | None, str]:
    """Return an option's name and value; the name is None if the line is a requirement."""
    if not line.startswith("-"):
        return None, ""
    match = re.match(r"(--[a-z][a-z-]*|-[a-zA-Z])(?:\s*=\s*|\s*)(.*)$", line)
    if match is None:
        return line.split()[0], ""
    words = words_of(match[2])
    return match[1], words[0] if words else ""

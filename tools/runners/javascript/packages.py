"""Find a suite's package manager, and say how it installs the packages."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any

from m3agent.tools.runners.base import Preparation, Suite, Tree, above, is_within
from m3agent.util.member_patterns import is_member

LOCKS = {
    "package-lock.json": "npm",
    "npm-shrinkwrap.json": "npm",
    "pnpm-lock.yaml": "pnpm",
    "yarn.lock": "yarn",
    "bun.lock": "bun",
    "bun.lockb": "bun",
}
_SETTINGS = (".npmrc", ".yarnrc.yml", "pnpm-workspace.yaml")
_CLASSIC_YARN = "1.22.22"
_MODERN_YARN = "4.9.2"
_YARN_NEEDS = {
    r"\A(?![^\0]*\bnodeLinker:[ \t\"']*(?:node-modules|pnpm)\b)": "YARN_NODE_LINKER=node-modules",
    r"\byarnPath:": "YARN_IGNORE_PATH=1",
}
"""Variables of yarn 2 and later, by what its settings say: runners are found in node_modules; yarn itself is installed by npm."""
_PNPM_OF_LOCK = {"5": "7.33.7", "6": "8.15.9", "9": "9.15.9"}
"""Version of pnpm that reads a lock file, by the lock file's version. Later lock files need the last version here."""

_LINK = re.compile(r"(?:file|link|portal):((?!/).*)")
"""A dependency in a folder of the repository."""


def member_patterns(tree: Tree, root: str) -> list[str]:
    """Return the patterns of a workspace's packages, relative to its root; empty if it is no workspace."""
    found = tree.json(posixpath.join(root, "package.json")).get("workspaces")
    if isinstance(found, dict):
        found = found.get("packages")
    patterns = [entry for entry in found if isinstance(entry, str)] if isinstance(found, list) else []
    # The list of packages in pnpm-workspace.yaml: lines that begin with a hyphen, below `packages:`.
    text = tree.text(posixpath.join(root, "pnpm-workspace.yaml"))
    block = re.search(r"^packages:[ \t]*\n((?:[ \t]*(?:-.*|#.*)?\n)*)", text + "\n", re.MULTILINE)
    if block:
        patterns += re.findall(
            r"^[ \t]*-[ \t]*['\"]?([^'\"#\n]+?)['\"]?[ \t]*(?:#.*)?$", block[1], re.MULTILINE
        )
    return patterns


def workspace_of(tree: Tree, folder: str) -> str:
    """Return the root of the workspace that a package belongs to, or the package's own folder."""
    for root in above(folder):
        inner = folder[len(root) :].lstrip("/")
        if is_member(member_patterns(tree, root), inner):
            return root
    return folder


def manager_of(tree: Tree, folder: str) -> str:
    """Return the package manager of a folder, with the version that the repository names: `npm`, `pnpm@9.1.0`."""
    root = workspace_of(tree, folder)
    named = str(tree.json(posixpath.join(root, "package.json")).get("packageManager", ""))
    match = re.fullmatch(r"(npm|pnpm|yarn|bun)@(\d+\.\d+\.\d+)([-+].*)?", named)
    if match:
        return f"{match[1]}@{match[2]}"
    return next((name for lock, name in LOCKS.items() if posixpath.join(root, lock) in tree.paths), "npm")


def preparation(suite: Suite, tree: Tree) -> Preparation:
    """Return how the packages of a suite are installed. No script of a package runs."""
    root = workspace_of(tree, suite.root)
    manager, _, version = suite.options["manager"].partition("@")
    locks = [
        lock for lock, name in LOCKS.items() if name == manager != "bun" and _in(root, lock) in tree.paths
    ]
    command, notices = _install(manager, version, tree, root, locks)
    members = [_in(root, "package.json")]
    patterns = member_patterns(tree, root)
    for path in tree.named("package.json"):
        inner = posixpath.dirname(path)[len(root) :].lstrip("/")
        if is_within(path, root) and is_member(patterns, inner):
            members.append(path)
    for path in members:  # it grows
        named = {_in(folder, "package.json") for folder in _linked(tree, path)}
        members += sorted((named & tree.paths).difference(members))
    others = [_in(root, name) for name in (*locks, *_SETTINGS)]
    inputs = [path for path in dict.fromkeys([*members, *others]) if path in tree.paths]
    keep = [posixpath.relpath(_in(posixpath.dirname(path), "node_modules"), root or ".") for path in members]
    return Preparation(
        root=root,
        system_packages=("nodejs", "npm"),
        commands=(command,),
        inputs=tuple(inputs),
        keep=tuple(dict.fromkeys(keep)),
        env={"CI": "1", "npm_config_update_notifier": "false"},
        notices=tuple(notices),
    )


def _install(
    manager: str, version: str, tree: Tree, root: str, locks: list[str]
) -> tuple[tuple[str, ...], list[str]]:
    """Return the command that installs a workspace's packages, and what people should know."""
    if manager == "pnpm":
        if not version:
            lock = re.search(
                r"^lockfileVersion:\s*'?(\d+)", tree.text(_in(root, "pnpm-lock.yaml")), re.MULTILINE
            )
            version = _PNPM_OF_LOCK.get(lock[1] if lock else "", _PNPM_OF_LOCK["9"])
        frozen = ("--frozen-lockfile",) if locks else ()
        return ("npx", "--yes", f"pnpm@{version}", "install", *frozen, "--ignore-scripts"), []
    if manager == "yarn":
        modern = "__metadata:" in tree.text(_in(root, "yarn.lock")) or (
            version and not version.startswith("1.")
        )
        if modern:
            name = f"@yarnpkg/cli-dist@{version or _MODERN_YARN}"
            settings = tree.text(_in(root, ".yarnrc.yml"))
            own = [word for pattern, word in _YARN_NEEDS.items() if re.search(pattern, settings)]
            env = ("env", *own) if own else ()
            return (*env, "npx", "--yes", name, "install", "--immutable", "--mode=skip-build"), []
        name = f"yarn@{version or _CLASSIC_YARN}"
        options = ("--frozen-lockfile", "--ignore-scripts", "--non-interactive")
        return ("npx", "--yes", name, "install", *options), []
    quiet = ("--ignore-scripts", "--no-audit", "--no-fund")
    if manager == "npm" and locks:
        return ("npm", "ci", *quiet), []
    notices = (
        ["bun is not supported: npm installs the packages, without bun's lock file"]
        if manager == "bun"
        else []
    )
    return ("npm", "install", *quiet), notices


def _linked(tree: Tree, manifest: str) -> set[str]:
    """Return the folders of the repository that a package.json names as dependencies."""
    kinds = ("dependencies", "devDependencies", "optionalDependencies")
    wanted = (text for kind in kinds for text in table_of(tree.json(manifest), kind).values())
    matches = (_LINK.match(str(text)) for text in wanted)
    return {
        posixpath.normpath(_in(posixpath.dirname(manifest), match[1].rstrip("/")))
        for match in matches
        if match
    }


def table_of(manifest: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a table of a package.json; empty if the file has no such table."""
    found = manifest.get(key)
    return found if isinstance(found, dict) else {}


def _in(folder: str, name: str) -> str:
    return posixpath.join(folder, name)

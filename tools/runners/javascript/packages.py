"""What the manifests of JavaScript say: how packages are installed, and which settings and files decide how tests run."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from typing import Any

from m3agent.tools.runners.base import Preparation, Suite, Tree, above, is_within
from m3agent.util.json_value import items, mapping
from m3agent.util.member_patterns import is_member

MANIFEST = "package.json"
RESTORED = (
    *(
        "scripts",
        "type",
        "imports",
        "workspaces",
        "devDependencies",
        "packageManager",
        "overrides",
        "resolutions",
    ),
    *("pnpm", "config", "jest", "vitest", "mocha", "ava", "nyc", "c8", "babel", "swc", "ts-node"),
)
"""Keys of a package.json that tools of tests read. A patch may change all others, such as `dependencies`, `exports` and `version`."""
_DEPENDENCIES = ("dependencies", "optionalDependencies", "peerDependencies")
SECTIONS = ("jest", "mocha", "ava", "vitest")
"""Keys of a package.json under which runners have their settings."""
_CONFIGURATION = re.compile(r"(?:jest|vitest|vite|mocha|ava)[\w.-]*\.(?:[cm]?[jt]s|json)|\.mocharc(?:\.\w+)?")
_NAMED = re.compile(
    r"""\b(?:setupFiles(?:AfterEnv)?|globalSetup|globalTeardown|testEnvironment|snapshotSerializers|require|file)["']?\s*:\s*"""
    r"""(\[[^\]]*\]|["'][^"'\n]+["'])"""
)
"""A key of jest, vitest, mocha or ava whose values are files, with its values."""
_OPTION = re.compile(r"(?:^|\s)(?:-r|--require|--import|--file|--setupFiles|--globalSetup)[= ]\s*([^\s\"']+)")
"""An option of a runner whose value is a file."""
_TEXT = re.compile(r"""["']([^"'\n]+)["']""")
_ENDS = ("", ".js", ".cjs", ".mjs", ".ts", ".tsx", ".mts", ".cts", "/index.js", "/index.ts")
"""Ends of a path that a configuration may leave out."""
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
    workspaces = tree.json(posixpath.join(root, MANIFEST)).get("workspaces")
    listed = mapping(workspaces).get("packages", workspaces)
    patterns = [entry for entry in items(listed) if isinstance(entry, str)]
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
    named = str(tree.json(posixpath.join(root, MANIFEST)).get("packageManager", ""))
    match = re.fullmatch(r"(npm|pnpm|yarn|bun)@(\d+\.\d+\.\d+)([-+].*)?", named)
    if match:
        return f"{match[1]}@{match[2]}"
    return next((name for lock, name in LOCKS.items() if posixpath.join(root, lock) in tree.paths), "npm")


def preparation(suite: Suite, tree: Tree) -> Preparation:
    """Return how the packages of a suite are installed. No script of a package runs."""
    root = workspace_of(tree, suite.root)
    manager, _, version = manager_of(tree, root).partition("@")
    locks = [
        lock for lock, name in LOCKS.items() if name == manager != "bun" and _in(root, lock) in tree.paths
    ]
    command, notices = _install(manager, version, tree, root, locks)
    members = [_in(root, MANIFEST)]
    patterns = member_patterns(tree, root)
    for path in tree.named(MANIFEST):
        inner = posixpath.dirname(path)[len(root) :].lstrip("/")
        if is_within(path, root) and is_member(patterns, inner):
            members.append(path)
    for path in members:  # it grows
        named = {_in(folder, MANIFEST) for folder in _linked(tree, path)}
        members += sorted((named & tree.paths).difference(members))
    others = [_in(root, name) for name in (*locks, *_SETTINGS)]
    inputs = tree.present(*dict.fromkeys([*members, *others]))
    keep = [posixpath.relpath(_in(posixpath.dirname(path), "node_modules"), root or ".") for path in members]
    return Preparation(
        root=root,
        system_packages=("nodejs", "npm"),
        commands=(command,),
        inputs=inputs,
        keep=tuple(dict.fromkeys(keep)),
        env={"CI": "1", "npm_config_update_notifier": "false"},
        notices=tuple(notices),
    )


def _install(
    manager: str, version: str, tree: Tree, root: str, locks: list[str]
) -> tuple[tuple[str, ...], list[str]]:
    """Return the command that installs a workspace's packages, and what people should know."""
    if manager == "pnpm":
        lock = re.search(r"^lockfileVersion:\s*'?(\d+)", tree.text(_in(root, "pnpm-lock.yaml")), re.MULTILINE)
        version = version or _PNPM_OF_LOCK.get(lock[1] if lock else "", _PNPM_OF_LOCK["9"])
        frozen = ("--frozen-lockfile",) if locks else ()
        return ("npx", "--yes", f"pnpm@{version}", "install", *frozen, "--ignore-scripts"), []
    if manager == "yarn":
        return _yarn(version, tree, root), []
    quiet = ("--ignore-scripts", "--no-audit", "--no-fund")
    if manager == "npm" and locks:
        return ("npm", "ci", *quiet), []
    notices = (
        ["bun is not supported: npm installs the packages, without bun's lock file"]
        if manager == "bun"
        else []
    )
    return ("npm", "install", *quiet), notices


def _yarn(version: str, tree: Tree, root: str) -> tuple[str, ...]:
    is_classic = version.startswith("1.") or not version
    if is_classic and "__metadata:" not in tree.text(_in(root, "yarn.lock")):
        options = ("--frozen-lockfile", "--ignore-scripts", "--non-interactive")
        return ("npx", "--yes", f"yarn@{version or _CLASSIC_YARN}", "install", *options)
    settings = tree.text(_in(root, ".yarnrc.yml"))
    own = [word for pattern, word in _YARN_NEEDS.items() if re.search(pattern, settings)]
    name = f"@yarnpkg/cli-dist@{version or _MODERN_YARN}"
    env = ("env", *own) if own else ()
    return (*env, "npx", "--yes", name, "install", "--immutable", "--mode=skip-build")


def _linked(tree: Tree, manifest: str) -> set[str]:
    """Return the folders of the repository that a package.json names as dependencies."""
    kinds = ("dependencies", "devDependencies", "optionalDependencies")
    wanted = (text for kind in kinds for text in mapping(tree.json(manifest), kind).values())
    matches = (_LINK.match(str(text)) for text in wanted)
    return {
        posixpath.normpath(_in(posixpath.dirname(manifest), match[1].rstrip("/")))
        for match in matches
        if match
    }


def _in(folder: str, name: str) -> str:
    return posixpath.join(folder, name)


def restored_manifest(base_text: str, patched_text: str) -> str:
    """Return the patched package.json with the base's settings of tests.

    A package that is a development dependency in the base cannot move to another kind of dependencies: that would replace
    the test runner. If one of the texts is no JSON object, the patched text is returned: a broken manifest shows in the run.
    """
    base, patched = _object(base_text), _object(patched_text)
    if base is None or patched is None:
        return patched_text
    settings = {key: base[key] for key in RESTORED if key in base}
    restored = {
        **{key: value for key, value in patched.items() if key not in RESTORED or key in base},
        **settings,
    }
    developed = mapping(base, "devDependencies")
    for kind in _DEPENDENCIES:
        before, after = mapping(base, kind), restored.get(kind)
        if isinstance(after, dict):
            restored[kind] = {
                name: wanted for name, wanted in after.items() if name in before or name not in developed
            }
    if restored == patched:
        return patched_text
    indent = re.search(r"^([ \t]+)\S", patched_text, re.MULTILINE)
    text = json.dumps(restored, indent=indent[1] if indent else 2, ensure_ascii=False)
    return text + "\n" * patched_text.endswith("\n")


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def set_up_files(tree: Tree) -> set[str]:
    """Return the paths of the set-up files of a tree."""
    found = set[str]()
    for path in tree.paths:
        folder, name = posixpath.split(path)
        if name == MANIFEST or _CONFIGURATION.fullmatch(name):
            for value in _values(tree, path, name):
                named = posixpath.normpath(posixpath.join(folder, value.replace("<rootDir>", ".")))
                found |= {named + end for end in _ENDS}
    return found & tree.paths


def _values(tree: Tree, path: str, name: str) -> Iterator[str]:
    text = tree.text(path)
    if name == MANIFEST:
        manifest = tree.json(path)
        for script in mapping(manifest, "scripts").values():
            yield from _OPTION.findall(str(script))
        text = json.dumps({section: manifest.get(section) for section in SECTIONS})
    for values in _NAMED.findall(text):
        yield from _TEXT.findall(values)

"""Find the suites of a JavaScript or TypeScript repository, and the arguments that its scripts give to the runners."""

from __future__ import annotations

import itertools
import json
import posixpath
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from m3agent.tools.runners.base import Suite, Tree, is_within, words_of
from m3agent.tools.runners.javascript.packages import member_patterns, workspace_of
from m3agent.tools.runners.path_rules import JS, is_code
from m3agent.util.json_value import mapping

OTHER_PROJECTS = words_of(
    "example examples fixture __fixtures__ template templates demo demos playground test tests __tests__ spec"
)
"""Manifests in these folders are examples or data of tests."""
ROWS: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    Path(__file__).with_name("runners.toml").read_text("utf-8")
)
PROGRAMS = {program: name for name, row in ROWS.items() for program in row["programs"].split()}
_WRAPPERS = frozenset(
    {"nyc", "c8", "cross-env", "cross-env-shell", "dotenv", "env", "npx", "pnpx", "bunx", "exec", "x", "--"}
)
"""Words before a test runner that start it."""
_MANAGERS = frozenset({"npm", "pnpm", "yarn", "bun"})
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_OWN_VARIABLES = frozenset({"CI", "PATH", "HOME", "NODE_TEST_CONTEXT"})
"""Variables that only m3agent sets. A script may set all others, such as TZ: its tests were written with them."""
_MOST_CALLS = 20
"""Most scripts that one script may call."""


@dataclass(frozen=True)
class Call:
    """A call of a test runner in a script: its arguments, node's options, and variables."""

    runner: str
    args: tuple[str, ...] = ()
    node: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


def find_suites(tree: Tree, runner: str) -> list[Suite]:
    """Return the suites of a runner, from names and contents of files only."""
    folders = [
        posixpath.dirname(path)
        for path in tree.named("package.json")
        if OTHER_PROJECTS.isdisjoint(path.split("/")[:-1])
    ]
    suites: dict[str, Suite] = {}
    for folder in sorted(folders, key=lambda folder: (folder.count("/") + bool(folder), folder)):
        call, evidence = _call_of(tree, folder, runner)
        if call is None or not _has_tests(tree, folder):
            continue
        root = workspace_of(tree, folder)
        if root != folder and root in suites:
            continue  # the root runs the tests of its packages itself
        suites[folder] = Suite(runner, folder, evidence, _options(call))
    return list(suites.values())


def calls_of(script: Any, scripts: Mapping[str, Any]) -> list[Call]:
    """Return the calls of test runners in a script, through the other scripts that it runs."""
    return list(_calls(script, scripts, []))


def _calls(script: Any, scripts: Mapping[str, Any], seen: list[str]) -> Iterator[Call]:
    if not isinstance(script, str) or script in seen or len(seen) >= _MOST_CALLS:
        return
    seen.append(script)
    exported: dict[str, str] = {}
    for words in _commands(script):
        if words[:1] == ["export"]:
            exported |= _assigned(words[1:])
        env = dict(exported)
        for call in _call(words, scripts, seen, env):
            yield replace(call, env={**env, **call.env})


def _assigned(words: Iterable[str]) -> dict[str, str]:
    """Return the variables that words like `TZ=UTC` set."""
    matches = filter(None, map(_ASSIGNMENT.fullmatch, words))
    return {match[1]: match[2] for match in matches if match[1] not in _OWN_VARIABLES}


def _commands(script: str) -> Iterator[list[str]]:
    """Yield the commands of a script as lists of words."""
    lexer = shlex.shlex(script, posix=True, punctuation_chars="&|;()")
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    try:
        for word in lexer:
            if word and set(word) <= set("&|;()"):
                yield words
                words = []
            else:
                words.append(word)
    except ValueError:
        return  # an open quotation mark: no script that works
    yield words


def _call(
    words: Sequence[str], scripts: Mapping[str, Any], seen: list[str], env: dict[str, str]
) -> Iterator[Call]:
    """Yield the calls of a command; add the variables that it sets before them to `env`."""
    node: list[str] = []
    is_node = False
    for at, word in enumerate(words):
        name = re.sub(r"\.[cm]?js$", "", word.rpartition("/")[2])
        rest = tuple(words[at + 1 :])
        scripts_called = _scripts_called(name, rest, scripts)
        if _ASSIGNMENT.fullmatch(word):
            env |= _assigned([word])
        elif name in PROGRAMS:
            yield Call(PROGRAMS[name], rest, tuple(node))
            return
        elif name in _NODES and "--test" in rest:
            options, files = _node_arguments(rest)
            yield Call("node-test", files, (*_NODES[name], *options))
            return
        elif scripts_called is not None:
            for called in scripts_called:
                yield from _called(called, scripts, seen)
            return
        elif name == "node":
            is_node = True
        elif word.startswith("-") or (at and re.fullmatch("--?[^=]+", words[at - 1])):
            node += [word] if is_node else []  # an option or its value
        elif name not in (*_WRAPPERS, *_MANAGERS):
            return


def _scripts_called(program: str, words: Sequence[str], scripts: Mapping[str, Any]) -> Sequence[str] | None:
    """Return the scripts that a program starts, none if they are those of other packages; None if it starts no scripts."""
    if program in ("run-s", "run-p", "npm-run-all", "npm-run-all2"):
        return words
    if program not in _MANAGERS:
        return None
    if _elsewhere(words):
        return ()
    called = _script_name(words, scripts)
    return (called,) if called else None


def _script_name(words: Sequence[str], scripts: Mapping[str, Any]) -> str:
    """Return the script that a package manager's arguments start; empty if they start none."""
    first = words[0] if words else ""
    if first in ("run", "run-script"):
        return next((word for word in words[1:] if not word.startswith("-")), "")
    if first in ("test", "t"):
        return "test"
    return first if first in scripts and first not in PROGRAMS else ""


def _called(name: str, scripts: Mapping[str, Any], seen: list[str]) -> Iterator[Call]:
    pattern = name.replace("*", "")
    for script_name, script in scripts.items():
        if script_name == name or ("*" in name and script_name.startswith(pattern)):
            yield from _calls(script, scripts, seen)


def _elsewhere(words: Sequence[str]) -> bool:
    """Return whether a package manager's arguments name other packages than this one."""
    flags = words_of("--workspaces --workspace -w -ws -r --recursive --filter -F --prefix -C --cwd")
    return any(word.partition("=")[0] in flags for word in words) or words[:1] in (
        ("workspaces",),
        ("workspace",),
    )


_NODES: Mapping[str, tuple[str, ...]] = {
    "node": (),
    "tsx": ("--import", "tsx"),
    "ts-node": ("--require", "ts-node/register"),
}
"""Programs that are node, and the options with which node is what they are."""
_NAMES_OF_TESTS = ("test:", "test-", "unit", "jest", "mocha")
"""Beginnings of the names of scripts that run tests."""
_WITH_VALUE = words_of("-r --require --import --loader --experimental-loader -C --conditions -e -f")
"""Options of node or of a wrapper after which a value follows."""


def _node_arguments(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return node's own options and the files among the arguments of `node --test`."""
    ours = ("--test", "--watch", "--experimental-test-coverage")
    is_value = [before in _WITH_VALUE for before in ("", *words)]
    files = [not (value or word.startswith("-")) for word, value in zip(words, is_value, strict=False)]
    options = (
        word for word, file in zip(words, files, strict=True) if not file and not word.startswith(ours)
    )
    return tuple(options), tuple(itertools.compress(words, files))


def _call_of(tree: Tree, folder: str, runner: str) -> tuple[Call | None, str]:
    """Return a package's call of a runner, and the evidence for it. What first names runners decides."""
    path = posixpath.join(folder, "package.json")
    manifest = tree.json(path)
    scripts = mapping(manifest, "scripts")
    # a workspace may have scripts and dependencies for its packages
    is_workspace = bool(member_patterns(tree, folder))
    others = sorted(name for name in scripts if name.startswith(_NAMES_OF_TESTS))
    for name in ("test", *(() if is_workspace and "test" in scripts else others)):
        if calls := calls_of(scripts.get(name), scripts):
            return next((call for call in calls if call.runner == runner), None), f"scripts.{name} in {path}"
    own = mapping(manifest, "devDependencies").keys() | mapping(manifest, "dependencies").keys()
    known = next((name for name in ROWS if name in own), "")
    if known and not is_workspace:
        return (Call(runner) if known == runner else None), f"devDependencies in {path}"
    return _configured(tree, folder, runner)


def _configured(tree: Tree, folder: str, runner: str) -> tuple[Call | None, str]:
    """Return a call of a runner that has a configuration in a folder, and that file."""
    start = posixpath.join(folder, ROWS[runner]["configuration"]) if runner in ROWS else "\0"
    configuration = min((name for name in tree.paths if name.startswith(start)), default="")
    return (Call(runner) if configuration else None), configuration


def _options(call: Call) -> dict[str, str]:
    values = {"args": call.args, "node": call.node, "env": call.env}
    return {key: json.dumps(value) for key, value in values.items() if value}


def _has_tests(tree: Tree, folder: str) -> bool:
    """Return whether a package has test files of its own."""
    own = (path for path in tree.paths if is_within(path, folder) and "node_modules" not in path)
    return any(is_code(path) and JS.is_test(path) for path in own)

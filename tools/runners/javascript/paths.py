"""Tell by a path what a file of a JavaScript or TypeScript project is: a test, or a part of how tests run."""

from __future__ import annotations

import re

TEST_FOLDERS = frozenset({"test", "tests", "__tests__", "__mocks__", "__snapshots__", "spec", "e2e"})
_CODE = r"\.[cm]?[jt]sx?$"
_TEST_NAME = re.compile(
    rf"[.-](test|spec|e2e){_CODE}|^(test|spec){_CODE}|_test{_CODE}|^test-.*{_CODE}|\.snap$"
)
_IS_CODE = re.compile(_CODE)
_CONFIGURATION = re.compile(
    r"(jest|vitest|vite|mocha|ava|babel|rollup|webpack|tsup|swc|nyc|c8|karma|jasmine|lerna|turbo|nx)([.-][\w.-]*)?\."
    r"(config|workspace|setup|preset|projects|globals)\.([cm]?[jt]sx?|json5?)"
    r"|(jest|vitest|vite|mocha|ava|babel|rollup|webpack|tsup|karma)[.-](config|workspace|setup|preset|projects)[\w.-]*"
    r"|(setup|set-up)[._-]?tests?\.[cm]?[jt]sx?"
    r"|tests?[._-]?(setup|set-up)\.[cm]?[jt]sx?"
    r"|tsconfig[\w.-]*\.json|jsconfig\.json"
    r"|\.(mocharc|babelrc|swcrc|nycrc|c8rc|taprc)([.-][\w.-]*)?"
    r"|\.(npmrc|pnpmfile\.cjs|yarnrc|yarnrc\.yml|node-version|nvmrc|pnp\.[\w.]+|npmignore)"
    r"|\.env([.-][\w.-]+)?"
    r"|package\.json|package-lock\.json|npm-shrinkwrap\.json|pnpm-lock\.yaml|pnpm-workspace\.yaml|yarn\.lock"
    r"|bun\.lockb?|bunfig\.toml|lerna\.json|nx\.json|turbo\.json|mocha\.opts",
    re.IGNORECASE,
)
_FOLDERS = frozenset({"node_modules", ".yarn"})


def is_code(path: str) -> bool:
    """Return whether a file can contain tests: JavaScript or TypeScript, no declarations of types."""
    return bool(_IS_CODE.search(path)) and not re.search(r"\.d\.[cm]?ts$", path)


def is_test(path: str) -> bool:
    """Return whether a file belongs to the tests: by its name, or because it lies in a folder of tests."""
    *folders, name = path.split("/")
    return not TEST_FOLDERS.isdisjoint(folders) or bool(_TEST_NAME.search(name))


def is_test_file(path: str) -> bool:
    """Return whether a file may contain tests."""
    return is_test(path) and is_code(path)


def is_named_test(path: str) -> bool:
    """Return whether a file with tests is named as jest and vitest expect it, unless they are configured otherwise."""
    *folders, name = path.split("/")
    return is_code(path) and ("__tests__" in folders or bool(_TEST_NAME.search(name)))


def surroundings(path: str) -> bool:
    """Return whether a file decides how tests run: a manifest, a lock file, a configuration, an installed package.

    Set-up files that a configuration names can have any name. Those with another name than usual are not found by their
    path.
    """
    *folders, name = path.split("/")
    return not _FOLDERS.isdisjoint(folders) or bool(_CONFIGURATION.fullmatch(name))

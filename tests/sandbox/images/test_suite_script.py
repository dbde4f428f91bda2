"""The program that installs a suite's dependencies: what it says after a failure, and what git need not look into."""

from __future__ import annotations

import pytest

from m3agent.sandbox.images.suite_script import pattern, reason_of

NPM = """\
npm warn old lockfile
npm error code E403
npm error 403 403 Forbidden - GET http://npm.test/left-pad
npm error 403 In most cases, you or one of your dependencies are requesting
npm error A complete log of this run can be found in: /tmp/home/.npm/_logs/x-debug-0.log
"""
OLD_NPM = (
    "npm ERR! code ENOTFOUND\nnpm ERR! network request to https://npm.test/x failed, reason: no such host\n"
)
GO = 'go: downloading example.test/a v1.0.0\ngo: example.test/a@v1.0.0: Get "https://go.test/a": Forbidden\n'
CARGO = "    Updating index\nerror: failed to get `a` as a dependency\n\nCaused by:\n  download of config.json failed\n"
BUNDLER = "Fetching gem metadata\nCould not find gem 'left (= 1)' in rubygems repository\n"


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (NPM, "code E403; 403 403 Forbidden - GET http://npm.test/left-pad"),
        (OLD_NPM, "code ENOTFOUND; network request to https://npm.test/x failed, reason: no such host"),
        (GO, 'go: example.test/a@v1.0.0: Get "https://go.test/a": Forbidden'),
        (CARGO, "failed to get `a` as a dependency"),
        (BUNDLER, "Could not find gem 'left (= 1)' in rubygems repository"),
        ("Loading\n  : Failed to open stream: no such host\n", "Failed to open stream: no such host"),
        ("one\ntwo\n\n", "two"),
        ("", "no message"),
    ],
)
def test_the_reason_is_the_first_lines_with_an_error(output: str, reason: str) -> None:
    assert reason_of(output.splitlines()) == reason


@pytest.mark.parametrize(
    ("folder", "escaped"),
    [("node_modules", "/node_modules/"), ("a b/[x]*", r"/a\ b/\[x\]\*/"), ("#a/!b", r"/\#a/\!b/")],
)
def test_a_pattern_for_git_names_one_folder(folder: str, escaped: str) -> None:
    assert pattern(folder) == escaped

"""Versions of toolchains that a repository asks for."""

from __future__ import annotations

import pytest

from m3agent.sandbox.declared.tool_versions import AskedVersion, asked_versions, is_older, older_than_asked
from tests.sandbox.declared.trees import files_of


def asked(files: dict[str, str], folder: str = "") -> dict[str, str]:
    return {asking.tool: asking.version for asking in asked_versions(files_of(files), folder)}


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        (".tool-versions", "# ours\nnodejs 18.16.0 system\ngolang 1.21\njust 1\nruby\n", {"Node.js": "18.16.0", "Go": "1.21"}),
        (".tool-versions", "java temurin-17.0.1+12\nelixir 1.15.4-otp-26\n", {"Java": "17.0.1", "Elixir": "1.15.4"}),
        ("mise.toml", '[tools]\nnode = "20"\ngo = ["1.22", "1.21"]\nruby = {version = "3.2"}\nphp = 8\n', {"Node.js": "20", "Go": "1.22", "Ruby": "3.2"}),
        (".mise.toml", '[tools]\nrust = "latest"\n', {}),
        (".nvmrc", "v18.16\n", {"Node.js": "18.16"}),
        (".nvmrc", "lts/iron2\n", {}),
        (".node-version", "20\n", {"Node.js": "20"}),
        (".ruby-version", "ruby-3.2.2\n", {"Ruby": "3.2.2"}),
        (".ruby-version", "jruby-9.4\n", {}),
        ("go.mod", "module x\n\ngo 1.21.3\n", {"Go": "1.21.3"}),
        ("go.mod", "module go 1.9\n// go 1.99\n", {}),
        ("rust-toolchain", "1.70.0\n", {"Rust": "1.70.0"}),
        ("rust-toolchain", "nightly-2023-01-01\n", {}),
        ("rust-toolchain.toml", '[toolchain]\nchannel = "1.70"\n', {"Rust": "1.70"}),
        ("rust-toolchain.toml", "[toolchain\n", {}),
    ],
)  # fmt: skip
def test_each_file_is_read_as_data(name: str, text: str, found: dict[str, str]) -> None:
    assert asked({name: text}) == found


def test_the_nearest_file_counts() -> None:
    files = {".nvmrc": "16\n", "go.mod": "go 1.20\n", "web/.nvmrc": "20\n", "web/app/x": ""}
    assert asked(files, "web/app") == {"Node.js": "20", "Go": "1.20"}
    assert asked(files) == {"Node.js": "16", "Go": "1.20"}


@pytest.mark.parametrize(
    ("installed", "wanted", "older"),
    [("1.19.8", "1.21", True), ("1.21.3", "1.21", False), ("1.21", "1.21.3", True), ("20.1.0", "18", False), ("1.9", "1.10", True)],
)  # fmt: skip
def test_versions_are_compared_by_their_numbers(installed: str, wanted: str, older: bool) -> None:
    assert is_older(installed, wanted) is older


def test_only_an_older_toolchain_is_worth_a_sentence() -> None:
    wanted = [AskedVersion("Go", "1.21", "go.mod"), AskedVersion("Ruby", "3.2", ".ruby-version")]
    assert older_than_asked(wanted, {"Go": "1.19.8"}) == [
        "go.mod asks for Go 1.21, and the sandbox has 1.19.8: tests may fail because of that"
    ]
    assert older_than_asked(wanted, {"Go": "1.22", "Ruby": "3.2.1"}) == []

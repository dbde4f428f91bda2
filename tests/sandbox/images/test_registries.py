"""Registries of package managers that the user configured: what builds get, and what they do not."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from m3agent.sandbox.images.indexes import Indexes, find_indexes
from tests.agent.repositories import write_files

KEY = "hidden-key"
PHP = {"type": "composer", "url": "https://php.test"}


def found(home: Path, files: dict[str, str | bytes], env: dict[str, str] | None = None) -> Indexes:
    write_files(home, files)
    return find_indexes(env or {}, home, home / "etc")


def named(indexes: Indexes) -> set[str]:
    return {host.host for host in indexes.hosts if host.anywhere}


def test_npm_gets_the_users_registries_without_keys(tmp_path: Path) -> None:
    npmrc = f"""
; ours
registry = "https://npm.test:8443/all/"
@own:registry=https://own.test/
@secret:registry=https://user:{KEY}@secret.test/
@variable:registry=https://${{HOST}}.test/
//npm.test:8443/:_authToken={KEY}
script-shell=/bin/evil
ignore-scripts=false
"""
    indexes = found(tmp_path, {".npmrc": npmrc})
    assert set(indexes.registries.files[".npmrc"].splitlines()) == {
        "registry=https://npm.test:8443/all/",
        "@own:registry=https://own.test/",
    }
    assert indexes.registries.variables["npm_config_registry"] == "https://npm.test:8443/all/"
    assert {"npm.test", "own.test"} <= named(indexes)
    assert "secret.test" not in named(indexes)
    assert KEY not in repr(indexes)
    assert indexes.registries.left_out == [
        "secret.test: its address holds a password, and no build gets passwords"
    ]


def test_variables_override_files_in_any_case(tmp_path: Path) -> None:
    env = {"NPM_CONFIG_REGISTRY": "https://one.test/", "npm_config_userconfig": str(tmp_path / "other")}
    indexes = found(
        tmp_path,
        {"other": "@own:registry=https://own.test/\n", "etc/npmrc": "registry=https://no.test/\n"},
        env,
    )
    assert indexes.registries.variables["npm_config_registry"] == "https://one.test/"
    assert "@own:registry=https://own.test/" in indexes.registries.files[".npmrc"]
    assert "no.test" not in named(indexes)


def test_the_default_registry_is_the_one_of_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "define('registry', {\n  default: `https://default.test/`,\n"
    write_files(tmp_path, {"npm/lib/utils/config/definitions.js": source, "npm/bin/npm": ""})
    (tmp_path / "npm/bin/npm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "npm/bin"))
    assert "default.test" in named(found(tmp_path, {}))
    assert "default.test" not in named(found(tmp_path, {".npmrc": "registry=https://own.test/"}))


def test_go_gets_the_users_proxies(tmp_path: Path) -> None:
    indexes = found(tmp_path, {".config/go/env": "GOPROXY=https://go.test,direct\nGOPRIVATE=corp.test/*\n"})
    assert indexes.registries.variables["GOPROXY"] == "https://go.test,direct"
    assert indexes.registries.variables["GOPRIVATE"] == "corp.test/*"
    assert "go.test" in named(indexes)
    env = {"GOPROXY": f"https://me:{KEY}@go.test,direct", "GOSUMDB": "off"}
    indexes = find_indexes(env, tmp_path / "none", tmp_path / "etc")
    assert "GOPROXY" not in indexes.registries.variables
    assert indexes.registries.variables["GOSUMDB"] == "off"
    assert KEY not in repr(indexes)
    assert "GOPROXY" not in find_indexes({"GOPROXY": "off"}, tmp_path / "none", tmp_path).registries.variables


def test_cargo_composer_bundler_and_maven_get_addresses_only(tmp_path: Path) -> None:
    cargo = f"""
[source.crates-io]
replace-with = "mirror"
[source.mirror]
registry = "sparse+https://crates.test/index/"
[registry]
token = "{KEY}"
[target.x86_64-unknown-linux-gnu]
runner = "/bin/evil"
"""
    composer = {
        "repositories": [
            {"type": "composer", "url": "https://php.test", "options": {"http": {"header": [KEY]}}},
            {"packagist.org": False},
        ],
        "http-basic": {"php.test": {"password": KEY}},
    }
    maven = f"""<settings><servers><server><id>m</id><password>{KEY}</password></server></servers><mirrors><mirror>
<id>m</id><mirrorOf>*</mirrorOf><url>https://maven.test/a?b&amp;c</url><blocked>x</blocked></mirror></mirrors></settings>"""
    indexes = found(
        tmp_path,
        {
            ".cargo/config.toml": cargo,
            ".config/composer/config.json": json.dumps(composer),
            ".bundle/config": '---\nBUNDLE_MIRROR__HTTPS://GEMS__TEST/: "https://gems.test/"\nBUNDLE_GEMS__TEST: "hidden-key"\n',
            ".m2/settings.xml": maven,
        },
        {"BUNDLE_MIRROR__ALL": "https://all.test/", "HEX_MIRROR": "https://hex.test"},
    )
    files = indexes.registries.files
    assert tomllib.loads(files[".cargo/config.toml"]) == {
        "source": {
            "crates-io": {"replace-with": "mirror"},
            "mirror": {"registry": "sparse+https://crates.test/index/"},
        }
    }
    assert json.loads(files[".config/composer/config.json"]) == {
        "repositories": [{"type": "composer", "url": "https://php.test"}]
    }
    assert files[".m2/settings.xml"] == (
        "<settings><mirrors><mirror><id>m</id><mirrorOf>*</mirrorOf>"
        "<url>https://maven.test/a?b&amp;c</url></mirror></mirrors></settings>"
    )
    assert indexes.registries.variables["BUNDLE_MIRROR__ALL"] == "https://all.test/"
    assert indexes.registries.variables["HEX_MIRROR"] == "https://hex.test"
    assert {"crates.test", "php.test", "maven.test", "all.test", "hex.test"} <= named(indexes)
    assert KEY not in repr(indexes)


def test_a_broken_configuration_is_left_to_its_own_tool(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        ".npmrc": b"\xff\x00registry",
        ".cargo/config.toml": "[source",
        ".config/composer/config.json": "[" * 100_000,
        ".m2/settings.xml": "<mirror>",
    }
    indexes = found(tmp_path, files)
    assert (indexes.registries.files, indexes.registries.addresses) == ({}, [])
    assert (
        found(
            tmp_path, {".cargo/config.toml": "source = 1\n", ".npmrc": "registry=nonsense"}
        ).registries.files
        == {}
    )


@pytest.mark.parametrize("repositories, kept", [({"own": PHP}, [PHP]), ([PHP], [PHP]), (5, []), ("php", [])])
def test_composers_repositories_may_have_any_form(
    repositories: object, kept: list[object], tmp_path: Path
) -> None:
    indexes = found(tmp_path, {".config/composer/config.json": json.dumps({"repositories": repositories})})
    files = map(json.loads, indexes.registries.files.values())
    assert [entry for file in files for entry in file["repositories"]] == kept

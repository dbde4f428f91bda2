"""The configuration of a card and the adapters: what is taken, and the one sentence about what is not."""

from __future__ import annotations

import sys
from hashlib import sha256
from pathlib import Path

import pytest

from m3agent.evals.card.config import (
    ADAPTERS,
    Adapter,
    Server,
    _read,
    adapters_of,
    check_adapter,
    key_of,
    known_adapters,
    read_config,
    version_of,
)
from m3agent.util.errors import UsageError

GOOD = f"""
data = "rows"
agents = [{{ name = "mine", command = ["{sys.executable}", "{{issue}}"] }}]

[server]
endpoint = "http://127.0.0.1:8000/v1"
model = "m"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "card.toml"
    path.write_text(text)
    return path


def test_a_small_configuration_has_defaults(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    config = read_config(path)
    assert (config.attempts, config.budget.minutes, config.budget.tokens) == (1, 60.0, None)
    [adapter] = adapters_of(config, path)
    assert adapter.name == "mine"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("data", "dato", "data: Field required"),
        ('model = "m"', 'model = "m"\nkeys = "X"', "server.keys"),
        ("agents = [", "agents = 1 #", "agents"),
        ("[server]", "[server", "is not TOML"),
        ("data =", "attempts = 0\ndata =", "attempts"),
        ("data =", f"attempts = {'9' * 5000}\ndata =", "is too large"),
        ("data =", f"ids = {'[' * 5000}\ndata =", "is too large"),
        ('"rows"', '"a\\u0000b"', "data: it should be a text without null"),
        (sys.executable, "a\\u0000b", "null"),
        ("http://127.0.0.1:8000/v1", "http://[x", "server.endpoint: it should be an address"),
        ("http://127.0.0.1:8000/v1", "http://h:99999/v1", "server.endpoint: it should be an address"),
        ("[server]", "[budget]\nminutes = inf\n[server]", "budget.minutes"),
        ("[server]", "[budget]\ndollars = nan\n[server]", "budget.dollars"),
        *(
            ("name =", f'variables = {{ {name} = "x" }}, name =', name.strip('"'))
            for name in ('"A=B"', "HOME", "PATH", '""')
        ),
        ("name =", 'files = { "a\\u0000b" = "x" }, name =', "null"),
        ("name =", 'files = { "" = "x" }, name =', "home folder"),
        ('"{issue}"', '"{isue}"', "{isue}"),
        ('"{issue}"', '"issue"', "{issue}"),
        (f'["{sys.executable}", "{{issue}}"]', '[], variables = { A = "{issue}" }', "{issue}"),
        ('"mine"', '"../mine"', "../mine"),
        ("agents = [", 'agents = ["mine", ', "twice"),
        ("agents = [", 'agents = ["no such agent", ', "no such agent"),
    ],
)
def test_a_fault_is_one_sentence_with_its_place(tmp_path: Path, old: str, new: str, told: str) -> None:
    path = written(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(UsageError) as caught:
        adapters_of(read_config(path), path)
    assert told in str(caught.value) and str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_program_that_is_missing_is_told_with_the_command_that_installs_it() -> None:
    adapter = Adapter(name="a", install="pip install a", command=("no-such-program", "{issue}"))
    with pytest.raises(UsageError, match="pip install a"):
        check_adapter(adapter, Path("card.toml"))


def test_a_configuration_whose_path_cannot_be_one_is_one_sentence() -> None:
    with pytest.raises(UsageError) as caught:
        read_config(Path("a\0b.toml"))
    assert "\0" not in str(caught.value)


def test_nothing_secret_of_a_configuration_is_kept(tmp_path: Path) -> None:
    text = GOOD.replace("//127", "//me:secret-1@127").replace(
        "name =", 'variables = { A = "secret-2", B = "{key}" }, files = { rc = "token: secret-3" }, name ='
    )
    config = read_config(written(tmp_path, text))
    kept = config.kept().model_dump_json()
    assert "secret" in config.model_dump_json() and "secret" not in kept
    assert '"{key}"' in kept and "127.0.0.1:8000/v1" in kept
    [agent] = config.agents
    assert isinstance(agent, Adapter)
    assert agent.kept().files == {"rc": f"(not kept), sha256 {sha256(b'token: secret-3').hexdigest()}"}
    assert agent.model_copy(update={"public": True}).kept().files == {"rc": "token: secret-3"}


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x"])
def test_an_adapter_writes_in_its_home_only(path: str) -> None:
    with pytest.raises(UsageError, match="home"):
        check_adapter(Adapter(name="a", command=("true", "{issue}"), files={path: ""}), Path("card.toml"))


@pytest.mark.parametrize("name", known_adapters())
def test_each_adapter_is_well_formed(name: str) -> None:
    adapter = _read(ADAPTERS / f"{name}.toml", Adapter)
    assert adapter.name == name and adapter.install
    everywhere = adapter.model_copy(update={"command": ("true", *adapter.command[1:]), "version": ()})
    check_adapter(everywhere, ADAPTERS / f"{name}.toml")


@pytest.mark.integration
def test_a_version_is_read_from_what_the_program_prints() -> None:
    printing = Adapter(
        name="a", command=("true",), version=(sys.executable, "-c", "print('a v1.2.3-beta. (x)')")
    )
    assert version_of(printing) == "a 1.2.3-beta"
    assert version_of(Adapter(name="a", command=("true",), version=("false",))) == "a"


def test_the_key_comes_from_the_named_variable() -> None:
    server = Server(endpoint="http://h/v1", model="m", key="CARD_TEST_KEY")
    assert key_of(server, {"CARD_TEST_KEY": "secret"}) == "secret"
    with pytest.raises(UsageError, match="CARD_TEST_KEY"):
        key_of(server, {})

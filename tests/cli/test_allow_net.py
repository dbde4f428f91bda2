"""Test `--allow-net` on the command line: what is printed, asked, refused and logged. No test reaches any host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from m3agent.sandbox.backends.factory import Backend
from tests.agent.scripted import BUGGY, DONE, FIX, Fixes, calls
from tests.command_line import run

pytestmark = pytest.mark.integration

MakeRepo = Callable[..., Path]

ASK = """\
import sys, urllib.error, urllib.request
for address in sys.argv[1:]:
    try:
        urllib.request.urlopen(address, timeout=20)
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode().strip())
    except OSError as error:
        print("no way:", error)
"""
METADATA = "http://169.254.169.254/latest/meta-data/"


def test_exec_opens_what_is_listed_and_nothing_else(make_repo: MakeRepo, backend: Backend) -> None:
    repo = str(make_repo({"ask.py": ASK}))
    argv = ("sandbox", "exec", "--repo", repo, "--sandbox", backend)
    ask = ("--", "python3", "ask.py", METADATA, "http://other.example/")
    closed = run(*argv, *ask)
    assert [line.split(":")[0] for line in closed.stdout.splitlines()] == ["no way", "no way"], closed
    assert "may reach" not in closed.stderr
    opened = run(*argv, "--allow-net", "*.example.org,example.net:8443", *ask)
    assert "may reach *.example.org:80,443 example.net:8443 through a proxy" in opened.stderr
    for line, host in zip(opened.stdout.splitlines(), ("169.254.169.254", "other.example"), strict=True):
        assert line.startswith(f"403 {host}:80 is not allowed")
        assert "--allow-net" in line
        assert f"network: refused: {host}:80" in opened.stderr


@pytest.mark.parametrize("hosts", ["localhost", "example.org,10.0.0.1"])
def test_forbidden_hosts_are_reported_at_once(make_repo: MakeRepo, hosts: str) -> None:
    repo = str(make_repo({"a.txt": "a\n"}))
    given = ("--repo", repo, "--allow-net", hosts)
    for command in (("fix", "x", *given), ("sandbox", "exec", *given, "--", "true")):
        done = run(*command)
        assert done.returncode == 2
        assert done.stderr.startswith(f"m3agent: --allow-net cannot be '{hosts}': "), done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.slow  # quick: test_exec_opens_what_is_listed_and_nothing_else
def test_a_fix_tells_the_model_and_logs_what_was_asked(fixes: Fixes) -> None:
    check = (
        "import urllib.error, urllib.request\n\nimport pytest\n\n\n"
        "def test_the_rest_is_closed():\n"
        "    with pytest.raises(urllib.error.HTTPError, match='403'):\n"
        "        urllib.request.urlopen('http://closed.example/')\n"
    )
    repo = fixes.make_repo({**BUGGY, "test_network.py": check})
    done = fixes(
        repo,
        [
            calls("code_exec", code=f"import sys; sys.argv = ['', 'http://other.example/']\n{ASK}"),
            FIX,
            calls("test_runner", test_file="test_calc.py"),
            DONE,
        ],
        M3AGENT_ALLOW_NET="example.org",
    )
    assert "the sandbox may reach example.org:80,443" in done.stderr
    assert "refused GET other.example:80" in done.stderr
    first = fixes.chats[-1].json["messages"]
    assert "and no others: example.org:80,443" in first[1]["content"]
    asked = fixes.of_type("network.request")
    assert {(r["where"], r["host"], r["verdict"]) for r in asked} == {
        ("session", "other.example", "refused"),
        ("verify", "closed.example", "refused"),
    }
    assert all("--allow-net" in r["reason"] for r in asked)

"""Run every command of the documentation, in a `World` that has what the commands need.

A new command in the docs needs no change here if its words are known and it ends with exit code 0. Otherwise:

- add a rule to `RULES` of tests/documented/world.py for a placeholder that the reader replaces (`ROWS`, `SESSION`),
- declare another exit code, or a command that runs until Ctrl-C, in `ENDS` below, with the reason,
- name a line that calls m3agent where no test can run it in `ELSEWHERE`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main

from m3agent.cli.app import app
from tests.conftest import alone, docker_here
from tests.documented.commands import ROOT, Command, mentioned, overlooked, to_run
from tests.documented.world import NotArranged, World
from tests.servers.dockerd import OwnEngine

BUILDS = re.compile(r"sandbox build|eval (create|export|run|grade|validate)")
"""Commands that may build images, which tests that remove images must not do meanwhile."""


@dataclass(frozen=True)
class End:
    """How commands that match `pattern` end, if they do not exit with 0 by themselves.

    until: the output after which the test sends Ctrl-C. instead: the command to run in its place; {} is the command
    without variables of make. why: why it does not exit with 0 here, or why it cannot run unchanged.
    """

    pattern: str
    codes: tuple[int, ...] = (0,)
    says: str = ""
    why: str = ""
    until: str | None = None
    instead: str | None = None


ENDS = [
    End(
        r"m3agent fix .*--(plan|spec)( --attempts 4)?$",
        (2,),
        says="the embedded engine cannot propose",
        why="it takes a language model; test_proposal.py has one",
    ),
    End(
        r"m3agent fix .*--detach$",
        instead="{} --help",
        why="it would still work when its test has ended; test_detach.py starts one",
    ),
    End(
        r"m3agent sessions attach",
        (2,),
        says="does not run|no session",
        why="no fix works here; test_detach.py attaches to one",
    ),
    End(
        r"m3agent fix --each label:",
        (2,),
        says="origin",
        why="the reader's repository has no origin here; test_query.py asks trackers",
    ),
    End(r"m3agent serve$", (130,), until=r"ready ", why="it serves until Ctrl-C"),
    End(
        r"m3agent serve fetch",
        (3,),
        says="HF_HUB_OFFLINE forbids the download",
        why="the tests are offline; test_serve_fetch.py fetches from a hub of its own",
    ),
    End(
        r"m3agent eval (card|watch)",
        (2,),
        says="card",
        why="a card takes a server, agents and hours; tests/evals/card makes one",
    ),
    End(
        r"m3agent ask",
        (2,),
        why="2 is that no server runs here, or that the question is missing; test_ask_command.py asks",
    ),
    End(
        r"m3agent serve warm$",
        (0, 2),
        why="2 is that no server runs here; test_warm.py warms one",
    ),
    End(
        r"m3agent serve bench --baseline",
        (0, 1),
        says=r"TTFT",
        why="1 is worse than before, which the load of the machine that tests decides",
    ),
    End(
        r"m3agent serve check",
        (0, 4),
        says=r"(?s)\A(?!.*\n✗ failed +(?! |tokenizer|key)).*\n✓ ok +tool call",
        why="how fast the server makes tokens is checked as well, and whether this machine's own address is open",
    ),
    End(
        r"m3agent fix .*--sandbox here",
        instead="{} --yes",
        why="the machine that tests may be no container, and the tests send no key and no repository anywhere",
    ),
    End(
        r"m3agent fix .*https://(api\.minimax\.io|m3\.example\.org)",
        instead="{} --help",
        why="it needs a key, and the tests send no repository anywhere",
    ),
    End(
        r"m3agent apply",
        (2,),
        says="there is no (session|fix) about ",
        why="the session is about another copy of the repository; test_apply_command.py applies patches",
    ),
    End(r"m3agent verify --pr", (2,), says="origin", why="the reader's repository has no origin here"),
    End(r"m3agent pr follow", (2,), says="origin", why="the reader's repository has no origin here"),
    End(
        r"m3agent eval run SWE-bench/SWE-bench_Verified",
        (2,),
        says=r"SWE-bench/SWE-bench_Verified:test",
        why="the tests are offline, and have no package that reads the hub",
    ),
    End(
        r"m3agent eval verdicts",
        (1,),
        says="nothing was measured",
        why="the reader's repository has one commit",
    ),
    End(r"m3agent eval run .*--cluster", (3,), says=r"127\.0\.0\.1:9", why="there is no cluster"),
    End(
        r"make bench-",
        instead='{} ARGS="--help"',
        why="they take minutes to hours and install the peers: the program starts, and knows the options",
    ),
    End(
        r"make bundle",
        instead='{} ARGS="--help"',
        why="it downloads 200 MB; test_frameworks.py builds a smaller one",
    ),
    End(
        r"make test-languages",
        instead="{} --dry-run",
        why="it installs the toolchains of nine languages and runs their tests, which is a CI step of its own",
    ),
    End(
        r"make test-(anywhere|frameworks|portable)",
        instead="{} --dry-run",
        why="the documents' checkout has no tests, and the runners are a gigabyte",
    ),
    End(
        r"m3agent --install-completion",
        instead='bash -c "{}; true"',
        why="typer looks for the shell among the parent processes, and make's shell has no completion",
    ),
    End(
        r"m3agent acp$", instead="true | {} | cat", why="an editor starts it, with pipes, and goes away again"
    ),
]
ELSEWHERE = ["docker build ", "docker run ", "--volume ", "uv pip install "]
"""Beginnings of lines that call m3agent where no test can run it: on other machines, in containers."""
NEEDS_DOCKER = r"m3agent (eval (validate|run|grade|create|export)|sandbox build)|.*--sandbox docker"
TO_RUN = to_run()


def end_of(command: Command) -> End:
    """Return how a command should end."""
    return next((end for end in ENDS if matches([end.pattern], command)), End(""))


def matches(patterns: list[str], command: Command) -> bool:
    return any(re.match(pattern, command.bare) for pattern in patterns)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("world")) as made:
        yield made


@pytest.mark.slow  # quick: test_a_command_in_a_sentence_exists_with_its_options, and the tests of each command
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("command", TO_RUN, ids=lambda command: command.text)
def test_a_command_of_the_docs_does_what_they_say(command: Command, world: World) -> None:
    if matches([NEEDS_DOCKER], command) and not docker_here():
        pytest.skip("no Docker engine answers")
    if "sandbox prune" in command.text and (barred := OwnEngine.barred_by()):
        pytest.skip(f"a Docker engine of its own {barred}")
    end = end_of(command)
    text = command.text
    if end.instead is not None:
        text = end.instead.format(re.sub(r" [A-Z]+=.*", "", text))
    try:
        with alone("images") if BUILDS.search(text) else nullcontext():
            done = world.run(text, end.until)
    except NotArranged as error:
        pytest.fail(f"{command.where}: `{command.text}`: {error}")
    assert done.code in end.codes, (
        f"{command.where}: `{command.text}` ends with {done.code}; mend it, or declare in ENDS of {Path(__file__).name} "
        f"why it does not end with 0:\n{done.said}"
    )
    assert "Traceback (most recent call last)" not in done.said
    assert re.search(end.says, done.said), done.said
    assert not done.missing or 0 not in end.codes, done.said
    if "--help" in text:
        assert set(re.findall(r"--[a-z][a-z-]*", command.text)) <= set(
            re.findall(r"--[a-z][a-z-]*", done.said)
        )
    elif 0 not in end.codes and end.until is None:
        assert done.said.splitlines()[-1].startswith("m3agent: "), "a refusal is one sentence"


def test_no_command_in_a_block_is_overlooked() -> None:
    left = [line for line in overlooked() if not line.text.startswith(tuple(ELSEWHERE))]
    assert not left, (
        f"{left[0].where}: begin the line with m3agent, or name its beginning in ELSEWHERE of {Path(__file__).name}: "
        f"{left[0].text}"
    )


def test_declared_exceptions_match_existing_commands() -> None:
    for pattern in (end.pattern for end in ENDS):
        assert any(matches([pattern], command) for command in TO_RUN), f"no page has a command like {pattern}"


@pytest.mark.parametrize("command", mentioned(), ids=lambda command: command.text)
def test_a_command_in_a_sentence_exists_with_its_options(command: Command) -> None:
    words = command.bare.split()
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), command.where
        return
    found: Any = typer.main.get_command(app)
    for word in words[1:]:
        if word in getattr(found, "commands", {}):
            found = found.commands[word]
        elif word.startswith("-"):
            context = found.make_context("m3agent", [], resilient_parsing=True)
            known = {option for parameter in found.get_params(context) for option in parameter.opts}
            assert word.split("=")[0] in known, f"{command.where}: there is no {word} in `{command.text}`"
        else:
            assert not getattr(found, "commands", {}), (
                f"{command.where}: there is no {word} in `{command.text}`"
            )


@pytest.mark.integration
def test_unknown_placeholder_in_a_command_is_an_error(world: World) -> None:
    with pytest.raises(NotArranged, match="what does GADGET stand for"):
        world.told("m3agent fix GADGET")
    with pytest.raises(NotArranged, match=r"what does \.\.\. stand for"):
        world.told("m3agent fix ...")

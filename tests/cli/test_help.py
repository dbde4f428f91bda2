"""Test `--help` and errors of the command line: complete texts, in the order of use, and one voice."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from m3agent.cli.app import app
from m3agent.cli.help import COMMANDS, EXAMPLES, row_of
from tests.command_line import run
from tests.conftest import later

ROOT: Any = typer.main.get_command(app)

TOP = """\
Usage: m3agent [OPTIONS] COMMAND [ARGS]...

An issue in, a verified patch out: an agentic coding harness
for MiniMax M3.

╭─ Examples ───────────────────────────────────────────────╮
│ m3agent doctor              what this machine lacks, and │
│                             how to get it                │
│ m3agent fix issue.md        print a verified patch for   │
│                             an issue                     │
│ m3agent apply               write that patch into your   │
│                             work tree                    │
│ m3agent apply --undo        take it back                 │
│ m3agent plan --gpus 8xH200  can these GPUs serve MiniMax │
│                             M3, and how?                 │
╰──────────────────────────────────────────────────────────╯
╭─ Fix issues ─────────────────────────────────────────────╮
│ doctor    Check that this machine has what a fix needs,  │
│           and say how to get what is missing.            │
│ fix       Fix an issue and print the verified patch. You │
│           can steer and refine it.                       │
"""


def commands(command: Any = ROOT, path: tuple[str, ...] = ("m3agent",)) -> Iterator[tuple[str, Any]]:
    """Yield the name of every command with its groups, and the command."""
    yield " ".join(path), command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*path, name))


ALL = dict(commands())


@pytest.mark.integration
@pytest.mark.usefixtures("unicode_locale")
def test_the_first_page() -> None:
    done = run("--help", env={"COLUMNS": "60"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(TOP)
    assert run(env={"COLUMNS": "60"}).stdout == done.stdout, "without a command, there is the same page"


@pytest.mark.integration
@pytest.mark.parametrize(
    "words", ["", "serve bench", later("fix"), later("sessions show"), later("serve"), later("sandbox exec")]
)
def test_h_is_short_for_help(words: str) -> None:
    short, long = run(*words.split(), "-h"), run(*words.split(), "--help")
    assert (short.returncode, short.stdout) == (0, long.stdout)


@pytest.mark.parametrize(("locale", "is_ascii"), [("C", True), ("C.UTF-8", False)])
def test_the_borders_are_those_that_a_locale_shows(
    locale: str, is_ascii: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", locale)
    command = ALL["m3agent apply"]
    shown = command.get_help(command.make_context("m3agent apply", [], resilient_parsing=True))
    assert shown.isascii() == is_ascii


@pytest.mark.usefixtures("unicode_locale")
@pytest.mark.parametrize("width", [60, later(80), later(120)])
@pytest.mark.parametrize("name", ALL)
def test_nothing_is_cut(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    command = ALL[name]
    context = command.make_context(name, [], resilient_parsing=True)
    shown = command.get_help(context)
    assert max(map(len, shown.splitlines())) <= width
    assert "…" not in shown
    words = " ".join(shown.replace("│", " ").split())
    for parameter in command.get_params(context):
        for text in row_of(parameter, context) or ():
            assert " ".join(text.split()) in words
    assert not re.search(r"<(str|path|int|float|list)", shown), "typer's own notation"
    assert not re.search(r"[{}]|\[\[|\.{6}", command.get_usage(context)), "typer's own notation"
    for paragraph in (command.help or "").split("\n\n"):
        assert " ".join(paragraph.split()) in words
    assert "Examples" not in shown or shown.index("Examples") < shown.index("Options")


def test_every_command_has_its_place() -> None:
    assert sorted(name for names in COMMANDS.values() for name in names) == sorted(ROOT.commands)
    assert list(ROOT.list_commands(ROOT.make_context("m3agent", [], resilient_parsing=True))) == [
        name for names in COMMANDS.values() for name in names
    ]


def test_the_commands_of_eval_are_in_the_order_of_use() -> None:
    group = ALL["m3agent eval"]
    names = group.list_commands(group.make_context("eval", [], resilient_parsing=True))
    assert names == ["create", "validate", "run", "card", "watch", "grade", "report", "export", "verdicts"]


@pytest.mark.parametrize(
    ("name", "example"), [(name, example) for name, lines in EXAMPLES.items() for example, _ in lines]
)
def test_examples_are_accepted(name: str, example: str) -> None:
    assert example.startswith(name)
    words, command, path = shlex.split(example)[1:], ROOT, "m3agent"
    while words and words[0] in getattr(command, "commands", {}):
        path += f" {words[0]}"
        command = command.commands[words.pop(0)]
    command.make_context(path, words).close()  # raises an error for words that the command does not take


@pytest.mark.integration
@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("help", "--help"),
        ("help fix", "fix --help"),
        ("help sessions fork", "sessions fork --help"),
        ("version", "--version"),
        ("-V", "--version"),
    ],
)
def test_other_words_for_help_and_version(words: str, meant: str) -> None:
    given, expected = run(*words.split()), run(*meant.split())
    assert (given.returncode, given.stdout) == (0, expected.stdout)
    assert given.stdout


@pytest.mark.integration
@pytest.mark.parametrize("words", [["fix", "--nonsense"], ["fixx"], ["help"], ["--version"]])
def test_wrong_words_cost_no_slow_import(words: list[str]) -> None:
    """An error must be there at once. Pydantic takes as long to import as all else, and asyncio a quarter of it."""
    program = (
        "import sys; from m3agent.cli.app import main\n"
        f"sys.argv = ['m3agent', *{words}]\n"
        "try: main()\nfinally: print(*{'pydantic', 'asyncio'} & {*sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 2)
    assert done.stderr.splitlines()[-1] == ""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--engin x", "no such option: --engin; see 'm3agent --help'."),
        ("fix --engin x y", "no such option: --engin (did you mean --engine?); see 'm3agent fix --help'."),
        (
            "fix --max-time 5 y",
            (
                "no such option: --max-time (did you mean --max-tokens or --max-minutes or --max-cost?); "
                "see 'm3agent fix --help'."
            ),
        ),
        ("fixx", "no such command 'fixx' (did you mean fix?); see 'm3agent --help'."),
        ("sessions frok last", "no such command 'frok' (did you mean fork?); see 'm3agent sessions --help'."),
        ("fork last", "no such command 'fork' (did you mean m3agent sessions fork?); see 'm3agent --help'."),
        ("resume", "no such command 'resume' (did you mean m3agent sessions resume?); see 'm3agent --help'."),
        (
            "export",
            "no such command 'export' (did you mean m3agent sessions export or m3agent eval export?); see 'm3agent --help'.",
        ),
        ("plan 8xH200", "not expected here: 8xH200; name GPUs with --gpus, a table with --facts"),
        (
            "fix mean is wrong",
            "not expected here: is wrong (write the issue's text in quotes: m3agent fix 'TEXT'); see 'm3agent fix --help'.",
        ),
        ("fix", "missing argument 'ISSUE'; see 'm3agent fix --help'."),
        (
            "fix x --sandbox podman",
            "invalid value for '--sandbox': 'podman' is not one of 'docker', 'bwrap', 'here'; see 'm3agent fix --help'.",
        ),
        (
            "serve --port 99999",
            "invalid value for '--port': '99999' should be less than or equal to 65535; see 'm3agent serve --help'.",
        ),
        (
            "plan --context many",
            (
                "invalid value for '--context': 'many' should be a whole number of tokens, like 8192, 512k or 1M; "
                "see 'm3agent plan --help'."
            ),
        ),
        (
            "fix x --attempts many",
            "invalid value for '--attempts': 'many' should be a valid integer; see 'm3agent fix --help'.",
        ),
    ],
)
def test_wrong_words_are_one_sentence_in_one_voice(words: str, said: str) -> None:
    done = run(*shlex.split(words))
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"m3agent: {said}\n")

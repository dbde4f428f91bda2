"""Which programs of `code_exec` count as test runs: those that start a known test runner.

A program that only reproduces an issue, or that imports a test module, counts as none, because its exit code says nothing of tests.
`test_commands.toml` has the commands.
"""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

from m3agent.util.python_ast import parse

COMMANDS = "the command of a test runner (pytest, go test, npm test, make check and the like)"
RULE = f"a call of test_runner, or {COMMANDS} in code_exec"
"""What counts as a test run, as the model is told."""

MOST_READ = 100_000
"""Most characters of a program that are searched for commands."""
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_WRAPPERS = re.compile(rf"(?:(?:{'|'.join(_TABLE['wrappers'])}) )+")
_COMMANDS = re.compile(rf"(?:{'|'.join(_TABLE['commands'])})(?:\s|$)")
_HERE_DOCUMENT = re.compile(r"<<-?\s*['\"]?(\w+)")
_STARTS = frozenset({"run", "call", "check_call", "check_output", "Popen", "system", "popen", "getoutput"})
"""Functions of Python that start a command."""


def runs_tests(program: str, language: str = "") -> bool:
    """Return whether a program starts a known test runner.

    Args:
        language: `python` or `bash`; empty if the call does not name it.
    """
    program = program[:MOST_READ]
    if language != "bash" and _python_runs_tests(program):
        return True
    return language != "python" and any(map(_is_runner, _commands(program)))


def _is_runner(words: list[str]) -> bool:
    """Return whether the words of one command start a test runner."""
    line = " ".join([*words, ""])
    wrapped = _WRAPPERS.match(line)
    first, _, rest = line[wrapped.end() if wrapped else 0 :].partition(" ")
    return _COMMANDS.match(f"{first.rpartition('/')[2]} {rest}") is not None


def _commands(program: str) -> Iterator[list[str]]:
    """Yield the words of each simple command of a shell program."""
    program = "\n".join(_without_here_documents(program.replace("\\\n", " ")))
    lexer = shlex.shlex(program, posix=True, punctuation_chars=";&|(){}\n")
    lexer.whitespace, lexer.commenters = " \t\r", ""
    words: list[str] = []
    try:
        for word in lexer:
            if word.strip(";&|(){}\n"):
                words.append(word)
            else:
                yield words
                words = []
    except ValueError:  # a quotation mark has no partner
        yield from (line.split() for line in re.split(r"[;&|(){}\n]+", program))
    yield words


def _without_here_documents(program: str) -> Iterator[str]:
    end = ""
    for line in program.split("\n"):
        if end:
            end = "" if line.strip() == end else end
            continue
        yield line
        begun = _HERE_DOCUMENT.search(line)
        end = begun[1] if begun else ""


def _python_runs_tests(program: str) -> bool:
    """Return whether a Python program calls pytest or unittest, or starts a command that runs tests."""
    try:
        calls = [node for node in ast.walk(parse(program)) if isinstance(node, ast.Call)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(map(_call_runs_tests, calls))


def _call_runs_tests(call: ast.Call) -> bool:
    called = ast.unparse(call.func)
    if called in ("pytest.main", "unittest.main", "unittest.TextTestRunner"):
        return True
    if called.rpartition(".")[2] not in _STARTS or not call.args:
        return False
    command = call.args[0]
    if isinstance(command, ast.List | ast.Tuple):
        # a word that is computed is mostly the interpreter
        return _is_runner(
            [str(word.value) if isinstance(word, ast.Constant) else "python" for word in command.elts]
        )
    return isinstance(command, ast.Constant) and any(map(_is_runner, _commands(str(command.value))))

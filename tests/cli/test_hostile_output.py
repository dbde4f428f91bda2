"""Test that no text of a repository, a model or a log controls the person's terminal, whatever is printed.

Texts are planted in every field of every event and in everything of a repository that commands print. The output goes to a
real terminal device.
"""

from __future__ import annotations

import ast
import json
import os
import re
import threading
import tty
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from m3agent.agent.report.page import render
from m3agent.agent.report.reader import report_of
from m3agent.agent.session.log_reader import LOG, SessionLog
from m3agent.agent.ui import display
from m3agent.agent.ui.event_printer import Screen
from m3agent.cli import app as cli
from m3agent.serving.client.messages import Delta
from m3agent.serving.launch.record import LOG as ENGINE_LOG
from m3agent.serving.launch.record import ServerRecord, new_folder, write_record
from m3agent.util.sanitize import UNPRINTABLE
from tests.agent.session.hostile_events import EVENT_TYPES, SESSION, hostile_lines
from tests.command_line import Process
from tests.conftest import git, later

ROOT = Path(__file__).parents[2]
SEQUENCES = {
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;b3duZWQ=\x1b\\",
    "clear": "\x1b[2J",
    "reset": "\x1bc",
    "device control": "\x1bP1;1|owned\x1b\\",
    "C1 CSI": "\x9b2J",
    "C1 OSC": "\x9d0;owned\x9c",
    "carriage return": "owned\r",
    "backspace": "owned\b\b",
    "line": "owned\nnote: forged",
    "bell and tab": "\x07\t\v\f",
    "delete": "\x7f",
    "override": "\u202eowned\u202c",
    "isolate": "\u2066owned\u2069",
    "marks": "\u200e\u200f\u061c",
    "tags": "\U000e0041\U000e007f",
    "surrogates": "\ud800\udcff",
}
EVERYTHING = "".join(SEQUENCES.values())
MARKUP = "</pre><script>x</script><img src=x onerror='x'>\"onload=x "
OWN = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?(?:25|7)[hl]|\x1b\[2K|\x1b\[1A|\r\x1b\[K|\r(?=\x1b\[2K)")
"""What the live view and `context` send themselves."""


class Terminal:
    """A terminal device that records what is written to it."""

    def __init__(self) -> None:
        self.leader, self.follower = os.openpty()
        tty.setraw(self.follower)  # otherwise the device itself adds a carriage return to each line
        self._pieces: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self.leader, 1 << 16)
            except OSError:  # the other end is closed
                return
            self._pieces.append(piece)

    def close(self) -> str:
        """Return the whole output."""
        os.close(self.follower)
        self._reader.join(30)
        os.close(self.leader)
        return b"".join(self._pieces).decode(errors="surrogateescape")


@contextmanager
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Screen, Terminal]]:
    """Yield a screen on a terminal."""
    terminal = Terminal()
    monkeypatch.setattr(display, "STANDARD_ERROR", terminal.follower)
    monkeypatch.setenv("TERM", "xterm-256color")
    with Screen() as shown:
        yield shown, terminal


def raw(output: str) -> list[str]:
    """Return the characters of the output that could control the terminal."""
    return UNPRINTABLE.findall(OWN.sub("", output).replace("\n", ""))


@pytest.mark.parametrize("name", SEQUENCES)
@pytest.mark.parametrize("forged", [False, True])
def test_every_field_of_every_event(name: str, forged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = f"{SEQUENCES[name]}x"
    with screen(monkeypatch) as (shown, terminal):
        shown.say(planted)
        hear = shown.listener(SESSION)
        for line in hostile_lines(planted, forged=forged):
            shown.on_line(line)
            for kind in ("reasoning", "text", "call"):
                hear(Delta(kind, planted))
    output = terminal.close()
    assert output.count("x") > 10
    assert [one for one in raw(output) if one != "\r"] == []
    assert planted not in output, "a text that nobody changed"
    assert not re.search(r"^(?:\x1b\[[0-9;]*m)*note: forged", output, re.MULTILINE)


def test_there_is_an_event_of_each_type() -> None:
    assert len(EVENT_TYPES) > 20
    assert {line["type"] for line in hostile_lines("x")} == {kind.type for kind in EVENT_TYPES}


def test_no_event_becomes_markup_of_a_page() -> None:
    for forged in (False, True):
        lines = json.loads(json.dumps(hostile_lines(MARKUP + EVERYTHING, forged=forged)))
        page = render([report_of(SessionLog(Path("x.jsonl"), tuple(lines), (MARKUP,)), None)])
        assert "script&gt;x" in page
        assert not re.search(r"<(script|img)|<[^>]*\son\w+=", page)
        assert set(raw(page)) <= {"\t"}


# -- commands ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository in which everything that a name or a text may be is hostile."""
    safe = EVERYTHING.replace("\ud800", "")  # cannot be part of a file name
    root = tmp_path / "repo"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    (root / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    folder = root / safe.replace("/", "")[:40]
    folder.mkdir()
    secret = "password = 'kJ8#mQ2$vX9!pL4w'\n"  # redacted, so that the file is named
    (folder / f"a{safe[40:90]}.py").write_text(secret)
    (root / f"n.{safe[:60]}").write_text(secret)
    servers = {f"s{EVERYTHING[:-2]}": {"command": f"run{EVERYTHING[:-2]}", "args": ["\x1b[2J", "\u202e"]}}
    (root / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", f"Fix {EVERYTHING[:-2]}")
    (root / "test_calc.py").write_text("def test_add():\n    assert True\n")
    (root / "calc.py").write_text("def add(a, b):\n    return b + a\n")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", f"Fix the sum {EVERYTHING[:-2]}")
    return root


@pytest.fixture
def state(own_state: Path) -> Path:
    """Return a state folder with a hostile session, a damaged one and a hostile server."""
    state = own_state / "state"
    session = state / "sessions" / SESSION
    session.mkdir(parents=True)
    lines = hostile_lines(EVERYTHING, forged=True)
    finished = next(line for line in lines if line["type"] == "session.finished")
    ordered = [*(line for line in lines if line is not finished), finished]
    (session / LOG).write_text("".join(json.dumps(line) + "\n" for line in ordered))
    (session / "patch.diff").write_bytes(EVERYTHING.encode(errors="surrogatepass"))
    damaged = state / "sessions" / "20260101-000000-damage"
    damaged.mkdir()
    (damaged / LOG).write_text(json.dumps({"v": EVERYTHING}) + "\n")
    folder = new_folder(state)
    check = {"ok": False, "name": EVERYTHING[:-2], "detail": EVERYTHING[:-2]}
    record = ServerRecord(
        url="http://127.0.0.1:9/v1", engine="vllm", pid=os.getpid(), model=EVERYTHING[:-2], checks=(check,)
    )
    write_record(folder, record)
    (folder / ENGINE_LOG).write_bytes(EVERYTHING[:-2].encode() + b"\xff\x9b2J\n")
    return state


TRIED: dict[str, Sequence[str]] = {
    "config show": ("--repo", "REPO"),
    "context": ("--repo", "REPO", "--stats"),
    "eval create": ("REPO", "--dry-run"),
    "mcp list": ("--repo", "REPO"),
    "mcp trust": ("--repo", "REPO"),
    "mcp distrust": ("--repo", "REPO"),
    "sandbox trust": ("--repo", "REPO"),
    "sandbox distrust": ("--repo", "REPO"),
    "apply": (SESSION,),
    "report": (SESSION, "-o", "-"),
    "verify": ("--repo", "REPO", "--base", "HEAD~1"),
    "sessions list": (),
    "sessions show": (SESSION,),
    "sessions export": (SESSION,),
    "sessions resume": (SESSION,),
    "sessions fork": (SESSION,),
    "serve status": (),
    "serve logs": (),
}
"""Commands that print what others wrote, and their arguments."""
ELSEWHERE = {
    "fix": "prints events and the patch: see above, and test_sanitize.py for the patch",
    "ask": "prints the answer through `print_bytes`, and notes through the same screen as fix",
    "sessions attach": "prints events through the same screen as fix, and the patch as fix does",
    "pr follow": "prints events, and notes through the same screen as fix",
    "acp": "speaks JSON to an editor, never to a terminal",
    "doctor": "prints a table of checks: test_sanitize.py",
    "serve check": "prints a table of checks: test_sanitize.py",
    "serve bench": "prints what it measured",
    "serve scrape": "prints through `print_bytes`",
    "serve fetch": "prints through `print_note` and the live view: test_serve_fetch.py",
    "serve warm": "prints through `print_text`",
    "serve stop": "prints through `print_note`",
    "plan": "prints what it computed",
    "sandbox exec": "passes output of the person's own command through, as a shell does",
    "sandbox shell": "is a terminal",
    "sandbox build": "prints notes only: `say`",
    "sandbox prune": "prints names of its own images",
    "hooks list": "prints through `print_text`, and paths through `printable_line`",
    "hooks install": "prints through `print_note` and `printable_line`",
    "hooks uninstall": "prints through `print_note` and `printable_line`",
    "hooks run": "speaks JSON to another agent, never to a terminal",
    "mcp serve": "speaks JSON to another agent, never to a terminal",
    "mcp check": "prints through `print_text`",
    "eval validate": "prints through `print_text`",
    "eval grade": "prints through `print_text`",
    "eval report": "prints through `print_text`",
    "eval export": "prints ids, which have no other characters, and notes",
    "eval run": "prints through the live view",
    "eval card": "prints through the live view and `print_text`",
    "eval watch": "prints an address; its page draws what others wrote through `visible`",
    "eval verdicts": "prints through `print_text`, and titles of commits through `printable_line`",
}


def names(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the names of all commands that are not groups of commands."""
    if inner := getattr(command, "commands", None):
        for name, one in inner.items():
            yield from names(one, (*path, name))
    else:
        yield " ".join(path)


def test_no_command_is_forgotten() -> None:
    assert sorted(names(get_command(cli.app))) == sorted([*TRIED, *ELSEWHERE])


@pytest.mark.integration
@pytest.mark.parametrize(
    "name", [name if name in ("context", "mcp list", "sessions list") else later(name) for name in TRIED]
)
def test_every_command_on_a_terminal(name: str, repository: Path, state: Path) -> None:
    for more in ((), ("--json",)):
        if more and name not in ("mcp list", "sessions list", "sessions show", "serve status", "config show"):
            continue
        terminal = Terminal()
        words = [str(repository) if word == "REPO" else word for word in TRIED[name]]
        with Process(
            *name.split(), *words, *more, stdout=terminal.follower, stderr=terminal.follower
        ) as process:
            process.wait()
        output = terminal.close()
        assert "Traceback" not in output, output
        assert len(output) > 20
        own = "\t\r" if name in ("sessions resume", "verify") else "\t"  # these open the live view
        assert set(raw(output)) <= set(own), output
        assert name in ("serve logs", "report") or "\nnote: forged" not in output


# -- one place ---------------------------------------------------------------------------------------------------------

WRITERS = {
    "util/sanitize.py": "print_text, print_note",
    "cli/common.py": "print_bytes, print_patch",
    "cli/context.py": "constant texts and numbers, and the packed text to a pipe",
    "agent/ui/display.py": "the live view",
    "agent/ui/stdio.py": "output of the person's own command",
    "agent/ui/pty.py": "a constant text",
    "agent/acp/pipe.py": "JSON to an editor",
    "agent/context/tokenizer/check.py": "a child process that reports to m3agent",
    "evals/export/in_harbor.py": "runs in a container of another program",
}
"""The only modules on the host that write to standard output or error."""


STREAM = re.compile(r"sys\.(__)?std(out|err)(__)?\.(buffer|write|writelines)")


def writes(source: str) -> bool:
    """Return whether a module writes to standard output or standard error."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "print",
            "typer.echo",
            "typer.secho",
            "click.echo",
        ):
            return True
        if isinstance(node, ast.Attribute) and STREAM.fullmatch(ast.unparse(node)):
            return True
    return False


def modules() -> Iterable[tuple[str, str]]:
    for folder in ("agent", "cli", "evals", "util"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text()


def test_few_modules_print() -> None:
    found = {name for name, source in modules() if writes(source)}
    assert "cli/context.py" in found
    assert found <= WRITERS.keys(), "print with `print_text`, `print_note`, `print_bytes` or the live view"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("print('x')", True),
        ("import typer\ntyper.echo(x)", True),
        ("import sys\nsys.stderr.write('x')", True),
        ("import sys\nsys.stdout.buffer.write(b'x')", True),
        ("import sys\nsys.stdout.isatty()\nself.print(x)", False),
    ],
)
def test_writing_is_recognised(source: str, expected: bool) -> None:
    assert writes(source) is expected

"""Show `--help`: examples first, then options and commands in panels, in the order in which people use them."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from m3agent.cli.common import faults

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.panel import Panel

COMMANDS = {
    "Fix issues": ("doctor", "fix", "ask", "apply", "verify", "pr", "sessions", "report", "context"),
    "Serve a model": ("plan", "serve"),
    "Set up": ("config", "sandbox", "mcp"),
    "Other programs and benchmarks": ("acp", "hooks", "eval"),
}
"""The panels of `m3agent --help`, and their commands."""

EXAMPLES = {
    "m3agent": (
        ("m3agent doctor", "what this machine lacks, and how to get it"),
        ("m3agent fix issue.md", "print a verified patch for an issue"),
        ("m3agent apply", "write that patch into your work tree"),
        ("m3agent apply --undo", "take it back"),
        ("m3agent plan --gpus 8xH200", "can these GPUs serve MiniMax M3, and how?"),
    ),
    "m3agent fix": (
        ("m3agent fix issue.md", "a file; your work tree does not change"),
        ("m3agent fix '#12' --apply", "an issue of origin; write the patch into the work tree"),
        (
            "m3agent fix 'add(2, 3) is 6' --branch fix-add",
            "the text itself; commit the patch to a new branch",
        ),
        ("m3agent fix issue.md --endpoint http://gpu-box:8000/v1", "your own model server"),
        (
            "m3agent fix issue.md --engine embedded",
            "no GPU and no network: small repairs, judged by a test that fails",
        ),
        ("m3agent fix issue.md --spec", "accept a test that fails first, then get the fix"),
        ("m3agent fix --each label:bug --report all.html", "open issues of origin with this label"),
        ("m3agent fix issue.md --attempts 4 --max-cost 5", "four attempts at once, five dollars for all"),
    ),
    "m3agent ask": (("m3agent ask 'Where is the cache read?'", "the answer; no file changes"),),
    "m3agent apply": (
        ("m3agent apply", "the last fix of this repository"),
        ("m3agent apply 20260131-12", "the beginning of a session's id"),
        ("m3agent apply --undo", "take it back: your files are as before"),
    ),
    "m3agent verify": (
        ("m3agent verify", "the changes of your work tree"),
        ("m3agent verify patch.diff --certificate cert.json", "a file; keep what was tested"),
        ("m3agent verify --pr https://github.com/o/n/pull/7", "a pull request of origin"),
        ("m3agent verify patch.diff --check cert.json", "once more: what differs?"),
    ),
    "m3agent pr follow": (
        ("m3agent pr follow https://github.com/o/n/pull/7", "until it is approved or closed"),
        ("m3agent pr follow URL --rounds 2 --minutes 600", "at most two further commits"),
    ),
    "m3agent sessions": (
        ("m3agent sessions attach", "watch a running fix, and type what to tell the model"),
        ("m3agent sessions resume last", "go on after Ctrl-C, or accept the plan or test that waits"),
        ("m3agent sessions fork last --tell TEXT", "refine a fix that has ended"),
    ),
    "m3agent sessions resume": (
        ("m3agent sessions resume last", "after Ctrl-C, or to accept the plan or test that waits"),
        ("m3agent sessions resume last --tell TEXT", "change the plan or test that waits"),
        ("m3agent sessions resume last --max-turns 200", "after the limit of 100 turns"),
    ),
    "m3agent sessions attach": (
        ("m3agent sessions attach", "watch the last fix; Ctrl-C leaves it running"),
        ("m3agent sessions attach --stop", "end it"),
    ),
    "m3agent sessions fork": (
        ("m3agent sessions fork last --tell 'The bug is in the parser.'", "go on with your advice"),
        ("m3agent sessions fork last --turn 7", "go on from the end of turn 7"),
    ),
    "m3agent report": (
        ("m3agent report", "then open the address that it prints in a browser"),
        ("m3agent report 20260131-12 -o page.html", "another session, another file"),
    ),
    "m3agent context": (
        ("m3agent context --stats", "which files the model sees, and how many tokens they take"),
        ("m3agent context --budget 100000 -o packed.txt", "what fits into 100,000 tokens"),
    ),
    "m3agent plan": (
        ("m3agent plan", "what this machine's GPUs can serve"),
        ("m3agent plan --gpus 4xH200 --context 1M", "a million tokens on four H200"),
        ("m3agent plan --agents 10 --repository-tokens 700000", "is this enough for ten agents?"),
        ("m3agent plan --recipe list", "documented commands"),
    ),
    "m3agent serve": (
        ("m3agent serve --dry-run", "the command for this machine's GPUs, and the reasons"),
        ("m3agent serve fetch", "download the checkpoint first, with its checksums"),
        ("m3agent serve --detach", "start the server; `m3agent fix` then finds it"),
        ("m3agent serve --servers 2 --dry-run", "two servers behind a router"),
        ("m3agent serve status", "what runs here"),
        ("m3agent serve warm", "let it read the repository here before a fix needs it"),
        ("m3agent serve -- --seed 7", "options for the engine itself"),
    ),
    "m3agent hooks": (
        ("m3agent hooks install claude-code", "shows the change of its settings, and asks"),
        ("m3agent hooks list", "the agents, and where their settings are"),
        ("m3agent hooks uninstall claude-code", "the file is as it was before"),
    ),
    "m3agent eval": (
        ("m3agent eval create REPO -o rows", "instances from a repository's own history"),
        ("m3agent eval validate rows -o valid.json", "can these instances be graded?"),
        ("m3agent eval run rows -o run --validation valid.json", "attempt them"),
        ("m3agent eval report run", "rates, costs, failures first"),
    ),
    "m3agent eval run": (
        ("m3agent eval run rows.jsonl -o run", "the same command resumes a stopped run"),
        ("m3agent eval run rows.jsonl -o run --ids a-1,a-2 --workers 2", "two of the instances"),
    ),
    "m3agent eval card": (
        ("m3agent eval card card.toml -o card", "the same command resumes a stopped card"),
    ),
}
"""Examples by command, each with its purpose."""
EVAL_ORDER = ("create", "validate", "run", "card", "watch", "grade", "report", "export", "verdicts")
WORDS = {"help": "--help", "version": "--version"}
"""First words that people try, and the option that they mean."""
ORDER = [name for names in COMMANDS.values() for name in names]
PROGRAM = "m3agent"
LEFT = 26  # cells of the first column, which names an option or a command
EXAMPLE = 44  # cells of the first column of examples
LEAST_MEANING = 32  # cells, borders included, for the second column
WIDEST = 100  # cells of a panel: longer lines are hard to read


class _Help:
    """The help of a command; a base for classes of typer's commands."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help. Typer's own panels have six columns: on 80 cells they cut the names of options."""
        from rich.console import Console

        console = Console(highlight=False)
        console.width = min(console.width, WIDEST)
        with console.capture() as captured:
            for part in _parts(self, ctx, console.width):
                console.print(part)
        formatter.write(captured.get())


class Command(_Help, TyperCommand):
    """A command."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line."""
        return [_as_written(piece) for piece in super().collect_usage_pieces(ctx)]


class Group(_Help, TyperGroup):
    """A group of commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Show the help if a command is missing.

        Typer's own flags have no default. It would import pydantic to convert a value that is missing.
        """
        for parameter in self.get_params(ctx):
            if getattr(parameter, "is_flag", False) and parameter.default is None:
                parameter.default = False
        if self.name == PROGRAM and args and args[0] in WORDS:
            args = [*args[1:], WORDS[args[0]]]
        return super().parse_args(ctx, args or (["--help"] if self.no_args_is_help else []))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the words name. If a group has a command of this name, the error names that one."""
        groups = [(name, each) for name, each in self.commands.items() if isinstance(each, Group)]
        if args[0] not in self.commands and (
            near := [name for name, each in groups if args[0] in each.commands]
        ):
            full = " or ".join(f"{ctx.command_path} {name} {args[0]}" for name in near)
            ctx.fail(f"No such command '{args[0]}' (did you mean {full}?)")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands: those of m3agent itself and of `eval` in the order of use."""
        names = super().list_commands(ctx)
        order = ORDER if self.name == PROGRAM else EVAL_ORDER if self.name == "eval" else ()
        return sorted(names, key=order.index) if order else names


def arrange(app: typer.Typer) -> None:
    """Give every command of an app this help, and let it report its expected errors in one sentence."""
    panels = {name: panel for panel, names in COMMANDS.items() for name in names}
    for command in app.registered_commands:
        _prepare(command)
        command.rich_help_panel = panels[command.name or command.callback.__name__]  # type: ignore[union-attr]
    for group in app.registered_groups:
        group.rich_help_panel = panels[str(group.name)]
        _arrange_below(group.typer_instance)


def _prepare(command: Any) -> None:
    command.cls, command.callback = Command, faults()(command.callback)


def _arrange_below(app: typer.Typer | None) -> None:
    assert app is not None
    if not (isinstance(app.info.cls, type) and issubclass(app.info.cls, Group)):
        app.info.cls = Group
    own = app.registered_callback  # a group that has one is a command itself
    if own is not None and own.callback is not None:
        own.callback = faults()(own.callback)
    for command in app.registered_commands:
        _prepare(command)
    for group in app.registered_groups:
        _arrange_below(group.typer_instance)


_QUOTED = r"'(\S+)'"  # a name, as typer quotes it


def usage_error(error: TyperException) -> str:
    """Return what is wrong with a command line in one sentence, with the nearest option and where to read more."""
    possible: Sequence[str] = getattr(error, "possibilities", None) or ()
    text = (error.message if possible else error.format_message()).rstrip(".")
    text = re.sub(
        r"\. Did you mean ('\S+'(?:, '\S+')*)\?$",
        lambda found: f" (did you mean {' or '.join(re.findall(_QUOTED, found[1]))}?)",
        f"{text[:1].lower()}{text[1:]}",
    )
    text = re.sub(r"^got unexpected extra argument\S* \((.*)\)$", r"not expected here: \1", text)
    # a type's own words for a wrong value: "Value error, 'x' is not one of", "Input should be at most 5"
    given = _value_of(error)
    text = re.sub(
        r"(?<=': )(?:Value error, )?(?=\S)(Input )?",
        lambda found: f"{given} " if found[1] else "",
        text,
        count=1,
    )
    text = re.sub(r", unable to parse string as an? \w+$", "", text)
    bare = {option.strip("-"): option for option in possible}
    written = getattr(error, "option_name", "").strip("-")
    clear = difflib.get_close_matches(
        written, bare, n=1, cutoff=0.8
    )  # one option is much nearer than the others
    if near := clear or difflib.get_close_matches(written, bare):
        text += f" (did you mean {' or '.join(bare[name] for name in near)}?)"
    ctx: Any = getattr(error, "ctx", None)
    if text.startswith("not expected here: ") and ctx is not None and ctx.command_path == f"{PROGRAM} fix":
        text += " (write the issue's text in quotes: m3agent fix 'TEXT')"
    return f"{text}; see '{ctx.command_path} --help'." if ctx is not None else f"{text}."


def _as_written(piece: str) -> str:
    """Return a word of a usage line as manuals write it. Typer writes {ISSUE}, [[PATCH]] and [SESSION...]...."""
    piece = re.sub(r"^\{(.*)\}|^\[(\[.*\])\]", lambda found: found[1] or found[2], piece)
    return piece.removesuffix("...") if "..." in piece.removesuffix("...") else piece


def _value_of(error: TyperException) -> str:
    """Return the value that a type refused, in quotes and not too long; "it" if the error does not have it."""
    errors: Any = getattr(error.__cause__, "errors", None)  # pydantic's, which is not imported for this
    return f"'{str(errors()[0]['input'])[:60]}'" if errors is not None else "it"


Row = tuple[str, str]
"""A name, and what it means."""


def row_of(parameter: Any, ctx: Any) -> Row | None:
    """Return the row of an argument or an option in the help; None if it is hidden.

    An argument's row has no type, such as <str>: its name and its text say what it takes.
    """
    record: Row | None = parameter.get_help_record(ctx)
    if record is None or parameter.param_type_name != "argument":
        return record
    return record[0].partition(" <")[0], record[1]


def _parts(command: Any, ctx: Any, width: int) -> Iterator[RenderableType]:
    """Yield the parts of a command's help from top to bottom, for a terminal of `width` cells."""
    from rich.text import Text

    yield Text(command.get_usage(ctx), "bold")
    first, *rest = (" ".join(each.split()) for each in re.split(r"\n\s*\n", (command.help or "").strip()))
    yield Text(f"\n{first}\n")
    if examples := EXAMPLES.get(ctx.command_path):
        yield _panel("Examples", examples, EXAMPLE, width)
        rest = [f"\n{paragraph}" for paragraph in rest[:1]] + rest[1:]
    yield from (Text(f"{paragraph}\n") for paragraph in rest)
    yield from (_panel(title, rows, LEFT, width) for title, rows in _panels(command, ctx).items() if rows)


def _panels(command: Any, ctx: Any) -> dict[str, list[Row]]:
    """Return the rows of each panel of a command's help: its commands, its arguments and its options."""
    panels: dict[str, list[Row]] = {}
    for name in command.list_commands(ctx) if isinstance(command, Group) else ():
        below: Any = command.commands[name]
        summary = " ".join((below.help or "").split("\n\n")[0].split())
        panels.setdefault(below.rich_help_panel or "Commands", []).append((name, summary))
    panels |= {"Arguments": [], "Options": []}
    for parameter in command.get_params(ctx):
        if record := row_of(parameter, ctx):
            own = getattr(parameter, "rich_help_panel", None)
            kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
            panels.setdefault(own or kind, []).append(record)
    return panels


def _panel(title: str, rows: Sequence[Row], left: int, cells: int) -> Panel:
    """Return a panel with two columns. A name that does not fit into the first one has a line of its own.

    Args:
        left: Most cells of the first column.
        cells: Cells of the panel. If they leave too few for the second column, every name has a line of its own.
    """
    from rich.box import ASCII, ROUNDED
    from rich.console import Group as Lines
    from rich.padding import Padding
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    from m3agent.agent.ui.layout import shows_unicode

    border = ROUNDED if shows_unicode(sys.stdout.encoding) else ASCII
    width = min(left, max(len(name) for name, _ in rows))
    width = width if cells - width >= LEAST_MEANING else 0
    lines: list[RenderableType] = []
    for name, meaning in rows:
        if len(name) > width:
            lines += [Text(name, "bold cyan"), Padding(Text(meaning), (0, 0, 0, LEFT // 2))]
            continue
        table = Table.grid(padding=(0, 2))
        table.add_column(width=width)
        table.add_column()
        table.add_row(Text(name, "bold cyan"), Text(meaning))
        lines.append(table)
    return Panel(Lines(*lines), box=border, title=title, title_align="left", border_style="dim")

"""`code_exec`: run a Python or bash program in the sandbox."""

from __future__ import annotations

import re
import signal
from typing import Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from m3agent.sandbox.backends.launchers import BASH_START
from m3agent.sandbox.backends.sandbox import ExecResult, Folders
from m3agent.tools.base import MOST_CHARACTERS, Arguments, CallContext, Tool, ToolResult, readable
from m3agent.tools.test_commands import COMMANDS
from m3agent.tools.work_paths import OTHER_ROOTS

# The program is passed in a file, because an argument of a command is limited to 128 KiB. The file's name never
# changes, so that equal failures have equal tracebacks. Python searches the file's folder first for modules, so the
# file must not have the name of a module (the standard library has `code`, which `pdb` needs).
PROGRAM = "m3agent/m3agent_code"
SHELL = 'command -v bash > /dev/null && exec bash "$0"; exec sh "$0"'
READER_GONE = 128 + signal.SIGPIPE
"""Exit code of a bash program whose last pipeline ended because a reader, such as `head`, had read enough."""
ENOUGH_READ = (
    f"exit code: 0 (a pipeline's reader, such as head, closed it early: {READER_GONE}, not counted as a failure; "
    "commands after && did not run)"
)
PIP_FAILED = re.compile(r"No matching distribution found for|No module named '?pip\b")
"""What `python -m pip` prints without a network. The command `pip` gives its own answer."""

_ABSENT = re.compile(r"No such file or directory|can't cd to")
_ROOT = re.compile(rf"(?<![\w.-])(?:{'|'.join(OTHER_ROOTS)})(?![\w-])")


class CodeExecArguments(Arguments):
    """Arguments of code_exec."""

    code: str = Field(description="The program to run; the repository is the working directory.")
    language: Literal["python", "bash"] = Field("python", description="What the program is written in.")
    timeout: int = Field(60, ge=1, le=600, description="Seconds after which everything it started is killed.")

    @field_validator("code")
    @classmethod
    def without_nul(cls, code: str) -> str:
        """Refuse NUL: bash does not run such a program at all, and old Python versions run the part before the NUL."""
        if "\0" in code:
            at = {"at": code.index("\0")}
            raise PydanticCustomError("nul", "character {at} is NUL, which no program may contain", at)
        return code


def describe(result: ExecResult, timeout: float) -> str:
    """Return the first line of a command's result."""
    if result.timed_out:
        return f"timed out after {timeout:g} s (processes killed)"
    if result.exit < 0:
        number = -result.exit
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return f"exit code: {128 + number} (killed by {name}{', out of memory' if result.oom else ''})"
    return f"exit code: {result.exit}" + (" (a process was killed: out of memory)" if result.oom else "")


def stream_text(data: bytes, omitted: int, limit: int) -> tuple[str, bool]:
    """Return an output stream as the model sees it, and whether it is cut.

    A cut stream has a line between its head and its tail that counts the missing bytes.

    Args:
        data: The bytes that the sandbox kept.
        omitted: Number of bytes that the sandbox dropped from the middle.
    """
    if omitted <= 0 and len(data) <= 4 * limit and len(text := readable(data)) <= limit:
        return text, False
    keep = limit // 2
    head, tail = readable(data[:keep]), readable(data[-keep:])
    while 2 * keep > len(data) or len(head) + len(tail) > limit:
        keep //= 2  # a control character becomes several characters
        head, tail = readable(data[:keep]), readable(data[-keep:])
    return f"{head}\n[... {omitted + len(data) - 2 * keep:,} bytes omitted ...]\n{tail}", True


def command(folders: Folders, *, in_bash: bool = False) -> tuple[str, ...]:
    """Return the command that runs a program. Its last word is the path of the program's file."""
    file = f"{folders.temporary}/{PROGRAM}"
    return ("sh", "-c", SHELL, f"{file}.sh") if in_bash else ("python3", f"{file}.py")


def names_other_root(text: str, work_tree: str) -> bool:
    """Return whether a line says that a folder is missing in which other sandboxes have the work tree."""
    lines = (line for line in text.splitlines() if _ABSENT.search(line))
    return any(root != work_tree for line in lines for root in _ROOT.findall(line))


async def run(context: CallContext, arguments: CodeExecArguments) -> ToolResult:
    """Run the program. Its output is the result, even if it fails or exceeds its time limit."""
    in_bash = arguments.language == "bash"
    folders = context.sandbox.folders
    argv = command(folders, in_bash=in_bash)
    env = {**context.sandbox.typed_env, "PWD": folders.work_tree}  # PWD: as a shell would set it
    result = await context.sandbox.exec(
        argv,
        env={**env, "BASH_ENV": f"{folders.toolbox}/{BASH_START}"} if in_bash else env,
        stdin=arguments.code.encode(),
        file=argv[-1],
        warm=not in_bash,
        timeout=arguments.timeout,
        log=context.log,
    )
    code = 124 if result.timed_out else result.exit
    parts = [describe(result, arguments.timeout)]
    if in_bash and code == READER_GONE:
        code = 0
        parts = [ENOUGH_READ]
    # Standard error comes first: it is usually shorter and says more. Standard output gets the remaining room.
    shown_err, cut_err = stream_text(result.stderr, result.omitted[1], MOST_CHARACTERS // 2)
    room = MOST_CHARACTERS - min(len(shown_err), MOST_CHARACTERS // 2)
    shown_out, cut_out = stream_text(result.stdout, result.omitted[0], room)
    for title, text in (("stdout", shown_out), ("stderr", shown_err)):
        if text.strip():
            parts.append(f"{title}:\n{text.rstrip()}")
    if not context.sandbox.has_network and any(PIP_FAILED.search(text) for text in (shown_out, shown_err)):
        parts.append(
            "note: the sandbox has no network, so pip cannot download. `pip list` shows what is installed."
        )
    if names_other_root(f"{shown_out}\n{shown_err}", folders.work_tree):
        parts.append(f"note: the repository is the working directory, {folders.work_tree}")
    truncated = cut_out or cut_err
    return ToolResult(
        "\n".join(parts),
        is_error=code != 0,
        exit_code=code,
        digest=result.digest,
        truncated=truncated,
        full_path=str(context.log) if truncated else None,
        data={"timed_out": result.timed_out, "out_of_memory": result.oom},
    )


TOOL = Tool(
    "code_exec",
    "Run a Python or bash program in the sandbox, in the repository's folder. No network, except for hosts that the "
    "first message names. Returns exit code, stdout and stderr. Every process it starts is ended when it returns. bash "
    "runs with pipefail: a pipeline's exit code is that of its first failed command. It counts as a test run only if it "
    f"runs {COMMANDS}.",
    CodeExecArguments,
    run,
    kind="execute",
    verb="run",
    title_argument="code",
)

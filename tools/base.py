"""What a tool is, and what it returns."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, field_validator
from pydantic_core import PydanticCustomError

from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.tools.test_commands import runs_tests
from m3agent.tools.test_report import TestReport

MOST_CHARACTERS = 30_000
"""Most characters of a result that the model gets. The session's folder has the complete result."""

MOST_REFUSAL = 6000
"""Most characters of the reason why a call was refused."""

ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\udc80-\udcff]")


class Arguments(BaseModel):
    """Base of every tool's arguments: unknown ones are an error, so that a model learns of a misspelt name."""

    model_config = ConfigDict(extra="forbid")

    @field_validator("*")
    @classmethod
    def encodable(cls, value: object) -> object:
        """Refuse half of a surrogate pair: no file can hold it, and leaving it out would change what was sent."""
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as error:
                what = {"at": error.start, "code": f"U+{ord(value[error.start]):04X}"}
                raise PydanticCustomError(
                    "not_unicode", "character {at} is {code}, half of a surrogate pair", what
                ) from None
        return value


@dataclass(frozen=True)
class ToolResult:
    """The result of a call. Each call has exactly one."""

    content: str
    is_error: bool = False
    """Whether the call failed or was refused."""
    is_refused: bool = False
    """Whether it was refused: nothing ran."""
    exit_code: int | None = None
    """Exit status of the program that the call ran; None if it ran none."""
    digest: str = ""
    """SHA-256 of the complete output, before it is cut."""
    truncated: bool = False
    full_path: str | None = None
    """File with the complete output, if one was written."""
    data: dict[str, Any] = field(default_factory=dict)
    """Structured result. For tests: the ids in the lists passed, failed, errored and skipped."""


def refusal(text: str) -> ToolResult:
    """Return the result of a refused call. The text may quote the call, which may be long, so it is cut."""
    return ToolResult(f"error: {cut(text, MOST_REFUSAL)}", is_error=True, is_refused=True)


@dataclass
class CallContext:
    """The surroundings of a call."""

    sandbox: Sandbox
    log: Path
    baseline: Callable[[], Awaitable[TestReport | None]] | None = None
    """Waits for the complete result of all tests on the base tree; None without one."""


ToolKind = Literal["read", "edit", "execute", "other"]
"""What a call does to the work tree: `read` shows part of it, `edit` writes a file, `execute` runs a program."""


@dataclass(frozen=True, kw_only=True)
class ToolTraits:
    """What the rest of the program has to know about a tool."""

    kind: ToolKind = "other"
    """What a call does. The loop, the stall detector and editors treat each kind in its own way."""
    verb: str = ""
    """What a call does, in one word for people. Without it they see the tool's name."""
    path_argument: str = "path"
    title_argument: str = ""
    """The argument that tells what a call is about. Without it the path does."""
    content_arguments: tuple[str, ...] = ()

    @property
    def may_change_tree(self) -> bool:
        """Whether a call may leave the work tree changed."""
        return self.kind != "read"

    def path(self, arguments: Mapping[str, Any] | None) -> str:
        """Return the file or folder that a call names, as the model wrote it; empty if it names none."""
        return _text(arguments, self.path_argument) or ""

    def title(self, arguments: Mapping[str, Any] | None) -> str:
        """Return what a call is about in one line, as the model wrote it; empty if there is none.

        For a program it is the first line that says what the program does; a comment keeps its `# `.
        """
        program = _text(arguments, self.title_argument)
        lines = (self.path(arguments) if program is None else program).strip().split("\n")
        return next((line for line in lines if not _PREPARES.match(line)), lines[0])

    def runs_tests(self, arguments: Mapping[str, Any] | None) -> bool:
        """Return whether a call runs a program that starts a test runner."""
        program, language = _text(arguments, self.title_argument), _text(arguments, "language")
        return self.kind == "execute" and runs_tests(program or "", language or "")


_PREPARES = re.compile(r"\s*$|#!|from \S+ import\b|import \w|set -|cd \S+$|[\"']{3}\s*$")
"""Lines at the beginning of a program that do not say what it does."""


def _text(arguments: Mapping[str, Any] | None, name: str) -> str | None:
    value = (arguments or {}).get(name)
    return value if isinstance(value, str) else None


A = TypeVar("A", bound=Arguments)


@dataclass(frozen=True)
class Tool(ToolTraits, Generic[A]):
    """A tool: its name, its description for the model, the type of its arguments, and the function that runs a call."""

    name: str
    description: str
    arguments: type[A]
    run: Callable[[CallContext, A], Awaitable[ToolResult]]

    def schema(self) -> dict[str, Any]:
        """Return the tool's entry in a request's `tools` list."""
        parameters = self.arguments.model_json_schema()
        parameters.pop("title", None)
        parameters.pop("description", None)
        for prop in parameters["properties"].values():
            prop.pop("title", None)
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": parameters},
        }


def readable(data: bytes) -> str:
    """Decode output for a model or a terminal; remove escape sequences and make control characters visible."""
    return visible(ESCAPES.sub("", data.decode("utf-8", "replace").replace("\r\n", "\n")))


def visible(text: str) -> str:
    """Replace control characters, characters that change the writing direction and bytes that are no text by escapes."""
    return CONTROLS.sub(lambda match: f"\\x{ord(match[0]) - 0xDC00 * (match[0] >= chr(0xDC80)):02x}", text)


def cut(text: str, limit: int = MOST_CHARACTERS) -> str:
    """Shorten a text to its head and tail, with a line between them that counts the omitted characters."""
    if len(text) <= limit:
        return text
    head, tail = text[: limit // 2], text[-(limit // 2) :]
    return f"{head}\n[... {len(text) - len(head) - len(tail):,} characters omitted ...]\n{tail}"

"""Convert the blocks of a client's prompt (text, attached files, images) into an issue."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from m3agent.agent.issue.images import KINDS, MAX_IMAGE_BYTES, IssueImage, image_of
from m3agent.agent.issue.load import MAX_BYTES, Issue, issue_of, title_of
from m3agent.agent.session.events import QUESTION
from m3agent.util.errors import UsageError

if TYPE_CHECKING:
    from acp.schema import (
        AudioContentBlock,
        EmbeddedResourceContentBlock,
        ImageContentBlock,
        ResourceContentBlock,
        TextContentBlock,
    )

    Block = (
        TextContentBlock
        | ImageContentBlock
        | AudioContentBlock
        | ResourceContentBlock
        | EmbeddedResourceContentBlock
    )


@dataclass(frozen=True)
class Command:
    """A command that a prompt can begin with, after a slash."""

    description: str
    hint: str = ""
    """What follows it; empty if nothing has to."""
    text: str = "{}"
    """What the model gets; `{}` is what follows the command."""


PLAN = (
    "Plan a change and wait; the user reads the plan before anything changes. Say what causes the problem or where the new "
    "code belongs, which files you would change and how, which tests would show it, and what you are unsure of. This is the "
    "change:\n\n{}"
)
COMMANDS = {
    "ask": Command("Answer a question; no file changes", "your question about the repository"),
    "plan": Command(
        "Say how a change would be made, and wait; no file changes", "what to fix or build", PLAN
    ),
    "verify": Command("Run the tests without and with your uncommitted changes; no model is asked"),
}
_QUESTION = re.compile(
    r"\s*(what|why|how|where|when|who|which|whose|is|are|was|were|do|does|did|has|have|should)\b[^\n]*\?\s*",
    re.IGNORECASE,
)
_COMMAND = re.compile(rf"\A\s*/({'|'.join(COMMANDS)})(?:\s+|$)")


@dataclass(frozen=True)
class AcpPrompt:
    """A client's prompt."""

    typed: str
    """What the person typed, without the files that the client attached."""
    text: str
    """The whole text, attached files included."""
    images: tuple[IssueImage, ...] = ()

    @property
    def command(self) -> str:
        """The name of the command with which the prompt begins. Empty for a prompt without a command."""
        match = _COMMAND.match(self.typed)
        return "" if match is None else match[1]

    @property
    def is_question(self) -> bool:
        """Whether only an answer is wanted."""
        return self.command in ("ask", "plan")

    @property
    def is_plain_question(self) -> bool:
        """Whether a prompt without a command is one question in English, which only a language model can answer."""
        return not self.command and _QUESTION.fullmatch(self.typed) is not None

    @property
    def title(self) -> str:
        """The title of the issue, taken from what the person typed."""
        return title_of(_COMMAND.sub("", self.typed, count=1) or self.typed)

    @property
    def wanted(self) -> str:
        """What the model is asked: the text without the command that it begins with."""
        text = _COMMAND.sub("", self.text, count=1)
        return COMMANDS[self.command].text.format(text) if self.command else self.text

    def issue(self) -> Issue:
        """Return the prompt as an issue."""
        source = QUESTION if self.is_question else "acp"
        return replace(issue_of(f"{self.wanted}\n", source), title=self.title, images=self.images)


def read_prompt(blocks: Sequence[Block]) -> AcpPrompt:
    """Read a prompt from its blocks.

    Raises:
        UsageError: The prompt is empty or too large, has a block of an unknown type, or an invalid image.
    """
    typed: list[str] = []
    parts: list[str] = []
    images: list[IssueImage] = []
    for block in blocks:
        match block.type:
            case "text":
                typed.append(block.text)
                parts.append(block.text)
            case "image":
                images.append(_image(block.data, len(images) + 1))
            case "resource_link":
                parts.append(f"({block.name}: {block.uri})")
            case "resource":
                text = getattr(block.resource, "text", None)
                if text is not None:
                    parts.append(f'<file uri="{block.resource.uri}">\n{text}\n</file>')
            case _:
                raise UsageError(f"m3agent accepts text, files and images, not {block.type}: leave it out.")
    text = "\n\n".join(part.strip("\n") for part in parts if part.strip())
    return _checked(AcpPrompt("\n".join(typed).strip() or text, text, tuple(images)))


def _checked(prompt: AcpPrompt) -> AcpPrompt:
    if not prompt.text:
        raise UsageError("The prompt is empty: say what to fix.")
    if len(prompt.text.encode(errors="surrogatepass")) > MAX_BYTES:
        raise UsageError(f"The prompt is larger than {MAX_BYTES >> 20} MiB: send less text or fewer files.")
    if prompt.command and (hint := COMMANDS[prompt.command].hint) and prompt.typed == f"/{prompt.command}":
        raise UsageError(f"/{prompt.command} is alone: write {hint} after it.")
    return prompt


def _image(data: str, number: int) -> IssueImage:
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise UsageError(f"Image {number} of the prompt is not base64: send it again.") from None
    if len(raw) > MAX_IMAGE_BYTES:
        raise UsageError(f"Image {number} of the prompt is larger than {MAX_IMAGE_BYTES >> 20} MiB.")
    image = image_of(f"image {number}", raw)
    if image is None:
        raise UsageError(f"Image {number} of the prompt is not {KINDS}.")
    return image

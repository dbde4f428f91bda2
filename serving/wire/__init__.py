"""MiniMax M3's text format: parse reasoning and tool calls from the model's text, and write them.

Every engine that serves M3 with its own chat template produces this format.
"""

from m3agent.serving.wire.codec import (
    CallFinished,
    CallPartial,
    Parsed,
    ReasoningDelta,
    StreamParser,
    TextDelta,
    TextWasReasoning,
    ThinkingMode,
    Tools,
    WireEvent,
    collect,
    parse,
    write,
)
from m3agent.serving.wire.json_calls import Call, calls_at_end

__all__ = [
    "Call",
    "CallFinished",
    "CallPartial",
    "Parsed",
    "ReasoningDelta",
    "StreamParser",
    "TextDelta",
    "TextWasReasoning",
    "ThinkingMode",
    "Tools",
    "WireEvent",
    "calls_at_end",
    "collect",
    "parse",
    "write",
]

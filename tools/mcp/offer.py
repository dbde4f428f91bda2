"""Which of a server's tools a model is offered, and in what words: they stand in every request, and strangers wrote them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from mcp_types import Tool

MOST_TOOLS = 64
"""Of one server."""
MOST_SCHEMA, MOST_WORDS = 16_384, 4_000
"""Characters of a tool's schema, as JSON, and of its description."""
MOST_NAME = 64
"""Characters of a name, by the rule of chat APIs."""
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")

Schema = dict[str, Any]


def public_name(server: str, tool: str) -> str:
    """What the model calls a tool: `mcp__SERVER__TOOL`, with a piece of a hash where that had to be changed."""
    whole = f"mcp__{server}__{tool}"
    name = _NOT_IN_A_NAME.sub("_", whole)
    if name == whole and len(name) <= MOST_NAME:
        return name
    digest = hashlib.sha256(whole.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{name[: MOST_NAME - 9]}_{digest}"


def offered(
    server: str, tools: Iterable[Tool], only: frozenset[str] | None, clean: Callable[[str], str]
) -> tuple[dict[str, tuple[str, Schema]], list[str]]:
    """The tools to offer, in the order of their names: by public name the server's own name and the entry of a request's
    `tools`; and a sentence for each that is left out. Every text goes through `clean`."""
    found: dict[str, tuple[str, Schema]] = {}
    left_out: list[str] = []
    for tool in sorted(tools, key=lambda tool: tool.name):
        if only is not None and tool.name not in only:
            continue
        name = public_name(server, tool.name)
        if name in found:
            left_out.append(f"{tool.name!r}: listed twice")
        elif fault := _fault(tool):
            left_out.append(f"{tool.name[:80]!r}: {fault}")
        elif len(found) == MOST_TOOLS:
            left_out.append(f"{tool.name[:80]!r} and what comes after it: more than {MOST_TOOLS} tools")
            break
        else:
            words = clean(tool.description or tool.title or "")
            words = words if len(words) <= MOST_WORDS else words[:MOST_WORDS] + "…"
            parameters = _cleaned({"type": "object", "properties": {}, **tool.input_schema}, clean)
            function = {"name": name, "description": words, "parameters": parameters}
            found[name] = (tool.name, {"type": "function", "function": function})
    return found, left_out


def _fault(tool: Tool) -> str:
    """What is wrong with a tool's schema; empty for nothing."""
    schema = tool.input_schema
    try:
        size = len(json.dumps(schema))
        if size > MOST_SCHEMA:
            return f"its schema has {size:,} characters, {MOST_SCHEMA:,} are the most"
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return f"its schema is none: {' '.join(error.message.split())[:200]}"
    except (RecursionError, ValueError, TypeError):
        return "its schema cannot be read"
    return ""


def _cleaned(value: Any, clean: Callable[[str], str]) -> Any:
    """With all texts cleaned, names too: one that is changed so can no longer be called rightly, and was made to mislead."""
    if isinstance(value, dict):
        return {clean(str(key)): _cleaned(part, clean) for key, part in value.items()}
    if isinstance(value, list):
        return [_cleaned(part, clean) for part in value]
    return clean(value) if isinstance(value, str) else value

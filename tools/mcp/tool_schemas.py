"""Select which of a server's tools the model is offered, and limit their texts.

The texts are part of every request, and strangers wrote them.
"""

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
"""Most tools of one server."""
MOST_SCHEMA, MOST_WORDS = 16_384, 4_000
"""Most characters of a tool's schema, as JSON, and of its description."""
MOST_NAME = 64
"""Most characters of a tool's name, by the rule of chat APIs."""
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")

Schema = dict[str, Any]


def public_name(server: str, tool: str) -> str:
    """Return the tool's name for the model: `mcp__SERVER__TOOL`.

    If characters had to be replaced, or the name is too long, it ends with a part of a hash.
    """
    whole = f"mcp__{server}__{tool}"
    name = _NOT_IN_A_NAME.sub("_", whole)
    if name == whole and len(name) <= MOST_NAME:
        return name
    digest = hashlib.sha256(whole.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{name[: MOST_NAME - 9]}_{digest}"


def offered(
    server: str, tools: Iterable[Tool], only: frozenset[str] | None, clean: Callable[[str], str]
) -> tuple[dict[str, tuple[str, Schema]], list[str]]:
    """Return the tools to offer, and a sentence for each tool that is left out.

    Args:
        only: Names of the tools that may be offered; None for all.

    Returns:
        By public name, in the order of the tools' own names: the tool's own name and its entry for a
            request's `tools`. Second, the sentences.
    """
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
            left_out.append(f"{tool.name[:80]!r} and all later tools: more than {MOST_TOOLS} tools")
            break
        else:
            words = clean(tool.description or tool.title or "")
            words = words if len(words) <= MOST_WORDS else words[:MOST_WORDS] + "…"
            parameters = _cleaned({"type": "object", "properties": {}, **tool.input_schema}, clean)
            function = {"name": name, "description": words, "parameters": parameters}
            found[name] = (tool.name, {"type": "function", "function": function})
    return found, left_out


def _fault(tool: Tool) -> str:
    """Return what is wrong with a tool's schema; empty if it is valid."""
    schema = tool.input_schema
    try:
        size = len(json.dumps(schema))
        if size > MOST_SCHEMA:
            return f"its schema has {size:,} characters, more than {MOST_SCHEMA:,}"
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return f"its schema is invalid: {' '.join(error.message.split())[:200]}"
    except (RecursionError, ValueError, TypeError):
        return "its schema cannot be read"
    return ""


def _cleaned(value: Any, clean: Callable[[str], str]) -> Any:
    """Return a schema with all its texts cleaned, names too.

    If cleaning changes an argument's name, the tool can no longer be called correctly. But such a name was
    made to mislead.
    """
    if isinstance(value, dict):
        return {clean(str(key)): _cleaned(part, clean) for key, part in value.items()}
    if isinstance(value, list):
        return [_cleaned(part, clean) for part in value]
    return clean(value) if isinstance(value, str) else value

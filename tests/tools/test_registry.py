"""The tools as a request lists them, and calls that are refused before they reach a tool."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.sandbox.errors import DiskFull, SandboxDied
from m3agent.tools.base import cut, readable
from m3agent.tools.registry import Toolset, own_schemas
from tests.tools.bench import Bench
from tests.tools.small_disk import fill, small_disk

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_schemas() -> None:
    schemas = own_schemas()
    assert json.dumps(own_schemas()) == json.dumps(schemas), "they are part of the prompt's prefix"
    assert all(entry["type"] == "function" and set(entry) == {"type", "function"} for entry in schemas)
    functions = {entry["function"]["name"]: entry["function"] for entry in schemas}
    required = {name: function["parameters"]["required"] for name, function in functions.items()}
    assert required == {
        "code_exec": ["code"],
        "file_write": ["path", "content"],
        "file_edit": ["path", "old", "new"],
        "file_read": ["path"],
        "test_runner": ["test_file"],
    }
    properties: dict[str, dict[str, Any]] = {
        name: function["parameters"]["properties"] for name, function in functions.items()
    }
    assert {name: list(props) for name, props in properties.items()} == {
        "code_exec": ["code", "language", "timeout"],
        "file_write": ["path", "content"],
        "file_edit": ["path", "old", "new"],
        "file_read": ["path", "start", "end"],
        "test_runner": ["test_file", "framework", "timeout"],
    }
    for function in functions.values():
        assert function["description"]
        assert function["parameters"]["type"] == "object"
        assert function["parameters"]["additionalProperties"] is False
        for prop in function["parameters"]["properties"].values():
            assert prop.get("type") or prop.get("anyOf")
            assert "title" not in prop
    assert properties["code_exec"]["language"]["enum"] == ["python", "bash"]
    assert properties["test_runner"]["framework"]["type"] == "string"
    limits = {
        name: (props["timeout"]["minimum"], props["timeout"]["maximum"], props["timeout"]["default"])
        for name, props in properties.items()
        if "timeout" in props
    }
    assert limits == {"code_exec": (1, 600, 60), "test_runner": (1, 1800, 300)}


async def test_calls_that_reach_no_tool(bench: Bench) -> None:
    toolset = Toolset(bench.sandbox, bench.folder)
    unknown = await toolset.call("browser", {"url": "x"}, 1)
    assert unknown.content == (
        "error: there is no tool 'browser': the tools are code_exec, file_write, file_edit, file_read, test_runner"
    )
    garbled = await toolset.call("code_exec", None, 2, "it ends in the middle of a string")
    assert garbled.content == (
        "error: code_exec: the arguments could not be read (it ends in the middle of a string): "
        "send the complete arguments again"
    )
    assert "(not a JSON object)" in (await toolset.call("code_exec", None, 3)).content
    assert all(result.is_error for result in (unknown, garbled))


@pytest.mark.parametrize("size", [1, 1_000_000])
async def test_a_full_disk_of_the_host_is_not_shown_to_the_model(
    bench: Bench, tmp_path: Path, size: int
) -> None:
    with small_disk(tmp_path / "calls", 64 << 10) as folder:
        fill(folder)
        with pytest.raises(DiskFull, match=r"cannot write .*0001\.log: No space left on device; make room"):
            await Toolset(bench.sandbox, folder).call("code_exec", {"code": f"print('x' * {size})"}, 1)


async def test_a_dead_sandbox_is_raised_not_shown(tight: Bench) -> None:
    running = asyncio.ensure_future(tight.call("code_exec", code="import time; time.sleep(60)"))
    await tight.sandbox.ping()
    await tight.sandbox.machine.destroy()
    with pytest.raises(SandboxDied):
        await running
    for name, arguments in (
        ("file_read", {"path": "a"}),
        ("file_write", {"path": "a", "content": "b"}),
        ("test_runner", {"test_file": "."}),
    ):
        with pytest.raises(SandboxDied):
            await tight.call(name, **arguments)


@given(st.text(max_size=300), st.integers(2, 100))
async def test_cut_says_how_much_is_missing(text: str, limit: int) -> None:
    result = cut(text, limit)
    if len(text) <= limit:
        assert result == text
        return
    half = limit // 2
    missing = len(text) - 2 * half
    assert result == f"{text[:half]}\n[... {missing:,} characters omitted ...]\n{text[-half:]}"


@pytest.mark.integration
@given(st.binary(max_size=200))
async def test_readable_text_is_printable(data: bytes) -> None:
    text = readable(data)
    assert all(char in "\t\n" or ord(char) >= 32 for char in text)
    assert not set(text) & {chr(n) for n in (0x7F, 0x85, 0x9B, 0x200E, 0x202E, 0x2066)}
    text.encode()

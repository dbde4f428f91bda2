"""A work tree in a temporary folder, with tools that run as real processes without a sandbox."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from m3agent.serving.embedded.languages import Python
from m3agent.serving.embedded.policy import Reply, respond
from m3agent.serving.embedded.probe import MARK, bundle
from m3agent.serving.embedded.repair import Budget
from m3agent.tools.in_sandbox import bootstrap, runner
from m3agent.tools.report_reader import read_report
from m3agent.tools.run_tests import standard_input
from m3agent.tools.text_file import TextFile
from m3agent.util.portable_source import portable_text
from tests.tools.report_lines import KEY

PARAMETERS: dict[str, dict[str, str]] = {
    "code_exec": {"code": "string", "language": "string", "timeout": "integer"},
    "file_write": {"path": "string", "content": "string"},
    "file_edit": {"path": "string", "old": "string", "new": "string"},
    "file_read": {"path": "string", "start": "integer", "end": "integer"},
    "test_runner": {"test_file": "string", "framework": "string", "timeout": "integer"},
}

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": kind} for key, kind in keys.items()},
            },
        },
    }
    for name, keys in PARAMETERS.items()
]


@dataclass
class Workbench:
    """A folder, and a conversation with the policy about it."""

    root: Path
    issue: str = "Something is wrong."
    messages: list[dict[str, Any]] = field(default_factory=list)
    budget: Budget = field(default_factory=Budget)
    variables: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, folder: Path, files: Mapping[str, str | bytes], issue: str = "Something is wrong."
    ) -> Workbench:
        bench = cls(folder / "tree", issue)
        for path, text in files.items():
            target = bench.root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text.encode() if isinstance(text, str) else text)
        bench.messages.append({"role": "user", "content": f"files\n<issue>\n{issue}\n</issue>\n"})
        return bench

    def request(self, **more: Any) -> dict[str, Any]:
        return {"model": "m3agent-embedded", "messages": self.messages, "tools": TOOLS, **more}

    def ask(self, **more: Any) -> Reply:
        return respond(self.request(**more), self.budget)

    def take_turn(self, reply: Reply, result: str | None = None) -> str:
        """Run the reply's call, or take `result` as its result, and append both to the history."""
        call = reply.calls[0]
        text = self.call(call.name, call.arguments) if result is None else result
        number = f"call_{len(self.messages)}"
        function = {"name": call.name, "arguments": json.dumps(call.arguments)}
        self.messages += [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": number, "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": number, "content": text},
        ]
        return text

    def converse(self, most: int = 40) -> Reply:
        """Continue until the policy makes no more calls, and return its last reply."""
        for _ in range(most):
            reply = self.ask()
            if not reply.calls:
                return reply
            self.take_turn(reply)
        raise AssertionError("the policy does not come to an end")

    def text(self, path: str) -> str:
        return (self.root / path).read_bytes().decode()

    def environment(self) -> dict[str, str]:
        kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
        paths = f"{self.root}{os.pathsep}{self.root / 'src'}"
        # as in a sandbox, which has pytest but not this project's test plugins
        bare = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        fixed = {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
        return {**kept, **bare, **fixed, **self.variables}

    def python(self, *arguments: str, timeout: float, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env=self.environment(),
            input=stdin.decode(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        if name == "code_exec":
            program = self.root.parent / "code.py"
            program.write_text(arguments["code"])
            done = self.python(str(program), timeout=arguments["timeout"])
            return f"exit code: {done.returncode}\nstdout:\n{done.stdout}\nstderr:\n{done.stderr}"
        if name == "test_runner":
            return self.run_tests(arguments["framework"], arguments["timeout"])
        assert name == "file_edit", name
        target = self.root / arguments["path"]
        file = TextFile.of(target.read_bytes())
        if file is None or file.text.count(arguments["old"]) != 1:
            return "error: the text to replace is not there exactly once"
        target.write_bytes(file.with_text(file.text.replace(arguments["old"], arguments["new"])))
        return f"edited {arguments['path']}"

    def run_tests(self, framework: str, timeout: int) -> str:
        report = self.root.parent / f"report-{secrets.token_hex(8)}"
        request = {"framework": framework, "limit": max(1.0, timeout / 20), "targets": ["."]}
        self.python(
            "-c",
            portable_text(bootstrap),
            stdin=standard_input(runner, request, str(report), KEY),
            timeout=timeout,
        )
        outcomes = read_report(report.read_bytes(), KEY).outcomes

        def count(kind: str) -> int:
            return sum(outcome == kind for outcome in outcomes.values())

        head = f"{count('passed')} passed, {count('failed')} failed, {count('error')} errors, {count('skipped')} skipped"
        red = [f"{kind.upper()} {node}" for node, kind in outcomes.items() if kind in ("failed", "error")]
        return "\n".join([head, *red])

    def probe(self, mode: str, **asked: Any) -> dict[str, Any]:
        """Run the probe alone, and return its answer."""
        program = self.root.parent / "probe.py"
        program.write_text(bundle(mode, json.dumps({"root": ".", **asked})))
        done = self.python(str(program), timeout=120)
        lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
        assert len(lines) == 1, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(lines[0][len(MARK) :])
        return found

    def spectrum(self, test_seconds: float = 2.0, red: list[str] | None = None) -> dict[str, Any]:
        """Run the probe's measuring mode and unpack its answer."""
        from m3agent.serving.embedded.repair import unpack

        asked = {"test_seconds": test_seconds, "seconds": 60, "room": 24_000, "red": red}
        found = self.probe("spectrum", targets=["."], extra=[], **asked)
        return {**json.loads(unpack(found["packed"])), "private": found["private"]}

    def judge(
        self,
        spectrum: Mapping[str, Any],
        path: str,
        texts: list[str],
        seconds: float = 60,
        watching: tuple[str, ...] = (),
    ) -> str:
        """Let the probe judge whole-file candidates, with `watching` as their first tests. Return the verdicts."""
        size = len(self.text(path))
        found = self.probe(
            "judge",
            targets=["."],
            extra=[],
            **Python().evidence(spectrum),
            private=spectrum["private"],
            files=[path],
            watching=watching,
            watched=[list(range(len(watching)))] * len(texts),
            stops=[len(texts)] * len(texts),
            seconds=seconds,
            candidates=[[0, [[0, size, text]]] for text in texts],
        )
        verdicts: str = found["verdicts"]
        return verdicts

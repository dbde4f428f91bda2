"""Make a harness card with real agents and a scripted model that follows a plan; compare the card's figures with the plan.

    python -m benchmarks.card_plan INSTANCES FOLDER [--agents m3agent,mini-swe-agent,qwen-code] [--seed 1] [--kill-after 7]

INSTANCES is what `m3agent eval create` made. The seed decides for each agent and instance whether the model is right, is wrong,
stops early, lies or stumbles. After `--kill-after` attempts the card's process is killed, and the same command goes on.
Exit code 0 means that every figure is what the plan and the model's own log say.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unidiff.patch import PatchSet

from tests.servers.four_apis import Refusal, Run, ScriptedModel, Step, tools_of

RIGHT, WRONG, EARLY, LIES, STUMBLES = BEHAVIOURS = ("right", "wrong", "early", "lies", "stumbles")
"""The patch of upstream; only a comment; no patch and no claim; no patch and a claim; a failure of the server, then right."""
SOLVED = (RIGHT, STUMBLES)
FINISH = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""How a model tells mini-swe-agent that it is done."""
KEY = "the-servers-key"
PROMPT_TOKENS, COMPLETION_TOKENS = 10, 5
"""What the scripted model counts for each answer."""
EDIT = "import pathlib\nfor path, edits in {edits!r}:\n    file = pathlib.Path(path)\n    lines = file.read_text().splitlines(True)\n    for start, length, new in reversed(edits):\n        lines[start:start + length] = new\n    file.write_text(''.join(lines))\n"
"""A program that replaces lines of files."""


@dataclass(frozen=True)
class Instance:
    """An instance as the model knows it."""

    ident: str
    statement: str
    """The statement's letters and digits."""
    edits: list[tuple[str, list[tuple[int, int, list[str]]]]]
    """For each file that upstream changed: first line from 0, number of lines, and the new lines."""


def letters(value: object) -> str:
    """Return the letters and digits of a JSON value's texts: what agents keep of a statement, however they wrap it."""
    if isinstance(value, str):
        return re.sub(r"[^A-Za-z0-9]", "", value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return "".join(map(letters, parts))


def instances_of(path: Path) -> list[Instance]:
    """Return the instances of a file of `m3agent eval create`."""
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [
        Instance(row["instance_id"], letters(row["problem_statement"]), edits_of(row["patch"]))
        for row in rows
    ]


def edits_of(patch: str) -> list[tuple[str, list[tuple[int, int, list[str]]]]]:
    """Return the lines that a patch replaces."""
    return [
        (
            file.path,
            [
                (
                    max(0, hunk.source_start - 1),
                    hunk.source_length,
                    [line.value for line in hunk if not line.is_removed],
                )
                for hunk in file
            ],
        )
        for file in PatchSet(patch)
    ]


def plan_of(agents: Sequence[str], instances: Sequence[Instance], seed: int) -> dict[tuple[str, str], str]:
    """Return each agent's behaviour at each instance; every behaviour occurs about equally often."""
    chooser = random.Random(seed)
    plan: dict[tuple[str, str], str] = {}
    for agent in agents:
        behaviours = [BEHAVIOURS[number % len(BEHAVIOURS)] for number in range(len(instances))]
        chooser.shuffle(behaviours)
        plan |= {(agent, instance.ident): how for instance, how in zip(instances, behaviours, strict=True)}
    return plan


def script_of(how: str, instance: Instance, agent: str) -> list[Step]:
    """Return the steps of the model in one attempt."""
    edits = (
        [(path, [(0, 0, ["# not a fix\n"])]) for path, _ in instance.edits]
        if how == WRONG
        else instance.edits
    )
    change = Run(f"python3 - <<'PROGRAM'\n{EDIT.format(edits=edits)}PROGRAM")
    claim = "I have fixed it, and all tests pass."
    last = Run(FINISH) if agent == "mini-swe-agent" else claim
    steps: dict[str, list[Step]] = {
        EARLY: [last if agent == "mini-swe-agent" else "I would begin with the module."],
        LIES: [Run("true"), last],
    }
    return steps.get(how, [change, last])


class PlannedModel(ScriptedModel):
    """The model of all agents: it knows from a request whose it is, and for which instance."""

    def __init__(self, instances: Sequence[Instance], plan: Mapping[tuple[str, str], str]) -> None:
        super().__init__([])
        self.instances, self.plan = instances, plan
        self.log: list[tuple[str, str, bool]] = []
        """Agent, instance, and whether the request was answered, for each request."""

    def step(self, body: dict[str, Any]) -> Step:
        """Return the next step: the number of calls in the request says which."""
        agent, text = agent_of(body), letters(body.get("messages"))
        instance = next((each for each in self.instances if each.statement in text), None)
        if instance is None:
            return "ok"
        with self.lock:
            how = self.plan[agent, instance.ident]
            stumbles = how == STUMBLES and (agent, instance.ident, False) not in self.log
            self.log.append((agent, instance.ident, not stumbles))
        if stumbles:
            return Refusal(500)
        script = script_of(how, instance, agent)
        return script[min(calls_of(body), len(script) - 1)]

    def forget(self, but: set[tuple[str, str]]) -> None:
        """Forget all requests but those of finished attempts: the others begin again."""
        with self.lock:
            self.log = [entry for entry in self.log if entry[:2] in but]


def agent_of(body: dict[str, Any]) -> str:
    """Return the agent of a request, known by its tools."""
    tools = set(tools_of(body))
    if "code_exec" in tools:
        return "m3agent"
    return "mini-swe-agent" if tools == {"bash"} else "qwen-code"


def calls_of(body: dict[str, Any]) -> int:
    """Return how many answers with a call a request contains. Agents also invent answers without one."""
    return sum(bool(message.get("tool_calls")) for message in body.get("messages", ()))


def finished(card: Path) -> set[tuple[str, str]]:
    """Return the agent and the instance of each attempt that has a result."""
    runs = card / "runs"
    return {
        (path.parts[len(runs.parts)], path.parent.parent.name)
        for path in runs.glob("*/attempts/*/*/result.json")
    }


def make_card(command: Sequence[str], card: Path, kill_after: int) -> None:
    """Make the card; kill its process once, when some attempts have a result."""
    with subprocess.Popen(command, env={**os.environ, "MODEL_KEY": KEY}) as process:
        while process.poll() is None:
            time.sleep(0.5)
            if 0 < kill_after <= len(finished(card)):
                process.send_signal(signal.SIGKILL)
                break


def differences(report: Mapping[str, Any], model: PlannedModel) -> list[str]:
    """Return each figure of a card that is not what the plan and the model's log say."""
    wrong: list[str] = []
    for agent in report["agents"]:
        name = agent["name"]
        how = {ident: kind for (of, ident), kind in model.plan.items() if of == name}
        log = Counter(answered for of, _, answered in model.log if of == name)
        expected = {
            "resolved": sum(kind in SOLVED for kind in how.values()),
            "requests": log.total(),
            "failed": log[False],
            "prompt tokens": log[True] * PROMPT_TOKENS,
            "completion tokens": log[True] * COMPLETION_TOKENS,
            "broken prefixes": 0 if name == "m3agent" else agent["traffic"]["broken_prefixes"],
            "leaks": 0,
            "forged": 0,
            "verified and wrong": 0,
        }
        traffic, used = agent["traffic"], agent["report"]["used"]
        shown = {
            "resolved": agent["report"]["score"]["resolved"],
            "requests": traffic["requests"],
            "failed": traffic["failed"],
            "prompt tokens": used["prompt_tokens"]["total"],
            "completion tokens": used["completion_tokens"]["total"],
            "broken prefixes": traffic["broken_prefixes"],
            "leaks": agent["leaks"],
            "forged": agent["forged"],
            "verified and wrong": agent["done"]["verified_unresolved"],
        }
        wrong += [
            f"{name}: {figure}: {shown[figure]}, by the plan {value}"
            for figure, value in expected.items()
            if shown[figure] != value
        ]
        for attempt in agent["attempts"]:
            is_solved = how[attempt["instance"]] in SOLVED
            if (attempt["verdict"] == "resolved") != is_solved:
                wrong.append(
                    f"{name}: {attempt['instance']}: {attempt['verdict']}, by the plan {how[attempt['instance']]}"
                )
    return wrong


def run_card(options: argparse.Namespace, agents: Sequence[str], model: PlannedModel) -> int:
    """Make the card, with a kill in between, and print what is not as planned; return the exit code."""
    options.folder.mkdir(parents=True, exist_ok=True)
    card, config = options.folder / "card", options.folder / "card.toml"
    config.write_text(
        f"data = {json.dumps(str(options.instances.resolve()))}\n"
        f"ids = {json.dumps([instance.ident for instance in model.instances])}\n"
        f"agents = {json.dumps(agents)}\n"
        f'[server]\nendpoint = "{model.url}/v1"\nmodel = "scripted"\nkey = "MODEL_KEY"\nprice = "1x1.00"\n'
        "[budget]\nminutes = 30\n"
    )
    threading.Thread(target=model.serve_forever, daemon=True).start()
    command = ("m3agent", "eval", "card", str(config), "-o", str(card), "--workers", str(options.workers))
    make_card(command, card, options.kill_after)
    done = finished(card)
    model.forget(done)
    print(f"killed with {len(done)} attempts done; it goes on", flush=True)
    make_card(command, card, 0)
    if not (card / "report.json").exists():
        return 1  # the command has said why
    wrong = differences(json.loads((card / "report.json").read_bytes()), model)
    kept = b"".join(path.read_bytes() for path in card.rglob("*") if path.is_file())
    wrong += ["the server's key is in a file of the card"] * (KEY.encode() in kept)
    print("\n".join(wrong) or f"all figures of {card} are as planned")
    return int(bool(wrong))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("instances", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--agents", default="m3agent,mini-swe-agent,qwen-code")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill-after", type=int, default=7, help="attempts before the kill; 0: none")
    parser.add_argument("--workers", type=int, default=1, help="attempts at a time")
    parser.add_argument("--only", type=int, default=20, help="number of instances")
    options = parser.parse_args()
    if options.folder.exists():
        parser.error(f"{options.folder} exists: a card cannot go on behind another model; give a new folder")
    agents = options.agents.split(",")
    instances = instances_of(options.instances)[: options.only]
    model = PlannedModel(instances, plan_of(agents, instances, options.seed))
    return run_card(options, agents, model)


if __name__ == "__main__":
    sys.exit(main())

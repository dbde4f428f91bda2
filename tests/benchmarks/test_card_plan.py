"""Test the plan behind a card's scripted model."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from benchmarks.card_plan import (
    BEHAVIOURS,
    RIGHT,
    STUMBLES,
    WRONG,
    Instance,
    PlannedModel,
    edits_of,
    letters,
    plan_of,
    script_of,
)

from tests.servers.four_apis import Refusal, Run

PATCH = """--- a/calc.py
+++ b/calc.py
@@ -1,3 +1,4 @@
-import os
+import re
+import sys

 x = 1
@@ -5,2 +6,2 @@
 y = 2
-z = 3
+z = 4
"""
BASE = "import os\n\nx = 1\n\ny = 2\nz = 3\n"
BOTH = [Instance("a", letters("add(1) is\n2"), edits_of(PATCH)), Instance("b", letters("sub(1) is 0"), [])]
BASH = [{"type": "function", "function": {"name": "bash", "parameters": {"properties": {"command": {}}}}}]


@pytest.mark.integration
def test_the_right_model_writes_what_the_patch_writes(tmp_path: Path) -> None:
    (tmp_path / "calc.py").write_text(BASE)
    first = script_of(RIGHT, BOTH[0], "m3agent")[0]
    assert isinstance(first, Run)
    subprocess.run(
        ["sh", "-c", first.command.replace("python3", shlex.quote(sys.executable))], cwd=tmp_path, check=True
    )
    assert (tmp_path / "calc.py").read_text() == "import re\nimport sys\n\nx = 1\n\ny = 2\nz = 4\n"


def test_a_plan_has_every_behaviour_equally_often_and_depends_on_its_seed() -> None:
    many = [Instance(str(number), "", []) for number in range(20)]
    plan = plan_of(["one", "two"], many, 1)
    assert set(Counter((agent, how) for (agent, _), how in plan.items()).values()) == {4}
    assert plan == plan_of(["one", "two"], many, 1) != plan_of(["one", "two"], many, 2)
    assert set(plan.values()) == {*BEHAVIOURS}


def test_the_model_knows_the_agent_the_instance_and_the_step() -> None:
    plan = {("mini-swe-agent", "a"): STUMBLES, ("mini-swe-agent", "b"): WRONG}
    model = PlannedModel(BOTH, plan)
    try:
        issue = {"role": "user", "content": "Please fix: add(1)  is 2."}
        call = {"role": "assistant", "tool_calls": [{"id": "1"}]}
        body = {"tools": BASH, "messages": [issue]}
        assert isinstance(model.step(body), Refusal), "the first request of one that stumbles"
        change, done = model.step(body), model.step({**body, "messages": [issue, call]})
        assert isinstance(change, Run) and "calc.py" in change.command and isinstance(done, Run)
        assert model.log == [("mini-swe-agent", "a", False), *[("mini-swe-agent", "a", True)] * 2]
        model.forget({("mini-swe-agent", "b")})
        assert model.log == []
    finally:
        model.server_close()

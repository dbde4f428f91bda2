"""Issues by a language model: what gives a fix away, and what happens to it. The model is a script behind real HTTP."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from m3agent.evals.create.create import CreateRequest, create
from m3agent.evals.create.folder import CreatedFolder
from m3agent.evals.create.graded import Validated
from m3agent.evals.create.rewrite import Rewriter, leaks_of
from m3agent.evals.data.instance import Instance
from m3agent.serving.client.client import Client
from m3agent.serving.client.endpoint import probe
from m3agent.serving.errors import EndpointRefused
from tests.command_line import run
from tests.evals.create.history_of import FIRST, FIX, Repo
from tests.evals.create.test_create_statement import ERRORS, PLAIN
from tests.servers.misbehaving import MisbehavingServer, Reply, leaked

PATCH = """diff --git a/src/shop/prices.py b/src/shop/prices.py
--- a/src/shop/prices.py
+++ b/src/shop/prices.py
@@ -1,4 +1,5 @@
 def total(items):
-    return sum(items[1:], start)
+    with_tax = [item.gross for item in items]
+    cents = sum(with_tax, start)
+    return known_name(cents)
"""
TESTS = "+++ b/tests/test_prices.py\n+    assert total([Item(gross=1)]) == 2\n"
COMMIT = replace(PLAIN, patch=PATCH, test_patch=TESTS)


@pytest.mark.parametrize(
    ("text", "leak"),
    [
        ("It should use `cents =  sum(with_tax, start)`", "the fix's line `cents = sum(with_tax, start)`"),
        ("The sum lacks with_tax.", "the name `with_tax`, which only the fix has"),
        ("Set `cents` to something.", "the name `cents`, which only the fix has"),
        ("Call cents() then.", "the name `cents`, which only the fix has"),
        ("Wrong in src/shop/prices.py, I think.", "the file `src/shop/prices.py`"),
        ("Wrong in prices.py:12", "the file `src/shop/prices.py`"),
        ("See test_prices.py", "the file `tests/test_prices.py`"),
        ("This is test_total_of_all.", "the test `test_total_of_all`"),
        ("I get 1 instead of 2 cents.", None),  # a word of English
        (
            "`total(items)` of items with `gross` is wrong: I start with `start`.",
            None,
        ),  # in the tests, at the base
        ("`known_name` is fine", None),  # elsewhere at the base
        ("My own_prices.py and prices.pyc fail", None),
    ],
)
def test_what_gives_a_fix_away_is_found(text: str, leak: str | None) -> None:
    found = leaks_of(text, COMMIT, ERRORS, lambda names: {"known_name"} & set(names))
    assert (found[0] if leak else found) == (leak or [])


def test_names_in_the_errors_are_symptoms_and_texts_are_no_code() -> None:
    errors = {"t": "E   NameError: name 'with_tax' is not defined"}
    assert leaks_of("with_tax is missing", COMMIT, errors, lambda _: set()) == []
    changed = replace(COMMIT, paths=("CHANGES.md", "src/shop/__init__.py"))
    assert leaks_of("See CHANGES.md and my __init__.py", changed, {}, lambda _: set()) == []
    assert leaks_of("src/shop/__init__.py", changed, {}, lambda _: set()) == [
        "the file `src/shop/__init__.py`"
    ]


GOOD = "Sums are wrong\n\nI add one and two and get minus one. I expect to get three, as with paper and pencil. My `helper_of_sums` is 1."
BAD = f"{GOOD} The code should have `result_of_sum`."
FIXED = "from other import helper_of_sums\n\ndef add(a, b):\n    result_of_sum = a + b\n    return result_of_sum\n"


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    made = Repo(tmp_path / "calc")
    made.commit({**FIRST, "other.py": "helper_of_sums = 1\n"}, "Begin")
    made.commit(
        {**FIX, "calc.py": FIXED},
        "Fix sums\n\nThis replaces the wrong minus by the right plus of both of the numbers.",
    )
    return made


async def rows_of(
    repo: Repo, tmp_path: Path, server: MisbehavingServer, said: list[str]
) -> list[dict[str, Any]]:
    """Make instances with the model; a validation finds that one test shows the fix."""

    async def validate(instance: Instance, folder: Path) -> Validated:
        ident = "tests/test_calc.py::test_sum"
        return Validated((ident,), (), {ident: "E  assert -1 == 3"})

    history = repo.history(tmp_path / "scratch")
    endpoint = await probe(server.url, api_key="secret", model=None)
    async with Client(endpoint, api_key="secret", attempts=1) as client:
        rewriter = Rewriter(client, history.store, "disabled", said.append)
        with CreatedFolder.opened(tmp_path / "out", history.name) as made:
            await create(history, made, CreateRequest(), validate, lambda _: None, rewriter)
    return [json.loads(line) for line in (tmp_path / "out" / "instances.jsonl").read_text().splitlines()]


@pytest.mark.integration
async def test_the_model_writes_the_issue_from_the_whole_commit(
    repo: Repo, tmp_path: Path, server: MisbehavingServer
) -> None:
    server.answers = [leaked(GOOD)]
    [row] = await rows_of(repo, tmp_path, server, [])
    assert (row["problem_statement"], row["statement_source"]) == (f"{GOOD}\n", "model")
    [asked] = server.chats
    sent = asked.json["messages"][1]["content"]
    for part in (
        "This replaces the wrong minus",
        "+    result_of_sum = a + b",
        "+def test_sum",
        "E  assert -1 == 3",
    ):
        assert part in sent
    assert "tools" not in asked.json and asked.json["chat_template_kwargs"] == {"thinking_mode": "disabled"}


@pytest.mark.integration
async def test_a_leak_is_sent_back_once(repo: Repo, tmp_path: Path, server: MisbehavingServer) -> None:
    server.answers = [leaked(BAD), leaked(GOOD)]
    said: list[str] = []
    [row] = await rows_of(repo, tmp_path, server, said)
    assert (row["problem_statement"], row["statement_source"]) == (f"{GOOD}\n", "model") and not said
    first, second = (chat.json["messages"] for chat in server.chats)
    assert second[:2] == first and second[2]["content"] == BAD
    assert "- the name `result_of_sum`, which only the fix has\n" in second[3]["content"]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (leaked(BAD), "the name `result_of_sum`, which only the fix has"),
        (leaked("Sums are wrong"), "fewer than 12 words, which describe no problem"),
        (leaked(GOOD, reason="length"), "no end: the answer was cut off"),
    ],
)
async def test_the_statement_stays_if_the_second_issue_cannot_be_used(
    bad: Any, why: str, repo: Repo, tmp_path: Path, server: MisbehavingServer
) -> None:
    server.answers = [bad, bad, leaked(GOOD)]
    said: list[str] = []
    [row] = await rows_of(repo, tmp_path, server, said)
    assert row["statement_source"] == "message" and row["problem_statement"].startswith(
        "Fix sums\n\nThis replaces"
    )
    assert said == [f"the model's issue is not used: it has {why}"] and len(server.chats) == 2


@pytest.mark.integration
async def test_without_an_answer_the_candidate_stays_to_be_tried(
    repo: Repo, tmp_path: Path, server: MisbehavingServer
) -> None:
    server.answers = [Reply(401, {"error": {"message": "no"}})]
    with pytest.raises(EndpointRefused):
        await rows_of(repo, tmp_path, server, [])
    assert json.loads((tmp_path / "out" / "create.json").read_text())["tried"] == {}
    server.answers = [leaked(GOOD)]
    assert [row["statement_source"] for row in await rows_of(repo, tmp_path, server, [])] == ["model"]


@pytest.mark.slow
@pytest.mark.integration
def test_the_command_says_who_writes_and_refuses_servers_that_cannot(
    repo: Repo, tmp_path: Path, server: MisbehavingServer
) -> None:
    def create_with(*options: str) -> tuple[int, str]:
        done = run(
            "eval", "create", str(repo.folder), "-o", str(tmp_path / "out"), "--until", "2020-01-01", *options
        )
        return done.returncode, done.stderr

    code, said = create_with("--endpoint", server.url)
    assert code == 1 and f"m3agent: issues are written by {server.url} (named)\n" in said
    assert create_with("--engine", "embedded")[0] == 1
    assert "issues are written" not in create_with()[1]
    server.pages = {"/v1/models": {"data": [{"id": "embedded", "owned_by": "m3agent"}]}}
    code, said = create_with("--endpoint", server.url)
    assert code == 2 and "the embedded engine, which writes no issues" in said
    server.pages = {}
    assert create_with("--endpoint", server.url)[0] == 4

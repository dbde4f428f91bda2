"""Test what a person reads while a server starts, without a server."""

from __future__ import annotations

import pytest

from m3agent.agent.ui.serve_display import ServeView, how_to_end
from m3agent.serving.check.check import Check
from m3agent.serving.launch.load_signs import LoadPhase, LoadProgress
from m3agent.serving.launch.record import Phase, ServerRecord

LOADING = ServerRecord(url="http://127.0.0.1:8000/v1", engine="vllm", pid=1, phase=Phase.LOADING)


def shown(capfd: pytest.CaptureFixture[str], *records: ServerRecord) -> list[str]:
    """Return the lines for a server that loads two phases and then has the states in `records`."""
    phases = list(LoadPhase)[:2]
    with ServeView() as view:
        view.phase(LOADING)
        view.progress(LoadProgress(phases[0], 3, 4))
        view.progress(LoadProgress(phases[0], 4, 4))
        view.progress(LoadProgress(phases[1]))
        for record in records:
            view.phase(record)
    return capfd.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (None, ": cache for 900 tokens"),
        ({}, ": cache for 900 tokens"),
        ({"kv_tokens": 0}, ": cache for 900 tokens"),
        ({"kv_tokens": "1000"}, ": cache for 900 tokens"),
        ({"kv_tokens": 1000}, ": cache for 900 tokens, -10.0% against the plan"),
    ],
)
def test_the_cache_is_compared_with_the_plan(
    capfd: pytest.CaptureFixture[str], plan: dict[str, object] | None, said: str
) -> None:
    checking = LOADING.model_copy(update={"phase": Phase.CHECKING, "kv_tokens": 900, "plan": plan})
    first, loaded = shown(capfd, checking, checking)
    assert first.split()[-3:] == ["4/4", "0", "s"], "the phase that is over, with its parts"
    assert loaded.split() == ["loaded", "after", "0", f"s{said}".split()[0], *said.split()[1:]]


def test_unknown_cache_capacity_is_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    _, loaded = shown(capfd, LOADING.model_copy(update={"phase": Phase.CHECKING}))
    assert loaded.split() == ["loaded", "after", "0", "s"]


@pytest.mark.parametrize(
    ("update", "caveat"),
    [
        ({}, ""),
        ({"wire_ok": True, "model_ok": True}, ""),
        ({"wire_ok": False, "random_weights": True}, "; its wire check FAILED: do not trust its answers"),
        ({"random_weights": True, "model_ok": False}, "; its weights are random: it answers nonsense"),
        ({"model_ok": False}, "; its model check FAILED: it does not answer sensibly"),
    ],
)
@pytest.mark.parametrize(("window", "tokens"), [(None, ""), (1_048_576, ", 1,048,576 tokens")])
def test_a_server_that_is_ready(
    capfd: pytest.CaptureFixture[str], update: dict[str, object], caveat: str, window: int | None, tokens: str
) -> None:
    ready = LOADING.model_copy(update={"phase": Phase.READY, "max_model_len": window, **update})
    *_, line = shown(capfd, ready)
    ends = f"({how_to_end()})"
    assert line.split(maxsplit=1) == ["ready", f"M3 at {LOADING.url}{tokens}{caveat} {ends}"]


def test_an_outcome_of_a_check_has_its_remedy_where_it_failed(capfd: pytest.CaptureFixture[str]) -> None:
    with ServeView() as view:
        for ok in (True, False, None):
            view.checked(Check("wire", ok, "a detail", "a remedy"))
        view.say("A sentence.")
    assert [" ".join(line.split()) for line in capfd.readouterr().err.splitlines()] == [
        "ok wire: a detail",
        "failed wire: a detail; a remedy",
        "- wire: a detail",
        "m3agent: A sentence.",
    ]


@pytest.mark.parametrize(
    ("terminal", "said"),
    [(True, "`m3agent serve stop` or Ctrl-C ends it"), (False, "`m3agent serve stop` ends it")],
)
def test_ctrl_c_is_named_only_where_it_reaches_the_server(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, said: str
) -> None:
    monkeypatch.setattr("m3agent.agent.ui.serve_display.has_terminal", lambda: terminal)
    assert how_to_end() == said

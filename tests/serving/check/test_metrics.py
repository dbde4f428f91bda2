"""Prometheus' text format: a real page, every value that can be written, and lines that are no metric."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.serving.check.engine_state import Sample, parse_metrics, total, values

PAGE = (Path(__file__).parent / "vllm-0.24-metrics.txt").read_text()

names = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,10}", fullmatch=True)
labels = st.dictionaries(st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True), st.text(), max_size=4)
numbers = st.floats(allow_nan=False) | st.integers(-(10**12), 10**12).map(float)
blanks = st.sampled_from(["", " ", "\t", "  "])


def written(name: str, labelled: dict[str, str], value: float, blank: str, stamp: int | None) -> str:
    escaped = {
        key: text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        for key, text in labelled.items()
    }
    inside = ",".join(f'{blank}{key}{blank}={blank}"{text}"{blank}' for key, text in escaped.items())
    number = {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, repr(value))
    braces = f"{{{inside}}}" if labelled else ""
    return f"{blank}{name}{braces} {number}{'' if stamp is None else f' {stamp}'}{blank}"


@given(
    st.lists(
        st.tuples(names, labels, numbers, blanks, st.none() | st.integers(-(10**15), 10**15)), max_size=5
    )
)
def test_what_was_written_is_read(rows: list[tuple[str, dict[str, str], float, str, int | None]]) -> None:
    lines = ["# HELP a some help", *(written(*row) for row in rows), "", "# TYPE a gauge"]
    assert parse_metrics("\n".join(lines)) == [Sample(name, held, value) for name, held, value, _, _ in rows]


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        samples = parse_metrics(text)
    except ValueError as error:
        assert "is not a metric" in str(error)
    else:
        assert len(samples) <= len(text.split("\n"))


def test_a_real_page_of_vllm() -> None:
    samples = parse_metrics(PAGE)
    assert len(samples) == sum(bool(line) and line[0] != "#" for line in PAGE.splitlines())
    assert total(samples, "vllm:num_preemptions_total") == 0.0
    assert values(samples, "python_info") == [1.0]
    assert total(samples, "vllm:num_preemptions") is None  # the start of a longer name does not match
    (config,) = [sample for sample in samples if sample.name == "vllm:cache_config_info"]
    assert config.labels["num_gpu_blocks"] == "38902"
    assert config.labels["kv_cache_dtype_skip_layers"] == "[]"


def test_words_for_numbers() -> None:
    (low, high, none) = (sample.value for sample in parse_metrics("a -Inf\nb +Inf\nc NaN"))
    assert (low, high) == (-math.inf, math.inf)
    assert math.isnan(none)


@pytest.mark.parametrize(
    "line",
    [
        "<html>",
        "a",
        "a1",
        "a b",
        "a 1 b",
        "a 1 2 3",
        "a 1_0",
        "a{x=1} 2",
        'a{x="1"',
        'a{x="1"y="2"} 1',
        "1a 2",
        "a{,} 1",
    ],
)
def test_malformed_metric_is_reported_with_its_line(line: str) -> None:
    with pytest.raises(ValueError, match=r"^line 2 is not a metric: "):
        parse_metrics(f"a 1\n{line}")

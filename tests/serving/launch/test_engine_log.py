"""Progress and facts read from engines' logs, however their text is split into pieces."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m3agent.serving.launch import server
from m3agent.serving.launch.engine_log import ERROR_LINES, MOST_CHARACTERS, TAIL_LINES, LogReader, line_of
from m3agent.serving.launch.load_signs import LoadPhase, LoadProgress
from m3agent.serving.launch.record import LAST_LOG, LOG

LOGS = Path(__file__).parent / "logs"
ENGINES = (None, "vllm", "sglang", "trtllm", "dynamo")


def read(name: str, engine: str) -> tuple[LogReader, list[LoadProgress]]:
    reader = LogReader(engine)
    return reader, reader.feed((LOGS / f"{name}.log").read_bytes())


def counts(news: list[LoadProgress], phase: LoadPhase) -> list[tuple[int, int]]:
    return list(dict.fromkeys((one.done, one.total) for one in news if one.phase is phase))


def test_vllm_from_its_start_until_it_is_ready() -> None:
    reader, news = read("vllm-good-run", "vllm")
    assert list(dict.fromkeys(one.phase for one in news)) == [
        LoadPhase.STARTING,
        LoadPhase.WEIGHTS,
        LoadPhase.MEMORY,
        LoadPhase.GRAPHS,
        LoadPhase.READY,
    ]
    assert counts(news, LoadPhase.GRAPHS) == [(0, 8), (4, 8), (8, 8)]
    assert reader.ready
    facts = reader.facts
    assert (facts.version, facts.kv_tokens, facts.max_concurrency) == ("0.24.0", 4_979_456, 37.99)
    assert (facts.weights_gib, facts.load_seconds, facts.cache_gib) == (1.01, 0.179856, 40.36)
    assert facts.backends[:2] == [
        "FLASH_ATTN attention backend",
        "MiniMax M3 sparse attention selected Triton (kv_cache_dtype=auto, topk_blocks=16)",
    ]


def test_vllm_loads_shards_and_compiles() -> None:
    reader, news = read("vllm-shards-issue38820", "vllm")
    assert counts(news, LoadPhase.WEIGHTS) == [(0, 9), (5, 9), (6, 9), (7, 9), (8, 9), (9, 9)]
    assert news[-1] == LoadProgress(LoadPhase.COMPILING, detail="torch.compile")
    assert reader.facts.weights_gib == 12.66


def test_two_workers_that_say_the_same_are_shown_once() -> None:
    reader, news = read("vllm-two-workers-issue142-567", "vllm")
    assert counts(news, LoadPhase.GRAPHS) == [(2, 2), (3, 3)]
    reader, news = read("sglang-two-ranks-pull17157", "sglang")
    assert counts(news, LoadPhase.GRAPHS) == [(0, 7), (1, 7)]
    assert len([one for one in news if one.phase is LoadPhase.MEMORY]) == 2
    assert reader.facts.kv_tokens == 192_896


def test_sglang_is_ready_when_it_says_so_and_not_when_its_web_server_is() -> None:
    text = (LOGS / "sglang-good-issue12726.log").read_text()
    before, mark, after = text.partition("[2025-11-06 01:22:16]")
    reader = LogReader("sglang")
    assert counts(reader.feed(before.encode()), LoadPhase.GRAPHS)[1:] == [(0, 23), (23, 23)]
    assert not reader.ready
    assert reader.feed((mark + after).encode()) == [LoadProgress(LoadPhase.READY)]
    assert reader.facts.kv_tokens == 421_472


def test_sglang_0_5_23() -> None:
    reader, news = read("sglang-0.5.23-source", "sglang")
    assert counts(news, LoadPhase.WEIGHTS) == [(0, 0), (0, 45), (20, 45), (45, 45)]
    assert counts(news, LoadPhase.GRAPHS) == [(0, 0), (0, 4), (4, 4)]
    assert (reader.facts.weights_gib, reader.facts.load_seconds) == (103.41, 229.12)


def test_tensorrt_llm() -> None:
    reader, news = read("trtllm-good-issue8961", "trtllm")
    assert counts(news, LoadPhase.GRAPHS) == [(0, 32), (1, 32), (2, 32)]
    assert LoadPhase.COMPILING in {one.phase for one in news}
    assert (reader.facts.kv_tokens, reader.facts.cache_gib, reader.ready) == (8256, 1.01, True)
    _, news = read("trtllm-weights-pull5291", "trtllm")
    assert counts(news, LoadPhase.WEIGHTS) == [(0, 0), (1, 1), (1191, 1191)]


def test_dynamo_is_ready_when_its_worker_is() -> None:
    reader, news = read("dynamo-vllm-issue1405", "dynamo")
    assert counts(news, LoadPhase.WEIGHTS) == [(0, 2), (2, 2)]
    assert reader.ready


def test_a_job_that_waits_in_a_queue_says_so() -> None:
    news = LogReader("vllm").feed(b"Slurm: PENDING (Resources)\nSlurm: PENDING (Priority)\nSlurm: RUNNING\n")
    assert news[1:] == [LoadProgress(LoadPhase.STARTING, detail="waiting in Slurm's queue")]


def test_downloads_are_counted_in_files() -> None:
    reader = LogReader("vllm")
    news = reader.feed(b"\rFetching 52 files:   0%|          | 0/52 [00:00<?, ?it/s]")
    news += reader.feed("\rFetching 52 files:  10%|▉         | 5/52 [00:09<01:30,  1.9s/it]".encode())
    news += reader.feed(b"\nLoading safetensors checkpoint shards:   0% Completed | 0/40 [00:00<?, ?it/s]\n")
    assert news == [
        LoadProgress(LoadPhase.DOWNLOADING, 0, 52, "files"),
        LoadProgress(LoadPhase.DOWNLOADING, 5, 52, "files"),
        LoadProgress(LoadPhase.WEIGHTS, 0, 40, "shards"),
    ]


def test_a_bar_counts_when_it_is_whole_and_before_it_is_overwritten() -> None:
    reader = LogReader("vllm")
    assert not reader.feed(b"\rLoading safetensors checkpoint shards:  10% Completed | 4/40")
    assert reader.feed(b" [00:40<06:00, 10.0s/it]") == [LoadProgress(LoadPhase.WEIGHTS, 4, 40, "shards")]
    assert not reader.feed(b"\n")


def test_colours_and_carriage_returns_do_not_matter() -> None:
    plain = (LOGS / "vllm-good-run.log").read_bytes()
    coloured = plain.replace(b"(EngineCore pid=2465)", b"\x1b[0;36m(EngineCore pid=2465)\x1b[0;0m").replace(
        b"INFO ", b"\x1b[32mINFO\x1b[0m "
    )
    one, other = LogReader("vllm"), LogReader("vllm")
    assert one.feed(plain) == other.feed(coloured.replace(b"\n", b"\r\n"))
    assert one.facts == other.facts


@pytest.mark.parametrize(
    ("text", "message", "harmless", "error"),
    [
        ("(EngineCore pid=2) INFO 11-22 01:27:07 [vllm.py:10] Error: none", "Error: none", True, False),
        ("(Worker_TP0 pid=2) ERROR 11-22 01:27:07 [core.py:1]   File x", "  File x", False, False),
        ("ERROR 11-22 01:27:07 [core.py:1] no room", "no room", False, True),
        ("[2026-01-15 13:56:49 DP0 TP0] x", "x", False, False),
        ("[2025-11-06 01:22:14] INFO:     Started", "Started", True, False),
        ("[06/17/2025-16:35:04] [TRT-LLM] [RANK 0] [E] lost", "lost", False, True),
        ("[TensorRT-LLM][WARNING] out of memory soon", "out of memory soon", True, False),
        ("2025-06-05T18:11:43.805Z  WARN dynamo_llm::http: slow", "slow", True, False),
        ("2025-06-05T18:11:43.8Z ERROR dynamo_runtime::worker: gone", "gone", False, True),
        ("[rank0]:[W1122 01:26:17.637 ProcessGroupNCCL.cpp:1575] Error: x", "Error: x", True, False),
        ("\x1b[36mValueError: x\x1b[0m", "ValueError: x", False, True),
        ("raise ValueError(x)", "raise ValueError(x)", False, False),
    ],
)
def test_prefix_of_a_log_line_is_removed(text: str, message: str, harmless: bool, error: bool) -> None:
    line = line_of(text)
    assert (line.message, line.harmless, line.error) == (message, harmless, error)


def test_log_reader_keeps_a_bounded_part() -> None:
    reader = LogReader("vllm")
    reader.feed(b"x" * 3_000_000 + b"\n")
    for number in range(2000):
        name = "".join(chr(97 + int(digit)) for digit in str(number))
        reader.feed(f"ValueError: {name}\n".encode() + b"Error: " + b"y" * 9000 + b"\n")
    assert len(reader.tail) <= TAIL_LINES + 1
    assert len(reader.errors) <= ERROR_LINES
    assert max(len(line.message) for line in (*reader.tail, *reader.errors)) <= MOST_CHARACTERS
    assert reader.errors[0].message == "ValueError: a"  # the first errors are kept
    assert reader.errors[-1].message == "ValueError: bjjj"


def test_errors_before_the_engine_is_ready_are_dropped() -> None:
    reader = LogReader("vllm")
    reader.feed(b"ERROR 11-22 01:27:07 [x.py:1] optional kernel missing\n")
    assert reader.errors
    reader.feed(b"INFO:     Application startup complete.\n")
    assert (list(reader.errors), list(reader.tail)) == ([], [])


EVERYTHING = {path.stem: path.read_bytes() for path in sorted(LOGS.glob("*.log"))}


@settings(max_examples=60)
@given(
    st.sampled_from(sorted(EVERYTHING)),
    st.lists(st.integers(0, 30_000), max_size=20),
    st.sampled_from(ENGINES),
)
def test_pieces_do_not_matter(name: str, cuts: list[int], engine: str | None) -> None:
    data = EVERYTHING[name]
    whole, split = LogReader(engine), LogReader(engine)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(edges)]
    assert [one for piece in pieces for one in split.feed(piece)] == whole.feed(data)
    assert (split.facts, split.tail, split.errors) == (whole.facts, whole.tail, whole.errors)


@pytest.mark.parametrize("name", ["vllm-good-run", "sglang-0.5.23-source", "trtllm-good-issue8961"])
def test_byte_by_byte_is_the_same(name: str) -> None:
    data = EVERYTHING[name]
    whole, split = LogReader(), LogReader()
    news = [one for at in range(len(data)) for one in split.feed(data[at : at + 1])]
    assert news == whole.feed(data)
    assert split.facts == whole.facts


BARS = st.builds(
    "{}: {:3d}%|{}| {}/{} [00:01<00:02, 1it/s]".format,
    st.sampled_from(
        [
            "Fetching 9 files",
            "Loading safetensors checkpoint shards",
            "Loading weights",
            "Multi-thread loading shards",
            "Capturing CUDA graphs (decode, FULL)",
            "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE)",
            "Capturing batches (bs=1 avail_mem=1.0 GB)",
            "DeepGEMM warmup",
        ]
    ),
    st.integers(0, 100),
    st.sampled_from(["", "###   ", "█▎  "]),
    st.integers(0, 50),
    st.integers(0, 50),
)
LINES = sorted({line for data in EVERYTHING.values() for line in data.splitlines()})


@given(st.lists(st.sampled_from(LINES) | BARS.map(str.encode) | st.binary(max_size=40), max_size=60))
def test_progress_never_goes_back_whatever_is_read(lines: list[bytes]) -> None:
    reader = LogReader()
    news = reader.feed(b"\n".join(lines))
    for earlier, later in itertools.pairwise(news):
        assert later != earlier
        assert later.phase >= earlier.phase
        if later.phase == earlier.phase:
            assert later.done >= earlier.done
            assert later.total >= earlier.total
    assert all(0 <= one.done <= one.total for one in news)
    if news:
        assert reader.progress == news[-1]


@given(st.lists(st.binary(max_size=200), max_size=10), st.sampled_from(ENGINES))
def test_arbitrary_bytes_never_raise(pieces: list[bytes], engine: str | None) -> None:
    reader = LogReader(engine)
    for piece in pieces:
        reader.feed(piece)
    assert not any(re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", line.message) for line in reader.tail)


@pytest.mark.parametrize("size", [10, 11])
def test_a_log_that_is_too_large_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(server, "MOST_LOG_BYTES", 10)
    process = server.EngineProcess("vllm", MagicMock(), tmp_path)
    log, last = tmp_path / LOG, tmp_path / LAST_LOG
    log.write_bytes(b"x" * size)
    process.news()
    assert (log.stat().st_size, last.exists()) == ((0, True) if size > 10 else (10, False))
    log.write_bytes(b"y")
    process.news()
    assert log.read_bytes() == b"y"

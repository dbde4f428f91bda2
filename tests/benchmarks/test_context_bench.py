import base64
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import context_child
from benchmarks.common import commit_all
from benchmarks.context import COLD, EDITED, FIRST, TARGETS, WARM, Contestant, first_pack, measure
from benchmarks.context_peers import REPOMIX, Packer, find_ours, install_repomix
from benchmarks.context_report import Result, Sample, Target, table, verdicts
from benchmarks.context_run import Bench, Edits
from benchmarks.context_tokenizer import make_tokenizer, merges
from benchmarks.peers import Absent
from benchmarks.prefix import Kept, Replay, common_prefix, replay, share
from benchmarks.prefix import table as prefix_table
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

RANKS = [*(bytes([byte]) for byte in range(256)), b"ab", b"cd", b"abcd", b"abc"]


def seconds(*walls: float) -> list[Sample]:
    return [Sample(wall, 2 * wall, 1_000_000) for wall in walls]


def result(name: str, *walls: float) -> Result:
    return Result(name, seconds(*walls), "7", 28)


# -- reports -------------------------------------------------------------------------------------------------------


def test_runs_are_compared_within_their_round() -> None:
    ours, theirs = result(WARM, 1.0, 2.0, 10.0), result(REPOMIX, 20.0, 50.0, 100.0)
    assert theirs.median("wall") == 50.0
    assert theirs.ratio(ours, "wall") == 20.0  # the median of 20, 25 and 10; the ratio of the medians is 25


def test_what_did_not_run_has_no_ratio() -> None:
    gone = Result(REPOMIX, "node is not installed")
    assert (gone.median("wall"), gone.ratio(result(WARM, 1.0), "wall")) == (None, None)
    assert result(WARM, 1.0).ratio(None, "wall") is None
    assert result(WARM, 1.0).ratio(gone, "wall") is None


@pytest.mark.parametrize(("theirs", "verdict"), [(20.0, "aim met"), (15.0, "met"), (14.9, "MISSED")])
def test_at_least(theirs: float, verdict: str) -> None:
    target = Target("warm", REPOMIX, WARM, "wall", least=15, aim=20)
    results = {WARM: result(WARM, 1.0), REPOMIX: result(REPOMIX, theirs)}
    assert target.verdict(results) == (theirs, verdict)


@pytest.mark.parametrize(("edited", "verdict"), [(0.3, "aim met"), (0.44, "met"), (0.45, "MISSED")])
def test_less_than(edited: float, verdict: str) -> None:
    target = Target("edited", EDITED, COLD, "wall", most=0.45, aim=1 / 3)
    assert target.verdict({EDITED: result(EDITED, edited), COLD: result(COLD, 1.0)}) == (edited, verdict)


def test_a_target_without_an_aim_is_met_or_missed() -> None:
    target = Target("memory", WARM, REPOMIX, "peak", most=1)
    small, large = Result(WARM, [Sample(1, 1, 10)]), Result(REPOMIX, [Sample(1, 1, 20)])
    assert target.verdict({WARM: small, REPOMIX: large}) == (0.5, "met")
    assert target.verdict({WARM: large, REPOMIX: small}) == (2.0, "MISSED")
    assert target.verdict({WARM: small}) == (None, "not measured")


def test_the_tables_have_a_line_for_each_even_if_it_did_not_run() -> None:
    results = [result(WARM, 0.05), result(COLD, 0.5), Result(REPOMIX, "node is not installed")]
    lines = table(results, WARM, COLD).splitlines()
    assert lines[2] == f"| {WARM} | 0.050 | 0.100 | 1.00 | 7 | 28 |  | 0.10 / 0.10 |"
    assert lines[3] == f"| {COLD} | 0.500 | 1.000 | 1.00 | 7 | 28 | 10.0 / 10.0 |  |"
    assert lines[4] == f"| {REPOMIX} | node is not installed | | | | | | |"
    missing = verdicts(results, [Target("warm", REPOMIX, WARM, "wall", least=15, aim=20)]).splitlines()
    assert missing[-1] == "| warm |  | 20.0 | not measured |"


# -- running -------------------------------------------------------------------------------------------------------


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    for name, lines in (("small.py", 2), ("middle.py", 20), ("large.py", 200), ("README.md", 20)):
        (folder / name).write_text("x = 1\n" * lines)
    commit_all(folder, "start")
    return folder


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return Bench(scratch)


def test_a_run_is_measured_with_all_that_it_starts(bench: Bench) -> None:
    burn = "import subprocess, sys; x = bytearray(10**8); subprocess.run([sys.executable, '-c', 'x = bytearray(2*10**8)'])"
    run = bench.run([sys.executable, "-c", burn], {})
    assert run.code == 0
    assert 2e8 < run.sample.peak < 3e8  # the larger of the two, not their sum
    assert 0 < run.sample.cpu < 10 * run.sample.wall


def test_the_peak_of_a_small_program_is_its_own(bench: Bench) -> None:
    ballast = bytearray(10**8)
    assert bench.run(["true"], {}).sample.peak < 3e7
    assert len(ballast) == 10**8


def test_end_and_last_line_of_a_run(bench: Bench) -> None:
    run = bench.run(["sh", "-c", "echo one; echo $WORD >&2; exit 3"], {"WORD": "two"})
    assert (run.code, run.said, run.last_line) == (3, "one\ntwo\n", "two")


def test_a_program_that_is_not_there(bench: Bench) -> None:
    with pytest.raises(Absent, match="nowhere"):
        bench.run(["/nowhere/at/all"], {})


@pytest.mark.integration
def test_the_child_needs_nothing_but_the_interpreter(tmp_path: Path) -> None:
    child = [sys.executable, "-I", "-S", context_child.__file__, str(tmp_path / "out"), str(tmp_path / "err")]
    done = subprocess.run([*child, "sh", "-c", "echo hi"], capture_output=True, check=True)
    assert json.loads(done.stdout)["exit"] == 0
    assert (tmp_path / "out").read_text() == "hi\n"


def test_a_clone_is_clean_and_an_edit_is_new_each_time(bench: Bench, repo: Path) -> None:
    clone = bench.clone(repo, "clone")
    edits = Edits(clone)
    assert edits.path == "middle.py"
    texts = set()
    for number in range(3):
        edits.edit(number)
        text = (clone / "middle.py").read_bytes()
        assert edits.mark in text
        assert len(text.splitlines()) == 21
        texts.add(text)
    assert len(texts) == 3
    status = subprocess.run(["git", "status", "--short"], cwd=clone, capture_output=True, check=True)
    assert status.stdout == b" M middle.py\n"
    assert (repo / "middle.py").read_text() == "x = 1\n" * 20


def echo(text: str) -> Packer:
    return Packer(
        ["sh", "-c", f'echo "{text}"; test "$NUMBER" != "$BAD" && echo packed > "$2"'],
        re.compile(r"(\d+) tokens"),
    )


def test_rounds_are_interleaved_and_what_fails_is_out_with_its_reason(bench: Bench, tmp_path: Path) -> None:
    asked: list[tuple[str, int]] = []

    def contestant(name: str, bad: int) -> Contestant:
        def prepare(number: int) -> dict[str, str]:
            asked.append((name, number))
            return {"NUMBER": str(number), "BAD": str(bad)}

        return Contestant(name, echo(f"{name} 12 tokens"), tmp_path, tmp_path / f"{name}.txt", prepare)

    good, bad = measure(bench, [contestant("good", 99), contestant("bad", 1)], 3)
    assert asked == [("good", 0), ("bad", 0), ("bad", 1), ("good", 1), ("good", 2), ("good", 3)]
    assert len(good.samples) == 3
    assert (good.tokens, good.size) == ("12", 7)
    assert bad.samples == "exit code 1: bad 12 tokens"


# -- the peers and the tokenizer -------------------------------------------------------------------------------------


def test_unavailable_peer_is_reported_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Absent, match="node is not installed"):
        install_repomix(tmp_path)


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    file = tmp_path / "ranks"
    lines = (f"{base64.b64encode(entry).decode()} {rank}\n" for rank, entry in enumerate(RANKS))
    file.write_text("".join(lines))
    return file


def test_a_tokenizer_made_of_ranks(ranks: Path) -> None:
    made = Tokenizer.from_str(make_tokenizer(ranks, r"\w+|\s+"))
    assert made.encode("abcd abc\u00e9 cab").tokens == [
        "abcd",
        "\u0120",
        "abc",
        "\u00c3",
        "\u00a9",
        "\u0120",
        "c",
        "ab",
    ]


def test_merges_are_the_pairs_that_ranks_lead_to() -> None:
    ranks = {entry: rank for rank, entry in enumerate(RANKS)}
    assert merges(ranks) == [(b"a", b"b"), (b"c", b"d"), (b"ab", b"cd"), (b"ab", b"c")]
    with pytest.raises(ValueError, match="abc"):
        merges({b"a": 0, b"b": 1, b"c": 2, b"abc": 3})


def test_a_small_repository_is_refused_with_a_sentence(bench: Bench, repo: Path, ranks: Path) -> None:
    tokenizer = ranks.with_name("tokenizer.json")
    tokenizer.write_text(make_tokenizer(ranks, r"\w+|[^\w\s]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"))
    ours = find_ours(str(Path(sys.executable).with_name("m3agent")), tokenizer)
    with pytest.raises(SystemExit, match=r"has ≈?\d[\d,]+ tokens; with less than 1,000,000"):
        first_pack(bench, ours, repo, small=False)
    first_pack(bench, ours, repo, small=True)
    with pytest.raises(SystemExit, match="m3agent context failed: m3agent: There is no tokenizer at"):
        first_pack(bench, find_ours(ours.command[0], tokenizer.with_name("none")), repo, small=True)


# -- prefixes ------------------------------------------------------------------------------------------------------


@given(
    st.binary(max_size=40),
    st.binary(max_size=40),
    st.binary(max_size=40),
    st.sampled_from([0, 65535, 65536, 70000]),
)
def test_the_common_prefix_is_the_longest(start: bytes, one: bytes, other: bytes, more: int) -> None:
    start += b"-" * more
    length = common_prefix(start + one, start + other)
    assert (start + one)[:length] == (start + other)[:length]
    assert (
        length in (len(start + one), len(start + other)) or (start + one)[length] != (start + other)[length]
    )


def test_the_share_is_of_the_child() -> None:
    assert share(b"abcd", b"abxxxxxxxx") == 0.5
    assert share(b"abcd", b"abcde") == 1.0


def test_a_replay_packs_each_commit_in_both_orders(repo: Path, tmp_path: Path) -> None:
    for number in range(3):
        (repo / "small.py").write_text(f"x = {number}\n")
        commit_all(repo, f"change {number}")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    found = replay(repo, 3, scratch)
    plain, frozen = found.kept["plain"], found.kept["frozen"]
    assert (found.name, found.commits) == ("repo", 4)
    # in plain order, changed files come last; a frozen pack is extended at its end
    assert len(plain.next) == len(frozen.next) == 3
    assert min(plain.next) > 0.9
    assert frozen.apart == []
    assert frozen.rebases in range(4)
    assert (
        subprocess.run(["git", "status", "--short"], cwd=repo, capture_output=True, check=True).stdout == b""
    )


def test_a_replay_needs_the_whole_history(repo: Path, tmp_path: Path) -> None:
    (repo / "small.py").write_text("y = 1\n")
    commit_all(repo, "second")
    subprocess.run(
        ["git", "clone", "-q", "--depth", "1", f"file://{repo}", str(tmp_path / "part")], check=True
    )
    (tmp_path / "scratch").mkdir()
    with pytest.raises(SystemExit, match="only a part of its history"):
        replay(tmp_path / "part", 3, tmp_path / "scratch")


def test_the_table_of_prefixes() -> None:
    kept = {"plain": Kept([0.5, 0.7], [0.1], 0, 1000), "frozen": Kept([0.9, 0.9], [0.8], 1, 1020)}
    lines = prefix_table([Replay("one", "1234567890ab", 4, kept)]).splitlines()
    assert lines[2] == "| one 1234567890 | 0.60 / 0.52 | 0.10 | 0.90 / 0.90 | 0.80 | 1 | 2.0% |"
    assert lines[-2:] == [
        "| plain: at least 0.55 on average | 0.600 | met |",
        "| frozen: at least 0.93 on average | 0.900 | MISSED |",
    ]


def test_every_condition_of_m3agent_is_a_row() -> None:
    assert {target.name for target in TARGETS if target.measure == "peak"} == {WARM, EDITED, COLD, FIRST}

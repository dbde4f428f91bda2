"""Test counting with a tokenizer's file: finding it, preparing it once, exact counts, and errors in one sentence."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from m3agent.agent.context.neutralise import harmless
from m3agent.agent.context.tokenizer.counter import Counter, open_counter, oracle_count
from m3agent.agent.context.tokenizer.source import KITOKEN, TokenizerSource, find_tokenizer
from m3agent.util.errors import UsageError
from tests.agent.small_tokenizer import GPT_4, SPECIAL, description, write_tokenizer

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "model" / "tokenizer.json")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Counter, Tokenizer]:
    """Return counters for the usual small tokenizer: ours and the reference."""
    path = write_tokenizer(tmp_path_factory.mktemp("small") / "tokenizer.json")
    return open_counter(found(path, path.parent / "cache")), Tokenizer.from_file(str(path))


def found(path: Path | str, cache: Path, **more: Any) -> TokenizerSource:
    source = find_tokenizer(str(path), env={}, cache=str(cache), **more)
    assert source is not None
    return source


def reference_count(reference: Tokenizer, text: str) -> int:
    return len(reference.encode(text, add_special_tokens=False).ids)


def changed(path: Path, change: Change) -> Path:
    """Write a tokenizer.json with a change, and return its path."""
    described = description()
    change(described)
    return write_tokenizer(path, described)


@contextmanager
def refused(*words: str) -> Iterator[None]:
    """Check that what is done inside is refused in one sentence that has these words."""
    with pytest.raises(UsageError) as error:
        yield
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith(".")
    for word in words:
        assert word in text


# Strings that pre-tokenizers treat specially, tested next to each other in every order.
SPACES = [
    " ", "  ", "\t", "\n", "\n\n", "\r\n", "\r", "\u00a0", "\u3000", "\u200b", "\u0085", "\u2028",
    "\u001c",
]  # fmt: skip
LETTERS = [
    "a", "Z", "über", "ǅ", "ʰ", "漢字", "かな", "한국", "हिन्दी", "ไทย", "العربية", "\u0301", "\u0338", "😀",
    "👩\u200d💻",
]  # fmt: skip
SYMBOLS = [
    "0", "12345", "½", "٣", "/", "//", "==", "<", ">", "()", "# ", "'s", "'LL", "'\u017f", "\u0000",
    "\ufffd",
]  # fmt: skip
CODE = ["</file>", "def f(x):\n    return x\n", "\ufeff", "\U000e0041", "\U0010ffff"]
pieces = st.sampled_from([*SPACES, *LETTERS, *SYMBOLS, *CODE])
texts = st.lists(pieces | st.text(max_size=8) | st.integers(1, 300).map(" ".__mul__), max_size=30).map(
    "".join
)


def is_tried(point: int) -> bool:
    """Leave out 15 of 16 in ranges of unassigned and private characters: a million are alike."""
    kind = unicodedata.category(chr(point))
    if kind == "Cs":
        return False
    at_an_end = any(
        unicodedata.category(chr(near)) != kind for near in (max(point - 1, 0), min(point + 1, 0x10FFFF))
    )
    return kind not in ("Cn", "Co") or at_an_end or point % 16 == 0


class TestExact:
    def test_the_release_is_the_one_that_is_installed(self) -> None:
        assert importlib.metadata.version("kitoken") == KITOKEN

    @given(text=texts)
    @settings(max_examples=400)
    def test_any_text(self, small: tuple[Counter, Tokenizer], text: str) -> None:
        counter, reference = small
        assert counter.count(text) == reference_count(reference, text)

    @pytest.mark.slow
    @given(bodies=st.lists(texts, max_size=6))
    @settings(max_examples=100)
    def test_counts_of_chunks_add_up(self, small: tuple[Counter, Tokenizer], bodies: list[str]) -> None:
        counter, reference = small
        chunks = [f'<file path="a">\n{body}</file>\n' for body in bodies] + [
            f"<x>{body}\n" for body in bodies
        ]
        assert sum(counter.count_many(chunks)) == reference_count(reference, "".join(chunks))

    @pytest.mark.slow
    def test_these_sources(self, small: tuple[Counter, Tokenizer]) -> None:
        counter, reference = small
        files = [path for folder in ("agent", "serving", "tests") for path in (ROOT / folder).rglob("*.py")]
        chunks = [
            f'<file path="{path.name}">\n{harmless(path.read_text("utf-8"))}</file>\n'
            for path in sorted(files)
        ]
        assert len(chunks) > 50
        counts = counter.count_many(chunks)
        assert counts == [reference_count(reference, chunk) for chunk in chunks]
        assert sum(counts) == reference_count(reference, "".join(chunks))

    @pytest.mark.slow
    @pytest.mark.parametrize("shape", ["a{}b", "1{}2", " {} ", "'{}", "A{}A", "e{}\u0301", "\n{}\n"])
    def test_every_character(self, small: tuple[Counter, Tokenizer], shape: str) -> None:
        counter, reference = small
        points = [point for point in range(0x110000) if is_tried(point)]
        for start in range(0, len(points), 4096):
            text = "\n#".join(shape.format(chr(point)) for point in points[start : start + 4096])
            assert counter.count(text) == reference_count(reference, text), f"near U+{points[start]:04X}"

    def test_special_tokens_are_text_and_none_are_added(self, tmp_path: Path, cache: Path) -> None:
        def add(described: dict[str, Any]) -> None:
            described["added_tokens"][1]["special"] = False
            ends = [
                {"SpecialToken": {"id": SPECIAL[0], "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ]
            kinds = {SPECIAL[0]: {"id": SPECIAL[0], "ids": [0], "tokens": [SPECIAL[0]]}}
            pair = [*ends, {"Sequence": {"id": "B", "type_id": 0}}]
            described["post_processor"] = {
                "type": "TemplateProcessing",
                "single": ends,
                "pair": pair,
                "special_tokens": kinds,
            }
            cut = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
            filled = {"direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": SPECIAL[0]}
            described["truncation"] = cut
            described["padding"] = {**filled, "strategy": {"Fixed": 500}, "pad_to_multiple_of": None}

        path = changed(tmp_path / "tokenizer.json", add)
        source = found(path, cache)
        counter = open_counter(source)
        assert counter.exact
        assert counter.count("") == 0
        text = "one two three four five six\n"
        assert counter.count(text) == oracle_count(source, text) > 3
        for special in SPECIAL:
            assert counter.count(special) > 1
            assert oracle_count(source, special) == 1

    def test_several_threads_may_use_one_counter(self, small: tuple[Counter, Tokenizer]) -> None:
        counter, _ = small
        text = "def f(x):\n    return x\n" * 500
        wanted = counter.count(text)
        counts: list[int] = []

        def work() -> None:
            counts.extend(counter.count(text) for _ in range(20))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counts == [wanted] * 80

    @pytest.mark.slow
    def test_texts_that_repeat_one_thing_for_a_megabyte(self, tmp_path: Path, cache: Path) -> None:
        """The texts are counted in another process, because the library crashes when it runs out of memory."""
        program = (
            "import os, sys\n"
            "from m3agent.agent.context.tokenizer.source import find_tokenizer\n"
            "from m3agent.agent.context.tokenizer.counter import open_counter, oracle_count\n"
            "source = find_tokenizer(sys.argv[1], env={}, cache=sys.argv[2])\n"
            "counter = open_counter(source)\n"
            "n = 1 << 20\n"
            "texts = ['<f>\\n' + ' ' * n + 'x\\n', '<f>x' + ' \\t' * (n // 2) + '=y\\n', ' ' * n, '\\t' * n + '\\n',\n"
            "    '<f>a' + ' ' * n + 'b' + '\\u3000' * (n // 2) + 'c' + ' ' * (n // 2) + '\\n', '<f>' + '\\n' * n,\n"
            "    '<f>' + 'a' * n + '\\n', '<f>' + '\\U0001f600' * (n // 4) + '\\n', '<f>' + '=' * n + '\\n',\n"
            "    '<f>' + 'e\\u0301' * (n // 3) + '\\n', '<f>' + '1a' * (n // 2) + '\\n', '<f>\\n' + '  \\n' * (n // 3)]\n"
            "for text in texts:\n"
            "    print(counter.exact, counter.count(text) - oracle_count(source, text))\n"
        )
        path = write_tokenizer(tmp_path / "tokenizer.json")
        command = [sys.executable, "-c", program, str(path), str(cache)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert (done.returncode, done.stdout.splitlines()) == (0, ["True 0"] * 12), done.stderr[-500:]


def splits_by(expression: str) -> Change:
    def change(described: dict[str, Any]) -> None:
        described["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = expression

    return change


def splits_as_gpt_2(described: dict[str, Any]) -> None:
    described["pre_tokenizer"] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }


def never_merges(described: dict[str, Any]) -> None:
    """Make `abc` reachable only from `ab`, while `bc` merges first."""
    model = described["model"]
    model["merges"] = [["b", "c"], ["a", "b"], ["ab", "c"]]
    kept = [token for token in model["vocab"] if len(token) == 1]
    model["vocab"] = {token: number for number, token in enumerate([*SPECIAL, *kept, "bc", "ab", "abc"])}


def has_an_entry_without_a_merge(described: dict[str, Any]) -> None:
    never_merges(described)
    described["model"]["merges"] = [["b", "c"], ["a", "b"]]


def reserves_a_common_string(described: dict[str, Any]) -> None:
    described["added_tokens"].append({**described["added_tokens"][0], "id": 90000, "content": "<s>"})


def lists_all_pairs(described: dict[str, Any]) -> None:
    never_merges(described)
    described["model"]["merges"].append(["a", "bc"])


def splits_as_gpt_4(described: dict[str, Any]) -> None:
    described |= description(GPT_4)


def has_entries_that_nothing_reaches(described: dict[str, Any]) -> None:
    described["model"]["vocab"].update({f"~0{number}": 5000 + number for number in range(100)})


def has_normal_form_c(described: dict[str, Any]) -> None:
    described["normalizer"] = {"type": "NFC"}


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        (splits_as_gpt_4, ["<f>\n\tDon't  STOP ÜberΣΣ 123456 \r\n\r\n  {}//\n</f>\n"]),
        (has_normal_form_c, ["<\u0338file>\ne\u0301 \u1100\u1161\u11a8 \u212b\n</file>\n"]),
        (has_entries_that_nothing_reaches, ["x~07 ~09\n"]),
        (lists_all_pairs, ["abc", "abcab", "aabcc"]),
    ],
)
def test_files_that_are_counted_exactly(
    tmp_path: Path, cache: Path, change: Change, texts: list[str]
) -> None:
    source = found(changed(tmp_path / "tokenizer.json", change), cache)
    counter = open_counter(source)
    assert counter.exact
    assert counter.count_many(texts) == [oracle_count(source, text) for text in texts]


class TestNotExact:
    @pytest.mark.parametrize(
        ("change", "why"),
        [
            (splits_as_gpt_2, "more than one step"),
            (splits_by(r"[^\p{L}]+|\p{L}+"), "unusual way"),
            (
                splits_by(r"\p{L}+|[^\s\p{L}]+|\s*[\r\n]+<|\s*[\r\n]+|\s+(?!\S)|\s+"),
                "joins the end of a file",
            ),
            (
                splits_by(r"^\w+|\p{L}+|[^\s\p{L}]+|\s*[\r\n]+|\s+(?!\S)|\s+"),
                "libraries interpret differently",
            ),
            (
                splits_by(r"\p{N}{1,3}+|\p{L}+|[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"),
                "libraries interpret differently",
            ),
            (never_merges, "never make the entry 'abc'"),
            (has_an_entry_without_a_merge, "never make the entry 'abc'"),
            (reserves_a_common_string, "it reserves '<s>'"),
            (lambda described: described.update(normalizer={"type": "Lowercase"}), "changes text"),
        ],
    )
    def test_it_says_why(self, tmp_path: Path, cache: Path, change: Change, why: str) -> None:
        source = found(changed(tmp_path / "tokenizer.json", change), cache)
        for _ in range(2):  # made the first time, then read from the cache
            counter = open_counter(source)
            assert not counter.exact
            assert why in counter.note
            assert counter.count("<a>abc abc\n") > 0

    @pytest.mark.parametrize("head", [r"[^\p{L}]+|\p{L}+", r"\p{L}+|[\r\n]+<|[^\s\p{L}]+"])
    def test_words_may_run_across_the_ends_of_files(self, tmp_path: Path, cache: Path, head: str) -> None:
        """Detected although the texts that are tried contain none of the words that the tokenizer joins."""
        described = description()
        splits_by(head + r"|\s*[\r\n]+|\s+(?!\S)|\s+")(described)
        kept = [token for token in described["model"]["vocab"] if len(token) == 1]
        described["model"]["vocab"] = {
            token: number for number, token in enumerate([*SPECIAL, *kept, "<§", "Ċ<§"])
        }
        described["model"]["merges"] = [["<", "§"], ["Ċ", "<§"]]
        source = found(write_tokenizer(tmp_path / "tokenizer.json", described), cache)
        counter = open_counter(source)
        assert not counter.exact
        assert counter.note == "it joins the end of a file and the start of the next"

    def test_the_library_and_the_oracle_differ_on_such_a_file(self, tmp_path: Path, cache: Path) -> None:
        source = found(changed(tmp_path / "tokenizer.json", never_merges), cache)
        assert open_counter(source).count("abc") == 1
        assert oracle_count(source, "abc") == 2

    def test_unusual_splits_cannot_end_the_process(self, tmp_path: Path, cache: Path) -> None:
        path = changed(tmp_path / "tokenizer.json", splits_by(r"\p{L}+|[^\s\p{L}]+|\s+(?!\S)|\s+"))
        counter = open_counter(found(path, cache))
        assert not counter.exact
        assert counter.count("<a>" + "\n" * 1_200_000 + "b\n") > 1000


class TestBrokenFiles:
    @pytest.mark.parametrize(
        ("content", "why"),
        [
            (b"", "it is empty"),
            (b" \n", "it is empty"),
            (b"\x00\xff\xfe", "not complete JSON"),
            (b"[" * 200_000, "not complete JSON"),
            (b"[]", "not a tokenizer.json"),
            (b"null", "not a tokenizer.json"),
            (b'{"model_type": "minimax"}', "not a tokenizer.json"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "not complete JSON"),
        ],
    )
    def test_it_is_something_else(self, tmp_path: Path, cache: Path, content: bytes, why: str) -> None:
        path = tmp_path / "tokenizer.json"
        path.write_bytes(content)
        with refused(why, str(path)):
            open_counter(found(path, cache))
        assert list(cache.rglob("*.kit")) == []

    def test_it_is_cut_off(self, tokenizer: Path, cache: Path) -> None:
        whole = tokenizer.read_bytes()
        for size in (1, 100, len(whole) // 2, len(whole) - 1):
            tokenizer.write_bytes(whole[:size])
            with pytest.raises(UsageError, match="not complete JSON"):
                open_counter(found(tokenizer, cache))

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            (lambda described: described["model"].update(type="WordPiece"), "its kind is WordPiece"),
            (
                lambda described: described["model"].update(type="Unigram", vocab=[["a", -1.0]]),
                "its kind is Unigram",
            ),
            (lambda described: described.update(pre_tokenizer=None), "not byte-level"),
            (lambda described: described.update(pre_tokenizer={"type": "Whitespace"}), "not byte-level"),
            (lambda described: described["model"].update(dropout=0.1), "at random"),
            (lambda described: described["model"].update(vocab={}, merges=[]), "vocabulary is empty"),
            (lambda described: described["model"]["vocab"].update(a=None), "without a number"),
            (lambda described: described["model"]["vocab"].update(a=-1), "cannot be used: "),
            (lambda described: described["model"]["merges"].append(["a", "漢"]), "merges are not pairs"),
            (lambda described: described["model"]["merges"].append("abc"), "merges are not pairs"),
            (lambda described: described["model"]["merges"].append(7), "merges are not pairs"),
            (splits_by("("), "cannot be used: "),
        ],
    )
    def test_parts_are_missing_or_of_another_kind(
        self, tmp_path: Path, cache: Path, change: Change, why: str
    ) -> None:
        path = changed(tmp_path / "tokenizer.json", change)
        with refused(why):
            open_counter(found(path, cache))

    def test_a_library_that_dies_of_a_file_does_not_take_us_along(
        self, tokenizer: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "kitoken.py").write_text("import os\nos.abort()\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        with refused("cannot read it"):
            open_counter(found(tokenizer, cache))

    def test_nothing_is_imported_from_the_working_directory(
        self, tokenizer: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("json", "kitoken", "m3agent"):
            (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
        monkeypatch.chdir(tmp_path)
        assert open_counter(found(tokenizer, cache)).exact
        assert not (tmp_path / "imported").exists()

    def test_unusable_tokenizer_paths_are_reported(self, tmp_path: Path, cache: Path) -> None:
        (tmp_path / "model").mkdir()
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
        (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
        (tmp_path / "plain.txt").write_text("x")
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "odd" / "tokenizer.json").mkdir(parents=True)
        for name, why in {
            "model": "There is no tokenizer.json in",
            "missing": "There is no tokenizer at",
            "dangling": "There is no tokenizer at",
            "loop": "Too many levels of symbolic links",
            "plain.txt/tokenizer.json": "Not a directory",
            "pipe": "is not a file",
            "odd": "directory",
            "a\0b": "cannot be read",
        }.items():
            with refused(why):
                found(f"{tmp_path}/{name}", cache)

    def test_its_cpu_time_is_limited_and_not_its_time(
        self, tokenizer: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
            assert options.get("timeout") is None
            return subprocess.CompletedProcess(command, -signal.SIGXCPU, b"", b"")

        monkeypatch.setattr(subprocess, "run", run)
        with refused("reading it took more than 120 s of CPU time"):
            open_counter(found(tokenizer, cache))

    @pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable to root")
    def test_it_may_not_be_read(self, tokenizer: Path, cache: Path) -> None:
        tokenizer.chmod(0)
        with refused("Permission denied"):
            found(tokenizer, cache)

    def test_it_changes_between_finding_and_reading(self, tokenizer: Path, cache: Path) -> None:
        source = found(tokenizer, cache)
        tokenizer.write_bytes(tokenizer.read_bytes() + b"\n")
        with pytest.raises(UsageError, match="changed"):
            open_counter(source)
        with pytest.raises(UsageError, match="changed"):
            oracle_count(source, "a")
        tokenizer.unlink()
        with pytest.raises(UsageError, match="cannot be read"):
            open_counter(source)

    def test_the_oracle_is_not_installed(
        self, tokenizer: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = found(tokenizer, cache)
        monkeypatch.setitem(sys.modules, "tokenizers", None)
        with refused("install m3agent[verify] as docs/install.md says"):
            oracle_count(source, "a")
        assert open_counter(source).count("a") == 1

    def test_the_oracle_does_not_take_it(self, tmp_path: Path, cache: Path) -> None:
        path = tmp_path / "tokenizer.json"
        path.write_text("{}")
        with pytest.raises(UsageError, match=r"cannot be used"):
            oracle_count(found(path, cache), "a")


class TestFinding:
    def test_a_file_and_its_folder_are_the_same(self, tokenizer: Path, cache: Path, tmp_path: Path) -> None:
        by_file, by_folder = found(tokenizer, cache), found(tokenizer.parent, cache)
        elsewhere = write_tokenizer(tmp_path / "other" / "renamed.json")
        assert by_file.kind == "file"
        assert by_file.id == by_folder.id == found(elsewhere, cache).id
        assert by_folder.location == str(tokenizer)
        assert by_folder.label == str(tokenizer.parent)
        elsewhere.write_text(elsewhere.read_text() + " ")
        assert found(elsewhere, cache).id != by_file.id

    def test_a_leading_tilde_is_home(self, tokenizer: Path, cache: Path) -> None:
        source = find_tokenizer("~/model", env={"HOME": str(tokenizer.parents[1])}, cache=str(cache))
        assert source is not None
        assert source.location == str(tokenizer)

    def test_a_file_is_read_once_until_it_changes(self, tokenizer: Path, cache: Path, tmp_path: Path) -> None:
        source = found(tokenizer, cache)
        memory = cache / "tokenizers" / "known"
        memory.write_text(memory.read_text().replace(source.id, "remembered"))
        assert found(tokenizer, cache).id == "remembered"
        status = tokenizer.stat()
        tokenizer.write_bytes(tokenizer.read_bytes())
        os.utime(tokenizer, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert found(tokenizer, cache).id == source.id
        other = changed(tmp_path / "new.json", has_normal_form_c)
        other.replace(tokenizer)
        assert found(tokenizer, cache).id not in (source.id, "remembered")

    @pytest.mark.parametrize("damage", [b"", b"\xff\xfe\x00", b"one\ntwo three", b" \n" * 1000])
    def test_damaged_tokenizer_record_is_harmless(self, tokenizer: Path, cache: Path, damage: bytes) -> None:
        source = found(tokenizer, cache)
        (cache / "tokenizers" / "known").write_bytes(damage)
        assert found(tokenizer, cache).id == found(tokenizer, cache).id == source.id

    def test_a_server_needs_an_address(self, cache: Path) -> None:
        with refused("--endpoint"):
            find_tokenizer("server", env={}, cache=str(cache))

    def test_finding_imports_little(self, tokenizer: Path, cache: Path) -> None:
        program = (
            "import os, sys\n"
            "before = set(sys.modules)\n"  # coverage has imported more
            "from m3agent.agent.context.tokenizer.source import find_tokenizer\n"
            "assert find_tokenizer(sys.argv[1], env={}, cache=sys.argv[2])\n"
            "print(*sorted(sys.modules.keys() - before))\n"
        )
        command = [sys.executable, "-c", program, str(tokenizer), str(cache)]
        modules = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        heavy = {
            "kitoken",
            "tokenizers",
            "json",
            "re",
            "subprocess",
            "typing",
            "dataclasses",
            "pathlib",
            "httpx2",
        }
        assert heavy.isdisjoint(modules)


class TestHub:
    @pytest.fixture
    def hub(self, tmp_path: Path) -> Iterator[Callable[..., Path]]:
        """Return a function that makes a fake download of a revision, with the file layout of huggingface_hub."""

        def download(
            revision: str, *, model: str = "MiniMaxAI/MiniMax-M3", content: str | None = None
        ) -> Path:
            folder = tmp_path / "hub" / f"models--{model.replace('/', '--')}"
            blob = folder / "blobs" / revision
            write_tokenizer(blob)
            if content is not None:
                blob.write_text(content)
            path = folder / "snapshots" / revision / "tokenizer.json"
            path.parent.mkdir(parents=True)
            path.symlink_to(f"../../blobs/{revision}")
            return path

        yield download

    def look(self, tmp_path: Path, model: str | None = None) -> TokenizerSource | None:
        return find_tokenizer(
            None, env={"HF_HUB_CACHE": f"{tmp_path}/hub"}, cache=f"{tmp_path}/cache", model=model
        )

    def test_it_is_used_when_it_is_there(self, tmp_path: Path, hub: Callable[..., Path]) -> None:
        assert self.look(tmp_path) is None
        path = hub("1" * 40)
        source = self.look(tmp_path)
        assert source is not None
        assert (source.kind, source.location) == ("hub", str(path))
        assert "MiniMaxAI/MiniMax-M3" in source.label
        assert source.id == found(path, tmp_path / "cache").id
        assert open_counter(source).exact

    def test_the_main_branch_comes_first_then_the_newest(
        self, tmp_path: Path, hub: Callable[..., Path]
    ) -> None:
        older, newer = hub("2" * 40), hub("1" * 40)
        os.utime(older.resolve(), (1000, 1000))
        os.utime(newer.resolve(), (2000, 2000))
        assert (source := self.look(tmp_path)) is not None
        assert source.location == str(newer)
        refs = older.parents[2] / "refs"
        refs.mkdir()
        (refs / "main").write_text("2" * 40)
        assert (source := self.look(tmp_path)) is not None
        assert source.location == str(older)
        older.resolve().unlink()  # as if the user had removed this download
        assert (source := self.look(tmp_path)) is not None
        assert source.location == str(newer)

    @pytest.mark.parametrize(
        ("model", "wanted"),
        [
            (None, "MiniMaxAI/MiniMax-M3"),
            ("minimax-m3", "MiniMaxAI/MiniMax-M3"),
            ("/models/MiniMax-M3-FP8", "MiniMaxAI/MiniMax-M3"),
            ("other/MiniMax-M3-GGUF", "MiniMaxAI/MiniMax-M3"),
            ("Some/Model", "Some/Model"),
            ("m3agent-embedded", None),
            ("../../etc/passwd", None),
            ("a/b\0", None),
        ],
    )
    def test_it_is_the_models_own(
        self, tmp_path: Path, hub: Callable[..., Path], model: str | None, wanted: str | None
    ) -> None:
        paths = {name: hub("1" * 40, model=name) for name in ("MiniMaxAI/MiniMax-M3", "Some/Model")}
        source = self.look(tmp_path, model)
        assert (source.location if source else None) == (str(paths[wanted]) if wanted else None)

    def test_where_the_cache_is(self, tmp_path: Path, hub: Callable[..., Path]) -> None:
        hub("1" * 40)
        home = tmp_path / "home"
        for folder in (home / ".cache/huggingface", home / "xdg/huggingface"):
            folder.mkdir(parents=True)
            (folder / "hub").symlink_to(tmp_path / "hub")
        look = functools.partial(find_tokenizer, None, cache=str(tmp_path / "cache"))
        assert look(env={"HOME": str(home)})
        assert look(env={"XDG_CACHE_HOME": str(home / "xdg")})
        assert look(env={"HF_HOME": str(home / ".cache/huggingface")})
        assert look(env={"HF_HUB_CACHE": "~/.cache/huggingface/hub", "HOME": str(home)})
        assert look(env={"HF_HUB_CACHE": str(home), "HOME": str(home)}) is None
        assert look(env={}) is None

    def test_broken_download_is_reported(self, tmp_path: Path, hub: Callable[..., Path]) -> None:
        path = hub("1" * 40, content="")
        source = self.look(tmp_path)
        assert source is not None
        with refused("empty", str(path)):
            open_counter(source)


TEXT = "<a>def f(x):\n    return x + 12345\n</a>\n"


class TestKept:
    def kit(self, cache: Path) -> Path:
        (kit,) = cache.rglob("*.kit")
        return kit

    def test_it_is_converted_once(self, tokenizer: Path, cache: Path) -> None:
        source = found(tokenizer, cache)
        wanted = open_counter(source).count(TEXT)
        before = self.kit(cache).stat()
        tokenizer.unlink()
        assert open_counter(source).count(TEXT) == wanted
        after = self.kit(cache).stat()  # reading may change the time of access
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
        assert before.st_mode & 0o077 == 0

    @pytest.mark.parametrize("where", ["first", "middle", "last", "cut", "empty", "longer", "folder"])
    def test_a_damaged_one_is_made_again(self, tokenizer: Path, cache: Path, where: str) -> None:
        source = found(tokenizer, cache)
        wanted = open_counter(source).count(TEXT)
        kit = self.kit(cache)
        whole = kit.read_bytes()
        if where == "folder":
            kit.unlink()
            kit.mkdir()
        else:
            position = {"first": 0, "middle": len(whole) // 2, "last": len(whole) - 1}.get(where, 0)
            flipped = whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :]
            kit.write_bytes({"cut": whole[:1000], "empty": b"", "longer": whole + b"x"}.get(where, flipped))
        counter = open_counter(source)
        assert (counter.count(TEXT), counter.exact) == (wanted, True)
        if where != "folder":
            assert kit.read_bytes() == whole

    def test_one_of_another_tokenizer_is_not_taken(self, tokenizer: Path, cache: Path) -> None:
        from kitoken import Kitoken

        source = found(tokenizer, cache)
        wanted = open_counter(source).count(TEXT)
        other = json.dumps(description(GPT_4, 300)).encode()
        self.kit(cache).write_bytes(Kitoken.from_tokenizers(other).to_bytes())
        assert open_counter(source).count(TEXT) == wanted

    def test_a_folder_that_cannot_be_written_costs_time_only(self, tokenizer: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        source = found(tokenizer, tmp_path / "file" / "cache")
        assert source.id == found(tokenizer, tmp_path / "good").id
        assert open_counter(source).count(TEXT) == open_counter(found(tokenizer, tmp_path / "good")).count(
            TEXT
        )

    def test_leftovers_of_a_killed_writer_are_harmless(self, tokenizer: Path, cache: Path) -> None:
        source = found(tokenizer, cache)
        wanted = open_counter(source).count(TEXT)
        kit = self.kit(cache)
        part = kit.read_bytes()[:500]
        kit.unlink()
        kit.with_name(f"{kit.name}.1.abcd~").write_bytes(part)
        assert open_counter(source).count(TEXT) == wanted
        assert len(kit.read_bytes()) > len(part)

    def test_two_processes_at_once(self, tokenizer: Path, cache: Path) -> None:
        program = (
            "import sys\n"
            "from m3agent.agent.context.tokenizer.source import find_tokenizer\n"
            "from m3agent.agent.context.tokenizer.counter import open_counter\n"
            "print(open_counter(find_tokenizer(sys.argv[1], env={}, cache=sys.argv[2])).count(sys.argv[3]))\n"
        )
        command = [sys.executable, "-c", program, str(tokenizer), str(cache), TEXT]
        running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        outputs = {process.communicate()[0] for process in running}
        assert outputs == {f"{open_counter(found(tokenizer, cache)).count(TEXT)}\n"}
        assert [path for path in cache.rglob("*") if path.name.endswith("~")] == []


def test_threads_that_come_and_go(tmp_path: Path) -> None:
    """The threads run in another process, because the fault that this test guards against ended the process."""
    path = write_tokenizer(tmp_path / "tokenizer.json")
    program = (
        "import sys, threading\n"
        "from m3agent.agent.context.tokenizer.source import find_tokenizer\n"
        "from m3agent.agent.context.tokenizer.counter import open_counter\n"
        "source = find_tokenizer(sys.argv[1], env={}, cache=sys.argv[2])\n"
        "counts = []\n"
        "def work():\n    counts.append(open_counter(source).count('<hello>'))\n"
        "for _ in range(30):\n"
        "    threads = [threading.Thread(target=work) for _ in range(2)]\n"
        "    [thread.start() for thread in threads]\n    [thread.join() for thread in threads]\n"
        "print(*counts)\n"
    )
    argv = [sys.executable, "-c", program, str(path), str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert len(done.stdout.split()) == 60 and len(set(done.stdout.split())) == 1

"""Test packing a repository into a text within a budget."""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m3agent.agent.context.checkout import Checkout
from m3agent.agent.context.pack import pack
from m3agent.agent.context.packer import MAX_NAMES, PackOptions
from m3agent.agent.context.tokenizer.counter import oracle_count
from m3agent.agent.context.tokenizer.source import TokenizerSource, find_tokenizer
from m3agent.agent.context.types import Context
from m3agent.agent.repo.repository import open_repository
from tests.agent.packed_files import pack_files
from tests.agent.repositories import NewRepo, run_git
from tests.agent.small_tokenizer import write_tokenizer

NOTE = "These files exist but are not shown here; file_read reads them:"
CHUNK = re.compile(r'<file path="([^"]*)"(?: eol="\w+")?(?: encoding="[\w-]+")?>\n((?:.*\n)*?)</file>\n')

paths = st.text(
    alphabet=st.one_of(
        st.sampled_from('ab<>"&\n]~[/'), st.characters(exclude_characters="\0", exclude_categories=["Cs"])
    ),
    min_size=1,
    max_size=12,
)
bodies = st.lists(
    st.one_of(
        st.sampled_from(
            [b"</file>\n", b'<file path="x">\n', b"<file", b"\r\n", b"\r", b"\n", b"\xff", b"<not_shown>"]
        ),
        st.sampled_from([b"]<]minimax[>[", b"<mm:think>", b"\x1b[0m", "\u202e".encode(), b"x = 1\n"]),
        st.binary(max_size=12),
    ),
    max_size=8,
).map(b"".join)
trees = st.dictionaries(paths, bodies, max_size=8)


def pack_folder(root: Path) -> Context:
    return pack(Checkout.of(open_repository(root)), PackOptions())


def within(files: Iterable[tuple[str, bytes]], budget: int | None) -> Context:
    return pack_files(files, PackOptions(budget=budget))


def same(one: Context, other: Context) -> bool:
    return (one.data, one.tokens, one.dropped, [vars(file) for file in one.files]) == (
        other.data,
        other.tokens,
        other.dropped,
        [vars(file) for file in other.files],
    )


def test_a_small_pack_byte_for_byte() -> None:
    files = [
        ("b.py", b"y = 2"),
        ("a.py", b"x = 1\r\nz = 3\r\n"),
        ("pkg/__init__.py", b""),
        ("logo.png", b"\x89PNG"),
    ]
    context = within(files, None)
    assert context.text == (
        '<file path="a.py" eol="crlf">\nx = 1\nz = 3\n</file>\n'
        '<file path="pkg/__init__.py">\n</file>\n'
        '<file path="b.py">\ny = 2\n</file>\n'
        f"<not_shown>\n{NOTE}\nlogo.png\n</not_shown>\n"
    )
    assert [(file.path, file.bytes) for file in context.files] == [
        ("a.py", 14),
        ("pkg/__init__.py", 0),
        ("b.py", 5),
    ]
    assert context.dropped == (("logo.png", "image"),)
    assert context.digest == hashlib.sha256(context.text.encode()).hexdigest()


def test_nothing_to_pack() -> None:
    context = within([], None)
    assert (context.text, context.files, context.tokens) == ("", (), 0)


@given(trees)
def test_chunks_are_whole_and_no_file_can_forge_one(tree: dict[str, bytes]) -> None:
    context = within(tree.items(), None)
    shown = context.text.split("<not_shown>\n")[0]
    matches = list(CHUNK.finditer(shown))
    assert "".join(match[0] for match in matches) == shown
    assert [match[1] for match in matches] == [file.path for file in context.files]
    assert len(context.files) + len(context.dropped) == len(tree)
    assert context.text == "" or (context.text[0], context.text[-1]) == ("<", "\n")
    readable = {
        path for path in tree if path.isascii() and path.isprintable() and not set("<[]\\") & set(path)
    }
    names = {html.unescape(name) for name in [*(file.path for file in context.files), *dict(context.dropped)]}
    assert readable <= names


@given(trees, st.randoms(use_true_random=False))
def test_the_text_depends_on_the_files_only(tree: dict[str, bytes], random: Random) -> None:
    items = list(tree.items())
    random.shuffle(items)
    assert same(within(items, None), within(tree.items(), None))


@given(trees, st.integers(0, 200))
def test_a_budget_is_kept_and_counts_add(tree: dict[str, bytes], budget: int) -> None:
    context = within(tree.items(), budget)
    assert context.tokens <= budget
    assert not context.exact and context.tokens * 3 >= len(context.text.encode())
    assert len(context.files) + len(context.dropped) == len(tree)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TokenizerSource:
    folder = tmp_path_factory.mktemp("tokenizer")
    source = find_tokenizer(str(write_tokenizer(folder / "tokenizer.json")), env={}, cache=str(folder))
    assert source is not None
    return source


@pytest.mark.integration
@settings(max_examples=40)
@given(tree=trees, budget=st.one_of(st.none(), st.integers(0, 400)))
def test_exact_counts_are_those_of_the_whole_text(
    tokenizer: TokenizerSource, tree: dict[str, bytes], budget: int | None
) -> None:
    context = pack_files(tree.items(), PackOptions(budget=budget, tokenizer=tokenizer))
    assert context.tokens == oracle_count(tokenizer, context.text)
    assert budget is None or context.tokens <= budget
    assert sum(file.tokens for file in context.files) <= context.tokens


def test_estimates_are_marked() -> None:
    assert within([("a", b"x" * 5000)], None).size == "≈1,675"


def test_over_budget_keeps_the_order_and_names_the_rest_afterwards() -> None:
    files = [(f"f{number:03}.py", b"x" * (3000 - number)) for number in range(10)]
    context = within(files, 4000)
    shown = [file.path for file in context.files]
    assert len(shown) == 3
    assert context.text.endswith(
        f"<not_shown>\n{NOTE}\n"
        + "".join(f"{path}\n" for path, _ in files if path not in shown)
        + "</not_shown>\n"
    )
    assert dict(context.dropped) == {path: "over budget" for path, _ in files if path not in shown}
    whole = within(files, None)
    assert same(within(files, whole.tokens), whole)


def test_room_is_kept_for_naming_what_does_not_fit() -> None:
    context = within([(f"{number:02}.py", b"x" * 99) for number in range(40)], 1000)
    note = context.text[context.text.index("<not_shown>") :]
    assert note.count(".py\n") >= 5 and context.tokens <= 1000


def test_a_file_larger_than_the_budget_leaves_room_for_others() -> None:
    context = within([("big.py", b"x = 1\n" * 1000), ("small.py", b"y\n")], 100)
    assert [file.path for file in context.files] == ["small.py"]
    assert "big.py" in context.text


def test_names_are_capped() -> None:
    context = within([(f"{number:04}.png", b"") for number in range(MAX_NAMES + 5)], None)
    assert context.text.count(".png\n") == MAX_NAMES and "(and 5 more)\n" in context.text
    tight = within([(f"{number:04}.png", b"") for number in range(50)], 60)
    assert 0 < tight.text.count(".png\n") < 50 and tight.tokens <= 60


def test_credentials_are_neither_shown_nor_named() -> None:
    context = within([(".env", b"TOKEN=hush"), ("a.py", b"x = 1\n")], None)
    assert context.text == '<file path="a.py">\nx = 1\n</file>\n'
    assert context.dropped == ((".env", "credentials"),)


def test_two_clones_give_identical_bytes(new_repo: NewRepo, tmp_path: Path) -> None:
    root = new_repo(files={f"d{n % 3}/f{n}.py": b"x = 1\n" * (n % 5) for n in range(30)})
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    run_git(tmp_path, "clone", "--quiet", str(root), "elsewhere/deep/other name")
    run_git(tmp_path, "clone", "--quiet", "--bare", str(root), "bare.git")
    run_git(tmp_path, "clone", "--quiet", "--depth=1", root.as_uri(), "shallow")
    first = pack_folder(root)
    assert len(first.files) == 30
    for name in ("elsewhere/deep/other name", "bare.git", "shallow"):
        assert same(pack_folder(tmp_path / name), first)


def test_the_text_names_neither_folder_nor_commit(new_repo: NewRepo) -> None:
    root = new_repo("telltale")
    context = pack_folder(root)
    run_git(root, "commit", "--quiet", "--allow-empty", "--message=second")
    assert same(pack_folder(root), context)
    assert "telltale" not in context.text


def test_names_that_are_not_utf_8(new_repo: NewRepo) -> None:
    context = pack_folder(new_repo(files={b"caf\xe9.py": b"x = 1\n"}))
    assert context.text == '<file path="caf\\xe9.py">\nx = 1\n</file>\n'

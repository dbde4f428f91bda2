"""Test the terms of files and issues: words, definitions, imports, kinds, mentions, and the store that keeps them."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.agent.context.selection import store as store_module
from m3agent.agent.context.selection.imports import ImportMap
from m3agent.agent.context.selection.kinds import FileKind, kind_of
from m3agent.agent.context.selection.query import mentioned, read_issue
from m3agent.agent.context.selection.store import FILE_NAME, Content, TermStore
from m3agent.agent.context.selection.terms import Terms, analyse, code, defined, imports, parts, words

ROOT = Path(__file__).parents[3]
PROLOGUE = """
import sys
from pathlib import Path
from m3agent.agent.context.selection.store import TermStore
from tests.agent.context.test_context_terms import known, some_files
folder = Path(sys.argv[1])
"""
texts = st.text(st.one_of(st.characters(), st.sampled_from("aB_ \n\"'(){}.:/#=")), max_size=300)


class File(Content):
    """A file that counts how often it was read."""

    body: str
    reads: int

    def __init__(self, path: str, body: str) -> None:
        super().__init__(path, path.encode().ljust(16, b"\0")[:16], self._read)
        vars(self).update(body=body, reads=0)

    def _read(self) -> str:
        vars(self)["reads"] += 1
        return self.body


def some_files(number: int) -> list[File]:
    return [
        File(f"f{index}.py", f"def name_{index}(): return other_{index % 7}\n") for index in range(number)
    ]


def known(store: TermStore, files: list[File]) -> list[Terms]:
    found = list(store.terms(files))
    assert [position for position, _ in found] == list(range(len(files)))
    return [terms for _, terms in found]


class TestWords:
    @pytest.mark.parametrize(
        ("word", "terms"),
        [
            ("HTTPServerError", ["httpservererror", "http", "server", "error"]),
            ("load_objects", ["load_objects", "load", "object"]),
            ("loadObject2", ["loadobject2", "load", "object"]),
            ("__init__", ["init"]),
            ("utf8", ["utf8", "utf"]),
            ("größe", ["grösse"]),
            ("Größe_Über", ["grösse_über", "grösse", "über"]),
            ("日本語", ["日本", "本語"]),
            ("__", []),
        ],
    )
    def test_are_divided_by_case_underscores_and_scripts(self, word: str, terms: list[str]) -> None:
        assert parts(word) == terms

    @pytest.mark.parametrize(
        "forms",
        [
            ("cache", "caches", "cached", "caching"),
            ("run", "running"),
            ("class", "classes"),
            ("call", "calls", "called", "calling"),
            ("miss", "missing", "missed"),
            ("process", "processes", "processed"),
        ],
    )
    def test_of_one_stem_are_one_term(self, forms: tuple[str, ...]) -> None:
        assert len({tuple(parts(form)) for form in forms}) == 1

    def test_are_counted_without_numbers_and_single_letters(self) -> None:
        assert words("a1 2b ab x__y «größe» ab") == {"a1": 1, "ab": 2, "x__y": 1, "größe": 1}

    def test_of_absurd_length_are_left_out(self) -> None:
        assert words("x" * 10_000 + " short") == {"short": 1}

    @pytest.mark.integration
    def test_codes_are_the_same_in_every_process(self) -> None:
        program = "from m3agent.agent.context.selection.terms import code; print(code('größe'))"
        environment = os.environ | {"PYTHONHASHSEED": "7"}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, check=True
        )
        assert int(done.stdout) == code("größe")


class TestAnalysis:
    @given(texts)
    def test_takes_any_text_and_survives_being_packed(self, text: str) -> None:
        terms = analyse(text)
        assert Terms.unpack(terms.pack()) == terms
        assert sum(terms.counts) <= terms.length
        assert len(terms.terms) == len(terms.counts) == len(set(terms.terms))

    @given(st.binary(max_size=60))
    def test_damaged_bytes_are_refused_with_a_value_error(self, data: bytes) -> None:
        with contextlib.suppress(ValueError):
            Terms.unpack(data)

    def test_counts_more_than_fit_a_byte_are_capped(self) -> None:
        terms = analyse("word " * 1000)
        assert (terms.length, list(terms.counts)) == (1000, [255])

    def test_a_byte_order_mark_and_line_ends_change_nothing(self) -> None:
        assert analyse("def foo():\n    pass\n").defined == analyse("\n\ndef foo():\n\tpass").defined

    def test_finds_what_many_languages_define(self) -> None:
        text = """
class Foo(Bar):
    async def method(self): ...
MAX_SIZE: int = 3
func (r *Receiver) Go(a int) error {
pub(crate) async fn rust<T>() {
static int c_function(struct x *a, int b)
{
public static <T> List<T> java(T... a) throws X {
export default class Script {}
export const arrow = () => 1
def self.ruby
void Foo::cpp(int a) const {
macro_rules! macro {
typedef struct list {
  if (not_defined) {
  else if (neither) {
  return nor(this) {
"""
        assert defined(text) == (
            [
                "Foo",
                "method",
                "MAX_SIZE",
                "Go",
                "rust",
                "c_function",
                "java",
                "Script",
                "arrow",
                "ruby",
                "cpp",
                "macro",
                "list",
            ]
        )

    @pytest.mark.parametrize(
        ("line", "meant"),
        [
            ("from . import a, b  # c", ["./:a,b"]),
            ("from ..x.y import (c,  # why\n    d as e,\n)", ["../x/y:c,d"]),
            ("from q import *", ["q"]),
            ("import os.path, sys", ["os/path"]),
            ('#include "foo/bar.h"', ["~foo/bar"]),
            ("import { a } from './x/y'", ["./x/y"]),
            ('} from "../z.js"', ["../z"]),
            ("const q = require('lodash')", ["~lodash"]),
            ('\t"github.com/x/y/pkg"', ["github.com/x/y/pkg"]),
            ("import static org.mockito.Mockito.*;", ["org/mockito/Mockito"]),
            ("using System.Text;", ["System/Text"]),
            ("use crate::sync::{Mutex, mpsc::channel};", ["sync:Mutex,mpsc/channel"]),
            ("use super::foo;", ["./foo"]),
            ("pub mod task;", ["./task"]),
            ("use App\\Models\\User;", ["App/Models/User"]),
            ('require_relative "lib/x"', ["./lib/x"]),
            ("import qualified Data.Map as M", ["Data/Map"]),
            ("the import of this is in the text", []),
        ],
    )
    def test_finds_what_many_languages_import(self, line: str, meant: list[str]) -> None:
        assert imports(f"{line}\n") == meant


class TestImportMap:
    def targets(self, paths: list[str], importer: str, text: str) -> dict[str, float]:
        found = ImportMap(paths).targets(paths.index(importer), imports(text))
        return {paths[index]: part for index, part in found.items()}

    @pytest.mark.parametrize(
        ("importer", "text", "target"),
        [
            ("pkg/a.py", "from pkg.sub.b import name", "pkg/sub/b.py"),
            ("pkg/a.py", "from .sub import b", "pkg/sub/b.py"),
            ("pkg/a.py", "from .sub import something", "pkg/sub/__init__.py"),
            ("pkg/sub/b.py", "from .. import a", "pkg/a.py"),
            ("pkg/a.py", "import other.c", "src/other/c.py"),
            ("web/main.ts", "import x from './parts'", "web/parts/index.ts"),
            ("web/parts/index.ts", "export * from '../main'", "web/main.ts"),
            ("c/main.c", '#include "list.h"', "c/list.h"),
            ("go/cmd/main.go", 'import "example.com/me/go/store"', "go/store/disk.go"),
            ("J/src/main/java/a/b/C.java", "import a.b.D;", "J/src/main/java/a/b/D.java"),
            ("rs/src/lib.rs", "mod task;", "rs/src/task/mod.rs"),
            ("rs/src/task/mod.rs", "use crate::task::join;", "rs/src/task/join.rs"),
        ],
    )
    def test_finds_the_file(self, importer: str, text: str, target: str) -> None:
        paths = [
            "pkg/__init__.py",
            "pkg/a.py",
            "pkg/sub/__init__.py",
            "pkg/sub/b.py",
            "src/other/c.py",
            "web/main.ts",
            "web/parts/index.ts",
            "c/main.c",
            "c/list.h",
            "go/cmd/main.go",
            "go/store/disk.go",
            "J/src/main/java/a/b/C.java",
            "J/src/main/java/a/b/D.java",
            "rs/src/lib.rs",
            "rs/src/task/mod.rs",
            "rs/src/task/join.rs",
        ]
        assert self.targets(paths, importer, f"{text}\n") == {target: 1.0}

    def test_library_is_not_mistaken_for_a_file_of_the_same_name(self) -> None:
        paths = ["pkg/logging.py", "pkg/app.py", "pkg/core/re.py"]
        assert not self.targets(
            paths, "pkg/app.py", "import logging\nimport re\nfrom logging import getLogger\n"
        )

    def test_of_several_the_nearest_is_meant(self) -> None:
        paths = ["one/x/util/io.py", "one/x/main.py", "two/x/util/io.py", "two/x/main.py"]
        assert self.targets(paths, "two/x/main.py", "import util.io\n") == {"two/x/util/io.py": 1.0}

    def test_a_header_and_its_source_share_a_mention(self) -> None:
        paths = ["a/main.c", "a/list.c", "a/list.h"]
        assert self.targets(paths, "a/main.c", '#include "list.h"\n') == {"a/list.c": 0.5, "a/list.h": 0.5}

    @given(st.lists(st.text("ab/._", min_size=1, max_size=8), min_size=1, max_size=6, unique=True), texts)
    def test_takes_any_path_and_any_text(self, paths: list[str], text: str) -> None:
        found = ImportMap(paths).targets(0, imports(text))
        assert all(0 < index < len(paths) and 0 < part <= 1 for index, part in found.items())


class TestKinds:
    @pytest.mark.parametrize(
        ("kind", "paths"),
        [
            (
                FileKind.SOURCE,
                (
                    "a.py src/_pytest/main.py lib/x.rb django/contrib/admin/sites.py cmd/x/main.go src/lib.rs App.vue "
                    "core/src/main/java/org/x/Latest.java pkg/testing/tools.py contest.py src/attest.c x/specification.py"
                ),
            ),
            (
                FileKind.TEST,
                (
                    "tests/a.py a/tests/b.py src/test/java/A.java x_test.go a/test_b.py conftest.py FooTest.java FooTests.cs "
                    "TestFoo.java a.spec.ts b.test.js __tests__/x.ts spec/a_spec.rb testing/run.py crate/tests-integration/x.rs "
                    "BarIT.java"
                ),
            ),
            (
                FileKind.EXAMPLE,
                "examples/a.py benches/b.rs docs/examples/x.py scripts/release.sh pkg/benchmarks/x.go",
            ),
            (
                FileKind.DOC,
                "README.md docs/a.rst docs/conf.py a/b/notes.txt CHANGELOG.md doc/tools/gen.py website/src/a.js",
            ),
            (
                FileKind.CONFIG,
                (
                    "setup.py pyproject.toml .github/workflows/ci.yml .eslintrc.js data.json Makefile CMakeLists.txt x.csv "
                    "vite.config.ts build.gradle LICENSE Dockerfile"
                ),
            ),
        ],
    )
    def test_kind_follows_from_the_words_of_a_path(self, kind: FileKind, paths: str) -> None:
        assert {path: kind_of(path) for path in paths.split()} == dict.fromkeys(paths.split(), kind)

    @given(st.text(min_size=1, max_size=30))
    def test_of_any_path_there_is_one(self, path: str) -> None:
        assert kind_of(path) in FileKind


class TestMentions:
    PATHS = (
        "shop/core/engine.py",
        "shop/cart/engine.py",
        "shop/core/__init__.py",
        "src/sync/queue/mod.rs",
        "a/README.md",
    )

    @pytest.mark.parametrize(
        ("issue", "expected"),
        [
            ('  File "/usr/lib/python3/site-packages/shop/core/engine.py", line 3, in run', [1, 0, 0, 0, 0]),
            ("shop.core.engine.Engine.run() never ends", [1, 0, 0, 0, 0]),
            ("C:\\work\\shop\\cart\\engine.py:12: error", [0, 1, 0, 0, 0]),
            ("see engine.py", [0.5, 0.5, 0, 0, 0]),
            ("https://example.invalid/x/blob/main/shop/core/engine.py#L3 says so", [1, 0, 0, 0, 0]),
            ("panic in sync::queue::Queue", [0, 0, 0, 1, 0]),
            ("the engine, e.g. in core; see 3.11", [0, 0, 0, 0, 0]),
            ("(a/README.md).", [0, 0, 0, 0, 1]),
            ("", [0, 0, 0, 0, 0]),
        ],
    )
    def test_of_files_and_modules_are_found(self, issue: str, expected: list[float]) -> None:
        assert mentioned(self.PATHS, read_issue(issue)) == expected

    @given(texts)
    def test_any_issue_can_be_read(self, issue: str) -> None:
        assert all(0 <= value <= 1 for value in mentioned(self.PATHS, read_issue(issue)))


class TestStore:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path / "deep" / "cache"

    def test_reads_a_text_once_over_many_runs(self, folder: Path) -> None:
        files = some_files(600)
        with TermStore(folder) as store:
            first = known(store, files)
        assert first[3] == analyse(files[3].body)
        with TermStore(folder) as store:
            assert known(store, files) == first
        assert {file.reads for file in files} == {1}
        assert folder.stat().st_mode & 0o777 == 0o700

    def test_tells_how_far_it_is(self, folder: Path) -> None:
        told: list[tuple[int, int]] = []
        with TermStore(folder) as store:
            list(store.terms(some_files(300), lambda done, of: told.append((done, of))))
        assert told == [(256, 300), (300, 300)]

    def test_another_variant_is_another_text(self, folder: Path) -> None:
        files = some_files(1)
        for variant in ("one", "two", "one"):
            with TermStore(folder, variant=variant) as store:
                known(store, files)
        assert files[0].reads == 2

    @pytest.mark.parametrize("damage", ["noise", "cut", "middle", "empty", "text"])
    def test_damaged_file_is_rebuilt(self, folder: Path, damage: str) -> None:
        files = some_files(600)
        with TermStore(folder) as store:
            first = known(store, files)
        file = folder / FILE_NAME
        data = file.read_bytes()
        half = len(data) // 2
        file.write_bytes(
            {
                "noise": os.urandom(5000),
                "cut": data[:half],
                "middle": data[:4096] + b"\xa5" * (len(data) - 8192) + data[-4096:],
                "empty": b"",
                "text": b"not a database\n" * 1000,
            }[damage]
        )
        for _ in range(2):
            with TermStore(folder) as store:
                assert known(store, files) == first
        reads = sum(file.reads for file in files)
        with TermStore(folder) as store:
            assert known(store, files) == first
        assert sum(file.reads for file in files) == reads

    def test_damaged_row_is_recomputed(self, folder: Path) -> None:
        files = some_files(3)
        with TermStore(folder) as store:
            first = known(store, files)
        with contextlib.closing(sqlite3.connect(folder / FILE_NAME)) as database, database:
            database.execute("UPDATE content SET value = x'ff00' WHERE key = ?", (files[1].key,))
            database.execute("UPDATE content SET value = 7 WHERE key = ?", (files[2].key,))
        for _ in range(2):
            with TermStore(folder) as store:
                assert known(store, files) == first
        assert [file.reads for file in files] == [1, 2, 2]

    def test_works_where_nothing_can_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        files = some_files(300)
        with TermStore(tmp_path / "file" / "cache") as store:
            assert known(store, files) == known(store, files)
        assert {file.reads for file in files} == {1}

    def test_works_where_the_file_is_a_folder(self, folder: Path) -> None:
        (folder / FILE_NAME).mkdir(parents=True)
        with TermStore(folder) as store:
            assert len(known(store, some_files(3))) == 3

    def test_does_not_wait_for_ever_for_another_process(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store_module, "_BUSY_SECONDS", 0.05)
        files = some_files(1000)
        with TermStore(folder) as store:
            with contextlib.closing(sqlite3.connect(folder / FILE_NAME, isolation_level=None)) as other:
                other.execute("BEGIN EXCLUSIVE")
                assert known(store, files) == [analyse(file.body) for file in files]
                other.execute("ROLLBACK")
            assert len(known(store, files)) == 1000

    @pytest.mark.integration
    def test_two_processes_share_one_file(self, folder: Path) -> None:
        program = f"{PROLOGUE}with TermStore(folder) as store: print(len(known(store, some_files(1500))))"
        command = [sys.executable, "-c", program, str(folder)]
        running = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) for _ in range(2)]
        assert [process.communicate()[0].strip() for process in running] == [b"1500", b"1500"]
        files = some_files(1500)
        with TermStore(folder) as store:
            known(store, files)
        assert not any(file.reads for file in files)

    @pytest.mark.integration
    def test_survives_being_killed_while_writing(self, folder: Path) -> None:
        program = (
            f"{PROLOGUE}store = TermStore(folder)\n"
            "for index, _ in store.terms(some_files(100_000)): index % 256 or print(index, flush=True)"
        )
        command = [sys.executable, "-c", program, str(folder)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
            assert process.stdout
            for _ in range(8):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
        files = some_files(2000)
        with TermStore(folder) as store:
            assert known(store, files) == [analyse(file.body) for file in files]
        assert sum(file.reads for file in files) <= 1000

    def test_stays_within_its_limit(self, folder: Path) -> None:
        limit = 400_000
        files = [File(f"{index}.py", " ".join(f"w{index}x{n}" for n in range(60))) for index in range(3000)]
        for part in (files[:1500], files[1500:]):
            with TermStore(folder, limit) as store:
                known(store, part)
        assert (folder / FILE_NAME).stat().st_size < 1.5 * limit
        latest = [File(file.path, file.body) for file in files[-100:]]
        with TermStore(folder, limit) as store:
            known(store, latest)
        assert not any(file.reads for file in latest)

    def test_writes_more_at_once_the_more_it_has_written(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        statements, connect = list[str](), store_module._connect

        def traced(name: str) -> sqlite3.Connection:
            database = connect(name)
            database.set_trace_callback(statements.append)
            return database

        monkeypatch.setattr(store_module, "_connect", traced)
        monkeypatch.setattr(store_module, "_BATCH", 4)
        with TermStore(folder) as store:
            known(store, some_files(600))
        assert 30 < sum(statement.startswith("BEGIN") for statement in statements) < 60

    def test_forgets_what_was_not_used_for_longest(self, folder: Path) -> None:
        files = some_files(600)
        old, used, new = files[:400], files[400:500], files[500:]
        with TermStore(folder) as store:
            known(store, [*used, *old])
        with contextlib.closing(sqlite3.connect(folder / FILE_NAME)) as database, database:
            database.execute("UPDATE content SET day = day - 10")
        with TermStore(folder) as store:
            known(store, used)
        with TermStore(folder, (folder / FILE_NAME).stat().st_size) as store:
            known(store, new)
        again = some_files(600)
        with TermStore(folder) as store:
            known(store, again)
        assert sum(file.reads for file in again[:400]) > 50
        assert not any(file.reads for file in again[400:])

    def test_keeps_outlines_too(self, folder: Path) -> None:
        pytest.importorskip("tree_sitter_language_pack")
        files = [File("a.py", "def f(x):\n    return x\n"), File("b.unknown", "?")]
        for _ in range(2):
            with TermStore(folder) as store:
                assert [store.outline(file) for file in files] == ["1\tdef f(x)", None]
        assert [file.reads for file in files] == [1, 1]

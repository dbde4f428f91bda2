"""Test outlines of source files, and the languages of files."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m3agent.agent.context import languages
from m3agent.agent.context.languages import grammar, is_code, is_prose, word_set
from m3agent.agent.context.selection.outline import outline
from tests.conftest import later

needs_pack = pytest.mark.skipif(
    importlib.util.find_spec("tree_sitter_language_pack") is None, reason="needs the extra `outlines`"
)
PIECES = [
    *word_set("def class f ( ) { } [ ] : ; = < > struct fn impl function export => :: , x \" ' # /*"),
    "\n",
    "\t",
]
PIECES.sort()

SAMPLES = {
    "a.py": (
        """
        import os
        LIMIT: int = 3
        @register
        class Cart(Base,
                   Other):
            size = 1
            @property
            def total(self, tax: float = 0.2,
                      *rest) -> float:
                def inner(): ...
                return 1.0
            class Item:
                async def price(self): ...
        if LIMIT:
            def helper(): pass
        """,
        """
        3	LIMIT: int = 3
        5	@register class Cart(Base, Other)
        9	  @property def total(self, tax: float = 0.2, *rest) -> float
        13	  class Item
        14	    async def price(self)
        16	def helper()
        """,
    ),
    "a.js": (
        """
        import x from 'y'
        export default class Cart extends Base {
          total(tax) { return 1 }
        }
        export const price = (item) => {
          return 1
        }
        function* items() {}
        exports.old = function (x) { return x }
        """,
        """
        3	export default class Cart extends Base
        4	  total(tax)
        6	export const price = (item) =>
        9	function* items()
        10	exports.old = function (x)
        """,
    ),
    "a.ts": (
        """
        export interface Item {
          price: number
          total(tax: number): number
        }
        export type Id = string | number
        abstract class Cart<T> implements Item {
          constructor(private x: T) { super() }
          get size(): number { return 1 }
        }
        namespace N { export const q = 1 }
        """,
        """
        2	export interface Item
        4	  total(tax: number): number
        6	export type Id = string | number
        7	abstract class Cart<T> implements Item
        8	  constructor(private x: T)
        9	  get size(): number
        11	export const q = 1
        """,
    ),
    "a.rs": (
        """
        use a::b;
        pub struct Cart { items: u32 }
        impl<T> Total for Cart<T> {
            fn new(x: u32) -> Self { Cart { items: x } }
        }
        pub trait Total { fn total(&self) -> u8; }
        mod inner { pub const LIMIT: u8 = 1; }
        pub async fn run<T: Total>(x: T) -> T where T: Clone { x }
        """,
        """
        3	pub struct Cart
        4	impl<T> Total for Cart<T>
        5	  fn new(x: u32) -> Self
        7	pub trait Total
        7	  fn total(&self) -> u8;
        8	mod inner
        8	  pub const LIMIT: u8 = 1;
        9	pub async fn run<T: Total>(x: T) -> T where T: Clone
        """,
    ),
    "a.go": (
        """
        package shop
        const (
        	Small = 1
        )
        type Cart struct {
        	items int
        }
        func (c *Cart) Total(tax int) (int, error) {
        	return 1, nil
        }
        """,
        """
        4	Small = 1
        6	type Cart struct
        9	func (c *Cart) Total(tax int) (int, error)
        """,
    ),
    "A.java": (
        """
        package shop;
        public class Cart<T> extends Base {
          private int x = 1;
          public Cart(int x) { this.x = x; }
          @Override
          public List<T> items(int a) throws E {
            return null;
          }
          interface In { void m(); }
        }
        record Item(int price) {}
        """,
        """
        2	package shop;
        3	public class Cart<T> extends Base
        5	  public Cart(int x)
        6	  @Override public List<T> items(int a) throws E
        10	  interface In
        10	    void m();
        12	record Item(int price)
        """,
    ),
    "a.c": (
        """
        #include <x.h>
        #define MAX(a, b) ((a) > (b))
        struct cart { int items; };
        typedef struct { int b; } item_t;
        static int total(struct cart *c,
                         int tax)
        { return 1; }
        int prototype(struct cart *first,
                      int second);
        """,
        """
        3	#define MAX(a, b) ((a) > (b))
        4	struct cart
        5	typedef struct { int b; } item_t;
        6	static int total(struct cart *c, int tax)
        9	int prototype(struct cart *first, int second);
        """,
    ),
    "a.cpp": (
        """
        namespace shop {
        template <typename T>
        class Cart : public Base {
        public:
          explicit Cart(int x);
          virtual int total() const { return 1; }
          int size;
        };
        int Cart<T>::price() { return 1; }
        }
        """,
        """
        2	namespace shop
        4	  template <typename T> class Cart : public Base
        6	    explicit Cart(int x);
        7	    virtual int total() const
        10	  int Cart<T>::price()
        """,
    ),
    "a.cs": (
        """
        namespace Shop {
          public class Cart : Base {
            public int Size { get; set; }
            public async Task<int> Total(int tax) { return 1; }
          }
        }
        """,
        """
        2	namespace Shop
        3	  public class Cart : Base
        5	    public async Task<int> Total(int tax)
        """,
    ),
    "a.rb": (
        """
        module Shop
          class Cart < Base
            attr_reader :x
            def total(tax)
              1
            end
            def self.open
              2
            end
          end
        end
        """,
        """
        2	module Shop
        3	  class Cart < Base
        5	    def total(tax)
        8	    def self.open
        """,
    ),
    "a.php": (
        """
        <?php
        namespace Shop;
        abstract class Cart extends Base {
          public function total(int $tax): int { return 1; }
        }
        function top() {}
        """,
        """
        3	namespace Shop;
        4	abstract class Cart extends Base
        5	  public function total(int $tax): int
        7	function top()
        """,
    ),
    "a.kt": (
        """
        class Cart(val x: Int) : Base() {
          fun total(tax: Int): Int { return 1 }
        }
        object Shop { fun open() {} }
        """,
        """
        2	class Cart(val x: Int) : Base()
        3	  fun total(tax: Int): Int
        5	object Shop
        5	  fun open()
        """,
    ),
    "a.swift": (
        """
        class Cart: Base {
          init(x: Int) { }
          func total(tax: Int) -> Int { return 1 }
        }
        extension Cart: Priced { func price() {} }
        """,
        """
        2	class Cart: Base
        3	  init(x: Int)
        4	  func total(tax: Int) -> Int
        6	extension Cart: Priced
        6	  func price()
        """,
    ),
    "a.scala": (
        """
        class Cart(x: Int) extends Base {
          def total(tax: Int): Int = { 1 }
        }
        object Shop { def open = 1 }
        """,
        """
        2	class Cart(x: Int) extends Base
        3	  def total(tax: Int): Int
        5	object Shop
        5	  def open
        """,
    ),
    "a.ex": (
        """
        defmodule Shop.Cart do
          def total(cart, tax) do
            1
          end
        end
        """,
        """
        2	defmodule Shop.Cart
        3	  def total(cart, tax)
        """,
    ),
    "a.hs": (
        """
        total :: Int -> Int
        total 0 = 1
        total x = x
        data Cart = Full | Empty
        """,
        """
        2	total :: Int -> Int
        5	data Cart = Full | Empty
        """,
    ),
    "a.lua": ("\nfunction Cart.total(tax) return 1 end\n", "\n2	function Cart.total(tax)\n"),
    "a.sh": ("\ntotal() {\n  echo\n}\n", "\n2	total()\n"),
    "a.clj": ("\n(defn total [cart tax]\n  (+ cart tax))\n", "\n2	(defn total [cart tax]\n"),
    "a.ml": ("\nmodule M = struct let total x = 1 end\n", "\n2	module M\n2	  let total x\n"),
    "a.jl": ("\nfunction total(x)\n  1\nend\n", "\n2	function total(x)\n"),
    "a.r": ("\ntotal <- function(x, y) {\n  x\n}\n", "\n2	total <- function(x, y)\n"),
    "a.proto": (
        "\nservice S { rpc Total (M) returns (N); }\n",
        "\n2	service S\n2	  rpc Total (M) returns (N);\n",
    ),
    "a.sql": ("\nCREATE TABLE cart (a int);\n", "\n2	CREATE TABLE cart (a int)\n"),
    "a.tf": ('\nresource "x" "y" {\n  a = 1\n}\n', '\n2	resource "x" "y"\n'),
    "a.vue": (
        "<template>\n<p/>\n</template>\n<script setup lang='ts'>\nfunction total(x: number) { return 1 }\n</script>\n",
        "\n5	function total(x: number)\n",
    ),
    "a.md": ("# Shop\n\ntext\n\n## Cart\n", "\n1	# Shop\n5	## Cart\n"),
}


@needs_pack
class TestOutline:
    @pytest.mark.parametrize("path", SAMPLES)
    def test_shows_signatures_nested_and_with_their_lines(self, path: str) -> None:
        text, expected = (textwrap.dedent(each) for each in SAMPLES[path])
        assert outline(path, text) == expected.strip("\n")

    def test_speaks_every_language_of_its_table(self) -> None:
        pack = importlib.import_module("tree_sitter_language_pack")
        lines = [line for table in (languages.CODE, languages.TEXT) for line in table.strip().split("\n")]
        names = {line.partition(":")[0] for line in lines} - {""}
        assert len(names) > 100
        for name in names:
            pack.get_parser(name)

    @pytest.mark.parametrize(
        ("path", "text"),
        [
            ("a.unknown", "def f(): pass"),
            ("noname", "def f(): pass"),
            ("a.py", ""),
            ("a.py", "x"),
            ("a.py", "# nothing here\n"),
            ("a.json", '{"a": 1}'),
            ("a.html", "<html></html>"),
        ],
    )
    def test_no_outline_for_unknown_files(self, path: str, text: str) -> None:
        assert outline(path, text) is None

    def test_outline_continues_after_a_syntax_error(self) -> None:
        text = "def first(): pass\n<<<<<<< HEAD\ndef second(: pass\n=======\n@@@ ???\n\ndef third(): pass\n"
        found = outline("a.py", text)
        assert found
        assert "1\tdef first()" in found
        assert "7\tdef third()" in found

    @settings(max_examples=60)
    @given(
        st.sampled_from(
            ["a.py", "a.js", "a.c", "a.cpp", "a.rs", "a.go", "a.rb", "a.hs", "a.ex", "a.md", "a.php"]
        ),
        st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=60).map(" ".join),
    )
    def test_takes_any_text_and_stays_on_its_lines(self, path: str, text: str) -> None:
        found = outline(path, text)
        lines = text.encode("utf-8", "replace").count(b"\n") + 1
        for line in found.split("\n") if found else []:
            number, signature = line.split("\t", 1)
            assert 1 <= int(number) <= lines
            assert signature.strip()
            assert len(signature) <= 250

    @pytest.mark.parametrize(
        "unit",
        [
            "(",
            later("["),
            later("{"),
            "class A { ",
            later("def f("),
            "x = ",
            later("/* "),
            later("!a "),
            "a<",
            later("*"),
            '"',
            "`",
        ],
    )
    @pytest.mark.parametrize("suffix", ["py", "js", later("c"), "cpp", "rs"])
    def test_gives_up_on_text_that_nests_too_deep_or_takes_too_long(self, suffix: str, unit: str) -> None:
        text = unit * (100_000 // len(unit))
        found = outline(f"a.{suffix}", text)
        assert found is None or len(found) < 300_000

    def test_gives_up_on_what_makes_the_parser_look_back_again_and_again(self) -> None:
        assert outline("a.js", "/* " * 50_000) is None

    @pytest.mark.parametrize(
        "text", ["<script>" * 90_000, "<script" * 90_000, "İ<script>function f() {}</script>"]
    )
    def test_pages_whose_scripts_do_not_end_have_none(self, text: str) -> None:
        assert outline("a.html", text) is None

    def test_a_very_long_text_has_none(self) -> None:
        assert outline("a.py", "def f(): pass\n" * 60_000) is None

    def test_a_text_of_very_many_names_is_cut(self) -> None:
        found = outline("a.py", "def f(): pass\n" * 3000)
        assert found
        assert found.count("\n") + 1 == 1000

    def test_threads_do_not_share_a_parser(self) -> None:
        text = "".join(f"class C{n}:\n    def m{n}(self): pass\n" for n in range(300))
        expected = outline("a.py", text)
        found: list[str | None] = []
        threads = [threading.Thread(target=lambda: found.append(outline("a.py", text))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [expected] * 8


@pytest.mark.integration
def test_without_the_library_there_are_no_outlines(tmp_path: Path) -> None:
    (tmp_path / "tree_sitter_language_pack.py").write_text("raise ImportError('not here')\n")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from m3agent.agent.context.selection.outline import outline\n"
        "print(outline('a.py', 'def f(): pass'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"None\n"


@pytest.mark.integration
def test_outlines_appear_after_the_library_is_installed(tmp_path: Path) -> None:
    (tmp_path / "tree_sitter_language_pack.py").write_text("raise ImportError('not here')\n")
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from types import SimpleNamespace\n"
        "from m3agent.agent.context.selection.store import TermStore\n"
        "asked = SimpleNamespace(key=b'k', path='a.py', text=lambda: 'def f(): pass')\n"
        "with TermStore(Path(sys.argv[1])) as store: print(store.outline(asked))\n"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for path in (str(tmp_path), "")
    ]
    assert said == ["None\n", "1\tdef f()\n"]


class TestLanguages:
    @pytest.mark.parametrize(
        ("path", "language"),
        [
            ("a/b.py", "python"),
            ("B.PY", "python"),
            ("x.d.ts", "typescript"),
            ("Makefile", "make"),
            ("docs/README.md", "markdown"),
            ("a.v", "verilog"),
            (".py", None),
            ("py", None),
            ("a.py/b", None),
        ],
    )
    def test_language_follows_from_suffix_or_name(self, path: str, language: str | None) -> None:
        assert grammar(path) == language

    def test_code_and_prose_differ(self) -> None:
        assert is_code("a.rs")
        assert not is_code("a.md")
        assert is_prose("a.md")
        assert not is_prose("a.rs")

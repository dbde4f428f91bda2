"""ExUnit in real sandboxes: each kind of test, and code that forges results."""

from __future__ import annotations

import pytest

from m3agent.tools.runners.base import Limits
from m3agent.tools.runners.elixir import Exunit
from tests.ecosystems.records import outcomes
from tests.ecosystems.table import MakeSandbox, believed, needs, run, run_each, successes

pytestmark = [pytest.mark.languages, pytest.mark.timeout(600), needs("elixir", "mix")]

MEMORY = 3 << 30  # Erlang reserves more address space than smaller sandboxes have
MIX = """\
defmodule Shop.MixProject do
  use Mix.Project
  def project, do: [app: :shop, version: "1.0.0"]
end
"""
CART = "defmodule Cart do\n  def add(a, b), do: a + b\nend\n"
WRONG = CART.replace("a + b", "a - b")
KINDS = """\
defmodule CartTest do
  use ExUnit.Case
  test "passes", do: assert Cart.add(1, 2) == 3
  test "fails", do: assert Cart.add(1, 2) == 4
  test "raises", do: raise "no device"
  @tag :skip
  test "skips", do: flunk("no")
  @tag timeout: 500
  test "hangs", do: Process.sleep(:infinity)
  test "is not written"
  for n <- [1, 2, "a b"] do
    @n n
    test "takes #{n}", do: assert @n != 2
  end
  describe "a cart" do
    setup do
      raise "no database"
    end
    test "passes", do: assert true
  end
end
defmodule SetUpTest do
  use ExUnit.Case
  setup_all do
    raise "no database"
  end
  test "one", do: assert true
end
"""
RED = """\
defmodule RedTest do
  use ExUnit.Case
  test "adds", do: assert Cart.add(1, 2) == 3
  test "adds more", do: assert Cart.add(2, 3) == 5
end
"""


def project(product: str, **tests: str) -> dict[str, str]:
    files = {f"test/{name}_test.exs": text for name, text in tests.items()}
    return {"mix.exs": MIX, "lib/cart.ex": product, "test/test_helper.exs": "ExUnit.start()\n", **files}


async def test_every_kind(sandbox_of: MakeSandbox) -> None:
    report = await run(sandbox_of, Exunit(), project(CART, cart=KINDS, red=RED), memory=MEMORY)
    cart = "test/cart_test.exs::CartTest > test "
    assert outcomes(report) == {
        f"{cart}passes": "passed",
        f"{cart}fails": "failed",
        f"{cart}raises": "failed",
        f"{cart}skips": "skipped",
        f"{cart}hangs": "failed",
        f"{cart}is not written": "failed",
        f"{cart}takes 1": "passed",
        f"{cart}takes 2": "failed",
        f"{cart}takes a b": "passed",
        f"{cart}a cart passes": "failed",
        "test/cart_test.exs::SetUpTest > test one": "error",
        "test/red_test.exs::RedTest > test adds": "passed",
        "test/red_test.exs::RedTest > test adds more": "passed",
    }
    assert report.complete
    assert not report.signs.forged
    assert "left:  3" in report.errors[f"{cart}fails"]


async def test_only_what_is_wanted_runs(sandbox_of: MakeSandbox) -> None:
    files = project(CART, cart=KINDS, red=RED)
    report = await run(sandbox_of, Exunit(), files, ["test/red_test.exs::RedTest > test adds"], memory=MEMORY)
    assert set(outcomes(report).values()) == {"passed"}
    assert len(report.passed) == 2
    assert believed(report)


async def test_what_cannot_be_loaded_and_early_ends_are_never_green(sandbox_of: MakeSandbox) -> None:
    leaves = [
        "System.halt(0)",
        "System.stop(0); Process.sleep(5000)",
        ":erlang.halt()",
        "Process.exit(self(), :kill)",
    ]
    projects = [project(CART.replace("do: a", f"do: (if a == 2, do: ({leave}); a").replace("b\nend", "b)\nend"), red=RED)
                for leave in leaves]  # fmt: skip
    projects.append(project(CART, red=RED, broken="defmodule Broken do\n"))
    projects.append(project("defmodule Cart do\n", red=RED))
    projects.append(project(CART, red=RED, leaves="System.halt(0)\n"))
    projects.append(project(CART, red=RED) | {"test/test_helper.exs": "ExUnit.start()\nSystem.halt(0)\n"})
    reports = await run_each(sandbox_of, Exunit(), projects, memory=MEMORY)
    for n, report in enumerate(reports):
        assert not believed(report), projects[n]
        assert outcomes(report).get(f"p{n}/test/red_test.exs::RedTest > test adds more") != "passed", n
    for n in range(4, 8):
        assert outcomes(reports[n])[f"p{n}/test/red_test.exs"] == "error"
    assert "lib/cart.ex" in reports[5].output


async def test_a_hang_that_nothing_interrupts(sandbox_of: MakeSandbox) -> None:
    files = project(CART, red=RED) | {
        "test/test_helper.exs": "ExUnit.start(timeout: :infinity)\nProcess.sleep(:infinity)\n"
    }
    report = await run(sandbox_of, Exunit(), files, limits=Limits(12, 2), memory=MEMORY)
    assert report.timed_out
    assert not report.complete


FIND = """\
for pid <- Process.list(), {:dictionary, d} <- [Process.info(pid, :dictionary)],
    d[:"$initial_call"] == {M3agent.Formatter, :init, 1} do
"""
TESTS = 'test = %ExUnit.Test{module: RedTest, tags: %{file: Path.expand("test/red_test.exs")}}\n'
FORGERIES = {
    "assertions are replaced": "Code.compiler_options(ignore_module_conflict: true); :code.unstick_mod(ExUnit.Runner);"
    ' Code.compile_string("defmodule ExUnit.Assertions do\\n defmacro assert(_), do: true\\n'
    ' def assert(_, _), do: true\\n defmacro __using__(_), do: nil\\nend")',
    "the runner is replaced": "Code.compiler_options(ignore_module_conflict: true);"
    ' Code.compile_string("defmodule ExUnit.Runner do\\n def run(_, _), do: %{failures: 0, total: 0, skipped: 0, excluded: 0}\\nend")',
    "the formatter gets events": FIND + TESTS + 'for name <- [:"test adds", :"test adds more"] do\n'
    "GenServer.cast(pid, {:test_started, %{test | name: name}}); GenServer.cast(pid, {:test_finished, %{test | name: name}})\nend\n"
    "GenServer.cast(pid, {:suite_finished, %{run: 1, async: 0, load: 0}}); Process.sleep(300); System.halt(0)\nend",
    "the formatter is replaced": "Code.compiler_options(ignore_module_conflict: true);"
    ' Code.compile_string("defmodule M3agent.Formatter do\\n use GenServer\\n def init(_), do: {:ok, 0}\\n'
    ' def handle_cast(_, s), do: {:noreply, s}\\nend")',
    "the report is extended": 'for path <- Path.wildcard("/tmp/m3agent-tests/*/*.report") do\n'
    ' File.write!(path, "9\\t[\\"end\\"]\\t0\\n", [:append])\nend; System.halt(0)',
    "the key is read": 'for path <- Path.wildcard("/tmp/m3agent-tests/*/*.key"), do: raise(File.read!(path))',
    "tests are left out": "ExUnit.configure(exclude: [:test])",
}


def forged(code: str) -> list[dict[str, str]]:
    """Return projects whose wrong product code tampers with the tests when it is called, or in a helper of tests."""
    called = f"defmodule Cart do\n  def add(a, b) do\n    {code}\n    a - b\n  end\nend\n"
    return [
        project(called, red=RED),
        project(WRONG, red=RED) | {"test/test_helper.exs": f"{code}\nExUnit.start()\n"},
    ]


async def test_forgeries_are_not_believed(sandbox_of: MakeSandbox) -> None:
    tried = {name: forged(code) for name, code in FORGERIES.items()}
    tried["none"] = [project(CART, red=RED)]
    red = "test/red_test.exs::RedTest > test adds"
    assert await successes(sandbox_of, Exunit(), tried, red, memory=MEMORY) == ["none"]

"""minitest in real sandboxes: each kind of test, and code that forges results."""

from __future__ import annotations

import json

import pytest

from m3agent.tools.runners.base import Limits
from m3agent.tools.runners.ruby import Minitest
from tests.ecosystems.records import outcomes
from tests.ecosystems.table import MakeSandbox, believed, needs, run, run_each, successes

pytestmark = [pytest.mark.languages, needs("ruby")]

KINDS = """\
require "minitest/autorun"
require "cart"

class CartTest < Minitest::Test
  def test_passes = assert_equal(3, Cart.add(1, 2))
  def test_fails = assert_equal(4, Cart.add(1, 2))
  def test_raises = raise("no device")
  def test_skips
    skip "not here"
  end
  def test_hangs
    loop { sleep 1 }
  end
  [1, 2, "a b"].each { |n| define_method("test_many_#{n}") { refute_equal 2, n } }
end

class OtherTest < Minitest::Test
  def setup = raise("no database")
  def test_passes = assert(true)
end

describe "a cart" do
  it("adds") { _(Cart.add(1, 1)).must_equal 2 }
  it("repeats") { _(1).must_equal 1 }
  it("repeats") { _(1).must_equal 2 }
  describe("when empty") { it("is red") { _(1).must_equal 3 } }
end
"""
CART = "module Cart\n  def self.add(a, b) = a + b\nend\n"
GREEN = """\
require "minitest/autorun"
require "cart"
class GreenTest < Minitest::Test
  def test_green = assert_equal(3, Cart.add(1, 2))
end
"""
RED = """\
require "minitest/autorun"
require "cart"
class RedTest < Minitest::Test
  def test_add = assert_equal(3, Cart.add(1, 2))
  def test_more = assert_equal(5, Cart.add(2, 3))
end
"""
WRONG = "module Cart\n  def self.add(a, b) = a - b\nend\n"


async def test_every_kind(sandbox_of: MakeSandbox) -> None:
    files = {
        "lib/cart.rb": CART,
        "test/cart_test.rb": KINDS,
        "test/test_syntax.rb": "require 'minitest/autorun'\ndef broken(\n",
        "test/test_missing.rb": "require 'no_such_library'\n",
        "test/test_leaves.rb": "exit\n",
        "test/shared.rb": "module Shared\n  def test_shared = assert(true)\nend\n",
        "test/user_test.rb": "require 'shared'\nclass UserTest < Minitest::Test\n  include Shared\nend\n",
    }
    report = await run(sandbox_of, Minitest(), files, limits=Limits(60, 1))
    cart = "test/cart_test.rb::"
    assert outcomes(report) == {
        f"{cart}CartTest > test_passes": "passed",
        f"{cart}CartTest > test_fails": "failed",
        f"{cart}CartTest > test_raises": "error",
        f"{cart}CartTest > test_skips": "skipped",
        f"{cart}CartTest > test_hangs": "error",
        f"{cart}CartTest > test_many_1": "passed",
        f"{cart}CartTest > test_many_2": "failed",
        f"{cart}CartTest > test_many_a b": "passed",
        f"{cart}OtherTest > test_passes": "error",
        f"{cart}a cart > adds": "passed",
        f"{cart}a cart > repeats": "failed",
        f"{cart}a cart::when empty > is red": "failed",
        "test/test_syntax.rb": "error",
        "test/test_missing.rb": "error",
        "test/test_leaves.rb": "error",
        "test/user_test.rb::UserTest > test_shared": "passed",
    }
    assert report.complete
    assert not report.signs.forged
    assert "Expected: 4" in report.errors[f"{cart}CartTest > test_fails"]
    assert "no_such_library" in report.errors["test/test_missing.rb"]
    assert "took more than 1 s" in report.errors[f"{cart}CartTest > test_hangs"]


async def test_only_what_is_wanted_runs(sandbox_of: MakeSandbox) -> None:
    files = {"lib/cart.rb": CART, "test/green_test.rb": GREEN, "test/red_test.rb": RED}
    wanted = ["test/green_test.rb::GreenTest > test_green"]
    report = await run(sandbox_of, Minitest(), files, wanted)
    assert outcomes(report) == {wanted[0]: "passed"}
    assert believed(report)


LEAVES = ["exit", "exit!", "exit!(0)", "abort", "Process.kill(:KILL, $$)", "fork { }; exit!"]


async def test_an_early_end_is_never_green(sandbox_of: MakeSandbox) -> None:
    """The code under test ends the process in the second test."""
    carts = [
        f"module Cart\n  def self.add(a, b)\n    {leave} if a == 2\n    a + b\n  end\nend\n"
        for leave in LEAVES
    ]
    projects = [{"Rakefile": "", "lib/cart.rb": cart, "test/red_test.rb": RED} for cart in carts]
    for n, report in enumerate(await run_each(sandbox_of, Minitest(), projects)):
        assert not believed(report), LEAVES[n]
        assert outcomes(report)[f"p{n}/test/red_test.rb::RedTest > test_more"] != "passed", LEAVES[n]


async def test_an_early_end_while_loading(sandbox_of: MakeSandbox) -> None:
    files = {"lib/cart.rb": "exit!(0)\n", "test/green_test.rb": GREEN, "test/red_test.rb": RED}
    report = await run(sandbox_of, Minitest(), files)
    assert not report.complete
    assert outcomes(report) == {"test/green_test.rb": "error", "test/red_test.rb": "error"}


async def test_a_hang_that_nothing_interrupts(sandbox_of: MakeSandbox) -> None:
    cart = "module Cart\n  def self.add(a, b)\n    begin\n      sleep\n    rescue Exception\n      retry\n    end\n  end\nend\n"
    report = await run(
        sandbox_of, Minitest(), {"lib/cart.rb": cart, "test/red_test.rb": RED}, limits=Limits(3, 1)
    )
    assert report.timed_out
    assert not report.complete
    assert "timed out" in report.errors.values()


CALL_REPORTER = """\
use = lambda do |place|
  write = place.local_variable_get(:write) if place.local_variable_defined?(:write)
  next unless write
  %w[test_add test_more].each do |name|
    write.call("start", "test/red_test.rb", ["RedTest", name])
    write.call("result", "test/red_test.rb", ["RedTest", name], "passed", "")
  end
  write.call("unit", "test/red_test.rb")
  write.call("canaries", 1, 1, 0)
  write.call("end")
  exit!(0)
end
{search}
"""
FORGERIES = {
    "assertions do nothing": "module Minitest::Assertions\n  def assert(*) = true\n  def assert_equal(*) = true\nend\n",
    "a run of a test does nothing": "class Minitest::Test\n  def run = Minitest::Result.from(self)\nend\n",
    "prepended run": "Minitest::Test.prepend(Module.new { def run = Minitest::Result.from(self) })\n",
    "failures are removed": "Minitest::Result.class_eval { def failures = [] }\n"
    "Minitest::Test.class_eval { def failures = [] }\n",
    "results pass": "class Minitest::Result\n  def passed? = true\n  def error? = false\n  def skipped? = false\nend\n",
    "tests are removed": "class Minitest::Test\n  def self.runnable_methods = []\nend\n",
    "the report is replaced": "File.write(Dir['/tmp/m3agent-tests/*/*.report'].first, "
    '%(1\\t["end"]\\t#{"0" * 64}\\n))\nexit!(0)\n',
    "the report is extended": "report = ObjectSpace.each_object(File).find { |f| !f.closed? && f.path.end_with?('.report') }\n"
    'report.syswrite(%(2\\t["end"]\\t\\n)); report.close\n',
    "the key is read": "File.read(Dir['/tmp/m3agent-tests/*/*.key'].fetch(0))\n",
    "the reporter is called": CALL_REPORTER.format(
        search="ObjectSpace.each_object(Proc) { |found| use.call(found.binding) }"
    ),
    "the reporter is called from a trace": CALL_REPORTER.format(
        search="TracePoint.new(:call, :b_call) { |point| use.call(point.binding) }.enable"
    ),
    "all tests are skipped": "Minitest::Test.class_eval { def before_setup = skip }\n",
}


def quoted(code: str) -> str:
    """Return a string of Ruby."""
    return json.dumps(code).replace("#", r"\#")


def forged(code: str) -> list[dict[str, str]]:
    """Return projects with wrong product code that tampers with the tests when it is loaded, or when it is called."""
    calls = (
        f"module Cart\n  def self.add(a, b)\n    Object.class_eval({quoted(code)})\n    a - b\n  end\nend\n"
    )
    return [{"Rakefile": "", "lib/cart.rb": cart, "test/red_test.rb": RED} for cart in (code + WRONG, calls)]


async def test_forgeries_are_not_believed(sandbox_of: MakeSandbox) -> None:
    tried = {name: forged(code) for name, code in FORGERIES.items()}
    tried["none"] = [{"Rakefile": "", "lib/cart.rb": CART, "test/red_test.rb": RED}]
    assert await successes(sandbox_of, Minitest(), tried, "test/red_test.rb::RedTest > test_add") == ["none"]

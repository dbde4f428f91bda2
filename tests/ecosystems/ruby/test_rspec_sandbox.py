"""rspec in real sandboxes: each kind of test, and code that forges results."""

from __future__ import annotations

import json

import pytest

from m3agent.tools.runners.base import Limits
from m3agent.tools.runners.ruby import Rspec
from tests.ecosystems.records import outcomes
from tests.ecosystems.table import MakeSandbox, believed, needs, run, run_each, successes

pytestmark = [pytest.mark.languages, needs("ruby", "rspec")]

KINDS = """\
require "cart"
RSpec.describe Cart do
  it("passes") { expect(Cart.add(1, 2)).to eq 3 }
  it("fails") { expect(Cart.add(1, 2)).to eq 4 }
  it("raises") { raise "no device" }
  it("hangs") { loop { sleep 1 } }
  it("is not written")
  xit("is skipped") { raise }
  it("is pending") { pending "later"; expect(1).to eq 2 }
  it("is pending but passes") { pending "later"; expect(1).to eq 1 }
  [1, 2, "a b"].each { |n| it("takes #{n}") { expect(n).not_to eq 2 } }
  it("repeats") { expect(1).to eq 1 }
  it("repeats") { expect(1).to eq 2 }
  it { expect(1).to eq 1 }
  it { expect(1).to eq 2 }
  describe "#add" do
    before(:context) { raise "no database" }
    it("cannot start") { expect(1).to eq 1 }
  end
  shared_examples("a sum") { it("adds") { expect(value).to eq 3 } }
  context("of one and two") { let(:value) { Cart.add(1, 2) }; it_behaves_like "a sum" }
end
"""
CART = "module Cart\n  def self.add(a, b) = a + b\nend\n"
GREEN = """\
require "cart"
RSpec.describe "green" do
  it("adds") { expect(Cart.add(1, 2)).to eq 3 }
end
"""
RED = """\
require "cart"
RSpec.describe "red" do
  it("adds") { expect(Cart.add(1, 2)).to eq 3 }
  it("adds more") { expect(Cart.add(2, 3)).to eq 5 }
end
"""
WRONG = "module Cart\n  def self.add(a, b) = a - b\nend\n"


async def test_every_kind(sandbox_of: MakeSandbox) -> None:
    files = {
        ".rspec": "--require spec_helper\n--format documentation\n--fail-fast\n",
        "lib/cart.rb": CART,
        "spec/spec_helper.rb": "RSpec.configure { |config| config.order = :random }\n",
        "spec/cart_spec.rb": KINDS,
        "spec/syntax_spec.rb": "RSpec.describe('x') do\n",
        "spec/missing_spec.rb": "require 'no_such_library'\n",
        "spec/leaves_spec.rb": "exit\n",
        "spec/late_spec.rb": "RSpec.describe('late') do\n  after(:context) { raise 'in use' }\n  it('is') {}\nend\n",
    }
    report = await run(sandbox_of, Rspec(), files, limits=Limits(60, 1))
    cart = "spec/cart_spec.rb::Cart > "
    assert outcomes(report) == {
        f"{cart}passes": "passed",
        f"{cart}fails": "failed",
        f"{cart}raises": "failed",
        f"{cart}hangs": "failed",
        f"{cart}is not written": "skipped",
        f"{cart}is skipped": "skipped",
        f"{cart}is pending": "skipped",
        f"{cart}is pending but passes": "failed",
        f"{cart}takes 1": "passed",
        f"{cart}takes 2": "failed",
        f"{cart}takes a b": "passed",
        f"{cart}repeats": "failed",
        f"{cart}(unnamed) #1": "passed",
        f"{cart}(unnamed) #2": "failed",
        f"{cart}#add > cannot start": "failed",
        f"{cart}of one and two > behaves like a sum > adds": "passed",
        "spec/syntax_spec.rb": "error",
        "spec/missing_spec.rb": "error",
        "spec/leaves_spec.rb": "error",
        "spec/late_spec.rb::late > is": "passed",
        "spec/late_spec.rb::An error occurred in an `after(:context)` hook.": "error",
    }
    assert report.complete
    assert not report.signs.forged
    assert "expected: 4" in report.errors[f"{cart}fails"]
    assert "took more than 1 s" in report.errors[f"{cart}hangs"]


async def test_only_what_is_wanted_runs(sandbox_of: MakeSandbox) -> None:
    files = {"lib/cart.rb": CART, "spec/green_spec.rb": GREEN, "spec/red_spec.rb": RED}
    wanted = ["spec/green_spec.rb::green > adds"]
    report = await run(sandbox_of, Rspec(), files, wanted)
    assert outcomes(report) == {wanted[0]: "passed"}
    assert believed(report)


@pytest.mark.parametrize("helper", ["raise 'no database'\n", "exit!(0)\n", "exit\n", "def broken(\n"])
async def test_a_helper_that_cannot_be_loaded(sandbox_of: MakeSandbox, helper: str) -> None:
    files = {
        ".rspec": "-r spec_helper\n",
        "spec/spec_helper.rb": helper,
        "lib/cart.rb": CART,
        "spec/red_spec.rb": RED,
    }
    report = await run(sandbox_of, Rspec(), files)
    assert not report.complete
    assert not report.passed


async def test_a_suite_hook_that_fails(sandbox_of: MakeSandbox) -> None:
    helper = "RSpec.configure { |config| config.before(:suite) { raise 'no database' } }\n"
    spec = f"require 'spec_helper'\n{GREEN}"
    files = {"spec/spec_helper.rb": helper, "lib/cart.rb": CART, "spec/green_spec.rb": spec}
    report = await run(sandbox_of, Rspec(), files)
    assert not report.passed
    assert not report.complete
    assert "no database" in "".join(report.errors.values())


LEAVES = ["exit", "exit!", "abort", "Process.kill(:KILL, $$)"]


async def test_an_early_end_is_never_green(sandbox_of: MakeSandbox) -> None:
    """The code under test ends the process in the second test."""
    carts = [
        f"module Cart\n  def self.add(a, b)\n    {leave} if a == 2\n    a + b\n  end\nend\n"
        for leave in LEAVES
    ]
    projects = [{"Rakefile": "", "lib/cart.rb": cart, "spec/red_spec.rb": RED} for cart in carts]
    for n, report in enumerate(await run_each(sandbox_of, Rspec(), projects)):
        assert not believed(report), LEAVES[n]
        assert outcomes(report)[f"p{n}/spec/red_spec.rb::red > adds more"] == "failed", LEAVES[n]


async def test_an_early_end_while_loading(sandbox_of: MakeSandbox) -> None:
    files = {"lib/cart.rb": "exit!(0)\n", "spec/green_spec.rb": GREEN, "spec/red_spec.rb": RED}
    report = await run(sandbox_of, Rspec(), files)
    assert not report.complete
    assert outcomes(report) == {"spec/green_spec.rb": "error", "spec/red_spec.rb": "error"}


CALL_REPORTER = """\
ObjectSpace.each_object(Proc) do |found|
  place = found.binding
  write = place.local_variable_get(:write) if place.local_variable_defined?(:write)
  next unless write
  ["adds", "adds more"].each do |name|
    write.call("start", "spec/red_spec.rb", ["red", name])
    write.call("result", "spec/red_spec.rb", ["red", name], "passed", "")
  end
  write.call("unit", "spec/red_spec.rb")
  write.call("canaries", 1, 1, 0)
  write.call("end")
  exit!(0)
end
"""
FORGERIES = {
    "expectations do nothing": "RSpec::Expectations::ExpectationTarget.class_eval { def to(*) = true }\n",
    "failures do nothing": "def (RSpec::Expectations).fail_with(*) = true\n",
    "matchers match": "RSpec::Matchers::BuiltIn::BaseMatcher.class_eval { def matches?(*) = true }\n"
    "RSpec::Matchers::BuiltIn::Eq.class_eval { def matches?(*) = true }\n",
    "examples do nothing": "RSpec::Core::Example.class_eval { def run(_, reporter) = (start(reporter); finish(reporter)) }\n",
    "failed examples pass": "RSpec::Core::Reporter.class_eval { def example_failed(example) = example_passed(example) }\n",
    "exceptions are lost": "RSpec::Core::Example.class_eval { def set_exception(*) = nil }\n",
    "a hook removes exceptions": "RSpec.configure { |c| c.after { |example| example.instance_variable_set(:@exception, nil) } }\n",
    "examples are removed": "RSpec::Core::ExampleGroup.define_singleton_method(:run) { |*| true }\n",
    "the end of the report is replaced": "File.open(Dir['/tmp/m3agent-tests/*/*.report'].first, 'a') { |f| "
    'f.puts(%(3\\t["end"]\\t#{"0" * 64})) }\nexit!(0)\n',
    "the key is read": "File.read(Dir['/tmp/m3agent-tests/*/*.key'].fetch(0))\n",
    "the reporter is called": CALL_REPORTER,
}


def forged(code: str) -> list[dict[str, str]]:
    """Return projects with wrong product code that tampers with the tests when it is loaded, or when it is called."""
    text = json.dumps(code).replace("#", r"\#")
    calls = f"module Cart\n  def self.add(a, b)\n    TOPLEVEL_BINDING.eval({text})\n    a - b\n  end\nend\n"
    return [{"Rakefile": "", "lib/cart.rb": cart, "spec/red_spec.rb": RED} for cart in (code + WRONG, calls)]


async def test_forgeries_are_not_believed(sandbox_of: MakeSandbox) -> None:
    tried = {name: forged(code) for name, code in FORGERIES.items()}
    tried["none"] = [{"Rakefile": "", "lib/cart.rb": CART, "spec/red_spec.rb": RED}]
    assert await successes(sandbox_of, Rspec(), tried, "spec/red_spec.rb::red > adds") == ["none"]

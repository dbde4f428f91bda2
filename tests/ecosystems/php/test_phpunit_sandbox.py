"""The PHPUnit of the system, 9 or later, in real sandboxes: each kind of test, and code that forges results."""

from __future__ import annotations

import json

import pytest

from m3agent.tools.runners.base import Limits
from m3agent.tools.runners.php import Phpunit
from tests.ecosystems.records import outcomes
from tests.ecosystems.table import MakeSandbox, believed, needs, run, run_each, successes

pytestmark = [pytest.mark.languages, needs("php", "phpunit", "composer")]

MANIFEST = json.dumps(
    {
        "require-dev": {"phpunit/phpunit": "^9"},
        "autoload": {"psr-4": {"Shop\\": "src/"}},
        "autoload-dev": {"psr-4": {"Shop\\Tests\\": "tests/"}},
    }
)
KINDS = r"""<?php
namespace Shop\Tests;
use PHPUnit\Framework\Attributes\{DataProvider, Depends, RunInSeparateProcess};
use PHPUnit\Framework\TestCase;
use Shop\Cart;
final class CartTest extends TestCase {
    public function testPasses(): void { $this->assertSame(3, Cart::add(1, 2)); }
    public function testFails(): void { $this->assertSame(4, Cart::add(1, 2)); }
    public function testRaises(): void { throw new \RuntimeException('no device'); }
    public function testSkips(): void { $this->markTestSkipped('not here'); }
    public function testIncomplete(): void { $this->markTestIncomplete(); }
    public function testRisky(): void { }
    public function testHangs(): void { while (true) { usleep(1000); } }
    public function testExpects(): void { $this->expectException(\RuntimeException::class); throw new \RuntimeException(); }
    public function testExpectsMore(): void { $this->expectException(\RuntimeException::class); }
    /** @dataProvider numbers */
    #[DataProvider('numbers')]
    public function testMany(int $n): void { $this->assertNotSame(2, $n); }
    public static function numbers(): array { return [[1], [2], 'three' => [3]]; }
    /** @dataProvider broken */
    #[DataProvider('broken')]
    public function testProvided(int $n): void { $this->assertTrue(true); }
    public static function broken(): array { throw new \RuntimeException('no data'); }
    /** @depends testFails */
    #[Depends('testFails')]
    public function testDepends(): void { $this->assertTrue(true); }
    /** @runInSeparateProcess */
    #[RunInSeparateProcess]
    public function testApart(): void { $this->assertSame(3, Cart::add(1, 2)); }
}
"""
CART = "<?php\nnamespace Shop;\nfinal class Cart { public static function add($a, $b) { return $a + $b; } }\n"
WRONG = CART.replace("$a + $b", "$a - $b")
RED = r"""<?php
namespace Shop\Tests;
use PHPUnit\Framework\TestCase;
use Shop\Cart;
final class RedTest extends TestCase {
    public function testAdd(): void { $this->assertSame(3, Cart::add(1, 2)); }
    public function testMore(): void { $this->assertSame(5, Cart::add(2, 3)); }
}
"""


def project(cart: str, **tests: str) -> dict[str, str]:
    """Return a project with these test classes."""
    files = {f"tests/{name}.php": text for name, text in tests.items()}
    return {"composer.json": MANIFEST, "src/Cart.php": cart, **files}


async def test_every_kind(sandbox_of: MakeSandbox) -> None:
    files = project(
        CART,
        CartTest=KINDS,
        SyntaxTest="<?php\nnamespace Shop\\Tests;\nclass SyntaxTest {\n",
        MissingTest="<?php\nnamespace Shop\\Tests;\nrequire 'no_such_file.php';\n",
        HelperTest="<?php\nnamespace Shop\\Tests;\nclass Other {}\n",
        EmptyTest="<?php\nnamespace Shop\\Tests;\nclass EmptyTest extends \\PHPUnit\\Framework\\TestCase {}\n",
        SetUpTest="<?php\nnamespace Shop\\Tests;\nclass SetUpTest extends \\PHPUnit\\Framework\\TestCase {\n"
        "public static function setUpBeforeClass(): void { throw new \\RuntimeException('no database'); }\n"
        "public function testOne(): void { $this->assertTrue(true); } }\n",
    )
    files["phpunit.xml.dist"] = '<phpunit stopOnFailure="true" executionOrder="random"></phpunit>\n'
    report = await run(sandbox_of, Phpunit(), files, limits=Limits(60, 4))
    cart = "tests/CartTest.php::Shop\\Tests\\CartTest > "
    assert outcomes(report) == {
        f"{cart}testPasses": "passed",
        f"{cart}testFails": "failed",
        f"{cart}testRaises": "error",
        f"{cart}testSkips": "skipped",
        f"{cart}testIncomplete": "skipped",
        f"{cart}testRisky": "error",
        f"{cart}testHangs": "error",
        f"{cart}testExpects": "passed",
        f"{cart}testExpectsMore": "failed",
        f"{cart}testMany with data set #0": "passed",
        f"{cart}testMany with data set #1": "failed",
        f'{cart}testMany with data set "three"': "passed",
        f"{cart}testProvided": "error",
        f"{cart}testDepends": "skipped",
        f"{cart}testApart": "passed",
        "tests/SyntaxTest.php": "error",
        "tests/MissingTest.php": "error",
        "tests/EmptyTest.php::Shop\\Tests\\EmptyTest": "skipped",
        "tests/SetUpTest.php::Shop\\Tests\\SetUpTest > testOne": "error",
    }
    assert report.complete
    assert not report.signs.forged
    assert "identical to 4" in report.errors[f"{cart}testFails"]
    assert "took more than 4 s" in report.errors[f"{cart}testHangs"]


async def test_only_what_is_wanted_runs(sandbox_of: MakeSandbox) -> None:
    files = project(CART, RedTest=RED, CartTest=KINDS)
    report = await run(sandbox_of, Phpunit(), files, ["tests/RedTest.php::Shop\\Tests\\RedTest > testAdd"])
    assert set(outcomes(report).values()) == {"passed"}
    assert len(report.passed) == 2
    assert believed(report)


LEAVES = ["exit(0);", "exit(1);", "posix_kill(getmypid(), 9);", "while (true) { $more[] = str_repeat('x', 1 << 20); }",
          "register_shutdown_function(static function () { exit(0); }); exit;", "pcntl_exec('/bin/true');"]  # fmt: skip


async def test_an_early_end_is_never_green(sandbox_of: MakeSandbox) -> None:
    """The code under test ends the process in the second test, or while a file is loaded."""
    carts = [
        WRONG.replace("return $a - $b;", f"if ($a == 2) {{ {leave} }} return $a + $b;") for leave in LEAVES
    ]
    projects = [project(cart, RedTest=RED) for cart in carts]
    projects.append(project(CART, RedTest=RED, LeaveTest="<?php exit(0);\n"))
    for n, report in enumerate(await run_each(sandbox_of, Phpunit(), projects)):
        assert not believed(report), projects[n]
        assert not report.complete, projects[n]
        assert outcomes(report).get(f"p{n}/tests/RedTest.php::Shop\\Tests\\RedTest > testMore") != "passed", n


LISTENER = r"""
foreach (debug_backtrace() as $frame) {
    if (($frame['object'] ?? null) instanceof \PHPUnit\Framework\TestResult) {
        $result = $frame['object'];
        $property = new \ReflectionProperty(\PHPUnit\Framework\TestResult::class, 'listeners');
        $property->setAccessible(true);
        foreach ($property->getValue($result) as $listener) {
            if (get_class($listener) === 'M3agent\Listener') {
                %s
            }
        }
    }
}
"""
SHADOW = r"""
if (!class_exists('PHPUnit\Framework\Constraint\IsIdentical', false)) {
    eval('namespace PHPUnit\Framework\Constraint; class IsIdentical extends Constraint {
        public function __construct($value) {}
        public function toString(): string { return ""; }
        public function evaluate($other, string $description = "", bool $return = false): ?bool { return true; } }');
}
"""
TRACER = r"""
if (class_exists('PHPUnit\Event\Facade', false)) {
    $events = \PHPUnit\Event\Facade::instance();
    $deferring = (new \ReflectionProperty($events, 'deferringDispatcher'))->getValue($events);
    $direct = (new \ReflectionProperty($deferring, 'dispatcher'))->getValue($deferring);
    $property = new \ReflectionProperty($direct, 'tracers');
    foreach ($property->getValue($direct) as $listener) {
        if (get_class($listener) === 'M3agent\Listener') {
            %s
        }
    }
}
"""
EMITTER = r"""
foreach (debug_backtrace() as $frame) {
    if (($frame['object'] ?? null) instanceof \PHPUnit\Framework\TestCase && method_exists($frame['object'], 'valueObjectForEvents')) {
        $test = $frame['object']->valueObjectForEvents();
        $emitter = \PHPUnit\Event\Facade::emitter();
        %s
        break;
    }
}
"""
FORGERIES = {
    "the test expects an exception": "foreach (debug_backtrace() as $frame) {"
    " if (($frame['object'] ?? null) instanceof \\PHPUnit\\Framework\\TestCase) {"
    " $frame['object']->expectException(\\LogicException::class); throw new \\LogicException(); } }",
    "the listener is removed": LISTENER % "$property->setValue($result, []);",
    "the tracer is removed": TRACER % "$property->setValue($direct, []);",
    "the tracer is wrapped": TRACER
    % r"$property->setValue($direct, [new class($listener) implements \PHPUnit\Event\Tracer\Tracer {"
    r" public function __construct(private $to) {} public function trace(\PHPUnit\Event\Event $event): void {"
    r" if (!$event instanceof \PHPUnit\Event\Test\Failed) { $this->to->trace($event); } } }]);",
    "the events are sent": EMITTER
    % "$emitter->testPassed($test); $emitter->testFinished($test, 1); exit(0);",
    "the events are sent by a function": EMITTER
    % "call_user_func([$emitter, 'testPassed'], $test); call_user_func([$emitter, 'testFinished'], $test, 1);",
    "the status is an object": "foreach (debug_backtrace() as $frame) {"
    " if (($frame['object'] ?? null) instanceof \\PHPUnit\\Framework\\TestCase) {"
    " (function () { $this->status = \\PHPUnit\\Framework\\TestStatus\\TestStatus::success(); })->call($frame['object']); } }",
    "the listener is wrapped": LISTENER
    % "$property->setValue($result, [new class($listener) implements \\PHPUnit\\Framework\\TestListener {"
    " use \\PHPUnit\\Framework\\TestListenerDefaultImplementation; private $to;"
    " public function __construct($to) { $this->to = $to; }"
    " public function startTest(\\PHPUnit\\Framework\\Test $test): void { $this->to->startTest($test); }"
    " public function endTest(\\PHPUnit\\Framework\\Test $test, float $time): void { $this->to->endTest($test, $time); } }]);",
    "the listener is called": LISTENER
    % "$test = new \\Shop\\Tests\\RedTest('testAdd'); $listener->startTest($test); $listener->endTest($test, 0); exit(0);",
    "the reporter is called": LISTENER
    % r"$reporter = new \ReflectionProperty($listener, 'report'); $reporter->setAccessible(true);"
    r" $report = $reporter->getValue($listener); foreach (['testAdd', 'testMore'] as $name) {"
    r" $names = ['Shop\\Tests\\RedTest', $name]; $report->write('start', 'tests/RedTest.php', $names);"
    r" $report->write('result', 'tests/RedTest.php', $names, 'passed', ''); }"
    r" $report->write('unit', 'tests/RedTest.php'); $report->write('canaries', 2, 2, 0); $report->write('end'); exit(0);",
    "the report is extended": "file_put_contents(glob('/tmp/m3agent-tests/*/*.report')[0],"
    ' "9\\t[\\"end\\"]\\t" . str_repeat(\'0\', 64) . "\\n", FILE_APPEND); exit(0);',
    "the key is read": "if (!glob('/tmp/m3agent-tests/*/*.key')) { return $a - $b; } return 3;",
    "the assertion is replaced": "class_alias('ArrayObject', 'PHPUnit\\Framework\\Assert');",
    "a constraint is shadowed": SHADOW,
    "the status is changed": "foreach (debug_backtrace() as $frame) {"
    " if (($frame['object'] ?? null) instanceof \\PHPUnit\\Framework\\TestCase) {"
    " (function () { $this->status = 0; $this->statusMessage = ''; })->call($frame['object']); } }",
    "the test is skipped": "throw new \\PHPUnit\\Framework\\SkippedTestError('later');",
}


def forged(code: str) -> list[dict[str, str]]:
    """Return projects whose wrong product code tampers with the tests when it is called, or when it is loaded."""
    called = WRONG.replace("return $a - $b;", f"{code} return $a - $b;")
    loaded = WRONG.replace("final class", f"(static function ($a, $b) {{ {code} }})(1, 2);\nfinal class")
    return [project(cart, RedTest=RED) for cart in (called, loaded)]


async def test_forgeries_are_not_believed(sandbox_of: MakeSandbox) -> None:
    tried = {name: forged(code) for name, code in FORGERIES.items()}
    tried["none"] = [project(CART, RedTest=RED)]
    red = "tests/RedTest.php::Shop\\Tests\\RedTest > testAdd"
    assert await successes(sandbox_of, Phpunit(), tried, red) == ["none"]

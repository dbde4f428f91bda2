<?php
// Run files of PHPUnit 10 and later, whose results are events. `phpunit.php` loads this file instead of its own classes.

namespace M3agent;

use PHPUnit\Event\Event;
use PHPUnit\Event\Facade as Events;
use PHPUnit\Event\Tracer\Tracer;
use PHPUnit\Framework\TestCase;
use PHPUnit\Framework\TestSuite;
use PHPUnit\Runner\Extension\ExtensionBootstrapper;
use PHPUnit\Runner\Extension\Facade as Extensions;
use PHPUnit\Runner\ResultCache\NullResultCache;
use PHPUnit\TestRunner\TestResult\Facade as Results;
use PHPUnit\TextUI\CliArguments\Builder;
use PHPUnit\TextUI\Configuration\Configuration;
use PHPUnit\TextUI\Configuration\PhpHandler;
use PHPUnit\TextUI\Configuration\Registry;
use PHPUnit\TextUI\TestRunner;
use PHPUnit\TextUI\XmlConfiguration\DefaultConfiguration;
use PHPUnit\TextUI\XmlConfiguration\Loader;

abstract class Canary extends TestCase
{
}

final class Listener implements Tracer
{
    private const OUTCOMES = ['Passed' => 'passed', 'Skipped' => 'skipped', 'MarkedIncomplete' => 'skipped', 'Failed' => 'failed',
        'Errored' => 'error', 'ConsideredRisky' => 'error', 'PreparationFailed' => 'error', 'PreparationErrored' => 'error'];
    private const ORDER = ['passed', 'skipped', 'failed', 'error']; // from the best to the worst
    private $report;
    private $seconds;
    private $expected; // the property of a test with the exception that it expects
    private $places; // the folders of PHPUnit, and of its events
    private $test; // the names of the test that runs
    private $outcome;
    private $texts = [];
    private $canaries = [0, 0];
    public $finished = false;

    public function __construct(Report $report, int $seconds)
    {
        $this->report = $report;
        $this->seconds = limited($seconds);
        $this->expected = new \ReflectionProperty(TestCase::class, 'expectedException');
        $events = dirname((new \ReflectionClass(Events::class))->getFileName()) . '/';
        $this->places = [dirname($events) . '/', $events];
    }

    public function canaries(): array
    {
        return $this->canaries;
    }

    public function trace(Event $event): void
    {
        $frames = debug_backtrace(DEBUG_BACKTRACE_PROVIDE_OBJECT | DEBUG_BACKTRACE_IGNORE_ARGS);
        [, , $group, $kind] = explode('\\', get_class($event)) + ['', '', '', ''];
        if ($group !== 'TestRunner' || $kind === 'ExecutionFinished') { // an extension may send the others
            $this->called($frames);
        }
        if ($group === 'Test') {
            $this->ofTest($kind, $event, $frames);
        } elseif ($kind === 'WarningTriggered' && preg_match('/^No tests found in class "(.+)"\.$/', $event->message(), $found)) {
            $this->result([$this->file($found[1]), [$found[1]]], 'skipped', '');
        } elseif ($event instanceof \PHPUnit\Event\TestSuite\Skipped) {
            $this->ofSuite($frames, 'skipped', '');
        } elseif ($event instanceof \PHPUnit\Event\TestSuite\Finished) {
            $this->close(null);
        } elseif ($event instanceof \PHPUnit\Event\TestRunner\ExecutionFinished) {
            $this->finished = true;
        }
    }

    private function ofTest(string $kind, Event $event, array $frames): void
    {
        if ($kind === 'PreparationStarted') {
            $this->close(null);
            $this->open($this->names($event->test()));
            if ($this->seconds) {
                pcntl_alarm($this->seconds);
            }
        } elseif ($kind === 'Finished') {
            $this->close($this->running($frames, TestCase::class) ?? false);
        } elseif (isset(self::OUTCOMES[$kind])) {
            $alone = $this->test === null; // a test that does not start, because another one that it needs failed
            if ($alone) {
                $this->open($this->names($event->test()));
            }
            $this->note(self::OUTCOMES[$kind], $this->text($event));
            if ($alone) {
                $this->close(null);
            }
        } elseif ($kind === 'PhpunitErrorTriggered') {
            $this->result($this->names($event->test()), 'error', $event->message());
        } elseif (strpos($kind, 'BeforeFirstTestMethod') === 0 && method_exists($event, 'throwable')) {
            $this->ofSuite($frames, 'error', $this->text($event));
        }
    }

    /** Record the result of all tests of a class whose tests do not start. */
    private function ofSuite(array $frames, string $outcome, string $text): void
    {
        $suite = $this->running($frames, TestSuite::class);
        foreach ($suite ? new \RecursiveIteratorIterator($suite->getIterator()) : [] as $test) {
            if ($test instanceof TestCase) {
                $this->result($this->names($test->valueObjectForEvents()), $outcome, $text);
            }
        }
    }

    private function open(array $names): void
    {
        $this->test = $names;
        $this->outcome = null;
        $this->texts = [];
        if (!is_subclass_of($names[1][0], Canary::class)) {
            $this->report->write('start', ...$names);
        }
    }

    private function note(string $outcome, string $text): void
    {
        $this->outcome = $this->outcome === null ? $outcome : $this->worse($this->outcome, $outcome);
        $this->texts[] = $text;
    }

    /** Record the result of the test that runs; `$test` is null if it does not end, and false if it has no object. */
    private function close($test): void
    {
        if ($this->seconds) {
            pcntl_alarm(0);
        }
        [$names, $outcome] = [$this->test, $this->outcome];
        $this->test = null;
        if ($names === null || $outcome === null || ($outcome === 'passed' && $test === null)) {
            return;
        }
        if ($test && !$test->status()->isUnknown()) { // a test in a process of its own has no status
            $status = $test->status();
            $own = $status->isSuccess() ? 'passed' : ($status->isFailure() ? 'failed' : ($status->isError() ? 'error' : 'skipped'));
            $outcome = $this->worse($outcome, $own);
        }
        if (is_subclass_of($names[1][0], Canary::class)) {
            $this->canaries[0]++;
            $this->canaries[1] += $outcome === 'passed' ? 1 : 0;

            return;
        }
        if ($outcome === 'passed' && $test && (get_class($test) !== $names[1][0] || ($this->expected->getValue($test) !== null && !expects($test)))) {
            $this->report->write('tampering', 'other code than that of a test expected an exception');
        }
        $this->report->write('result', $names[0], $names[1], $outcome, $outcome === 'passed' ? '' : implode("\n", array_filter($this->texts)));
    }

    private function result(array $names, string $outcome, string $text): void
    {
        $this->report->write('start', ...$names);
        $this->report->write('result', $names[0], $names[1], $outcome, $text);
    }

    private function worse(string $first, string $second): string
    {
        return self::ORDER[max(array_search($first, self::ORDER), array_search($second, self::ORDER))];
    }

    /** Check that PHPUnit itself made the event: its events are called only by each other and by PHPUnit. */
    private function called(array $frames): void
    {
        foreach ($frames as $frame) {
            $file = $frame['file'] ?? '';
            if (strpos($file, $this->places[1]) !== 0) {
                break;
            }
        }
        if (strpos($frames[0]['file'] ?? '', $this->places[1]) !== 0 || (strpos($file, $this->places[0]) !== 0 && $file !== __FILE__)) {
            $this->report->write('tampering', 'the test listener was called by other code');
        }
    }

    private function running(array $frames, string $class): ?object
    {
        foreach ($frames as $frame) {
            if (($frame['object'] ?? null) instanceof $class && $frame['function'] === 'run') {
                return $frame['object'];
            }
        }

        return null;
    }

    private function names(\PHPUnit\Event\Code\Test $test): array
    {
        return $test->isTestMethod()
            ? [$this->file($test->className()), [$test->className(), $test->name()]]
            : [$this->inTree($test->file()), ['phpt']];
    }

    private function file(string $class): string
    {
        return class_exists($class, false) ? $this->inTree((string) (new \ReflectionClass($class))->getFileName()) : 'unknown';
    }

    private function inTree(string $file): string
    {
        return preg_replace('#^' . preg_quote(getcwd(), '#') . '/#', '', $file);
    }

    private function text(Event $event): string
    {
        if (!method_exists($event, 'throwable')) {
            return method_exists($event, 'message') ? $event->message() : '';
        }
        $error = $event->throwable();
        $places = array_values(array_filter(explode("\n", $error->stackTrace())));
        $mine = array_filter($places, static function (string $place): bool {
            return strpos($place, getcwd() . '/') === 0;
        });

        return $error->className() . ': ' . $error->message() . "\n" . (reset($mine) ?: ($places[0] ?? ''));
    }
}

/** Return PHPUnit's configuration. No test that fails shall end the run. */
function configured(string $configuration, string $bootstrap): Configuration
{
    $arguments = ['--do-not-cache-result', '--order-by=default', '--no-coverage', '--no-logging'];
    if ($bootstrap !== '') {
        array_push($arguments, '--bootstrap', $bootstrap);
    }
    $xml = $configuration === '' ? DefaultConfiguration::create() : (new Loader())->load(realpath($configuration));
    $made = Registry::init((new Builder())->fromParameters($arguments), $xml);
    $copy = (new \ReflectionClass($made))->newInstanceWithoutConstructor();
    foreach ((new \ReflectionClass($made))->getProperties() as $property) {
        $value = $property->getValue($made);
        $property->setValue($copy, is_bool($value) && strpos($property->getName(), 'stopOn') === 0 ? false : $value);
    }
    (new \ReflectionProperty(Registry::class, 'instance'))->setValue(null, $copy);

    return $copy;
}

function runEvents(Report $report, array $files, string $perTest, string $projects, string $configuration): void
{
    $text = $configuration === '' ? '' : (string) file_get_contents($configuration);
    $own = is_file($projects) && !preg_match('/<phpunit[^>]*\sbootstrap\s*=/', $text);
    if (is_file($projects)) {
        require_once $projects;
    }
    $configured = configured($configuration, $own ? $projects : '');
    (new PhpHandler())->handle($configured->php());
    if ($configured->hasBootstrap()) {
        include_once $configured->bootstrap();
    }
    $bootstrapper = new ExtensionBootstrapper($configured, new Extensions());
    foreach ($configured->noExtensions() ? [] : $configured->extensionBootstrappers() as $extension) {
        $bootstrapper->bootstrap($extension['className'], $extension['parameters']);
    }
    Results::init();
    if (class_exists('PHPUnit\Runner\DeprecationCollector\Facade')) {
        \PHPUnit\Runner\DeprecationCollector\Facade::init();
    }
    $listener = new Listener($report, max(1, (int) ceil((float) $perTest)));
    Events::instance()->registerTracer($listener);
    Events::instance()->seal();
    $canaries = canaries(min(count($files), 60) + 1);
    $added = count($canaries);
    $suite = TestSuite::empty('m3agent');
    $suite->addTestSuite(new \ReflectionClass(array_pop($canaries)));
    $loaded = [];
    foreach ($files as $file) {
        $report->write('plan', $file);
        try {
            $suite->addTestFile(getcwd() . '/' . $file);
            $loaded[] = $file;
        } catch (\Throwable $error) {
            $where = $error->getMessage() . ' in ' . $error->getFile() . ':' . $error->getLine();
            $report->write('result', $file, [], 'error', get_class($error) . ': ' . $where);
        }
        if ($canaries) {
            $suite->addTestSuite(new \ReflectionClass(array_pop($canaries)));
        }
    }
    (new TestRunner())->run($configured, new NullResultCache(), $suite);
    if (!$listener->finished) {
        fwrite(STDERR, "m3agent: PHPUnit ended before all tests ran\n");
        exit(3);
    }
    foreach ($loaded as $file) {
        $report->write('unit', $file);
    }
    $report->write('canaries', $added, ...$listener->canaries());
    $report->write('end');
}

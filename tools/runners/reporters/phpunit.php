<?php
// Run files of PHPUnit and write the records that m3agent.tools.runners.records reads.
//
// The classes below are for PHPUnit 9; those for later versions are in `phpunit_events.php`.
// Each file is loaded by itself, so a file that cannot be loaded is one red test, and the others run.

namespace M3agent;

use PHPUnit\Framework\AssertionFailedError;
use PHPUnit\Framework\ErrorTestCase;
use PHPUnit\Framework\Test;
use PHPUnit\Framework\TestCase;
use PHPUnit\Framework\TestListener;
use PHPUnit\Framework\TestListenerDefaultImplementation;
use PHPUnit\Framework\TestResult;
use PHPUnit\Framework\TestSuite;
use PHPUnit\Framework\Warning;
use PHPUnit\Framework\WarningTestCase;
use PHPUnit\TextUI\Command;
use PHPUnit\TextUI\TestRunner;

final class Report
{
    private $context;
    private $output;
    private $number = 0;
    private $process;

    public function __construct(string $path, string $keyFile)
    {
        $this->context = hash_init('sha256', HASH_HMAC, hex2bin(trim(file_get_contents($keyFile))));
        unlink($keyFile);
        $this->output = fopen($path, 'xb');
        $this->process = getmypid();
    }

    public function write(...$record): void
    {
        if (getmypid() !== $this->process) {
            return; // a process that a test forked
        }
        $caller = debug_backtrace(DEBUG_BACKTRACE_IGNORE_ARGS, 1)[0]['file'] ?? '';
        $this->put($record);
        if ($caller !== __FILE__ && $caller !== events()) {
            $this->put(['tampering', 'the test reporter was called by other code']);
        }
    }

    private function put(array $record): void
    {
        $this->number++;
        $body = $this->number . "\t" . json_encode($record, JSON_INVALID_UTF8_SUBSTITUTE | JSON_UNESCAPED_SLASHES);
        $context = hash_copy($this->context);
        hash_update($context, $body);
        fwrite($this->output, $body . "\t" . hash_final($context) . "\n");
        fflush($this->output);
    }
}

/** Return the path of the reporter for PHPUnit 10 and later, which lies beside this file. */
function events(): string
{
    return substr(__FILE__, 0, -strlen('php')) . 'events';
}

/** Read the key, and load PHPUnit. */
function prepare(array $argv): array
{
    [, $reportPath, $keyFile, $filesFile, $perTest, $autoload, $configuration] = $argv;
    $report = new Report($reportPath, $keyFile);
    $files = array_filter(explode("\n", file_get_contents($filesFile)));
    // A project's own PHPUnit comes with its autoloader; otherwise the system's is used.
    $projects = is_file('vendor/autoload.php') ? getcwd() . '/vendor/autoload.php' : $autoload;
    define('PHPUNIT_COMPOSER_INSTALL', is_dir('vendor/phpunit/phpunit') ? $projects : 'PHPUnit/Autoload.php');
    require PHPUNIT_COMPOSER_INSTALL;
    if (!class_exists(Command::class) && !interface_exists('PHPUnit\Event\Tracer\Tracer')) {
        fwrite(STDERR, "m3agent: this version of PHPUnit is not supported: m3agent runs PHPUnit 9 and later\n");
        exit(3);
    }
    // Loaded now, so that no other code can take the names of these classes.
    $folder = dirname((new \ReflectionClass(TestCase::class))->getFileName(), 2);
    foreach (['Framework/Assert', 'Framework/Constraint', 'Framework/TestStatus', 'Event/'] as $part) {
        foreach (new \RecursiveIteratorIterator(new \RecursiveDirectoryIterator($folder)) as $file) {
            if ($file->getExtension() === 'php' && strpos($file->getPathname(), "$folder/$part") === 0 && $file->getFilename() !== 'Functions.php') {
                require_once $file->getPathname();
            }
        }
    }
    array_map('class_exists', [TestResult::class, TestSuite::class, TestRunner::class, AssertionFailedError::class]);

    return [$report, $files, $perTest, $projects, $configuration];
}

/** Return whether the code of a test says that it expects something. */
function expects(TestCase $test): bool
{
    for ($class = new \ReflectionClass($test); $class && $class->getName() !== TestCase::class; $class = $class->getParentClass()) {
        foreach ([$class, ...array_values($class->getTraits())] as $part) {
            if (stripos((string) file_get_contents((string) $part->getFileName()), 'expect') !== false) {
                return true;
            }
        }
    }

    return false;
}

/** Let an alarm end a test. Return its seconds, 0 if this PHP has no alarms. */
function limited(int $seconds): int
{
    if (!function_exists('pcntl_alarm')) {
        return 0;
    }
    pcntl_async_signals(true);
    pcntl_signal(SIGALRM, static function () use ($seconds): void {
        throw new \RuntimeException("m3agent: the test took more than $seconds s");
    });

    return $seconds;
}

/** Return the names of new classes, each with a test that cannot pass. */
function canaries(int $number): array
{
    $names = [];
    for (; $number > 0; $number--) {
        $first = random_int(2, 900);
        $second = $first + random_int(1, 90);
        $name = "Case$first$number" . 'Test';
        eval("namespace M3agent; final class $name extends Canary { public function testValue(): void { "
            . "\$value = $first; \$this->assertSame($second, \$value); } }");
        $names[] = "M3agent\\$name";
    }

    return $names;
}

$prepared = prepare($argv); // the classes below need PHPUnit
if (!class_exists(Command::class)) {
    require events();
    runEvents(...take($prepared));

    return;
}

abstract class Canary extends TestCase
{
}

final class Listener implements TestListener
{
    use TestListenerDefaultImplementation;

    private const OUTCOMES = [
        0 => 'passed', // PHPUnit\Runner\BaseTestRunner's numbers
        1 => 'skipped',
        2 => 'skipped',
        3 => 'failed',
        4 => 'error',
        5 => 'error',
        6 => 'passed', // a warning such as the use of a deprecated assertion
    ];
    private $report;
    private $seconds;
    private $place;
    private $suites = [];
    public $finished = false;
    private $risky = [];
    private $event = 'passed';
    private $texts = [];
    private $canaries = [0, 0];

    public function __construct(Report $report, int $seconds)
    {
        $this->report = $report;
        $this->seconds = limited($seconds);
        $this->place = (new \ReflectionClass(TestResult::class))->getFileName();
    }

    public function canaries(): array
    {
        return $this->canaries;
    }

    public function startTestSuite(TestSuite $suite): void
    {
        $this->suites[] = $suite->getName();
    }

    public function endTestSuite(TestSuite $suite): void
    {
        array_pop($this->suites);
        $this->finished = !$this->suites; // the outermost suite ended by itself
    }

    public function startTest(Test $test): void
    {
        $this->called();
        $this->risky = $this->texts = [];
        $this->event = 'passed';
        if (!$test instanceof Canary) {
            $this->report->write('start', ...$this->names($test));
        }
        if ($this->seconds) {
            pcntl_alarm($this->seconds);
        }
    }

    public function addError(Test $test, \Throwable $error, float $time): void
    {
        $this->event = 'error';
        $this->texts[] = $this->text($error);
    }

    public function addIncompleteTest(Test $test, \Throwable $error, float $time): void
    {
        $this->event = 'skipped';
    }

    public function addSkippedTest(Test $test, \Throwable $error, float $time): void
    {
        $this->event = 'skipped';
    }

    public function addFailure(Test $test, AssertionFailedError $error, float $time): void
    {
        $this->event = 'failed';
        $this->texts[] = $this->text($error);
    }

    public function addWarning(Test $test, Warning $error, float $time): void
    {
        $this->texts[] = $this->text($error);
    }

    public function addRiskyTest(Test $test, \Throwable $error, float $time): void
    {
        $this->risky[] = $this->text($error);
    }

    public function endTest(Test $test, float $time): void
    {
        $this->called();
        if ($this->seconds) {
            pcntl_alarm(0);
        }
        // The status is the test's own, so that it also counts if somebody stands between PHPUnit and this object. A test
        // in a process of its own and a .phpt file have none.
        $outcome = self::OUTCOMES[$test instanceof TestCase ? $test->getStatus() : -1] ?? $this->event;
        if ($test instanceof WarningTestCase) {
            $outcome = 'skipped'; // a class without tests
        } elseif ($test instanceof ErrorTestCase) {
            $outcome = 'error';
        } elseif ($outcome === 'passed' && $this->risky) {
            $outcome = 'error';
        }
        if ($test instanceof Canary) {
            $this->canaries[0]++;
            $this->canaries[1] += $outcome === 'passed' ? 1 : 0;

            return;
        }
        if ($outcome === 'passed' && $test instanceof TestCase && $test->getExpectedException() !== null && !expects($test)) {
            $this->report->write('tampering', 'other code than that of a test expected an exception');
        }
        $text = $outcome === 'passed' ? '' : implode("\n", $this->texts ?: $this->risky);
        [$file, $names] = $this->names($test);
        $this->report->write('result', $file, $names, $outcome, $text);
    }

    private function called(): void
    {
        if ((debug_backtrace(DEBUG_BACKTRACE_IGNORE_ARGS, 2)[1]['file'] ?? '') !== $this->place) {
            $this->report->write('tampering', 'the test listener was called by other code');
        }
    }

    private function names(Test $test): array
    {
        if (!$test instanceof TestCase) {
            return [method_exists($test, 'getName') ? $test->getName() : get_class($test), ['phpt']];
        }
        if ($test instanceof WarningTestCase || $test instanceof ErrorTestCase) {
            $name = (string) end($this->suites); // of a class, or of a class and a method with a data provider
            [$class, $method] = explode('::', $name, 2) + [1 => ''];
            if (preg_match('/\bfor ([\w\\\\]+)::(\w+) /', $test->getMessage(), $found)) {
                [, $class, $method] = $found;
            }
        } else {
            [$class, $method] = [get_class($test), $test->getName()];
        }
        $file = class_exists($class, false) ? (new \ReflectionClass($class))->getFileName() : '';
        $file = preg_replace('#^' . preg_quote(getcwd(), '#') . '/#', '', (string) $file);

        return [$file ?: 'unknown', array_values(array_filter([$class, $method], 'strlen'))];
    }

    private function text(\Throwable $error): string
    {
        $places = [['file' => $error->getFile(), 'line' => $error->getLine()], ...$error->getTrace()];
        $mine = array_filter($places, static function (array $place): bool {
            return strpos($place['file'] ?? '', getcwd() . '/') === 0;
        });
        $place = reset($mine) ?: $places[0];

        return get_class($error) . ': ' . $error->getMessage() . "\n" . $place['file'] . ':' . $place['line'];
    }
}

final class Main extends Command
{
    public $files;
    public $report;
    public $listener;
    public $loaded = [];
    public $added = 0;

    protected function handleCustomTestSuite(): void
    {
        $this->arguments['test'] = new TestSuite('m3agent'); // so that PHPUnit does not load all files at once
    }

    protected function createRunner(): TestRunner
    {
        // The bootstrap file has run.
        $canaries = canaries(min(count($this->files), 60) + 1); // before PHPUnit looks for new classes
        $this->added = count($canaries);
        $suite = new TestSuite(''); // with a name, PHPUnit would look for a class
        $suite->addTestSuite(array_pop($canaries));
        foreach ($this->files as $file) {
            try {
                $suite->addTestFile(getcwd() . '/' . $file);
                $this->loaded[] = $file;
            } catch (\Throwable $error) {
                $GLOBALS['__PHPUNIT_ISOLATION_EXCLUDE_LIST'][] = getcwd() . '/' . $file; // for tests in other processes
                $text = get_class($error) . ': ' . $error->getMessage() . ' in ' . $error->getFile() . ':' . $error->getLine();
                $this->report->write('result', $file, [], 'error', $text);
            }
            if ($canaries) {
                $suite->addTestSuite(array_pop($canaries));
            }
        }
        $this->arguments['test'] = $suite;
        $this->arguments['listeners'][] = $this->listener;
        foreach (['Defect', 'Error', 'Failure', 'Warning', 'Incomplete', 'Risky', 'Skipped'] as $kind) {
            $this->arguments["stopOn$kind"] = false;
        }

        return parent::createRunner();
    }
}

/** Run the files. No global variable keeps an object: PHPUnit may store and restore these variables for a test. */
function run(Report $report, array $files, string $perTest, string $projects, string $configuration): void
{
    foreach ($files as $file) {
        $report->write('plan', $file);
    }
    $main = new Main();
    $main->report = $report;
    $main->files = $files;
    $main->listener = new Listener($report, max(1, (int) ceil((float) $perTest)));
    $arguments = ['phpunit', '--do-not-cache-result', '--colors=never', '--order-by=default', '--no-coverage', '--no-logging'];
    if ($configuration !== '') {
        array_push($arguments, '--configuration', $configuration);
    }
    $text = $configuration === '' ? '' : (string) file_get_contents($configuration);
    if (is_file($projects) && !preg_match('/<phpunit[^>]*\sbootstrap\s*=/', $text)) {
        array_push($arguments, '--bootstrap', $projects);
    } elseif (is_file($projects)) {
        require_once $projects;
    }
    $main->run($arguments, false);
    if (!$main->listener->finished) {
        fwrite(STDERR, "m3agent: PHPUnit ended before all tests ran\n");
        exit(3);
    }
    foreach ($main->loaded as $file) {
        $report->write('unit', $file);
    }
    [$ran, $passed] = $main->listener->canaries();
    $report->write('canaries', $main->added, $ran, $passed);
    $report->write('end');
}

function take(?array &$variable): array
{
    $value = $variable;
    $variable = null;

    return $value;
}

run(...take($prepared));

"""Build and run Go tests inside a sandbox, and write what happens as records.

    python3 go_tests.py PLAN    # a JSON object: work, report, key_file, tests, per_test, total

`go test` builds all packages, but starts `COLLECT` in place of each test program: no code of the repository runs during
the build. Go's own package `testing` is replaced for this build by a copy that reports to this process (`go_reporter.go`).
Then each program runs here. If it ends early, the tests that have not run yet run in a new process.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import os
import re
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from m3agent.tools.in_sandbox.record_writer import RecordWriter
else:  # in the sandbox
    from record_writer import RecordWriter

COLLECT = """\
#!/bin/sh
folder=$(mktemp -d "$M3AGENT_PROGRAMS/XXXXXX") && ln "$1" "$folder/program" && cp "${1%/*}/_testmain.go" "$folder/" &&
pwd -P > "$folder/cwd"
"""
"""Program that `go test -exec` starts in place of a test program: it keeps the program and its list of tests."""
HOOKS = (
    ("testing.go", r"(?<= )runTests(?=\(m\.deps\.MatchString, m\.tests, deadline\)\n)", "m3agentRunTests"),
    ("testing.go", r"(?<=\nfunc \(m \*M\) Run\(\) \(code int\) \{\n)", "\tdefer m3agentDone()\n"),
    ("testing.go", r"(?<=\nfunc tRunner\(t \*T, fn func\(t \*T\)\) \{\n)", "\tm3agentStart(t.name)\n"),
    ("testing.go", r"(?<=\nfunc \(t \*T\) report\(\) \{\n)", "\tm3agentResult(&t.common)\n"),
    ("fuzz.go", r"(?<=\nfunc fRunner\(f \*F, fn func\(\*F\)\) \{\n)", "\tm3agentStart(f.name)\n"),
    ("fuzz.go", r"(?<=\nfunc \(f \*F\) report\(\) \{\n)", "\tm3agentResult(&f.common)\n"),
    (
        "run_example.go",
        r"(?<=\nfunc runExample\(eg InternalExample\) \(ok bool\) \{\n)",
        "\tm3agentStart(eg.Name)\n",
    ),
    (
        "example.go",
        r"(\nfunc \(eg \*InternalExample\) processRunResult\(stdout string, [^\n]*\) \(passed bool\) \{\n)",
        r"\1\tdefer func() { m3agentExample(eg, stdout, passed) }()" + "\n",
    ),
)
"""Changes to Go's package `testing`: file, place, text."""
CANARIES = 5
"""Number of tests in `go_reporter.go` that must fail, before and after the tests of a package."""
MOST_TEXT = 8 << 10
MOST_PROCESSES = 50
"""Most processes of one package."""
NOT_CODE = re.compile(r"""//[^\n]*|/\*.*?\*/|`[^`]*`|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'""", re.DOTALL)


class Problem(Exception):
    """Why no test can run."""


class Package:
    """A package with tests: its folder, the files of its tests and of its external tests."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        """Take an object that `go list` printed."""
        self.folder: str = entry["Dir"]
        self.name = entry["ImportPath"]
        self.files = {"_test": entry.get("TestGoFiles") or [], "_xtest": entry.get("XTestGoFiles") or []}
        self.imports = {
            each for key in ("Deps", "TestImports", "XTestImports") for each in entry.get(key) or []
        }
        self.error = (entry.get("Error") or {}).get("Err", "")
        self.program = ""
        self.tests: list[tuple[str, str]] = []
        """File and name of each test, in the order in which they run."""

    @property
    def unit(self) -> str:
        """Its folder, relative to the module."""
        return os.path.relpath(self.folder)

    def collected(self, folder: str) -> None:
        """Note the program in a folder that `COLLECT` made, and its tests."""
        self.program = os.path.join(folder, "program")
        with open(os.path.join(folder, "_testmain.go"), encoding="utf-8") as file:
            text = file.read()
        named = {kind: self._functions(kind) for kind in self.files}
        for section in ("tests", "fuzzTargets", "examples"):
            found = re.search(r"^var %s = [^\n]*\{\n(.*?)^\}" % section, text, re.DOTALL | re.MULTILINE)
            for name, kind in re.findall(
                r'^\t\{"([^"]+)", (_x?test)\.', found[1] if found else "", re.MULTILINE
            ):
                self.tests.append((named[kind].get(name, self.unit), name))

    def _functions(self, kind: str) -> dict[str, str]:
        found = {}
        for name in self.files[kind]:
            path = os.path.join(self.folder, name)
            with open(path, encoding="utf-8", errors="replace") as file:
                code = NOT_CODE.sub("", file.read())
            for function in re.findall(r"^func\s+(\w+)\s*\(", code, re.MULTILINE):
                found[function] = os.path.relpath(path)
        return found


def main(plan: Mapping[str, Any]) -> None:
    """Build and run the tests of a plan."""
    writer = RecordWriter(plan["report"], plan["key_file"])
    try:
        packages, key = build(plan)
    except Problem as problem:
        writer.write("problem", str(problem))
        return
    for package in packages:
        writer.write("plan", package.unit)
        if not package.program:
            writer.write("broken", package.unit, package.error)
    end = time.monotonic() + plan["total"]
    runs = [Run(package, plan, key, writer, end) for package in packages if package.program]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        done = [pool.submit(run.all) for run in runs]
        for future in done:
            future.result()
    writer.write("end")


def build(plan: Mapping[str, Any]) -> tuple[list[Package], str]:
    """Build the programs; return the packages with tests and the key of the programs' reports."""
    work, wanted = plan["work"], plan["tests"]
    patterns = sorted(wanted) or ["./..."]
    try:
        goroot = go("env", "GOROOT").stdout.strip()
        version = go("env", "GOVERSION").stdout.strip()
    except FileNotFoundError:
        raise Problem("go is not installed in the sandbox") from None
    packages = {package.folder: package for package in listed(patterns)}
    overlay = os.path.join(work, "overlay.json")
    with open(overlay, "w") as file:
        json.dump({"Replace": replaced(os.path.join(goroot, "src", "testing"), version, work)}, file)
    programs = tempfile.mkdtemp(dir=work)
    collect = os.path.join(work, "collect")
    with open(collect, "w") as file:
        file.write(COLLECT)
    os.chmod(collect, 0o755)
    key = secrets.token_hex(32)
    built = go(
        *("test", "-exec", collect, "-overlay", overlay, "-count=1"),
        *("-ldflags", "-s -w -X testing.m3agentKey=" + key, *patterns),
        env={**os.environ, "M3AGENT_PROGRAMS": programs},
    )
    for name in os.listdir(programs):
        folder = os.path.join(programs, name)
        if os.path.exists(os.path.join(folder, "cwd")):
            with open(os.path.join(folder, "cwd")) as file:
                packages[file.read().strip()].collected(folder)
    errors = sections(built.stderr)
    for package in packages.values():
        imported = "".join(errors.get(name, "") for name in sorted(package.imports))
        text = errors.get(package.name) or package.error or imported or built.stderr or built.stdout
        package.error = text.strip()[:MOST_TEXT]
    return sorted(packages.values(), key=lambda package: package.folder), key


def listed(patterns: Sequence[str]) -> list[Package]:
    """Return the packages with tests, as `go list` finds them."""
    done = go("list", "-e", "-json", "--", *patterns)
    decoder = json.JSONDecoder()
    text = done.stdout.strip()
    found = []
    while text:
        try:
            entry, at = decoder.raw_decode(text)
        except ValueError:
            break
        text = text[at:].lstrip()
        files = [name for key in ("Test", "XTest", "Invalid") for name in entry.get(key + "GoFiles") or []]
        if entry.get("Dir") and any(name.endswith("_test.go") for name in files):
            found.append(Package(entry))
    if not found and done.returncode:
        raise Problem("go list failed: " + done.stderr.strip()[:MOST_TEXT])
    return found


def replaced(source: str, version: str, work: str) -> dict[str, str]:
    """Write the changed files of package `testing`; return the replacement of each."""
    here = os.path.dirname(os.path.abspath(__file__))
    texts: dict[str, str] = {}
    for name, place, text in HOOKS:
        path = os.path.join(source, name)
        if name == "fuzz.go" and not os.path.exists(path):
            continue  # before Go 1.18
        if path not in texts:
            with open(path, encoding="utf-8") as file:
                texts[path] = file.read()
        texts[path], count = re.subn(place, text, texts[path])
        if count != 1:
            raise Problem("m3agent does not know the package testing of %s" % version)
    path = os.path.join(source, "testing.go")
    with open(os.path.join(here, "go_reporter.go"), encoding="utf-8") as file:
        _, imports, reporter = re.split(
            r"^import \(\n(.*?)^\)\n", file.read(), flags=re.DOTALL | re.MULTILINE
        )
    # not a file of its own: `go vet` does not see added files
    missing = [line for line in imports.splitlines(True) if "\n" + line not in texts[path]]
    texts[path] = texts[path].replace("\nimport (\n", "\nimport (\n" + "".join(missing), 1) + reporter
    folder = os.path.join(work, "testing")
    os.makedirs(folder, exist_ok=True)
    found = {}
    for path, text in texts.items():
        found[path] = os.path.join(folder, os.path.basename(path))
        with open(found[path], "w", encoding="utf-8") as file:
            file.write(text)
    return found


def sections(text: str) -> dict[str, str]:
    """Return the go command's errors by package, from the lines behind each line `# package [package.test]`."""
    parts = re.split(r"^# (\S+)[^\n]*\n", text, flags=re.MULTILINE)
    found: dict[str, str] = {}
    for name, part in zip(parts[1::2], parts[2::2]):
        if part not in found.get(name, ""):
            found[name] = found.get(name, "") + part
    return found


def go(*words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the go command."""
    return subprocess.run(
        ["go", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        env=env,
        check=False,
    )


class Run:
    """The run of one package's tests, in one process or more."""

    def __init__(
        self, package: Package, plan: Mapping[str, Any], key: str, writer: RecordWriter, end: float
    ) -> None:
        self.package = package
        self.per_test = plan["per_test"]
        self.key = key
        self.writer = writer
        self.end = end
        names = (plan["tests"] or {}).get("./" + package.unit if package.unit != "." else ".")
        self.wanted = [test for test in package.tests if not names or test[1] in names]
        self.whole = not names
        self.known: set[tuple[str, str]] = set()
        """Tests that began, as file and name."""
        self.told: set[tuple[str, str]] = set()
        """Tests for which the report has a start."""
        self.finished: set[tuple[str, str]] = set()
        self.open: dict[str, list[str]] = {}
        """Files of the running tests by name: a package and its external tests may have tests with the same name."""
        self.begun: list[str] = []
        """Names of the tests that began in the present process."""
        self.canaries = self.canary_names()

    def canary_names(self) -> set[str]:
        """Return the names of the tests in `go_reporter.go` that must fail."""
        texts = [self.key + when + str(i) for when in ("before", "after") for i in range(CANARIES)]
        return {"Test" + hashlib.sha256(text.encode()).hexdigest()[:12].upper() for text in texts}

    def all(self) -> None:
        """Run all wanted tests; write the package's end if each of them began."""
        done = self.process(None if self.whole else self.wanted)
        processes = 1
        while not done and processes < MOST_PROCESSES and time.monotonic() < self.end:
            left = [test for test in self.wanted if test not in self.known]
            before = len(left)
            if not left:
                break
            done = self.process(left)
            processes += 1
            if len([test for test in self.wanted if test not in self.known]) == before:
                break
        missing = [test for test in self.wanted if test not in self.finished]
        for test in missing:
            self.result(test, "error", "it did not run: the test process ended without it")
        if not missing:
            self.writer.write("unit", self.package.unit)

    def start(self, name: str) -> None:
        """Note that a test began."""
        top = name.split("/")[0]
        if name == top:
            files = [file for file, known in self.package.tests if known == name] or [self.package.unit]
            running = self.open.setdefault(name, [])
            running.append(files[min(self.begun.count(name), len(files) - 1)])
            self.begun.append(name)
            test = (running[-1], name)
        else:
            test = self.test(name)
        self.known.add(test)
        if test not in self.told:
            self.told.add(test)
            self.writer.write("start", test[0], [name])

    def result(self, test: tuple[str, str], outcome: str, text: str) -> None:
        """Write the result of a test."""
        self.finished.add(test)
        self.writer.write("result", test[0], [test[1]], outcome, text)

    def test(self, name: str) -> tuple[str, str]:
        """Return file and name of a running test."""
        return (self.open.get(name.split("/")[0]) or [self.package.unit])[0], name

    def process(self, tests: Sequence[tuple[str, str]] | None) -> bool:
        """Run tests in one process; return whether it came to its end.

        Tests during which it ended early are red. If several were running, each of them runs again on its own.
        """
        argv = [self.package.program, "-test.paniconexit0", "-test.timeout=0"]
        if tests is not None:
            argv.append("-test.run=^(%s)$" % "|".join(sorted({re.escape(name) for _, name in tests})))
        self.open, self.begun = {}, []
        child = Child(argv, self.package.folder, self.key, self.per_test, self.end)
        failed = False
        for kind, name, outcome, text in child.events():
            if name.split("/")[0] in self.canaries:
                if kind == "result" and "/" not in name:
                    child.canaries[name] = outcome
            elif kind == "start":
                self.start(name)
            elif kind == "result":
                failed = failed or outcome == "failed"
                test = self.test(name)
                if "/" not in name:
                    self.open[name] = self.open.get(name, [])[1:]
                self.result(test, outcome, text)
        for sign in child.signs(self.canaries):
            self.writer.write("tampering", "%s: %s" % (self.package.unit, sign))
        started = self.known - self.finished
        top = sorted(test for test in started if "/" not in test[1])
        if len(top) > 1 and not child.out_of_time:
            self.known -= started
            for test in top:
                self.process([test])
            started = self.known - self.finished
        for test in sorted(started):
            self.result(test, "failed", child.reason())
        if child.done and child.status and not failed:
            self.writer.write(
                "broken",
                self.package.unit,
                "it ended with status %d although no test failed\n%s" % (child.status, child.output()),
            )
        return child.done


class Child:
    """A test program, its report and its output."""

    def __init__(self, argv: Sequence[str], folder: str, key: str, per_test: float, end: float) -> None:
        self.key = key
        self.per_test = per_test
        self.end = end
        self.done = False
        self.hung = False
        self.out_of_time = False
        self.status = 0
        self.invalid = 0
        self.canaries: dict[str, str] = {}
        self._output = tempfile.TemporaryFile()
        self._report, theirs = os.pipe()
        self._process = subprocess.Popen(
            argv,
            cwd=folder,
            env={**os.environ, "PWD": folder, "M3AGENT_REPORT": str(theirs)},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs],
            start_new_session=True,
        )
        os.close(theirs)

    def events(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield kind, name, outcome and text of each authentic line until the process ends or hangs."""
        rest = b""
        number = 0
        open_tests = 0
        heard = time.monotonic()
        while True:
            now = time.monotonic()
            # the time between tests is for set-up, such as TestMain
            silence = self.per_test if open_tests else 3 * self.per_test
            self.hung = now > heard + silence
            self.out_of_time = now > self.end
            if self.hung or self.out_of_time:
                break
            ready, _, _ = select.select([self._report], [], [], 0.05)
            chunk = os.read(self._report, 1 << 16) if ready else b""
            if ready and chunk:
                heard = now
            elif ready or self._process.poll() is not None:
                # a process that a test started may hold the pipe open after the program's end
                self._ended(silence)
                break
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                event = self._authentic(line, number + 1)
                if event is None:
                    self.invalid += 1
                    continue
                number += 1
                open_tests += {"start": 1, "result": -1}.get(event[0], 0)
                if event[0] == "done":
                    self.done = True
                else:
                    yield event
        os.close(self._report)
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.status = self._process.wait()

    def _ended(self, silence: float) -> None:
        """Wait for the end of the program, which has closed its report."""
        try:
            self._process.wait(max(0.0, min(silence, self.end - time.monotonic())))
        except subprocess.TimeoutExpired:
            self.hung = True

    def _authentic(self, line: bytes, number: int) -> tuple[str, str, str, str] | None:
        """Return kind, name, outcome and text of a line with the right code and number."""
        body, _, code = line.rpartition(b" ")
        key = self.key.encode()
        if hashlib.sha256(key + body + key).hexdigest().encode() != code:
            return None
        first, kind, *fields = body.decode().split(" ")
        name, outcome, text = (
            bytes.fromhex(field.rstrip(".")).decode("utf-8", "replace") for field in fields
        )
        return (kind, name, outcome, text) if int(first) == number else None

    def signs(self, canaries: set[str]) -> Iterator[str]:
        """Return signs that the program tampered with its report."""
        if self.invalid:
            yield "something else than the tests wrote into their report"
        passed = sum(outcome != "failed" for outcome in self.canaries.values())
        if passed:
            yield "a test that must fail did not fail"
        elif self.done and set(self.canaries) != canaries:
            yield "a test that must fail did not run"

    def reason(self) -> str:
        """Return why the tests that were running have no result."""
        if self.hung:
            return "timed out after %g s\n%s" % (self.per_test, self.output())
        if self.out_of_time:
            return "timed out: the time of the whole run was over\n" + self.output()
        return "the test process ended during this test with status %d\n%s" % (self.status, self.output())

    def output(self) -> str:
        """Return the end of the output; of a panic, its beginning."""
        self._output.seek(0)
        text = self._output.read().decode("utf-8", "replace")
        at = max(
            text.rfind("\npanic: "), text.rfind("\nfatal error: "), 0 if text.startswith("panic: ") else -1
        )
        return text[at:].strip()[:MOST_TEXT] if at >= 0 else text[-MOST_TEXT:].strip()


if __name__ == "__main__":
    with open(sys.argv[1]) as plan_file:
        main(json.load(plan_file))

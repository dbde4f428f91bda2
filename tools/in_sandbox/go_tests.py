"""Build and run Go tests inside a sandbox, and write what happens as records.

    python3 go_tests.py PLAN    # a JSON object: work, report, key_file, cache, tests, per_test, total

`go test` builds all packages, but starts `COLLECT` in place of each test program: no code of the repository runs during
the build. Go's own package `testing` is replaced for this build by a copy that reports to this process (`go_reporter.go`).
Then each program runs here. If it ends early, the tests that have not run yet run in a new process.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from m3agent.tools.in_sandbox.record_writer import RecordWriter
from m3agent.tools.in_sandbox.test_process import (
    MOST_TEXT,
    Child,
    Problem,
    Run,
    Unit,
    run_plan,
    run_tool,
    with_links_to,
)

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
NOT_CODE = re.compile(r"""//[^\n]*|/\*.*?\*/|`[^`]*`|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'""", re.DOTALL)


class Package(Unit):
    """A package with tests: its folder, the files of its tests and of its external tests."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.folder: str = entry["Dir"]
        self.unit = os.path.relpath(self.folder)
        self.name = entry["ImportPath"]
        self.files = {"_test": entry.get("TestGoFiles") or [], "_xtest": entry.get("XTestGoFiles") or []}
        self.imports = {
            each for key in ("Deps", "TestImports", "XTestImports") for each in entry.get(key) or []
        }
        self.error = (entry.get("Error") or {}).get("Err", "")
        self.key = ""
        """Key of its program's report."""
        self.tests: list[tuple[str, str]] = []
        """File and name of each test, in the order in which they run."""

    def collected(self, folder: str) -> None:
        """Note the program in a folder that `COLLECT` made, and its tests."""
        self.program = os.path.join(folder, "program")
        with open(os.path.join(folder, "_testmain.go"), encoding="utf-8") as file:
            text = file.read()
        named = {kind: self._functions(kind) for kind in self.files}
        for section in ("tests", "fuzzTargets", "examples"):
            section_text = re.search(
                r"^var %s = [^\n]*\{\n(.*?)^\}" % section, text, re.DOTALL | re.MULTILINE
            )
            for name, kind in re.findall(
                r'^\t\{"([^"]+)", (_x?test)\.', section_text[1] if section_text else "", re.MULTILINE
            ):
                self.tests.append((named[kind].get(name, self.unit), name))

    def _functions(self, kind: str) -> dict[str, str]:
        functions = {}
        for name in self.files[kind]:
            path = os.path.join(self.folder, name)
            with open(path, encoding="utf-8", errors="replace") as file:
                code = NOT_CODE.sub("", file.read())
            for function in re.findall(r"^func\s+(\w+)\s*\(", code, re.MULTILINE):
                functions[function] = os.path.relpath(path)
        return functions


def build(plan: Mapping[str, Any], _: RecordWriter) -> list[Package]:
    work, wanted = plan["work"], plan["tests"]
    patterns = sorted(wanted) or ["./..."]
    try:
        goroot, version = (run_tool("go", "env", name).stdout.strip() for name in ("GOROOT", "GOVERSION"))
    except FileNotFoundError:
        raise Problem("go is not installed in the sandbox") from None
    fill_cache(plan["cache"], os.environ["GOCACHE"])
    packages = {package.folder: package for package in listed(patterns)}
    overlay = os.path.join(work, "overlay.json")
    with open(overlay, "w") as file:
        json.dump(
            {"Replace": replaced(os.path.join(goroot, "src", "testing"), version, work, reporter_name(work))},
            file,
        )
    programs = tempfile.mkdtemp(dir=work)
    collect = os.path.join(work, "collect")
    with open(collect, "w") as file:
        file.write(COLLECT)
    os.chmod(collect, 0o755)
    key, prefix = os.urandom(32).hex(), reporter_name(work)
    built = run_tool(
        *("go", "test", "-exec", collect, "-overlay", overlay, "-count=1"),
        *("-ldflags", "-s -w -X testing.%sKey=%s" % (prefix, key), *patterns),
        env={"M3AGENT_PROGRAMS": programs},
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
        package.error, package.key = text.strip()[:MOST_TEXT], key
    return sorted(packages.values(), key=lambda package: package.folder)


def fill_cache(prepared: str, cache: str) -> None:
    """Make a build cache whose files are links into a prepared one, which is read-only."""
    if with_links_to(prepared, cache):
        with open(os.path.join(cache, "trim.txt"), "w") as file:
            file.write(str(int(time.time())))  # otherwise Go removes old files


def listed(patterns: Sequence[str]) -> list[Package]:
    done = run_tool("go", "list", "-e", "-json", "--", *patterns)
    decoder = json.JSONDecoder()
    text = done.stdout.strip()
    packages = []
    while text:
        try:
            entry, at = decoder.raw_decode(text)
        except ValueError:
            break
        text = text[at:].lstrip()
        files = [name for key in ("Test", "XTest", "Invalid") for name in entry.get(key + "GoFiles") or []]
        if entry.get("Dir") and any(name.endswith("_test.go") for name in files):
            packages.append(Package(entry))
    if not packages and done.returncode:
        raise Problem("go list failed: " + done.stderr.strip()[:MOST_TEXT])
    return packages


def reporter_name(work: str) -> str:
    """Return the start of the names in the reporter.

    It differs in each sandbox, so that no patch can name its functions with `go:linkname`. In a sandbox it stays, so that Go
    does not compile everything again.
    """
    path = os.path.join(work, "reporter-name")
    if not os.path.exists(path):
        with open(path, "w") as file:
            file.write("m" + os.urandom(8).hex())
    with open(path) as file:
        return file.read()


def replaced(source: str, version: str, work: str, prefix: str) -> dict[str, str]:
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
    replacements = {}
    for path, text in texts.items():
        replacements[path] = os.path.join(folder, os.path.basename(path))
        with open(replacements[path], "w", encoding="utf-8") as file:
            file.write(re.sub(r"\bm3agent(?=[A-Z])", prefix, text))
    return replacements


def sections(text: str) -> dict[str, str]:
    """Return the go command's errors by package, from the lines behind each line `# package [package.test]`."""
    parts = re.split(r"^# (\S+)[^\n]*\n", text, flags=re.MULTILINE)
    errors: dict[str, str] = {}
    for name, part in zip(parts[1::2], parts[2::2]):
        if part not in errors.get(name, ""):
            errors[name] = errors.get(name, "") + part
    return errors


class PackageRun(Run):
    """The run of a package's tests."""

    def __init__(self, package: Package, plan: Mapping[str, Any], writer: RecordWriter, end: float) -> None:
        super().__init__(package.unit, writer, end)
        self._package = package
        self._per_test = plan["per_test"]
        self._key = package.key.encode()
        names = plan["tests"].get("./" + package.unit if package.unit != "." else ".")
        self.wanted = [test for test in package.tests if not names or test[1] in names]
        self._selected = self.wanted if names else None
        texts = [package.key + when + str(i) for when in ("before", "after") for i in range(CANARIES)]
        self.canaries = {"Test" + hashlib.sha256(text.encode()).hexdigest()[:12].upper() for text in texts}
        self._open: dict[str, list[str]] = {}
        """Files of the running tests by name: a package and its external tests may have tests with the same name."""
        self._begun: list[str] = []
        """Names of the tests that began in the present process."""

    def child(self, tests: Sequence[tuple[str, str]] | None) -> Child:
        argv = [self._package.program, "-test.paniconexit0", "-test.timeout=0"]
        tests = self._selected if tests is None else tests
        if tests is not None:
            argv.append("-test.run=^(%s)$" % "|".join(sorted({re.escape(name) for _, name in tests})))
        self._open, self._begun = {}, []
        return Child(
            argv,
            self._package.folder,
            {},
            code_of=self._code_of,
            greeting=b"",
            per_test=self._per_test,
            end=self.end,
        )

    def _code_of(self, body: bytes) -> bytes:
        return hashlib.sha256(self._key + body + self._key).hexdigest().encode()

    def is_canary(self, name: str) -> bool:
        """Return whether a test, or its parent, must fail."""
        return name.split("/")[0] in self.canaries

    def began(self, name: str) -> tuple[str, str]:
        """Return the test that began: of tests with the same name, those of the package run first."""
        if "/" not in name:
            files = [file for file, known in self._package.tests if known == name] or [self.unit]
            file = files[min(self._begun.count(name), len(files) - 1)]
            self._open.setdefault(name, []).append(file)
            self._begun.append(name)
            return file, name
        return self._running(name)

    def ended(self, name: str) -> tuple[str, str]:
        test = self._running(name)
        if "/" not in name:
            del self._open.get(name, [])[:1]
        return test

    def _running(self, name: str) -> tuple[str, str]:
        return (self._open.get(name.split("/")[0]) or [self.unit])[0], name


if __name__ == "__main__":
    run_plan(build, PackageRun, os.cpu_count() or 1)

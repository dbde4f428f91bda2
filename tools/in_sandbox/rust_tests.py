"""Build and run Rust tests inside a sandbox, and write what happens as records.

    python3 rust_tests.py PLAN    # a JSON object: work, report, key_file, cache, tests, per_test, total

cargo builds all test programs; each is linked with `rust_harness.rs`, which reports to this process. Then each program runs
here. If it ends early, the tests that have not run yet run in a new process.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
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

HARNESS = "m3agent_harness"
WRAPPER = """\
#!/bin/sh
# cargo starts this in place of rustc for the packages of the workspace
case " $* " in
*" --test "*)
    for word in "$@"; do
        case $last in
        --crate-name) name=$word ;;
        --out-dir) folder=$word ;;
        esac
        case $word in
        extra-filename=*) suffix=${word#*=} ;;
        *.rs) source=$word ;;
        esac
        last=$word
    done
    # the crate must not refuse the feature below
    ! grep -qs unstable_features "$source" || set -- "$@" --cap-lints=warn
    : > "$M3AGENT_PROGRAMS/$name$suffix"
    # only here: build scripts look at this variable
    RUSTC_BOOTSTRAP=1 exec "$@" "-Zcrate-attr=feature(custom_test_frameworks)" \\
        "-Zcrate-attr=test_runner(m3agent_harness::run)" --extern "m3agent_harness=$M3AGENT_HARNESS"
    ;;
esac
exec "$@"
"""
CANARIES = 5
"""Number of tests in `rust_harness.rs` that must fail, before and after the tests of a program."""
MASK = (1 << 64) - 1


class Target(Unit):
    """A library, program or test file of a package."""

    def __init__(self, package: Mapping[str, Any], target: Mapping[str, Any]) -> None:
        self.package = package
        self.source: str = target["src_path"]
        self.folder = os.path.dirname(package["manifest_path"])
        self.unit = os.path.relpath(self.source)
        self.errors: list[str] = []

    def file(self, name: str) -> str:
        """Return the source file of a test: the one of the innermost module that has a file of its own."""
        modules = name.split("::")[:-1]
        for count in range(len(modules), 0, -1):
            stem = os.path.join(os.path.dirname(self.source), *modules[:count])
            for path in (stem + ".rs", os.path.join(stem, "mod.rs")):
                if os.path.isfile(path):
                    return os.path.relpath(path)
        return self.unit


class TargetRun(Run):
    """The run of a target's tests."""

    def __init__(self, target: Target, plan: Mapping[str, Any], writer: RecordWriter, end: float) -> None:
        super().__init__(target.unit, writer, end)
        self._target = target
        self._per_test = plan["per_test"]
        self._names = set(plan["tests"].get(os.path.relpath(target.folder), ()))
        self._key = os.urandom(16)
        texts = [when + str(number) for when in ("before", "after") for number in range(CANARIES)]
        self.canaries = {"test_%016x" % siphash(self._key, text.encode()) for text in texts}

    def child(self, tests: Sequence[tuple[str, str]] | None) -> Child:
        names = sorted(self._names) if tests is None else [name for _, name in tests]
        target = self._target
        package = target.package
        env = {
            "CARGO_MANIFEST_DIR": target.folder,
            "CARGO_PKG_NAME": package["name"],
            "CARGO_PKG_VERSION": package["version"],
            "LD_LIBRARY_PATH": os.path.dirname(target.program),
        }
        return Child(
            [target.program, *(["--exact", *names] if names else [])],
            target.folder,
            env,
            code_of=lambda body: b"%016x" % siphash(self._key, body),
            greeting=self._key,
            per_test=self._per_test,
            end=self.end,
        )

    def listed(self, name: str, outcome: str) -> None:
        test = self.began(name)
        if test in self.wanted or (self._names and name not in self._names):
            return
        self.wanted.append(test)
        if outcome:
            self.result(test, outcome, "")

    def began(self, name: str) -> tuple[str, str]:
        return self._target.file(name), name

    ended = began


class PlainRun:
    """The run of a program without libtest (`harness = false`). It is one test, and only its failure is known."""

    def __init__(self, target: Target, plan: Mapping[str, Any], writer: RecordWriter, end: float) -> None:
        self._target = target
        self._writer = writer
        self._seconds = max(1.0, min(3 * plan["per_test"], end - time.monotonic()))

    def all(self) -> None:
        unit = self._target.unit
        self._writer.write("start", unit, ["main"])
        try:
            done = subprocess.run(
                [self._target.program],
                cwd=self._target.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=self._seconds,
                check=False,
            )
            status, text = done.returncode, done.stdout.decode("utf-8", "replace")[-MOST_TEXT:]
        except subprocess.TimeoutExpired:
            status, text = -1, "timed out after %g s" % self._seconds
        # an exit status of 0 proves nothing
        self._writer.write("result", unit, ["main"], "failed" if status else "skipped", text)
        self._writer.write("unit", unit)


def build(plan: Mapping[str, Any], writer: RecordWriter) -> list[Target]:
    """Build the test programs, and look for changes that the build makes; return the targets with tests."""
    locked = os.path.exists("Cargo.lock")
    before = sources()
    try:
        targets = built_targets(plan)
    finally:
        if not locked and os.path.exists("Cargo.lock"):
            os.unlink("Cargo.lock")  # it is no part of the work
    after = sources()
    for path in sorted(before):
        if after.get(path) != before[path]:
            writer.write("tampering", "the build changed " + path)
    return targets


def run_of(target: Target, plan: Mapping[str, Any], writer: RecordWriter, end: float) -> TargetRun | PlainRun:
    """Return the run of a target's program: the wrapper noted those with the harness."""
    noted = os.path.join(plan["work"], "programs", os.path.basename(target.program))
    return (TargetRun if os.path.exists(noted) else PlainRun)(target, plan, writer, end)


def built_targets(plan: Mapping[str, Any]) -> list[Target]:
    try:
        usage = run_tool("cargo", "build", "--help").stdout
    except FileNotFoundError:
        raise Problem("cargo is not installed in the sandbox") from None
    packages = chosen_packages(plan["tests"])
    targets = {
        (package["id"], target["src_path"]): Target(package, target)
        for package in packages
        for target in package["targets"]
        if target.get("test", True) and not {"bench", "custom-build"} & set(target["kind"])
    }
    env = wrapped(plan["work"])
    with_links_to(plan["cache"], os.environ["CARGO_TARGET_DIR"])
    names = [word for package in packages for word in ("-p", package["name"])]
    built = run_tool(
        *("cargo", "build", "--tests", "--offline", "--message-format=json"),
        *(["--keep-going"] if "--keep-going" in usage else []),
        *(names if plan["tests"] else ["--workspace"]),
        env=env,
    )
    others = [text for line in built.stdout.splitlines() for text in unplaced_errors(line, targets)]
    if not any(target.program or target.errors for target in targets.values()) and built.returncode:
        raise Problem("cargo build failed: " + ("".join(others) or built.stderr).strip()[:MOST_TEXT])
    tell_errors(targets.values(), others, built.stderr)
    return sorted(targets.values(), key=lambda target: target.source)


def tell_errors(targets: Collection[Target], others: list[str], output: str) -> None:
    """Give each target the text of its errors. One that depends on a target that could not be built has none of its own."""
    everything = [text for target in targets for text in target.errors] + others
    for target in targets:
        errors = dict.fromkeys(target.errors or everything or [output[-MOST_TEXT:]])
        target.error = "".join(errors)[:MOST_TEXT]


def wrapped(work: str) -> dict[str, str]:
    """Write the wrapper of the compiler, which notes the programs with the harness; return the variables for cargo."""
    programs, wrapper = os.path.join(work, "programs"), os.path.join(work, "rustc-wrapper")
    os.makedirs(programs, exist_ok=True)
    with open(wrapper, "w") as file:
        file.write(WRAPPER)
    os.chmod(wrapper, 0o755)
    return {
        "RUSTC_WORKSPACE_WRAPPER": wrapper,
        "M3AGENT_HARNESS": harness(work),
        "M3AGENT_PROGRAMS": programs,
    }


def chosen_packages(wanted: Collection[str]) -> list[Any]:
    """Return the packages of the workspace with these folders; all if none is wanted."""
    described = run_tool("cargo", "metadata", "--format-version", "1", "--no-deps", "--offline")
    try:
        packages = json.loads(described.stdout)["packages"]
    except (ValueError, KeyError):
        raise Problem("cargo metadata failed: " + described.stderr.strip()[:MOST_TEXT]) from None
    folder_of = {id(each): os.path.relpath(os.path.dirname(each["manifest_path"])) for each in packages}
    return [package for package in packages if not wanted or folder_of[id(package)] in wanted]


def unplaced_errors(line: str, targets: Mapping[Any, Target]) -> list[str]:
    """Note the program or the error of a target that a line of cargo tells; return an error that is of none."""
    try:
        message = json.loads(line)
    except ValueError:
        return []
    target = targets.get((message.get("package_id"), (message.get("target") or {}).get("src_path")))
    kind = message.get("reason")
    if kind == "compiler-artifact" and target and message["profile"]["test"]:
        target.program = message.get("executable") or target.program
    elif kind == "compiler-message" and message["message"]["level"] == "error":
        text = message["message"].get("rendered") or message["message"]["message"]
        if target is None:
            return [text]
        target.errors.append(text)
    return []


def sources() -> dict[str, bytes]:
    """Return a digest of each source file: macros and build scripts run before the tests are compiled."""
    digests = {}
    for folder, folders, names in os.walk("."):
        folders[:] = [name for name in folders if name not in (".git", "target")]
        for name in names:
            path = os.path.join(folder, name)
            if name.endswith(".rs") and os.path.isfile(path):
                with open(path, "rb") as file:
                    digests[os.path.relpath(path)] = hashlib.sha256(file.read()).digest()
    return digests


def harness(work: str) -> str:
    path = os.path.join(work, "lib%s.rlib" % HARNESS)
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rust_harness.rs")
    if not os.path.exists(path):
        words = (
            os.environ.get("RUSTC", "rustc"),
            "--edition=2018",
            "--crate-type=rlib",
            "--crate-name=" + HARNESS,
            "-o",
            path,
            source,
        )
        done = run_tool(*words, env={"RUSTC_BOOTSTRAP": "1"})
        if done.returncode:
            raise Problem(
                "m3agent's test harness cannot be built with this rustc: " + done.stderr[:MOST_TEXT]
            )
    return path


def siphash(key: bytes, text: bytes) -> int:
    """Return SipHash-2-4, the keyed hash in Rust's standard library."""
    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    v0, v1 = k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D
    v2, v3 = k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573

    def turned(word: int, bits: int) -> int:
        return (word << bits | word >> (64 - bits)) & MASK

    padded = text + bytes(-(len(text) + 1) % 8) + bytes([len(text) & 255])
    for at in [*range(0, len(padded), 8), -1]:
        word = int.from_bytes(padded[at : at + 8], "little") if at >= 0 else 0
        v2, v3 = (v2, v3 ^ word) if at >= 0 else (v2 ^ 255, v3)
        for _ in range(2 if at >= 0 else 4):
            v0, v2 = (v0 + v1) & MASK, (v2 + v3) & MASK
            v1, v3 = turned(v1, 13) ^ v0, turned(v3, 16) ^ v2
            v0, v2 = (turned(v0, 32) + v3) & MASK, (v2 + v1) & MASK
            v3, v1 = turned(v3, 21) ^ v0, turned(v1, 17) ^ v2
            v2 = turned(v2, 32)
        v0 ^= word
    return v0 ^ v1 ^ v2 ^ v3


if __name__ == "__main__":
    run_plan(build, run_of, 1)  # each program uses all processors

"""Measure environments: build those of public projects, and count the tests that can be collected in them.

    make bench-environments [ARGS="NAME ..."]
    python -m benchmarks.environments [NAME ...] [--folder DIR] [--json FILE] [--limit SECONDS] [--fresh]

Each NAME is a project of the package index that `UV_DEFAULT_INDEX` or `PIP_INDEX_URL` names, `NAME==VERSION`, or the folder of
a clone, bare or not; without one, those of `TRIAL` and `OTHERS`. A project's source distribution becomes a git repository with
one commit and one tag, without the files that git ignores and without those that only the archive has. Nothing of it runs on this
machine. Then `m3agent sandbox build` runs, and pytest collects the tests in a sandbox, with the options that the tool test_runner
uses. Projects that the file of `--json` has already are not measured again. `--fresh` removes all environment images first.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import communicated, git, name_of, say, write_json
from packaging.utils import InvalidSdistFilename, parse_sdist_filename
from packaging.version import Version

INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "PIP_INDEX_URL")
"""Variables of uv and pip; the first that is set has the address of the package index."""
PAGE = "{}/{}/"
M3AGENT = (sys.executable, "-m", "m3agent")
TRIAL = (
    *("attrs", "flask", "rich", "asgiref", "build", "poetry-core", "structlog", "marshmallow", "pluggy"),
    *("llm", "boltons", "humanize", "yarl", "orjson", "django-debug-toolbar", "black", "httpx"),
)
"""The projects of the first trial of environments."""
OTHERS = (
    *("pytest-asyncio", "jsonschema", "filelock", "partd", "cleo", "dep-logic", "pyparsing", "packaging"),
    *("typing-extensions", "wrapt", "msgpack", "bcrypt", "django-filter", "jaraco.itertools", "jsonpointer"),
)
"""Further projects: other build backends, test runners and places of tests."""
ARCHIVE_ONLY = ("PKG-INFO", "*.egg-info")
MOST_SECONDS = 900.0
COUNT = """
import json, sys, pytest
class Count:
    tests, errors, skipped = 0, [], []
    def pytest_collection_finish(self, session):
        self.tests = len(session.items)
    def pytest_collectreport(self, report):
        if report.failed:
            self.errors.append(report.nodeid or ".")
        elif report.skipped:
            self.skipped.append(report.nodeid)
sys.path[0] = ""
count = Count()
options = ["--collect-only", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", "--rootdir=."]
status = int(pytest.main(options + sys.argv[1:], plugins=[count]))
print("\\n" + json.dumps([status, count.tests, count.errors, count.skipped]))
"""
"""Program for the sandbox. Its last line has pytest's exit code, the number of tests, and the files without tests."""


@dataclass(frozen=True)
class Measured:
    """The environment of one project.

    Attributes:
        name, version: The project.
        seconds: Wall time of `m3agent sandbox build`, with the collection that it does itself.
        status: pytest's exit code; None if pytest did not start.
        tests: Number of collected tests.
        errors: Files that cannot be imported.
        skipped: Files that skip themselves when they are imported.
        said: What `m3agent sandbox build` told people.
    """

    name: str
    version: str
    seconds: float
    status: int | None
    tests: int
    errors: list[str]
    skipped: list[str]
    said: list[str]


def index() -> str:
    """Return the address of the package index. Exits if no variable names one."""
    named = [os.environ[name] for name in INDEX_VARIABLES if os.environ.get(name)]
    if not named:
        raise SystemExit(
            f"no package index is named: set {INDEX_VARIABLES[0]} to the address of its simple pages"
        )
    return named[0].rstrip("/")


def newest_source(wanted: str) -> tuple[str, str, str]:
    """Return name, version and address of a project's newest source distribution; `NAME==VERSION` gives that one."""
    name, _, version = wanted.partition("==")
    request = urllib.request.Request(
        PAGE.format(index(), name), headers={"Accept": "application/vnd.pypi.simple.v1+json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        files = json.load(answer)["files"]
    found: list[tuple[Version, str]] = []
    for file in files:
        try:
            number = parse_sdist_filename(file["filename"])[1]
        except InvalidSdistFilename:
            continue
        plain = not number.is_prerelease and not file.get("yanked")
        if file["filename"].endswith(".tar.gz") and (number == Version(version) if version else plain):
            found.append((number, file["url"]))
    if not found:
        raise SystemExit(f"the index has no source distribution of {wanted}")
    number, address = max(found)
    return name, str(number), address


def make_repository(address: str, version: str, folder: Path) -> None:
    """Unpack a source distribution into an empty folder, and commit what git does not ignore."""
    with urllib.request.urlopen(address, timeout=300) as answer:
        content = io.BytesIO(answer.read())
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        with tarfile.open(fileobj=content) as archive:
            archive.extraction_filter = getattr(
                tarfile, "data_filter", None
            )  # Python 3.11.3 and older have none
            archive.extractall(scratch)
        (top,) = Path(scratch).iterdir()
        top.rename(folder)
    for pattern in ARCHIVE_ONLY:
        for path in [*folder.glob(pattern), *folder.glob(f"src/{pattern}")]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for args in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", version), ("tag", f"v{version}")):
        if (done := git(folder, *args)).returncode:
            raise SystemExit(f"git {args[0]} failed in {folder}: {done.stderr.decode(errors='replace')}")
    git(folder, "clean", "-q", "-f", "-d", "-X")


def m3agent(*arguments: str, limit: float = MOST_SECONDS) -> tuple[str, str]:
    """Run a command of m3agent, and interrupt it after `limit` seconds. Returns its output and its messages."""
    process = subprocess.Popen(
        [*M3AGENT, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    output, messages, late = communicated(process, limit)
    return output, f"{messages}\ninterrupted after {limit:.0f} s" if late else messages


def open_clone(wanted: str, folder: Path) -> tuple[str, str, Path] | None:
    """Return name, version and work tree of a clone, or None if there is no clone at `wanted`."""
    clone = repository = Path(wanted).resolve()
    if not (clone / ".git").exists() and not (clone / "objects").is_dir():
        return None
    if (clone / "objects").is_dir():
        repository = folder / name_of(clone).replace("/", "+")
        if not repository.exists():
            git(folder, "clone", "-q", "--shared", str(clone), str(repository))
    version = git(repository, "log", "-1", "--format=%h").stdout.decode().strip()
    return name_of(clone), version, repository


def repository_of(wanted: str, folder: Path) -> tuple[str, str, Path]:
    """Return name, version and work tree of a clone or of a project of the index, which are made unless they are there."""
    if clone := open_clone(wanted, folder):
        return clone
    name, version, address = newest_source(wanted)
    repository = folder / f"{name}-{version}"
    if not repository.exists():
        make_repository(address, version, repository)
    return name, version, repository


def measure(name: str, version: str, repository: Path, limit: float) -> Measured:
    """Build the environment of a repository and collect its tests."""
    where = ("--repo", str(repository))
    started = time.monotonic()
    _, messages = m3agent("sandbox", "build", *where, limit=limit)
    seconds = time.monotonic() - started
    listed = git(repository, "ls-files", "--stage").stdout.decode().splitlines()
    submodules = [line.partition("\t")[2] for line in listed if line.startswith("160000")]
    command = ("python3", "-c", COUNT, *(f"--ignore={path}" for path in submodules))
    output, remarks = m3agent("sandbox", "exec", *where, "--timeout", "300", "--", *command, limit=limit)
    last = (output.strip().splitlines() or [""])[-1]
    result: list[Any] = json.loads(last) if last.startswith("[") else [None, 0, [], []]
    status, tests, errors, skipped = result
    said = messages.strip().splitlines()
    if status not in {0, 5}:
        said += (output + remarks).strip().splitlines()[-30:]
    return Measured(name, version, round(seconds, 1), status, tests, errors, skipped, said)


def table(rows: list[Measured]) -> str:
    """Return the results as a table in Markdown."""
    lines = [
        "| project | tests | files with errors | files that skip themselves | seconds |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        tests = f"{row.tests:,}" if row.status in {0, 1, 2, 5} else "pytest does not start"
        lines.append(
            f"| {row.name} {row.version} | {tests} | {len(row.errors)} | {len(row.skipped)} | {row.seconds:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure the projects one after the other, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", default=[*TRIAL, *OTHERS])
    parser.add_argument("--folder", type=Path, help="where the repositories are kept (default: nowhere)")
    parser.add_argument("--json", type=Path, help="file for all results; a further call continues it")
    parser.add_argument("--limit", type=float, default=MOST_SECONDS, help="most seconds of a build")
    parser.add_argument("--fresh", action="store_true", help="remove all environment images first")
    args = parser.parse_args()
    if args.fresh:
        m3agent("sandbox", "prune", "--all")
    kept = args.json and args.json.exists()
    rows = [Measured(**row) for row in json.loads(args.json.read_text())] if kept else []
    with tempfile.TemporaryDirectory() as scratch:
        folder: Path = (args.folder or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for wanted in args.names:
            name, version, repository = repository_of(wanted, folder)
            if (name, version) in {(row.name, row.version) for row in rows}:
                continue
            row = measure(name, version, repository, args.limit)
            rows.append(row)
            say(f"{row.name} {row.version}: {row.tests} tests, {len(row.errors)} errors, {row.seconds:.0f} s")
            write_json(args.json, rows)
    print(table(rows))


if __name__ == "__main__":
    main()

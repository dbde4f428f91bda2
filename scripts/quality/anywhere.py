"""Run the tests in surroundings that a developer's machine rarely has: other clocks, dates, locales, users and paths.

    python -m scripts.quality.anywhere [--only NAME,NAME] [--unit] [--list] [PYTEST ARGUMENT ...]

`SURROUNDINGS` lists them. Several that do not exclude each other make one run, as `TOGETHER` says. If a test fails there, it runs
again in each of these surroundings alone, so that the cause is known. With `--only`, each named surrounding has its own run;
`+` joins names to one run.
The sandboxes of a Docker engine keep the machine's own clock. Interpreters that tests start with variables of their own
keep the machine's date and locale.

Exit status: 0 if all tests passed, 1 if one failed, 2 if a surrounding cannot be made here.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path

from scripts.quality.fuzz import FAILED
from scripts.quality.portable import QUICK, unshare
from scripts.quality.shuffled import SEED

ROOT = Path(__file__).parents[2]
DATE = "shifted_date"
"""A library that shifts the date. Debian's libfaketime makes Python's `time.sleep` fail, and waits for locks hang."""
YEARS = 20 * 365 * 86_400.0
NO_TESTS = 5  # pytest's exit status if its arguments select no test


@dataclass(frozen=True)
class Surrounding:
    """What differs from the machine. Folders are made in a folder that is removed afterwards.

    Attributes:
        name: `--only` takes it or its beginning.
        environ: Variables of the environment.
        uptime: Seconds on the monotonic clock at the start.
        moment: The date and the time at the start, in UTC.
        locale: A locale that the machine may lack, as language and character set.
        umask: The mask of new files' permissions.
        user: Whether the user is another one than root, and has no name.
        home: Name of the home folder.
        writable: Whether the home folder is writable.
        temporary: Name of the folder for temporary files.
        checkout: Name of the folder with the checkout.
        seed: The seed of a random order of the tests and of Python's hashes.
        cores: The processors that may be used, as for `taskset`.
        load: Number of processes beside the tests that only compute.
        is_whole: Whether the integration tests run too. They need root for some sandboxes and short paths for sockets, and are too
            slow beside a load.
    """

    name: str
    environ: Mapping[str, str] = field(default_factory=dict)
    uptime: float | None = None
    moment: str = ""
    locale: tuple[str, str] | None = None
    umask: int = -1
    user: bool = False
    home: str = ""
    writable: bool = True
    temporary: str = ""
    checkout: str = ""
    seed: int | None = None
    cores: str = ""
    load: int = 0
    is_whole: bool = True


SURROUNDINGS = (
    Surrounding("clock-seconds", uptime=5),
    Surrounding("clock-minutes", uptime=400),  # until 520 s, (begin + duration) - begin is a little less
    Surrounding("clock-years", uptime=YEARS),
    Surrounding("date-2027", moment="2027-12-31T23:59:30"),
    Surrounding("date-leap-day", moment="2028-02-28T23:59:30"),
    Surrounding("date-spring", {"TZ": "Europe/Berlin"}, moment="2027-03-28T00:59:30"),
    Surrounding("date-autumn", {"TZ": "Europe/Berlin"}, moment="2027-10-31T00:59:30"),
    Surrounding("zone-chatham", {"TZ": "Pacific/Chatham"}),
    Surrounding("locale-c", {"LC_ALL": "C"}),
    Surrounding("locale-turkish", {"LC_ALL": "tr_TR.UTF-8"}, locale=("tr_TR", "UTF-8")),
    Surrounding("umask", umask=0o077),
    Surrounding("user", user=True, is_whole=False),
    Surrounding("home-spaces", home="my home é"),
    Surrounding("home-read-only", home="home", writable=False, user=True, is_whole=False),
    Surrounding("temporary", temporary="my files é", is_whole=False),
    Surrounding("path", checkout="my checkout é"),
    Surrounding("order-1", seed=1),
    Surrounding("order-2", seed=2),
    Surrounding("order-3", seed=3),
    Surrounding("one-core", cores="0", is_whole=False),
    Surrounding("load", load=8, is_whole=False),
)
TOGETHER = (
    ("clock-seconds", "zone-chatham", "locale-c", "umask", "order-1"),
    ("clock-minutes", "date-leap-day", "locale-turkish", "home-spaces", "order-2"),
    ("clock-years", "date-autumn", "path", "order-3"),
    ("date-2027", "user", "temporary", "one-core"),
    ("date-spring", "home-read-only", "load"),
)
"""Names of the surroundings that make one run. Each is in one of them.

`locale-c` and `path` exclude each other: Python 3.11 reads `.pth` files in the locale's encoding, and one names the checkout.
"""


def together(several: Sequence[Surrounding]) -> Surrounding:
    """Return a surrounding that differs from the machine in everything in which one of these does."""
    plain = Surrounding("")
    changed = {
        part.name: getattr(each, part.name)
        for each in several
        for part in fields(Surrounding)
        if getattr(each, part.name) != getattr(plain, part.name)
    }
    environ = {name: value for each in several for name, value in each.environ.items()}
    return Surrounding(**{**changed, "name": "+".join(each.name for each in several), "environ": environ})


class NotHere(Exception):
    """A surrounding cannot be made here; the message says what is missing."""


def program(name: str, package: str) -> str:
    """Return the path of a program. Raises `NotHere`."""
    path = shutil.which(name)
    if path is None:
        raise NotHere(f"{name} is not installed: apt-get install {package}")
    return path


def command_of(one: Surrounding, uptime: float) -> list[str]:
    """Return the words that stand before pytest's command. Raises `NotHere`.

    Args:
        one: The surrounding.
        uptime: Present time on the monotonic clock, in seconds.
    """
    words = [program("taskset", "util-linux"), "--cpu-list", one.cores] if one.cores else []
    if one.uptime is not None:
        shift = f"{one.uptime - uptime:.0f}"
        words += unshare("--time", "--monotonic", shift, "--boottime", shift)
    if one.user:
        words += [program("unshare", "util-linux"), "--user", "--map-user=1000", "--map-group=1000"]
    return words


def environ_of(one: Surrounding, scratch: Path, now: datetime) -> dict[str, str]:
    """Return the variables that differ.

    Args:
        one: The surrounding.
        scratch: Its folder.
        now: Present time.
    """
    environ = dict(one.environ)
    if one.moment:
        ahead = datetime.fromisoformat(one.moment).replace(tzinfo=UTC) - now
        environ |= {"LD_PRELOAD": str(scratch / DATE), "DATE_AHEAD": f"{ahead.total_seconds():.0f}"}
    if one.locale:
        environ["LOCPATH"] = str(scratch)
    if one.home:
        environ["HOME"] = str(scratch / one.home)
    if one.temporary:
        environ["TMPDIR"] = str(scratch / one.temporary)
    if one.seed is not None:
        environ |= {SEED: str(one.seed), "PYTHONHASHSEED": str(one.seed)}
    return environ


def prepare(one: Surrounding, scratch: Path) -> Path:
    """Make what the surrounding needs on disk, and return the checkout. Raises `NotHere`."""
    if one.home:
        (scratch / one.home).mkdir(mode=0o755 if one.writable else 0o555)
    if one.temporary:
        (scratch / one.temporary).mkdir()
    if one.moment:
        source = Path(__file__).with_name(f"{DATE}.c")
        compile_it = [program("cc", "gcc"), "-shared", "-fPIC", "-O2", "-o", str(scratch / DATE), str(source)]
        subprocess.run(compile_it, check=True)
    if one.locale:
        localedef = program("localedef", "libc-bin")
        language, charset = one.locale
        made = scratch / f"{language}.{charset}"
        done = subprocess.run([localedef, "-i", language, "-f", charset, str(made)], check=False)
        if done.returncode:
            raise NotHere(f"localedef cannot make {made.name}: apt-get install locales")
    return copy_checkout(scratch / one.checkout) if one.checkout else ROOT


def copy_checkout(to: Path) -> Path:
    """Copy the checkout as it is now, and set the copy up."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(to)], check=True)
    listing = ["git", "ls-files", "-z", "--modified", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True).stdout
    for name in filter(None, os.fsdecode(names).split("\0")):
        source, target = ROOT / name, to / name
        target.unlink(missing_ok=True)
        if source.is_symlink() or source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    setup = subprocess.run(["make", "python"], cwd=to, check=False, capture_output=True, text=True)
    if setup.returncode:
        raise NotHere(f"make python fails in '{to.name}':\n{setup.stdout}{setup.stderr}")
    return to


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Let this number of processes compute meanwhile."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def run(one: Surrounding, marked: str, arguments: Sequence[str]) -> tuple[int, str]:
    """Run the tests in a surrounding; return pytest's exit status and output. Raises `NotHere`."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="m3agent-anywhere-")))
        checkout = prepare(one, scratch)
        python = checkout / Path(sys.executable).relative_to(ROOT) if one.checkout else Path(sys.executable)
        pytest = [str(python), "-m", "pytest", "-q", "-m", marked, "-p", "no:cacheprovider"]
        shuffled = [] if one.seed is None else ["-p", "scripts.quality.shuffled"]
        stack.enter_context(busy(one.load))
        done = subprocess.run(
            [*command_of(one, time.monotonic()), *pytest, *shuffled, *arguments],
            cwd=checkout,
            env={**os.environ, **environ_of(one, scratch, datetime.now(UTC))},
            umask=one.umask,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        return done.returncode, done.stdout


def chosen(only: str) -> list[Surrounding]:
    """Return the surroundings that are named, or whose name begins so. `a+b` is both at once. Raises `ValueError`."""
    names = [name.strip() for name in only.split(",")]
    for name in itertools.chain.from_iterable(name.split("+") for name in names):
        if not any(one.name.startswith(name) for one in SURROUNDINGS):
            known = ", ".join(one.name for one in SURROUNDINGS)
            raise ValueError(f"there is no surrounding '{name}'; there are {known}")
    alone = tuple(name for name in names if "+" not in name)
    joined = [
        together([one for one in SURROUNDINGS if one.name in name.split("+")])
        for name in names
        if "+" in name
    ]
    return [*(one for one in SURROUNDINGS if one.name.startswith(alone)), *joined]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests in the chosen surroundings, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="names of surroundings or their beginnings")
    parser.add_argument("--unit", action="store_true", help="run only the unit tests")
    parser.add_argument("--list", action="store_true", help="print the names of the surroundings and stop")
    options, rest = parser.parse_known_args(arguments)
    try:
        surroundings = chosen(options.only)
    except ValueError as error:
        parser.error(str(error))
    if options.list:
        print(*(each.name for each in surroundings), sep="\n")
        return 0
    if options.only:
        return worst(run_and_tell(each, rest, options.unit)[0] for each in surroundings)
    by_name, statuses = {each.name: each for each in SURROUNDINGS}, list[int]()
    for names in TOGETHER:
        several = [by_name[name] for name in names]
        status, failed = run_and_tell(together(several), rest, options.unit)
        statuses.append(status)
        for each in several if failed else ():
            run_and_tell(each, [*failed, *rest], options.unit)
    return worst(statuses)


def worst(statuses: Iterable[int]) -> int:
    """Return the exit status of several runs: a test that failed counts more than a surrounding that cannot be made."""
    return min({*statuses} - {0}, default=0)


def run_and_tell(one: Surrounding, arguments: Sequence[str], is_unit: bool) -> tuple[int, list[str]]:
    """Run the tests in a surrounding, and print what became of them.

    Returns:
        The exit status, and the ids of the tests that failed.
    """
    begun, failed, status = time.monotonic(), list[str](), 0
    marked = QUICK if one.is_whole and not is_unit else f"{QUICK} and not integration"
    try:
        code, output = run(one, marked, arguments)
    except NotHere as error:
        print(f"{one.name}: not possible here: {error}", flush=True)
        return 2, []
    if code in (0, NO_TESTS):
        summary = output.strip().splitlines()[-1]
    else:
        status, failed = 1, FAILED.findall(output)
        print(output)
        summary = ", ".join(failed) or f"pytest ended with exit status {code}"
    print(f"{one.name}: {summary} ({time.monotonic() - begun:.0f} s)", flush=True)
    return status, failed


if __name__ == "__main__":
    sys.exit(main())

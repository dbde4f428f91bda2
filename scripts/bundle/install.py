"""Install m3agent from this file, without a network.

    python3 m3agent-VERSION-linux-ARCH.pyz [--prefix /opt/m3agent]

The file is an archive with the wheels of m3agent and of everything that it needs, for several versions of Python.
`make bundle` writes it; this module is its `__main__`. It may be started by a Python that m3agent does not support, so it
uses nothing that Python 3.6 lacks.
"""

import argparse
import compileall
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

BUNDLE = Path(__file__).absolute().parent
"""The archive itself: Python gives a module in an archive the path `ARCHIVE/__main__.py`."""
RESTARTED = "M3AGENT_INSTALLER_RESTARTED"


def main() -> int:
    """Install and return the exit code."""
    parser = argparse.ArgumentParser(description="Install m3agent from this file, without a network.")
    parser.add_argument(
        "--prefix", default="/opt/m3agent", help="folder of the installation (default: %(default)s)"
    )
    prefix = Path(os.path.abspath(parser.parse_args().prefix))  # noqa: PTH100  # links are kept as they are
    with zipfile.ZipFile(str(BUNDLE)) as bundle:
        manifest = json.loads(bundle.read("manifest.json").decode())
        here = "{}.{}".format(*sys.version_info)
        if "musl" in (sysconfig.get_config_var("EXT_SUFFIX") or ""):
            return fail(
                "this needs glibc, and this system has musl: use an image that is based on Debian, for example"
            )
        if here not in manifest["wheels"]:
            return in_other_python(list(manifest["wheels"]), here)
        try:
            install(bundle, manifest["wheels"][here], here, prefix)
        except (OSError, ImportError, subprocess.CalledProcessError) as error:
            return fail(f"{error}; nothing was installed into {prefix}")
    print(f"m3agent {manifest['version']} is in {prefix}. Start it with {prefix}/bin/m3agent")
    if shutil.which("git") is None:
        print("git is not on PATH: m3agent fix needs it", file=sys.stderr)
    return 0


def in_other_python(pythons: "list[str]", here: str) -> int:
    """Start this file again in a Python that the archive has wheels for."""
    if RESTARTED not in os.environ:
        os.environ[RESTARTED] = "1"
        for version in reversed(pythons):
            found = shutil.which(f"python{version}")
            if found:
                os.execv(found, [found, str(BUNDLE), *sys.argv[1:]])  # noqa: S606  # the same program in another Python
    return fail(f"this needs Python {' or '.join(pythons)}, and python3 is {here}")


def install(bundle: zipfile.ZipFile, wheels: "list[str]", python: str, prefix: Path) -> None:
    """Make an environment in a new folder beside the prefix, then put it in place as a whole."""
    import venv  # Debian can install Python without it

    new = Path(f"{prefix}.new-{os.getpid()}")
    try:
        os.umask(0o022)  # the agent's user may be another one
        venv.create(str(new), symlinks=True, with_pip=False)
        packages = new / "lib" / f"python{python}" / "site-packages"
        for name in wheels:
            with bundle.open(f"wheels/{name}") as file, zipfile.ZipFile(file) as wheel:
                wheel.extractall(str(packages))
        compileall.compile_dir(str(packages), quiet=2, ddir=str(prefix / packages.relative_to(new)))
        write_command(new / "bin" / "m3agent", prefix)
        subprocess.check_output([str(new / "bin" / "python"), "-m", "m3agent.agent", "--version"])
        replace(new, prefix)
    finally:
        shutil.rmtree(str(new), ignore_errors=True)


def write_command(path: Path, prefix: Path) -> None:
    """Write the command. A shell starts it, because the path of an interpreter may be too long for a `#!` line."""
    path.write_text(f'#!/bin/sh\nexec "{prefix}/bin/python" -m m3agent.agent "$@"\n')
    path.chmod(0o755)


def replace(new: Path, prefix: Path) -> None:
    """Put `new` in the place of an installation that m3agent made, of an empty folder or of nothing."""
    old = Path(f"{prefix}.old-{os.getpid()}")
    if prefix.is_dir() and any(prefix.iterdir()):
        if not (prefix / "bin" / "m3agent").exists():
            raise OSError(f"{prefix} is not empty and has no m3agent: give another --prefix")
        prefix.rename(old)
    new.rename(prefix)
    shutil.rmtree(str(old), ignore_errors=True)


def fail(reason: str) -> int:
    """Print why nothing was installed."""
    print(f"m3agent: {reason}.", file=sys.stderr)
    return 3


if __name__ == "__main__":
    sys.exit(main())

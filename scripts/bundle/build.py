"""Build one file that installs m3agent where nothing can be downloaded.

    make bundle                        # dist/m3agent-0.1.0-linux-x86_64.pyz
    make bundle ARGS="--arch aarch64"

It holds the wheels of the versions in uv.lock, for every supported version of Python, so one file serves every container
of that processor with glibc. musl is missing, because `ahocorasick-rs` has no wheels for it.
`scripts/bundle/install.py` says how it installs.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = [f"manylinux_2_{minor}" for minor in range(5, 29)] + [
    "manylinux1",
    "manylinux2010",
    "manylinux2014",
]
"""glibc 2.28 is that of Debian 10; wheels for a newer one would not load on older images."""


def main() -> int:
    """Build the file and print its path."""
    parser = argparse.ArgumentParser(description="Build one file that installs m3agent without a network.")
    parser.add_argument("--arch", default=platform.machine(), choices=["x86_64", "aarch64"])
    parser.add_argument(
        "--output", type=Path, default=ROOT / "dist", help="folder of the file (default: dist/)"
    )
    parser.add_argument("--python", action="append", help="a version of Python; repeatable (default: all)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="m3agent-bundle-") as name:
        folder = Path(name)
        own = build_wheel(folder / "own")
        wheels = {
            python: [own.name, *download(folder, python, arguments.arch)]
            for python in arguments.python or PYTHONS
        }
        shutil.copy(own, folder / "wheels")
        version = own.name.split("-")[1]
        arguments.output.mkdir(parents=True, exist_ok=True)
        bundle = arguments.output / f"m3agent-{version}-linux-{arguments.arch}.pyz"
        manifest: dict[str, object] = {"version": version, "wheels": wheels}
        write(bundle, folder / "wheels", manifest)
    print(f"{bundle} ({bundle.stat().st_size / 1e6:.0f} MB)")
    return 0


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    [wheel] = folder.iterdir()
    return wheel


def download(folder: Path, python: str, arch: str) -> list[str]:
    """Download the wheels of all dependencies into `wheels` and return their names."""
    place = folder / python
    needed = folder / f"{python}.txt"
    needed.write_text("\n".join(requirements(python, arch)))
    tags = [word for platform in PLATFORMS for word in ("--platform", f"{platform}_{arch}")]
    abis = [word for abi in (f"cp{python.replace('.', '')}", "abi3", "none") for word in ("--abi", abi)]
    # uv cannot download wheels for another platform without unpacking them
    pip = ["uv", "tool", "run", "--quiet", "pip", "download", "--quiet", "--disable-pip-version-check"]
    target = ["--implementation", "cp", "--python-version", python, *tags, *abis]
    subprocess.run(
        [*pip, "--no-deps", "--only-binary", ":all:", *target, "-r", needed, "-d", place], check=True
    )
    names = sorted(path.name for path in place.iterdir())
    for name in names:
        check(place / name)
    shutil.copytree(place, folder / "wheels", dirs_exist_ok=True)
    return names


def requirements(python: str, arch: str) -> list[str]:
    """Return the lines of a requirements file, with the hashes of uv.lock, for that Python on Linux."""
    export = ["uv", "export", "--quiet", "--frozen", "--no-dev", "--no-emit-project"]
    text = subprocess.run(export, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": arch,
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    lines = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        named, *hashes = line.split(" --hash=")
        requirement = Requirement(named.strip())
        if requirement.marker is None or requirement.marker.evaluate(environment):
            pinned = f"{requirement.name}{requirement.specifier}"
            lines.append(" --hash=".join([pinned, *(word.strip() for word in hashes)]))
    return lines


def check(wheel: Path) -> None:
    """Raise SystemExit if a wheel has files that belong elsewhere than among the packages: unpacking would misplace them."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if re.match(r"[^/]+\.data/(?!scripts/)", name):
                sys.exit(f"{wheel.name} has {name}, which scripts/bundle/install.py cannot put in its place")


def write(bundle: Path, wheels: Path, manifest: dict[str, object]) -> None:
    """Write the archive. Wheels are compressed already, so they are stored as they are."""
    new = bundle.with_suffix(".new")
    with zipfile.ZipFile(new, "w", zipfile.ZIP_STORED) as archive:
        archive.write(Path(__file__).with_name("install.py"), "__main__.py")
        archive.writestr("manifest.json", json.dumps(manifest))
        for wheel in sorted(wheels.iterdir()):
            archive.write(wheel, f"wheels/{wheel.name}")
    new.replace(bundle)


if __name__ == "__main__":
    sys.exit(main())

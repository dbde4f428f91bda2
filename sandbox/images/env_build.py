"""The repository's own environment: what it declares, installed into a virtual environment, as an image.

The build gets the names of what to install and the addresses of indexes without passwords, and runs as an unprivileged user.
"""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from m3agent.sandbox.backends.docker_machine import USER
from m3agent.sandbox.backends.image import Image
from m3agent.sandbox.backends.sandbox import ROOT
from m3agent.sandbox.declared.types import DeclaredProject
from m3agent.sandbox.images import env_script
from m3agent.sandbox.images.image_build import Build, build_image, files_as_tar
from m3agent.sandbox.images.indexes import Indexes
from m3agent.sandbox.images.installers import installers
from m3agent.sandbox.portable_source import portable_files

FOLDER = "/opt/m3agent-env"
"""Path of the virtual environment in its image."""
WORK = "/opt/m3agent-build"


@dataclass(frozen=True)
class Job:
    """What to build.

    Attributes:
        requirements: Lines of a requirements file.
        constraints: Lines of a constraints file.
        optional: Those of the requirements that may be left out.
        pythons: Minor versions of Python that the project accepts, best first; empty for any.
        project: Metadata of the project itself.
        django_settings: Module with Django's settings; None without one.
        test_options: Words that every command line of pytest gets.
        import_folders: Folders of the repository, besides those on PYTHONPATH, from which modules are imported.
        exclude_newer: Packages that were uploaded later do not count.
        indexes: Where packages come from.
    """

    requirements: tuple[str, ...]
    constraints: tuple[str, ...]
    optional: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    project: DeclaredProject | None = None
    django_settings: str | None = None
    test_options: tuple[str, ...] = ()
    import_folders: tuple[str, ...] = ()
    exclude_newer: str | None = None
    indexes: Indexes = field(default_factory=Indexes)


def build_environment(
    api: Any,
    job: Job,
    base: Image,
    tag: str,
    *,
    log: Path,
    say: Callable[[str], None],
    stop: threading.Event,
) -> None:
    """Build the image and tag it. Blocking; takes minutes. Other arguments and errors are those of `build_image`."""
    django = {} if job.django_settings is None else {"DJANGO_SETTINGS_MODULE": job.django_settings}
    options = {"PYTEST_ADDOPTS": shlex.join(job.test_options)} if job.test_options else {}
    image_env = {"PATH": f"{FOLDER}/bin:{base.path}", "VIRTUAL_ENV": FOLDER, **django, **options}
    build = _build("the repository's environment", job, base, image_env)
    build_image(api, build, tag, [_archive(job)], log=log, say=say, stop=stop)


def install_python(
    api: Any,
    python: str,
    base: Image,
    tag: str,
    indexes: Indexes,
    *,
    log: Path,
    say: Callable[[str], None],
    stop: threading.Event,
) -> None:
    """Build an image with a minor version of Python that uv installs. Otherwise like `build_environment`."""
    job = Job((), (), pythons=(python,), indexes=indexes)
    build = _build(f"an image with Python {python}", job, base, base.env, "python")
    build_image(api, build, tag, [_archive(job)], log=log, say=say, stop=stop)


def _build(what: str, job: Job, base: Image, env: Mapping[str, str], *arguments: str) -> Build:
    """Return the run of `env_script.py` with these arguments; `env` are the variables of the new image."""
    return Build(
        what=what,
        base=base,
        command=("python3", "-I", "-S", f"{WORK}/env_script.py", *arguments),
        user=USER,
        folder="/",
        indexes=job.indexes,
        image_env=env,
        image_command="python3",
    )


def _archive(job: Job) -> bytes:
    """Return the input files of a build as a tar for the container's root."""
    sure = [line for line in job.requirements if line not in job.optional]
    lists = {"requirements": sure, "optional": job.optional, "constraints": job.constraints}
    files: dict[str, bytes] = {
        **{f"{name}.txt": "".join(f"{line}\n" for line in lines).encode() for name, lines in lists.items()},
        **portable_files(env_script),
        "job.json": json.dumps(
            {
                "folder": FOLDER,
                "pythons": job.pythons,
                "import_folders": [f"{ROOT}/{folder}" for folder in job.import_folders],
                "project": asdict(job.project) if job.project else None,
                "exclude_newer": job.exclude_newer,
                "env": job.indexes.environment(f"{WORK}/certificates.pem"),
            }
        ).encode(),
    }
    if job.indexes.certificates is not None:
        files["certificates.pem"] = job.indexes.certificates.read_bytes()
    files |= installers()
    return files_as_tar(files, WORK, folders=(WORK, FOLDER), owner=1000)

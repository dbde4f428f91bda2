"""Run a sandbox without isolation: as processes of this machine, which should be a container itself.

It is for containers that have neither a container engine nor user namespaces, such as those of other evaluations. The
supervisor ends whole process trees and limits commands, as in every sandbox. But commands have the rights of m3agent's
user: they can read and change whatever that user can, and reach the network of the container.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from m3agent.sandbox.backends.image import DEFAULT_PATH
from m3agent.sandbox.backends.process_machine import ProcessMachine, processes_of_user
from m3agent.sandbox.backends.sandbox import Folders, SandboxLimits
from m3agent.sandbox.errors import EngineUnavailable, SandboxDied, SandboxError
from m3agent.sandbox.protocol.channel import BOOT, Channel
from m3agent.sandbox.protocol.supervisor import parent_of, remove, set_dumpable
from m3agent.sandbox.store.git import SKIP_FOLDERS
from m3agent.util.start_process import wait_killed
from m3agent.util.threads import uninterrupted

PREFIX = "m3agent-here-"
"""Start of the names of the sandboxes' folders."""
END_TIMEOUT = 30.0
"""Seconds in which a sandbox must have ended its processes and deleted its folder."""
MARKS = ("/.dockerenv", "/run/.containerenv")
"""Files that container engines create in their containers (Docker; Podman)."""
OF_A_SHELL = ("PWD", "OLDPWD", "SHLVL", "_")
"""Variables that say something about the shell that started m3agent."""
CGROUP = Path("/proc/1/cgroup")
"""File that names the control group of process 1, which container engines name after themselves."""
ENGINES = ("/docker", "/kubepods", "/lxc", "/containerd", "/libpod")
SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")
"""Parts of the names of variables that commands do not get."""
MODULES = "node_modules"
INNER = (".bin", ".pnpm", MODULES)
"""Folders of packages in a folder of packages."""
LINKED = (MODULES, ".venv", "venv")
"""Names of ignored folders that a work tree gets as links."""
MOST_COPIED = 512 << 20
"""Bytes of ignored files that a work tree gets; the largest are left out."""


def in_container() -> bool:
    """Return whether this process seems to run in a container."""
    if any(map(os.path.exists, MARKS)) or {"KUBERNETES_SERVICE_HOST", "container"} & os.environ.keys():
        return True
    try:
        group = CGROUP.read_text("utf-8")
    except OSError:
        return False
    return any(engine in group for engine in ENGINES)


def environment_for_commands(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of this process that commands get.

    Variables of m3agent, and those that may hold a password, are left out. So is the virtual environment that m3agent
    runs in, because the commands belong to the repository. Where PATH has no python3, m3agent's own comes last.
    """
    own = Path(sys.prefix, "bin") if sys.prefix != sys.base_prefix else None
    kept = {
        name: value
        for name, value in env.items()
        if not name.startswith(("M3AGENT_", "UV_"))
        and name not in OF_A_SHELL
        and not any(part in name.upper() for part in SECRET)
    }
    if own is not None and kept.get("VIRTUAL_ENV") == sys.prefix:
        del kept["VIRTUAL_ENV"]
    folders = [
        folder for folder in kept.get("PATH", DEFAULT_PATH).split(":") if own is None or Path(folder) != own
    ]
    if shutil.which("python3", path=":".join(folders)) is None:
        folders.append(str(Path(sys.executable).parent))
    if not os.access(kept.get("HOME", ""), os.W_OK):
        kept.pop("HOME", None)
    return {**kept, "PATH": ":".join(folders)}


def wanted_beside(path: str) -> bool:
    """Return whether tests may need an ignored file or folder: it is no cache."""
    name = path.rpartition("/")[2]
    return name in LINKED or not (
        name in SKIP_FOLDERS or name.endswith((".pyc", ".pyo")) or name == ".coverage"
    )


def add_ignored(source: Path, paths: tuple[str, ...], work_tree: Path) -> None:
    """Add ignored files of the user's folder to a work tree: what was built or installed there.

    Installed packages are linked, so that they take neither time nor room, but no link leads to the user's own code. The
    rest is copied, smallest first, up to `MOST_COPIED` bytes in all.
    """
    copied = 0
    sized = sorted((_size(source / path), path) for path in paths if Path(path).name not in LINKED)
    source, work_tree = source.resolve(), work_tree.resolve()
    linked = [path for path in paths if Path(path).name in LINKED]
    siblings = {name for path in linked for name in _siblings(source, source / path)}
    needs = re.compile(rf'"(?:{"|".join(map(re.escape, sorted(siblings)))})"\s*:'.encode())
    for path in linked:
        with contextlib.suppress(OSError):
            (work_tree / path).parent.mkdir(parents=True, exist_ok=True)
            if siblings and Path(path).name == MODULES and not (source / path).is_symlink():
                _link_modules(source / path, work_tree / path, (source, work_tree), needs)
            else:
                (work_tree / path).symlink_to(source / path)
    for size, path in sized:
        copied += size
        if copied > MOST_COPIED:
            break
        target = work_tree / path
        with contextlib.suppress(OSError, shutil.Error):
            target.parent.mkdir(parents=True, exist_ok=True)
            if (source / path).is_dir() and not (source / path).is_symlink():
                shutil.copytree(source / path, target, symlinks=True, dirs_exist_ok=True)
            else:
                shutil.copy2(source / path, target, follow_symlinks=False)


def _siblings(source: Path, modules: Path) -> Iterator[str]:
    """Yield the names of the repository's own packages, which a package manager has linked into a folder."""
    for path in [*modules.glob("*"), *modules.glob("@*/*")] if modules.name == MODULES else ():
        real = Path(os.path.realpath(path))  # `resolve` raises at a loop of links before Python 3.13
        if (
            path.is_symlink()
            and real.is_relative_to(source)
            and MODULES not in real.relative_to(source).parts
        ):
            yield str(path.relative_to(modules))


def _link_modules(folder: Path, target: Path, roots: tuple[Path, Path], needs: re.Pattern[bytes]) -> None:
    """Link installed packages one by one, so that the repository's own packages among them are those of the work tree.

    Node looks for a package's dependencies where its files really are. So packages whose package.json matches `needs`, because
    they need one of the repository's, are copied. `roots` are the user's folder and the work tree.
    """
    target.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        place, real = target / path.name, Path(os.path.realpath(path))
        manifest = path / "package.json"
        if path.is_symlink():
            place.symlink_to(roots[1] / real.relative_to(roots[0]) if real.is_relative_to(roots[0]) else real)
        elif path.is_dir() and (path.name.startswith("@") or path.name in INNER or folder.name == ".pnpm"):
            _link_modules(path, place, roots, needs)
        elif manifest.is_file() and needs.search(manifest.read_bytes()):
            shutil.copytree(path, place, symlinks=True)
        else:
            place.symlink_to(path)


def _size(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    if not path.is_dir() or path.is_symlink():
        return path.lstat().st_size if os.path.lexists(path) else 0
    files = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sum(file.lstat().st_size for file in files if os.path.lexists(file))


def _ancestors() -> list[int]:
    """Return this process and those that started it, except process 1 and those that cannot be seen."""
    found = [os.getpid()]
    pid = os.getppid()
    with contextlib.suppress(OSError, ValueError):
        while pid > 1:
            found.append(pid)
            pid = parent_of(pid)
    return found


class HereMachine(ProcessMachine):
    """A supervisor in the present container.

    Args:
        limits: Resources of the sandbox. Memory is that of one process; the disk and the CPUs are not limited.
        source: The user's folder, whose ignored files the work tree gets; None for none.
        ignored: Paths of these files and folders, relative to it.
    """

    name = "here"
    isolated = False

    def __init__(
        self, limits: SandboxLimits, source: Path | None = None, ignored: tuple[str, ...] = ()
    ) -> None:
        # commands may install packages at any time, so no earlier result is valid
        super().__init__(limits, uuid.uuid4().hex)
        self._source = source
        self._ignored = ignored
        self._job_limits = {"AS": limits.memory, "FSIZE": limits.disk}
        if os.geteuid() != 0:  # the kernel does not limit root's processes
            self._job_limits["NPROC"] = limits.pids + processes_of_user()

    def job_limits(self) -> dict[str, int]:
        """Return limits of each process: address space, file size, and for other users than root, processes."""
        return self._job_limits

    async def start(self) -> Channel:
        """Start the supervisor; its first frame arrives on the returned channel."""
        if sys.platform != "linux":
            raise EngineUnavailable("--sandbox here needs Linux: use --sandbox docker")
        try:
            folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        except OSError as error:
            raise EngineUnavailable(
                f"no folder for temporary files can be written ({error.strerror}): set TMPDIR to one"
            ) from None
        self.folders = Folders(f"{folder}/tree", f"{folder}/toolbox", f"{folder}/tmp")  # noqa: S108 - a new folder
        self.environment = {**environment_for_commands(os.environ), "TMPDIR": self.folders.temporary}
        try:
            for path in (self.folders.work_tree, self.folders.toolbox, self.folders.temporary):
                Path(path).mkdir(mode=0o700)
            if self._source is not None:
                await asyncio.to_thread(
                    add_ignored, self._source, self._ignored, Path(self.folders.work_tree)
                )
            set_dumpable(0)  # /proc hides this process's variables from commands
            argv = (sys.executable, "-I", "-S", "-c", BOOT, self.folders.work_tree, str(folder))
            return await self._start(*argv, *map(str, _ancestors()), env={"PATH": DEFAULT_PATH})
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, OSError):
                raise EngineUnavailable(f"cannot start a sandbox here: {error.strerror}") from None
            raise

    async def destroy(self) -> None:
        """End the sandbox; its guard ends all processes and deletes its folder."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
        try:
            async with asyncio.timeout(END_TIMEOUT):
                await wait_killed(process)
        except TimeoutError:
            raise SandboxError(
                f"the sandbox did not end within {END_TIMEOUT:.0f} s: processes of it may be left, and its folder "
                f"{Path(self.folders.work_tree).parent}"
            ) from None
        await asyncio.gather(self._drain, return_exceptions=True)
        # nothing is left to do, unless the guard was ended before it had begun
        await uninterrupted(lambda: remove(str(Path(self.folders.work_tree).parent)))

    def _explain(self, lines: list[str]) -> SandboxError:
        return SandboxDied(f"the supervisor ended: {lines[-1]}" if lines else "the supervisor was killed")

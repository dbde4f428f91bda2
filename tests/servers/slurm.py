"""A Slurm on this machine for tests: a controller, two nodes with four fake GPUs each, and the munge they trust."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from tests.servers.ports import free_ports

PATIENCE = 30.0  # seconds for nodes to start, and for jobs to end
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")

_CONF = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={at}/munge.socket
StateSaveLocation={at}/state
SlurmctldPidFile={at}/slurmctld.pid
SlurmdSpoolDir={at}/spool-%n
SlurmdPidFile={at}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
MpiDefault=none
ReturnToService=2
KillWait=2
GresTypes=gpu
NodeName=a NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 RealMemory=1000 Gres=gpu:4
NodeName=b NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 RealMemory=1000 Gres=gpu:4
PartitionName=main Nodes=a,b Default=YES MaxTime=INFINITE State=UP
"""


class OwnSlurm:
    """A Slurm that runs while the context is entered.

    Its commands need `environ`. Several nodes on one machine need a slurmd that supports -N.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="m3s", dir="/tmp"))  # a socket's path has to be short
        self.environ = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}
        self._processes: list[subprocess.Popen[bytes]] = []

    @staticmethod
    def barred_by() -> str | None:
        """Return why Slurm cannot be started here, or None if it can."""
        missing = [program for program in PROGRAMS if shutil.which(program, path=_path()) is None]
        if missing or os.geteuid():
            return f"needs root and Slurm ({', '.join(missing) or 'it is here'}): apt-get install slurmctld slurmd slurm-client munge"
        return None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(self.__exit__)  # also after a start that failed halfway
            self._start()
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(subprocess.SubprocessError, RuntimeError):
            self.run("scancel", "--me")
            self.wait_until_empty()
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *words: str) -> str:
        """Return the output of one of Slurm's commands."""
        done = subprocess.run(
            words, env=self.environ, capture_output=True, text=True, check=True, timeout=PATIENCE
        )
        return done.stdout

    def wait_until_empty(self) -> None:
        """Return once no job is left, including jobs that are ending."""
        self._until(lambda: not self.run("squeue", "--noheader"), "jobs are left")

    def _start(self) -> None:
        at, ports = self.folder, free_ports(3)
        (at / "state").mkdir()
        for number in range(4):
            (at / f"gpu{number}").touch()
        (at / "slurm.conf").write_text(_CONF.format(at=at, host=socket.gethostname(), ports=ports))
        (at / "gres.conf").write_text(f"NodeName=a,b Name=gpu File={at}/gpu[0-3]\n")
        (at / "key").write_bytes(secrets.token_bytes(128))
        (at / "key").chmod(0o600)
        at.chmod(0o755)  # munged requires that everybody can reach its socket
        files = {"key-file": "key", "socket": "munge.socket", "pid-file": "munge.pid", "seed-file": "seed"}
        options = [f"--{option}={at / name}" for option, name in files.items()]
        self._run_on("munged", "--foreground", "--force", f"--log-file={at}/munge.log", *options)
        self._until((at / "munge.socket").exists, "munged did not start")
        conf = str(at / "slurm.conf")
        self._run_on("slurmctld", "-D", "-f", conf)
        for node in ("a", "b"):
            self._run_on("slurmd", "-D", "-N", node, "-f", conf)
        self._until(
            lambda: self.run("sinfo", "--noheader", "--format=%t %D").split() == ["idle", "2"], "no nodes"
        )

    def _run_on(self, *words: str) -> None:
        program = shutil.which(words[0], path=_path())
        assert program is not None
        with (self.folder / "log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [program, *words[1:]],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self.environ,
                    start_new_session=True,
                )
            )

    def _until(self, holds: Callable[[], object], otherwise: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(subprocess.CalledProcessError):  # the controller has not started yet
                if holds():
                    return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{otherwise}: {(self.folder / 'log').read_text()[-3000:]}")
            time.sleep(0.1)


def _path() -> str:
    return f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin"

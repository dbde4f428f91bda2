"""Run a job under Slurm: a script for sbatch, and a command that waits for the job and shows its log.

The end of `sbatch --wait` does not end the job (seen with Slurm 22.05: SIGTERM ends sbatch at once, and the
job continues). So each job has a unique name, and the scripts cancel it by that name.
"""

from __future__ import annotations

import secrets
import shlex
import shutil
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from m3agent.serving.client.http import is_loopback
from m3agent.serving.launch.job import EngineJob, Start
from m3agent.serving.launch.nodes import MASTER_PORT, node_argv
from m3agent.serving.plan.command import command_line
from m3agent.util.errors import EnvironmentFault, UsageError

SUBMIT, SCRIPT, NODE_SCRIPT = "submit.sh", "job.sh", "node.sh"
"""Names of the scripts in the job's folder: for this machine, for the first node, for every node."""
OUTPUT, URL = "slurm.log", "url"
"""Names of the engine's log and of the file with the server's address, in the job's folder."""

_HEAD = "M3AGENT_HEAD"  # variable with the first node's address; all tasks of its script inherit it
_PARTNER_SECONDS = 60
"""Seconds that the other nodes have to end by themselves after one has ended."""

_SUBMIT = """\
#!/bin/bash
# Waits for the job and shows its log. When it ends, it cancels the job. If it was killed: scancel --me --name={name}
cd -- {folder}
rm -f {url}
: >{output}
{sbatch} &
job=$!
tail --pid=$job --lines=+1 --follow=name {output} 2>/dev/null &
shown=$!
trap 'kill $job $shown 2>/dev/null; scancel --me --name={name}' EXIT
said=
while kill -0 $job 2>/dev/null; do
  state=$(squeue --me --name={name} --noheader --format='%T (%r)' 2>/dev/null)
  if [ -n "$state" ] && [ "$state" != "$said" ]; then
    echo "Slurm: $state"
    said=$state
  fi
  case $state in RUNNING*) break ;; esac
  sleep 3 >/dev/null 2>&1 &
  wait -n $job $!  # a sleep in the foreground would hold up the end
done
wait $job
code=$?
wait $shown
if [ $code != 0 ] && [ ! -s {output} ]; then
  echo "The job left no log: its nodes have to see and write "{folder}", which is on this machine's disk or is not shared with them."
fi
exit $code
"""

# Nodes reach each other by the address that Slurm knows; a host's first address may be a different one.
_ADDRESS = """\
#!/bin/bash
set -eu
node=$(scontrol show node --oneliner "$SLURMD_NODENAME" | sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p')
address=$(getent ahostsv4 "${node:-$SLURMD_NODENAME}" | awk 'NR == 1 { print $1 }') || address=
case $address in "" | 127.*) address=$(hostname -I | awk '{ print $1 }') ;; esac
"""
_JOB = """\
{start}export {head}=$address
echo "http://$address:{port}/v1" >{url}.new
mv {url}.new {url}
{body}
"""

_NODE = """\
{start}export VLLM_HOST_IP=$address
if [ "$SLURM_NODEID" = 0 ]; then
exec {first}
fi
exec {other}
"""


def slurm_start(
    job: EngineJob, *, folder: Path, environ: Mapping[str, str], extra: Sequence[str] = ()
) -> Start:
    """Write the job's scripts and return the command that submits the job and waits for it.

    The job gets whole nodes. It runs once: the failure of a node ends it. The scripts have mode 0600.
    Variables reach the job through its environment, so no script contains a secret.

    Args:
        folder: Folder of the scripts, on a file system that the nodes share.
        extra: Further options of sbatch; they override ours.

    Raises:
        EnvironmentFault: Slurm is not installed on this machine.
        UsageError: The job cannot run under Slurm.
    """
    for program in ("sbatch", "squeue", "scancel"):
        if shutil.which(program, path=environ.get("PATH")) is None:
            raise EnvironmentFault(
                f"There is no {program} on this machine: run this on a login node, where Slurm jobs are submitted."
            )
    if is_loopback(job.host):
        raise UsageError(
            "Slurm runs the server on another machine, where "
            f"{job.host} cannot be reached: use --host 0.0.0.0, which also sets a key."
        )
    name = f"m3agent-{secrets.token_hex(4)}"
    sbatch, files = slurm_command(job, name=name, folder=folder, extra=extra)
    files[SUBMIT] = _SUBMIT.format(
        name=name, folder=shlex.quote(str(folder)), url=URL, output=OUTPUT, sbatch=shlex.join(sbatch)
    )
    for file, text in files.items():
        path = folder / file
        path.touch(mode=0o600)
        path.write_text(text, "utf-8")
    return Start(("bash", str(folder / SUBMIT)), job.env, ("scancel", "--me", f"--name={name}"), folder / URL)


def slurm_command(
    job: EngineJob, *, name: str, folder: Path, extra: Sequence[str] = ()
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command that submits the job and waits for it, and the scripts that the nodes run. Nothing is written.

    Raises:
        UsageError: The job cannot run under Slurm.
    """
    shape, files = _body(job, folder)
    options = [
        *("--wait", "--export=ALL", "--no-requeue", "--exclusive", "--mem=0"),
        *("--open-mode=append", f"--job-name={name}", f"--chdir={folder}", f"--output={folder / OUTPUT}"),
        *shape,
        *extra,
    ]
    return ("sbatch", *options, SCRIPT), files


def _body(job: EngineJob, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return sbatch's options for nodes, tasks and GPUs, and the scripts that run on the nodes."""
    files: dict[str, str] = {}
    if job.argv[0] == "srun":
        shape, body = _srun_of_its_own(job, folder)
    elif job.nodes == 1:
        shape, body = _shape(1, 1, job.gpus), f"exec {command_line(job.argv, {})}"
    else:
        rank, head = "$SLURM_NODEID", f"${_HEAD}"
        first, other = (node_argv(job, rank, head, MASTER_PORT, first=which) for which in (True, False))
        files = {
            NODE_SCRIPT: _NODE.format(
                start=_ADDRESS, first=command_line(first, {}), other=command_line(other, {})
            )
        }
        shape = _shape(job.nodes, 1, job.gpus // job.nodes)
        body = shlex.join(
            (
                *("srun", f"--nodes={job.nodes}", f"--ntasks={job.nodes}", "--ntasks-per-node=1"),
                *("--kill-on-bad-exit=1", f"--wait={_PARTNER_SECONDS}", "--cpu-bind=none", "--mpi=none"),
                *("bash", NODE_SCRIPT),
            )
        )
    return shape, {
        **files,
        SCRIPT: _JOB.format(start=_ADDRESS, head=_HEAD, port=job.port, url=URL, body=body),
    }


def _shape(nodes: int, tasks: int, gpus: int) -> list[str]:
    gres = [f"--gres=gpu:{gpus}"] if gpus else []
    return [f"--nodes={nodes}", f"--ntasks-per-node={tasks}", *gres]


def _srun_of_its_own(job: EngineJob, folder: Path) -> tuple[list[str], str]:
    """Return the options and script for TensorRT-LLM's own `srun` command.

    The command is the guide's, with this job's folders instead of the guide's folders.
    """
    words = list(job.argv)
    asked = dict(pairwise(words))
    shape = [f"--nodes={asked['-N']}", f"--ntasks-per-node={asked['--ntasks-per-node']}"]
    shape += [word for word in words if word.startswith("--gres=")]
    model = job.env.get("MODEL", job.model)
    if not model.startswith("/"):
        raise UsageError(
            f"TensorRT-LLM reads the chat template from the checkpoint's folder, and {model!r} is not a folder: "
            "download it to a folder that all nodes see, and give that folder with --model."
        )
    mounts = f"--container-mounts={model}:{model},{folder}:{folder}"
    words = [mounts if word.startswith("--container-mounts=") else word for word in words]
    words[words.index("--container-workdir") + 1] = str(folder)
    first = next(iter(file for file in job.files if file.endswith(".yaml")), "")
    body = f': "${{EXTRA_LLM_API_FILE:={folder / first}}}"\nexport EXTRA_LLM_API_FILE\n'
    return shape, body + command_line(words, {})

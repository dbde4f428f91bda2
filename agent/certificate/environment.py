"""Describe a sandbox for the certificate: its image, and what is installed in it."""

from __future__ import annotations

import json

from m3agent.agent.certificate.statement import Environment
from m3agent.sandbox.backends.factory import Backend, SandboxSpec
from m3agent.sandbox.backends.sandbox import Sandbox

_LISTED = """
import json
try:
    from importlib.metadata import distributions
    names = [(one.metadata["Name"], one.version) for one in distributions()]
except ImportError:  # Python before 3.8
    from pkg_resources import working_set
    names = [(one.project_name, one.version) for one in working_set]
print(json.dumps(sorted({"%s==%s" % name for name in names}, key=str.lower)))
"""
_MOST = 1 << 20
"""Most bytes of the list of packages that are read."""


async def described_environment(sandbox: Sandbox, spec: SandboxSpec, backend: Backend) -> Environment:
    """Return the environment of a sandbox in which nothing has run yet.

    Args:
        sandbox: The sandbox, started.
        spec, backend: How it was started.

    Raises:
        SandboxError: The sandbox failed.
    """
    # isolated mode: no file of the repository may replace a module that the program imports
    listed = await sandbox.exec(["python3", "-I", "-c", _LISTED], keep=_MOST)
    try:
        packages = tuple(str(one) for one in json.loads(listed.stdout))
    except ValueError:  # the list is longer, or this Python cannot make it
        packages = ()
    return Environment(
        sandbox=backend,
        isolated=sandbox.machine.isolated,
        image=spec.image,
        image_id=sandbox.machine.image_id,
        python=sandbox.python,
        packages=packages,
        network=tuple(str(host) for host in spec.allow_net),
        memory=spec.limits.memory,
        cpus=spec.limits.cpus,
    )

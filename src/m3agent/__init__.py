"""m3agent: an agentic coding harness for MiniMax M3.

The names of the Python API, such as `m3agent.fix`, are imported at their first use.
"""

TYPE_CHECKING = False  # type checkers take it for true; `typing` would take longer to load than a warm pack runs
if TYPE_CHECKING:
    from typing import Any

    from m3agent.util.errors import EnvironmentFault as EnvironmentFault
    from m3agent.agent.fix.finalize import FixResult as FixResult
    from m3agent.agent.api import FixSettings as FixSettings
    from m3agent.util.errors import M3AgentError as M3AgentError
    from m3agent.util.errors import PermissionRefused as PermissionRefused
    from m3agent.util.errors import ServerFault as ServerFault
    from m3agent.util.errors import Status as Status
    from m3agent.util.errors import UsageError as UsageError
    from m3agent.agent.api import fix as fix
    from m3agent.agent.api import fix_async as fix_async

__version__ = "0.1.0"

_API = {
    "EnvironmentFault": "util.errors",
    "FixResult": "agent.fix.finalize",
    "FixSettings": "agent.api",
    "M3AgentError": "util.errors",
    "PermissionRefused": "util.errors",
    "ServerFault": "util.errors",
    "Status": "util.errors",
    "UsageError": "util.errors",
    "fix": "agent.api",
    "fix_async": "agent.api",
}
"""Names, and the module of `m3agent` that has each."""
__all__ = ["__version__", *_API]  # noqa: PLE0604  # names


def __getattr__(name: str) -> "Any":
    if name in _API:
        from importlib import import_module

        return getattr(import_module(f"m3agent.{_API[name]}"), name)
    raise AttributeError(f"module 'm3agent' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_API})
